"""An uncaught exception becomes a report that can be copied; the window keeps running."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gym_gui.ui.shell.crash_dialog import CrashReporter, FaultLog, ReportDialog
from PySide6.QtWidgets import QApplication, QWidget


@pytest.fixture
def reporter(qtbot, themed):
    window = QWidget()
    qtbot.addWidget(window)
    reporter = CrashReporter(window)
    reporter.install()
    yield reporter
    reporter.uninstall()


def dialogs(reporter: CrashReporter) -> list[ReportDialog]:
    return reporter.parent().findChildren(ReportDialog)


def raise_and_tell(message: str) -> None:
    """As the interpreter does it for a slot that raises."""
    try:
        raise RuntimeError(message)
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.expects_log("uncaught exception in")
def test_an_error_of_a_slot_is_shown_with_everything_a_repairer_needs(qtbot, reporter) -> None:
    raise_and_tell("the abacus is broken")
    qtbot.waitUntil(lambda: len(dialogs(reporter)) == 1, timeout=10_000)
    (dialog,) = dialogs(reporter)
    report = dialog.text.toPlainText()
    assert "the abacus is broken" in report
    assert "raise_and_tell" in report, "the traceback says where"
    assert "Python 3" in report
    dialog.copy()
    assert QApplication.clipboard().text() == report


@pytest.mark.expects_log("uncaught exception in")
def test_the_same_error_at_every_tick_is_shown_once(qtbot, reporter) -> None:
    for _ in range(3):
        raise_and_tell("again")
    raise_and_tell("another")
    qtbot.waitUntil(lambda: len(dialogs(reporter)) == 2, timeout=10_000)
    qtbot.wait(50)
    assert len(dialogs(reporter)) == 2


@pytest.mark.expects_log("uncaught exception in")
def test_an_error_of_a_thread_is_shown_in_the_window(qtbot, reporter) -> None:
    thread = threading.Thread(target=lambda: 1 / 0, name="a counting thread")
    thread.start()
    thread.join()
    qtbot.waitUntil(lambda: len(dialogs(reporter)) == 1, timeout=10_000)
    assert "a counting thread" in dialogs(reporter)[0].text.toPlainText()


def test_the_last_output_of_a_torn_process_is_kept_for_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "window-faults.log"
    script = (
        "import faulthandler, os, signal, sys\nfrom pathlib import Path\n"
        "from gym_gui.ui.shell.crash_dialog import FaultLog\n"
        "FaultLog(Path(sys.argv[1])).open()\nos.kill(os.getpid(), signal.SIGSEGV)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, check=False, timeout=60)
    assert done.returncode < 0
    log = FaultLog(path)
    log.open()
    try:
        assert log.previous is not None
        assert "Segmentation fault" in log.previous.read_text()
    finally:
        log.close()
    assert not path.exists(), "an orderly end leaves nothing to report"


def test_without_a_place_for_the_log_the_window_still_opens(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = FaultLog(tmp_path / "file" / "window-faults.log")
    log.open()
    log.close()
    assert log.previous is None
