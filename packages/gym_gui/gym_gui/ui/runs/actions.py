"""Actions on runs for every menu: labels, conditions, and what they do.

    menu.addActions(actions.actions_for(panel.selected_runs(), parent=menu))
    actions.form_requested.connect(forms.open)       clone, resume, extend, evaluate
    actions.reported.connect(banner.set_message)     the outcome, for users

An action that is not possible now is disabled, and its tool tip gives the reason.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QObject, Qt, QUrl, Signal
from PySide6.QtGui import QAction, QDesktopServices, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QFileDialog, QMessageBox, QProgressDialog, QWidget
from shiboken6 import isValid

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.workers.train_request import CommandText, command_of_run
from gym_gui.ui.runs.allowed_actions import RunAction, possible
from gym_gui.ui.runs.edit_dialog import EditDialog
from gym_gui.ui.widgets.parts import ask_for_file, named
from gym_gui.wording import formats
from gym_gui.wording.commands import with_options
from gym_gui.wording.run_view import continued_by, short_id, title_of

MAX_RUNS = 200
"""Limit of a readable report"""


class Reports(QObject):
    """Writes reports about runs."""

    reported = Signal(str, str)  # a message for users; info | warning | bad

    def __init__(self, link: DaemonLink, window: QWidget, parent: QObject) -> None:
        super().__init__(parent)
        self._link, self._window = link, window
        self.opens_pages = True
        """Whether to open a finished report in the browser"""

    def ask(self, runs: Sequence[pb.Run]) -> None:
        """Ask for a file name, then write the report."""
        if len(runs) > MAX_RUNS:
            text = self.tr("A report has at most {0} runs; these are {1}.")
            self.reported.emit(text.format(MAX_RUNS, formats.count(len(runs))), "warning")
            return
        ask_for_file(
            self._window,
            self.tr("Write a report"),
            self.tr("Web page (*.html *.htm)"),
            lambda path: self.write(list(runs), path),
            name="report_dialog",
            save_as=f"mosaic-report-{short_id(runs[0].run_id)}.html",
        )

    def write(self, runs: Sequence[pb.Run], path: Path) -> None:
        """Write the report in a thread: with many runs it takes some seconds."""

        def work(client: TrainerClient) -> int:
            from gym_gui.services.analytics.baselines import baselines_for
            from gym_gui.services.analytics.html_report import write_html_report

            # Use known baselines only: the window does not start runs on its own.
            baselines = baselines_for(client, runs, measure=False)
            return write_html_report(client, runs, path, commands=_commands_of(client, runs), baselines=baselines)

        self.reported.emit(self.tr("The report is being written…"), "info")
        self._link.call(
            work,
            owner=self,
            done=lambda size: self._written(path, size),
            failed=lambda text: self.reported.emit(self.tr("The report was not written: {0}").format(text), "bad"),
        )

    def _written(self, path: Path, size: int) -> None:
        self.reported.emit(self.tr("The report was written: {0} ({1}).").format(path, formats.size(size)), "info")
        if self.opens_pages:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))


def _commands_of(client: TrainerClient, runs: Sequence[pb.Run]) -> dict[str, str]:
    """Return the command line of each run whose config can be read."""
    commands = {}
    for run in runs:
        try:
            commands[run.run_id] = command_of_run(client.local(run, "config/*")).text
        except (OSError, ValueError):  # deleted: the report omits it
            continue
    return commands


_REPORT_EVERY_BYTES = 1 << 20


class _Stopped(TrainerError):
    """The user cancelled the transfer."""


class Transfers(QObject):
    """Exports and imports, each with a progress dialog."""

    reported = Signal(str, str)  # a message for users; info | warning | bad

    def __init__(self, link: DaemonLink, window: QWidget, parent: QObject) -> None:
        super().__init__(parent)
        self._link, self._window = link, window

    def export(self, targets: dict[str, Path]) -> None:
        """Export each run to its file; a cancelled export leaves no partial archive."""
        progress, stopped = self._progress(self.tr("Export"), can_stop=True)

        def work(client: TrainerClient) -> tuple[int, set[str]]:
            written = 0
            for number, (run_id, target) in enumerate(targets.items(), start=1):
                head = f"{number}/{len(targets)} · " if len(targets) > 1 else ""

                def on_progress(size: int, head: str = head, target: Path = target) -> None:
                    if stopped.is_set():
                        raise _Stopped
                    self._show(progress, f"{head}{target.name} · {formats.size(size)}")

                on_progress(0)
                written += client.export_to(run_id, target, on_progress=on_progress, every_bytes=_REPORT_EVERY_BYTES)
            return written, {client.get(run_id).parent.run_id for run_id in targets} - {"", *targets}

        def done(outcome: tuple[int, set[str]]) -> None:
            _close(progress)
            written, earlier = outcome
            (first, *more) = targets.values()
            where = first if not more else first.parent
            count = self.tr("{0} runs were exported").format(len(targets)) if more else self.tr("The run was exported")
            text = self.tr("{0} to {1} ({2}).").format(count, where, formats.size(written))
            if earlier:
                lacking = self.tr("It lacks the beginning of the curves: also export {0}.")
                text += " " + lacking.format(", ".join(map(short_id, sorted(earlier))))
            self.reported.emit(text, "info")

        def failed(text: str) -> None:
            _close(progress)
            if stopped.is_set():
                self.reported.emit(self.tr("The export was stopped; no partial archive is left."), "info")
            else:
                self.reported.emit(self.tr("The export failed: {0}").format(text), "bad")

        self._link.call(work, owner=self, done=done, failed=failed)

    def ingest(self, files: Sequence[Path]) -> None:
        """Import archive files; continue after one that is refused."""
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
            self._report_imported(*outcome)

        def failed(text: str) -> None:
            _close(progress)
            self.reported.emit(self.tr("The import failed: {0}").format(text), "bad")

        self._link.call(work, owner=self, done=done, failed=failed)

    def _report_imported(self, taken: list[pb.Run], refused: list[str]) -> None:
        text = ""
        if len(taken) == 1:
            text = self.tr("Imported {0} · {1}.").format(title_of(taken[0]), short_id(taken[0].run_id))
        elif taken:
            text = self.tr("Imported {0} runs.").format(len(taken))
        if refused:
            more = self.tr(" (and {0} more)").format(len(refused) - 1) if len(refused) > 1 else ""
            text = " ".join(filter(None, (text, self.tr("Not imported: {0}").format(refused[0]) + more)))
        if text:
            self.reported.emit(text, "bad" if refused else "info")

    # -- the window of progress

    def _progress(self, title: str, *, can_stop: bool) -> tuple[QProgressDialog, threading.Event]:
        progress = named(QProgressDialog(self._window), "transfer_progress", title)
        progress.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        progress.setWindowTitle(title)
        progress.setLabelText(self.tr("The daemon collects the files…"))
        progress.setRange(0, 0)  # no one knows how large a compressed archive becomes
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
    if isValid(progress):  # the user may have closed it
        progress.close()


Runs = Sequence[pb.Run]

_MENU = (
    (RunAction.OPEN, RunAction.COMPARE),
    (RunAction.PAUSE, RunAction.RELEASE, RunAction.RESUME, RunAction.CANCEL),
    (RunAction.EXTEND, RunAction.CLONE, RunAction.EVALUATE, RunAction.WATCH),
    (RunAction.EDIT, RunAction.FOLDER, RunAction.COMMAND, RunAction.COPY_ID),
    (RunAction.ARCHIVE, RunAction.UNARCHIVE, RunAction.REPORT, RunAction.EXPORT, RunAction.DELETE),
)
"""Separators stand between the groups"""
_KEYS = {RunAction.OPEN: "Return", RunAction.EDIT: "F2", RunAction.DELETE: "Del", RunAction.COPY_ID: "Ctrl+C"}
_LISTED_IN_QUESTION = 8
_GENERATIONS = 16
"""Lists of actions that are kept for callers that name no parent"""


class RunActions(QObject):
    """Builds the actions and performs them; long ones run in a thread."""

    form_requested = Signal(str, object)  # clone | resume | extend | evaluate, the run
    run_opened = Signal(str)
    policy_requested = Signal(str)  # the run whose policy the user wants to see act
    compare_requested = Signal(object)  # tuple of run ids
    reported = Signal(str, str)  # a message for users; info | warning | bad

    def __init__(self, link: DaemonLink, background: Background, window: QWidget) -> None:
        super().__init__(window)
        self._link, self._background, self._window = link, background, window
        self.known_tags: Callable[[], list[str]] = list
        """Returns the known tags for the tag field, from the table of runs"""
        self.known_runs: Callable[[], Runs] = list
        """All of them; the table knows these, too"""
        self._own: deque[list[QAction]] = deque()
        self._transfers = Transfers(link, window, self)
        self._transfers.reported.connect(self.reported)
        self.reports = Reports(link, window, self)
        self.reports.reported.connect(self.reported)

    # ------------------------------------------------------------------ actions

    def actions_for(self, runs: Runs, parent: QObject | None = None) -> list[QAction]:
        """Everything that can be done with these runs, in order, with separators; children of `parent`."""
        actions = [self.action(kind, runs, parent or self) for kind in self._offered(runs)]
        if parent is None:
            self._own.append(actions)
            while len(self._own) > _GENERATIONS:
                for old in self._own.popleft():
                    old.deleteLater()
        return actions

    def action(self, kind: RunAction | None, runs: Runs, parent: QObject) -> QAction:
        """One of them; None is a separator."""
        action = QAction(parent)
        if kind is None:
            action.setSeparator(True)
            return action
        able, why_not = possible(kind, runs)
        action.setObjectName(f"run_{kind.value}")
        action.setText(self._text(kind, able or runs[:1]))
        action.setEnabled(bool(able))
        tip = self._tip(kind) if able else ""
        action.setToolTip("\n".join(filter(None, (tip, why_not))) or action.text().replace("&", ""))
        action.setStatusTip(why_not)
        if kind in _KEYS:
            action.setShortcut(QKeySequence(_KEYS[kind]))
            # Only shown: the table itself listens to these keys, and a text field needs them too.
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        action.triggered.connect(lambda: self.do(kind, able))
        return action

    def _offered(self, runs: Runs) -> list[RunAction | None]:
        archived = [run.archived for run in runs]
        left_out = {RunAction.ARCHIVE} if archived and all(archived) else set()
        if not any(archived):
            left_out.add(RunAction.UNARCHIVE)
        if len(runs) < 2:
            left_out.add(RunAction.COMPARE)
        groups = ((kind for kind in group if kind not in left_out) for group in _MENU)
        return [kind for group in groups for kind in (None, *group)][1:]

    def _text(self, kind: RunAction, runs: Runs) -> str:
        texts = {
            RunAction.OPEN: self.tr("&Open"),
            RunAction.COMPARE: self.tr("Co&mpare"),
            RunAction.PAUSE: self.tr("&Pause"),
            RunAction.RELEASE: self.tr("Pause and free its CPUs and &GPUs"),
            RunAction.RESUME: self.tr("&Resume"),
            RunAction.CANCEL: self.tr("Ca&ncel"),
            RunAction.EXTEND: self.tr("E&xtend…"),
            RunAction.CLONE: self.tr("C&lone into form…"),
            RunAction.EVALUATE: self.tr("&Evaluate…"),
            RunAction.WATCH: self.tr("&Watch it play"),
            RunAction.EDIT: self.tr("Name, tags and note&s…"),
            RunAction.FOLDER: self.tr("Open &folder"),
            RunAction.COMMAND: self.tr("&Copy command line"),
            RunAction.COPY_ID: self.tr("Copy run &id"),
            RunAction.ARCHIVE: self.tr("&Archive"),
            RunAction.UNARCHIVE: self.tr("&Restore from the archive"),
            RunAction.REPORT: self.tr("Report as web pa&ge…"),
            RunAction.EXPORT: self.tr("Expor&t…"),
            RunAction.DELETE: self.tr("&Delete…"),
        }
        text = texts[kind]
        if kind is RunAction.RESUME and len(runs) == 1 and runs[0].status == RunStatus.TERM:
            text += "…"  # a form comes first
        if len(runs) > 1:
            bare, dots = text.removesuffix("…"), "…" if text.endswith("…") else ""
            text = self.tr("{0} ({1} runs){2}").format(bare, len(runs), dots)
        return text

    def _tip(self, kind: RunAction) -> str:
        return {
            RunAction.PAUSE: self.tr("Hold at the next safe point; it keeps its process and its resources"),
            RunAction.RELEASE: self.tr("Write a checkpoint and end the process; resuming continues from there"),
            RunAction.CANCEL: self.tr("End it permanently; its files stay"),
            RunAction.EXTEND: self.tr("Train longer: a new run continues from its last checkpoint"),
            RunAction.CLONE: self.tr("Fill the form with this run's settings, to change and start them again"),
            RunAction.EVALUATE: self.tr("Play episodes with its policy"),
            RunAction.WATCH: self.tr("Watch its policy act, step by step or continuously"),
            RunAction.COMMAND: self.tr("The `mosaic …` that does the same in a terminal"),
            RunAction.ARCHIVE: self.tr("Hide from the list; nothing is deleted"),
            RunAction.REPORT: self.tr("Summary, curves, parameters and history in one file that opens in any browser"),
            RunAction.EXPORT: self.tr("Into an archive file that can be imported elsewhere"),
            RunAction.DELETE: self.tr("Remove with all files: checkpoints, logs, videos"),
        }.get(kind, "")

    # ------------------------------------------------------------------ deeds

    def do(self, kind: RunAction, runs: Runs) -> None:
        """Apply it to the runs that allow it; show the reason if there are none."""
        able, why_not = possible(kind, runs)
        if not able:
            self.reported.emit(why_not, "warning")
            return
        ids = tuple(run.run_id for run in able)
        handlers: dict[RunAction, Callable[[], object]] = {
            RunAction.OPEN: lambda: self.run_opened.emit(ids[0]),
            RunAction.COMPARE: lambda: self.compare_requested.emit(ids),
            RunAction.PAUSE: lambda: self._each(able, lambda client, run_id: client.pause(run_id)),
            RunAction.RELEASE: lambda: self._each(able, lambda client, run_id: client.pause(run_id, release=True)),
            RunAction.RESUME: lambda: self._resume(able),
            RunAction.CANCEL: lambda: self._cancel(ids),
            RunAction.EXTEND: lambda: self.form_requested.emit("extend", able[0]),
            RunAction.CLONE: lambda: self.form_requested.emit("clone", able[0]),
            RunAction.EVALUATE: lambda: self.form_requested.emit("evaluate", able[0]),
            RunAction.WATCH: lambda: self.policy_requested.emit(ids[0]),
            RunAction.EDIT: lambda: self.edit(able),
            RunAction.FOLDER: lambda: QDesktopServices.openUrl(QUrl.fromLocalFile(able[0].run_dir)),
            RunAction.COMMAND: lambda: self.copy_command_line(able),
            RunAction.COPY_ID: lambda: self._copy("\n".join(ids), self.tr("The run id was copied.")),
            RunAction.ARCHIVE: lambda: self._each(able, lambda client, run_id: client.archive(run_id)),
            RunAction.UNARCHIVE: lambda: self._each(
                able, lambda client, run_id: client.archive(run_id, archived=False)
            ),
            RunAction.REPORT: lambda: self.report(able),
            RunAction.EXPORT: lambda: self.export(able),
            RunAction.DELETE: lambda: self.delete(able),
        }
        handlers[kind]()

    def _each(self, runs: Runs, change: Callable[[TrainerClient, str], object]) -> None:
        """Call once for each run; continue after a failure."""
        requested = [run.run_id for run in runs]
        self._link.call(
            lambda client: _one_by_one(client, requested, change),
            owner=self,
            done=lambda outcome: self._report_failures(outcome[1]),
            failed=self._show_problem,
        )

    def _cancel(self, run_ids: Sequence[str]) -> None:
        def cancel(client: TrainerClient) -> list[tuple[str, str]]:
            return list(client.cancel_many(run_ids).items())

        self._link.call(cancel, owner=self, done=self._report_failures, failed=self._show_problem)

    def _report_failures(self, failures: list[tuple[str, str]]) -> None:
        if failures:
            more = self.tr(" (and {0} more)").format(len(failures) - 1) if len(failures) > 1 else ""
            self.reported.emit(failures[0][1] + more, "bad")

    def _show_problem(self, text: str) -> None:
        self.reported.emit(text, "bad")

    def _resume(self, runs: Runs) -> None:
        paused = [run for run in runs if run.status == RunStatus.PAUSE]
        if paused:
            self._each(paused, lambda client, run_id: client.resume(run_id))
        elif len(runs) == 1:
            self.form_requested.emit("resume", runs[0])
        else:
            self._each(runs, lambda client, run_id: client.resume(run_id))

    # -- messages about a run

    def edit(self, runs: Runs) -> None:
        """Name, tags and notes of one run; tags of several."""
        dialog = EditDialog(runs, self.known_tags(), self._window)
        dialog.changed.connect(lambda change: self._each(runs, lambda client, run_id: change.apply(client, run_id)))
        dialog.open()

    # -- the command line

    def copy_command_line(self, runs: Runs) -> None:
        requested = list(runs)
        self._background.run(
            lambda: [command_of_run(self._link.local(run, "config/*")) for run in requested],
            owner=self,
            done=self._copy_commands,
            failed=self._no_command,
        )

    def _copy_commands(self, commands: list[CommandText]) -> None:
        left_out = sorted({name for command in commands for name in command.left_out})
        text = (
            self.tr("The command line was copied.") if len(commands) == 1 else self.tr("The command lines were copied.")
        )
        if left_out:
            text += " " + self.tr("`mosaic train` has no flag for: {0}. Use “Clone” to keep them.").format(
                ", ".join(left_out)
            )
        lines = "\n".join(command.text for command in commands)
        self._copy(with_options(lines, self._link.connect_options), text)

    def _no_command(self, error: Exception) -> None:
        if not isinstance(error, OSError | ValueError):
            raise error
        self.reported.emit(self.tr("The config of this run cannot be read: {0}").format(error), "warning")

    def _copy(self, text: str, message: str) -> None:
        QGuiApplication.clipboard().setText(text)
        self.reported.emit(message, "info")

    # -- removing

    def delete(self, runs: Runs) -> None:
        """Ask, then remove."""
        size = formats.size(sum(run.size_bytes for run in runs))
        box = named(QMessageBox(self._window), "delete_runs_dialog")
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.setIcon(QMessageBox.Icon.Warning)
        box.setWindowTitle(self.tr("Delete runs") if len(runs) > 1 else self.tr("Delete run"))
        if len(runs) > 1:
            box.setText(self.tr("Delete {0} runs ({1}) permanently?").format(f"{len(runs):,}", size))
        else:
            box.setText(self.tr("Delete this run ({0}) permanently?").format(size))
        lines = [f"{title_of(run)} · {formats.size(run.size_bytes)}" for run in runs[:_LISTED_IN_QUESTION]]
        if len(runs) > _LISTED_IN_QUESTION:
            lines.append(self.tr("… and {0} more").format(len(runs) - _LISTED_IN_QUESTION))
        lines += ["", self.tr("Checkpoints, logs, videos and curves are removed. This cannot be undone.")]
        if left := continued_by(runs, self.known_runs()):
            ids = ", ".join(map(short_id, left))
            lines.append(self.tr("Runs that continue them lose the beginning of their curves: {0}").format(ids))
        box.setInformativeText("\n".join(lines))
        delete = box.addButton(self.tr("&Delete"), QMessageBox.ButtonRole.DestructiveRole)
        delete.setObjectName("confirm_delete")
        keep = box.addButton(QMessageBox.StandardButton.Cancel)
        box.setDefaultButton(keep)
        box.setEscapeButton(keep)
        delete.clicked.connect(lambda: self._delete(runs))
        box.open()

    def _delete(self, runs: Runs) -> None:
        requested = [run.run_id for run in runs]
        self._link.call(
            lambda client: _one_by_one(client, requested, lambda client, run_id: client.delete(run_id)),
            owner=self,
            done=self._report_deleted,
            failed=self._show_problem,
        )

    def _report_deleted(self, outcome: tuple[dict[str, object], list[tuple[str, str]]]) -> None:
        freed, failures = outcome
        if failures:
            self._report_failures(failures)
            return
        total = formats.size(sum(size for size in freed.values() if isinstance(size, int)))
        if len(freed) == 1:
            self.reported.emit(self.tr("The run was deleted; {0} are free again.").format(total), "info")
        else:
            self.reported.emit(self.tr("{0} runs were deleted; {1} are free again.").format(len(freed), total), "info")

    # -- pages about runs

    def report(self, runs: Runs) -> None:
        """Ask where to, then write a page about these runs."""
        self.reports.ask(runs)

    # -- out of and into archive files

    def export(self, runs: Runs) -> None:
        """Ask where to, then write."""
        dialog = named(QFileDialog(self._window, self.tr("Export")), "export_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        requested = list(runs)
        if len(requested) == 1:
            dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
            dialog.setNameFilter(self.tr("Exported runs (*.tar.gz)"))
            dialog.selectFile(archive_name(requested[0]))
            dialog.fileSelected.connect(lambda name: self.export_to({requested[0].run_id: _with_suffix(Path(name))}))
        else:
            dialog.setFileMode(QFileDialog.FileMode.Directory)
            dialog.fileSelected.connect(
                lambda name: self.export_to({run.run_id: Path(name) / archive_name(run) for run in requested})
            )
        dialog.open()

    def export_to(self, targets: dict[str, Path]) -> None:
        """Write each run into its file."""
        self._transfers.export(targets)

    def import_files(self, files: Sequence[Path]) -> None:
        """Import runs that were exported, here or elsewhere."""
        self._transfers.ingest(files)


def archive_name(run: pb.Run) -> str:
    return f"mosaic-{run.run_id}.tar.gz"


def _with_suffix(path: Path) -> Path:
    return path if path.name.endswith((".tar.gz", ".tgz")) else path.with_name(path.name + ".tar.gz")


def _one_by_one(
    client: TrainerClient, run_ids: Sequence[str], change: Callable[[TrainerClient, str], object]
) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Return what came of each run, and what went wrong with which."""
    results: dict[str, object] = {}
    failures: list[tuple[str, str]] = []
    for run_id in run_ids:
        try:
            results[run_id] = change(client, run_id)
        except DaemonUnreachable:
            raise
        except TrainerError as error:
            failures.append((run_id, str(error)))
    return results, failures
