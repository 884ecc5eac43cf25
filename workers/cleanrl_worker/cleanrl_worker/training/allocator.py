"""Keep freed memory: what training frees it needs again a moment later."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt"""
_LARGEST_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Let the C library keep blocks up to a gigabyte for itself; False where it cannot be told.

    By default glibc maps every larger block anew and hands it back when it is freed. The kernel then clears the same
    pages for every layer of every minibatch: a fifth of the time of a convolutional network's update.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, -1))
