"""Checkpoints: their content, how they are written and removed, and how a learner is restored from one.

`TrainingState` is arrays and JSON values, plus the replay buffer; `Checkpoints` writes in the background.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mosaic_wire.checkpoints import STATE_FILE, read_checkpoint, shared_files, write_checkpoint
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.files import read_json_object, write_bytes_atomically
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import RunFolder
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from cleanrl_worker.declarations import declaration_of
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.envs import EnvState, EpisodeTracker, VectorEnvs
from cleanrl_worker.training.fast_cpu import AUTO, AUTOGRAD, HasEngine
from cleanrl_worker.training.replay import SavedReplay, Segment, SegmentedReplay, SegmentStore


@dataclass(frozen=True)
class TrainingState:
    """Everything learning depends on at one step; arrays have a prefix per part (`agent.`, `adam.`, `envs.`)."""

    step: int
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Any]
    replay: SegmentedReplay | None = None
    """The learner's buffer, in a snapshot: saved as segments beside the checkpoints, each written once"""
    saved_replay: SavedReplay | None = None
    """The buffer's content, in a loaded checkpoint; None if it holds none. See `restore_replay`"""
    run: Mapping[str, Any] = field(default_factory=dict)
    """State of the run besides the learner: its best checkpoint"""

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays of one part, without its prefix."""
        start = f"{prefix}."
        return {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}

    def environments(self) -> EnvState:
        """Return the state of the environments."""
        return EnvState(self.part("envs"), self.values["envs"])

    def restore_replay(self, buffer: SegmentedReplay) -> bool:
        """Restore a new learner's buffer from the checkpoint; for `Learner.restore`.

        Return False if the checkpoint was written with `--checkpoint-replay none`. The buffer stays empty, and the
        learner fills it as at the beginning: with `learning_starts` steps before the next update, counted from
        `state.step`. The run reports that.
        """
        if self.saved_replay is None:
            return False
        self.saved_replay.read_into(buffer)
        return True


FORMAT = 1
_ARRAYS = "state.safetensors"


@dataclass(frozen=True)
class ReplayPart:
    """A replay buffer at the moment of a snapshot."""

    facts: Mapping[str, Any]
    segments: Sequence[Segment]

    @classmethod
    def of(cls, state: TrainingState) -> ReplayPart | None:
        """Return the segments, on the thread that fills the buffer; the caller must write or release them."""
        return None if state.replay is None else cls(state.replay.facts(), state.replay.segments())

    def release(self) -> None:
        """Release all segments."""
        for segment in self.segments:
            segment.release()


def save_state(
    folder: RunFolder,
    algo: str,
    state: TrainingState,
    kind: str,
    *,
    store: SegmentStore | None = None,
    replay: ReplayPart | None = None,
) -> CheckpointEntry:
    """Write `checkpoints/step-<n>/`; if the disk is full, the earlier ones stay intact."""
    document: dict[str, Any] = {"format": FORMAT, "algo": algo, "values": dict(state.values), "run": dict(state.run)}
    try:
        shared = []
        if replay is not None:
            saved = (store or SegmentStore(folder.checkpoints)).write(replay.facts, replay.segments)
            document["replay"] = saved.to_json()
            shared = [file for _, file in saved.files.values()]
        arrays = save({name: np.asarray(array, order="C") for name, array in state.arrays.items()})
        return write_checkpoint(folder, state.step, document, {_ARRAYS: arrays}, kind=kind, shared=shared)
    except OSError as error:
        raise TrainingStopped(
            f"no checkpoint could be written to {folder.checkpoints} at step {state.step}: {error.strerror or error}"
        ) from error


def load_state(folder: Path, algo: str) -> TrainingState:
    """Read a checkpoint of this algorithm; raise BadInput for any other.

    Its replay buffer is read, and its hashes are compared, only by `restore_replay`.
    """
    try:
        document = read_checkpoint(folder, hash_shared=False)
        if document.get("format") != FORMAT or not isinstance(document.get("values"), dict):
            raise BadInput(f"{folder} is not a checkpoint of this worker (format {document.get('format')!r})")
        if document.get("algo") != algo:
            raise BadInput(f"{folder} is a checkpoint of {document.get('algo')!r}; this run is {algo!r}")
        arrays = load((folder / _ARRAYS).read_bytes())
        replay = None
        if "replay" in document:
            replay = SavedReplay.from_json(folder.parent, document["replay"], shared_files(document))
    except (DamagedCheckpoint, SafetensorError, OSError) as error:
        raise BadInput(f"the checkpoint {folder} cannot be used: {error}") from error
    run = document.get("run")
    return TrainingState(
        document["step"], arrays, document["values"], saved_replay=replay, run=run if isinstance(run, dict) else {}
    )


BEST_POLICY = "best.cleanrl_model"
_PATIENCE_S = 2.0
"""How long a removal waits for the worker to remove a checkpoint from the manifest; else the next save removes it"""
SAVED_AT_ONCE_BYTES = 256 << 20
"""What a slow disk can write within the grace period of a stopped run"""
_NAME = re.compile(r"step-(0|[1-9][0-9]*)", re.ASCII)

Send = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Best:
    """The best checkpoint so far."""

    step: int
    score: float
    by: str
    """`evaluation`, or `training`: the mean return of the last hundred episodes"""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"step": self.step, "score": self.score, "by": self.by}


@dataclass(frozen=True)
class SaveRequest:
    """A checkpoint for the writing thread."""

    state: TrainingState
    kind: str
    replay: ReplayPart | None = None
    best: Best | None = None
    """Set if this checkpoint is the best so far"""
    policy: bytes | None = None
    """Its weights, for `best.cleanrl_model`"""


class Checkpoints:
    """The checkpoints of a run. `save` returns at once; the next call raises its error, if any."""

    def __init__(
        self, folder: RunFolder, algo: str, send: Send, *, keep: int = 3, before: Callable[[], None] = lambda: None
    ) -> None:
        """`before` is called before each write, to flush the charts of the steps up to it."""
        self.keep = keep
        self.best: Best | None = None
        self._before = before
        self._folder, self._algo, self._send = folder, algo, send
        self._segments = SegmentStore(folder.checkpoints)
        self._kept: dict[int, set[str]] = {}
        """Step of a checkpoint to keep → the shared files it refers to"""
        self._stale: set[int] = set()
        """Later checkpoints of an earlier attempt, which could not be used"""
        self._removing: set[int] = set()
        """Removed from the manifest, but still on disk"""
        self._writing: Future[None] | None = None

    # -- checkpoints of an earlier attempt

    def adopt(self, step: int, replay: SavedReplay | None, best: Mapping[str, Any] | None) -> list[str]:
        """Continue from one of this run's checkpoints; return which later ones were skipped, and why."""
        if replay is not None:
            self._segments.know(replay)
        found = {int(name.removeprefix("step-")) for name in _names_in(self._folder.checkpoints)}
        self._kept = {known: self._references(known) for known in found if known <= step}
        self._stale = found - self._kept.keys()
        if best is not None and int(best["step"]) in self._kept:
            self.best = Best(int(best["step"]), float(best["score"]), str(best["by"]))
            self._report_best(self.best)  # a killed process may not have reported it
        for name in os.listdir(self._folder.checkpoints):
            if name.startswith("."):  # an incomplete checkpoint of a killed process
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

    # -- called by the training thread

    def save(self, request: SaveRequest) -> None:
        """Write a checkpoint in the background, after the one before it."""
        try:
            self.wait()
        except BaseException:
            if request.replay is not None:
                request.replay.release()
            raise
        if request.best is not None:
            self.best = request.best
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = thread.submit(self._write, request)
        thread.shutdown(wait=False)  # it ends with this one

    def save_quickly(self, request: SaveRequest) -> None:
        """Write a checkpoint when the process may soon be killed: first without a large replay buffer, then with it."""
        self.wait()
        if request.replay is not None and self._segments.unwritten_bytes(request.replay.segments) > SAVED_AT_ONCE_BYTES:
            self.save(replace(request, replay=None))
        self.save(request)

    def is_better(self, score: float) -> bool:
        """Return whether a checkpoint with this score would be the best so far."""
        return math.isfinite(score) and (self.best is None or score > self.best.score)

    def name_best(self, best: Best, policy: bytes | None) -> None:
        """Make a checkpoint that is already on disk the best one."""
        self.best = best
        self._report_best(best)
        if policy is not None:
            write_policy(self._folder, BEST_POLICY, policy)

    def check(self) -> None:
        """Raise the error of a finished write, if any."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the checkpoint being written; raise its error, once."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    # -- in the writing thread

    def _write(self, request: SaveRequest) -> None:
        step = request.state.step
        run = {**request.state.run, "best": self.best.to_json() if self.best is not None else None}
        try:
            self._before()
            entry = save_state(
                self._folder,
                self._algo,
                replace(request.state, run=run),
                request.kind,
                store=self._segments,
                replay=request.replay,
            )
        except BaseException:
            if request.replay is not None:
                request.replay.release()
            # Free the space of the segments that were already written.
            self._segments.remove_all_but(self._needed())
            raise
        self._kept[step] = self._references(step) if request.replay is not None else set()
        self._removing.discard(step)
        facts = {"path": entry.path, "step": step, "sha256": entry.sha256, "checkpoint_kind": entry.kind}
        self._send("checkpoint_saved", facts)
        if request.best is not None:
            self._report_best(request.best)
        if request.policy is not None:
            write_policy(self._folder, BEST_POLICY, request.policy)
        self._remove_old(step, request.kind)

    def _report_best(self, best: Best) -> None:
        self._send("best", {"path": f"checkpoints/step-{best.step}", **best.to_json()})

    def _needed(self) -> set[str]:
        return set().union(*self._kept.values(), *(self._references(step) for step in (*self._removing, *self._stale)))

    def _remove_old(self, newest: int, kind: str) -> None:
        passed = {step for step in self._stale if step <= newest}
        self._stale -= passed
        others = self._kept.keys() - {newest if kind == "last" else -1, self.best.step if self.best is not None else -1}
        old = (set(sorted(others)[: -self.keep]) | passed) - {newest}
        for step in sorted(old):
            self._kept.pop(step, None)
            self._send("checkpoint_removed", {"path": f"checkpoints/step-{step}", "step": step})
        self._removing |= old
        for step in self._unlisted(self._removing):
            self._remove(step)
        self._segments.remove_all_but(self._needed())

    def _unlisted(self, steps: Iterable[int]) -> set[int]:
        """Return the steps that the manifest does not list; wait up to _PATIENCE_S for the worker to update it."""
        unlisted, deadline = set(steps), time.monotonic() + _PATIENCE_S
        while unlisted:
            try:
                listed = {entry.step for entry in AnalyticsManifest.read(self._folder.manifest).checkpoints}
            except (OSError, ValueError):
                return unlisted  # there is no manifest
            if not unlisted & listed or time.monotonic() > deadline:
                return unlisted - listed
            time.sleep(0.01)
        return unlisted

    def _remove(self, step: int) -> None:
        aside = self._folder.checkpoints / f".step-{step}.{secrets.token_hex(6)}.old"
        with suppress(FileNotFoundError):
            try:
                self._path(step).rename(aside)  # atomic, so that no reader sees a partial checkpoint
            except PermissionError:
                return  # protected by the file system
            shutil.rmtree(aside, ignore_errors=True)
        self._removing.discard(step)


def write_policy(folder: RunFolder, name: str, content: bytes) -> None:
    """Write a file with weights only; raise TrainingStopped if that fails."""
    try:
        write_bytes_atomically(folder.root / name, content)
    except OSError as error:
        raise TrainingStopped(f"the policy {name} could not be written: {error.strerror or error}") from error


def _names_in(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except OSError:
        return []


Weights = Mapping[str, np.ndarray]
"""A network's parameters by name"""
NEW_EPISODES = "new episodes: these environments cannot be restored within one"


class RolloutLearner(Protocol):
    """The parts of a learner that are saved here."""

    args: Any
    envs: VectorEnvs
    episodes: EpisodeTracker
    step: int
    rng: np.random.Generator
    next_obs: np.ndarray

    @property
    def agent(self) -> nn.Module:
        """Return the network."""

    def begin_episodes(self) -> None:
        """Reset the environments."""

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the network's weights."""


def snapshot_of(learner: RolloutLearner, parts: Mapping[str, Mapping[str, np.ndarray]]) -> TrainingState:
    """Return a snapshot of the learner; `parts` are copies of its other arrays, by prefix."""
    envs = learner.envs.snapshot()
    arrays = arrays_of(learner.agent, "agent")
    arrays |= {f"envs.{name}": array for name, array in envs.arrays.items()}
    arrays |= {f"{prefix}.{name}": array for prefix, part in parts.items() for name, array in part.items()}
    arrays["next_obs"] = learner.next_obs.copy()
    values: dict[str, Any] = {
        "args": asdict(learner.args),
        "rng": learner.rng.bit_generator.state,
        "episodes": learner.episodes.snapshot(),
        "envs": dict(envs.values),
    }
    if isinstance(learner, HasEngine):
        values["gradient_engine"] = learner.engine.name
    return TrainingState(learner.step, arrays, values)


def restore_into(learner: RolloutLearner, state: TrainingState) -> bool:
    """Restore the learner; return False if the environments had to begin new episodes."""
    check_flags_match(learner.args, state.values["args"])
    learner.load_agent(state.part("agent"), "the checkpoint")
    learner.rng.bit_generator.state = state.values["rng"]
    learner.step = state.step
    engine = state.values.get("gradient_engine")
    if isinstance(learner, HasEngine) and learner.args.gradient == AUTO and engine == AUTOGRAD:
        learner.use_autograd()  # rounding differs between the engines
    obs = learner.envs.restore(state.environments())
    learner.episodes.restore(state.values["episodes"], mid_episode=obs is not None)
    if obs is None:
        learner.begin_episodes()
        return False
    learner.next_obs = state.arrays["next_obs"].copy()
    return True


def check_flags_match(args: Any, earlier: Mapping[str, Any]) -> None:
    """Raise BadInput if the checkpoint was made with other values of flags that must not change."""
    for name in declaration_of(args).resume_needs:
        then, now = earlier.get(name, getattr(type(args), name)), getattr(args, name)
        if then != now:
            raise BadInput(f"the checkpoint was made with {name}={then!r}, this run has {now!r}")


def arrays_of(module: nn.Module, prefix: str) -> dict[str, np.ndarray]:
    """Return copies of a network's weights by name."""
    return {f"{prefix}.{name}": tensor.cpu().numpy().copy() for name, tensor in module.state_dict().items()}


_WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes of all names in models saved with DataParallel and torch.compile"""
_MAX_REPORTED = 4
_DISTINCTIVE_PARAMETERS = (
    ("network.convolutions.0.weight", "minigrid"),
    ("network.0.conv.weight", "impala"),
    ("network.7.weight", "atari"),
    ("actor_logstd", "gaussian"),
)
"""(parameter, network of ppo that alone has it)"""


def load_weights(network: nn.Module, weights: Mapping[str, np.ndarray], *, what: str) -> None:
    """Load the weights, all of them or none; raise BadInput with what does not fit."""
    found = _plain_names(weights)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} belongs to another network" for name in found if name not in expected]
    wrong += [
        f"{name} has shape {found[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    if wrong:
        more = f" and {len(wrong) - _MAX_REPORTED} more" if len(wrong) > _MAX_REPORTED else ""
        raise BadInput(f"{what} does not fit this algorithm and environment: {'; '.join(wrong[:_MAX_REPORTED])}{more}")
    odd = [name for name in expected if not np.isfinite(found[name]).all()]
    if odd:
        raise BadInput(
            f"{what} cannot be used: {len(odd)} of its {len(expected)} arrays ({', '.join(odd[:_MAX_REPORTED])}) hold "
            "NaN or infinite numbers; its file is damaged, or its training diverged"
        )
    with torch.no_grad():  # in place: the parameters are views of one block
        for name, tensor in network.state_dict().items():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(found[name])))


def _plain_names(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = dict(weights)
    for prefix in _WRAPPERS:
        if names and all(name.startswith(prefix) for name in names):
            names = {name.removeprefix(prefix): array for name, array in names.items()}
    return names


def agent_of(weights: Mapping[str, np.ndarray]) -> str:
    """Return which of ppo's networks these weights belong to, by their names."""
    names = _plain_names(weights)
    for name, kind in _DISTINCTIVE_PARAMETERS:
        if name in names:
            return kind
    return "mlp" if any(name.startswith("network.") for name in names) else "separate"
