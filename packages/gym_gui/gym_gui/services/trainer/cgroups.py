"""Control groups: limits that the kernel enforces, and membership that processes cannot leave.

Each attempt of a run gets a group `mosaic/<mark>` inside the daemon's own group, so that the limits of the daemon also
apply to its workers. Version 1 (a folder tree per controller) and version 2 (one tree) are both supported; where
neither is writable `Cgroups.detect()` returns None and the executor polls instead.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gym_gui.services.trainer.process_tree import read_process_table

logger = logging.getLogger(__name__)

FOLDER = "mosaic"
_V1_CONTROLLERS = ("memory", "pids", "freezer", "cpu")
_V2_CONTROLLERS = ("memory", "pids", "cpu")
_MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_FREEZE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class AttemptGroup:
    """The group of one attempt: one folder per controller (version 1) or one for all (version 2)."""

    folders: Mapping[str, Path]
    home_folders: Mapping[str, Path]
    """The folders of the daemon's own group"""

    @property
    def is_v2(self) -> bool:
        """Return whether the group is of cgroup version 2."""
        return V2 in self.folders

    def _folder(self, controller: str) -> Path | None:
        return self.folders.get(V2 if self.is_v2 else controller)

    # -- limits

    def set_limits(self, *, memory_mb: int | None, max_processes: int | None, cpus: float) -> None:
        """Set the limits of the group, as far as its controllers exist."""
        share = max(1.0, cpus)
        if memory_mb is not None:
            self._write("memory", "memory.max" if self.is_v2 else "memory.limit_in_bytes", memory_mb << 20)
            # Without these a worker over its limit would be swapped out and slow down instead of being stopped.
            if self.is_v2:
                self._write("memory", "memory.swap.max", 0)
            else:
                self._write("memory", "memory.memsw.limit_in_bytes", memory_mb << 20)
        if max_processes is not None:
            self._write("pids", "pids.max", max_processes)
        # A thousand busy processes of one run get the share of the CPUs it requested, not a thousand shares.
        if self.is_v2:
            self._write("cpu", "cpu.weight", min(10_000, int(100 * share)))
        else:
            self._write("cpu", "cpu.shares", min(262_144, int(1024 * share)))

    def _write(self, controller: str, name: str, value: int) -> bool:
        folder = self._folder(controller)
        if folder is None or not (folder / name).exists():
            return False
        try:
            (folder / name).write_text(str(value))
        except OSError as error:
            logger.info("control group %s refuses %s=%s: %s", folder, name, value, error)
            return False
        return True

    @property
    def memory_limit_mb(self) -> int | None:
        """Return the memory limit that the kernel enforces, or None."""
        value = self._number("memory", "memory.max" if self.is_v2 else "memory.limit_in_bytes")
        return None if value is None or value >= NO_LIMIT_BYTES else value >> 20

    @property
    def process_limit(self) -> int | None:
        """Return the limit on processes and threads that the kernel enforces, or None."""
        return self._number("pids", "pids.max")

    def limit_hit(self) -> str | None:
        """Return which limit the kernel has enforced since the group was created, or None."""
        if self._event("memory", "memory.events" if self.is_v2 else "memory.oom_control", "oom_kill"):
            limit_mb = self.memory_limit_mb
            if limit_mb is not None and self._reached_own_memory_limit():
                return f"it needed more than its memory limit of {limit_mb} MB and the kernel ended it"
            return "the machine ran out of memory and the kernel ended a process of this run"
        if self._event("pids", "pids.events", "max"):
            return f"it reached its limit of {self.process_limit} processes and threads"
        return None

    def _reached_own_memory_limit(self) -> bool:
        if self.is_v2:
            return bool(self._event("memory", "memory.events", "max"))
        # Newer kernels do not update memory.failcnt, so compare the peak, which is accurate to some pages.
        limit = self._number("memory", "memory.limit_in_bytes") or 0
        peak = self._number("memory", "memory.max_usage_in_bytes") or 0
        return peak >= limit - (1 << 20)

    def _number(self, controller: str, name: str) -> int | None:
        folder = self._folder(controller)
        return None if folder is None else read_number(folder / name)

    def _event(self, controller: str, name: str, key: str) -> int | None:
        folder = self._folder(controller)
        return None if folder is None else read_table(folder / name).get(key)

    # -- use

    def memory_bytes(self) -> int | None:
        """Return the memory its processes use, without file cache, or None if it cannot be read."""
        folder = self._folder("memory")
        if folder is None:
            return None
        stat = read_table(folder / "memory.stat")
        names = ("anon", "shmem") if self.is_v2 else ("total_rss", "total_shmem")
        return sum(stat[name] for name in names) if all(name in stat for name in names) else None

    def task_count(self) -> int | None:
        """Return the number of threads of all its processes, or None if it cannot be read."""
        return self._number("pids", "pids.current")

    # -- members

    @contextmanager
    def entered_by_this_thread(self) -> Iterator[None]:
        """Move the calling thread into the group, so that the processes it starts are inside (version 1).

        Moving itself is also cheap for a thread; moving another process takes milliseconds.
        """
        try:
            for folder in dict.fromkeys(self.folders.values()):
                (folder / "tasks").write_text("0")
            yield
        finally:
            for controller in self.folders:
                with suppress(OSError):  # `detect` tested that this works
                    (self.home_folders[controller] / "tasks").write_text("0")

    @property
    def entrance(self) -> Path:
        """Return the file that a process writes 0 to in order to enter the group (version 2)."""
        return self.folders[V2] / "cgroup.procs"

    def add(self, pid: int) -> bool:
        """Move a process with its threads into the group; return whether that worked."""
        moved = True
        for folder in dict.fromkeys(self.folders.values()):
            try:
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError:
                moved = False
        return moved

    def pids(self) -> set[int]:
        """Return every process in the group and its subgroups."""
        found: set[int] = set()
        for top in self.folders.values():
            for folder, _, _ in os.walk(top):
                with suppress(OSError):
                    found.update(int(pid) for pid in (Path(folder) / "cgroup.procs").read_text().split())
        found.discard(0)  # a process of another pid namespace
        return found

    def freeze(self) -> bool:
        """Stop every process of the group at once; return whether all of them are stopped."""
        if self.is_v2:
            target, value = self.folders[V2] / "cgroup.freeze", "1"
        elif "freezer" in self.folders:
            target, value = self.folders["freezer"] / "freezer.state", "FROZEN"
        else:
            return False
        deadline = time.monotonic() + _FREEZE_TIMEOUT_S
        try:
            target.write_text(value)
            while not self._is_frozen():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.002)
        except OSError:
            return False
        return True

    def _is_frozen(self) -> bool:
        if self.is_v2:
            return bool(read_table(self.folders[V2] / "cgroup.events").get("frozen"))
        return (self.folders["freezer"] / "freezer.state").read_text().strip() == "FROZEN"

    def thaw(self) -> None:
        """Continue its processes; in version 1, killed ones exit only now."""
        with suppress(OSError):
            if self.is_v2:
                (self.folders[V2] / "cgroup.freeze").write_text("0")
            elif "freezer" in self.folders:
                (self.folders["freezer"] / "freezer.state").write_text("THAWED")

    def remove(self) -> bool:
        """Remove the group; return False while a process is left in it."""
        removed = True
        for top in dict.fromkeys(self.folders.values()):
            for folder, _, _ in os.walk(top, topdown=False):
                removed = _remove_folder(Path(folder)) and removed
            with suppress(OSError):
                top.parent.rmdir()  # the last group removes the parent
        return removed


def _remove_folder(folder: Path) -> bool:
    for _ in range(10):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(0.005)  # the kernel is still removing the last process
        else:
            return True
    return False


class Cgroups:
    """Creates and finds the control groups of attempts, where this daemon may create groups."""

    def __init__(self, bases: Mapping[str, Path], own: Mapping[str, Path]) -> None:
        self._bases = dict(bases)
        self._own = dict(own)

    @classmethod
    def detect(cls, *, allow_v1: bool = True) -> Cgroups | None:
        """Return what works here (found by trying it), or None."""
        own = own_folders()
        if allow_v1:
            usable = {
                controller: own[controller]
                for controller in _V1_CONTROLLERS
                if controller in own and cls({controller: own[controller]}, own)._works()
            }
            if usable.keys() & {"memory", "pids", "freezer"}:
                return cls(usable, own)
        if V2 not in own:
            return None
        for base in _v2_candidates(own[V2]):
            candidate = cls({V2: base}, own)
            if candidate._works():
                return candidate
        return None

    def _works(self) -> bool:
        try:
            group = self.create(f"probe-{os.getpid()}-{secrets.token_hex(4)}")
        except OSError:
            return False
        try:
            if not group.is_v2:
                with group.entered_by_this_thread():
                    pass
            elif not (group.folders[V2] / "cgroup.freeze").exists():
                return False
            else:
                return _can_move_a_child_into(group)
        except OSError:
            return False
        finally:
            group.remove()
        return True

    def create(
        self, mark: str, *, memory_mb: int | None = None, max_processes: int | None = None, cpus: float = 1.0
    ) -> AttemptGroup:
        """Create the group of an attempt; raise OSError when that fails."""
        group = self._group_named(mark)
        for folder in group.folders.values():
            _make_folder(folder)
        group.set_limits(memory_mb=memory_mb, max_processes=max_processes, cpus=cpus)
        return group

    def _group_named(self, mark: str) -> AttemptGroup:
        if _MARK.fullmatch(mark) is None:
            raise ValueError(f"{mark!r} cannot be the name of a control group")
        folders = {controller: base / FOLDER / mark for controller, base in self._bases.items()}
        return AttemptGroup(folders, self._own)

    def find(self, mark: str) -> AttemptGroup | None:
        """Return the group of an attempt that an earlier daemon started, possibly in another group of its own."""
        group = self._group_named(mark)
        folders = {controller: folder for controller, folder in group.folders.items() if folder.is_dir()}
        needle = f"/{FOLDER}/{mark}"
        trees = mounts()
        for pid in read_process_table():
            for controller, path in memberships(pid):
                start = path.find(needle)
                if start < 0 or controller in folders or controller not in trees:
                    continue
                if controller == V2 and V2 not in self._bases:
                    continue
                folders[controller] = trees[controller].folder_of(path[: start + len(needle)])
        return AttemptGroup(folders, self._own) if folders else None


def _make_folder(folder: Path) -> None:
    for _ in range(20):
        folder.parent.mkdir(exist_ok=True)
        _delegate(folder.parent)
        with suppress(FileNotFoundError):  # another attempt that ended just now removed the parent
            folder.mkdir(exist_ok=True)
            return
    folder.mkdir()


def _delegate(folder: Path) -> None:
    """Enable the controllers for subgroups (version 2), as far as that is allowed."""
    if not (folder / "cgroup.subtree_control").exists():
        return  # version 1
    try:
        offered = set((folder / "cgroup.controllers").read_text().split())
        enabled = set((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return
    for controller in _V2_CONTROLLERS:
        if controller in offered - enabled:
            with suppress(OSError):  # not allowed for a group with processes of its own
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _v2_candidates(own: Path) -> Iterator[Path]:
    """Yield parents for groups with limits, the best one first; the last one may only support freezing.

    A group with processes of its own cannot delegate controllers, so the daemon's own group is rarely suitable. Its
    parent may be, if it already delegates (nothing is changed there) and the daemon's group has no limits to evade.
    """
    _delegate(own)
    if _delegates_limits(own):
        yield own
    unlimited = all(read_fields(own / name) in ([], ["max"]) for name in ("memory.max", "memory.high", "pids.max"))
    if unlimited and _delegates_limits(own.parent):
        yield own.parent
    yield own


def _delegates_limits(folder: Path) -> bool:
    return not {"memory", "pids"}.isdisjoint(read_fields(folder / "cgroup.subtree_control"))


def _can_move_a_child_into(group: AttemptGroup) -> bool:
    pid = os.posix_spawnp("sleep", ["sleep", "60"], {"PATH": os.defpath})
    try:
        return group.add(pid)
    finally:
        os.kill(pid, 9)  # a child that was not reaped: its pid cannot have been reused
        os.waitpid(pid, 0)


# ---------------------------------------------------------------- cgroup mounts


V2 = "unified"
"""Name used here for the version 2 tree; version 1 trees are named after their controllers"""
NO_LIMIT_BYTES = 2**60
"""Version 1 expresses "no limit" as a number close to 2**63"""


@dataclass(frozen=True)
class Mount:
    """A mounted cgroup tree, or a part of one."""

    root: str
    point: Path

    def folder_of(self, path: str) -> Path:
        """Return the folder for a path of /proc/<pid>/cgroup; a container may mount only a part of the tree."""
        if self.root != "/" and (path == self.root or path.startswith(self.root + "/")):
            path = path[len(self.root) :]
        return self.point / path.lstrip("/")


def mounts() -> dict[str, Mount]:
    """Return the mounted trees by name."""
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
    """Return the (controller, path) pairs of a process; the version 2 tree is named `unified`."""
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
    """The memory limit of the groups around this process (its container), and how much of it is free."""

    total_bytes: int
    free_bytes: int


def memory_ceiling() -> MemoryCeiling | None:
    """Return the tightest memory limit around this process, or None if only the machine limits it."""
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
    """Return the CPU quota of the groups around this process in CPUs, or None if there is none."""
    own, trees = own_folders(), mounts()
    quotas: list[float] = []
    for tree in ("cpu", V2):
        folder = own.get(tree)
        while folder is not None and (folder == trees[tree].point or trees[tree].point in folder.parents):
            fields = read_fields(folder / "cpu.max")
            if tree == "cpu":
                fields = read_fields(folder / "cpu.cfs_quota_us") + read_fields(folder / "cpu.cfs_period_us")
            if len(fields) == 2 and all(field.isdecimal() and int(field) > 0 for field in fields):
                quotas.append(int(fields[0]) / int(fields[1]))
            folder = folder.parent
    return min(quotas, default=None)


def read_fields(path: Path) -> list[str]:
    """Return the whitespace-separated fields of a control file; none if it does not exist."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def read_number(path: Path) -> int | None:
    """Return the number in a control file, or None for `max` or a missing file."""
    fields = read_fields(path)
    return int(fields[0]) if fields and fields[0].isdecimal() else None


def read_table(path: Path) -> dict[str, int]:
    """Return a control file of `name number` lines as a dict; empty if it does not exist."""
    try:
        pairs = [fields for line in path.read_text().splitlines() if len(fields := line.split()) == 2]
    except OSError:
        return {}
    return {name: int(value) for name, value in pairs if value.isdecimal()}
