"""The Files tab: a tree read as it is opened, previews, what is missing, and what can be done with a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.files_tab import FileColumn, FilesTab, Node
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, QUrl, Slot
from PySide6.QtGui import QDesktopServices, QGuiApplication, QImage
from PySide6.QtTest import QAbstractItemModelTester

WAIT = 20_000
RUN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


class Opener(QObject):
    """Takes what would go to the desktop's programs."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        QDesktopServices.setUrlHandler("file", self, "take")

    @Slot(QUrl)
    def take(self, url: QUrl) -> None:
        self.opened.append(url.toLocalFile())


@pytest.fixture
def opener(qapp) -> Iterator[Opener]:
    opener = Opener()
    yield opener
    QDesktopServices.unsetUrlHandler("file")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "trainer" / "runs" / RUN)
    entry = write_checkpoint(folder, 1000, {"values": {"episodes": {"recent": [200.0]}}}, kind="best")
    (folder.root / "notes.txt").write_text("remember the milk\n")
    image = QImage(40, 30, QImage.Format.Format_RGB32)
    image.fill(0x336699)
    image.save(str(folder.root / "picture.png"))
    AnalyticsManifest(RUN, checkpoints=(entry,), policy="gone.cleanrl_model").write(folder.manifest)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "stdout.log").write_text("hello\n")
    return folder


def record(folder: RunFolder, **fields: object) -> pb.Run:
    values = {"run_id": RUN, "status": "TERM", "outcome": "completed", "run_dir": str(folder.root)}
    return pb.Run(**{**values, "logs_dir": str(folder.root.parent.parent.parent / "logs"), **fields})


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> FilesTab:
    tab = FilesTab(link)
    qtbot.addWidget(tab)
    tab.resize(1100, 500)
    tab.show()
    tab.set_active(True)
    return tab


def find(tab: FilesTab, *names: str) -> Node | None:
    nodes = tab.model.roots
    found = None
    for name in names:
        found = next((node for node in nodes if node.name == name), None)
        if found is None:
            return None
        nodes = found.children
    return found


def choose(qtbot, tab: FilesTab, *names: str) -> Node:
    qtbot.waitUntil(lambda: find(tab, *names) is not None, timeout=WAIT)
    node = find(tab, *names)
    assert node is not None
    tab.tree.setCurrentIndex(tab.model.index_of(node))
    return node


def test_the_model_keeps_qts_rules(qtbot, tab: FilesTab, folder: RunFolder) -> None:
    tester = QAbstractItemModelTester(tab.model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    for _ in range(2):
        tab.show_run(record(folder))
        qtbot.waitUntil(lambda: find(tab, "Run folder", "checkpoints", "step-1000") is not None, timeout=WAIT)
    del tester


def test_folders_are_read_when_they_are_opened(qtbot, tab: FilesTab, folder: RunFolder) -> None:
    tab.show_run(record(folder))
    step = ("Run folder", "checkpoints", "step-1000")
    qtbot.waitUntil(lambda: find(tab, *step) is not None, timeout=WAIT)
    node = find(tab, *step)
    assert node is not None
    index = tab.model.index_of(node)
    assert index.siblingAtColumn(FileColumn.WHAT).data() == "Checkpoint · step 1,000 · best · return 200.0"
    qtbot.waitUntil(lambda: find(tab, "Logs of the worker", "stdout.log") is not None, timeout=WAIT)
    assert node.children == []  # it is not open
    tab.tree.expand(index)
    qtbot.waitUntil(lambda: [child.name for child in node.children] == ["state.json"], timeout=WAIT)


def test_what_the_manifest_names_and_is_missing_is_reported(qtbot, tab: FilesTab, folder: RunFolder) -> None:
    tab.show_run(record(folder))
    qtbot.waitUntil(lambda: "gone.cleanrl_model" in tab.banner.text, timeout=WAIT)
    (folder.root / "gone.cleanrl_model").write_bytes(b"\0")
    tab.reload_action.trigger()
    qtbot.waitUntil(lambda: tab.banner.text == "", timeout=WAIT)
    qtbot.waitUntil(lambda: find(tab, "Run folder", "gone.cleanrl_model") is not None, timeout=WAIT)
    node = find(tab, "Run folder", "gone.cleanrl_model")
    assert tab.model.index_of(node).siblingAtColumn(FileColumn.WHAT).data() == "Policy · in the manifest"


def test_a_damaged_manifest_is_a_banner_and_the_files_are_shown(qtbot, tab: FilesTab, folder: RunFolder) -> None:
    folder.manifest.write_text("{")
    tab.show_run(record(folder))
    qtbot.waitUntil(lambda: "cannot be read" in tab.banner.text, timeout=WAIT)
    assert tab.banner.tone == "warning"
    qtbot.waitUntil(lambda: find(tab, "Run folder", "notes.txt") is not None, timeout=WAIT)


def test_a_run_folder_that_is_missing_is_reported(qtbot, tab: FilesTab, tmp_path: Path) -> None:
    gone = record(RunFolder(tmp_path / "a" / "b" / "gone"), logs_dir="")
    tab.show_run(gone)
    qtbot.waitUntil(lambda: "is missing" in tab.banner.text, timeout=WAIT)
    assert tab.banner.tone == "bad"
    tab.show_run(record(RunFolder(tmp_path / "a" / "b" / "gone"), logs_dir="", status="INIT"))
    qtbot.waitUntil(lambda: "queued" in tab.banner.text, timeout=WAIT)


def test_a_look_into_files(qtbot, tab: FilesTab, folder: RunFolder) -> None:
    tab.show_run(record(folder))
    choose(qtbot, tab, "Run folder", "notes.txt")
    qtbot.waitUntil(lambda: tab.preview.text.toPlainText() == "remember the milk\n", timeout=WAIT)
    choose(qtbot, tab, "Run folder", "analytics.json")
    qtbot.waitUntil(lambda: '"policy": "gone.cleanrl_model"' in tab.preview.text.toPlainText(), timeout=WAIT)
    choose(qtbot, tab, "Run folder", "picture.png")
    qtbot.waitUntil(lambda: not tab.preview.image.pixmap().isNull(), timeout=WAIT)
    assert tab.preview.image.pixmap().width() == 40
    (folder.root / "notes.txt").unlink()
    choose(qtbot, tab, "Run folder", "notes.txt")
    qtbot.waitUntil(lambda: "cannot be read" in tab.preview.message.text(), timeout=WAIT)


def test_files_are_opened_revealed_and_their_paths_copied(
    qtbot, tab: FilesTab, folder: RunFolder, opener: Opener
) -> None:
    tab.show_run(record(folder))
    assert not tab.open_action.isEnabled()
    choose(qtbot, tab, "Run folder", "notes.txt")
    tab.open_action.trigger()
    tab.reveal_action.trigger()
    assert opener.opened == [str(folder.root / "notes.txt"), str(folder.root)]
    tab.copy_action.trigger()
    assert QGuiApplication.clipboard().text() == str(folder.root / "notes.txt")


def test_the_last_files_are_there_when_the_run_has_ended(qtbot, tab: FilesTab, folder: RunFolder) -> None:
    tab.show_run(record(folder, status="EXEC", outcome=""))
    qtbot.waitUntil(lambda: find(tab, "Run folder", "notes.txt") is not None, timeout=WAIT)
    assert tab.banner.text == ""  # what is missing may still come
    (folder.root / "late.txt").write_text("x")
    tab.refresh(record(folder))
    qtbot.waitUntil(lambda: find(tab, "Run folder", "late.txt") is not None, timeout=WAIT)
