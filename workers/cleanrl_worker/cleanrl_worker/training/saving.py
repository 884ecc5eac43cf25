"""Checkpoints on their way to the disk, on a thread of their own; which of them stay.

Of the checkpoints of a run its newest stays, the best, and the last few others (`--keep-checkpoints`). One is removed
only after a newer one is safely on disk and the manifest names it no longer.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import STATE_FILE, read_checkpoint, shared_files
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.files import read_json_object, write_bytes_atomically
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder

from cleanrl_worker.errors import TrainingStopped
from cleanrl_worker.training.checkpoint import ReplayPart, save_state
from cleanrl_worker.training.replay_segments import SavedReplay, SegmentStore
from cleanrl_worker.training.state import TrainingState

BEST_POLICY = "best.cleanrl_model"
_PATIENCE_S = 2.0
"""How long a removal waits for the worker to take a checkpoint out of the manifest; else it comes with the next one"""
SAVED_AT_ONCE_BYTES = 256 << 20
"""What even a slow disk takes within the grace that a stopped run has"""
_NAME = re.compile(r"step-(0|[1-9][0-9]*)", re.ASCII)

Tell = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Best:
    """The checkpoint that did best so far."""

    step: int
    score: float
    by: str
    """`evaluation`, or `training`: the mean return of the last hundred episodes"""

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "score": self.score, "by": self.by}


@dataclass(frozen=True)
class Order:
    """What the writing thread is to bring to the disk."""

    state: TrainingState
    kind: str
    replay: ReplayPart | None = None
    best: Best | None = None
    """This checkpoint is the best so far"""
    policy: bytes | None = None
    """Its bare weights, for `best.cleanrl_model`"""


class Checkpoints:
    """The checkpoints of a run. `save` returns at once; whatever goes wrong is raised by the next call."""

    def __init__(
        self, folder: RunFolder, algo: str, tell: Tell, *, keep: int = 3, before: Callable[[], None] = lambda: None
    ) -> None:
        """`before` is called before each is written: what charts show of the steps up to it must not be lost."""
        self.keep = keep
        self.best: Best | None = None
        self._before = before
        self._folder, self._algo, self._tell = folder, algo, tell
        self._segments = SegmentStore(folder.checkpoints)
        self._kept: dict[int, set[str]] = {}
        """Step of a checkpoint that counts → the shared files it refers to"""
        self._stale: set[int] = set()
        """Checkpoints of an attempt that went further than what this one goes on from: they could not be used"""
        self._leaving: set[int] = set()
        """Not in the manifest any more, or soon; still on disk"""
        self._at_work: Future[None] | None = None

    # -- what an earlier attempt left

    def take_over(self, step: int, replay: SavedReplay | None, best: Mapping[str, Any] | None) -> list[str]:
        """Go on from one of this run's own; say which later ones were passed over, and why."""
        if replay is not None:
            self._segments.know(replay)
        found = {int(name.removeprefix("step-")) for name in _names_in(self._folder.checkpoints)}
        self._kept = {known: self._references(known) for known in found if known <= step}
        self._stale = found - self._kept.keys()
        if best is not None and int(best["step"]) in self._kept:
            self.best = Best(int(best["step"]), float(best["score"]), str(best["by"]))
            self._tell_best(self.best)  # whoever was killed may not have come to say it
        for name in os.listdir(self._folder.checkpoints):
            if name.startswith("."):  # half a checkpoint of somebody who was killed
                shutil.rmtree(self._folder.checkpoints / name, ignore_errors=True)
        return [f"checkpoints/step-{later}: {self._damage(later)}" for later in sorted(self._stale)]

    def _references(self, step: int) -> set[str]:
        with suppress(OSError, ValueError):
            document = read_json_object(self._path(step) / STATE_FILE)
            return {file.path for file in shared_files(document)}
        return set()

    def _damage(self, step: int) -> str:
        try:
            read_checkpoint(self._path(step))
        except DamagedCheckpoint as error:
            return str(error)
        return "it is not the one the manifest lists"

    def _path(self, step: int) -> Path:
        return self._folder.checkpoints / f"step-{step}"

    # -- the training's thread

    def save(self, order: Order) -> None:
        """Hand a checkpoint over; waits for the one before."""
        try:
            self.wait()
        except BaseException:
            if order.replay is not None:
                order.replay.release()
            raise
        if order.best is not None:
            self.best = order.best
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._at_work = thread.submit(self._bring_to_disk, order)
        thread.shutdown(wait=False)  # it ends with this one

    def save_in_a_hurry(self, order: Order) -> None:
        """The same when the process may soon be killed: what is small is saved first, alone, if the rest takes long."""
        self.wait()
        if order.replay is not None and self._segments.unwritten_bytes(order.replay.segments) > SAVED_AT_ONCE_BYTES:
            self.save(replace(order, replay=None))
        self.save(order)

    def is_better(self, score: float) -> bool:
        """Whether a checkpoint with this score would be the best so far."""
        return math.isfinite(score) and (self.best is None or score > self.best.score)

    def name_best(self, best: Best, policy: bytes | None) -> None:
        """Say that a checkpoint which is on disk already is the best one."""
        self.best = best
        self._tell_best(best)
        if policy is not None:
            write_policy(self._folder, BEST_POLICY, policy)

    def check(self) -> None:
        """Raise what has gone wrong, if anything has."""
        if self._at_work is not None and self._at_work.done():
            self.wait()

    def wait(self) -> None:
        """Return when everything handed over is on disk; raise what went wrong, once."""
        at_work, self._at_work = self._at_work, None
        if at_work is not None:
            at_work.result()

    # -- the writing thread

    def _bring_to_disk(self, order: Order) -> None:
        step = order.state.step
        run = {**order.state.run, "best": self.best.to_json() if self.best is not None else None}
        try:
            self._before()
            entry = save_state(
                self._folder, self._algo, replace(order.state, run=run), order.kind,
                store=self._segments, replay=order.replay,
            )  # fmt: skip
        except BaseException:
            if order.replay is not None:
                order.replay.release()
            # What was written of its replay buffer must not fill a disk on which it had no room.
            self._segments.remove_all_but(self._needed())
            raise
        self._kept[step] = self._references(step) if order.replay is not None else set()
        self._leaving.discard(step)
        facts = {"path": entry.path, "step": step, "sha256": entry.sha256, "checkpoint_kind": entry.kind}
        self._tell("checkpoint_saved", facts)
        if order.best is not None:
            self._tell_best(order.best)
        if order.policy is not None:
            write_policy(self._folder, BEST_POLICY, order.policy)
        self._remove_old(step, order.kind)

    def _tell_best(self, best: Best) -> None:
        self._tell("best", {"path": f"checkpoints/step-{best.step}", **best.to_json()})

    def _needed(self) -> set[str]:
        return set().union(*self._kept.values(), *(self._references(step) for step in (*self._leaving, *self._stale)))

    def _remove_old(self, newest: int, kind: str) -> None:
        passed = {step for step in self._stale if step <= newest}
        self._stale -= passed
        others = self._kept.keys() - {newest if kind == "last" else -1, self.best.step if self.best is not None else -1}
        old = (set(sorted(others)[: -self.keep]) | passed) - {newest}
        for step in sorted(old):
            self._kept.pop(step, None)
            self._tell("checkpoint_removed", {"path": f"checkpoints/step-{step}", "step": step})
        self._leaving |= old
        for step in self._unlisted(self._leaving):
            self._remove(step)
        self._segments.remove_all_but(self._needed())

    def _unlisted(self, steps: Iterable[int]) -> set[int]:
        """Those that the manifest does not name; waits a moment for the worker to come to it."""
        wanted, deadline = set(steps), time.monotonic() + _PATIENCE_S
        while wanted:
            try:
                listed = {entry.step for entry in AnalyticsManifest.read(self._folder.manifest).checkpoints}
            except (OSError, ValueError):
                return wanted  # nobody keeps one
            if not wanted & listed or time.monotonic() > deadline:
                return wanted - listed
            time.sleep(0.01)
        return wanted

    def _remove(self, step: int) -> None:
        aside = self._folder.checkpoints / f".step-{step}.{secrets.token_hex(6)}.old"
        with suppress(FileNotFoundError):
            try:
                self._path(step).rename(aside)  # it is there or not, never half of it
            except PermissionError:
                return  # somebody protects it
            shutil.rmtree(aside, ignore_errors=True)
        self._leaving.discard(step)


def write_policy(folder: RunFolder, name: str, content: bytes) -> None:
    """Write a file with bare weights; TrainingStopped when there is no room."""
    try:
        write_bytes_atomically(folder.root / name, content)
    except OSError as error:
        raise TrainingStopped(f"the policy {name} could not be written: {error.strerror or error}") from error


def _names_in(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except OSError:
        return []
