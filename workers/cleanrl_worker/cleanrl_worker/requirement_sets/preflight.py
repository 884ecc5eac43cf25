"""Is a set installed and intact? Answered in about a millisecond: no subprocess, no import of what is installed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mosaic_wire.files import read_json_object
from mosaic_wire.paths import Home, find_home

from cleanrl_worker.requirement_sets.errors import BaseUnfit, SetNotReady, SetsDisagree
from cleanrl_worker.requirement_sets.joining import join, join_prefix
from cleanrl_worker.requirement_sets.locks import is_locked
from cleanrl_worker.requirement_sets.pins import BASE, LISTS, check_agreement, check_known, describe
from cleanrl_worker.requirement_sets.plan import READY, Base, Plan, distributions_in, make_plan, python_of


class SetState(StrEnum):
    """What can be said about a set without starting anything."""

    READY = "ready"
    NOT_INSTALLED = "not installed"
    INSTALLING = "being installed"
    INCOMPLETE = "incomplete"
    """an installation was cut off before it was marked"""
    STALE = "stale"
    """installed for other pins or another state of the base"""
    PACKAGE_MISSING = "package missing"
    PACKAGE_CHANGED = "package changed"
    PACKAGE_UNEXPECTED = "unexpected package"
    INTERPRETER_GONE = "interpreter gone"
    MARKER_UNREADABLE = "marker unreadable"
    BASE_LACKS = "base lacks a package"
    BASE_DIFFERS = "other versions"
    """of the base alone: it has not the versions that were tried together"""
    SETS_DISAGREE = "sets disagree"


@dataclass(frozen=True)
class Preflight:
    """The answer: `message` is a sentence with the remedy, `python` the interpreter a run would get."""

    state: SetState
    message: str
    sets: tuple[str, ...]
    python: Path | None = None
    versions: Mapping[str, str] | None = None
    command: str = ""
    """what a person types to repair it, where that is one command"""
    missing: tuple[str, ...] = ()
    """the sets that this command installs"""

    @property
    def is_ready(self) -> bool:
        return self.state is SetState.READY


def preflight(
    home: Home, sets: Iterable[str], *, lists: Path = LISTS, base: Base | None = None, thorough: bool = False
) -> Preflight:
    """Judge the environment that a run with these sets would get; raise UnknownSet for a name nobody knows.

    `thorough` reads every file of the sets, which takes seconds.
    `python` of several sets is where `interpreter_for` puts their joint environment; it need not exist yet.
    """
    base = base or Base.current()
    wanted = tuple(sorted({name for name in sets if name != BASE}))
    check_known(wanted, lists)
    try:
        check_agreement(wanted, lists)
    except SetsDisagree as error:
        return Preflight(SetState.SETS_DISAGREE, str(error), wanted)
    installed = base.distributions()
    plans = [make_plan(home, name, lists=lists, base=base, installed=installed) for name in wanted]
    judged = [(plan, *judge(plan, thorough=thorough)) for plan in plans]
    broken = [(plan, state, why) for plan, state, why in judged if state is not SetState.READY]
    if broken:
        return _refusal(home, wanted, broken, lists)
    overlays = [plan for plan in plans if plan.needs_overlay]
    versions = {name: version for plan in plans for name, version in plan.versions().items()}
    if not overlays:
        python, where = base.python, "the base environment has it all"
    elif len(overlays) == 1:
        python, where = overlays[0].python, str(overlays[0].generation)
    else:
        prefix = join_prefix(home, overlays)
        python, where = python_of(prefix), str(prefix)
    return Preflight(SetState.READY, f"{', '.join(wanted) or BASE}: ready ({where})", wanted, python, versions)


def interpreter_for(home: Home, sets: Iterable[str], *, lists: Path = LISTS, base: Base | None = None) -> Path:
    """The interpreter for a run with these sets; raise SetNotReady with the command that installs them."""
    base = base or Base.current()
    answer = preflight(home, sets, lists=lists, base=base)
    if not answer.is_ready or answer.python is None:
        raise SetNotReady(answer.message)
    plans = [make_plan(home, name, lists=lists, base=base) for name in answer.sets]
    overlays = [plan for plan in plans if plan.needs_overlay]
    if len(overlays) > 1:
        join(home, overlays)
    return answer.python


def install_command(home: Home, sets: Iterable[str]) -> str:
    """The one command that installs these sets, ready to be pasted."""
    elsewhere = ["--home", str(home.root)] if home.root != find_home().root else []
    return shlex.join(["mosaic", "extras", "install", *sets, *elsewhere])


def _refusal(
    home: Home, wanted: tuple[str, ...], broken: Sequence[tuple[Plan, SetState, str]], lists: Path
) -> Preflight:
    _, state, why = broken[0]
    if state is SetState.BASE_LACKS:
        return Preflight(state, why, wanted)
    names = [plan.name for plan, _, _ in broken]
    command = install_command(home, names)
    said = "; ".join(f"requirement set {plan.name!r} is {why}" for plan, _, why in broken)
    size = sum(describe(name, lists).size_mb for name in names)
    return Preflight(
        state, f"{said}. Install: {command} (about {size} MB)", wanted, command=command, missing=tuple(names)
    )


def judge(plan: Plan, *, thorough: bool = False) -> tuple[SetState, str]:
    """The state of one set's overlay, and the words for it; `thorough` compares every file with its hash."""
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
        return SetState.INCOMPLETE, "incomplete: an installation was cut off"
    except (OSError, ValueError) as error:
        return SetState.MARKER_UNREADABLE, f"not to be trusted, its marker cannot be read ({error})"
    state, why = _judge_files(plan, marker)
    if state is SetState.READY and thorough and (problems := _damaged_files(plan)):
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return SetState.PACKAGE_CHANGED, f"damaged: {problems[0]}{more}"
    return state, why


def _damaged_files(plan: Plan) -> list[str]:
    from cleanrl_worker.requirement_sets.overlay_check import damaged_files

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
    """Compare what lies there with what was marked, by names, sizes and times."""
    recorded = marker.get("own")
    if marker.get("key") != plan.key or not isinstance(recorded, dict):
        return SetState.MARKER_UNREADABLE, "not to be trusted, its marker belongs to something else"
    if not os.path.exists(plan.python):
        return SetState.INTERPRETER_GONE, f"without an interpreter: {os.path.realpath(plan.python)} is gone"
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
    for taken in plan.from_base.values():
        if not os.path.exists(taken.record):
            return SetState.PACKAGE_MISSING, f"damaged: the base's {taken.name} {taken.version} is incomplete"
    return SetState.READY, "ready"


def record_signature(dist_info: str) -> list[int] | None:
    """When a distribution's list of files was written and how long it is; None when there is none."""
    try:
        status = os.stat(f"{dist_info}/RECORD")
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]
