"""The wheel cache: every wheel an overlay was made from, so that it can be made again without a network."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mosaic_wire.paths import Home

from cleanrl_worker.requirement_sets.pins import Pin, normalised
from cleanrl_worker.requirement_sets.pip_process import LogTail, clean_environment, failure, run_logged
from cleanrl_worker.requirement_sets.plan import platform_name
from cleanrl_worker.requirement_sets.progress import Phase, Progress, Report

_FETCH_LINE = re.compile(r"^(Collecting|Processing|Building wheel for)\s+(\S+)")
_NAME_END = re.compile(r"[=<>!~\[(;]")


def cache_of(home: Home) -> Path:
    """Where downloads are kept."""
    return home.cache / "pip"


class Wheelhouse:
    """The wheels of this Python on this machine."""

    def __init__(self, home: Home) -> None:
        self.cache = cache_of(home)
        self.folder = self.cache / f"wheels-{sys.implementation.cache_tag}-{platform_name()}"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep others from tidying up while wheels are read."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.cache / "wheels.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            yield
        finally:
            os.close(descriptor)

    def find(self, pin: Pin) -> Path | None:
        """The wheel of a pin, if it was fetched before."""
        return self.wheels().get((pin.key, pin.version))

    def wheels(self) -> dict[tuple[str, str], Path]:
        """Every wheel by normalised name and public version."""
        found = {}
        for path in self.folder.glob("*.whl") if self.folder.is_dir() else ():
            parts = path.name.split("-")
            if len(parts) >= 5:
                found[normalised(parts[0]), parts[1].partition("+")[0]] = path
        return found

    def fetch(
        self, name: str, pins: Sequence[Pin], *, python: Path, log: Path, lock: int, report: Report, command: str,
        again: bool = False, ignore_requires_python: bool = False,
    ) -> None:  # fmt: skip
        """Download, or build, what is not there yet; `again` replaces what is there, too."""
        present = self.wheels()
        missing = [pin for pin in pins if again or (pin.key, pin.version) not in present]
        if not missing:
            return
        incoming = self.cache / f"incoming-{name}"
        shutil.rmtree(incoming, ignore_errors=True)  # of an installation that was killed
        incoming.mkdir(parents=True)
        wanted = incoming / "wanted.txt"
        wanted.write_text("".join(f"{pin}\n" for pin in missing), encoding="ascii")
        follow = _Follower(name, missing, log, report)
        environment = clean_environment(self.cache / "http")

        def run_pip(*arguments: str) -> None:
            argv = [str(python), "-m", "pip", *arguments]
            code = run_logged(argv, log=log, env=environment, cwd=incoming, lock=lock, poll=follow)
            if code:
                shutil.rmtree(incoming, ignore_errors=True)
                raise failure(f"requirement set {name!r} could not be downloaded (pip ended with {code})", log, command)

        if not ignore_requires_python:
            run_pip("wheel", "--no-deps", "-r", str(wanted), "-w", str(incoming))
        else:
            # `pip wheel` has this option and, up to 23.2 at least, does not look at it while it searches.
            loosely = ("--no-deps", "--ignore-requires-python")
            run_pip("download", *loosely, "-r", str(wanted), "-d", str(incoming))
            sources = [str(path) for path in sorted(incoming.iterdir()) if path.name.endswith((".tar.gz", ".zip"))]
            if sources:
                run_pip("wheel", *loosely, "-w", str(incoming), *sources)
        # Renamed one by one when all are complete: no reader ever meets half a wheel.
        for wheel in incoming.glob("*.whl"):
            os.replace(wheel, self.folder / wheel.name)
        shutil.rmtree(incoming, ignore_errors=True)

    def hashes(self, pins: Iterable[Pin]) -> dict[str, tuple[str, str]]:
        """(file name, sha256) of each pin's wheel, by the pin's text."""
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
        wanted = {(pin.key, pin.version) for pin in pins}
        freed = 0
        with self._locked(fcntl.LOCK_EX):
            for key, path in self.wheels().items():
                if key not in wanted:
                    freed += path.stat().st_size
                    path.unlink()
        return freed


class _Follower:
    """Turns pip's lines into progress: a package counts when pip turns to it."""

    def __init__(self, name: str, pins: Sequence[Pin], log: Path, report: Report) -> None:
        self._name, self._report, self._tail = name, report, LogTail(log)
        self._pins = {pin.key: pin for pin in pins}
        self._seen: set[str] = set()

    def __call__(self) -> None:
        for line in self._tail.lines():
            match = _FETCH_LINE.match(line.strip())
            if match is None:
                continue
            word = os.path.basename(match[2])
            # `Collecting name==1.0`, but `Processing /folder/name-1.0-py3-none-any.whl`
            key = normalised(word.split("-")[0] if match[1] == "Processing" else _NAME_END.split(word)[0])
            pin = self._pins.get(key)
            if pin is not None and match[1] == "Building wheel for":
                self._tell(pin, "building")
            elif pin is not None and key not in self._seen:
                self._seen.add(key)
                self._tell(pin, "fetching")

    def _tell(self, pin: Pin, verb: str) -> None:
        done, total = len(self._seen), len(self._pins)
        self._report(Progress(self._name, Phase.FETCHING, f"{verb} {pin.name} {pin.version}", done, total, str(pin)))
