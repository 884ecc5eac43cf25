"""Thread counts of numeric libraries; they read them once, when they are imported."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from mosaic_wire import env


def limit_threads(count: int) -> None:
    """Let OpenMP, MKL and OpenBLAS use this many threads, unless the user has chosen otherwise."""
    for name in env.THREAD_COUNTS:
        os.environ.setdefault(name, str(count))


def set_numpy_threads(count: int) -> int | None:
    """Let numpy's matrix products use this many threads; return the number they use, None where it is unknown.

    For processes that imported numpy before the variables were set. Threads that wait for each other on a busy machine
    make the small products of a small network many times slower.
    """
    try:
        library = ctypes.CDLL(re.findall(r"/\S*openblas\S*\.so\S*", Path("/proc/self/maps").read_text())[0])
    except (OSError, IndexError):  # another system, or numpy was built with something else
        return None
    for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
        change = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
        if change is not None:
            change(count)
            return int(getattr(library, f"{prefix}openblas_get_num_threads{suffix}")())
    return None
