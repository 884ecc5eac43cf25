"""How much memory and disk a run will take, from what its algorithm declares, and how much there is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanrl_worker.declarations import Declaration, Flags, Size

MARGIN_DISK_BYTES = 64 << 20
"""Event files, logs and manifests"""


@dataclass(frozen=True)
class Needs:
    """Bytes by purpose; what could not be computed (the environment is unknown) is not in it."""

    process: int
    memory: Mapping[str, int] = field(default_factory=dict)
    checkpoint: int = 0
    checkpoints: int = 0
    """How many lie on the disk at once, at most"""
    replay: Mapping[str, int] = field(default_factory=dict)
    """What the replay buffer takes on the disk"""
    margin: int = MARGIN_DISK_BYTES
    flags: tuple[str, ...] = ()
    """Fields that the largest part depends on: the values to lower"""

    @property
    def memory_bytes(self) -> int:
        return self.process + sum(self.memory.values())

    @property
    def disk(self) -> dict[str, int]:
        """Bytes on the disk by purpose."""
        checkpoints = {f"{self.checkpoints} checkpoints": self.checkpoint * self.checkpoints} if self.checkpoint else {}
        return {**checkpoints, **self.replay, "events and logs": self.margin}

    @property
    def disk_bytes(self) -> int:
        return sum(self.disk.values())

    def memory_problem(self, available: int | None, suffix: str = "are free") -> str | None:
        """Return a problem that names the largest part if it does not fit."""
        if available is None or self.memory_bytes <= available:
            return None
        parts = sorted(self.memory.items(), key=lambda part: -part[1])
        largest = f", {gib(parts[0][1])} of it for the {parts[0][0]}" if parts else ""
        cure = f"; lower {' or '.join('--' + name.replace('_', '-') for name in self.flags)}" if self.flags else ""
        return f"the run needs about {gib(self.memory_bytes)} of memory{largest}; {gib(available)} {suffix}{cure}"

    def disk_problem(self, free: int, where: Path) -> str | None:
        """Return a problem that names the parts if its files do not fit."""
        if self.disk_bytes <= free:
            return None
        largest = sorted(self.disk.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{gib(size)} for {purpose}" for purpose, size in largest if size >= self.disk_bytes / 50)
        cure = ""
        if largest[0][0] in self.replay:
            cure = "; lower --buffer-size, or leave it out of the checkpoints with --checkpoint-replay none"
        elif self.checkpoints > 1:
            cure = "; lower --keep-checkpoints"
        return f"the run needs about {gib(self.disk_bytes)} of disk ({parts}); {gib(free)} are free in {where}{cure}"


def estimate(
    declared: Declaration, values: Mapping[str, Any], facts: Mapping[str, Any] | None, *, process_mb: int
) -> Needs:
    """Compute what an algorithm declares about its memory and its checkpoints."""
    known = {**values, **sizes_of(facts)}
    memory: dict[str, int] = {}
    lowered: set[str] = set()
    for purpose, size in declared.memory.items():
        found, read = _bytes(size, known)
        if found is not None:
            memory[purpose] = found
            if found >= max(memory.values()):
                lowered = read
    checkpoint = _bytes(declared.checkpoint, known)[0] or 0
    replay = _replay_on_disk(sum(memory.get(name, 0) for name in _REPLAY), values)
    if values.get("replay_storage") == "disk":  # pages of it come and go as they are needed
        memory = {purpose: size for purpose, size in memory.items() if purpose not in _REPLAY}
    flags = tuple(sorted(lowered & values.keys()))
    return Needs(process_mb << 20, memory, checkpoint, 1 + sum(_kept_besides_the_last(values)), replay, flags=flags)


def sizes_of(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the environment's sizes as declarations read them; nothing where they could not be found out."""
    if facts is None or "problem" in facts:
        return {}
    seen, action = facts["observation"], facts["action"]
    return {"obs_size": seen["size"], "obs_bytes": seen.get("bytes"), "actions": action["count"]}


def _bytes(size: Size, known: Mapping[str, Any]) -> tuple[int | None, set[str]]:
    """(bytes, the values they depend on); None where one of them is unknown."""
    flags = Flags(known)
    try:
        return max(0, int(size(flags))), flags.read
    except AttributeError:
        return None, set()


_REPLAY = ("replay buffer",)
"""Purposes of `Declaration.memory` that are the replay buffer which checkpoints hold"""


def _kept_besides_the_last(values: Mapping[str, Any]) -> tuple[int, int]:
    """(periodic checkpoints, best ones) that lie on the disk at once: an old one goes when the new one is there."""
    total, every = int(values.get("total_timesteps") or 0), int(values.get("checkpoint_freq") or 0)
    evaluated = bool(values.get("eval_freq"))
    periodic = total // every if every > 0 else 0
    if "keep_checkpoints" in values:
        periodic = min(periodic, int(values["keep_checkpoints"]) + 1)
    return periodic, int("keep_checkpoints" in values and (every > 0 or evaluated))


def _replay_on_disk(size: int, values: Mapping[str, Any]) -> dict[str, int]:
    """Return what the buffer of this size in memory takes on the disk: as a file, and in checkpoints."""
    parts = {}
    if values.get("replay_storage") == "disk":
        parts["the replay buffer"] = size
    if values.get("checkpoint_replay") == "full" and size:
        # Checkpoints share what has not changed between them. The older they are, the more of it they alone refer to.
        rows = max(1, int(values.get("buffer_size") or 1))
        filled = min(size, size * int(values.get("total_timesteps") or rows) // rows)
        periodic, best = _kept_besides_the_last(values)
        changed = min(filled, size * int(values.get("checkpoint_freq") or 0) // rows)
        parts["the replay buffer in checkpoints"] = filled + periodic * changed + best * filled
    return parts


def free_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what new processes may use: the machine's available memory, or the limit of a control group if lower."""
    found = [_memory_line(proc, "MemAvailable")]
    for group, limit in _limits(proc, cgroups):
        used = _text(group / "memory.current").strip()
        if used.isdigit():
            cached = re.search(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
            found.append(max(0, limit - int(used) + (int(cached[1]) if cached else 0)))
    return min((size for size in found if size is not None), default=None)


def total_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what all processes together may use: what could never fit is more than this."""
    found = [_memory_line(proc, "MemTotal"), *(limit for _, limit in _limits(proc, cgroups))]
    return min((size for size in found if size is not None), default=None)


def _memory_line(proc: Path, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[Path, int]]:
    """Our control group and those around it that limit memory."""
    own = re.search(r"^0::/(.*)$", _text(proc / "self" / "cgroup"), re.MULTILINE)
    group = cgroups / own[1] if own else cgroups
    while group.is_relative_to(cgroups):
        limit = _text(group / "memory.max").strip()
        if limit.isdigit():
            yield group, int(limit)
        group = group.parent


def free_disk_bytes(folder: Path) -> int:
    """Room where this folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def gib(size: float) -> str:
    """`26.3 GiB`, `512 MiB`"""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{max(1, round(size / 2**20))} MiB"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
