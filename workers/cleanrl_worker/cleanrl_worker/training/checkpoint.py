"""Checkpoint folders: arrays in `state.safetensors`, the rest in `state.json`; nothing is ever unpickled.

The replay buffer lies beside them, see replay_segments.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mosaic_wire.checkpoints import read_checkpoint, shared_files, write_checkpoint
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.manifest import CheckpointEntry
from mosaic_wire.paths import RunFolder
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.replay_segments import SavedReplay, Segment, SegmentStore
from cleanrl_worker.training.state import TrainingState

FORMAT = 1
_ARRAYS = "state.safetensors"


@dataclass(frozen=True)
class ReplayPart:
    """A replay buffer at the moment of a snapshot."""

    facts: Mapping[str, Any]
    segments: Sequence[Segment]

    @classmethod
    def of(cls, state: TrainingState) -> ReplayPart | None:
        """Take hold of it, on the thread that fills it; whoever calls this must write it or release it."""
        return None if state.replay is None else cls(state.replay.facts(), state.replay.segments())

    def release(self) -> None:
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
    """Write `checkpoints/step-<n>/`; a full disk leaves the earlier ones as they were."""
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
    """Read a checkpoint of this algorithm; refuse any other with the reason.

    Its replay buffer is read, and its hashes are compared, only when a learner asks for it (`restore_replay`).
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
