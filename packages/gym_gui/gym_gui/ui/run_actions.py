"""What can be done with runs, as actions for every menu that offers it: one place for words, conditions and deeds.

    menu.addActions(actions.actions_for(panel.selected_runs(), parent=menu))
    actions.form_wanted.connect(forms.open)          clone, resume, extend, evaluate: somebody else opens the form
    actions.said.connect(banner.say)                 what came of it, for people

An action that cannot be done now is grey and its tip says why not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, Qt, QUrl, Signal
from PySide6.QtGui import QAction, QDesktopServices, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.edit_dialog import EditDialog
from gym_gui.ui.runs.possibilities import Deed, possible
from gym_gui.ui.runs.reports import Reports
from gym_gui.ui.runs.run_command import CommandText, command_of_run
from gym_gui.ui.runs.transfers import Transfers
from gym_gui.wording import formats
from gym_gui.wording.run_view import title_of

Runs = Sequence[pb.Run]

_ORDER: tuple[Deed | None, ...] = (
    Deed.OPEN, Deed.COMPARE, None,
    Deed.PAUSE, Deed.RELEASE, Deed.RESUME, Deed.CANCEL, None,
    Deed.EXTEND, Deed.CLONE, Deed.EVALUATE, Deed.WATCH, None,
    Deed.EDIT, Deed.FOLDER, Deed.COMMAND, Deed.COPY_ID, None,
    Deed.ARCHIVE, Deed.UNARCHIVE, Deed.REPORT, Deed.EXPORT, Deed.DELETE,
)  # fmt: skip
_KEYS = {Deed.OPEN: "Return", Deed.EDIT: "F2", Deed.DELETE: "Del", Deed.COPY_ID: "Ctrl+C"}
_LISTED_IN_QUESTION = 8
_GENERATIONS = 16
"""Lists of actions that are kept for callers that name no parent"""


class RunActions(QObject):
    """Builds the actions and does what they say; what takes longer than a blink happens in a thread."""

    form_wanted = Signal(str, object)  # clone | resume | extend | evaluate, the run
    run_opened = Signal(str)
    policy_wanted = Signal(str)  # the run whose policy somebody wants to see act
    compare_wanted = Signal(object)  # tuple of run ids
    said = Signal(str, str)  # words for people; info | warning | bad

    def __init__(self, link: DaemonLink, background: Background, window: QWidget) -> None:
        super().__init__(window)
        self._link, self._background, self._window = link, background, window
        self.known_tags: Callable[[], list[str]] = list
        """What the tag field offers; the table of runs knows"""
        self._own: deque[list[QAction]] = deque()
        self._transfers = Transfers(link, window, self)
        self._transfers.said.connect(self.said)
        self.reports = Reports(link, window, self)
        self.reports.said.connect(self.said)

    # ------------------------------------------------------------------ actions

    def actions_for(self, runs: Runs, parent: QObject | None = None) -> list[QAction]:
        """Everything that can be done with these runs, in order, with separators; children of `parent`."""
        actions = [self.action(deed, runs, parent or self) for deed in self._offered(runs)]
        if parent is None:
            self._own.append(actions)
            while len(self._own) > _GENERATIONS:
                for old in self._own.popleft():
                    old.deleteLater()
        return actions

    def action(self, deed: Deed | None, runs: Runs, parent: QObject) -> QAction:
        """One of them; None is a separator."""
        action = QAction(parent)
        if deed is None:
            action.setSeparator(True)
            return action
        able, why_not = possible(deed, runs)
        action.setObjectName(f"run_{deed.value}")
        action.setText(self._text(deed, able or runs[:1]))
        action.setEnabled(bool(able))
        tip = self._tip(deed) if able else ""
        action.setToolTip("\n".join(filter(None, (tip, why_not))) or action.text().replace("&", ""))
        action.setStatusTip(why_not)
        if deed in _KEYS:
            action.setShortcut(QKeySequence(_KEYS[deed]))
            # Only shown: the table itself listens to these keys, and a text field needs them too.
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        action.triggered.connect(lambda: self.do(deed, able))
        return action

    def _offered(self, runs: Runs) -> list[Deed | None]:
        archived = [run.archived for run in runs]
        left_out = {Deed.ARCHIVE} if archived and all(archived) else set()
        if not any(archived):
            left_out.add(Deed.UNARCHIVE)
        if len(runs) < 2:
            left_out.add(Deed.COMPARE)
        return [deed for deed in _ORDER if deed not in left_out]

    def _text(self, deed: Deed, runs: Runs) -> str:
        texts = {
            Deed.OPEN: self.tr("&Open"),
            Deed.COMPARE: self.tr("Co&mpare"),
            Deed.PAUSE: self.tr("&Pause"),
            Deed.RELEASE: self.tr("Pause and free its CPUs and &GPUs"),
            Deed.RESUME: self.tr("&Resume"),
            Deed.CANCEL: self.tr("Ca&ncel"),
            Deed.EXTEND: self.tr("E&xtend…"),
            Deed.CLONE: self.tr("C&lone into form…"),
            Deed.EVALUATE: self.tr("&Evaluate…"),
            Deed.WATCH: self.tr("&Watch it play"),
            Deed.EDIT: self.tr("Name, tags and note&s…"),
            Deed.FOLDER: self.tr("Open &folder"),
            Deed.COMMAND: self.tr("&Copy command line"),
            Deed.COPY_ID: self.tr("Copy run &id"),
            Deed.ARCHIVE: self.tr("&Archive"),
            Deed.UNARCHIVE: self.tr("&Bring back from the archive"),
            Deed.REPORT: self.tr("Report as web pa&ge…"),
            Deed.EXPORT: self.tr("Expor&t…"),
            Deed.DELETE: self.tr("&Delete…"),
        }
        text = texts[deed]
        if deed is Deed.RESUME and len(runs) == 1 and runs[0].status == "TERM":
            text += "…"  # a form comes first
        if len(runs) > 1:
            bare, dots = text.removesuffix("…"), "…" if text.endswith("…") else ""
            text = self.tr("{0} ({1} runs){2}").format(bare, len(runs), dots)
        return text

    def _tip(self, deed: Deed) -> str:
        return {
            Deed.PAUSE: self.tr("Hold at the next safe point; it keeps its process and its place"),
            Deed.RELEASE: self.tr("Write a checkpoint, end the process, and go on from there when it is resumed"),
            Deed.CANCEL: self.tr("End it for good; what it has written stays"),
            Deed.EXTEND: self.tr("Train longer: a new run goes on from its last checkpoint"),
            Deed.CLONE: self.tr("Fill the form with this run's settings, to change and start them again"),
            Deed.EVALUATE: self.tr("Play episodes with what it has learnt"),
            Deed.WATCH: self.tr("See its policy act, step by step if you like"),
            Deed.COMMAND: self.tr("The `mosaic …` that does the same in a terminal"),
            Deed.ARCHIVE: self.tr("Hide from the list; nothing is deleted"),
            Deed.REPORT: self.tr("Summary, curves, parameters and history in one file that opens in any browser"),
            Deed.EXPORT: self.tr("Into an archive file that can be imported elsewhere"),
            Deed.DELETE: self.tr("Remove with all files: checkpoints, logs, videos"),
        }.get(deed, "")

    # ------------------------------------------------------------------ deeds

    def do(self, deed: Deed, runs: Runs) -> None:
        """Do it with those of these runs that it can be done with; say why when there are none."""
        able, why_not = possible(deed, runs)
        if not able:
            self.said.emit(why_not, "warning")
            return
        ids = tuple(run.run_id for run in able)
        deeds: dict[Deed, Callable[[], object]] = {
            Deed.OPEN: lambda: self.run_opened.emit(ids[0]),
            Deed.COMPARE: lambda: self.compare_wanted.emit(ids),
            Deed.PAUSE: lambda: self._each(able, lambda client, run_id: client.pause(run_id)),
            Deed.RELEASE: lambda: self._each(able, lambda client, run_id: client.pause(run_id, release=True)),
            Deed.RESUME: lambda: self._resume(able),
            Deed.CANCEL: lambda: self._cancel(ids),
            Deed.EXTEND: lambda: self.form_wanted.emit("extend", able[0]),
            Deed.CLONE: lambda: self.form_wanted.emit("clone", able[0]),
            Deed.EVALUATE: lambda: self.form_wanted.emit("evaluate", able[0]),
            Deed.WATCH: lambda: self.policy_wanted.emit(ids[0]),
            Deed.EDIT: lambda: self.edit(able),
            Deed.FOLDER: lambda: QDesktopServices.openUrl(QUrl.fromLocalFile(able[0].run_dir)),
            Deed.COMMAND: lambda: self.copy_command_line(able),
            Deed.COPY_ID: lambda: self._copy("\n".join(ids), self.tr("The run id was copied.")),
            Deed.ARCHIVE: lambda: self._each(able, lambda client, run_id: client.archive(run_id)),
            Deed.UNARCHIVE: lambda: self._each(able, lambda client, run_id: client.archive(run_id, archived=False)),
            Deed.REPORT: lambda: self.report(able),
            Deed.EXPORT: lambda: self.export(able),
            Deed.DELETE: lambda: self.delete(able),
        }
        deeds[deed]()

    def _each(self, runs: Runs, change: Callable[[TrainerClient, str], object]) -> None:
        """One call for each run; one that fails does not keep the others from it."""
        wanted = [run.run_id for run in runs]
        self._link.call(
            lambda client: _one_by_one(client, wanted, change),
            owner=self,
            done=lambda outcome: self._tell_failures(outcome[1]),
            failed=self._complain,
        )

    def _cancel(self, run_ids: Sequence[str]) -> None:
        def cancel(client: TrainerClient) -> list[tuple[str, str]]:
            return list(client.cancel_many(run_ids).items())

        self._link.call(cancel, owner=self, done=self._tell_failures, failed=self._complain)

    def _tell_failures(self, failures: list[tuple[str, str]]) -> None:
        if failures:
            more = self.tr(" (and {0} more)").format(len(failures) - 1) if len(failures) > 1 else ""
            self.said.emit(failures[0][1] + more, "bad")

    def _complain(self, words: str) -> None:
        self.said.emit(words, "bad")

    def _resume(self, runs: Runs) -> None:
        paused = [run for run in runs if run.status == "PAUSE"]
        if paused:
            self._each(paused, lambda client, run_id: client.resume(run_id))
        elif len(runs) == 1:
            self.form_wanted.emit("resume", runs[0])
        else:
            self._each(runs, lambda client, run_id: client.resume(run_id))

    # -- words about a run

    def edit(self, runs: Runs) -> None:
        """Name, tags and notes of one run; tags of several."""
        dialog = EditDialog(runs, self.known_tags(), self._window)
        dialog.changed.connect(lambda change: self._each(runs, lambda client, run_id: change.apply(client, run_id)))
        dialog.open()

    # -- the command line

    def copy_command_line(self, runs: Runs) -> None:
        wanted = list(runs)
        self._background.run(
            lambda: [command_of_run(run) for run in wanted],
            owner=self,
            done=self._copy_commands,
            failed=self._no_command,
        )

    def _copy_commands(self, commands: list[CommandText]) -> None:
        left_out = sorted({name for command in commands for name in command.left_out})
        words = (
            self.tr("The command line was copied.") if len(commands) == 1 else self.tr("The command lines were copied.")
        )
        if left_out:
            words += " " + self.tr("`mosaic train` has no flag for: {0}. Use “Clone” to take them along.").format(
                ", ".join(left_out)
            )
        self._copy("\n".join(command.text for command in commands), words)

    def _no_command(self, error: Exception) -> None:
        if not isinstance(error, OSError | ValueError):
            raise error
        self.said.emit(
            self.tr("The config of this run cannot be read here ({0}). Is the daemon on another machine?").format(
                error
            ),
            "warning",
        )

    def _copy(self, text: str, words: str) -> None:
        QGuiApplication.clipboard().setText(text)
        self.said.emit(words, "info")

    # -- removing

    def delete(self, runs: Runs) -> None:
        """Ask, then remove."""
        size = formats.size(sum(run.size_bytes for run in runs))
        box = QMessageBox(self._window)
        box.setObjectName("delete_runs_dialog")
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.setIcon(QMessageBox.Icon.Warning)
        box.setWindowTitle(self.tr("Delete runs") if len(runs) > 1 else self.tr("Delete run"))
        if len(runs) > 1:
            box.setText(self.tr("Delete {0} runs ({1}) for good?").format(f"{len(runs):,}", size))
        else:
            box.setText(self.tr("Delete this run ({0}) for good?").format(size))
        lines = [f"{title_of(run)} · {formats.size(run.size_bytes)}" for run in runs[:_LISTED_IN_QUESTION]]
        if len(runs) > _LISTED_IN_QUESTION:
            lines.append(self.tr("… and {0} more").format(len(runs) - _LISTED_IN_QUESTION))
        lines += ["", self.tr("Checkpoints, logs, videos and curves are removed. This cannot be undone.")]
        box.setInformativeText("\n".join(lines))
        delete = box.addButton(self.tr("&Delete"), QMessageBox.ButtonRole.DestructiveRole)
        delete.setObjectName("confirm_delete")
        keep = box.addButton(QMessageBox.StandardButton.Cancel)
        box.setDefaultButton(keep)
        box.setEscapeButton(keep)
        delete.clicked.connect(lambda: self._delete(runs))
        box.open()

    def _delete(self, runs: Runs) -> None:
        wanted = [run.run_id for run in runs]
        self._link.call(
            lambda client: _one_by_one(client, wanted, lambda client, run_id: client.delete(run_id)),
            owner=self,
            done=self._tell_deleted,
            failed=self._complain,
        )

    def _tell_deleted(self, outcome: tuple[dict[str, object], list[tuple[str, str]]]) -> None:
        freed, failures = outcome
        if failures:
            self._tell_failures(failures)
            return
        total = formats.size(sum(size for size in freed.values() if isinstance(size, int)))
        if len(freed) == 1:
            self.said.emit(self.tr("The run was deleted; {0} are free again.").format(total), "info")
        else:
            self.said.emit(self.tr("{0} runs were deleted; {1} are free again.").format(len(freed), total), "info")

    # -- pages about runs

    def report(self, runs: Runs) -> None:
        """Ask where to, then write a page about these runs."""
        self.reports.ask(runs)

    # -- out of and into archive files

    def export(self, runs: Runs) -> None:
        """Ask where to, then write."""
        dialog = QFileDialog(self._window, self.tr("Export"))
        dialog.setObjectName("export_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        wanted = list(runs)
        if len(wanted) == 1:
            dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
            dialog.setNameFilter(self.tr("Exported runs (*.tar.gz)"))
            dialog.selectFile(archive_name(wanted[0]))
            dialog.fileSelected.connect(lambda name: self.export_to({wanted[0].run_id: _with_suffix(Path(name))}))
        else:
            dialog.setFileMode(QFileDialog.FileMode.Directory)
            dialog.fileSelected.connect(
                lambda name: self.export_to({run.run_id: Path(name) / archive_name(run) for run in wanted})
            )
        dialog.open()

    def export_to(self, targets: dict[str, Path]) -> None:
        """Write each run into its file."""
        self._transfers.export(targets)

    def import_files(self, files: Sequence[Path]) -> None:
        """Take in runs that were exported, here or elsewhere."""
        self._transfers.take_in(files)


def archive_name(run: pb.Run) -> str:
    return f"mosaic-{run.run_id}.tar.gz"


def _with_suffix(path: Path) -> Path:
    return path if path.name.endswith((".tar.gz", ".tgz")) else path.with_name(path.name + ".tar.gz")


def _one_by_one(
    client: TrainerClient, run_ids: Sequence[str], change: Callable[[TrainerClient, str], object]
) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """What came of each run, and what went wrong with which."""
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
