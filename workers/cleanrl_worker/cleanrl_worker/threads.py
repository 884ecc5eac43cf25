"""Thread counts of numeric libraries; they read them once, when they are imported."""

from __future__ import annotations

import os

from mosaic_wire import env


def limit_threads(count: int) -> None:
    """Let OpenMP, MKL and OpenBLAS use this many threads, unless the user has said otherwise."""
    for name in env.THREAD_COUNTS:
        os.environ.setdefault(name, str(count))
