"""Which actions a run allows now, and why not others. No widgets; the daemon decides in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import NOT_TRAINING
from mosaic_wire.run_status import RunOutcome, RunStatus
from PySide6.QtCore import QCoreApplication

from gym_gui.wording.run_view import extras_of, parsed, state_of


class RunAction(Enum):
    """An action on runs; the value is the name of its QAction."""

    OPEN = "open"
    PAUSE = "pause"
    RELEASE = "release"
    RESUME = "resume"
    CANCEL = "cancel"
    EXTEND = "extend"
    CLONE = "clone"
    EVALUATE = "evaluate"
    WATCH = "watch"
    COMPARE = "compare"
    EDIT = "edit"
    FOLDER = "folder"
    COMMAND = "command"
    COPY_ID = "copy_id"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    EXPORT = "export"
    REPORT = "report"
    DELETE = "delete"


FOR_ONE = frozenset(
    {RunAction.OPEN, RunAction.EXTEND, RunAction.CLONE, RunAction.EVALUATE, RunAction.WATCH, RunAction.FOLDER}
)
"""Actions that need exactly one run, because they open something for it"""


def _t(text: str) -> str:
    return QCoreApplication.translate("RunActions", text)


def possible(kind: RunAction, runs: Sequence[pb.Run]) -> tuple[list[pb.Run], str]:
    """Return the runs that allow the action, and why other runs do not."""
    if not runs:
        return [], _t("No run is selected.")
    if kind is RunAction.COMPARE:
        return (list(runs), "") if len(runs) > 1 else ([], _t("Select two or more runs to compare them."))
    if kind in FOR_ONE and len(runs) > 1:
        return [], _t("Select a single run for this.")
    reasons = [(run, why_not(kind, run)) for run in runs]
    able = [run for run, reason in reasons if not reason]
    refused = [reason for _, reason in reasons if reason]
    if not refused:
        return able, ""
    if len(runs) == 1 or not able:
        return able, refused[0] if len(set(refused)) == 1 else _t("Not possible with any of these runs: {0}").format(
            refused[0]
        )
    return able, _t("Not with {0} of them: {1}").format(len(refused), refused[0])


def why_not(kind: RunAction, run: pb.Run) -> str:
    """Return why the action is not possible; empty if it is."""
    check = _CHECKS.get(kind)
    return "" if check is None else check(run)


def _is_over(run: pb.Run) -> bool:
    return run.status == RunStatus.TERM


def _can(run: pb.Run, capability: str) -> bool:
    reported = parsed(run.capabilities_json)
    return isinstance(reported, dict) and reported.get(capability) is True


def _pause(run: pb.Run) -> str:
    if "pausing" in run.flags:
        return _t("It is being paused already.")
    if "cancelling" in run.flags:
        return _t("It is being cancelled.")
    return (
        "" if run.status == RunStatus.EXEC else _t("Only a running run can be paused; it is {0}.").format(state_of(run))
    )


def _release(run: pb.Run) -> str:
    if run.status not in (RunStatus.EXEC, RunStatus.PAUSE) or {"released", "cancelling"} & set(run.flags):
        return _t("Only a running or paused run holds CPUs and GPUs; it is {0}.").format(state_of(run))
    if not (_can(run, "supports_pause") and _can(run, "supports_checkpointing")):
        return _t("Its worker cannot write a checkpoint to continue from; a plain pause keeps its process.")
    return ""


def _resume(run: pb.Run) -> str:
    if run.status == RunStatus.PAUSE:
        return _t("It is being cancelled.") if "cancelling" in run.flags else ""
    if not _is_over(run):
        return _t("It is {0}; only a paused or ended run can be resumed.").format(state_of(run))
    if (run.total > 0 and run.step >= run.total) or (
        run.outcome == RunOutcome.COMPLETED and not _can(run, "submits_runs")
    ):
        return _t("It has trained all of its steps. “Extend” trains it longer.")
    return _continue(run)


def _continue(run: pb.Run) -> str:
    if (mode := extras_of(run).get("mode")) in NOT_TRAINING:
        return _t("Its mode was {0}, which trains nothing to continue from.").format(mode)
    if run.capabilities_json and not _can(run, "supports_checkpointing"):
        return _t("Its worker writes no checkpoints to continue from.")
    if not run.started_at:
        return _t("It never began to train, so there is nothing to continue from. “Clone” starts it again.")
    return ""


def _extend(run: pb.Run) -> str:
    if not _is_over(run):
        return _t("It has not ended yet; it is {0}.").format(state_of(run))
    return _continue(run)


def _evaluate(run: pb.Run) -> str:
    if run.status in (RunStatus.INIT, RunStatus.HSHK, RunStatus.RDY):
        return _t("It has not trained anything yet.")
    if _can(run, "submits_runs"):
        return _t("It trained nothing itself; its child runs did.")
    return _continue(run)


def _watch(run: pb.Run) -> str:
    if run.archived:
        return _t("It is archived; restore it first.")
    return _evaluate(run) or _folder(run)  # its checkpoint must be readable on this machine


def _cancel(run: pb.Run) -> str:
    if _is_over(run):
        return _t("It has already ended: {0}.").format(state_of(run))
    return _t("It is being cancelled already.") if "cancelling" in run.flags else ""


def _archive(run: pb.Run) -> str:
    if run.archived:
        return _t("It is archived already.")
    return "" if _is_over(run) else _t("Only a run that has ended can be archived; cancel it first.")


def _unarchive(run: pb.Run) -> str:
    return "" if run.archived else _t("It is not archived.")


def _export(run: pb.Run) -> str:
    return "" if _is_over(run) else _t("Only a run that has ended can be exported.")


def _delete(run: pb.Run) -> str:
    return "" if _is_over(run) else _t("Only a run that has ended can be deleted; cancel it first.")


def _folder(run: pb.Run) -> str:
    if run.run_dir and Path(run.run_dir).is_dir():
        return ""
    return _t("Its folder is not on this machine: {0}").format(run.run_dir or _t("unknown"))


def _command(run: pb.Run) -> str:
    return "" if run.run_dir else _t("Its folder is unknown, and with it its config.")


_CHECKS: dict[RunAction, Callable[[pb.Run], str]] = {
    RunAction.PAUSE: _pause,
    RunAction.RELEASE: _release,
    RunAction.RESUME: _resume,
    RunAction.CANCEL: _cancel,
    RunAction.EXTEND: _extend,
    RunAction.EVALUATE: _evaluate,
    RunAction.WATCH: _watch,
    RunAction.FOLDER: _folder,
    RunAction.COMMAND: _command,
    RunAction.ARCHIVE: _archive,
    RunAction.UNARCHIVE: _unarchive,
    RunAction.EXPORT: _export,
    RunAction.DELETE: _delete,
}
