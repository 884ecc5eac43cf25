"""Where a script came from: a copy in the run folder, its hash, and the state of the repository it lies in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mosaic_wire.files import write_bytes_atomically
from mosaic_wire.paths import RunFolder

from cleanrl_worker.scripts.reading import Script

_GIT_TIMEOUT_S = 10.0
_MAX_DIFF_BYTES = 4 << 20
# No program that the repository's own configuration names is started, and nothing in it is written.
_GIT = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "diff.external=",
)


def keep_copy(script: Script, folder: RunFolder, redact: Callable[[str], str] = str) -> dict[str, Any]:
    """Copy the script into the run folder; return what the manifest says about it."""
    place = folder.root / "scripts"
    place.mkdir(parents=True, exist_ok=True)
    copy = place / script.path.name
    write_bytes_atomically(copy, script.content)
    facts: dict[str, Any] = {
        "path": str(script.path), "sha256": script.sha256, "copy": f"scripts/{copy.name}", "style": str(script.style),
    }  # fmt: skip
    git = repository_state(script.path.parent)
    if git is not None:
        diff = git.pop("diff")
        if diff:
            write_bytes_atomically(place / "uncommitted.diff", redact(diff).encode("utf-8", "replace"))
            git["diff"] = "scripts/uncommitted.diff"
        facts["git"] = git
    return facts


def repository_state(folder: Path) -> dict[str, Any] | None:
    """Commit, uncommitted changes and new files of the folder; None where there is no git or no repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _git(folder, "status", "--porcelain=v1", "--untracked-files=normal", "--", ".") or ""
    changes = [line for line in status.splitlines() if line]
    return {
        "commit": commit.strip(),
        "is_dirty": bool(changes),
        "changes": changes[:200],
        "diff": (_git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".") or "") if changes else "",
    }


def _git(folder: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(
            [*_GIT, *words], cwd=folder, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    if answer.returncode != 0:
        return None
    return answer.stdout[:_MAX_DIFF_BYTES].decode("utf-8", "replace")
