"""The Logs tab: real files of real runs, large ones, cut ones, missing ones, and the daemon's end of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.log_index import FIRST_CHUNK_BYTES, LogLevel, open_log
from gym_gui.ui.run_page.logs_tab import LogsTab
from mosaic_wire.lifecycle import LifecycleKind, LifecycleSpool, RunLifecycleEvent
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest

WAIT = 20_000


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> LogsTab:
    tab = LogsTab(link)
    qtbot.addWidget(tab)
    tab.resize(1000, 600)
    tab.show()
    tab.set_active(True)
    yield tab
    tab.set_active(False)


def a_run(folder: Path, **logs: str) -> pb.Run:
    """The record of a run whose worker wrote these."""
    logs_dir = folder / "logs"
    logs_dir.mkdir(parents=True, exist_ok=True)
    (folder / "run").mkdir(exist_ok=True)
    for name, text in logs.items():
        (logs_dir / f"{name}.log").write_text(text)
    return pb.Run(
        run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC", run_dir=str(folder / "run"), logs_dir=str(logs_dir)
    )


def shown(tab: LogsTab) -> list[str]:
    view = tab.view
    end = min(view.count, view.first_row + view.rows_on_screen())
    return [line.text if (line := view.line(row)) else "" for row in range(view.first_row, end)]


def test_a_log_is_shown_from_its_end_and_followed(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    run = a_run(tmp_path, stdout="".join(f"line {number}\n" for number in range(500)), stderr="")
    tab.show_run(run)
    qtbot.waitUntil(lambda: shown(tab)[-1:] == ["line 499"], timeout=WAIT)
    assert tab.toolbar.stream == "stdout"
    with (tmp_path / "logs" / "stdout.log").open("a") as stream:
        stream.write("the newest\n")
    qtbot.waitUntil(lambda: shown(tab)[-1:] == ["the newest"], timeout=WAIT)
    assert "501 lines" in tab.status.text()
    tab.toolbar.start_button.click()
    qtbot.waitUntil(lambda: shown(tab)[:1] == ["line 0"], timeout=WAIT)
    assert not tab.toolbar.follow_box.isChecked()
    tab.toolbar.end_button.click()
    qtbot.waitUntil(lambda: shown(tab)[-1:] == ["the newest"], timeout=WAIT)


def test_lifecycle_events_among_a_workers_output_are_rendered(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    event = RunLifecycleEvent(LifecycleKind.RUN_STARTED, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 1e9, 1, {"algo": "ppo"}, 1)
    tab.show_run(a_run(tmp_path, stdout=f"hello\n{event.to_line()}"))
    qtbot.waitUntil(lambda: shown(tab)[:1] == ["hello"], timeout=WAIT)
    assert shown(tab)[1].endswith("run_started        algo=ppo")


def test_a_log_that_was_cut_begins_anew(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    run = a_run(tmp_path, stdout="old line\n" * 500)
    tab.show_run(run)
    qtbot.waitUntil(lambda: shown(tab)[-1:] == ["old line"], timeout=WAIT)
    (tmp_path / "logs" / "stdout.log").write_text("new line\n")
    qtbot.waitUntil(lambda: shown(tab) == ["new line"], timeout=WAIT)
    assert "was restarted" in tab.banner.text


def test_a_search_goes_from_hit_to_hit(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    lines = [f"needle {number}" if number % 100 == 7 else f"straw {number}" for number in range(1000)]
    tab.show_run(a_run(tmp_path, stdout="\n".join(lines) + "\n"))
    qtbot.waitUntil(lambda: tab.view.count == 1000, timeout=WAIT)
    tab.toolbar.focus_search()
    QTest.keyClicks(tab.toolbar.search_field, "NEEDLE")
    qtbot.waitUntil(lambda: tab.toolbar.hits_label.text() == "10 matches", timeout=WAIT)
    QTest.keyClick(tab.toolbar.search_field, Qt.Key.Key_Return)
    assert tab.toolbar.hits_label.text() == "1 of 10"
    assert tab.view.selected_rows() == (7, 1)
    tab.toolbar.previous_button.click()
    assert tab.toolbar.hits_label.text() == "10 of 10"
    assert tab.view.selected_rows() == (907, 1)
    tab.toolbar.only_hits_box.setChecked(True)
    qtbot.waitUntil(lambda: shown(tab) == [line for line in lines if "needle" in line], timeout=WAIT)
    tab.view.row_activated.emit(3)  # back among its neighbors
    qtbot.waitUntil(lambda: "straw 306" in shown(tab) and "needle 307" in shown(tab), timeout=WAIT)
    assert tab.view.selected_rows() == (307, 1)
    tab.toolbar.search_field.setText("nothing like it")
    qtbot.waitUntil(lambda: tab.toolbar.hits_label.text() == "no match", timeout=WAIT)


def test_a_level_shows_only_its_lines_and_new_ones_as_they_come(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    tab.show_run(a_run(tmp_path, stderr="all well\nWARNING: hot\nERROR: too hot\n" * 3))
    qtbot.waitUntil(lambda: tab.view.count == 9, timeout=WAIT)
    tab.toolbar.level_box.setCurrentIndex(tab.toolbar.level_box.findData(LogLevel.ERRORS))
    qtbot.waitUntil(lambda: shown(tab) == ["ERROR: too hot"] * 3, timeout=WAIT)
    with (tmp_path / "logs" / "stderr.log").open("a") as stream:
        stream.write("fine again\nERROR: melted\n")
    qtbot.waitUntil(lambda: shown(tab)[-1:] == ["ERROR: melted"], timeout=WAIT)
    assert tab.toolbar.hits_label.text() == "4 matches"
    tab.toolbar.level_box.setCurrentIndex(0)
    qtbot.waitUntil(lambda: tab.view.count == 11, timeout=WAIT)


def test_what_is_chosen_is_copied(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    tab.show_run(a_run(tmp_path, stdout="one\ntwo\nthree\n"))
    qtbot.waitUntil(lambda: shown(tab) == ["one", "two", "three"], timeout=WAIT)
    QTest.keyClick(tab.view, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClick(tab.view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: QGuiApplication.clipboard().text() == "one\ntwo\nthree", timeout=WAIT)


def test_of_a_long_log_the_end_is_there_before_its_lines_are_counted(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    path = tmp_path / "logs" / "stdout.log"
    piece = "".join(f"line {number:06} of a piece\n" for number in range(40_000))
    with path.open("w") as stream:
        for _ in range(30):
            stream.write(piece)
        stream.write("the very last\n")
    look = open_log(path)
    assert (look.is_counted, look.tail[-1].text) == (False, "the very last")
    assert look.index.scanned <= FIRST_CHUNK_BYTES < path.stat().st_size / 5
    tab.show_run(run)
    qtbot.waitUntil(lambda: shown(tab)[-1:] == ["the very last"], timeout=WAIT)
    qtbot.waitUntil(lambda: tab.view.count == 30 * 40_000 + 1, timeout=60_000)
    qtbot.waitUntil(lambda: shown(tab)[-1:] == ["the very last"], timeout=WAIT)
    assert tab.file.index.index_bytes < 200_000
    tab.view.set_follows(False)
    tab.view.scroll_to(600_000)
    qtbot.waitUntil(lambda: tab.view.line(600_000) is not None, timeout=WAIT)
    assert tab.view.line(600_000).text == "line 000000 of a piece"


def test_a_missing_log_is_reported_and_appears_when_it_is_there(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    tab.show_run(run)
    qtbot.waitUntil(lambda: "Nothing has been written yet" in tab.banner.text, timeout=WAIT)
    (tmp_path / "run" / "logs").mkdir()
    (tmp_path / "run" / "logs" / "stdout.log").write_text("here I am\n")
    qtbot.waitUntil(lambda: shown(tab) == ["here I am"], timeout=WAIT)
    assert tab.banner.text == ""


def test_a_log_that_cannot_be_read_is_a_banner_not_a_crash(qtbot, tab: LogsTab, tmp_path: Path) -> None:
    run = a_run(tmp_path, stdout="text\n")
    path = tmp_path / "logs" / "stdout.log"
    path.unlink()
    path.mkdir()  # root may read everything but a folder
    (path / "x").write_text("x")
    tab.show_run(run)
    qtbot.waitUntil(lambda: "cannot be read" in tab.banner.text, timeout=WAIT)
    assert tab.banner.tone == "warning"


def test_without_files_on_this_machine_the_daemon_sends_the_end(
    qtbot, tab: LogsTab, window_daemon: RunningDaemon
) -> None:
    script = """
        for number in range(300):
            print(f"line {number}" if number % 100 else f"ERROR: {number}", flush=True)
        raise SystemExit(3)
    """
    install_scripted_worker(window_daemon.home, "talker", script)
    run = window_daemon.client.submit(scripted_config("talker")).run
    run = window_daemon.wait_for(run.run_id, "TERM")
    copies = tab.link.client().copies
    tab.link.is_home_here = copies._is_here = False  # as with a daemon on another machine
    tab.show_run(run)
    qtbot.waitUntil(lambda: tab.remote is not None, timeout=WAIT)
    tab.toolbar.stream_box.setCurrentIndex(tab.toolbar.stream_box.findData("stdout"))
    tab.toolbar.stream_chosen.emit("stdout")
    qtbot.waitUntil(lambda: "line 299" in shown(tab), timeout=WAIT)
    assert "daemon's machine" in tab.status.text()
    tab.toolbar.level_box.setCurrentIndex(tab.toolbar.level_box.findData(LogLevel.ERRORS))
    qtbot.waitUntil(lambda: shown(tab) == ["ERROR: 0", "ERROR: 100", "ERROR: 200"], timeout=WAIT)
    # This run itself lies here: the errors of a failed run come first, and its lifecycle can be read as lines.
    tab.toolbar.level_box.setCurrentIndex(0)
    tab.link.is_home_here = copies._is_here = True
    tab.show_run(run)
    qtbot.waitUntil(lambda: tab.file is not None, timeout=WAIT)
    assert tab.toolbar.stream_box.findData("lifecycle") >= 0


def test_lifecycle_events_read_as_lines_and_the_older_part_of_a_log_is_offered(
    qtbot, tab: LogsTab, tmp_path: Path
) -> None:
    run = a_run(tmp_path, stdout="new\n")
    (tmp_path / "logs" / "stdout.log.1").write_text("what was before\n")
    spool = LifecycleSpool(tmp_path / "run" / "lifecycle.jsonl", run.run_id)
    spool.append(LifecycleKind.CHECKPOINT_SAVED, {"step": 500, "kind": "best"})
    spool.close()
    with (tmp_path / "run" / "lifecycle.jsonl").open("a") as stream:
        stream.write("not an event\n")
    os.mkfifo(tmp_path / "logs" / "stderr.log")  # whoever opens it waits for ever
    tab.show_run(run)
    qtbot.waitUntil(lambda: shown(tab) == ["new"], timeout=WAIT)
    tab.toolbar.stream_box.setCurrentIndex(tab.toolbar.stream_box.findData("stdout.1"))
    tab.toolbar.stream_chosen.emit("stdout.1")
    qtbot.waitUntil(lambda: shown(tab) == ["what was before"], timeout=WAIT)
    tab.toolbar.stream_box.setCurrentIndex(tab.toolbar.stream_box.findData("lifecycle"))
    tab.toolbar.stream_chosen.emit("lifecycle")
    qtbot.waitUntil(lambda: len(shown(tab)) == 2, timeout=WAIT)
    qtbot.waitUntil(lambda: shown(tab)[1] == "not an event", timeout=WAIT)
    assert "checkpoint_saved   step=500  kind=best" in shown(tab)[0]
    tab.toolbar.stream_chosen.emit("stderr")
    qtbot.waitUntil(lambda: "Nothing has been written" in tab.banner.text, timeout=WAIT)
