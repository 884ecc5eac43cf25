"""Whether a run's files can be reached from this window: they lie where the daemon is."""

from __future__ import annotations

from pathlib import Path

_LOOPBACK = ("unix:", "127.", "localhost", "[::1]", "::1")


def is_on_this_machine(target: str, run_dir: str) -> bool:
    """By the daemon's address; a loopback port may be a tunnel to elsewhere, and then the folder is not here."""
    if not run_dir:
        return False
    if target.startswith("unix:"):
        return True
    is_loopback = not target or target.startswith(_LOOPBACK)
    return is_loopback and Path(run_dir).parent.exists()
