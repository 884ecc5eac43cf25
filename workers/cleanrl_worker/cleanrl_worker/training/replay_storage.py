"""Where a replay buffer's arrays lie: in memory, or in files that the system maps into it page by page."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cleanrl_worker.errors import TrainingStopped

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Makes an array of this shape and type, full of zeros"""


def in_memory(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Pages of memory are taken when they are first written to."""
    return np.zeros(shape, dtype=dtype)


def on_disk(folder: Path | None) -> Allocate:
    """Make arrays that lie in files in this folder (by default in the system's one for temporary files)."""

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape)) * dtype.itemsize
        where = folder if folder is not None else Path(tempfile.gettempdir())
        descriptor, name = tempfile.mkstemp(prefix=".replay-", suffix=".mapped", dir=where)
        try:
            # Its name goes at once: however the process ends, its room is free again.
            os.unlink(name)
            # All of it now, while a full disk is an error. Later it would be a SIGBUS in the middle of training.
            os.posix_fallocate(descriptor, 0, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError as error:
            raise TrainingStopped(
                f"the replay buffer does not fit on the disk of {where} ({size / 2**30:.1f} GiB for one part of it): "
                f"{error.strerror or error}; lower --buffer-size"
            ) from error
        finally:
            os.close(descriptor)
        return np.frombuffer(mapped, dtype=dtype).reshape(shape)

    return allocate
