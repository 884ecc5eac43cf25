"""The frame of a game, which has the keyboard focus, the values above it, and the base of the two game panels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_wire.paths import Home
from PySide6.QtCore import QEvent, QKeyCombination, QSignalBlocker, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QImage,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QSlider, QSpinBox, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play.session import PlaySession, PlayState
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.frame_view import FrameView
from gym_gui.ui.widgets.parts import fill, named, styled, timer

SLOWEST, FASTEST = 1, 60


class PaceBox(QWidget):
    """A field for steps per second."""

    changed = Signal(int)

    def __init__(self, name: str, rate: int = 15, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.slider = named(QSlider(Qt.Orientation.Horizontal), "pace_slider", name)
        self.spin = named(QSpinBox(), "pace_spin", name)
        self.spin.setSuffix(self.tr(" steps/s"))
        for part in (self.slider, self.spin):
            part.setRange(SLOWEST, FASTEST)
            part.setValue(rate)
            part.valueChanged.connect(self._set)
        self.setFocusProxy(self.slider)
        fill(QHBoxLayout(self), (self.slider, 1), self.spin, margins=0)

    @property
    def rate(self) -> int:
        return self.spin.value()

    def set_rate(self, rate: int) -> None:
        self._set(max(SLOWEST, min(FASTEST, rate)))

    def _set(self, rate: int) -> None:
        with QSignalBlocker(self.slider), QSignalBlocker(self.spin):
            self.slider.setValue(rate)
            self.spin.setValue(rate)
        self.changed.emit(rate)


_MODIFIERS = (Qt.Key.Key_Shift, Qt.Key.Key_Control, Qt.Key.Key_Alt, Qt.Key.Key_Meta, Qt.Key.Key_AltGr)
_FOCUS_KEYS = (Qt.Key.Key_Tab, Qt.Key.Key_Backtab, Qt.Key.Key_Escape)
_FRAME = 3


def key_name(event: QKeyEvent) -> str:
    """Return the key as Qt names it (`Left`, `Space`, `A`) without modifiers; empty for keys that cannot be bound."""
    key = event.key()
    if key in (Qt.Key.Key_unknown, 0, *_MODIFIERS, *_FOCUS_KEYS) or Qt.Key.Key_F1 <= key <= Qt.Key.Key_F35:
        return ""
    if key == Qt.Key.Key_Enter:  # on the numeric keypad
        key = Qt.Key.Key_Return
    return QKeySequence(QKeyCombination(Qt.Key(key))).toString(QKeySequence.SequenceFormat.PortableText)


class GameView(QWidget):
    """A frame with the keyboard focus; a border shows whether it has the focus."""

    key_pressed = Signal(str)
    key_released = Signal(str)
    keys_lost = Signal()  # the focus moved: no key is held any more

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "game_view", self.tr("The game; it takes the keys of the key map while it has the focus"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.frame_view = named(FrameView(), "game_frame")
        self.frame_view.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.frame_view.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._message = named(QLabel(self, alignment=Qt.AlignmentFlag.AlignCenter, wordWrap=True), "game_message")
        self._message.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._message.hide()
        fill(QVBoxLayout(self), self.frame_view, margins=_FRAME)

    # -- content

    def show_image(self, image: QImage) -> None:
        self.frame_view.set_smooth(
            min(image.width(), image.height()) >= 300
        )  # small games have pixels one wants to see
        self.frame_view.show_image(image)

    def show_text(self, text: str) -> None:
        """Show a text instead of the frame."""
        self.set_message("")
        self.frame_view.show_text(text)

    def set_message(self, text: str) -> None:
        """Show a line over the frame; empty: none."""
        self._message.setText(text)
        self._message.setVisible(bool(text))
        self._place_message()

    @property
    def message(self) -> str:
        return self._message.text()

    def _place_message(self) -> None:
        if self._message.isHidden():
            return
        colors = theme.colors()
        self._message.setStyleSheet(
            f"background: {colors.raised}; color: {colors.text}; border: 1px solid {colors.border};border-radius: 4px;"
        )
        padding = self.fontMetrics().height()
        wide = self.fontMetrics().horizontalAdvance(self._message.text()) + 2 * padding
        wide = min(wide, max(80, self.width() - 8 * _FRAME))
        tall = self._message.heightForWidth(wide) + padding
        self._message.setGeometry((self.width() - wide) // 2, self.height() - tall - 4 * _FRAME, wide, tall)
        self._message.raise_()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_message()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "_message"):
            self._place_message()

    def paintEvent(self, event: QPaintEvent) -> None:
        colors = theme.colors()
        painter = QPainter(self)
        has_keys = self.hasFocus()
        pen = QPen(QColor(colors.accent if has_keys else colors.border), _FRAME if has_keys else 1)
        painter.setPen(pen)
        inset = pen.width() // 2
        painter.drawRect(self.rect().adjusted(inset, inset, -1 - inset, -1 - inset))

    # -- keyboard

    def keyPressEvent(self, event: QKeyEvent) -> None:
        name = key_name(event)
        if not name or event.modifiers() & (Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier):
            super().keyPressEvent(event)
        elif not event.isAutoRepeat():
            self.key_pressed.emit(name)

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        name = key_name(event)
        if not name:
            super().keyReleaseEvent(event)
        elif not event.isAutoRepeat():
            self.key_released.emit(name)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.setFocus(Qt.FocusReason.MouseFocusReason)
        super().mousePressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        self.update()
        super().focusInEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self.keys_lost.emit()
        self.update()
        super().focusOutEvent(event)


class Hud(QFrame):
    """Values of the game: pairs of a caption and a value."""

    def __init__(self, captions: dict[str, str], parent: QWidget | None = None) -> None:
        """Create a value for each caption by name, in order."""
        super().__init__(parent)
        named(self, "game_hud", role="card")
        self._values: dict[str, QLabel] = {}
        row = QHBoxLayout(self)
        unit = self.fontMetrics().averageCharWidth()
        row.setContentsMargins(2 * unit, unit, 2 * unit, unit)
        row.setSpacing(2 * unit)
        for name, caption in captions.items():
            cell = QGridLayout()
            cell.setVerticalSpacing(0)
            title = styled(QLabel(caption), "caption")
            value = named(QLabel("–"), f"hud_{name}", caption)
            value.setMinimumWidth(6 * unit)
            font = value.font()
            font.setBold(True)
            value.setFont(font)
            cell.addWidget(title, 0, 0)
            cell.addWidget(value, 1, 0)
            row.addLayout(cell)
            self._values[name] = value
        row.addStretch(1)

    def show_value(self, name: str, text: str) -> None:
        label = self._values[name]
        if label.text() != text:
            label.setText(text)

    def value(self, name: str) -> str:
        return self._values[name].text()

    def clear(self) -> None:
        for label in self._values.values():
            label.setText("–")


class GamePanel(QWidget):
    """The base of playing and of watching a policy: session, frame, values, and a clock for steps."""

    run_opened = Signal(str)
    """Asks to open the game's run"""

    def __init__(self, name: str, link: DaemonLink, home: Home | None, figure: str, parent: QWidget | None) -> None:
        """`figure` is the value that only this panel shows: `best` or `value`."""
        super().__init__(parent)
        self.setObjectName(name)
        self._link, self._home = link, home
        self._episodes_begun, self._episode_over = 0, True
        self._clock = timer(self, self._tick)
        self._clock.setTimerType(Qt.TimerType.PreciseTimer)
        self.banner = Banner(parent=self)
        self.view = GameView()
        captions = {
            "episode": self.tr("Episode"),
            "step": self.tr("Step"),
            "reward": self.tr("Reward"),
            "return": self.tr("Return"),
            figure: {"best": self.tr("Best"), "value": self.tr("Value")}[figure],
            "action": self.tr("Action"),
        }
        self.hud = Hud(captions)
        self.session = session = PlaySession(link, self)
        session.state_changed.connect(self._on_state)
        session.progress.connect(self._on_progress)
        session.initialized.connect(self._on_initialized)
        session.ready.connect(self._on_ready)
        session.stepped.connect(self._on_stepped)
        session.episode_done.connect(self._on_done)
        session.frame_received.connect(self.view.show_image)
        session.problem.connect(lambda text: self.banner.set_message(text, "warning"))
        session.ended.connect(self._on_ended)

    def _tick(self) -> None:
        raise NotImplementedError

    def _on_state(self, state: PlayState) -> None:
        raise NotImplementedError

    def _on_initialized(self, message: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _on_stepped(self, message: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _on_done(self, message: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _on_ended(self, reason: str, failed: bool) -> None:
        raise NotImplementedError

    def _on_ready(self, message: Mapping[str, Any]) -> None:
        """Handle the start of an episode."""
        self._episode_over = False
        self._episodes_begun += 1
        self.view.set_message("")
        self.hud.show_value("episode", str(int(message["episode_index"]) + 1))
        for name in ("step", "reward", "return"):
            self.hud.show_value(name, "0")

    def _on_progress(self, text: str) -> None:
        if self.session.state is PlayState.STARTING:
            self.view.show_text(text)
        else:
            self.view.set_message(text)

    def _run_clock(self, rate: int, is_running: bool) -> None:
        """Start or stop the clock with this rate."""
        self._clock.setInterval(round(1000 / rate))
        if not is_running:
            self._clock.stop()
        elif not self._clock.isActive():
            self._clock.start()

    def _open_run(self) -> None:
        if self.session.run_id:
            self.run_opened.emit(self.session.run_id)

    def shut_down(self) -> None:
        """End the game, because the window closes."""
        self.session.stop()
