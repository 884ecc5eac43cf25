"""Checkpoint folders: arrays in `state.safetensors`, the rest in `state.json`; nothing is ever unpickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mosaic_wire.checkpoints import read_checkpoint, write_checkpoint
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.manifest import CheckpointEntry
from mosaic_wire.paths import RunFolder
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.state import TrainingState

FORMAT = 1
_ARRAYS = "state.safetensors"


def save_state(folder: RunFolder, algo: str, state: TrainingState, kind: str) -> CheckpointEntry:
    """Write `checkpoints/step-<n>/`; a full disk leaves the earlier ones as they were."""
    arrays = save({name: np.ascontiguousarray(array) for name, array in state.arrays.items()})
    document = {"format": FORMAT, "algo": algo, "values": dict(state.values)}
    try:
        return write_checkpoint(folder, state.step, document, {_ARRAYS: arrays}, kind=kind)
    except OSError as error:
        raise TrainingStopped(
            f"no checkpoint could be written to {folder.checkpoints} at step {state.step}: {error.strerror or error}"
        ) from error


def load_state(folder: Path, algo: str) -> TrainingState:
    """Read a checkpoint of this algorithm; refuse any other with the reason."""
    try:
        document = read_checkpoint(folder)
        if document.get("format") != FORMAT or not isinstance(document.get("values"), dict):
            raise BadInput(f"{folder} is not a checkpoint of this worker (format {document.get('format')!r})")
        if document.get("algo") != algo:
            raise BadInput(f"{folder} is a checkpoint of {document.get('algo')!r}; this run is {algo!r}")
        arrays = load((folder / _ARRAYS).read_bytes())
    except (DamagedCheckpoint, SafetensorError, OSError) as error:
        raise BadInput(f"the checkpoint {folder} cannot be used: {error}") from error
    return TrainingState(document["step"], arrays, document["values"])
