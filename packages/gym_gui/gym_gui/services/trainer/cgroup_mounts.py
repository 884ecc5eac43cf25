"""Where the control group trees are mounted, where we stand in them, and what our container allows us."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

V2 = "unified"
"""Our name for the version 2 tree; version 1 trees have the names of their controllers."""
NO_LIMIT_BYTES = 2**60
"""Version 1 has no word for "no limit", only a number close to 2**63."""


@dataclass(frozen=True)
class Mount:
    """One tree, or the part of it that is mounted here."""

    root: str
    point: Path

    def folder_of(self, path: str) -> Path:
        """Translate a path of /proc/<pid>/cgroup; inside a container only a part of the tree may be mounted."""
        if self.root != "/" and (path == self.root or path.startswith(self.root + "/")):
            path = path[len(self.root) :]
        return self.point / path.lstrip("/")


def mounts() -> dict[str, Mount]:
    """Return every tree by its name."""
    found: dict[str, Mount] = {}
    with suppress(OSError), open("/proc/self/mountinfo") as stream:
        for line in stream:
            before, _, after = line.partition(" - ")
            fields, filesystem = before.split(), after.split()
            if not filesystem or filesystem[0] not in ("cgroup", "cgroup2"):
                continue
            mount = Mount(fields[3], Path(fields[4]))
            names = [V2] if filesystem[0] == "cgroup2" else filesystem[-1].split(",")
            for name in names:
                found.setdefault(name, mount)
    return found


def memberships(pid: int | str) -> list[tuple[str, str]]:
    """Return (controller, path) of a process; the version 2 tree has the name `unified`."""
    try:
        with open(f"/proc/{pid}/cgroup") as stream:
            lines = [line.rstrip("\n").split(":", 2) for line in stream]
    except OSError:
        return []
    return [(name, path) for _, names, path in lines for name in (names.split(",") if names else [V2])]


def own_folders() -> dict[str, Path]:
    """Return the folder of this process's group in each tree."""
    trees = mounts()
    folders = {name: trees[name].folder_of(path) for name, path in memberships("self") if name in trees}
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


@dataclass(frozen=True)
class MemoryCeiling:
    """What the groups around this process (its container) allow all in all, and what is left of it."""

    total_bytes: int
    free_bytes: int


def memory_ceiling() -> MemoryCeiling | None:
    """Return the tightest memory limit around this process; None: only the machine limits it."""
    own, trees = own_folders(), mounts()
    tightest: MemoryCeiling | None = None
    for tree, limit_file, used_file, cache_key in (
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        (V2, "memory.max", "memory.current", "inactive_file"),
    ):
        if tree not in own:
            continue
        folder = own[tree]
        while folder == trees[tree].point or trees[tree].point in folder.parents:
            limit, used = read_number(folder / limit_file), read_number(folder / used_file)
            if limit is not None and used is not None and limit < NO_LIMIT_BYTES:
                cached = read_table(folder / "memory.stat").get(cache_key, 0)
                free = max(0, limit - max(0, used - cached))
                if tightest is not None:
                    limit, free = min(limit, tightest.total_bytes), min(free, tightest.free_bytes)
                tightest = MemoryCeiling(limit, free)
            folder = folder.parent
    return tightest


def cpu_quota() -> float | None:
    """Return how many CPUs' worth of time the groups around this process allow it; None: all of them."""
    own, trees = own_folders(), mounts()
    quotas: list[float] = []
    for tree in ("cpu", V2):
        folder = own.get(tree)
        while folder is not None and (folder == trees[tree].point or trees[tree].point in folder.parents):
            words = read_words(folder / "cpu.max")
            if tree == "cpu":
                words = read_words(folder / "cpu.cfs_quota_us") + read_words(folder / "cpu.cfs_period_us")
            if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
                quotas.append(int(words[0]) / int(words[1]))
            folder = folder.parent
    return min(quotas, default=None)


def read_words(path: Path) -> list[str]:
    """Return the words of a control file; none when it is not there."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def read_number(path: Path) -> int | None:
    """Return the number in a control file; None for `max` or no file."""
    words = read_words(path)
    return int(words[0]) if words and words[0].isdecimal() else None


def read_table(path: Path) -> dict[str, int]:
    """Return a control file of `name number` lines; empty when it is not there."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}
