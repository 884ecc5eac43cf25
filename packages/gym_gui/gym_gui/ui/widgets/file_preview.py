"""A look into one file: text, JSON, a picture; or what it is when there is nothing to see."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QImage, QImageReader, QPixmap, QResizeEvent
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.ui.presenters.run_files import Preview, PreviewKind
from gym_gui.ui.widgets.code_font import CodeFont
from gym_gui.wording import formats

MOST_PIXELS = 40_000_000
_LARGEST_SIDE = 1600


def read_image(preview: Preview) -> QImage | None:
    """The picture, made smaller while it is read where it is large; None when it cannot be read. For a thread."""
    reader = QImageReader(str(preview.path))
    reader.setAutoTransform(True)
    size = reader.size()
    if size.isValid() and size.width() * size.height() > MOST_PIXELS:
        return None  # a picture of a few kilobytes may unpack to gigabytes
    if size.isValid() and max(size.width(), size.height()) > _LARGEST_SIDE:
        reader.setScaledSize(size.scaled(QSize(_LARGEST_SIDE, _LARGEST_SIDE), Qt.AspectRatioMode.KeepAspectRatio))
    image = reader.read()
    return None if image.isNull() else image


class FilePreview(QWidget):
    """Shows one `Preview` at a time."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("file_preview")
        self.title = QLabel()
        self.title.setObjectName("preview_title")
        self.title.setProperty("role", "caption")
        self.title.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.title.setWordWrap(True)
        self.text = QPlainTextEdit()
        self.text.setObjectName("preview_text")
        self.text.setAccessibleName(self.tr("Content of the file"))
        self.text.setReadOnly(True)
        CodeFont(self.text)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setTabChangesFocus(True)
        self.picture = QLabel()
        self.picture.setObjectName("preview_picture")
        self.picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.picture.setMinimumSize(1, 1)
        self.words = QLabel()
        self.words.setObjectName("preview_words")
        self.words.setProperty("role", "caption")
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.words.setWordWrap(True)
        self._image: QImage | None = None
        self._stack = QStackedWidget()
        for widget in (self.words, self.text, self.picture):
            self._stack.addWidget(widget)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(6, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.title)
        layout.addWidget(self._stack, 1)
        self.clear()

    def clear(self) -> None:
        self._image = None
        self.title.clear()
        self.text.clear()
        self.say(self.tr("Choose a file to look into it."))

    def say(self, words: str) -> None:
        self.words.setText(words)
        self._stack.setCurrentWidget(self.words)

    def show_preview(self, preview: Preview, image: QImage | None) -> None:
        self._image = None
        self.title.setText(f"{preview.path.name} · {formats.size(preview.size)}" if preview.size else preview.path.name)
        if preview.kind is PreviewKind.TEXT:
            self.text.setPlainText(preview.text)
            if preview.is_cut:
                shown = formats.size(len(preview.text.encode()))
                self.title.setText(self.title.text() + " · " + self.tr("the first {size}").format(size=shown))
            self._stack.setCurrentWidget(self.text)
        elif preview.kind is PreviewKind.IMAGE and image is not None:
            self._image = image
            self._draw()
            self._stack.setCurrentWidget(self.picture)
        else:
            self.say(self._words_for(preview))

    def _words_for(self, preview: Preview) -> str:
        why = preview.problem.detail if preview.problem is not None else ""
        return {
            PreviewKind.IMAGE: self.tr("This picture cannot be read, or is too large to show."),
            PreviewKind.VIDEO: self.tr("A video: the Replay tab plays it."),
            PreviewKind.BINARY: self.tr("Not text: nothing to read here. “Open” gives it to another program."),
            PreviewKind.FOLDER: self.tr("A folder. Open it in the tree to see what lies in it."),
            PreviewKind.EMPTY: self.tr("This file is empty."),
            PreviewKind.UNREADABLE: self.tr(
                "This file cannot be read (it may be gone, or closed to you). {why}"
            ).format(why=why),
        }.get(preview.kind, "")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._draw()

    def _draw(self) -> None:
        if self._image is None:
            return
        room = self._stack.size()
        pixmap = QPixmap.fromImage(self._image)
        if pixmap.width() > room.width() or pixmap.height() > room.height():
            pixmap = pixmap.scaled(room, Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.SmoothTransformation)
        self.picture.setPixmap(pixmap)
        self.picture.setAccessibleName(self.title.text())
