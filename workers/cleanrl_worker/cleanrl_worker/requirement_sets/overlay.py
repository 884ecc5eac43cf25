"""Building an overlay: everything is made, checked and tried before `ready.json` says that it may be used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic_wire.files import write_json_atomically
from mosaic_wire.paths import Home

from cleanrl_worker.requirement_sets import overlay_check
from cleanrl_worker.requirement_sets.errors import InstallFailed
from cleanrl_worker.requirement_sets.joining import make_environment
from cleanrl_worker.requirement_sets.locks import installing, unused
from cleanrl_worker.requirement_sets.pins import LISTS, Pin, SetDescription, describe, normalised
from cleanrl_worker.requirement_sets.pip_process import Captured, clean_environment, failure, run_captured, run_logged
from cleanrl_worker.requirement_sets.plan import READY, Base, Plan, distributions_in, make_plan, venvs_of
from cleanrl_worker.requirement_sets.preflight import SetState, install_command, judge, record_signature
from cleanrl_worker.requirement_sets.progress import Phase, Progress, Report, silent
from cleanrl_worker.requirement_sets.wheels import Wheelhouse

CHECK_TIMEOUT_S = 300
LOG_NAME = "pip.log"
LOCK_NAME = "lock.txt"
"""In every overlay: what was resolved, with hashes, in pip's own format"""

_CONFLICT = re.compile(r"^(\S+) \S+ (?:has requirement|requires) ([A-Za-z0-9._-]+)")


def install(home: Home, name: str, *, report: Report = silent, lists: Path = LISTS, base: Base | None = None) -> Plan:
    """Install a set, or find it ready; another installer of the same set is waited for."""
    base = base or Base.current()
    plan = make_plan(home, name, lists=lists, base=base)
    plan.check_base()
    if not plan.needs_overlay:
        report(Progress(name, Phase.READY, "the base environment has it all"))
        return plan
    try:
        with installing(plan.lock_file, waits=lambda holder: _tell_waiting(report, name, holder)) as lock:
            # Planned again: whoever held the lock may have finished it, or changed the base.
            plan = make_plan(home, name, lists=lists, base=base)
            if judge(plan, thorough=True)[0] is SetState.READY:
                report(Progress(name, Phase.READY, f"ready: {plan.generation}"))
                return plan
            _Installation(home, plan, describe(name, lists), report, lock).run()
    except OSError as error:
        again = install_command(home, [name])
        raise InstallFailed(
            f"requirement set {name!r} could not be installed: {error}. Then repeat: {again}"
        ) from error
    return plan


def _tell_waiting(report: Report, name: str, holder: str) -> None:
    report(Progress(name, Phase.WAITING, f"another installer (process {holder}) is at work; waiting for it"))


def clear(generation: Path) -> None:
    """Remove an overlay; raise SetInUse when a run is in it. It stops being ready before anything else is gone."""
    with unused(generation):
        (generation / READY).unlink(missing_ok=True)
        shutil.rmtree(generation, ignore_errors=True)
    if generation.exists():
        shutil.rmtree(generation)


class _Installation:
    """One attempt; nothing of an earlier one is trusted."""

    def __init__(self, home: Home, plan: Plan, about: SetDescription, report: Report, lock: int) -> None:
        self._plan, self._about, self._report, self._lock = plan, about, report, lock
        self._home, self._wheels = home, Wheelhouse(home)
        self._command = install_command(home, [plan.name])
        self._log = plan.generation / LOG_NAME

    def run(self) -> None:
        """All phases; the marker last."""
        started = time.monotonic()
        plan = self._plan
        self._tell(Phase.PREPARING, f"{plan.generation}: {len(plan.own)} packages, {len(plan.from_base)} from the base")
        self._check_place()
        if plan.generation.exists():
            clear(plan.generation)
        make_environment(plan.generation, plan.base, name=plan.name)
        with self._wheels.in_use():
            self._fetch(again=False)
            self._pip_install()
            self._copy_games()
            files = self._wheels.hashes(plan.own)
        self._tell(Phase.CHECKING, "every version and file")
        self._check_files()
        conflicts = self._check_declarations()
        self._tell(Phase.CHECKING, "smoke test")
        self._smoke()
        self._mark(files, conflicts, time.monotonic() - started)
        self._tell(Phase.READY, f"ready in {time.monotonic() - started:.0f} s: {plan.generation}")

    def _tell(self, phase: Phase, message: str) -> None:
        self._report(Progress(self._plan.name, phase, message))

    def _check_place(self) -> None:
        prefix = str(self._plan.generation)
        # pip asks "is this mine?" with a plain startswith, and would remove packages of such a base.
        if any(str(folder).startswith(prefix) for folder in self._plan.base.site):
            raise InstallFailed(f"the base environment lies inside {prefix}; choose another home")
        venvs_of(self._home).mkdir(parents=True, exist_ok=True)
        free_mb = shutil.disk_usage(venvs_of(self._home)).free // 2**20
        wanted_mb = int(self._about.size_mb * 1.5)  # the wheels are kept as well
        if free_mb < wanted_mb:
            raise InstallFailed(
                f"requirement set {self._plan.name!r} needs about {wanted_mb} MB of disk and {venvs_of(self._home)} "
                f"has {free_mb} MB free: make room (install_extras --prune), then repeat: {self._command}"
            )

    # ------------------------------------------------------------ pip

    def _fetch(self, *, again: bool) -> None:
        pins = list(self._plan.own)
        if (games := self._games_pin()) is not None and games not in pins:
            pins.append(games)
        # Another version of a package the set has: pip takes one version a call.
        for group in _one_version_each(pins):
            self._wheels.fetch(
                self._plan.name, group, python=self._plan.base.python, log=self._log, lock=self._lock,
                report=self._report, command=self._command, again=again,
                ignore_requires_python=self._about.ignore_requires_python,
            )  # fmt: skip

    def _games_pin(self) -> Pin | None:
        name, _, version = self._about.roms_from.partition("==")
        return Pin(name, version) if version else None

    def _pip_install(self) -> None:
        code = self._run_pip_install()
        if code:
            # A wheel in the cache may be damaged: once more with fresh ones, which also tells a lasting fault from it.
            self._tell(Phase.FETCHING, "pip failed on the kept wheels; fetching them again")
            self._fetch(again=True)
            code = self._run_pip_install()
        if code:
            what = f"requirement set {self._plan.name!r} could not be installed (pip ended with {code})"
            raise failure(what, self._log, self._command)

    def _run_pip_install(self) -> int:
        wanted = self._plan.generation / "own.txt"
        wanted.write_text("".join(f"{pin}\n" for pin in self._plan.own), encoding="ascii")
        argv = [
            str(self._plan.python), "-m", "pip", "install", "--no-deps", "--no-index",
            "--find-links", str(self._wheels.folder), "-r", str(wanted),
        ]  # fmt: skip
        if self._about.ignore_requires_python:
            argv.append("--ignore-requires-python")
        environment = clean_environment(self._wheels.cache / "http")
        environment.pop("PIP_FIND_LINKS", None)  # only what was fetched, and hashed, is installed
        seen: set[str] = set()

        def poll() -> None:
            for found in distributions_in(self._plan.site):
                if found.key not in seen:
                    seen.add(found.key)
                    message, total = f"installing {found.name} {found.version}", len(self._plan.own)
                    step = Progress(self._plan.name, Phase.INSTALLING, message, len(seen), total, found.name)
                    self._report(step)

        return run_logged(argv, log=self._log, env=environment, cwd=self._plan.generation, lock=self._lock, poll=poll)

    def _copy_games(self) -> None:
        if (pin := self._games_pin()) is not None:
            folders = [self._plan.site / folder for folder in self._about.roms_into]
            count = self._wheels.copy_games(pin, folders)
            self._tell(Phase.INSTALLING, f"{count} Atari games from {pin}")

    # ------------------------------------------------------------ checks

    def _ask(self, *arguments: str, env: Mapping[str, str] | None = None) -> Captured:
        """Run the overlay's interpreter, isolated from everything outside the overlay and the base."""
        argv = [str(self._plan.python), "-I", *arguments]
        environment = {**clean_environment(self._wheels.cache / "http"), **(env or {})}
        try:
            return run_captured(
                argv, env=environment, cwd=self._plan.generation, lock=self._lock, timeout_s=CHECK_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise InstallFailed(
                f"requirement set {self._plan.name!r}: {' '.join(argv)[:200]} took longer than {CHECK_TIMEOUT_S} s; "
                f"repeat: {self._command}"
            ) from error

    def _check_files(self) -> None:
        plan = self._plan
        question = plan.generation / "check.json"
        pins = {pin.name: pin.version for pin in plan.pins.values()}
        own = [pin.name for pin in plan.own]
        question.write_text(json.dumps({"site": str(plan.site), "pins": pins, "own": own}), encoding="utf-8")
        done = self._ask(str(Path(overlay_check.__file__)), str(question))
        try:
            problems = json.loads(done.output)
        except ValueError:
            problems = [f"the check itself failed: {done.errors.strip()[-500:]}"]
        if problems:
            raise InstallFailed(
                f"requirement set {plan.name!r} is not what its pin list says: {'; '.join(problems[:5])}"
                f"{f' and {len(problems) - 5} more' if len(problems) > 5 else ''}. Repeat: {self._command}"
            )

    def _check_declarations(self) -> list[str]:
        """What packages say they need and do not get; inside the pin list that is an error of the list."""
        done = self._ask("-m", "pip", "check")
        inside: list[str] = []
        known: list[str] = []
        for line in done.output.splitlines():
            match = _CONFLICT.match(line)
            if match is None or normalised(match[1]) not in self._plan.pins:
                continue  # about packages of the base that this set has nothing to do with
            (known if normalised(match[1]) in self._about.known_conflicts else inside).append(line)
        inside = [line for line in inside if not self._is_the_base_alone(line)]
        if inside:
            raise InstallFailed(
                f"the pins of requirement set {self._plan.name!r} contradict each other on this Python: "
                f"{'; '.join(inside[:5])}. This is a fault of the list; please report it."
            )
        return known

    def _is_the_base_alone(self, line: str) -> bool:
        """A package of the base that lacks something the base lacks, too, is not this set's affair."""
        match = _CONFLICT.match(line)
        assert match is not None
        return normalised(match[1]) in self._plan.from_base and normalised(match[2]) not in self._plan.pins

    def _smoke(self) -> None:
        if not self._about.smoke:
            return
        done = self._ask("-W", "ignore", "-c", self._about.smoke, env=dict(self._about.smoke_env))
        if done.code:
            tail = "\n".join(f"    {line[:300]}" for line in done.errors.strip().splitlines()[-8:])
            raise InstallFailed(
                f"requirement set {self._plan.name!r} is installed but does not work here (exit {done.code}); "
                f"it was not marked ready.\n{tail}\n  repeat: {self._command}"
            )

    # ------------------------------------------------------------ marker

    def _mark(self, files: Mapping[str, tuple[str, str]], conflicts: list[str], seconds: float) -> None:
        plan = self._plan
        lines = [f"# Requirement set {plan.name}, {plan.key}: what was resolved and installed"]
        for pin in plan.own:
            file, digest = files.get(str(pin), ("", ""))
            lines.append(f"{pin} --hash=sha256:{digest}  # {file}" if digest else str(pin))
        lines += [f"# from the base: {found.name}=={found.version}" for found in plan.from_base.values()]
        (plan.generation / LOCK_NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.sync()  # the marker must not reach the disk before what it vouches for
        marker: dict[str, Any] = {
            "set": plan.name,
            "key": plan.key,
            "base": str(plan.base.prefix),
            "own": {
                os.path.basename(found.folder): record_signature(found.folder) for found in distributions_in(plan.site)
            },
            "versions": plan.versions(),
            "files": {pin: list(entry) for pin, entry in files.items()},
            "conflicts": conflicts,
            "bytes": size_of(plan.generation),
            "seconds": round(seconds, 1),
            "made_at": time.time(),
        }
        write_json_atomically(plan.ready_file, marker, sealed=True)


def _one_version_each(pins: list[Pin]) -> list[list[Pin]]:
    """Split so that no group has two versions of a package."""
    first: dict[str, Pin] = {}
    rest = [pin for pin in pins if first.setdefault(pin.key, pin) != pin]
    return [list(first.values()), *([rest] if rest else [])]


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total
