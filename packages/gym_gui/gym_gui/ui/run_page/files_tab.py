"""The Files tab: a tree of the run's files, read as folders are expanded, and a preview."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import (
    QAbstractItemModel,
    QItemSelection,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QPoint,
    QSize,
    Qt,
    QUrl,
    Signal,
)
from PySide6.QtGui import (
    QAction,
    QColor,
    QDesktopServices,
    QGuiApplication,
    QIcon,
    QImage,
    QImageReader,
    QKeySequence,
    QPixmap,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QHBoxLayout,
    QLabel,
    QMenu,
    QPlainTextEdit,
    QPushButton,
    QSplitter,
    QStackedWidget,
    QStyle,
    QTreeView,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.run_copies import DOCUMENTS
from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.run_files import (
    FileEntry,
    FolderListing,
    ManifestTrouble,
    Preview,
    PreviewKind,
    Role,
    RunPlaces,
    find_places,
    list_folder,
    preview_of,
)
from gym_gui.ui.run_page.run_labels import (
    artifact_label,
    checkpoint_summary,
    listing_summary,
    manifest_problem_text,
    role_label,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import CodeFont, fill, named
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording import formats

_Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()


class FileColumn(IntEnum):
    NAME = 0
    WHAT = 1
    SIZE = 2
    MODIFIED = 3


class NodeState(Enum):
    UNREAD = "unread"
    READING = "reading"
    READ = "read"


@dataclass(eq=False)
class Node:
    """A file or folder, or a line that explains why a folder shows nothing."""

    name: str
    path: Path
    parent: Node | None
    row: int
    entry: FileEntry | None = None
    is_folder: bool = False
    note: str = ""
    state: NodeState = NodeState.UNREAD
    children: list[Node] = field(default_factory=list)

    @property
    def is_note(self) -> bool:
        """Return whether this is a message instead of a file."""
        return self.entry is None and self.parent is not None


class FilesModel(QAbstractItemModel):
    """The root folders of a run and their content."""

    requested = Signal(object)  # Node

    def __init__(self, describe: Callable[[FileEntry], str], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._describe = describe
        self.roots: list[Node] = []
        style = QApplication.style()
        self._icons = {
            True: style.standardIcon(QStyle.StandardPixmap.SP_DirIcon),
            False: style.standardIcon(QStyle.StandardPixmap.SP_FileIcon),
        }

    # ------------------------------------------------------------------ content

    def set_roots(self, roots: list[tuple[str, Path, bool, str]]) -> None:
        """Set the roots of the tree: label, path, whether it is a folder, and a note."""
        self.beginResetModel()
        self.roots = [
            Node(name, path, None, row, is_folder=is_folder, note=note)
            for row, (name, path, is_folder, note) in enumerate(roots)
        ]
        self.endResetModel()

    def set_listing(self, node: Node, listing: FolderListing, text: str) -> None:
        """Set the content of a folder; `text` explains an empty or truncated listing."""
        top = node
        while top.parent is not None:
            top = top.parent
        if top not in self.roots:
            return  # another run was opened meanwhile
        index = self.index_of(node)
        if node.children:
            self.beginRemoveRows(index, 0, len(node.children) - 1)
            node.children = []
            self.endRemoveRows()
        children = [
            Node(entry.name, entry.path, node, row, entry, entry.is_folder) for row, entry in enumerate(listing.entries)
        ]
        if text:
            children.append(Node(text, node.path, node, len(children), state=NodeState.READ))
        if children:
            self.beginInsertRows(index, 0, len(children) - 1)
            node.children = children
            self.endInsertRows()
        node.state = NodeState.READ

    def forget(self, node: Node) -> None:
        """Discard the content of a folder, so that it is read again when it is shown."""
        node.state = NodeState.UNREAD
        if self.canFetchMore(index := self.index_of(node)):
            self.fetchMore(index)

    def node(self, index: _Index) -> Node | None:
        found = index.internalPointer() if index.isValid() else None
        return found if isinstance(found, Node) else None

    def index_of(self, node: Node | None) -> QModelIndex:
        return self.createIndex(node.row, 0, node) if node is not None else QModelIndex()

    # ------------------------------------------------------------------ QAbstractItemModel

    def index(self, row: int, column: int, parent: _Index = _ROOT) -> QModelIndex:
        owner = self.node(parent)
        nodes = owner.children if owner is not None else self.roots
        return self.createIndex(row, column, nodes[row]) if 0 <= row < len(nodes) else QModelIndex()

    def parent(self, index: _Index = _ROOT) -> QModelIndex:  # type: ignore[override]
        node = self.node(index)
        return self.index_of(node.parent) if node is not None else QModelIndex()

    def rowCount(self, parent: _Index = _ROOT) -> int:
        node = self.node(parent)
        if node is None:
            return len(self.roots)
        return len(node.children) if parent.column() == 0 else 0

    def hasChildren(self, parent: _Index = _ROOT) -> bool:
        node = self.node(parent)
        return True if node is None else node.is_folder and (node.state is not NodeState.READ or bool(node.children))

    def canFetchMore(self, parent: _Index) -> bool:
        node = self.node(parent)
        return node is not None and node.is_folder and node.state is NodeState.UNREAD

    def fetchMore(self, parent: _Index) -> None:
        node = self.node(parent)
        if node is not None and node.state is NodeState.UNREAD:
            node.state = NodeState.READING
            self.requested.emit(node)

    def columnCount(self, _parent: _Index = _ROOT) -> int:
        return len(FileColumn)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal or role != Qt.ItemDataRole.DisplayRole:
            return None
        return (self.tr("Name"), self.tr("Kind"), self.tr("Size"), self.tr("Changed"))[section]

    def flags(self, index: _Index) -> Qt.ItemFlag:
        node = self.node(index)
        if node is not None and node.is_note:
            return Qt.ItemFlag.ItemIsEnabled
        return super().flags(index)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        node = self.node(index)
        if node is None:
            return None
        column = FileColumn(index.column())
        if role == Qt.ItemDataRole.DisplayRole:
            return self._shown(node, column)
        if role == Qt.ItemDataRole.ToolTipRole:
            return str(node.path) if column is FileColumn.NAME else self._shown(node, column)
        if role == Qt.ItemDataRole.DecorationRole and column is FileColumn.NAME and not node.is_note:
            return self._icon(node)
        if role == Qt.ItemDataRole.TextAlignmentRole and column is FileColumn.SIZE:
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.ForegroundRole and (node.is_note or column is not FileColumn.NAME):
            return QColor(theme.colors().muted if not _is_bad(node) else theme.colors().bad)
        return None

    def _icon(self, node: Node) -> QIcon:
        return self._icons[node.is_folder]

    def _shown(self, node: Node, column: FileColumn) -> str:
        entry = node.entry
        if column is FileColumn.NAME:
            return f"{node.name} → {entry.link_target}" if entry is not None and entry.link_target else node.name
        if column is FileColumn.WHAT:
            return self._describe(entry) if entry is not None else node.note
        if entry is None:
            return ""
        if column is FileColumn.SIZE:
            return formats.size(entry.size) if entry.size is not None else self.tr("many files")
        return formats.moment(entry.modified)


def _is_bad(node: Node) -> bool:
    return node.entry is not None and node.entry.checkpoint is not None and bool(node.entry.checkpoint.problem)


MAX_PIXELS = 40_000_000
_MAX_SIDE = 1600


def read_image(preview: Preview) -> QImage | None:
    """Read the image, scaled down if it is large; return None if it cannot be read. Call it in a thread."""
    reader = QImageReader(str(preview.path))
    reader.setAutoTransform(True)
    size = reader.size()
    if size.isValid() and size.width() * size.height() > MAX_PIXELS:
        return None  # an image of a few kilobytes may decompress to gigabytes
    if size.isValid() and max(size.width(), size.height()) > _MAX_SIDE:
        reader.setScaledSize(size.scaled(QSize(_MAX_SIDE, _MAX_SIDE), Qt.AspectRatioMode.KeepAspectRatio))
    image = reader.read()
    return None if image.isNull() else image


class FilePreview(QWidget):
    """Show one `Preview` at a time."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("file_preview")
        self.title = named(QLabel(), "preview_title", role="caption")
        self.title.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.title.setWordWrap(True)
        self.text = named(QPlainTextEdit(readOnly=True), "preview_text", self.tr("Content of the file"))
        CodeFont(self.text)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setTabChangesFocus(True)
        self.image = named(QLabel(alignment=Qt.AlignmentFlag.AlignCenter), "preview_image")
        self.image.setMinimumSize(1, 1)
        self.message = named(QLabel(alignment=Qt.AlignmentFlag.AlignCenter, wordWrap=True), "preview_message")
        self.message.setProperty("role", "caption")
        self._image: QImage | None = None
        self._stack = QStackedWidget()
        for widget in (self.message, self.text, self.image):
            self._stack.addWidget(widget)
        fill(QVBoxLayout(self), self.title, (self._stack, 1), margins=(6, 0, 0, 0), spacing=4)
        self.clear()

    def clear(self) -> None:
        self._image = None
        self.title.clear()
        self.text.clear()
        self.set_message(self.tr("Choose a file to preview it."))

    def set_message(self, text: str) -> None:
        self.message.setText(text)
        self._stack.setCurrentWidget(self.message)

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
            self._stack.setCurrentWidget(self.image)
        else:
            self.set_message(self._preview_text(preview))

    def _preview_text(self, preview: Preview) -> str:
        why = preview.problem.detail if preview.problem is not None else ""
        return {
            PreviewKind.IMAGE: self.tr("This image cannot be read, or is too large to show."),
            PreviewKind.VIDEO: self.tr("A video: the Replay tab plays it."),
            PreviewKind.BINARY: self.tr("Not a text file. “Open” opens it in another program."),
            PreviewKind.FOLDER: self.tr("A folder. Expand it in the tree to see its content."),
            PreviewKind.EMPTY: self.tr("This file is empty."),
            PreviewKind.UNREADABLE: self.tr(
                "This file cannot be read (it may be missing, or you may not read it). {why}"
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
        self.image.setPixmap(pixmap)
        self.image.setAccessibleName(self.title.text())


_MISSING_NAMED = 5
_MAX_PREVIEWED = 32 << 20
"""Larger files are not fetched from another machine for a preview, only when they are opened"""


class FilesTab(RunTab):
    """Tree on the left, preview on the right."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("files_tab")
        self._shown_for = ""
        self._request_number = 0
        self._run_dir = Path()
        self._manifest: AnalyticsManifest | None = None
        self.banner = Banner(parent=self)
        self.model = FilesModel(_what, self)
        self.model.requested.connect(self._read_folder)
        self.tree = self._make_tree()
        self.preview = FilePreview()
        self.open_action = self._action("file_open", self.tr("Ope&n"), self._open)
        self.reveal_action = self._action("file_reveal", self.tr("Show in &folder"), self._reveal)
        self.copy_action = self._action("file_copy_path", self.tr("Cop&y path"), self._copy_path)
        self.copy_action.setShortcut(QKeySequence.StandardKey.Copy)
        self.copy_action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        self.tree.addAction(self.copy_action)
        self.reload_action = self._action("files_reload", self.tr("&Refresh"), self.reload)
        self.reload_action.setShortcut(QKeySequence("F5"))
        self.reload_action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        self.addAction(self.reload_action)
        self._lay_out()
        self._update_actions()

    def _make_tree(self) -> QTreeView:
        tree = named(QTreeView(), "files_tree", self.tr("Files of the run"))
        tree.setModel(self.model)
        tree.setUniformRowHeights(True)
        tree.setAlternatingRowColors(True)
        tree.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        tree.customContextMenuRequested.connect(self._show_menu)
        tree.doubleClicked.connect(self._on_double_click)
        tree.selectionModel().selectionChanged.connect(self._on_selected)
        char = tree.fontMetrics().averageCharWidth()
        for column, chars in ((FileColumn.NAME, 32), (FileColumn.WHAT, 54), (FileColumn.SIZE, 12)):
            tree.setColumnWidth(column, char * chars)
        tree.header().setStretchLastSection(True)
        return tree

    def _action(self, name: str, text: str, act: object) -> QAction:
        action = QAction(text, self)
        action.setObjectName(name)
        action.triggered.connect(act)
        return action

    def _lay_out(self) -> None:
        bar = QHBoxLayout()
        bar.setSpacing(6)
        for action in (self.open_action, self.reveal_action, self.copy_action, self.reload_action):
            button = named(QPushButton(action.text()), f"{action.objectName()}_button", action.text().replace("&", ""))
            button.clicked.connect(action.trigger)
            action.enabledChanged.connect(button.setEnabled)
            bar.addWidget(button)
        bar.addStretch(1)
        split = named(QSplitter(Qt.Orientation.Horizontal), "files_split")
        split.addWidget(self.tree)
        split.addWidget(self.preview)
        split.setStretchFactor(0, 5)
        split.setStretchFactor(1, 3)
        split.setChildrenCollapsible(False)
        fill(QVBoxLayout(self), self.banner, bar, (split, 1), margins=8, spacing=6)

    # ------------------------------------------------------------------ RunTab

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._shown_for = ""
        self.model.set_roots([])
        self.preview.clear()
        self.banner.clear()
        if self.is_active:
            self.reload()

    def refresh(self, run: pb.Run) -> None:
        was = self.run.status if self.run is not None else ""
        super().refresh(run)
        if self.is_active and run.status == RunStatus.TERM and was != RunStatus.TERM:
            self.reload()  # the run may have written its last checkpoint and manifest

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active and self.run is not None and self._shown_for != self.run.run_id:
            self.reload()

    def reload(self) -> None:
        """Read the run's folders again."""
        run = self.run
        if run is None:
            return
        self._request_number += 1
        requested, run_id = self._request_number, run.run_id

        def find() -> RunPlaces:
            here = self.link.local(run, *DOCUMENTS, listed=("run/*", "logs/*"))
            return find_places(here.run_dir, here.logs_dir, run_id)

        self.link.background.run(
            find,
            owner=self,
            done=lambda places: self._show_places(run_id, places) if requested == self._request_number else None,
        )

    # ------------------------------------------------------------------ the tree

    def _show_places(self, run_id: str, places: RunPlaces) -> None:
        run = self.run
        if run is None or run.run_id != run_id:
            return
        self._shown_for = run_id
        self._run_dir, self._manifest = Path(self.link.moved(run).run_dir), places.reading.manifest
        self.preview.clear()
        names = {
            "run": self.tr("Run folder"),
            "logs": self.tr("Logs of the worker"),
            "config": self.tr("Run config"),
            "worker_config": self.tr("Worker config"),
        }
        self.model.set_roots(
            [
                (
                    names[place.kind],
                    place.path,
                    place.is_folder and place.is_there,
                    str(place.path) if place.is_there else self.tr("missing"),
                )
                for place in places.places
            ]
        )
        for node in self.model.roots:
            if node.is_folder:
                self.tree.expand(self.model.index_of(node))
        self._show_missing_places(run, places)
        self._update_actions()

    def _show_missing_places(self, run: pb.Run, places: RunPlaces) -> None:
        is_there = any(place.is_there for place in places.places)
        if not is_there:
            self._show_no_files(run)
        elif places.reading.problem is not None:
            is_worse = places.reading.problem.trouble is not ManifestTrouble.MISSING
            self.banner.set_message(
                manifest_problem_text(places.reading.problem, run), "warning" if is_worse else "info"
            )
        elif places.missing and run.status == RunStatus.TERM:
            named = ", ".join(places.missing[:_MISSING_NAMED])
            more = f" (+{len(places.missing) - _MISSING_NAMED})" if len(places.missing) > _MISSING_NAMED else ""
            self.banner.set_message(
                self.tr("The manifest names files that do not exist: {names}. They were moved or deleted.").format(
                    names=named + more
                ),
                "warning",
                action=self.tr("Refresh"),
                on_action=self.reload,
            )
        elif not self.link.is_home_here:
            self.banner.set_message(
                self.tr("The files are on the daemon's machine, in {path}. Opening one copies it here.").format(
                    path=run.run_dir
                )
            )
        else:
            self.banner.clear()

    def _show_no_files(self, run: pb.Run) -> None:
        if run.status == RunStatus.INIT:
            self.banner.set_message(self.tr("This run is queued. Its folder is created when its worker starts."))
        else:
            self.banner.set_message(
                self.tr(
                    "The folder of this run is missing: {path}. The daemon's record of it is still in Overview and "
                    "History; “Delete” also removes the record."
                ).format(path=run.run_dir),
                "bad",
                action=self.tr("Refresh"),
                on_action=self.reload,
            )

    def _read_folder(self, node: Node) -> None:
        run_dir, manifest, path = self._run_dir, self._manifest, node.path
        self.link.background.run(
            lambda: list_folder(path, run_dir, manifest),
            owner=self,
            done=lambda listing: self._apply_listing(node, listing),
        )

    def _apply_listing(self, node: Node, listing: FolderListing) -> None:
        self.model.set_listing(node, listing, listing_summary(listing))
        if node.path == self._run_dir:
            for child in node.children:  # most users look for the run folder
                if child.entry is not None and child.entry.role is Role.CHECKPOINTS:
                    self.tree.expand(self.model.index_of(child))

    # ------------------------------------------------------------------ one file

    def selected(self) -> Node | None:
        rows = self.tree.selectionModel().selectedRows()
        node = self.model.node(rows[0]) if rows else None
        return None if node is None or node.is_note else node

    def _on_selected(self, _selected: QItemSelection, _deselected: QItemSelection) -> None:
        self._update_actions()
        node = self.selected()
        if node is None:
            self.preview.clear()
            return
        path, run = node.path, self.run
        size = node.entry.size if node.entry is not None and not node.is_folder else 0
        if run is None or (not self.link.is_home_here and (size or 0) > _MAX_PREVIEWED):
            self.preview.clear()
            return

        def poll() -> tuple[Preview, QImage | None]:
            if not node.is_folder:
                self.link.fetched(run, path)
            preview = preview_of(path)
            return preview, read_image(preview) if preview.kind is PreviewKind.IMAGE else None

        def show(found: tuple[Preview, QImage | None]) -> None:
            current = self.selected()
            if current is not None and current.path == path:
                self.preview.show_preview(*found)

        self.link.background.run(poll, owner=self, done=show)

    def _update_actions(self) -> None:
        has_one = self.selected() is not None
        for action in (self.open_action, self.reveal_action, self.copy_action):
            action.setEnabled(has_one)

    def _show_menu(self, at: QPoint) -> None:
        if self.selected() is None:
            return
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addActions([self.open_action, self.reveal_action, self.copy_action])
        menu.popup(self.tree.viewport().mapToGlobal(at))

    def _on_double_click(self, index: QModelIndex) -> None:
        node = self.model.node(index)
        if node is not None and not node.is_folder and not node.is_note:
            self._open()

    def _open(self) -> None:
        node, run = self.selected(), self.run
        if node is None or run is None:
            return
        if node.is_folder or self.link.is_home_here:
            self._open_outside_of_window(node.path)
        else:
            self.link.background.run(
                lambda: self.link.fetched(run, node.path), owner=self, done=self._open_outside_of_window
            )

    def _reveal(self) -> None:
        if (node := self.selected()) is not None:
            self._open_outside_of_window(node.path.parent)

    def _open_outside_of_window(self, path: Path) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
            self.banner.set_message(
                self.tr("No program on this machine opens {path}. You can copy its path instead.").format(path=path),
                "warning",
            )

    def _copy_path(self) -> None:
        if (node := self.selected()) is not None:
            QGuiApplication.clipboard().setText(str(node.path))


def _what(entry: FileEntry) -> str:
    """Return the kind of a file as text."""
    if entry.checkpoint is not None:
        return checkpoint_summary(entry.checkpoint)
    return f"{role_label(entry.role)} · {artifact_label()}" if entry.is_listed else role_label(entry.role)
