"""The panel of runs against a real daemon: what a person types, ticks and clicks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, random_config
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.actions import RunActions
from gym_gui.ui.runs.allowed_actions import RunAction
from gym_gui.ui.runs.panel import RunsPanel
from gym_gui.ui.runs.rows import RunColumn
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QMimeData, QPoint, Qt, QUrl
from PySide6.QtGui import QAction, QDropEvent, QGuiApplication
from PySide6.QtWidgets import QFileDialog, QLineEdit, QMessageBox, QPushButton, QWidget
from shiboken6 import isValid

WAIT_MS = 60_000


@pytest.fixture
def window(qtbot, themed: object) -> QWidget:
    window = QWidget()
    qtbot.addWidget(window)
    return window


@pytest.fixture
def panel(qtbot, window: QWidget, link: DaemonLink, background: Background) -> Iterator[RunsPanel]:
    actions = RunActions(link, background, window)
    panel = RunsPanel(link, actions)
    qtbot.addWidget(panel)
    panel.resize(1200, 500)
    panel.show()
    qtbot.waitUntil(lambda: panel._is_loaded, timeout=WAIT_MS)
    yield panel
    panel.hide()


@pytest.fixture
def submit(qtbot, window_daemon: RunningDaemon, panel: RunsPanel) -> Iterator[Callable[..., str]]:
    """Queue a run and wait until the panel knows it; all of them are ended and deleted afterwards."""
    made: list[str] = []

    def submit(name: str, *, until: str = "", **fields: Any) -> str:
        config = random_config(**fields)
        config["run_name"] = name
        run = window_daemon.client.submit(config).run
        made.append(run.run_id)
        status = until or "TERM"
        qtbot.waitUntil(lambda: run_of(panel, run.run_id).status == status, timeout=WAIT_MS)
        panel.model.flush()
        return run.run_id

    yield submit
    for run in window_daemon.client.list(include_archived=True).runs:
        if run.status != "TERM":
            window_daemon.client.cancel(run.run_id)
            window_daemon.wait_for(run.run_id)
        window_daemon.client.delete(run.run_id)


def run_of(panel: RunsPanel, run_id: str) -> pb.Run:
    return panel.model.run(run_id) or pb.Run()


def names(panel: RunsPanel) -> list[str]:
    return [panel.model.index(row, RunColumn.NAME).data() for row in range(panel.model.rowCount())]


def action(panel: RunsPanel, name: str) -> QAction:
    """That of the context menu for what is chosen now."""
    menu = panel.context_menu(panel.selected_runs())
    return next(entry for entry in menu.actions() if entry.objectName() == f"run_{name}")


def wait_until_gone(qtbot, widget: QWidget) -> None:
    qtbot.waitUntil(lambda: not isValid(widget), timeout=10_000)


def test_runs_appear_are_filtered_ticked_and_counted(qtbot, panel: RunsPanel, submit: Callable[..., str]) -> None:
    assert panel.empty.isVisible()
    assert panel.empty.title.text() == "No runs yet"
    first = submit("apple", tags=("fruit",), seed=1)
    submit("carrot", seed=2)
    assert names(panel) == ["carrot", "apple"]
    assert panel.count.text() == "2 runs"
    qtbot.keyClicks(panel.bar.field, "tag:fruit")
    assert names(panel) == ["apple"]
    assert panel.count.text() == "1 of 2 runs"
    qtbot.keyClicks(panel.bar.field, " nothing")
    assert panel.empty.isVisible()
    qtbot.mouseClick(panel.empty.button, Qt.MouseButton.LeftButton)
    assert names(panel) == ["carrot", "apple"]
    assert panel.bar.field.text() == ""
    tags = next(button for facet, button in panel.bar.facets.items() if facet.value == "tag")
    tags.fill()
    assert tags.list.item(0).text() == "fruit  (1)"
    tags.list.item(0).setCheckState(Qt.CheckState.Checked)
    assert names(panel) == ["apple"]
    assert tags.text().strip() == "Tag: fruit"
    with qtbot.waitSignal(panel.selection_changed, timeout=5_000) as chosen:
        panel.view.selectRow(0)
    assert chosen.args == [(first,)]
    qtbot.keyClick(panel.bar.field, Qt.Key.Key_Down)
    with qtbot.waitSignal(panel.run_opened, timeout=5_000) as opened:
        qtbot.keyClick(panel.view, Qt.Key.Key_Return)
    assert opened.args == [first]
    qtbot.mouseClick(panel.bar.clear_button, Qt.MouseButton.LeftButton)
    assert len(names(panel)) == 2


def test_an_unknown_field_is_hinted_at(panel: RunsPanel) -> None:
    panel.bar.field.setText("statos:running")
    assert "“status:”" in panel.bar.hint.text()
    panel.bar.field.setText("status:running")
    assert not panel.bar.hint.isVisible()


def test_a_run_is_paused_resumed_and_cancelled(qtbot, panel: RunsPanel, submit: Callable[..., str]) -> None:
    run_id = submit("long", timesteps=100_000, steps_per_second=200.0, until="EXEC")
    panel.select([run_id])
    assert not action(panel, "resume").isEnabled()
    assert "running" in action(panel, "resume").toolTip()
    assert not action(panel, "delete").isEnabled()
    action(panel, "pause").trigger()
    qtbot.waitUntil(lambda: run_of(panel, run_id).status == "PAUSE", timeout=WAIT_MS)
    action(panel, "resume").trigger()
    qtbot.waitUntil(lambda: run_of(panel, run_id).status == "EXEC", timeout=WAIT_MS)
    action(panel, "cancel").trigger()
    qtbot.waitUntil(lambda: run_of(panel, run_id).outcome == "cancelled", timeout=WAIT_MS)
    assert panel.selected_runs()[0].run_id == run_id
    assert panel.banner.text == ""


def test_what_the_daemon_refuses_is_reported(qtbot, window_daemon: RunningDaemon, panel: RunsPanel, submit) -> None:
    run_id = submit("gone soon")
    stale = [run_of(panel, run_id)]
    window_daemon.client.delete(run_id)
    qtbot.waitUntil(lambda: panel.model.run(run_id) is None, timeout=WAIT_MS)
    panel.run_actions.do(RunAction.ARCHIVE, stale)
    qtbot.waitUntil(lambda: panel.banner.text != "", timeout=WAIT_MS)
    assert run_id in panel.banner.text
    assert panel.banner.tone == "bad"


def test_runs_are_archived_shown_and_brought_back(qtbot, panel: RunsPanel, submit: Callable[..., str]) -> None:
    run_id = submit("old")
    panel.select([run_id])
    action(panel, "archive").trigger()
    qtbot.waitUntil(lambda: names(panel) == [], timeout=WAIT_MS)
    assert run_of(panel, run_id).archived
    assert "archived" in panel.empty.message.text()
    qtbot.mouseClick(panel.empty.button, Qt.MouseButton.LeftButton)
    assert names(panel) == ["old"]
    panel.select([run_id])
    action(panel, "unarchive").trigger()
    qtbot.waitUntil(lambda: not run_of(panel, run_id).archived, timeout=WAIT_MS)


def test_several_runs_are_deleted_after_a_question(qtbot, window: QWidget, panel: RunsPanel, submit) -> None:
    ids = [submit("one"), submit("two")]
    keep = submit("three")
    panel.select(ids)
    for expected, left in (("cancel", 3), ("confirm_delete", 1)):
        action(panel, "delete").trigger()
        box = window.findChild(QMessageBox, "delete_runs_dialog")
        assert box is not None
        assert box.text().startswith("Delete 2 runs (")
        button = box.escapeButton() if expected == "cancel" else box.findChild(QPushButton, expected)
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
        wait_until_gone(qtbot, box)
        qtbot.waitUntil(lambda left=left: panel.model.rowCount() == left, timeout=WAIT_MS)
    assert names(panel) == [run_of(panel, keep).name]
    qtbot.waitUntil(lambda: "2 runs were deleted" in panel.banner.text, timeout=WAIT_MS)


def test_the_question_before_deleting_names_the_runs_that_continue(
    qtbot, window: QWidget, panel: RunsPanel, window_daemon: RunningDaemon, submit
) -> None:
    parent = submit("first", checkpoint_every=10)
    child = window_daemon.wait_for(window_daemon.client.resume(parent, additional_timesteps=10).run_id).run_id
    qtbot.waitUntil(lambda: run_of(panel, child).status == "TERM", timeout=WAIT_MS)
    panel.model.flush()
    for chosen, is_warned in (([parent], True), ([parent, child], False)):
        panel.select(chosen)
        action(panel, "delete").trigger()
        box = window.findChild(QMessageBox, "delete_runs_dialog")
        warning = f"Runs that continue them lose the beginning of their curves: {child[-8:]}"
        assert (warning in box.informativeText()) is is_warned
        qtbot.mouseClick(box.escapeButton(), Qt.MouseButton.LeftButton)
        wait_until_gone(qtbot, box)


def test_a_run_is_exported_and_comes_back_by_drag_and_drop(
    qtbot, tmp_path: Path, window_daemon: RunningDaemon, panel: RunsPanel, submit: Callable[..., str]
) -> None:
    run_id = submit("traveler", tags=("abroad",))
    target = tmp_path / "run.tar.gz"
    panel.run_actions.export_to({run_id: target})
    qtbot.waitUntil(lambda: "exported" in panel.banner.text, timeout=WAIT_MS)
    assert target.stat().st_size > 100
    assert list(tmp_path.glob(".*.part")) == []
    window_daemon.client.delete(run_id)
    qtbot.waitUntil(lambda: panel.model.run(run_id) is None, timeout=WAIT_MS)
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(target)), QUrl.fromLocalFile(str(tmp_path / "picture.png"))])
    drop = QDropEvent(
        QPoint(50, 50), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    )
    panel.dropEvent(drop)
    assert drop.isAccepted()
    qtbot.waitUntil(lambda: panel.model.run(run_id) is not None, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: "Imported" in panel.banner.text, timeout=WAIT_MS)
    assert list(run_of(panel, run_id).tags) == ["abroad"]
    panel.import_files([tmp_path / "missing.tar.gz"])
    qtbot.waitUntil(lambda: "Not imported" in panel.banner.text, timeout=WAIT_MS)
    assert panel.banner.tone == "bad"


def test_where_to_export_is_asked_first(qtbot, tmp_path: Path, window: QWidget, panel: RunsPanel, submit) -> None:
    ids = [submit("one"), submit("two")]
    for chosen, answer in ((ids[:1], tmp_path / "mine"), (ids, tmp_path)):
        panel.select(chosen)
        action(panel, "export").trigger()
        dialog = window.findChild(QFileDialog, "export_dialog")
        dialog.fileSelected.emit(str(answer))
        dialog.close()
        wait_until_gone(qtbot, dialog)
        qtbot.waitUntil(lambda: "exported" in panel.banner.text, timeout=WAIT_MS)
        panel.banner.clear()
    exported = {path.name for path in tmp_path.glob("*.tar.gz")}
    assert exported == {"mine.tar.gz", *(f"mosaic-{run_id}.tar.gz" for run_id in ids)}


def test_the_export_of_a_continued_run_names_the_run_that_has_its_beginning(
    qtbot, tmp_path: Path, panel: RunsPanel, window_daemon: RunningDaemon, submit
) -> None:
    first = submit("first", timesteps=10, checkpoint_every=5)
    second = window_daemon.wait_for(window_daemon.client.resume(first, additional_timesteps=10).run_id).run_id
    for targets, is_told in (((second,), True), ((first, second), False)):
        panel.run_actions.export_to({run_id: tmp_path / f"{run_id}.tar.gz" for run_id in targets})
        qtbot.waitUntil(lambda: "exported" in panel.banner.text, timeout=WAIT_MS)
        assert (f"also export {first[-8:]}" in panel.banner.text) is is_told
        panel.banner.clear()


def test_an_export_that_is_stopped_leaves_nothing_behind(tmp_path: Path, window_daemon: RunningDaemon, submit) -> None:
    run_id, target = submit("stopped"), tmp_path / "run.tar.gz"

    def stop(size: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError):
        window_daemon.client.export_to(run_id, target, on_progress=stop, every_bytes=1)
    assert not any(path.name.endswith((".part", ".gz")) for path in tmp_path.iterdir())


def test_name_tags_and_notes_are_edited(qtbot, window: QWidget, panel: RunsPanel, submit: Callable[..., str]) -> None:
    run_id, other = submit("before", tags=("a", "b")), submit("other", tags=("b",))
    panel.select([run_id])
    action(panel, "edit").trigger()
    dialog = window.findChild(QWidget, "edit_run_dialog")
    dialog.findChild(QLineEdit, "run_name").setText("")
    dialog._save()
    assert dialog.problem.isVisible()
    dialog.findChild(QLineEdit, "run_name").setText("after")
    dialog.findChild(QLineEdit, "run_tags").setText("b, c")
    dialog.notes.setPlainText("what it was about")
    dialog._save()
    wait_until_gone(qtbot, dialog)
    qtbot.waitUntil(lambda: run_of(panel, run_id).name == "after", timeout=WAIT_MS)
    assert list(run_of(panel, run_id).tags) == ["b", "c"]
    assert run_of(panel, run_id).notes == "what it was about"
    panel.select([run_id, other])
    action(panel, "edit").trigger()
    dialog = window.findChild(QWidget, "edit_run_dialog")
    dialog.tags.setText("both")
    dialog.removed.setText("b")
    dialog._save()
    wait_until_gone(qtbot, dialog)
    qtbot.waitUntil(lambda: list(run_of(panel, other).tags) == ["both"], timeout=WAIT_MS)
    qtbot.waitUntil(lambda: list(run_of(panel, run_id).tags) == ["c", "both"], timeout=WAIT_MS)


def test_the_command_line_and_the_id_are_copied(qtbot, panel: RunsPanel, submit: Callable[..., str]) -> None:
    run_id = submit("copied", timesteps=77, seed=5)
    panel.select([run_id])
    action(panel, "command").trigger()
    qtbot.waitUntil(lambda: "copied" in panel.banner.text, timeout=WAIT_MS)
    text = QGuiApplication.clipboard().text()
    assert text.startswith("mosaic train random none --total-timesteps 77 --seed 5")
    assert "--worker random" in text
    action(panel, "copy_id").trigger()
    assert QGuiApplication.clipboard().text() == run_id


def test_forms_are_asked_for(qtbot, panel: RunsPanel, submit: Callable[..., str]) -> None:
    run_id = submit("model")
    panel.select([run_id])
    with qtbot.waitSignal(panel.run_actions.form_requested, timeout=5_000) as expected:
        action(panel, "clone").trigger()
    assert expected.args[0] == "clone"
    assert expected.args[1].run_id == run_id


def test_a_comparison_is_asked_for(qtbot, panel: RunsPanel, submit: Callable[..., str]) -> None:
    ids = [submit("left", seed=1), submit("right", seed=2, steps_per_second=1000.0)]
    panel.select(ids)
    with qtbot.waitSignal(panel.compare_requested, timeout=5_000) as expected:
        action(panel, "compare").trigger()
    assert sorted(expected.args[0]) == sorted(ids)


def test_filters_are_saved_with_the_daemon_and_chosen_again(qtbot, panel: RunsPanel, submit, window_daemon) -> None:
    submit("apple", tags=("fruit",))
    submit("carrot")
    panel.bar.field.setText("tag:fruit")
    panel.bar.saved.save("my fruit")
    qtbot.waitUntil(lambda: panel.bar.saved.names == ["my fruit"], timeout=WAIT_MS)
    assert window_daemon.client.filters()["my fruit"]["window"]["text"] == "tag:fruit"
    panel.bar.field.clear()
    assert len(names(panel)) == 2
    panel.bar.saved._fill()
    chosen = next(entry for entry in panel.bar.saved.actions() if entry.text() == "my fruit")
    chosen.trigger()
    assert names(panel) == ["apple"]
    assert panel.bar.field.text() == "tag:fruit"
    panel.bar.saved.forget("my fruit")
    qtbot.waitUntil(lambda: panel.bar.saved.names == [], timeout=WAIT_MS)


def test_columns_order_and_grouping_are_remembered(
    qtbot, panel: RunsPanel, link: DaemonLink, background: Background, window: QWidget
) -> None:
    header = panel.view.horizontalHeader()
    panel._show_column(RunColumn.WORKER, False)
    header.moveSection(header.visualIndex(RunColumn.SIZE), 0)
    header.resizeSection(RunColumn.NAME, 333)
    panel.view.sortByColumn(RunColumn.NAME, Qt.SortOrder.AscendingOrder)
    panel.bar.group_action.setChecked(True)
    panel.hide()
    other = RunsPanel(link, RunActions(link, background, window))
    qtbot.addWidget(other)
    header = other.view.horizontalHeader()
    assert other.view.isColumnHidden(RunColumn.WORKER)
    assert header.visualIndex(RunColumn.SIZE) == 0
    assert header.sectionSize(RunColumn.NAME) == 333
    assert other.model.is_grouped
    assert other.bar.group_action.isChecked()
    assert (other.model.sort_column, other.model.sort_order) == (RunColumn.NAME, Qt.SortOrder.AscendingOrder)
    other.reset_columns()
    assert [column for column in RunColumn if other.view.isColumnHidden(column)] == [RunColumn.TAGS]
    assert [header.visualIndex(column) for column in RunColumn] == list(range(len(RunColumn)))
    qtbot.waitUntil(lambda: other._is_loaded, timeout=WAIT_MS)


def test_tags_have_a_column_for_those_who_want_it(qtbot, panel: RunsPanel, submit, window_daemon) -> None:
    run_id = submit("apple", tags=("fruit", "red"))
    assert panel.view.isColumnHidden(RunColumn.TAGS)
    panel._fill_columns_menu(panel.bar.columns_menu)
    next(action for action in panel.bar.columns_menu.actions() if action.text() == "Tags").trigger()
    assert not panel.view.isColumnHidden(RunColumn.TAGS)

    def cell() -> str:
        return str(panel.model.index(panel.model.position_of(run_id), RunColumn.TAGS).data())

    qtbot.waitUntil(lambda: panel.model.position_of(run_id) is not None and cell() == "fruit, red", timeout=WAIT_MS)
    window_daemon.client.update(run_id, add_tags=["sweet"], remove_tags=["red"])
    qtbot.waitUntil(lambda: cell() == "fruit, sweet", timeout=WAIT_MS)


def test_every_control_has_a_name_for_those_who_cannot_see_it(panel: RunsPanel) -> None:
    controls = [panel.view, panel.bar.field, panel.bar.clear_button, *panel.bar.facets.values()]
    assert all(widget.accessibleName() and widget.objectName() for widget in controls)
