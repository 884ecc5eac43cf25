"""The game as its player sees it: the picture, which listens to the keyboard, and the figures above it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QKeyCombination, Qt, Signal
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
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.widgets.live_picture import LivePicture

_MODIFIERS = (Qt.Key.Key_Shift, Qt.Key.Key_Control, Qt.Key.Key_Alt, Qt.Key.Key_Meta, Qt.Key.Key_AltGr)
_FOCUS_KEYS = (Qt.Key.Key_Tab, Qt.Key.Key_Backtab, Qt.Key.Key_Escape)
_FRAME = 3


def key_name(event: QKeyEvent) -> str:
    """The key as Qt writes it (`Left`, `Space`, `A`), whatever is held beside it; empty for what cannot be bound."""
    key = event.key()
    if key in (Qt.Key.Key_unknown, 0, *_MODIFIERS, *_FOCUS_KEYS) or Qt.Key.Key_F1 <= key <= Qt.Key.Key_F35:
        return ""
    if key == Qt.Key.Key_Enter:  # of the number pad
        key = Qt.Key.Key_Return
    return QKeySequence(QKeyCombination(Qt.Key(key))).toString(QKeySequence.SequenceFormat.PortableText)


class GameView(QWidget):
    """A picture with the keyboard in it; a frame shows whether keys arrive here."""

    key_pressed = Signal(str)
    key_released = Signal(str)
    keys_lost = Signal()  # the keyboard went elsewhere: nothing is held any more

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("game_view")
        self.setAccessibleName(self.tr("The game; it takes the keys of the key map while it has the focus"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.picture = LivePicture()
        self.picture.setObjectName("game_picture")
        self.picture.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.picture.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._words = QLabel(self)
        self._words.setObjectName("game_words")
        self._words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._words.setWordWrap(True)
        self._words.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._words.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(_FRAME, _FRAME, _FRAME, _FRAME)
        layout.addWidget(self.picture)

    # -- what is shown

    def show_image(self, image: QImage) -> None:
        self.picture.set_smooth(min(image.width(), image.height()) >= 300)  # small games have pixels one wants to see
        self.picture.show_image(image)

    def show_words(self, words: str) -> None:
        """In place of the picture."""
        self.say("")
        self.picture.show_words(words)

    def say(self, words: str) -> None:
        """A line over the picture; empty: none."""
        self._words.setText(words)
        self._words.setVisible(bool(words))
        self._place_words()

    @property
    def words(self) -> str:
        return self._words.text()

    def _place_words(self) -> None:
        if self._words.isHidden():
            return
        colours = theme.colours()
        self._words.setStyleSheet(
            f"background: {colours.raised}; color: {colours.text}; border: 1px solid {colours.border};"
            "border-radius: 4px;"
        )
        padding = self.fontMetrics().height()
        wide = self.fontMetrics().horizontalAdvance(self._words.text()) + 2 * padding
        wide = min(wide, max(80, self.width() - 8 * _FRAME))
        tall = self._words.heightForWidth(wide) + padding
        self._words.setGeometry((self.width() - wide) // 2, self.height() - tall - 4 * _FRAME, wide, tall)
        self._words.raise_()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_words()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "_words"):
            self._place_words()

    def paintEvent(self, event: QPaintEvent) -> None:
        colours = theme.colours()
        painter = QPainter(self)
        has_keys = self.hasFocus()
        pen = QPen(QColor(colours.accent if has_keys else colours.border), _FRAME if has_keys else 1)
        painter.setPen(pen)
        inset = pen.width() // 2
        painter.drawRect(self.rect().adjusted(inset, inset, -1 - inset, -1 - inset))

    # -- the keyboard

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
    """Figures of the game: each a caption and a value."""

    def __init__(self, captions: dict[str, str], parent: QWidget | None = None) -> None:
        """`captions` by name, in their order."""
        super().__init__(parent)
        self.setObjectName("game_hud")
        self.setProperty("role", "card")
        self._values: dict[str, QLabel] = {}
        row = QHBoxLayout(self)
        unit = self.fontMetrics().averageCharWidth()
        row.setContentsMargins(2 * unit, unit, 2 * unit, unit)
        row.setSpacing(2 * unit)
        for name, caption in captions.items():
            cell = QGridLayout()
            cell.setVerticalSpacing(0)
            title = QLabel(caption)
            title.setProperty("role", "caption")
            value = QLabel("–")
            value.setObjectName(f"hud_{name}")
            value.setAccessibleName(caption)
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
