"""Install, check and remove requirement sets: python -m cleanrl_worker.tools.install_extras --set atari,procgen

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
from pathlib import Path
from types import FrameType
from typing import Any

from mosaic_wire.errors import WireError
from mosaic_wire.paths import Home, find_home

from cleanrl_worker.errors import BadInput, WorkerError
from cleanrl_worker.requirement_sets.pins import BASE, LISTS, check_known, parse_sets
from cleanrl_worker.requirement_sets.plan import make_plan
from cleanrl_worker.requirement_sets.preflight import Preflight, SetState, preflight
from cleanrl_worker.requirement_sets.progress import Phase, Progress, Report

EXIT_NOT_READY, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the flags say and tell it in words or as JSON."""
    arguments = _parser().parse_args(argv)
    try:
        home = Home(Path(arguments.home).expanduser().absolute()) if arguments.home else find_home()
        sets = parse_sets(arguments.set or "")
        lists = Path(arguments.lists).absolute() if arguments.lists else LISTS
        check_known(sets, lists)
        return _run(arguments, home, sets, lists)
    except BadInput as error:
        return _complain(error, EXIT_BAD_INPUT, as_json=arguments.json or arguments.progress_json)
    except (WorkerError, WireError, OSError) as error:
        return _complain(error, EXIT_NOT_READY, as_json=arguments.json or arguments.progress_json)
    except KeyboardInterrupt:
        _say("\nStopped. What was half made is not used; the next installation begins anew.", sys.stderr)
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cleanrl_worker.tools.install_extras", allow_abbrev=False,
        description="Install requirement sets: packages only some runs need, as overlays on this environment.",
    )  # fmt: skip
    parser.add_argument("--set", metavar="NAMES", help="sets to install, check or prune: atari,procgen")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="show every set, its state, its size and what it is for")
    action.add_argument("--check", action="store_true", help="say whether the sets are ready; installs nothing")
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
            raise BadInput("--remove needs the sets to remove: --set atari,procgen")
        return _prune(home, sets, lists, everything=arguments.remove, as_json=arguments.json)
    if not sets:
        raise BadInput("nothing to do: name sets with --set atari,procgen, or ask for --list, --check or --prune")
    # The daemon ends an installation with SIGTERM: end pip with it, as for Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    return _install(home, sets, lists, arguments)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# ---------------------------------------------------------------- install


def _install(home: Home, sets: tuple[str, ...], lists: Path, arguments: argparse.Namespace) -> int:
    from cleanrl_worker.requirement_sets.overlay import install  # not cheap; a check need not wait for it

    report = _reporter(as_json=arguments.progress_json, quiet=arguments.json)
    results: list[dict[str, Any]] = []
    for name in sets:
        if name == BASE:
            continue  # it is where this runs
        try:
            plan = install(home, name, report=report, lists=lists)
        except WorkerError as error:
            report(Progress(name, Phase.FAILED, str(error)))
            results.append({"set": name, "ready": False, "message": str(error)})
        else:
            python = str(plan.python if plan.needs_overlay else plan.base.python)
            results.append({"set": name, "ready": True, "python": python, "key": plan.key})
    complete = all(result["ready"] for result in results)
    if arguments.json or arguments.progress_json:
        _say(json.dumps({"event": "result", "ready": complete, "sets": results}), flush=True)
    return 0 if complete else EXIT_NOT_READY


def _reporter(*, as_json: bool, quiet: bool) -> Report:
    if as_json:
        return lambda progress: _say(json.dumps(progress.to_json()), flush=True)
    if quiet:
        return lambda progress: None
    return _print_progress


def _print_progress(progress: Progress) -> None:
    """A line for every package; on a terminal the lines of one phase replace each other."""
    count = f"[{progress.done}/{progress.total}] " if progress.total else ""
    line = f"{progress.set}: {count}{progress.message}"
    if progress.phase is Phase.FAILED:
        _say(("\r\x1b[K" if sys.stdout.isatty() else "") + line, sys.stderr, flush=True)
    elif sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        ending = "\n" if progress.phase is Phase.READY or progress.done == progress.total else ""
        sys.stdout.write(f"\r\x1b[K{line[: width - 1]}{ending}")
        sys.stdout.flush()
    else:
        _say(line, flush=True)


# ---------------------------------------------------------------- check, list, prune


def _check(home: Home, sets: tuple[str, ...], lists: Path, *, as_json: bool) -> int:
    from cleanrl_worker.requirement_sets.pins import set_names

    if not sets:  # everything that was installed at some time must still be intact
        answers = [_check_one(home, name, lists) for name in set_names(lists)]
        answers = [answer for answer in answers if answer.state is not SetState.NOT_INSTALLED]
    else:
        answers = [_check_one(home, name, lists) for name in sets]
    together = preflight(home, sets, lists=lists) if len(sets) > 1 else None
    if as_json:
        document: dict[str, Any] = {"sets": [_answer_json(answer) for answer in answers]}
        if together is not None:
            document["together"] = _answer_json(together)
        _say(json.dumps(document))
    else:
        for answer in answers:
            _say(answer.message)
        if together is not None and together.state is SetState.SETS_DISAGREE:
            _say(f"note: {together.message}")
    return 0 if all(answer.is_ready for answer in answers) else EXIT_NOT_READY


def _check_one(home: Home, name: str, lists: Path) -> Preflight:
    if name != BASE:
        return preflight(home, [name], lists=lists, thorough=True)
    from cleanrl_worker.requirement_sets.housekeeping import judge_base

    plan = make_plan(home, name, lists=lists)
    state, message = judge_base(plan)
    return Preflight(state, f"base: {message}", (name,), plan.base.python, plan.versions())


def _answer_json(answer: Preflight) -> dict[str, Any]:
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
    from cleanrl_worker.requirement_sets.housekeeping import list_sets

    listings = list_sets(home, lists=lists)
    if as_json:
        _say(json.dumps([{**vars(listing), "state": str(listing.state)} for listing in listings]))
        return 0
    width = max(len(listing.name) for listing in listings)
    _say(f"{'SET':{width}}  {'STATE':20}  {'SIZE':>8}  FOR")
    for listing in listings:
        state = "in the base" if listing.in_base else str(listing.state)
        if listing.in_base or listing.name == BASE:
            size = "-"
        elif listing.bytes:
            size = f"{listing.bytes / 2**20:.0f} MB"
        else:
            size = f"~{listing.expected_mb} MB"
        _say(f"{listing.name:{width}}  {state:20}  {size:>8}  {listing.purpose}")
    return 0


def _prune(home: Home, sets: tuple[str, ...], lists: Path, *, everything: bool, as_json: bool) -> int:
    from cleanrl_worker.requirement_sets.housekeeping import prune

    done = prune(home, sets, all_generations=everything, lists=lists)
    if as_json:
        document = {"removed": list(map(str, done.removed)), "kept": list(done.kept), "bytes": done.bytes}
        _say(json.dumps(document))
    else:
        for path in done.removed:
            _say(f"removed {path}")
        for reason in done.kept:
            _say(f"kept: {reason}", sys.stderr)
        _say(f"{done.bytes / 2**20:.0f} MB freed")
    return EXIT_NOT_READY if done.kept else 0


def _complain(error: Exception, code: int, *, as_json: bool) -> int:
    _say(str(error), sys.stderr)
    if as_json:
        _say(json.dumps({"event": "result", "ready": False, "message": str(error)}))
    return code


def _say(text: str, stream: Any = None, *, flush: bool = False) -> None:
    """Print; a reader that has gone away is no reason for a traceback."""
    try:
        print(text, file=stream or sys.stdout, flush=flush)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
