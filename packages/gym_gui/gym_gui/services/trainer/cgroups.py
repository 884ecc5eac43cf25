"""Control groups: limits the kernel enforces, and membership that nobody can shed.

Each attempt of a run gets a group `mosaic/<mark>` inside the daemon's own group, so that whatever limits the daemon
limits its workers too. Version 1 (a folder tree per controller) and version 2 (one tree) are both supported; where
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

from gym_gui.services.trainer.cgroup_mounts import (
    NO_LIMIT_BYTES,
    V2,
    memberships,
    mounts,
    own_folders,
    read_number,
    read_table,
    read_words,
)
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
    """Where the daemon's own threads belong"""

    @property
    def is_v2(self) -> bool:
        return V2 in self.folders

    def _folder(self, controller: str) -> Path | None:
        return self.folders.get(V2 if self.is_v2 else controller)

    # -- limits

    def set_limits(self, *, memory_mb: int | None, max_processes: int | None, cpus: float) -> None:
        """Ask the kernel to hold the group to these limits; a controller that is not there is left out."""
        share = max(1.0, cpus)
        if memory_mb is not None:
            self._write("memory", "memory.max" if self.is_v2 else "memory.limit_in_bytes", memory_mb << 20)
            # Without these a worker over its limit would be swapped out and crawl instead of being told.
            if self.is_v2:
                self._write("memory", "memory.swap.max", 0)
            else:
                self._write("memory", "memory.memsw.limit_in_bytes", memory_mb << 20)
        if max_processes is not None:
            self._write("pids", "pids.max", max_processes)
        # A thousand busy processes of one run weigh as much as the CPUs it asked for, not a thousand times as much.
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
        """The memory limit the kernel enforces; None: it enforces none."""
        value = self._number("memory", "memory.max" if self.is_v2 else "memory.limit_in_bytes")
        return None if value is None or value >= NO_LIMIT_BYTES else value >> 20

    @property
    def process_limit(self) -> int | None:
        """The limit on processes and threads the kernel enforces; None: it enforces none."""
        return self._number("pids", "pids.max")

    def limit_hit(self) -> str | None:
        """Say which limit the kernel enforced since the group was made, or None."""
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
        # Newer kernels no longer count in memory.failcnt; the peak tells it as well. It is kept in steps of some pages.
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
        """Return the memory its processes use, without file cache; None: not known from here."""
        folder = self._folder("memory")
        if folder is None:
            return None
        stat = read_table(folder / "memory.stat")
        names = ("anon", "shmem") if self.is_v2 else ("total_rss", "total_shmem")
        return sum(stat[name] for name in names) if all(name in stat for name in names) else None

    def task_count(self) -> int | None:
        """Return how many threads all its processes have together; None: not known from here."""
        return self._number("pids", "pids.current")

    # -- members

    @contextmanager
    def entered_by_this_thread(self) -> Iterator[None]:
        """Put the calling thread inside, so that what it starts is born there; version 1 only.

        Nothing a worker does in its first microseconds can then happen outside. The kernel also makes this cheap:
        a thread that moves itself waits for nobody, moving somebody else takes milliseconds.
        """
        try:
            for folder in dict.fromkeys(self.folders.values()):
                (folder / "tasks").write_text("0")
            yield
        finally:
            for controller in self.folders:
                with suppress(OSError):  # `detect` saw that this works
                    (self.home_folders[controller] / "tasks").write_text("0")

    @property
    def entrance(self) -> Path:
        """Version 2: the file a process writes 0 to in order to step inside."""
        return self.folders[V2] / "cgroup.procs"

    def add(self, pid: int) -> bool:
        """Move a process, with all its threads, into the group; False when it is gone or may not be moved."""
        moved = True
        for folder in dict.fromkeys(self.folders.values()):
            try:
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError:
                moved = False
        return moved

    def pids(self) -> set[int]:
        """Return every process inside, groups within it included."""
        found: set[int] = set()
        for top in self.folders.values():
            for folder, _, _ in os.walk(top):
                with suppress(OSError):
                    found.update(int(word) for word in (Path(folder) / "cgroup.procs").read_text().split())
        found.discard(0)  # a process of another pid namespace
        return found

    def freeze(self) -> bool:
        """Stop every process inside at once; True when all of them stand still."""
        if self.is_v2:
            target, word = self.folders[V2] / "cgroup.freeze", "1"
        elif "freezer" in self.folders:
            target, word = self.folders["freezer"] / "freezer.state", "FROZEN"
        else:
            return False
        deadline = time.monotonic() + _FREEZE_TIMEOUT_S
        try:
            target.write_text(word)
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
        """Let its processes go on; killed ones die only now (version 1)."""
        with suppress(OSError):
            if self.is_v2:
                (self.folders[V2] / "cgroup.freeze").write_text("0")
            elif "freezer" in self.folders:
                (self.folders["freezer"] / "freezer.state").write_text("THAWED")

    def remove(self) -> bool:
        """Remove the group; False when something still lives in it."""
        removed = True
        for top in dict.fromkeys(self.folders.values()):
            for folder, _, _ in os.walk(top, topdown=False):
                removed = _remove_folder(Path(folder)) and removed
            with suppress(OSError):
                top.parent.rmdir()  # the last one turns off the light
        return removed


def _remove_folder(folder: Path) -> bool:
    for _ in range(10):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(0.005)  # the last process is still being buried
        else:
            return True
    return False


class Cgroups:
    """Where this daemon may make groups."""

    def __init__(self, bases: Mapping[str, Path], own: Mapping[str, Path]) -> None:
        self._bases = dict(bases)
        self._own = dict(own)

    @classmethod
    def detect(cls, *, allow_v1: bool = True) -> Cgroups | None:
        """Find out by trying what works here; None: nothing does."""
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
        """Make the group of an attempt; OSError when that fails."""
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
        """Return the group of an attempt that an earlier daemon started, wherever that daemon lived."""
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
    """Version 2: pass the controllers on to the groups below, as far as that is allowed."""
    if not (folder / "cgroup.subtree_control").exists():
        return  # version 1
    try:
        offered = set((folder / "cgroup.controllers").read_text().split())
        passed_on = set((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return
    for controller in _V2_CONTROLLERS:
        if controller in offered - passed_on:
            with suppress(OSError):  # a group with processes of its own may not; then we do without
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _v2_candidates(own: Path) -> Iterator[Path]:
    """Where groups with limits can be made, the best place first; the last one can only hold and freeze.

    A group with processes of its own cannot pass controllers on, so our own group is rarely such a place. The one
    above may be, if it does so already (we change nothing there) and our own group limits nothing we would evade.
    """
    _delegate(own)
    if _passes_limits_on(own):
        yield own
    unlimited = all(read_words(own / name) in ([], ["max"]) for name in ("memory.max", "memory.high", "pids.max"))
    if unlimited and _passes_limits_on(own.parent):
        yield own.parent
    yield own


def _passes_limits_on(folder: Path) -> bool:
    return not {"memory", "pids"}.isdisjoint(read_words(folder / "cgroup.subtree_control"))


def _can_move_a_child_into(group: AttemptGroup) -> bool:
    pid = os.posix_spawnp("sleep", ["sleep", "60"], {"PATH": os.defpath})
    try:
        return group.add(pid)
    finally:
        os.kill(pid, 9)  # our own child, not reaped yet: the number is still its own
        os.waitpid(pid, 0)
