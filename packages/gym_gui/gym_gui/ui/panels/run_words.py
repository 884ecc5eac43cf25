"""Words of the run page: states, events, troubles, and what to do about a failure. No widget here."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QCoreApplication

from gym_gui.ui.presenters.run_files import CheckpointFacts, Listing, Problem, Role, Trouble
from gym_gui.wording import formats
from gym_gui.wording.run_view import state_of

translate = QCoreApplication.translate


def state_word(run: pb.Run) -> str:
    """The state of a run in one translated word."""
    words = {
        "queued": translate("RunWords", "Queued"),
        "starting": translate("RunWords", "Starting"),
        "running": translate("RunWords", "Running"),
        "paused": translate("RunWords", "Paused"),
        "faulted": translate("RunWords", "Faulted"),
        "finished": translate("RunWords", "Finished"),
        "completed": translate("RunWords", "Completed"),
        "failed": translate("RunWords", "Failed"),
        "cancelled": translate("RunWords", "Cancelled"),
        "cancelling": translate("RunWords", "Cancelling"),
        "pausing": translate("RunWords", "Pausing"),
        "released": translate("RunWords", "Released"),
        "stalled": translate("RunWords", "Stalled"),
    }
    state = state_of(run)
    return words.get(state, state)


STATE_SYMBOLS = {
    "completed": "✓", "failed": "✗", "cancelled": "–", "running": "▶", "paused": "❚❚", "queued": "…", "stalled": "!",
    "faulted": "✗",
}  # fmt: skip


def chip_text(run: pb.Run) -> str:
    """Symbol and word: a state is never told by its colour alone."""
    symbol = STATE_SYMBOLS.get(state_of(run), "·")
    return f"{symbol} {state_word(run)}"


def event_word(kind: str) -> str:
    """What a story event is called."""
    words = {
        "submitted": translate("RunWords", "Submitted"),
        "prepared": translate("RunWords", "Prepared"),
        "preparing": translate("RunWords", "Preparing"),
        "dispatched": translate("RunWords", "Worker started"),
        "registered": translate("RunWords", "Worker registered"),
        "started": translate("RunWords", "Training began"),
        "paused": translate("RunWords", "Paused"),
        "resumed": translate("RunWords", "Resumed"),
        "released": translate("RunWords", "Released its resources"),
        "releasing": translate("RunWords", "Releasing"),
        "requeued": translate("RunWords", "Queued again"),
        "faulted": translate("RunWords", "Went wrong"),
        "retried": translate("RunWords", "Tried again"),
        "given_up": translate("RunWords", "Given up"),
        "cancelled": translate("RunWords", "Cancelled"),
        "completed": translate("RunWords", "Completed"),
        "cancel_requested": translate("RunWords", "Cancel requested"),
        "pause_requested": translate("RunWords", "Pause requested"),
        "release_requested": translate("RunWords", "Release requested"),
        "resume_requested": translate("RunWords", "Resume requested"),
        "checkpoint_saved": translate("RunWords", "Checkpoint saved"),
        "checkpoint_loaded": translate("RunWords", "Checkpoint loaded"),
        "stage_changed": translate("RunWords", "Curriculum stage changed"),
        "worker_run_completed": translate("RunWords", "Worker reports completion"),
        "worker_run_failed": translate("RunWords", "Worker reports failure"),
        "worker_run_cancelled": translate("RunWords", "Worker reports cancellation"),
        "stalled": translate("RunWords", "No sign of life"),
        "stalled_over": translate("RunWords", "Alive again"),
        "no_progress": translate("RunWords", "No progress"),
        "no_progress_over": translate("RunWords", "Progress again"),
        "reattached": translate("RunWords", "Taken up by a new daemon"),
        "recovery_failed": translate("RunWords", "Could not be recovered"),
        "edited": translate("RunWords", "Edited"),
        "archived": translate("RunWords", "Archived"),
        "unarchived": translate("RunWords", "Brought back from the archive"),
        "imported": translate("RunWords", "Imported"),
        "hook_failed": translate("RunWords", "A hook failed"),
        "out_of_order": translate("RunWords", "Event out of order"),
    }
    return words.get(kind) or kind.replace("_", " ").capitalize()


def role_word(role: Role) -> str:
    return {
        Role.FILE: "",
        Role.FOLDER: "",
        Role.MANIFEST: translate("RunWords", "Manifest"),
        Role.LIFECYCLE: translate("RunWords", "Lifecycle events"),
        Role.EXIT: translate("RunWords", "Exit record"),
        Role.CHECKPOINT: translate("RunWords", "Checkpoint"),
        Role.CHECKPOINTS: translate("RunWords", "Checkpoints"),
        Role.POLICY: translate("RunWords", "Policy"),
        Role.EVENTS: translate("RunWords", "TensorBoard events"),
        Role.METRICS: translate("RunWords", "Curves (made from the events)"),
        Role.VIDEO: translate("RunWords", "Video"),
        Role.DATABASE: translate("RunWords", "Optuna study"),
        Role.LOG: translate("RunWords", "Log"),
        Role.CONFIG: translate("RunWords", "Config"),
    }[role]


def artefact_word() -> str:
    """Marks what the manifest names."""
    return translate("RunWords", "in the manifest")


def checkpoint_kind(kind: str) -> str:
    return {
        "last": translate("RunWords", "last"),
        "best": translate("RunWords", "best"),
        "periodic": translate("RunWords", "periodic"),
    }.get(kind, kind)


def checkpoint_in_words(facts: CheckpointFacts) -> str:
    """`Checkpoint · step 499,712 · last · return 498.2`"""
    parts = [
        translate("RunWords", "Checkpoint"),
        translate("RunWords", "step {step}").format(step=formats.count(facts.step)),
    ]
    if facts.kind:
        parts.append(checkpoint_kind(facts.kind))
    elif not facts.is_listed:
        parts.append(translate("RunWords", "not in the manifest"))
    if facts.mean_return is not None:
        parts.append(translate("RunWords", "return {value}").format(value=formats.quantity(facts.mean_return)))
    if facts.problem:
        parts.append(translate("RunWords", "damaged: {why}").format(why=facts.problem))
    return " · ".join(parts)


def listing_in_words(listing: Listing) -> str:
    """What a folder's last line says; empty when its entries say it all."""
    if listing.problem is not None:
        return {
            Trouble.MISSING: translate("RunWords", "(not there any more)"),
            Trouble.FORBIDDEN: translate("RunWords", "(may not be read: check its rights)"),
        }.get(
            listing.problem.trouble, translate("RunWords", "(cannot be read: {why})").format(why=listing.problem.detail)
        )
    if listing.left_out:
        return translate("RunWords", "(and {count} more)").format(count=formats.count(listing.left_out))
    return "" if listing.entries else translate("RunWords", "(empty)")


def manifest_trouble(problem: Problem, run: pb.Run) -> str:
    """Why there is nothing from the manifest, and what that means."""
    if problem.trouble is Trouble.MISSING:
        if run.status in ("INIT", "HSHK", "RDY"):
            return translate("RunWords", "The manifest (analytics.json) is written when the worker begins.")
        return translate(
            "RunWords",
            "The manifest (analytics.json) of this run is not there. Versions and the command line are unknown; what "
            "the daemon knows is shown.",
        )
    if problem.trouble is Trouble.DAMAGED:
        return translate(
            "RunWords",
            "The manifest (analytics.json) cannot be read: {why}. What it tells is left out; everything else of the "
            "run is shown. `mosaic resume` and `mosaic eval` use the checkpoints that lie in the folder.",
        ).format(why=problem.detail)
    return translate(
        "RunWords", "The manifest (analytics.json) cannot be opened: {why}. Check the rights of the run folder."
    ).format(why=problem.detail or problem.trouble.value)


# ------------------------------------------------------------------ what to do about a failure


def advice_on(run: pb.Run, lines: Iterable[str]) -> str:
    """What a person can do about this failure, from what is known of such ones."""
    text = "\n".join((run.reason, *lines))
    for pattern, words in _cures():
        if found := re.search(pattern, text):
            return words.format(*found.groups())
    return translate(
        "RunWords",
        "Look at the Logs tab for the whole output. To try again with other values, clone the run; with a checkpoint "
        "it can be resumed instead.",
    )


def _cures() -> list[tuple[str, str]]:
    return [
        (
            r"No space left|the disk is full",
            translate("RunWords", "The disk is full. Delete or archive runs you no longer need, then resume this one."),
        ),
        (
            r"CUDA out of memory|OutOfMemoryError",
            translate(
                "RunWords",
                "The GPU's memory was not enough. Use fewer environments or smaller batches, or a larger GPU.",
            ),
        ),
        (
            r"out of memory|memory limit|Cannot allocate memory|MemoryError",
            translate(
                "RunWords",
                "Memory was not enough. Ask for more memory, use fewer environments or a smaller replay buffer.",
            ),
        ),
        (
            r"No module named '([\w.]+)'|set `([\w-]+)` is not installed",
            translate(
                "RunWords",
                "A package is missing. Install its requirement set: Management › Workers, or `mosaic extras`.",
            ),
        ),
        (
            r"out of wall-clock time",
            translate(
                "RunWords",
                "It reached its time limit. Resume it with a longer one; it goes on from its last checkpoint.",
            ),
        ),
        (
            r"did not register within",
            translate(
                "RunWords",
                "The worker did not start in time. Is its environment complete? `mosaic doctor` looks; see Logs too.",
            ),
        ),
        (
            r"silent for more than",
            translate(
                "RunWords",
                "The worker hung, or its machine was too busy. If one step takes very long, give it a longer "
                "scheduling.silence_s; otherwise resume it from its last checkpoint.",
            ),
        ),
        (
            r"refused its config",
            translate("RunWords", "The worker does not accept these values. Clone the run and change what it names."),
        ),
        (
            r"killed by SIGKILL",
            translate(
                "RunWords",
                "Something killed the process; mostly this is the system when memory runs out. Use less, then resume.",
            ),
        ),
        (
            r"\bnan\b|\bNaN\b",
            translate(
                "RunWords",
                "Training produced values that are no numbers. A smaller learning rate often helps; clone and change.",
            ),
        ),
    ]
