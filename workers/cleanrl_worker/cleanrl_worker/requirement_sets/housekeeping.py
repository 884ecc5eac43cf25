"""Which sets there are and how they stand; and removing what nobody needs any more."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.files import read_json_object
from mosaic_wire.paths import Home

from cleanrl_worker.requirement_sets.errors import BaseUnfit, SetInUse
from cleanrl_worker.requirement_sets.joining import JOINS
from cleanrl_worker.requirement_sets.locks import installing, is_locked
from cleanrl_worker.requirement_sets.overlay import clear, size_of
from cleanrl_worker.requirement_sets.pins import BASE, LISTS, Pin, check_known, describe, pins_of, set_names
from cleanrl_worker.requirement_sets.plan import Base, Plan, make_plan, venvs_of
from cleanrl_worker.requirement_sets.preflight import SetState, judge
from cleanrl_worker.requirement_sets.wheels import Wheelhouse


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


def list_sets(home: Home, *, lists: Path = LISTS, base: Base | None = None) -> list[Listing]:
    """Every set with its state."""
    base = base or Base.current()
    installed = base.distributions()
    found = []
    for name in set_names(lists):
        plan = make_plan(home, name, lists=lists, base=base, installed=installed)
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
    """The base against its own pins; other versions are worth a word, a missing torch is a fault."""
    try:
        plan.check_base()
    except BaseUnfit as error:
        return SetState.BASE_LACKS, str(error)
    if not plan.own:
        return SetState.READY, f"the base environment {plan.base.prefix}"
    present = plan.base.distributions()
    said = [
        f"{pin} (here: {', '.join(found.version for found in present.get(pin.key, ())) or 'none'})" for pin in plan.own
    ]
    return SetState.BASE_DIFFERS, f"the base environment {plan.base.prefix} does not have {', '.join(said)}"


@dataclass(frozen=True)
class Pruned:
    """What was removed, what could not be, and how much room it gave back."""

    removed: tuple[Path, ...]
    kept: tuple[str, ...]
    bytes: int


def prune(
    home: Home,
    sets: Iterable[str] = (),
    *,
    all_generations: bool = False,
    lists: Path = LISTS,
    base: Base | None = None,
) -> Pruned:
    """Remove overlays that are superseded or half made (`all_generations`: also those in force) and no run uses.

    Without `sets` every set is looked at, joint environments too, and wheels that no pin list names are removed.
    """
    base = base or Base.current()
    chosen = tuple(sets)
    check_known(chosen, lists)
    removed: list[Path] = []
    kept: list[str] = []
    freed = 0
    for name in chosen or _names_on_disk(home):
        current = None
        if name in set_names(lists) and not all_generations:
            current = make_plan(home, name, lists=lists, base=base).generation
        freed += _prune_set(home, name, current, removed, kept)
    freed += _prune_joins(home, removed)
    if not chosen:
        freed += Wheelhouse(home).keep_only(_named_pins(lists))
    return Pruned(tuple(removed), tuple(kept), freed)


def _prune_set(home: Home, name: str, current: Path | None, removed: list[Path], kept: list[str]) -> int:
    folder = venvs_of(home) / name
    lock_file = folder.with_name(f"{name}.lock")
    if is_locked(lock_file):
        kept.append(f"{folder}: being installed now")
        return 0
    freed = 0
    with installing(lock_file):
        for generation in sorted(path for path in folder.glob("*") if path.is_dir()):
            if generation == current and (generation / "ready.json").is_file():
                continue
            size = size_of(generation)
            try:
                clear(generation)
            except (SetInUse, OSError) as error:
                kept.append(str(error))
                continue
            removed.append(generation)
            freed += size
    with suppress(OSError):
        folder.rmdir()  # only when it is empty
    return freed


def _names_on_disk(home: Home) -> list[str]:
    folder = venvs_of(home)
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != JOINS)


def _prune_joins(home: Home, removed: list[Path]) -> int:
    """Remove joint environments one of whose overlays is gone; they are made again in a moment when needed."""
    freed = 0
    folder = venvs_of(home) / JOINS
    for prefix in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            generations = [Path(path) for path in read_json_object(prefix / "overlay.json")["generations"]]
        except (OSError, ValueError, KeyError, TypeError):
            generations = []
        if prefix.name.startswith(".") or not generations or not all(path.is_dir() for path in generations):
            freed += size_of(prefix)
            shutil.rmtree(prefix, ignore_errors=True)
            removed.append(prefix)
    return freed


def _named_pins(lists: Path) -> list[Pin]:
    pins = [pin for name in set_names(lists) for pin in pins_of(name, lists).values()]
    for name in set_names(lists):
        game, _, version = describe(name, lists).roms_from.partition("==")
        if version:
            pins.append(Pin(game, version))
    return pins
