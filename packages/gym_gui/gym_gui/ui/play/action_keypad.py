"""On-screen controls: a button for each action or a slider for each component; and bars of a policy's action values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QPushButton, QScrollArea, QSizePolicy, QSlider, QWidget

from gym_gui.ui import theme
from gym_gui.ui.play.actions import ActionSpace, KeyMap
from gym_gui.ui.widgets.parts import named, styled

_MOST = 24
"""Maximum number of bars"""


class ActionBars(QWidget):
    """Names on the left, bars in the middle, values on the right."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("action_bars")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._names: tuple[str, ...] = ()
        self.values: tuple[float, ...] = ()
        self._chosen = -1
        self._are_probabilities = True
        self.clear()

    def clear(self) -> None:
        self.show_values((), (), -1, are_probabilities=True)

    def show_values(
        self, names: Sequence[str], values: Sequence[float], chosen: int, *, are_probabilities: bool
    ) -> None:
        """Show these values; `chosen` is an index of `values`."""
        has_other_size = len(values) != len(self.values)
        self._names, self.values = tuple(names[:_MOST]), tuple(values[:_MOST])
        self._chosen, self._are_probabilities = chosen, are_probabilities
        what = self.tr("Action probabilities") if are_probabilities else self.tr("Action values")
        self.setAccessibleName(what)
        reported = [f"{name} {self._figure(value)}" for name, value in zip(self._names, self.values, strict=False)]
        self.setAccessibleDescription("; ".join(reported))
        self.setVisible(bool(values))
        if has_other_size:
            self.updateGeometry()
        self.update()

    def _row(self) -> int:
        return round(self.fontMetrics().height() * 1.4)

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * 40, self._row() * max(1, len(self.values)))

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * 24, self.sizeHint().height())

    def _figure(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self._are_probabilities else f"{value:.3g}"

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self.values:
            return
        colors, metrics = theme.colors(), self.fontMetrics()
        painter = QPainter(self)
        names = max(metrics.horizontalAdvance(name) for name in self._names or ("",)) + metrics.height() * 1.6
        figures = metrics.horizontalAdvance("100.0 % ") + 6
        left = min(names, self.width() * 0.45)
        room = max(1.0, self.width() - left - figures)
        low = 0.0 if self._are_probabilities else min(0.0, *self.values)
        high = 1.0 if self._are_probabilities else max(0.0, *self.values)
        span = (high - low) or 1.0
        row = self._row()
        for place, value in enumerate(self.values):
            top = place * row
            is_chosen = place == self._chosen
            name = self._names[place] if place < len(self._names) else str(place)
            painter.setPen(QColor(colors.text if is_chosen else colors.muted))
            mark = "▸ " if is_chosen else "   "
            text = metrics.elidedText(mark + name, Qt.TextElideMode.ElideRight, round(left - 4))
            painter.drawText(QRectF(0, top, left, row), Qt.AlignmentFlag.AlignVCenter, text)
            zero, end = left + room * (0 - low) / span, left + room * (value - low) / span
            bar = QRectF(min(zero, end), top + row * 0.2, max(1.0, abs(end - zero)), row * 0.6)
            painter.fillRect(bar, QColor(colors.accent if is_chosen else colors.border))
            painter.setPen(QColor(colors.text))
            painter.drawText(
                QRectF(left + room, top, figures, row),
                Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter,
                self._figure(value),
            )


_COLUMNS = 6
_TICKS = 200


class ActionKeypad(QScrollArea):
    """Emits the chosen action; the panel decides whether that is a step."""

    pressed = Signal(object)  # an action; it is held until `released`
    released = Signal()
    vector_changed = Signal(object)  # list[float]

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "action_pad", self.tr("Actions"))
        self.setFrameShape(QScrollArea.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._space = ActionSpace("")
        self.buttons: list[QPushButton] = []
        self.sliders: list[QSlider] = []
        self._figures: list[QLabel] = []
        self.show_space(self._space, KeyMap())

    def show_space(self, space: ActionSpace, key_map: KeyMap) -> None:
        """Show the buttons or sliders of another action space or key map."""
        self._space = space
        self.buttons, self.sliders, self._figures = [], [], []
        body = QWidget()
        grid = QGridLayout(body)
        grid.setContentsMargins(0, 0, 0, 0)
        if space.is_discrete:
            self._add_buttons(grid, space, key_map)
        elif space.is_playable:
            self._add_sliders(grid, space, key_map)
        elif space.kind:
            text = self.tr("Actions of this kind ({kind}) cannot be chosen by hand; Step takes a random one.")
            label = QLabel(text.format(kind=space.kind), wordWrap=True)
            grid.addWidget(label, 0, 0)
        self.setWidget(body)
        body.setAutoFillBackground(False)
        self.viewport().setAutoFillBackground(False)
        row = self.fontMetrics().height() * 2
        rows = -(-len(self.buttons) // _COLUMNS) if self.buttons else max(1, len(self.sliders))
        self.setMaximumHeight(row * min(rows, 4) + row)
        self.setMinimumHeight(row * min(rows, 2))
        self.setVisible(bool(space.kind))

    def _add_buttons(self, grid: QGridLayout, space: ActionSpace, key_map: KeyMap) -> None:
        for place, (action, name) in enumerate(zip(space.actions(), space.names, strict=True)):
            keys = key_map.text_for(action)
            button = named(QPushButton(f"{name}\n{keys}" if keys else name), f"action_{action}")
            button.setAccessibleName(self.tr("{name}, keys {keys}").format(name=name, keys=keys) if keys else name)
            button.setToolTip(button.accessibleName())
            button.setMinimumHeight(round(self.fontMetrics().height() * (2.8 if keys else 1.8)))
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click leaves the keyboard focus with the game
            button.pressed.connect(partial(self.pressed.emit, action))
            button.released.connect(self.released)
            button.setMinimumWidth(self.fontMetrics().averageCharWidth() * 14)
            button.setMaximumWidth(self.fontMetrics().averageCharWidth() * 30)
            self.buttons.append(button)
            grid.addWidget(button, place // _COLUMNS, place % _COLUMNS)
        grid.setColumnStretch(_COLUMNS, 1)

    def _add_sliders(self, grid: QGridLayout, space: ActionSpace, key_map: KeyMap) -> None:
        for place, part in enumerate(space.components):
            title = QLabel(part.name)
            slider = named(QSlider(Qt.Orientation.Horizontal), f"component_{place}", part.name)
            slider.setToolTip(key_map.text_for_component(place))
            if part.is_whole:
                slider.setRange(round(part.low), round(part.high))
            else:
                slider.setRange(0, _TICKS)
            slider.setValue(self._to_tick(place, part.rest))
            figure = QLabel()
            figure.setMinimumWidth(self.fontMetrics().horizontalAdvance("−00.00 "))
            figure.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            keys = styled(QLabel(key_map.text_for_component(place)), "caption")
            title.setBuddy(slider)
            slider.valueChanged.connect(self._moved)
            self.sliders.append(slider)
            self._figures.append(figure)
            for column, widget in enumerate((title, slider, figure, keys)):
                grid.addWidget(widget, place, column)
        grid.setColumnStretch(1, 1)
        self._show_figures()

    def vector(self) -> list[float]:
        return [self._from_tick(place, slider.value()) for place, slider in enumerate(self.sliders)]

    def rest(self) -> None:
        """Reset every slider to its neutral value."""
        for place, (slider, part) in enumerate(zip(self.sliders, self._space.components, strict=True)):
            slider.setValue(self._to_tick(place, part.rest))

    def _to_tick(self, place: int, value: float) -> int:
        part = self._space.components[place]
        if part.is_whole:
            return round(value)
        return round((value - part.low) / ((part.high - part.low) or 1.0) * _TICKS)

    def _from_tick(self, place: int, tick: int) -> float:
        part = self._space.components[place]
        return float(tick) if part.is_whole else part.low + (part.high - part.low) * tick / _TICKS

    def _moved(self) -> None:
        self._show_figures()
        self.vector_changed.emit(self.vector())

    def _show_figures(self) -> None:
        for figure, value, part in zip(self._figures, self.vector(), self._space.components, strict=True):
            figure.setText(f"{value:.0f}" if part.is_whole else f"{value:.2f}")
