"""Runs into archive files and back, with a window that shows how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QProgressDialog, QWidget
from shiboken6 import isValid

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id, title_of

_TELL_EVERY_BYTES = 1 << 20


class _Stopped(TrainerError):
    """The person does not want it any more."""


class Transfers(QObject):
    """Exports and imports, one window of progress for each."""

    said = Signal(str, str)  # words for people; info | warning | bad

    def __init__(self, link: DaemonLink, window: QWidget, parent: QObject) -> None:
        super().__init__(parent)
        self._link, self._window = link, window

    def export(self, targets: dict[str, Path]) -> None:
        """Write each run into its file; what was begun is removed when it is stopped."""
        progress, stopped = self._progress(self.tr("Export"), can_stop=True)

        def work(client: TrainerClient) -> int:
            written = 0
            for number, (run_id, target) in enumerate(targets.items(), start=1):
                head = f"{number}/{len(targets)} · " if len(targets) > 1 else ""

                def tell(size: int, head: str = head, target: Path = target) -> None:
                    if stopped.is_set():
                        raise _Stopped
                    self._show(progress, f"{head}{target.name} · {formats.size(size)}")

                tell(0)
                written += client.export_to(run_id, target, told=tell, every_bytes=_TELL_EVERY_BYTES)
            return written

        def done(written: int) -> None:
            _close(progress)
            (first, *more) = targets.values()
            where = first if not more else first.parent
            count = self.tr("{0} runs were exported").format(len(targets)) if more else self.tr("The run was exported")
            self.said.emit(self.tr("{0} to {1} ({2}).").format(count, where, formats.size(written)), "info")

        def failed(words: str) -> None:
            _close(progress)
            if stopped.is_set():
                self.said.emit(self.tr("The export was stopped; half an archive was not left behind."), "info")
            else:
                self.said.emit(self.tr("The export failed: {0}").format(words), "bad")

        self._link.call(work, owner=self, done=done, failed=failed)

    def take_in(self, files: Sequence[Path]) -> None:
        """Import archive files; one that is refused does not keep the others out."""
        if not files:
            return
        progress, stopped = self._progress(self.tr("Import"), can_stop=len(files) > 1)

        def work(client: TrainerClient) -> tuple[list[pb.Run], list[str]]:
            taken: list[pb.Run] = []
            refused: list[str] = []
            for number, file in enumerate(files, start=1):
                if stopped.is_set():
                    break
                self._show(progress, f"{number}/{len(files)} · {file.name}")
                try:
                    taken.append(client.import_archive(file))
                except DaemonUnreachable:
                    raise
                except (TrainerError, OSError) as error:
                    refused.append(f"{file.name}: {error}")
            return taken, refused

        def done(outcome: tuple[list[pb.Run], list[str]]) -> None:
            _close(progress)
            self._tell_imported(*outcome)

        def failed(words: str) -> None:
            _close(progress)
            self.said.emit(self.tr("The import failed: {0}").format(words), "bad")

        self._link.call(work, owner=self, done=done, failed=failed)

    def _tell_imported(self, taken: list[pb.Run], refused: list[str]) -> None:
        words = ""
        if len(taken) == 1:
            words = self.tr("Imported {0} · {1}.").format(title_of(taken[0]), short_id(taken[0].run_id))
        elif taken:
            words = self.tr("Imported {0} runs.").format(len(taken))
        if refused:
            more = self.tr(" (and {0} more)").format(len(refused) - 1) if len(refused) > 1 else ""
            words = " ".join(filter(None, (words, self.tr("Not imported: {0}").format(refused[0]) + more)))
        if words:
            self.said.emit(words, "bad" if refused else "info")

    # -- the window of progress

    def _progress(self, title: str, *, can_stop: bool) -> tuple[QProgressDialog, threading.Event]:
        progress = QProgressDialog(self._window)
        progress.setObjectName("transfer_progress")
        progress.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        progress.setWindowTitle(title)
        progress.setLabelText(self.tr("The daemon gathers the files…"))
        progress.setAccessibleName(title)
        progress.setRange(0, 0)  # nobody knows how large a compressed archive becomes
        progress.setAutoClose(False)
        progress.setAutoReset(False)
        progress.setMinimumDuration(500)
        progress.setMinimumWidth(progress.fontMetrics().averageCharWidth() * 60)
        stopped = threading.Event()
        if can_stop:
            progress.canceled.connect(stopped.set)
        else:
            progress.setCancelButton(None)
        progress.setValue(0)
        return progress, stopped

    def _show(self, progress: QProgressDialog, text: str) -> None:
        """From any thread."""
        show: Callable[[], None] = lambda: progress.setLabelText(text)  # noqa: E731
        self._link.background.in_window(show, owner=progress)


def _close(progress: QProgressDialog) -> None:
    if isValid(progress):  # the person may have closed it
        progress.close()
