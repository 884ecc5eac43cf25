"""The row of buttons below something that plays: first, back, play, on, last, a slider, speed, loop."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QKeySequence, QPainter, QShortcut
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QSlider,
    QStyle,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)


class TransportBar(QWidget):
    """Says what a person wants; what it means is its owner's."""

    play_wanted = Signal(bool)
    step_wanted = Signal(int)  # so many forwards, or back
    seek_wanted = Signal(int)
    speed_changed = Signal(float)
    loop_changed = Signal(bool)

    def __init__(self, unit: str, *, parent: QWidget) -> None:
        super().__init__(parent)
        self._player = parent
        self._last = 0
        self._is_playing = False
        self._icons: dict[QToolButton, QStyle.StandardPixmap] = {}
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setObjectName("seek_slider")
        self.slider.setAccessibleName(self.tr("Position"))
        self.slider.setRange(0, 0)
        self.slider.valueChanged.connect(self.seek_wanted)
        icons = QStyle.StandardPixmap
        first = self._button("first", icons.SP_MediaSkipBackward, self.tr("To the beginning"), "Home")
        back = self._button("back", icons.SP_MediaSeekBackward, self.tr("One {} back").format(unit), "Left")
        self.play_button = self._button("play", icons.SP_MediaPlay, self.tr("Play"), "Space")
        forward = self._button("forward", icons.SP_MediaSeekForward, self.tr("One {} on").format(unit), "Right")
        last = self._button("last", icons.SP_MediaSkipForward, self.tr("To the end"), "End")
        first.clicked.connect(lambda: self.seek_wanted.emit(0))
        back.clicked.connect(lambda: self.step_wanted.emit(-1))
        self.play_button.clicked.connect(lambda: self.play_wanted.emit(not self._is_playing))
        forward.clicked.connect(lambda: self.step_wanted.emit(1))
        last.clicked.connect(lambda: self.seek_wanted.emit(self._last))
        self.where = QLabel()
        self.where.setObjectName("position_words")
        self.speed = self._make_speed()
        self.loop = QCheckBox(self.tr("&Loop"))
        self.loop.setObjectName("loop")
        self.loop.setAccessibleName(self.tr("Begin again at the end"))
        self.loop.toggled.connect(self.loop_changed)
        self._row = QHBoxLayout()
        self._row.setSpacing(2)
        for button in (first, back, self.play_button, forward, last):
            self._row.addWidget(button)
        self._row.addStretch(1)
        self._row.addWidget(self.speed)
        self._row.addSpacing(8)
        self._row.addWidget(self.loop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        seek = QHBoxLayout()
        seek.addWidget(self.slider, 1)
        seek.addWidget(self.where)
        layout.addLayout(seek)
        layout.addLayout(self._row)
        self.set_range(0)
        self._draw_icons()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() is QEvent.Type.PaletteChange and hasattr(self, "_icons"):
            self._draw_icons()
        super().changeEvent(event)

    def _draw_icons(self) -> None:
        """The style's icons are black: on a dark ground they are painted in the colour of the letters."""
        side = round(self.fontMetrics().height() * 1.2)
        for button, wanted in self._icons.items():
            icon = QIcon()
            for mode, colour in (
                (QIcon.Mode.Normal, theme.colours().text),
                (QIcon.Mode.Disabled, theme.colours().muted),
            ):
                pixmap = self.style().standardIcon(wanted).pixmap(QSize(side, side), self.devicePixelRatioF())
                painter = QPainter(pixmap)
                painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_SourceIn)
                painter.fillRect(pixmap.rect(), QColor(colour))
                painter.end()
                icon.addPixmap(pixmap, mode)
            button.setIcon(icon)
            button.setIconSize(QSize(side, side))

    def add_widget(self, widget: QWidget) -> None:
        """At the end of the row."""
        self._row.addSpacing(8)
        self._row.addWidget(widget)

    def set_range(self, count: int) -> None:
        """There are so many; 0: nothing can be played."""
        self._last = max(0, count - 1)
        with QSignalBlocker(self.slider):
            self.slider.setMaximum(self._last)
        self.slider.setPageStep(max(1, self._last // 10))
        for widget in self.findChildren(QWidget):
            widget.setEnabled(count > 0)

    def set_position(self, number: int, words: str) -> None:
        with QSignalBlocker(self.slider):  # it moved because it plays, nobody seeks
            self.slider.setValue(number)
        self.where.setText(words)

    def set_playing(self, playing: bool) -> None:
        self._is_playing = playing
        icon = QStyle.StandardPixmap.SP_MediaPause if playing else QStyle.StandardPixmap.SP_MediaPlay
        self._icons[self.play_button] = icon
        self._draw_icons()
        words = self.tr("Pause") if playing else self.tr("Play")
        self.play_button.setAccessibleName(words)
        self.play_button.setToolTip(f"{words} ({self.tr('Space')})")

    def _make_speed(self) -> QComboBox:
        speed = QComboBox()
        speed.setObjectName("speed")
        speed.setAccessibleName(self.tr("Speed"))
        speed.setToolTip(self.tr("How fast it plays"))
        for factor in SPEEDS:
            speed.addItem(f"{factor:g}×", factor)
        speed.setCurrentIndex(SPEEDS.index(1.0))
        speed.currentIndexChanged.connect(lambda: self.speed_changed.emit(speed.currentData()))
        return speed

    def _button(self, name: str, icon: QStyle.StandardPixmap, words: str, key: str) -> QToolButton:
        button = QToolButton()
        button.setObjectName(f"{name}_button")
        self._icons[button] = icon
        button.setAccessibleName(words)
        button.setToolTip(f"{words} ({QKeySequence(key).toString(QKeySequence.SequenceFormat.NativeText)})")
        button.setAutoRaise(True)
        # Everywhere in the player, not only while the button has the focus; a list beside it keeps its own keys.
        shortcut = QShortcut(QKeySequence(key), self._player)
        shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        shortcut.activated.connect(button.click)
        return button
