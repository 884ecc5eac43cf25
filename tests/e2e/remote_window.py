"""A window on a daemon of another machine: every tab, form and workspace is opened, and what it shows is printed.

    python tests/e2e/remote_window.py ADDRESS TOKEN_FILE CA TRAINED SWEEP      (`test_remote_journey.py` starts it)

Prints one JSON object: what each part shows, as text.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gym_gui import app
from gym_gui.ui.shell.workspaces import MANAGEMENT, PLAY, POLICY
from gym_gui.ui.theme import ThemeChoice
from gym_gui.wording.commands import connect_options
from mosaic_wire.paths import Home
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QLabel, QWidget


def turn(milliseconds: int = 30) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def wait(until: Callable[[], Any], what: str, timeout_s: float = 90) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := until()):
        if time.monotonic() > deadline:
            raise SystemExit(f"it did not come to this: {what}")
        turn()
    return found


def text_of(widget: QWidget) -> str:
    """What the labels of a part say."""
    return " | ".join(label.text() for label in widget.findChildren(QLabel) if label.isVisibleTo(widget))


class Tour:
    """A window on the daemon, and what was seen in it."""

    def __init__(self, address: str, token_file: str, ca: str) -> None:
        application = QApplication(sys.argv[:1])
        token = Path(token_file).read_text().strip()
        remote = app.Remote(address, token, Path(ca), options=connect_options(address, Path(ca), Path(token_file)))
        self.parts = app.build_window(application, Home(Path("unused")), remote, ThemeChoice.LIGHT)
        self.window, self.link = self.parts.window, self.parts.link
        self.window.resize(1280, 900)
        self.window.show()
        self.link.start()
        wait(lambda: self.link.is_connected, "the window is connected")
        self.seen: dict[str, Any] = {"title": self.window.windowTitle()}
        self.page: Any = None

    def open_run(self, run_id: str) -> None:
        self.window.open_run(run_id)
        self.page = wait(lambda: self.window.runs.page, "the page of the run")
        wait(lambda: self.page.run is not None and self.page.run.run_id == run_id, "the run is shown")

    def open_tab(self, name: str) -> Any:
        wait(lambda: name in self.page.tab_names(), f"there is a tab {name}")
        self.page.open_tab(name)
        return wait(lambda: self.page.tab(name), f"{name} is built")

    def see_texts(self) -> None:
        overview = self.open_tab("overview")
        reading = wait(lambda: overview._reading and overview._reading.manifest, "the manifest is in Overview")
        self.seen["overview"] = json.dumps(reading.to_json())
        logs = self.open_tab("logs")
        wait(lambda: logs._source.count > 0, "Logs has lines")
        self.seen["logs"] = "\n".join(line.text for line in logs._source.read(0, 50))
        logs.toolbar.stream_chosen.emit("stderr")
        turn(300)
        self.seen["empty log"] = f"{logs.banner.text} | {logs.status.text()}"
        tensorboard = self.open_tab("tensorboard")
        wait(lambda: tensorboard.banner.text, "TensorBoard says where it can be opened")
        self.seen["tensorboard"] = tensorboard.banner.text
        for name in ("live", "charts", "story"):
            self.open_tab(name)
            turn(300)

    def see_files(self) -> None:
        files = self.open_tab("files")
        roots = wait(lambda: files.model.roots, "Files has folders")
        children = wait(lambda: roots[0].children, "the run folder is listed")
        self.seen["files"] = [child.entry.name for child in children if child.entry is not None]
        manifest = next(child for child in children if child.entry and child.entry.name == "analytics.json")
        files.tree.setCurrentIndex(files.model.index_of(manifest))
        wait(lambda: "run_id" in files.preview.text.toPlainText(), "the manifest is previewed")
        self.seen["files banner"] = files.banner.text
        replay = self.open_tab("replay")
        path = wait(lambda: replay._found.videos, "Replay lists the video")[0].path
        wait(lambda: path.stat().st_mode & 0o777, "the video is fetched")
        self.seen["video"] = path.read_bytes().decode()

    def see_study(self) -> None:
        optuna = self.open_tab("optuna")
        wait(lambda: "trial" in optuna.panel.summary.text().lower(), "Optuna shows the study")
        self.seen["optuna"] = optuna.panel.summary.text()

    def see_form(self, run_id: str) -> None:
        run, forms = self.link.client().get(run_id), self.window.forms
        wait(lambda: forms.entries, "the workers are known")
        form: Any = forms._open("clone", run.worker_type, run)
        wait(lambda: "Clone of" in form.title.text(), "the form has the config of the run")
        self.seen["clone"] = form.configs()[0]["metadata"]["worker"]["config"]["total_timesteps"]
        form.side.setCurrentWidget(form.side.command_preview)
        self.seen["command"] = wait(lambda: form.side.command_preview.text, "the command is shown")
        answers: list[tuple[bool, str]] = []
        form.show_dry_run = lambda good, text: answers.append((good, text))
        form.start_dry_run()
        self.seen["dry run"] = list(wait(lambda: answers, "the dry run answers")[0])
        form.sets.refresh()
        self.seen["sets"] = [entry.name for entry in wait(lambda: form.sets._sets, "the form lists the sets")]
        form.close()

    def see_workspaces(self) -> None:
        for name in (PLAY, POLICY):
            self.window.show_workspace(name)
            part = wait(lambda name=name: self.window._built.get(name), f"{name} is built")
            turn(300)
            self.seen[name] = text_of(part)
        self.window.show_workspace(MANAGEMENT)
        management: Any = self.window._built[MANAGEMENT]
        table: Any = management.show_page("sets")
        self.seen["managed sets"] = sorted(wait(lambda: table._sets, "Management lists the sets", 120))


def main(address: str, token_file: str, ca: str, trained: str, sweep: str) -> int:
    tour = Tour(address, token_file, ca)
    tour.open_run(trained)
    tour.see_texts()
    tour.see_files()
    tour.open_run(sweep)
    tour.see_study()
    tour.see_form(trained)
    tour.see_workspaces()
    tour.parts.close()
    sys.stdout.write(json.dumps(tour.seen) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
