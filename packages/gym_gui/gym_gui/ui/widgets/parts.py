"""Small parts that several pages share: named widgets, filled layouts, buttons, labels, sections, splitters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QByteArray, QCoreApplication, QEvent, QObject, QSettings, QSize, Qt, QTimer, SignalInstance
from PySide6.QtGui import QGuiApplication, QKeySequence, QPainter, QPaintEvent, QResizeEvent, QShortcut
from PySide6.QtWidgets import (
    QBoxLayout,
    QFileDialog,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme

W = TypeVar("W", bound=QWidget)
B = TypeVar("B", bound=QBoxLayout)
Slot = Callable[..., object] | SignalInstance
Part = QWidget | QLayout | int | tuple[QWidget | QLayout, int]

UNLIMITED = (1 << 24) - 1
"""Qt's QWIDGETSIZE_MAX, which PySide6 does not export"""


def named(widget: W, name: str, accessible: str = "", *, tip: str = "", role: str = "") -> W:
    """Name a widget for tests and style sheets, and for screen readers where its text does not; return it."""
    widget.setObjectName(name)
    if accessible:
        widget.setAccessibleName(accessible)
    if tip:
        widget.setToolTip(tip)
    if role:
        widget.setProperty("role", role)
    return widget


def scrolled(content: QWidget, *, only_vertical: bool = False) -> QScrollArea:
    """Put a page into a scroll area without a frame."""
    area = QScrollArea(widgetResizable=True)
    area.setFrameShape(QScrollArea.Shape.NoFrame)
    if only_vertical:
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(content)
    return area


def styled(widget: W, role: str) -> W:
    """Set a widget's role for the style sheet: caption, title, problem, primary …; return it."""
    widget.setProperty("role", role)
    return widget


def caption(name: str = "", text: str = "", *, wraps: bool = False, centered: bool = False) -> QLabel:
    """Return a label in the small, muted type of captions."""
    label = named(QLabel(text), name, role="caption")
    label.setWordWrap(wraps)
    if centered:
        label.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return label


def push_button(
    name: str, text: str, clicked: Slot, accessible: str = "", tip: str = "", *, role: str = ""
) -> QPushButton:
    """Return a button that calls `clicked`; the accessible name defaults to its text."""
    plain = text.replace("&", "").rstrip(" …")
    button = named(QPushButton(text), name, accessible or plain, tip=tip, role=role)
    button.clicked.connect(clicked if isinstance(clicked, SignalInstance) else lambda: clicked())
    return button


def timer(owner: QObject, timeout: Slot, interval_ms: int = 0, *, single_shot: bool = False) -> QTimer:
    """Return a timer that is not started yet."""
    made = QTimer(owner, interval=interval_ms, singleShot=single_shot)
    made.timeout.connect(timeout)
    return made


def fill(
    layout: B, *parts: Part, margins: int | tuple[int, int, int, int] | None = None, spacing: int | None = None
) -> B:
    """Add widgets and layouts in order; a number is a stretch, a pair is a part with its stretch."""
    if margins is not None:
        layout.setContentsMargins(*(margins if isinstance(margins, tuple) else (margins,) * 4))
    if spacing is not None:
        layout.setSpacing(spacing)
    for part in parts:
        if isinstance(part, int):
            layout.addStretch(part)
            continue
        item, stretch = part if isinstance(part, tuple) else (part, 0)
        if isinstance(item, QLayout):
            layout.addLayout(item, stretch)
        else:
            layout.addWidget(item, stretch)
    return layout


def split(
    name: str,
    *parts: tuple[QWidget, int],
    is_vertical: bool = False,
    is_collapsible: bool = False,
    sizes: Sequence[int] = (),
) -> QSplitter:
    """Return a splitter of widgets with their stretch factors, and initial `sizes`."""
    splitter = named(QSplitter(Qt.Orientation.Vertical if is_vertical else Qt.Orientation.Horizontal), name)
    splitter.setChildrenCollapsible(is_collapsible)
    for place, (widget, share) in enumerate(parts):
        splitter.addWidget(widget)
        splitter.setStretchFactor(place, share)
    if sizes:
        splitter.setSizes(list(sizes))
    return splitter


def bold(widget: W) -> W:
    font = widget.font()
    font.setBold(True)
    widget.setFont(font)
    return widget


def search_field(name: str, accessible: str, placeholder: str) -> QLineEdit:
    """Return a field that can be cleared with a click."""
    field = named(QLineEdit(), name, accessible)
    field.setPlaceholderText(placeholder)
    field.setClearButtonEnabled(True)
    return field


class CodeFont(QObject):
    """Keeps a widget's font monospaced: an explicit font does not follow the application's font."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self._widget = widget
        widget.setFont(theme.monospace())
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        # The theme is applied again whenever the text size changes.
        if event.type() == QEvent.Type.StyleChange and watched is self._widget:
            requested = theme.monospace()
            if self._widget.font().pointSizeF() != requested.pointSizeF():
                self._widget.setFont(requested)
        return False


def command_button(panel: QWidget, name: str, text: str, keys: str, act: Callable[[], object]) -> QPushButton:
    """Return a button that is also a command of the panel if `keys` are given."""
    button = push_button(name, text, act)
    if keys:
        button.setToolTip(f"{button.accessibleName()} ({keys})")
        shortcut = QShortcut(QKeySequence(keys), panel)
        shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        shortcut.activated.connect(button.click)
    return button


def ask_for_file(
    parent: QWidget,
    title: str,
    kinds: str,
    chosen: Callable[[Path], object],
    *,
    name: str = "file_dialog",
    save_as: str = "",
    folder: str = "",
) -> None:
    """Ask for a file without blocking and pass it to `chosen`; with `save_as`, a file to write (default name)."""
    dialog = named(QFileDialog(parent, title, folder, kinds), name)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    if save_as:
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(Path(save_as).suffix.removeprefix("."))
        dialog.selectFile(save_as)
    else:
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
    dialog.fileSelected.connect(lambda path: chosen(_with_suffix(Path(path), save_as, kinds)))
    dialog.open()


def _with_suffix(path: Path, save_as: str, kinds: str) -> Path:
    """Append the suffix if the dialog of the desktop did not."""
    known = re.findall(r"\*(\.\w+)", kinds)
    if not save_as or path.suffix.lower() in known or (path.suffix and "(*)" in kinds):
        return path
    return path.with_name(path.name + Path(save_as).suffix)


def confirm(
    parent: QWidget, question: str, details: str, *, yes: str, on_yes: Callable[[], Any], is_dangerous: bool = True
) -> QMessageBox:
    """Show the question without blocking; call `on_yes` if the button `yes` is clicked. Escape means no."""
    icon = QMessageBox.Icon.Warning if is_dangerous else QMessageBox.Icon.Question
    box = named(QMessageBox(icon, QCoreApplication.translate("Confirm", "MOSAIC"), question, parent=parent), "confirm")
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setInformativeText(details)
    agree = box.addButton(
        yes, QMessageBox.ButtonRole.DestructiveRole if is_dangerous else QMessageBox.ButtonRole.AcceptRole
    )
    agree.setObjectName("confirm_yes")
    refuse = box.addButton(QMessageBox.StandardButton.Cancel)
    box.setEscapeButton(refuse)
    box.setDefaultButton(refuse if is_dangerous else agree)
    agree.clicked.connect(lambda: on_yes())
    box.open()
    return box


_LEAST_CHARS = 8


class ElidedLabel(QLabel):
    """A label that never requests more width than its place has."""

    def __init__(self, text: str = "", parent: QWidget | None = None) -> None:
        super().__init__(text, parent)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setTextFormat(Qt.TextFormat.PlainText)

    def show_text(self, text: str) -> None:
        if text != self.text():
            self.setText(text)
            self.setToolTip(text)

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * _LEAST_CHARS, super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        # Adjacent labels share the width evenly, regardless of their texts.
        return self.minimumSizeHint()

    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            room = self.contentsRect()
            text = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, room.width())
            painter.setPen(self.palette().color(self.foregroundRole()))
            painter.drawText(room, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, text)


_NOTICE_MS = 1500


class PageSection(QWidget):
    """A heading and a widget; hidden together."""

    def __init__(self, name: str, title: str, content: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(f"section_{name}")
        self.title = bold(QLabel(title))
        layout = fill(QVBoxLayout(self), self.title, content, margins=(0, 6, 0, 0), spacing=4)
        layout.addStretch(1)  # align to the top next to a higher section


class CopyLine(QWidget):
    """One line of text of any length, with a button that copies it."""

    def __init__(self, name: str, accessible: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.field = named(QLineEdit(readOnly=True), f"{name}_text")
        CodeFont(self.field)
        self.field.setAccessibleName(accessible)
        self.button = named(QPushButton(self.tr("Cop&y")), f"{name}_copy")
        self.button.setAccessibleName(self.tr("Copy: {what}").format(what=accessible))
        self.button.clicked.connect(self._copy)
        fill(QHBoxLayout(self), (self.field, 1), self.button, margins=0)

    @property
    def text(self) -> str:
        return self.field.text()

    def show_text(self, text: str, tip: str = "") -> None:
        if text != self.field.text():
            self.field.setText(text)
            self.field.setCursorPosition(0)
        self.field.setToolTip(tip or text)
        self.button.setEnabled(bool(text))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.field.text())
        self.button.setText(self.tr("Copied"))
        QTimer.singleShot(_NOTICE_MS, self, lambda: self.button.setText(self.tr("Cop&y")))


class AdaptiveSplitter(QSplitter):
    """Changes its orientation with its width; the user's sizes are kept until then."""

    def __init__(
        self,
        first: QWidget,
        second: QWidget,
        *,
        beside_from: int,
        beside: tuple[int, int],
        above: tuple[int, int],
        settings: str = "",
        parent: QWidget | None = None,
    ) -> None:
        """Arrange horizontally from a width of `beside_from` m's; `beside` and `above` are the stretch factors.

        With a group of `settings` the user's sizes are stored for each orientation.
        """
        super().__init__(Qt.Orientation.Horizontal, parent)
        self.setChildrenCollapsible(False)
        self.addWidget(first)
        self.addWidget(second)
        self._beside_from = beside_from
        self._shares = {Qt.Orientation.Horizontal: beside, Qt.Orientation.Vertical: above}
        self._is_arranged = False
        self._settings = QSettings("MOSAIC", "mosaic") if settings else None
        self._group = settings
        self.splitterMoved.connect(lambda *_: self._remember())
        self._share()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        has_room = event.size().width() >= self.fontMetrics().horizontalAdvance("m") * self._beside_from
        requested = Qt.Orientation.Horizontal if has_room else Qt.Orientation.Vertical
        if requested is not self.orientation() or not self._is_arranged:
            self._is_arranged = True
            self.setOrientation(requested)
            self._share()

    def _key(self) -> str:
        side = "horizontal" if self.orientation() is Qt.Orientation.Horizontal else "vertical"
        return f"{self._group}/split_{side}"

    def _remember(self) -> None:
        if self._settings is not None:
            self._settings.setValue(self._key(), self.saveState())

    def _share(self) -> None:
        orientation = self.orientation()
        state = self._settings.value(self._key()) if self._settings is not None else None
        if isinstance(state, QByteArray) and self.restoreState(state):
            self.setOrientation(orientation)  # restoring the state also restores the saved orientation
            return
        shares = self._shares[orientation]
        for index, share in enumerate(shares):
            self.setStretchFactor(index, share)
        length = self.width() if self.orientation() is Qt.Orientation.Horizontal else self.height()
        self.setSizes([length * share // sum(shares) for share in shares])


class CardGrid(QWidget):
    """Widgets of equal width in as many columns as fit."""

    def __init__(
        self, widgets: Sequence[QWidget] = (), *, least_chars: int = 20, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._least_chars = least_chars
        self._widgets = list(widgets)
        self._columns = 0
        self._layout = QGridLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(8)
        self._arrange()

    def set_widgets(self, widgets: Sequence[QWidget]) -> None:
        """Replace the widgets; removed ones are hidden, and the caller deletes them."""
        if list(widgets) == self._widgets:
            return
        for widget in self._widgets:
            if widget not in widgets:
                widget.hide()
        self._widgets = list(widgets)
        self._columns = 0
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def minimumSizeHint(self) -> QSize:
        return QSize(self._least_width(), super().minimumSizeHint().height())

    def _least_width(self) -> int:
        return self.fontMetrics().averageCharWidth() * self._least_chars

    def _arrange(self) -> None:
        fitting = max(1, (self.width() + 8) // (self._least_width() + 8))
        columns = min(fitting, max(1, len(self._widgets)))
        rows = -(-len(self._widgets) // columns) if self._widgets else 1
        columns = -(-len(self._widgets) // rows) if self._widgets else 1  # six become 3 + 3, not 5 + 1
        if columns == self._columns:
            return
        self._columns = columns
        while self._layout.count():
            self._layout.takeAt(0)
        for column in range(self._layout.columnCount()):
            self._layout.setColumnStretch(column, 0)
        for index, widget in enumerate(self._widgets):
            self._layout.addWidget(widget, index // columns, index % columns)
            widget.show()
            self._layout.setColumnStretch(index % columns, 1)
