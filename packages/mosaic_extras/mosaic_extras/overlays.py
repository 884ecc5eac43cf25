"""Overlays on the disk: their contents, integrity and users, and the interpreter for several of them.

Checking a set takes about a millisecond: no subprocess, no import of what is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import secrets
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from mosaic_wire.files import read_json_object
from mosaic_wire.paths import Home, find_home

from mosaic_extras.errors import BaseUnfit, SetInUse, SetNotReady, SetsDisagree
from mosaic_extras.pins import (
    BASE,
    LISTS,
    Pin,
    Pins,
    check_agreement,
    check_known,
    describe,
    normalized,
    pins_of,
    public,
)

RECIPE = 1
"""Counts up when overlays are made differently, so that old ones are built again"""

OVERLAY_RECORD = "overlay.json"
"""In every overlay: what it was made on. A process inside one finds the base with it"""

READY = "ready.json"
IN_USE = "in-use"

_ONLY_IN_BASE = ("torch", "triton", "protobuf")
_ONLY_IN_BASE_PREFIXES = ("nvidia-", "cuda-")
"""Never installed in an overlay: a second torch is gigabytes, and a second protobuf mixes with the first
because `google` is a namespace package."""


@dataclass(frozen=True)
class Base:
    """The environment overlays are made on: where MOSAIC itself and torch are installed."""

    prefix: Path
    python: Path
    site: tuple[Path, ...]

    @classmethod
    def current(cls) -> Base:
        """Return the environment of this process, or the one beneath it when it runs in an overlay."""
        return _base_of(sys.prefix, sys.executable)

    def distributions(self) -> dict[str, list[Distribution]]:
        """Return what is installed, by normalized name, from directory names alone."""
        found: dict[str, list[Distribution]] = {}
        for folder in self.site:
            for distribution in distributions_in(folder):
                found.setdefault(distribution.key, []).append(distribution)
        return found


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: its `*.dist-info` folder."""

    name: str
    version: str
    folder: str

    @property
    def key(self) -> str:
        """Return the normalized name."""
        return normalized(self.name)

    @property
    def record(self) -> str:
        """Return its list of files."""
        return f"{self.folder}/RECORD"


def distributions_in(folder: Path) -> list[Distribution]:
    """Read the names of `*.dist-info`; their content is not read."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".dist-info"):
                    name, _, version = entry.name.removesuffix(".dist-info").rpartition("-")
                    found.append(Distribution(name, version, entry.path))
    except FileNotFoundError:
        return []
    return found


def site_packages(prefix: Path) -> Path:
    """Return where a virtual environment at `prefix` keeps its packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(prefix), "platbase": str(prefix)}))


def python_of(prefix: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return prefix / "bin" / "python"


@cache
def _base_of(prefix: str, executable: str) -> Base:
    try:
        record = json.loads((Path(prefix) / OVERLAY_RECORD).read_bytes())["base"]
        return Base(Path(record["prefix"]), Path(record["python"]), tuple(map(Path, record["site"])))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the usual case: this is the base itself
    # Fedora keeps compiled packages in lib64; elsewhere the two are one folder.
    folders = {os.path.realpath(path): path for path in map(sysconfig.get_path, ("purelib", "platlib"))}
    return Base(Path(prefix), Path(executable), tuple(map(Path, folders.values())))


@dataclass(frozen=True)
class Plan:
    """The overlay of one set on one base: its pins, which of them it must bring itself, and its place."""

    name: str
    pins: Pins
    own: tuple[Pin, ...]
    from_base: Mapping[str, Distribution]
    base: Base
    key: str
    generation: Path

    @property
    def site(self) -> Path:
        """Return the overlay's site-packages."""
        return site_packages(self.generation)

    @property
    def python(self) -> Path:
        """Return the overlay's interpreter."""
        return python_of(self.generation)

    @property
    def ready_file(self) -> Path:
        """Return the marker that makes it usable."""
        return self.generation / READY

    @property
    def lock_file(self) -> Path:
        """Return the installer's lock."""
        return self.generation.parent.with_name(f"{self.name}.lock")

    @property
    def needs_overlay(self) -> bool:
        """Return whether the base lacks something."""
        return bool(self.own)

    def check_base(self) -> None:
        """Raise BaseUnfit when a package is missing that only the base may bring."""
        lacking = [pin for pin in self.own if _only_in_base(pin.key)]
        if not lacking:
            return
        has = {pin.key: [found.version for found in self.base.distributions().get(pin.key, [])] for pin in lacking}
        listed = ", ".join(f"{pin} (it has {' and '.join(has[pin.key]) or 'none'})" for pin in lacking)
        raise BaseUnfit(
            f"the base environment {self.base.prefix} lacks {listed}, which requirement set {self.name!r} builds on. "
            f"Install it there first: {self.base.python} -m pip install {' '.join(map(str, lacking))}"
        )

    def versions(self) -> dict[str, str]:
        """Return what a run in this overlay gets, by the names of the pin list."""
        return {
            pin.name: self.from_base[key].version if key in self.from_base else pin.version
            for key, pin in self.pins.items()
        }


def _only_in_base(key: str) -> bool:
    return key in _ONLY_IN_BASE or key.startswith(_ONLY_IN_BASE_PREFIXES)


def venvs_of(home: Home) -> Path:
    """Return the folder of the overlays."""
    return home.trainer / "venvs"


Installed = Mapping[str, list[Distribution]]


def make_plan(
    home: Home, name: str, *, lists: Path = LISTS, base: Base | None = None, installed: Installed | None = None
) -> Plan:
    """Compare a set's pins with the base; `installed` saves reading the base again."""
    base = base or Base.current()
    pins = pins_of(name, lists)
    present = base.distributions() if installed is None else installed
    from_base: dict[str, Distribution] = {}
    own: list[Pin] = []
    for key, pin in pins.items():
        found = present.get(key, [])
        # Two versions side by side are the rest of a broken upgrade: it is unknown which one Python would import.
        if len(found) == 1 and public(found[0].version) == pin.version:
            from_base[key] = found[0]
        else:
            own.append(pin)
    identity = {
        "pins": sorted(map(str, pins.values())),
        "from_base": sorted(from_base),
        "base": str(base.prefix),
        "python": sys.version,
        "platform": platform_name(),
        "recipe": RECIPE,
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    return Plan(name, pins, tuple(own), from_base, base, key, venvs_of(home) / name / key)


def platform_name() -> str:
    """Return the operating system and processor, which decide which wheels fit."""
    return f"{sys.platform}-{platform.machine()}"


# ------------------------------------------------------------------ is it installed and intact?


class SetState(StrEnum):
    """What is known about a set without starting anything."""

    READY = "ready"
    NOT_INSTALLED = "not installed"
    INSTALLING = "being installed"
    INCOMPLETE = "incomplete"
    """an installation was interrupted before it was marked"""
    STALE = "stale"
    """installed for other pins or another state of the base"""
    PACKAGE_MISSING = "package missing"
    PACKAGE_CHANGED = "package changed"
    PACKAGE_UNEXPECTED = "unexpected package"
    INTERPRETER_GONE = "interpreter gone"
    MARKER_UNREADABLE = "marker unreadable"
    BASE_LACKS = "base lacks a package"
    BASE_DIFFERS = "other versions"
    """of the base alone: not the versions that were tested together"""
    SETS_DISAGREE = "sets disagree"


@dataclass(frozen=True)
class SetCheck:
    """The result: `message` names the remedy, `python` is the interpreter a run would get."""

    state: SetState
    message: str
    sets: tuple[str, ...]
    python: Path | None = None
    versions: Mapping[str, str] | None = None
    command: str = ""
    """what repairs it, where that is one command"""
    missing: tuple[str, ...] = ()
    """the sets that this command installs"""
    overlays: tuple[Plan, ...] = ()
    """what a run needs besides the base"""

    @property
    def is_ready(self) -> bool:
        """Return whether a run can start."""
        return self.state is SetState.READY


def check_sets(
    home: Home, sets: Iterable[str], *, lists: Path = LISTS, base: Base | None = None, thorough: bool = False
) -> SetCheck:
    """Judge the environment that a run with these sets would get; raise UnknownSet for an unknown name.

    `thorough` reads every file of the sets, which takes seconds.
    `python` of several sets is where `interpreter_for` puts their joint environment; it need not exist yet.
    """
    base = base or Base.current()
    needed = tuple(sorted({name for name in sets if name != BASE}))
    check_known(needed, lists)
    try:
        check_agreement(needed, lists)
    except SetsDisagree as error:
        return SetCheck(SetState.SETS_DISAGREE, str(error), needed)
    installed = base.distributions()
    plans = [make_plan(home, name, lists=lists, base=base, installed=installed) for name in needed]
    judged = [(plan, *judge(plan, thorough=thorough)) for plan in plans]
    broken = [(plan, state, why) for plan, state, why in judged if state is not SetState.READY]
    if broken:
        return _refusal(home, needed, broken, lists)
    overlays = tuple(plan for plan in plans if plan.needs_overlay)
    versions = {name: version for plan in plans for name, version in plan.versions().items()}
    if not overlays:
        python, where = base.python, "the base environment has it all"
    elif len(overlays) == 1:
        python, where = overlays[0].python, str(overlays[0].generation)
    else:
        prefix = join_prefix(home, overlays)
        python, where = python_of(prefix), str(prefix)
    message = f"{', '.join(needed) or BASE}: ready ({where})"
    return SetCheck(SetState.READY, message, needed, python, versions, overlays=overlays)


def interpreter_for(home: Home, sets: Iterable[str], *, lists: Path = LISTS) -> Path:
    """Return the interpreter for a run with these sets; raise SetNotReady with the command that installs them."""
    answer = check_sets(home, sets, lists=lists)
    if not answer.is_ready or answer.python is None:
        raise SetNotReady(answer.message)
    return join(home, answer.overlays) if len(answer.overlays) > 1 else answer.python


def enter(home: Home, sets: Iterable[str], module: str, argv: Sequence[str]) -> None:
    """Replace this process by `python -m module argv` where these sets are installed; return if that is here.

    Raises SetNotReady with the command that installs them. The sets stay in use as long as the new program runs.
    """
    python = interpreter_for(home, sets)
    if python.parent.parent == Path(sys.prefix) or python == Base.current().python:
        return
    hold(python)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [str(python), "-m", module, *argv])


def install_command(home: Home, sets: Iterable[str]) -> str:
    """Return the command that installs these sets, ready to be pasted."""
    elsewhere = ["--home", str(home.root)] if home.root != find_home().root else []
    return shlex.join(["mosaic", "extras", "install", *sets, *elsewhere])


def _refusal(
    home: Home, needed: tuple[str, ...], broken: Sequence[tuple[Plan, SetState, str]], lists: Path
) -> SetCheck:
    _, state, why = broken[0]
    if state is SetState.BASE_LACKS:
        return SetCheck(state, why, needed)
    names = [plan.name for plan, _, _ in broken]
    command = install_command(home, names)
    listed = "; ".join(f"requirement set {plan.name!r} is {why}" for plan, _, why in broken)
    size = sum(describe(name, lists).size_mb for name in names)
    return SetCheck(
        state, f"{listed}. Install: {command} (about {size} MB)", needed, command=command, missing=tuple(names)
    )


def judge(plan: Plan, *, thorough: bool = False) -> tuple[SetState, str]:
    """Return the state of one set's overlay and a text for it; `thorough` compares every file with its hash."""
    try:
        plan.check_base()
    except BaseUnfit as error:
        return SetState.BASE_LACKS, str(error)
    if not plan.needs_overlay:
        return SetState.READY, "in the base environment already"
    if not plan.generation.is_dir():
        return _without_generation(plan)
    try:
        marker = read_json_object(plan.ready_file)
    except FileNotFoundError:
        if is_locked(plan.lock_file):
            return SetState.INSTALLING, "being installed now"
        return SetState.INCOMPLETE, "incomplete: an installation was interrupted"
    except (OSError, ValueError) as error:
        return SetState.MARKER_UNREADABLE, f"not to be trusted, its marker cannot be read ({error})"
    state, why = _judge_files(plan, marker)
    if state is SetState.READY and thorough and (problems := _damaged_files(plan)):
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return SetState.PACKAGE_CHANGED, f"damaged: {problems[0]}{more}"
    return state, why


def _damaged_files(plan: Plan) -> list[str]:
    from mosaic_extras.overlay_check import damaged_files

    records = [Path(found.record).read_text(encoding="utf-8") for found in distributions_in(plan.site)]
    return damaged_files(str(plan.site), records)


def _without_generation(plan: Plan) -> tuple[SetState, str]:
    if is_locked(plan.lock_file):
        return SetState.INSTALLING, "being installed now"
    try:
        others = any((entry / READY).is_file() for entry in plan.generation.parent.iterdir())
    except FileNotFoundError:
        others = False
    if others:
        return SetState.STALE, "stale: its pins, the base environment or Python have changed since it was installed"
    return SetState.NOT_INSTALLED, "not installed"


def _judge_files(plan: Plan, marker: Mapping[str, Any]) -> tuple[SetState, str]:
    """Compare what is on the disk with what was marked, by names, sizes and times."""
    recorded = marker.get("own")
    if marker.get("key") != plan.key or not isinstance(recorded, dict):
        return SetState.MARKER_UNREADABLE, "not to be trusted, its marker belongs to something else"
    if not os.path.exists(plan.python):
        return SetState.INTERPRETER_GONE, f"without an interpreter: {os.path.realpath(plan.python)} is missing"
    site = str(plan.site)
    for name, signature in recorded.items():
        found = record_signature(f"{site}/{name}")
        if found is None:
            return SetState.PACKAGE_MISSING, f"damaged: {name.removesuffix('.dist-info')} is missing"
        if found != signature:
            return SetState.PACKAGE_CHANGED, f"damaged: {name.removesuffix('.dist-info')} was changed"
    unexpected = {os.path.basename(found.folder) for found in distributions_in(plan.site)} - set(recorded)
    if unexpected:
        return SetState.PACKAGE_UNEXPECTED, f"not as installed: {', '.join(sorted(unexpected))} came in later"
    for used in plan.from_base.values():
        if not os.path.exists(used.record):
            return SetState.PACKAGE_MISSING, f"damaged: the base's {used.name} {used.version} is incomplete"
    return SetState.READY, "ready"


def record_signature(dist_info: str) -> list[int] | None:
    """Return when a distribution's list of files was written and its size; None when there is none."""
    try:
        status = os.stat(f"{dist_info}/RECORD")
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


# ------------------------------------------------------------------ locks


@contextmanager
def installing(lock_file: Path, *, waits: Callable[[str], None] = lambda holder: None) -> Iterator[int]:
    """Hold the installer's lock; yields its descriptor, which pip must inherit.

    pip outlives an installer that is killed. With the descriptor it keeps the lock, so the next installer begins only
    when nothing writes into the folder any more.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits(os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(OSError):  # a lock can be held on a full disk, too
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(lock_file: Path) -> bool:
    """Return whether this set is being installed."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def hold(python: Path) -> tuple[int, ...]:
    """Mark the overlay of this interpreter as used, and return the descriptors that keep it so.

    Pass them on to the processes of the run (`pass_fds`) and close them at its end; they are inheritable. The base
    needs no mark and gives (). Raises SetNotReady when the overlay was removed in between.
    """
    held: list[int] = []
    try:
        for generation in _generations_of(python.parent.parent):
            descriptor = os.open(generation / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.set_inheritable(descriptor, True)
            if not (generation / READY).is_file():
                raise FileNotFoundError(generation / READY)
    except OSError as error:
        for descriptor in held:
            os.close(descriptor)
        raise SetNotReady(f"the environment of {python} is being removed or rebuilt: {error}") from error
    return tuple(held)


@contextmanager
def holding(python: Path) -> Iterator[tuple[int, ...]]:
    """Hold the overlay of this interpreter (see `hold`) as long as the block lasts."""
    held = hold(python)
    try:
        yield held
    finally:
        for descriptor in held:
            os.close(descriptor)


def _generations_of(prefix: Path) -> list[Path]:
    try:
        record = json.loads((prefix / OVERLAY_RECORD).read_bytes())
    except FileNotFoundError:
        return []  # the base
    except (OSError, ValueError) as error:
        raise SetNotReady(f"{prefix / OVERLAY_RECORD} cannot be read: {error}") from error
    return [Path(path) for path in record.get("generations", [str(prefix)])]


@contextmanager
def unused(generation: Path) -> Iterator[None]:
    """Keep runs out of an overlay while it is removed; raise SetInUse when one is in it."""
    try:
        descriptor = os.open(generation / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        yield  # the folder itself is missing
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetInUse(f"a run uses {generation}; cancel it or wait for its end, then try again") from None
        yield
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------ virtual environments

PTH_NAME = "_mosaic_base.pth"
JOINS = "joined"
"""Folder of the joint environments; no set can have this name, for sets have pin lists"""


def make_environment(prefix: Path, base: Base, *, name: str, generations: Sequence[Path] = ()) -> None:
    """Make an empty virtual environment that sees the packages of `generations` and then those of the base."""
    import venv  # not cheap, and a check never needs it

    venv.EnvBuilder(with_pip=False, symlinks=True, clear=False).create(prefix)
    site = site_packages(prefix)
    above = [site_packages(generation) for generation in generations]
    lines = [_plain_line(folder) for folder in (*above, *base.site)]
    # After all plain lines: reading an overlay's own .pth files brings the base, which must come last.
    lines += [f"import site; site.addsitedir({str(folder)!a})" for folder in (*above, *base.site)]
    (site / PTH_NAME).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    record: dict[str, object] = {
        "name": name,
        "base": {"prefix": str(base.prefix), "python": str(base.python), "site": list(map(str, base.site))},
    }
    if generations:
        record["generations"] = list(map(str, generations))
    (prefix / OVERLAY_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _plain_line(folder: Path) -> str:
    """Return a line that puts a folder on the path and does nothing else.

    addsitedir alone would do, and reads the .pth files in the folder (our own editable installs); but it leaks the base
    into pip's isolated builds unless the plain line stands before it. Python 3.11 dies on a .pth that is not ASCII when
    the locale is not UTF-8, so an odd path is written with escapes.
    """
    path = str(folder)
    return path if path.isascii() else f"import sys; sys.path.append({path!a})"


def join_prefix(home: Home, plans: Sequence[Plan]) -> Path:
    """Return the folder of the joint environment of these overlays."""
    text = json.dumps([str(plan.generation) for plan in plans])
    return venvs_of(home) / JOINS / hashlib.sha256(text.encode()).hexdigest()[:12]


def join(home: Home, plans: Sequence[Plan]) -> Path:
    """Make the joint environment of several overlays, some 60 kB of it, unless it is there; return its interpreter.

    The pins of the sets agree, so it does not matter which overlay comes first on the path.
    """
    prefix = join_prefix(home, plans)
    if os.path.exists(python_of(prefix)):
        return python_of(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    draft = prefix.parent / f".{prefix.name}.{secrets.token_hex(4)}"
    try:
        name = "+".join(plan.name for plan in plans)
        make_environment(draft, plans[0].base, name=name, generations=[plan.generation for plan in plans])
        if prefix.exists():  # its interpreter is missing
            shutil.rmtree(prefix, ignore_errors=True)
        try:
            os.rename(draft, prefix)
        except OSError:
            if not os.path.exists(python_of(prefix)):  # else another process was quicker, and made the same
                raise
    except OSError as error:
        raise SetNotReady(f"cannot make the joint environment {prefix}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return python_of(prefix)
