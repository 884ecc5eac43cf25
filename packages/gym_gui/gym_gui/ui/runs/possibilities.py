"""What can be done with a run now, and if not, why not. No widgets; the daemon has the last word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QCoreApplication

from gym_gui.services.trainer.launch import NOT_TRAINING
from gym_gui.wording.run_view import parsed, state_of


class Deed(Enum):
    """Something that can be done with runs; the value is the name of its action."""

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


FOR_ONE = frozenset({Deed.OPEN, Deed.EXTEND, Deed.CLONE, Deed.EVALUATE, Deed.WATCH, Deed.FOLDER})
"""Those that open something of their own and so need exactly one run"""


def _t(text: str) -> str:
    return QCoreApplication.translate("RunPossibilities", text)


def possible(deed: Deed, runs: Sequence[pb.Run]) -> tuple[list[pb.Run], str]:
    """The runs that it can be done with, and why not with the others (or at all)."""
    if not runs:
        return [], _t("No run is chosen.")
    if deed is Deed.COMPARE:
        return (list(runs), "") if len(runs) > 1 else ([], _t("Choose two or more runs to compare them."))
    if deed in FOR_ONE and len(runs) > 1:
        return [], _t("Choose a single run for this.")
    reasons = [(run, why_not(deed, run)) for run in runs]
    able = [run for run, reason in reasons if not reason]
    refused = [reason for _, reason in reasons if reason]
    if not refused:
        return able, ""
    if len(runs) == 1 or not able:
        return able, refused[0] if len(set(refused)) == 1 else _t("Not possible with any of these runs: {0}").format(
            refused[0]
        )
    return able, _t("Not with {0} of them: {1}").format(len(refused), refused[0])


def why_not(deed: Deed, run: pb.Run) -> str:
    """Empty when it can be done."""
    check = _CHECKS.get(deed)
    return "" if check is None else check(run)


def _is_over(run: pb.Run) -> bool:
    return run.status == "TERM"


def _can(run: pb.Run, capability: str) -> bool:
    told = parsed(run.capabilities_json)
    return isinstance(told, dict) and told.get(capability) is True


def _mode(run: pb.Run) -> str:
    extras = parsed(run.extras_json)
    return str(extras.get("mode") or "") if isinstance(extras, dict) else ""


def _pause(run: pb.Run) -> str:
    if "pausing" in run.flags:
        return _t("It is being paused already.")
    if "cancelling" in run.flags:
        return _t("It is being cancelled.")
    return "" if run.status == "EXEC" else _t("Only a running run can be paused; it is {0}.").format(state_of(run))


def _release(run: pb.Run) -> str:
    if run.status not in ("EXEC", "PAUSE") or {"released", "cancelling"} & set(run.flags):
        return _t("Only a running or paused run holds CPUs and GPUs; it is {0}.").format(state_of(run))
    if not (_can(run, "supports_pause") and _can(run, "supports_checkpointing")):
        return _t("Its worker cannot write a checkpoint to go on from; a plain pause keeps its process.")
    return ""


def _resume(run: pb.Run) -> str:
    if run.status == "PAUSE":
        return _t("It is being cancelled.") if "cancelling" in run.flags else ""
    if not _is_over(run):
        return _t("It is {0}; only a paused or ended run can be resumed.").format(state_of(run))
    if (run.total > 0 and run.step >= run.total) or (run.outcome == "completed" and not _can(run, "submits_runs")):
        return _t("It has trained all of its steps. “Extend” trains it longer.")
    return _continue(run)


def _continue(run: pb.Run) -> str:
    if (mode := _mode(run)) in NOT_TRAINING:
        return _t("Its mode was {0}, which trains nothing to go on from.").format(mode)
    if run.capabilities_json and not _can(run, "supports_checkpointing"):
        return _t("Its worker writes no checkpoints to go on from.")
    if not run.started_at:
        return _t("It never began to train, so there is nothing to go on from. “Clone” starts it again.")
    return ""


def _extend(run: pb.Run) -> str:
    if not _is_over(run):
        return _t("It has not ended yet; it is {0}.").format(state_of(run))
    return _continue(run)


def _evaluate(run: pb.Run) -> str:
    if run.status in ("INIT", "HSHK", "RDY"):
        return _t("It has not trained anything yet.")
    if _can(run, "submits_runs"):
        return _t("It trained nothing itself; the runs it asked for did.")
    return _continue(run)


def _watch(run: pb.Run) -> str:
    if run.archived:
        return _t("It is archived; bring it back first.")
    return _evaluate(run) or _folder(run)  # its checkpoint is read here, and played by a worker of this machine


def _cancel(run: pb.Run) -> str:
    if _is_over(run):
        return _t("It is over already: {0}.").format(state_of(run))
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


_CHECKS: dict[Deed, Callable[[pb.Run], str]] = {
    Deed.PAUSE: _pause,
    Deed.RELEASE: _release,
    Deed.RESUME: _resume,
    Deed.CANCEL: _cancel,
    Deed.EXTEND: _extend,
    Deed.EVALUATE: _evaluate,
    Deed.WATCH: _watch,
    Deed.FOLDER: _folder,
    Deed.COMMAND: _command,
    Deed.ARCHIVE: _archive,
    Deed.UNARCHIVE: _unarchive,
    Deed.EXPORT: _export,
    Deed.DELETE: _delete,
}
