"""Files of a run: a tree that is read as it is opened, with what each file is for, and a look into it."""

from __future__ import annotations

from pathlib import Path

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QItemSelection, QModelIndex, QPoint, Qt, QUrl
from PySide6.QtGui import QAction, QDesktopServices, QGuiApplication, QImage, QKeySequence
from PySide6.QtWidgets import (
    QHBoxLayout,
    QMenu,
    QPushButton,
    QSplitter,
    QTreeView,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.panels.run_words import (
    artefact_word,
    checkpoint_in_words,
    listing_in_words,
    manifest_trouble,
    role_word,
)
from gym_gui.ui.presenters.run_files import (
    FileEntry,
    Listing,
    Preview,
    PreviewKind,
    Role,
    RunPlaces,
    Trouble,
    list_folder,
    look_at_places,
    preview_of,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.file_preview import FilePreview, read_image
from gym_gui.ui.widgets.files_model import Column, FilesModel, Node

_MISSING_NAMED = 5


class FilesTab(RunTab):
    """Tree on the left, preview on the right."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("files_tab")
        self._shown_for = ""
        self._asked = 0
        self._run_dir = Path()
        self._manifest: AnalyticsManifest | None = None
        self.banner = Banner(parent=self)
        self.model = FilesModel(_what, self)
        self.model.wanted.connect(self._read_folder)
        self.tree = self._make_tree()
        self.preview = FilePreview()
        self.open_action = self._action("file_open", self.tr("&Open"), self._open)
        self.reveal_action = self._action("file_reveal", self.tr("Show in &folder"), self._reveal)
        self.copy_action = self._action("file_copy_path", self.tr("&Copy path"), self._copy_path)
        self.copy_action.setShortcut(QKeySequence.StandardKey.Copy)
        self.copy_action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        self.tree.addAction(self.copy_action)
        self.reload_action = self._action("files_reload", self.tr("&Read again"), self.reload)
        self.reload_action.setShortcut(QKeySequence("F5"))
        self.reload_action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        self.addAction(self.reload_action)
        self._lay_out()
        self._update_actions()

    def _make_tree(self) -> QTreeView:
        tree = QTreeView()
        tree.setObjectName("files_tree")
        tree.setAccessibleName(self.tr("Files of the run"))
        tree.setModel(self.model)
        tree.setUniformRowHeights(True)
        tree.setAlternatingRowColors(True)
        tree.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        tree.customContextMenuRequested.connect(self._show_menu)
        tree.doubleClicked.connect(self._on_double_click)
        tree.selectionModel().selectionChanged.connect(self._on_selected)
        char = tree.fontMetrics().averageCharWidth()
        for column, chars in ((Column.NAME, 32), (Column.WHAT, 54), (Column.SIZE, 12)):
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
            button = QPushButton(action.text())
            button.setObjectName(f"{action.objectName()}_button")
            button.setAccessibleName(action.text().replace("&", ""))
            button.clicked.connect(action.trigger)
            action.enabledChanged.connect(button.setEnabled)
            bar.addWidget(button)
        bar.addStretch(1)
        split = QSplitter(Qt.Orientation.Horizontal)
        split.setObjectName("files_split")
        split.addWidget(self.tree)
        split.addWidget(self.preview)
        split.setStretchFactor(0, 5)
        split.setStretchFactor(1, 3)
        split.setChildrenCollapsible(False)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 8, 8, 8)
        layout.setSpacing(6)
        layout.addWidget(self.banner)
        layout.addLayout(bar)
        layout.addWidget(split, 1)

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
        if self.is_active and run.status == "TERM" and was != "TERM":
            self.reload()  # the last checkpoint and the final manifest

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active and self.run is not None and self._shown_for != self.run.run_id:
            self.reload()

    def reload(self) -> None:
        """Read the places of the run anew."""
        run = self.run
        if run is None:
            return
        self._asked += 1
        asked, run_id = self._asked, run.run_id
        run_dir, logs_dir = run.run_dir, run.logs_dir
        self.link.background.run(
            lambda: look_at_places(run_dir, logs_dir, run_id),
            owner=self,
            done=lambda places: self._show_places(run_id, places) if asked == self._asked else None,
        )

    # ------------------------------------------------------------------ the tree

    def _show_places(self, run_id: str, places: RunPlaces) -> None:
        run = self.run
        if run is None or run.run_id != run_id:
            return
        self._shown_for = run_id
        self._run_dir, self._manifest = Path(run.run_dir), places.reading.manifest
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
                    str(place.path) if place.is_there else self.tr("not there"),
                )
                for place in places.places
            ]
        )
        for node in self.model.roots:
            if node.is_folder:
                self.tree.expand(self.model.index_of(node))
        self._say_what_is_wrong(run, places)
        self._update_actions()

    def _say_what_is_wrong(self, run: pb.Run, places: RunPlaces) -> None:
        is_there = any(place.is_there for place in places.places)
        if not is_there:
            self._say_nothing_is_here(run)
        elif places.reading.problem is not None:
            is_worse = places.reading.problem.trouble is not Trouble.MISSING
            self.banner.say(manifest_trouble(places.reading.problem, run), "warning" if is_worse else "info")
        elif places.missing and run.status == "TERM":
            named = ", ".join(places.missing[:_MISSING_NAMED])
            more = f" (+{len(places.missing) - _MISSING_NAMED})" if len(places.missing) > _MISSING_NAMED else ""
            self.banner.say(
                self.tr("The manifest names files that are not there: {names}. They were moved or deleted.").format(
                    names=named + more
                ),
                "warning",
                action=self.tr("Read again"),
                on_action=self.reload,
            )
        else:
            self.banner.clear()

    def _say_nothing_is_here(self, run: pb.Run) -> None:
        is_local = self.link.state.target.startswith("unix:")
        if run.status == "INIT":
            self.banner.say(self.tr("This run is queued. Its folder is made when its worker starts."))
        elif is_local:
            self.banner.say(
                self.tr("The folder of this run is gone: {path}. What the daemon knows of it is still in Overview and "
                        "History; “Delete” removes the record, too.").format(path=run.run_dir),
                "bad",
                action=self.tr("Read again"),
                on_action=self.reload,
            )  # fmt: skip
        else:
            self.banner.say(
                self.tr("The files of this run lie on the daemon's machine ({target}), in {path}. “Export” brings a "
                        "copy of the run here.").format(target=self.link.state.target, path=run.run_dir),
            )  # fmt: skip

    def _read_folder(self, node: Node) -> None:
        run_dir, manifest, path = self._run_dir, self._manifest, node.path
        self.link.background.run(
            lambda: list_folder(path, run_dir, manifest),
            owner=self,
            done=lambda listing: self._take_listing(node, listing),
        )

    def _take_listing(self, node: Node, listing: Listing) -> None:
        self.model.take(node, listing, listing_in_words(listing))
        if node.path == self._run_dir:
            for child in node.children:  # what most people come for
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
        path = node.path

        def look() -> tuple[Preview, QImage | None]:
            preview = preview_of(path)
            return preview, read_image(preview) if preview.kind is PreviewKind.IMAGE else None

        def show(found: tuple[Preview, QImage | None]) -> None:
            current = self.selected()
            if current is not None and current.path == path:
                self.preview.show_preview(*found)

        self.link.background.run(look, owner=self, done=show)

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
        if (node := self.selected()) is not None:
            self._give_away(node.path)

    def _reveal(self) -> None:
        if (node := self.selected()) is not None:
            self._give_away(node.path.parent)

    def _give_away(self, path: Path) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(path))):
            self.banner.say(
                self.tr("No program here opens {path}. Its path can be copied instead.").format(path=path), "warning"
            )

    def _copy_path(self) -> None:
        if (node := self.selected()) is not None:
            QGuiApplication.clipboard().setText(str(node.path))


def _what(entry: FileEntry) -> str:
    """What a file is, in words."""
    if entry.checkpoint is not None:
        return checkpoint_in_words(entry.checkpoint)
    return f"{role_word(entry.role)} · {artefact_word()}" if entry.is_listed else role_word(entry.role)
