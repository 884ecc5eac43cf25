"""Building an overlay: everything is made, checked and tried before `ready.json` marks it as usable."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mosaic_wire.files import size_below, write_json_atomically
from mosaic_wire.paths import Home

from mosaic_extras import overlay_check
from mosaic_extras.errors import InstallFailed
from mosaic_extras.overlays import (
    READY,
    Plan,
    SetState,
    distributions_in,
    install_command,
    installing,
    judge,
    make_environment,
    make_plan,
    platform_name,
    record_signature,
    unused,
    venvs_of,
)
from mosaic_extras.pins import LISTS, Pin, SetDescription, describe, normalized

_CHECK_TIMEOUT_S = 300
_POLL_S = 0.1
_STOP_S = 10.0
_TAIL_LINES = 12

_CONFLICT = re.compile(r"^(\S+) \S+ (?:has requirement|requires) ([A-Za-z0-9._-]+)")


class Phase(StrEnum):
    """The steps of an installation, in order; WAITING and READY may be the only ones."""

    WAITING = "waiting"
    PREPARING = "preparing"
    FETCHING = "fetching"
    INSTALLING = "installing"
    CHECKING = "checking"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class InstallStep:
    """One step: `done` of `total` packages of the phase, and a message for users."""

    set: str
    phase: Phase
    message: str
    done: int = 0
    total: int = 0
    package: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of `--progress-json`."""
        return {"event": "progress", **asdict(self)}


Report = Callable[[InstallStep], None]


def install(home: Home, name: str, *, report: Report = lambda step: None, lists: Path = LISTS) -> Plan:
    """Install a set, or find it ready; wait for another installer of the same set."""
    plan = make_plan(home, name, lists=lists)
    plan.check_base()
    if not plan.needs_overlay:
        report(InstallStep(name, Phase.READY, "the base environment has it all"))
        return plan

    def waits(holder: str) -> None:
        report(InstallStep(name, Phase.WAITING, f"another installer (process {holder}) is at work; waiting for it"))

    try:
        with installing(plan.lock_file, waits=waits) as lock:
            # Planned again: the other installer may have finished it, or changed the base.
            plan = make_plan(home, name, lists=lists)
            if judge(plan, thorough=True)[0] is SetState.READY:
                report(InstallStep(name, Phase.READY, f"ready: {plan.generation}"))
                return plan
            _Installation(home, plan, describe(name, lists), report, lock).run()
    except OSError as error:
        again = install_command(home, [name])
        raise InstallFailed(
            f"requirement set {name!r} could not be installed: {error}. Then repeat: {again}"
        ) from error
    return plan


def clear(generation: Path) -> None:
    """Remove an overlay; raise SetInUse when a run uses it. It stops being ready before anything else is removed."""
    with unused(generation):
        (generation / READY).unlink(missing_ok=True)
        shutil.rmtree(generation, ignore_errors=True)
    if generation.exists():
        shutil.rmtree(generation)


class _Installation:
    """One attempt; nothing of an earlier one is trusted."""

    def __init__(self, home: Home, plan: Plan, about: SetDescription, report: Report, lock: int) -> None:
        self._plan, self._about, self._report, self._lock = plan, about, report, lock
        self._venvs, self._wheels = venvs_of(home), Wheelhouse(home)
        self._command = install_command(home, [plan.name])
        self._log = plan.generation / "pip.log"
        self._environment = clean_environment(self._wheels.cache / "http")

    def run(self) -> None:
        """Run all phases; the marker is written last."""
        started = time.monotonic()
        plan = self._plan
        packages = f"{len(plan.own)} packages, {len(plan.from_base)} from the base"
        self._report_phase(Phase.PREPARING, f"{plan.generation}: {packages}")
        self._check_place()
        if plan.generation.exists():
            clear(plan.generation)
        make_environment(plan.generation, plan.base, name=plan.name)
        with self._wheels.locked(fcntl.LOCK_SH):
            self._fetch(again=False)
            self._pip_install()
            self._copy_games()
            files = self._wheels.hashes(plan.own)
        self._report_phase(Phase.CHECKING, "every version and file")
        self._check_files()
        conflicts = self._check_declarations()
        self._report_phase(Phase.CHECKING, "smoke test")
        self._smoke()
        self._mark(files, conflicts, time.monotonic() - started)
        self._report_phase(Phase.READY, f"ready in {time.monotonic() - started:.0f} s: {plan.generation}")

    def _report_phase(self, phase: Phase, message: str) -> None:
        self._report(InstallStep(self._plan.name, phase, message))

    def _check_place(self) -> None:
        prefix = str(self._plan.generation)
        # pip asks "is this mine?" with a plain startswith, and would remove packages of such a base.
        if any(str(folder).startswith(prefix) for folder in self._plan.base.site):
            raise InstallFailed(f"the base environment lies inside {prefix}; choose another home")
        self._venvs.mkdir(parents=True, exist_ok=True)
        free_mb = shutil.disk_usage(self._venvs).free // 2**20
        needed_mb = int(self._about.size_mb * 1.5)  # the wheels are kept as well
        if free_mb < needed_mb:
            raise InstallFailed(
                f"requirement set {self._plan.name!r} needs about {needed_mb} MB of disk and {self._venvs} has "
                f"{free_mb} MB free: make room (install_extras --prune), then repeat: {self._command}"
            )

    # ------------------------------------------------------------ pip

    def _run_pip(self, argv: Sequence[str], *, cwd: Path, poll: Callable[[], None], without: Sequence[str] = ()) -> int:
        """Run pip with its output appended to the log, calling `poll` meanwhile and once more at its end."""
        with self._log.open("ab") as output:
            output.write(f"\n$ {' '.join(argv)}\n".encode())
            output.flush()
            environment = {name: value for name, value in self._environment.items() if name not in without}
            streams: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
            with _child(argv, **streams, cwd=cwd, env=environment, pass_fds=[self._lock]) as process:
                while process.poll() is None:
                    poll()
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_S)
                poll()
                return process.returncode

    def _fetch(self, *, again: bool) -> None:
        """Download, or build, the wheels that are not in the cache; `again` replaces those, too."""
        games, present = self._about.games_pin, self._wheels.wheels()
        pins = dict.fromkeys((*self._plan.own, *([games] if games is not None else ())))
        missing = [pin for pin in pins if again or (pin.key, pin.version) not in present]
        # pip takes one version of a package a call; the games may be of another version than the set's own package.
        first: dict[str, Pin] = {}
        rest = [pin for pin in missing if first.setdefault(pin.key, pin) != pin]
        for group in (list(first.values()), rest):
            if group:
                self._fetch_group(group)

    def _fetch_group(self, pins: Sequence[Pin]) -> None:
        name = self._plan.name
        incoming = self._wheels.cache / f"incoming-{name}"
        shutil.rmtree(incoming, ignore_errors=True)  # of an installation that was killed
        incoming.mkdir(parents=True)
        requested = incoming / "wanted.txt"
        requested.write_text("".join(f"{pin}\n" for pin in pins), encoding="ascii")
        follow = _PipFollower(name, pins, self._log, self._report)

        def run_pip(*arguments: str) -> None:
            code = self._run_pip([str(self._plan.base.python), "-m", "pip", *arguments], cwd=incoming, poll=follow)
            if code:
                shutil.rmtree(incoming, ignore_errors=True)
                what = f"requirement set {name!r} could not be downloaded (pip ended with {code})"
                raise failure(what, self._log, self._command)

        if not self._about.ignore_requires_python:
            run_pip("wheel", "--no-deps", "-r", str(requested), "-w", str(incoming))
        else:
            # `pip wheel` has this option and, up to 23.2 at least, ignores it while it searches.
            loosely = ("--no-deps", "--ignore-requires-python")
            run_pip("download", *loosely, "-r", str(requested), "-d", str(incoming))
            sources = [str(path) for path in sorted(incoming.iterdir()) if path.name.endswith((".tar.gz", ".zip"))]
            if sources:
                run_pip("wheel", *loosely, "-w", str(incoming), *sources)
        # Renamed one by one when all are complete: no reader ever meets half a wheel.
        for wheel in incoming.glob("*.whl"):
            os.replace(wheel, self._wheels.folder / wheel.name)
        shutil.rmtree(incoming, ignore_errors=True)

    def _pip_install(self) -> None:
        code = self._run_pip_install()
        if code:
            # A wheel in the cache may be damaged: retry with fresh ones.
            self._report_phase(Phase.FETCHING, "pip failed on the kept wheels; fetching them again")
            self._fetch(again=True)
            code = self._run_pip_install()
        if code:
            what = f"requirement set {self._plan.name!r} could not be installed (pip ended with {code})"
            raise failure(what, self._log, self._command)

    def _run_pip_install(self) -> int:
        plan = self._plan
        requested = plan.generation / "own.txt"
        requested.write_text("".join(f"{pin}\n" for pin in plan.own), encoding="ascii")
        argv = [str(plan.python), "-m", "pip", "install", "--no-deps", "--no-index", "-r", str(requested)]
        argv += ["--find-links", str(self._wheels.folder)]
        if self._about.ignore_requires_python:
            argv.append("--ignore-requires-python")
        seen: set[str] = set()

        def poll() -> None:
            for found in distributions_in(plan.site):
                if found.key not in seen:
                    seen.add(found.key)
                    message = f"installing {found.name} {found.version}"
                    count = len(seen), len(plan.own)
                    self._report(InstallStep(plan.name, Phase.INSTALLING, message, *count, found.name))

        # Only what was fetched, and hashed, is installed.
        return self._run_pip(argv, cwd=plan.generation, poll=poll, without=["PIP_FIND_LINKS"])

    def _copy_games(self) -> None:
        if (pin := self._about.games_pin) is not None:
            count = self._wheels.copy_games(pin, [self._plan.site / folder for folder in self._about.roms_into])
            self._report_phase(Phase.INSTALLING, f"{count} Atari games from {pin}")

    # ------------------------------------------------------------ checks

    def _ask(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the overlay's interpreter, isolated from everything outside the overlay and the base."""
        argv = [str(self._plan.python), "-I", *arguments]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        place = {"cwd": self._plan.generation, "env": {**self._environment, **(env or {})}, "pass_fds": [self._lock]}
        try:
            with _child(argv, **streams, errors="replace", **place) as process:
                output, errors = process.communicate(timeout=_CHECK_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise InstallFailed(
                f"requirement set {self._plan.name!r}: {' '.join(argv)[:200]} took longer than {_CHECK_TIMEOUT_S} s; "
                f"repeat: {self._command}"
            ) from error
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    def _check_files(self) -> None:
        plan = self._plan
        question = plan.generation / "check.json"
        pins = {pin.name: pin.version for pin in plan.pins.values()}
        own = [pin.name for pin in plan.own]
        question.write_text(json.dumps({"site": str(plan.site), "pins": pins, "own": own}), encoding="utf-8")
        done = self._ask(str(Path(overlay_check.__file__)), str(question))
        try:
            problems = json.loads(done.stdout)
        except ValueError:
            problems = [f"the check itself failed: {done.stderr.strip()[-500:]}"]
        if problems:
            raise InstallFailed(
                f"requirement set {plan.name!r} is not what its pin list says: {'; '.join(problems[:5])}"
                f"{f' and {len(problems) - 5} more' if len(problems) > 5 else ''}. Repeat: {self._command}"
            )

    def _check_declarations(self) -> list[str]:
        """Return the known conflicts with what packages declare; any other one is an error of the pin list."""
        plan = self._plan
        inside: list[str] = []
        known: list[str] = []
        for line in self._ask("-m", "pip", "check").stdout.splitlines():
            match = _CONFLICT.match(line)
            if match is None or (package := normalized(match[1])) not in plan.pins:
                continue  # about packages of the base that this set has nothing to do with
            if package in self._about.known_conflicts:
                known.append(line)
            elif package not in plan.from_base or normalized(match[2]) in plan.pins:
                # Else a package of the base lacks something that the base lacks, too.
                inside.append(line)
        if inside:
            raise InstallFailed(
                f"the pins of requirement set {plan.name!r} contradict each other on this Python: "
                f"{'; '.join(inside[:5])}. This is a fault of the list; please report it."
            )
        return known

    def _smoke(self) -> None:
        if not self._about.smoke:
            return
        done = self._ask("-W", "ignore", "-c", self._about.smoke, env=dict(self._about.smoke_env))
        if done.returncode:
            tail = "\n".join(f"    {line[:300]}" for line in done.stderr.strip().splitlines()[-8:])
            raise InstallFailed(
                f"requirement set {self._plan.name!r} is installed but does not work here (exit {done.returncode}); "
                f"it was not marked ready.\n{tail}\n  repeat: {self._command}"
            )

    def _mark(self, files: Mapping[str, tuple[str, str]], conflicts: list[str], seconds: float) -> None:
        """Write `lock.txt`, what was resolved in pip's own format with hashes, then the marker."""
        plan = self._plan
        lines = [f"# Requirement set {plan.name}, {plan.key}: what was resolved and installed"]
        for pin in plan.own:
            file, digest = files.get(str(pin), ("", ""))
            lines.append(f"{pin} --hash=sha256:{digest}  # {file}" if digest else str(pin))
        lines += [f"# from the base: {found.name}=={found.version}" for found in plan.from_base.values()]
        (plan.generation / "lock.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.sync()  # the marker must not reach the disk before what it vouches for
        found = distributions_in(plan.site)
        marker: dict[str, Any] = {
            "set": plan.name,
            "key": plan.key,
            "base": str(plan.base.prefix),
            "own": {os.path.basename(one.folder): record_signature(one.folder) for one in found},
            "versions": plan.versions(),
            "files": {pin: list(entry) for pin, entry in files.items()},
            "conflicts": conflicts,
            "bytes": size_below(plan.generation),
            "seconds": round(seconds, 1),
            "made_at": time.time(),
        }
        write_json_atomically(plan.ready_file, marker, sealed=True)


class Wheelhouse:
    """The wheel cache of this Python on this machine: overlays can be made again without a network."""

    def __init__(self, home: Home) -> None:
        self.cache = home.cache / "pip"
        self.folder = self.cache / f"wheels-{sys.implementation.cache_tag}-{platform_name()}"

    @contextmanager
    def locked(self, operation: int) -> Iterator[None]:
        """Hold the cache's lock: shared to read wheels, exclusive to remove some."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.cache / "wheels.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            yield
        finally:
            os.close(descriptor)

    def find(self, pin: Pin) -> Path | None:
        """Return the wheel of a pin, if it was fetched before."""
        return self.wheels().get((pin.key, pin.version))

    def wheels(self) -> dict[tuple[str, str], Path]:
        """Return every wheel by normalized name and public version."""
        found = {}
        for path in self.folder.glob("*.whl") if self.folder.is_dir() else ():
            parts = path.name.split("-")
            if len(parts) >= 5:
                found[normalized(parts[0]), parts[1].partition("+")[0]] = path
        return found

    def hashes(self, pins: Iterable[Pin]) -> dict[str, tuple[str, str]]:
        """Return (file name, sha256) of each pin's wheel, by the pin's text."""
        wheels, found = self.wheels(), {}
        for pin in pins:
            if path := wheels.get((pin.key, pin.version)):
                with path.open("rb") as stream:
                    found[str(pin)] = (path.name, hashlib.file_digest(stream, "sha256").hexdigest())
        return found

    def copy_games(self, pin: Pin, folders: Sequence[Path]) -> int:
        """Copy the Atari games out of a wheel into package folders that come without them; return how many."""
        wheel = self.find(pin)
        if wheel is None:
            raise FileNotFoundError(f"no wheel of {pin} in {self.folder}")
        with zipfile.ZipFile(wheel) as archive:
            games = [member for member in archive.namelist() if re.fullmatch(r"[^/]+/roms/[a-z0-9_]+\.bin", member)]
            for member in games:
                content = archive.read(member)
                for folder in folders:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / member.rpartition("/")[2]).write_bytes(content)
        return len(games)

    def keep_only(self, pins: Iterable[Pin]) -> int:
        """Remove wheels that no list names any more; return the bytes freed."""
        kept = {(pin.key, pin.version) for pin in pins}
        freed = 0
        with self.locked(fcntl.LOCK_EX):
            for key, path in self.wheels().items():
                if key not in kept:
                    freed += path.stat().st_size
                    path.unlink()
        return freed


# ------------------------------------------------------------------ pip

_FETCH_LINE = re.compile(r"^(Collecting|Processing|Building wheel for)\s+(\S+)")
_NAME_END = re.compile(r"[=<>!~\[(;]")


class _PipFollower:
    """Turn pip's new log lines into steps: a package counts when pip turns to it."""

    def __init__(self, name: str, pins: Sequence[Pin], log: Path, report: Report) -> None:
        self._name, self._report, self._log = name, report, log
        self._offset = log.stat().st_size if log.exists() else 0
        self._rest = b""
        self._pins = {pin.key: pin for pin in pins}
        self._seen: set[str] = set()

    def __call__(self) -> None:
        with self._log.open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read()
        self._offset += len(data)
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            if (match := _FETCH_LINE.match(line.decode("utf-8", "replace").strip())) is not None:
                self._follow(match[1], os.path.basename(match[2]))

    def _follow(self, action: str, file: str) -> None:
        # `Collecting name==1.0`, but `Processing /folder/name-1.0-py3-none-any.whl`
        key = normalized(file.split("-")[0] if action == "Processing" else _NAME_END.split(file)[0])
        pin, is_built = self._pins.get(key), action == "Building wheel for"
        if pin is None or (key in self._seen and not is_built):
            return
        if not is_built:
            self._seen.add(key)
        message = f"{'building' if is_built else 'fetching'} {pin.name} {pin.version}"
        count = len(self._seen), len(self._pins)
        self._report(InstallStep(self._name, Phase.FETCHING, message, *count, str(pin)))


_DIVERTING = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONPLATLIBDIR", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_WHEEL_DIR"),
    *("PIP_FORCE_REINSTALL", "PIP_IGNORE_INSTALLED", "PIP_UPGRADE", "PIP_REQUIREMENT", "PIP_CONSTRAINT"),
    *("PIP_EDITABLE", "PIP_DRY_RUN", "PIP_REPORT", "PIP_NO_COMPILE", "PIP_REQUIRE_HASHES"),
    *("PIP_QUIET", "PIP_VERBOSE", "PIP_LOG"),
)
"""Variables that would send packages elsewhere, or let Python find other ones first"""

_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|Name or service not known|Network is unreachable"
    r"|ProxyError|ReadTimeoutError|ConnectTimeout|Connection refused|Max retries exceeded",
    re.IGNORECASE,
)
_NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")


def clean_environment(cache: Path) -> dict[str, str]:
    """Return the environment for pip and for the checks; the user's index and proxy settings stay."""
    kept = {name: value for name, value in os.environ.items() if name not in _DIVERTING}
    switches = dict.fromkeys(("PIP_NO_INPUT", "PIP_DISABLE_PIP_VERSION_CHECK", "PYTHONUNBUFFERED"), "1")
    quiet = {"PIP_ROOT_USER_ACTION": "ignore", "PIP_PROGRESS_BAR": "off"}
    return {**kept, **switches, **quiet, "PIP_CACHE_DIR": str(cache)}


@contextmanager
def _child(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program and end it with the block, however that is left."""
    process: subprocess.Popen[Any] | None = None
    try:
        with _undisturbed():  # a signal between fork and the assignment would leave it running
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **options)
        yield process
    finally:
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end; outside the main thread they never interrupt anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    deferred = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in deferred}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)


def failure(what: str, log: Path, command: str) -> InstallFailed:
    """Return the error for a program that failed: the likely cause, its last lines, and what to do."""
    try:
        with log.open("r", encoding="utf-8", errors="replace") as stream:
            last = deque((line.rstrip() for line in stream if line.strip()), maxlen=200)
    except OSError:
        last = deque()
    text = "\n".join(last)
    missing = _NOT_FOUND.search(text)
    if _NO_SPACE.search(text):
        cause = "The disk is full: make room"
    elif _NO_NETWORK.search(text):
        cause = "The package index cannot be reached: check the network and pip's settings (pip config list)"
    elif missing:
        cause = f"No file of {missing[1]} fits this Python and this machine, or the index cannot be reached"
    else:
        cause = "See the last lines below"
    tail = "\n".join(f"    {line[:300]}" for line in list(last)[-_TAIL_LINES:])
    return InstallFailed(f"{what}. {cause}; then repeat: {command}\n{tail}\n  (all of it: {log})")
