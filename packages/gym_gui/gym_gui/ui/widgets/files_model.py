"""The files of a run as a tree that reads a folder when somebody opens it.

    model.wanted.connect(read_in_a_thread)          (a node): then model.take(node, listing)

The model itself never touches the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from PySide6.QtCore import QAbstractItemModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor, QIcon
from PySide6.QtWidgets import QApplication, QStyle

from gym_gui.ui import theme
from gym_gui.ui.presenters.run_files import FileEntry, Listing
from gym_gui.wording import formats

_Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()


class Column(IntEnum):
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
    """A file or folder, or a line that says why a folder has nothing to show."""

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
        """Words, not a file."""
        return self.entry is None and self.parent is not None


class FilesModel(QAbstractItemModel):
    """Places of a run and what lies in them."""

    wanted = Signal(object)  # Node

    def __init__(self, describe: Callable[[FileEntry], str], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._describe = describe
        self._roots: list[Node] = []
        style = QApplication.style()
        self._icons = {
            True: style.standardIcon(QStyle.StandardPixmap.SP_DirIcon),
            False: style.standardIcon(QStyle.StandardPixmap.SP_FileIcon),
        }

    # ------------------------------------------------------------------ content

    def set_roots(self, roots: list[tuple[str, Path, bool, str]]) -> None:
        """Where the tree begins: words, path, whether it is a folder, and a remark."""
        self.beginResetModel()
        self._roots = [
            Node(name, path, None, row, is_folder=is_folder, note=note)
            for row, (name, path, is_folder, note) in enumerate(roots)
        ]
        self.endResetModel()

    def take(self, node: Node, listing: Listing, words: str) -> None:
        """What a folder holds; `words` when there is nothing, or more than is shown."""
        top = node
        while top.parent is not None:
            top = top.parent
        if top not in self._roots:
            return  # another run is shown by now
        index = self.index_of(node)
        if node.children:
            self.beginRemoveRows(index, 0, len(node.children) - 1)
            node.children = []
            self.endRemoveRows()
        children = [
            Node(entry.name, entry.path, node, row, entry, entry.is_folder) for row, entry in enumerate(listing.entries)
        ]
        if words:
            children.append(Node(words, node.path, node, len(children), state=NodeState.READ))
        if children:
            self.beginInsertRows(index, 0, len(children) - 1)
            node.children = children
            self.endInsertRows()
        node.state = NodeState.READ

    def forget(self, node: Node) -> None:
        """Read it again when it is next shown."""
        node.state = NodeState.UNREAD
        if self.canFetchMore(index := self.index_of(node)):
            self.fetchMore(index)

    def node(self, index: _Index) -> Node | None:
        found = index.internalPointer() if index.isValid() else None
        return found if isinstance(found, Node) else None

    def index_of(self, node: Node | None) -> QModelIndex:
        return self.createIndex(node.row, 0, node) if node is not None else QModelIndex()

    @property
    def roots(self) -> list[Node]:
        return self._roots

    # ------------------------------------------------------------------ what Qt asks

    def index(self, row: int, column: int, parent: _Index = _ROOT) -> QModelIndex:
        owner = self.node(parent)
        nodes = owner.children if owner is not None else self._roots
        return self.createIndex(row, column, nodes[row]) if 0 <= row < len(nodes) else QModelIndex()

    def parent(self, index: _Index = _ROOT) -> QModelIndex:  # type: ignore[override]
        node = self.node(index)
        return self.index_of(node.parent) if node is not None else QModelIndex()

    def rowCount(self, parent: _Index = _ROOT) -> int:
        node = self.node(parent)
        if node is None:
            return len(self._roots)
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
            self.wanted.emit(node)

    def columnCount(self, _parent: _Index = _ROOT) -> int:
        return len(Column)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal or role != Qt.ItemDataRole.DisplayRole:
            return None
        return (self.tr("Name"), self.tr("What it is"), self.tr("Size"), self.tr("Changed"))[section]

    def flags(self, index: _Index) -> Qt.ItemFlag:
        node = self.node(index)
        if node is not None and node.is_note:
            return Qt.ItemFlag.ItemIsEnabled
        return super().flags(index)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        node = self.node(index)
        if node is None:
            return None
        column = Column(index.column())
        if role == Qt.ItemDataRole.DisplayRole:
            return self._shown(node, column)
        if role == Qt.ItemDataRole.ToolTipRole:
            return str(node.path) if column is Column.NAME else self._shown(node, column)
        if role == Qt.ItemDataRole.DecorationRole and column is Column.NAME and not node.is_note:
            return self._icon(node)
        if role == Qt.ItemDataRole.TextAlignmentRole and column is Column.SIZE:
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.ForegroundRole and (node.is_note or column is not Column.NAME):
            return QColor(theme.colours().muted if not _is_bad(node) else theme.colours().bad)
        return None

    def _icon(self, node: Node) -> QIcon:
        return self._icons[node.is_folder]

    def _shown(self, node: Node, column: Column) -> str:
        entry = node.entry
        if column is Column.NAME:
            return f"{node.name} → {entry.link_target}" if entry is not None and entry.link_target else node.name
        if column is Column.WHAT:
            return self._describe(entry) if entry is not None else node.note
        if entry is None:
            return ""
        if column is Column.SIZE:
            return formats.size(entry.size) if entry.size is not None else self.tr("many files")
        return formats.moment(entry.modified)


def _is_bad(node: Node) -> bool:
    return node.entry is not None and node.entry.checkpoint is not None and bool(node.entry.checkpoint.problem)
