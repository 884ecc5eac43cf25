"""Runs as one HTML page: asks where to, writes it in a thread with the code of `mosaic report`, opens it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.run_command import command_of_run
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

MOST_RUNS = 200
"""Of a page that somebody still reads"""


class Reports(QObject):
    """Writes pages about runs."""

    said = Signal(str, str)  # words for people; info | warning | bad

    def __init__(self, link: DaemonLink, window: QWidget, parent: QObject) -> None:
        super().__init__(parent)
        self._link, self._window = link, window
        self.opens_pages = True
        """Show a page that was written in the browser"""

    def ask(self, runs: Sequence[pb.Run]) -> None:
        """Ask where to, then write."""
        if len(runs) > MOST_RUNS:
            words = self.tr("A report has at most {0} runs; these are {1}.")
            self.said.emit(words.format(MOST_RUNS, formats.count(len(runs))), "warning")
            return
        dialog = QFileDialog(self._window, self.tr("Write a report"))
        dialog.setObjectName("report_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilter(self.tr("Web page (*.html)"))
        dialog.selectFile(f"mosaic-report-{short_id(runs[0].run_id)}.html")
        wanted = list(runs)
        dialog.fileSelected.connect(lambda name: self.write(wanted, _with_suffix(Path(name))))
        dialog.open()

    def write(self, runs: Sequence[pb.Run], path: Path) -> None:
        """In a thread: with many runs and figures it takes some seconds."""

        def work(client: TrainerClient) -> int:
            from gym_gui.services.analytics.baselines import baselines_for
            from gym_gui.services.analytics.html_report import write_html_report

            # What is known: a window does not start runs that nobody asked for.
            baselines = baselines_for(client, runs, measure=False)
            return write_html_report(client, runs, path, commands=_commands_of(runs), baselines=baselines)

        self.said.emit(self.tr("The report is being written…"), "info")
        self._link.call(
            work,
            owner=self,
            done=lambda size: self._written(path, size),
            failed=lambda words: self.said.emit(self.tr("The report was not written: {0}").format(words), "bad"),
        )

    def _written(self, path: Path, size: int) -> None:
        self.said.emit(self.tr("The report was written: {0} ({1}).").format(path, formats.size(size)), "info")
        if self.opens_pages:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))


def _commands_of(runs: Sequence[pb.Run]) -> dict[str, str]:
    """What does each run again, where its config can be read here."""
    commands = {}
    for run in runs:
        try:
            commands[run.run_id] = command_of_run(run).text
        except (OSError, ValueError):  # another machine's, or gone: the page then does without
            continue
    return commands


def _with_suffix(path: Path) -> Path:
    return path if path.suffix.lower() in (".html", ".htm") else path.with_name(f"{path.name}.html")
