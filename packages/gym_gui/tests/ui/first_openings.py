"""Opens everything a window has for the first time, as a person would: `test_first_openings.py`.

    python first_openings.py HOME RUN_ID

A process of its own, because an opening is a first one only once. Prints a JSON object: what was opened → what the
window's thread waited for meanwhile. benchmarks/gui_event_loop.py opens the same and measures how long it takes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gym_gui import app
from gym_gui.app import GarbageCollection
from gym_gui.testing import blocking_calls
from gym_gui.ui.shell.workspaces import MANAGEMENT, RUNS, WORKSPACES
from gym_gui.ui.theme import ThemeChoice
from mosaic_wire.paths import Home
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QDialog, QMessageBox

TIMEOUT_S = 60
SETTLE_MS = 250
"""How long what was opened is looked at: what it asks for arrives, is laid out and painted"""


class Openings:
    def __init__(self, home: Home) -> None:
        self.application = QApplication(sys.argv[:1])
        self.parts = app.build_window(self.application, home, None, ThemeChoice.LIGHT)
        self.window = self.parts.window
        self.garbage = GarbageCollection(self.application)
        self.garbage.start()
        self.results: dict[str, list[str]] = {}

    def turn(self, milliseconds: int) -> None:
        loop = QEventLoop()
        QTimer.singleShot(milliseconds, loop.quit)
        loop.exec()

    def wait(self, until: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not until():
            assert time.monotonic() < deadline, f"it did not come to this: {what}"
            self.turn(10)

    def measure(self, name: str, open_it: Callable[[], object], is_there: Callable[[], object] = lambda: True) -> None:
        with blocking_calls() as self.results[name]:
            self.open(name, open_it, is_there)

    def open(self, name: str, open_it: Callable[[], object], is_there: Callable[[], object]) -> None:
        QTimer.singleShot(0, lambda: open_it())  # in a slot, as a click comes
        self.turn(10)
        self.wait(is_there, name)
        self.turn(SETTLE_MS)

    def begin(self) -> None:
        self.window.show()
        self.parts.link.start()
        self.wait(lambda: self.parts.link.is_connected and self.window.forms.entries, "the window has its data")
        self.wait(lambda: self.parts.warm_up.is_finished, "all is loaded")
        self.turn(SETTLE_MS)

    def open_run(self, run_id: str) -> None:
        window = self.window
        self.measure(
            "run page",
            lambda: window.open_run(run_id),
            lambda: window.runs.page is not None and window.runs.page.run is not None,
        )
        page = window.runs.page
        assert page is not None
        for name in page.tab_names():
            self.measure(f"tab {name}", lambda name=name: page.open_tab(name), lambda name=name: page.tab(name))

    def open_workspaces(self) -> None:
        for workspace in WORKSPACES:
            name = workspace.name
            self.measure(f"workspace {name}", lambda name=name: self.window.show_workspace(name))
        # Only now: what the warm-up has loaded must not come from an import of this script.
        from gym_gui.ui.management.panel import DISK, FILTERS, SETS, WORKERS, ManagementPanel

        panel = self.window._built[MANAGEMENT]
        assert isinstance(panel, ManagementPanel)
        for name in (WORKERS, SETS, DISK, FILTERS):
            self.measure(f"page {name}", lambda name=name: panel.show_page(name))
        self.window.show_workspace(RUNS)

    def open_dialogs(self, run_id: str) -> None:
        window = self.window
        run = window.runs_panel.model.run(run_id)
        self.measure_dialog("settings", window.show_settings, then=self.open_daemon_settings)
        self.measure_dialog("shortcuts", window.show_shortcuts)
        self.measure_dialog("about", window.show_about)
        self.measure_dialog("import", window.import_runs)
        self.measure_dialog("form train", lambda: window.forms.new_run("cleanrl"))
        for kind in ("clone", "resume", "evaluate"):
            self.measure_dialog(f"form {kind}", lambda kind=kind: window.forms.open(kind, run))
        self.measure_dialog("form script", window.new_script_run)

    def dialogs(self) -> list[QDialog]:
        return [dialog for dialog in self.window.findChildren(QDialog) if dialog.isVisible()]

    def measure_dialog(
        self, name: str, open_it: Callable[[], object], then: Callable[[QDialog], None] | None = None
    ) -> None:
        self.measure(name, open_it, self.dialogs)
        for dialog in self.dialogs():
            if then is not None:
                then(dialog)
            dialog.close() if not isinstance(dialog, QMessageBox) else dialog.reject()
        self.wait(lambda: not self.dialogs(), f"{name} is closed")

    def open_daemon_settings(self, dialog: QDialog) -> None:
        pages = dialog.pages  # type: ignore[attr-defined]
        self.measure("settings of the daemon", lambda: pages.setCurrentIndex(1), lambda: dialog.is_read)  # type: ignore[attr-defined]

    def open_everything(self, run_id: str) -> None:
        self.begin()
        self.open_run(run_id)
        self.open_workspaces()
        self.open_dialogs(run_id)
        self.garbage.stop()
        self.parts.close()
        sys.stdout.write(json.dumps(self.results) + "\n")


if __name__ == "__main__":
    Openings(Home(Path(sys.argv[1]))).open_everything(sys.argv[2])
