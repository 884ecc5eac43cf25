"""Install, check and remove requirement sets: python -m mosaic_extras.install_extras --set atari,procgen

Exit codes: 0 done (with --check: ready), 1 something is not ready or failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire.errors import WireError
from mosaic_wire.files import read_json_object, size_below
from mosaic_wire.paths import Home, find_home

from mosaic_extras.errors import BadRequest, BaseUnfit, RequirementSetError, SetInUse
from mosaic_extras.installation import InstallStep, Phase, Report, Wheelhouse, clear, install
from mosaic_extras.overlays import (
    JOINS,
    OVERLAY_RECORD,
    READY,
    Base,
    Plan,
    SetCheck,
    SetState,
    check_sets,
    installing,
    is_locked,
    judge,
    make_plan,
    venvs_of,
)
from mosaic_extras.pins import BASE, LISTS, check_known, describe, parse_sets, pins_of, set_names

EXIT_NOT_READY, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the flags request, and print the result as text or JSON."""
    arguments = _parser().parse_args(argv)
    try:
        home = Home(Path(arguments.home).expanduser().absolute()) if arguments.home else find_home()
        sets = parse_sets(arguments.set or "")
        lists = Path(arguments.lists).absolute() if arguments.lists else LISTS
        check_known(sets, lists)
        return _run(arguments, home, sets, lists)
    except BadRequest as error:
        return _complain(error, EXIT_BAD_INPUT, as_json=arguments.json or arguments.progress_json)
    except (WireError, OSError) as error:
        return _complain(error, EXIT_NOT_READY, as_json=arguments.json or arguments.progress_json)
    except KeyboardInterrupt:
        _print("\nStopped. What was half made is not used; the next installation begins anew.", sys.stderr)
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mosaic_extras.install_extras",
        description="Install requirement sets: packages only some runs need, as overlays on this environment.",
        allow_abbrev=False,
    )
    parser.add_argument("--set", metavar="NAMES", help="sets to install, check or prune: atari,procgen")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="show every set, its state, its size and what it is for")
    action.add_argument("--check", action="store_true", help="report whether the sets are ready; installs nothing")
    action.add_argument("--prune", action="store_true", help="remove superseded and half-made overlays no run uses")
    action.add_argument("--remove", action="store_true", help="remove the named sets altogether")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--progress-json", action="store_true", help="print progress as JSON lines, the result last")
    parser.add_argument(
        "--home", metavar="FOLDER", help="MOSAIC's home (default: $MOSAIC_HOME, else the checkout's var)"
    )
    parser.add_argument("--lists", metavar="FOLDER", help="other requirement lists than this package's")
    return parser


def _run(arguments: argparse.Namespace, home: Home, sets: tuple[str, ...], lists: Path) -> int:
    if arguments.list:
        return _list(home, lists, as_json=arguments.json)
    if arguments.check:
        return _check(home, sets, lists, as_json=arguments.json)
    if arguments.prune or arguments.remove:
        if arguments.remove and not sets:
            raise BadRequest("--remove needs the sets to remove: --set atari,procgen")
        return _prune(home, sets, lists, everything=arguments.remove, as_json=arguments.json)
    if not sets:
        raise BadRequest("nothing to do: name sets with --set atari,procgen, or ask for --list, --check or --prune")
    # The daemon ends an installation with SIGTERM: end pip with it, as for Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return _install(home, sets, lists, arguments)


# ---------------------------------------------------------------- install


def _install(home: Home, sets: tuple[str, ...], lists: Path, arguments: argparse.Namespace) -> int:
    report = _reporter(as_json=arguments.progress_json, quiet=arguments.json)
    results: list[dict[str, Any]] = []
    for name in sets:
        if name == BASE:
            continue  # it is where this runs
        try:
            plan = install(home, name, report=report, lists=lists)
        except RequirementSetError as error:
            report(InstallStep(name, Phase.FAILED, str(error)))
            results.append({"set": name, "ready": False, "message": str(error)})
        else:
            python = str(plan.python if plan.needs_overlay else plan.base.python)
            results.append({"set": name, "ready": True, "python": python, "key": plan.key})
    complete = all(result["ready"] for result in results)
    if arguments.json or arguments.progress_json:
        _print(json.dumps({"event": "result", "ready": complete, "sets": results}), flush=True)
    return 0 if complete else EXIT_NOT_READY


def prepare(home: Home, sets: Sequence[str]) -> int:
    """Install the sets that are not ready, for `--prepare` of a worker; return its exit code.

    Progress is one JSON object a line for the daemon; the last one has the result.
    """
    report = _reporter(as_json=True, quiet=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends pip too, as Ctrl-C does
    try:
        for name in sets:
            if name != BASE and not check_sets(home, [name]).is_ready:
                install(home, name, report=report)
    except RequirementSetError as error:
        report(InstallStep(name, Phase.FAILED, str(error)))
        return EXIT_NOT_READY
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    report(InstallStep(",".join(sets), Phase.READY, f"ready: {', '.join(sets) or BASE}"))
    return 0


def _reporter(*, as_json: bool, quiet: bool) -> Report:
    if as_json:
        return lambda progress: _print(json.dumps(progress.to_json()), flush=True)
    if quiet:
        return lambda progress: None
    return _print_progress


def _print_progress(progress: InstallStep) -> None:
    """Print a line for every package; on a terminal the lines of one phase replace each other."""
    count = f"[{progress.done}/{progress.total}] " if progress.total else ""
    line = f"{progress.set}: {count}{progress.message}"
    if progress.phase is Phase.FAILED:
        _print(("\r\x1b[K" if sys.stdout.isatty() else "") + line, sys.stderr, flush=True)
    elif sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        ending = "\n" if progress.phase is Phase.READY or progress.done == progress.total else ""
        sys.stdout.write(f"\r\x1b[K{line[: width - 1]}{ending}")
        sys.stdout.flush()
    else:
        _print(line, flush=True)


# ---------------------------------------------------------------- check, list, prune


def _check(home: Home, sets: tuple[str, ...], lists: Path, *, as_json: bool) -> int:
    if not sets:  # everything that was installed at some time must still be intact
        answers = [_check_one(home, name, lists) for name in set_names(lists)]
        answers = [answer for answer in answers if answer.state is not SetState.NOT_INSTALLED]
    else:
        answers = [_check_one(home, name, lists) for name in sets]
    together = check_sets(home, sets, lists=lists) if len(sets) > 1 else None
    if as_json:
        document: dict[str, Any] = {"sets": [_answer_json(answer) for answer in answers]}
        if together is not None:
            document["together"] = _answer_json(together)
        _print(json.dumps(document))
    else:
        for answer in answers:
            _print(answer.message)
        if together is not None and together.state is SetState.SETS_DISAGREE:
            _print(f"note: {together.message}")
    return 0 if all(answer.is_ready for answer in answers) else EXIT_NOT_READY


def _check_one(home: Home, name: str, lists: Path) -> SetCheck:
    if name != BASE:
        return check_sets(home, [name], lists=lists, thorough=True)
    plan = make_plan(home, name, lists=lists)
    state, message = judge_base(plan)
    return SetCheck(state, f"base: {message}", (name,), plan.base.python, plan.versions())


def _answer_json(answer: SetCheck) -> dict[str, Any]:
    return {
        "sets": list(answer.sets),
        "state": str(answer.state),
        "ready": answer.is_ready,
        "message": answer.message,
        "command": answer.command,
        "python": str(answer.python) if answer.python else None,
        "versions": dict(answer.versions or {}),
    }


def _list(home: Home, lists: Path, *, as_json: bool) -> int:
    listings = list_sets(home, lists=lists)
    if as_json:
        _print(json.dumps([{**vars(listing), "state": str(listing.state)} for listing in listings]))
        return 0
    width = max(len(listing.name) for listing in listings)
    _print(f"{'SET':{width}}  {'STATE':20}  {'SIZE':>8}  FOR")
    for listing in listings:
        state = "in the base" if listing.in_base else str(listing.state)
        if listing.in_base or listing.name == BASE:
            size = "-"
        elif listing.bytes:
            size = f"{listing.bytes / 2**20:.0f} MB"
        else:
            size = f"~{listing.expected_mb} MB"
        _print(f"{listing.name:{width}}  {state:20}  {size:>8}  {listing.purpose}")
    return 0


def _prune(home: Home, sets: tuple[str, ...], lists: Path, *, everything: bool, as_json: bool) -> int:
    done = prune(home, sets, all_generations=everything, lists=lists)
    if as_json:
        document = {"removed": list(map(str, done.removed)), "kept": done.kept, "bytes": done.bytes}
        _print(json.dumps(document))
    else:
        for path in done.removed:
            _print(f"removed {path}")
        for reason in done.kept:
            _print(f"kept: {reason}", sys.stderr)
        _print(f"{done.bytes / 2**20:.0f} MB freed")
    return EXIT_NOT_READY if done.kept else 0


def _complain(error: Exception, code: int, *, as_json: bool) -> int:
    _print(str(error), sys.stderr)
    if as_json:
        _print(json.dumps({"event": "result", "ready": False, "message": str(error)}))
    return code


def _print(text: str, stream: Any = None, *, flush: bool = False) -> None:
    """Print; a reader that has exited is no reason for a traceback."""
    try:
        print(text, file=stream or sys.stdout, flush=flush)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True)
class Listing:
    """One line of the list of sets."""

    name: str
    state: SetState
    detail: str
    purpose: str
    bytes: int
    """what it takes now; 0 when it is not installed"""
    expected_mb: int
    in_base: bool


def list_sets(home: Home, *, lists: Path = LISTS) -> list[Listing]:
    """Return every set with its state."""
    installed = Base.current().distributions()
    found = []
    for name in set_names(lists):
        plan = make_plan(home, name, lists=lists, installed=installed)
        about = describe(name, lists)
        state, detail = judge_base(plan) if name == BASE else judge(plan)
        size = 0
        if name != BASE and state is SetState.READY and plan.needs_overlay:
            with suppress(OSError, ValueError, TypeError):
                size = int(read_json_object(plan.ready_file)["bytes"])
        in_base = state is SetState.READY and (name == BASE or not plan.needs_overlay)
        found.append(Listing(name, state, detail, about.purpose, size, about.size_mb, in_base))
    return found


def judge_base(plan: Plan) -> tuple[SetState, str]:
    """Compare the base with its own pins: other versions are reported, a missing torch is a fault."""
    try:
        plan.check_base()
    except BaseUnfit as error:
        return SetState.BASE_LACKS, str(error)
    if not plan.own:
        return SetState.READY, f"the base environment {plan.base.prefix}"
    present = plan.base.distributions()
    listed = [
        f"{pin} (here: {', '.join(found.version for found in present.get(pin.key, ())) or 'none'})" for pin in plan.own
    ]
    return SetState.BASE_DIFFERS, f"the base environment {plan.base.prefix} does not have {', '.join(listed)}"


@dataclass
class Pruned:
    """Removed folders, those that could not be removed, and freed bytes."""

    removed: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    bytes: int = 0


def prune(home: Home, sets: Sequence[str] = (), *, all_generations: bool = False, lists: Path = LISTS) -> Pruned:
    """Remove overlays that are superseded or half made (`all_generations`: also those in force) and no run uses.

    Without `sets` every set is pruned, joint environments too, and wheels that no pin list names are removed.
    """
    check_known(sets, lists)
    known, pruned, venvs = set_names(lists), Pruned(), venvs_of(home)
    on_disk = sorted(path.name for path in venvs.glob("*/") if path.name != JOINS)
    for name in sets or on_disk:
        keeps_current = name in known and not all_generations
        current = make_plan(home, name, lists=lists).generation if keeps_current else None
        _prune_set(venvs / name, current, pruned)
    _prune_joins(venvs / JOINS, pruned)
    if not sets:
        pins = [pin for name in known for pin in (*pins_of(name, lists).values(), describe(name, lists).games_pin)]
        pruned.bytes += Wheelhouse(home).keep_only(pin for pin in pins if pin is not None)
    return pruned


def _prune_set(folder: Path, current: Path | None, pruned: Pruned) -> None:
    lock_file = folder.with_name(f"{folder.name}.lock")
    if is_locked(lock_file):
        pruned.kept.append(f"{folder}: being installed now")
        return
    with installing(lock_file):
        for generation in sorted(folder.glob("*/")):
            if generation == current and (generation / READY).is_file():
                continue
            size = size_below(generation)
            try:
                clear(generation)
            except (SetInUse, OSError) as error:
                pruned.kept.append(str(error))
                continue
            pruned.removed.append(generation)
            pruned.bytes += size
    with suppress(OSError):
        folder.rmdir()  # only when it is empty


def _prune_joins(folder: Path, pruned: Pruned) -> None:
    """Remove joint environments one of whose overlays is missing; they are made again in a moment when needed."""
    for prefix in sorted(folder.glob("*")):
        try:
            generations = [Path(path) for path in read_json_object(prefix / OVERLAY_RECORD)["generations"]]
        except (OSError, ValueError, KeyError, TypeError):
            generations = []
        if prefix.name.startswith(".") or not generations or not all(path.is_dir() for path in generations):
            pruned.bytes += size_below(prefix)
            shutil.rmtree(prefix, ignore_errors=True)
            pruned.removed.append(prefix)


if __name__ == "__main__":
    sys.exit(main())
