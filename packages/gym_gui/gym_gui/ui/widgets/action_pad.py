"""What can be done, on the screen: a button for each action, or a slider for each component of a vector."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QGridLayout, QLabel, QPushButton, QScrollArea, QSlider, QWidget

from gym_gui.ui.play.actions import ActionSpace
from gym_gui.ui.play.key_maps import KeyMap

_COLUMNS = 6
_TICKS = 200


class ActionPad(QScrollArea):
    """Emits what was chosen; whether that is a step is for others to decide."""

    pressed = Signal(object)  # an action; it is held until `released`
    released = Signal()
    vector_changed = Signal(object)  # list[float]

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("action_pad")
        self.setAccessibleName(self.tr("Actions"))
        self.setFrameShape(QScrollArea.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._space = ActionSpace("")
        self.buttons: list[QPushButton] = []
        self.sliders: list[QSlider] = []
        self._figures: list[QLabel] = []
        self.show_space(self._space, KeyMap())

    def show_space(self, space: ActionSpace, key_map: KeyMap) -> None:
        """Other actions, or other keys for them."""
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
            words = self.tr("Actions of this kind ({kind}) cannot be chosen by hand; Step takes a random one.")
            label = QLabel(words.format(kind=space.kind))
            label.setWordWrap(True)
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
            button = QPushButton(f"{name}\n{keys}" if keys else name)
            button.setObjectName(f"action_{action}")
            button.setAccessibleName(self.tr("{name}, keys {keys}").format(name=name, keys=keys) if keys else name)
            button.setToolTip(button.accessibleName())
            button.setMinimumHeight(round(self.fontMetrics().height() * (2.8 if keys else 1.8)))
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click leaves the keyboard with the game
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
            slider = QSlider(Qt.Orientation.Horizontal)
            slider.setObjectName(f"component_{place}")
            slider.setAccessibleName(part.name)
            slider.setToolTip(key_map.text_for_component(place))
            if part.is_whole:
                slider.setRange(round(part.low), round(part.high))
            else:
                slider.setRange(0, _TICKS)
            slider.setValue(self._to_tick(place, part.rest))
            figure = QLabel()
            figure.setMinimumWidth(self.fontMetrics().horizontalAdvance("−00.00 "))
            figure.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            keys = QLabel(key_map.text_for_component(place))
            keys.setProperty("role", "caption")
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
        """Every slider back to where nothing happens."""
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
