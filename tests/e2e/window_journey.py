"""A person's first hour with the window, driven for real: `test_window.py` runs it in a process of its own under Xvfb.

    python tests/e2e/window_journey.py HOME PICTURES [--hasty]

Writes one line for each thing that happened; ends with code 0 when everything did. With --hasty the pictures are taken
sooner than a user would look at them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from gym_gui import app
from gym_gui.app import GarbageCollection
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.local_daemon import running_record, wait_for_end
from gym_gui.ui.shell.crash_dialog import CrashReporter
from gym_gui.ui.shell.workspaces import MANAGEMENT, PLAY, POLICY, RUNS
from gym_gui.ui.theme import ThemeChoice
from mosaic_wire.paths import Home
from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtGui import QAction
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QCheckBox, QDialog, QToolButton, QTreeWidget, QWidget

HASTY_MS = 150
SIZES = {"small": (1280, 800), "large": (1920, 1080)}


class BrokenOff(Exception):
    """It did not go on as it should."""


class Journey:
    """The window, a person's hands, and a camera."""

    def __init__(self, home: Home, pictures: Path, *, is_hasty: bool = False) -> None:
        self.is_hasty = is_hasty
        self.application = QApplication(sys.argv[:1])
        self.home, self.pictures = home, pictures
        self.taken = 0
        self.parts = app.build_window(self.application, home, None, ThemeChoice.LIGHT)
        self.window = self.parts.window
        self.garbage = GarbageCollection(self.application)
        self.garbage.start()
        self.reporter = CrashReporter(self.window)
        self.reporter.install()
        self.crashes: list[str] = []
        self.reporter.caught.connect(lambda line, report: self.crashes.append(report))

    # -- hands and eyes

    def wait(self, until: Callable[[], object], what: str, timeout_s: float = 400) -> None:
        deadline = time.monotonic() + timeout_s
        while not until():
            if self.crashes:
                raise BrokenOff(f"the window crashed while waiting: {what}\n{self.crashes[0]}")
            if time.monotonic() > deadline:
                self.picture("too-late")
                raise BrokenOff(f"it did not come to this: {what}")
            self.turn(30)
        self.note(what)

    def note(self, what: str) -> None:
        sys.stdout.write(f"ok: {what}\n")
        sys.stdout.flush()

    def turn(self, milliseconds: int) -> None:
        loop = QEventLoop()
        QTimer.singleShot(milliseconds, loop.quit)
        loop.exec()

    def picture(self, name: str, settle_ms: int = 400) -> None:
        """What is on the screen, dialogs and menus included."""
        self.turn(min(settle_ms, HASTY_MS) if self.is_hasty else settle_ms)
        frame = self.window.geometry()
        for other in self.application.topLevelWidgets():
            if other.isVisible() and other.isWindow():
                frame = frame.united(other.geometry())
        self.taken += 1
        shot = self.application.primaryScreen().grabWindow(0, frame.x(), frame.y(), frame.width(), frame.height())
        shot.save(str(self.pictures / f"{self.taken:02}-{name}.png"))

    def click(self, widget: QWidget | None) -> None:
        assert widget is not None, "there is no such button"
        assert widget.isVisible(), f"{widget.objectName()} cannot be seen"
        assert widget.isEnabled(), f"{widget.objectName()} cannot be clicked"
        QTest.mouseClick(widget, Qt.MouseButton.LeftButton)

    def head_button(self, name: str) -> QToolButton | None:
        assert self.window.runs.page is not None
        return self.window.runs.page.findChild(QToolButton, f"header_{name}")

    def choose_in_menu(self, name: str) -> None:
        """An entry of the Run menu, as the menu is made for the chosen run."""
        self.window.menu.refresh_run_menu()
        action = next(action for action in self.window.menu.run_menu.actions() if action.objectName() == name)
        assert action.isEnabled(), f"{action.text()}: {action.toolTip()}"
        action.trigger()

    def dialog(self, name: str) -> QDialog:
        found = [dialog for dialog in self.window.findChildren(QDialog, name) if dialog.isVisible()]
        self.wait(lambda: bool(found) or self.window.findChild(QDialog, name), f"{name} opens")
        dialog = found[0] if found else self.window.findChild(QDialog, name)
        assert isinstance(dialog, QDialog)
        return dialog

    def size(self, name: str) -> None:
        self.window.show_workspace(RUNS)
        self.window.setGeometry(0, 0, *SIZES[name])
        self.window.runs.arrange_for(SIZES[name][0])
        self.turn(300)

    # -- the journey

    def begin(self) -> None:
        window, link = self.window, self.parts.link
        window.show()
        self.size("small")
        assert window.isVisible(), "the window is there before its data"
        link.start()
        self.wait(lambda: link.is_connected, "the window started a daemon and is connected")
        self.wait(lambda: window.first_start.isVisible(), "the first-start page greets")
        self.picture("first-start")

    def train(self) -> str:
        window = self.window
        self.click(window.first_start.train_button)
        self.wait(lambda: window.runs.page is not None and window.runs.page.run is not None, "the run appears")
        page = window.runs.page
        assert page is not None
        assert page.run is not None
        run_id: str = page.run.run_id
        self.wait(lambda: page.tab("live") is not None and page.tab("live").isVisible(), "its live tab is open")
        self.wait(lambda: window.runs_panel.model.position_of(run_id) is not None, "it is in the list")
        self.wait(lambda: self.frame_is_drawn(), "its frame is drawn")
        self.picture("live", 0)
        page.open_tab("charts")
        self.wait(lambda: self.points() > 3, "the live curve has points")
        points = self.points()
        self.wait(lambda: self.points() > points, "the live curve moves")
        self.picture("live-charts", 0)
        return run_id

    def points(self) -> int:
        """Of the curve of returns on the screen."""
        assert self.window.runs.page is not None
        charts = self.window.runs.page.tab("charts")
        board = charts.board if charts is not None else None  # type: ignore[attr-defined]
        figure = board.figures.get("charts/episodic_return") if board is not None else None
        return len(figure.lines[-1].x) if figure is not None and figure.lines else 0

    def frame_is_drawn(self) -> bool:
        assert self.window.runs.page is not None
        live = self.window.runs.page.tab("live")
        return bool(live is not None and live.fastlane.frames_shown > 0)  # type: ignore[attr-defined]

    def pause_and_resume(self) -> None:
        page = self.window.runs.page
        assert page is not None
        self.click(self.head_button("run_pause"))
        self.wait(lambda: page.run is not None and page.run.status == "PAUSE", "it is paused")
        self.picture("paused")
        self.click(self.head_button("run_resume"))
        self.wait(lambda: page.run is not None and page.run.status == "EXEC", "it goes on")
        self.wait(lambda: page.run is not None and page.run.outcome == "completed", "it finished")
        self.wait(lambda: bool(self.window.toasts.shown), "a note says so")
        for tab in page.tab_names():
            page.open_tab(tab)
            self.picture(f"finished-{tab}", 1200)

    def evaluate(self) -> str:
        window, page = self.window, self.window.runs.page
        assert page is not None
        for toast in window.toasts.shown:
            toast.dismiss()
        self.click(self.head_button("run_evaluate"))
        form = self.dialog("policy_form")
        self.wait(lambda: form.table.current is not None, "its newest checkpoint is chosen")  # type: ignore[attr-defined]
        form.fields["episodes"].set_value(5)  # type: ignore[attr-defined]
        box = form.findChild(QCheckBox, "video")
        assert box is not None
        box.setChecked(True)
        self.picture("evaluate-form")
        self.click(form.findChild(QWidget, "submit"))
        self.wait(lambda: len(form.results.returns) == 5, "five episodes were played")  # type: ignore[attr-defined]
        self.wait(lambda: page.run is not None and page.run.outcome == "completed", "the evaluation finished")
        self.picture("evaluated", 800)
        form.close()
        assert page.run is not None
        return page.run.run_id

    def replay(self) -> None:
        page = self.window.runs.page
        assert page is not None
        page.open_tab("replay")
        videos = page.findChild(QTreeWidget, "videos_list")
        self.wait(lambda: videos is not None and videos.topLevelItemCount() > 0, "the evaluation left a video")
        player = page.tab("replay").player  # type: ignore[union-attr]
        self.wait(lambda: player.count > 10, "the video is opened")
        player.play()
        self.wait(lambda: player.position > 5, "it plays")
        self.picture("replay")
        player.pause()

    def clone(self, run_id: str) -> None:
        window, page = self.window, self.window.runs.page
        assert page is not None
        window.open_run(run_id)
        self.wait(lambda: page.run is not None and page.run.run_id == run_id, "the first run is open again")
        before = window.runs_panel.model.total
        self.choose_in_menu_when_chosen("run_clone")
        self.wait(lambda: bool(self.forms()), "the form opens with its values")
        form = self.forms()[0]
        self.picture("clone-form", 1200)
        self.click(form.findChild(QWidget, "submit"))
        self.wait(lambda: window.runs_panel.model.total > before, "the clone is queued")
        self.wait(lambda: page.run is not None and page.run.run_id != run_id, "and its page is open")
        self.choose_in_menu_when_chosen("run_cancel")
        self.wait(lambda: page.run is not None and page.run.status == "TERM", "it is cancelled again")

    def forms(self) -> list[QDialog]:
        return [
            form for form in self.window.findChildren(QDialog) if form.isVisible() and form.property("kind") == "clone"
        ]

    def choose_in_menu_when_chosen(self, name: str) -> None:
        page = self.window.runs.page
        assert page is not None
        assert page.run is not None
        run_id = page.run.run_id
        panel = self.window.runs_panel
        self.wait(lambda: [run.run_id for run in panel.selected_runs()] == [run_id], "the list follows the page")
        self.choose_in_menu(name)

    def archive(self, run_id: str) -> None:
        window = self.window
        window.open_run(run_id)
        page = window.runs.page
        assert page is not None
        self.wait(lambda: page.run is not None and page.run.run_id == run_id, "back at the first run")
        self.choose_in_menu_when_chosen("run_archive")
        self.wait(lambda: window.runs_panel.model.position_of(run_id) is None, "it is archived and gone from the list")
        self.picture("archived")

    def look_around(self, run_id: str) -> None:
        """Every workspace, light and dark, small and large."""
        window = self.window
        window.open_run(run_id)
        assert window.runs.page is not None
        window.runs.page.open_tab("live")
        for theme in ("dark", "light"):
            action = window.findChild(QAction, f"theme_{theme}")
            assert action is not None
            action.trigger()
            for size in SIZES:
                self.size(size)
                for name in (RUNS, PLAY, POLICY, MANAGEMENT):
                    window.show_workspace(name)
                    self.picture(f"{name}-{theme}-{size}", 1500)
        window.show_workspace(RUNS)

    def lose_the_daemon(self) -> None:
        record = running_record(self.home)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        banner = self.window.connection_banner
        self.wait(lambda: banner.isVisible(), "a banner says that the daemon does not answer")
        self.picture("daemon-lost", 0)
        self.wait(lambda: self.parts.link.is_connected and not banner.isVisible(), "it is back without a click")

    def end(self) -> None:
        self.window.show_shortcuts()
        self.picture("shortcuts")
        self.parts.close()
        record = running_record(self.home)
        assert record is not None, "closing the window stops nothing"
        with TrainerClient.connect(self.home) as client:
            client.shutdown()
        assert wait_for_end(record, 30)
        if self.crashes:
            raise BrokenOff(self.crashes[0])
        self.note("the window is closed, and the daemon was still there")


def main() -> None:
    home, pictures = Home(Path(sys.argv[1])), Path(sys.argv[2])
    journey = Journey(home, pictures, is_hasty="--hasty" in sys.argv)
    arrived = False
    try:
        go(journey)
        arrived = True
    finally:
        if not arrived:  # its threads would keep a broken journey waiting for ever
            traceback.print_exc()
            journey.picture("broken-off", 0)
            sys.stderr.flush()
            os._exit(1)


def go(journey: Journey) -> None:
    journey.begin()
    run_id = journey.train()
    journey.pause_and_resume()
    journey.evaluate()
    journey.replay()
    journey.clone(run_id)
    journey.archive(run_id)
    journey.look_around(run_id)
    journey.lose_the_daemon()
    journey.end()


if __name__ == "__main__":
    main()
