"""Plans: what an overlay of a set consists of, which part the base brings, and where it lies. Reads, never writes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mosaic_wire.paths import Home

from cleanrl_worker.requirement_sets.errors import BaseUnfit
from cleanrl_worker.requirement_sets.pins import LISTS, Pin, Pins, normalised, pins_of, public

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
        """The environment of this process, or the one beneath it when it runs in an overlay."""
        return _base_of(sys.prefix, sys.executable)

    def distributions(self) -> dict[str, list[Distribution]]:
        """What is installed, by normalised name, from directory names alone."""
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
        return normalised(self.name)

    @property
    def record(self) -> str:
        return f"{self.folder}/RECORD"


def distributions_in(folder: Path) -> list[Distribution]:
    """Read the names of `*.dist-info`; their content is not looked at."""
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
    """Where a virtual environment at `prefix` keeps its packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(prefix), "platbase": str(prefix)}))


def python_of(prefix: Path) -> Path:
    """The interpreter of a virtual environment."""
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
        return site_packages(self.generation)

    @property
    def python(self) -> Path:
        return python_of(self.generation)

    @property
    def ready_file(self) -> Path:
        return self.generation / READY

    @property
    def lock_file(self) -> Path:
        return self.generation.parent.with_name(f"{self.name}.lock")

    @property
    def needs_overlay(self) -> bool:
        """False when the base has everything already."""
        return bool(self.own)

    def check_base(self) -> None:
        """Raise BaseUnfit when a package is missing that only the base may bring."""
        lacking = [pin for pin in self.own if _only_in_base(pin.key)]
        if not lacking:
            return
        has = {pin.key: [found.version for found in self.base.distributions().get(pin.key, [])] for pin in lacking}
        said = ", ".join(f"{pin} (it has {' and '.join(has[pin.key]) or 'none'})" for pin in lacking)
        raise BaseUnfit(
            f"the base environment {self.base.prefix} lacks {said}, which requirement set {self.name!r} builds on. "
            f"Install it there first: {self.base.python} -m pip install {' '.join(map(str, lacking))}"
        )

    def versions(self) -> dict[str, str]:
        """What a run in this overlay gets, by the names of the pin list."""
        return {
            pin.name: self.from_base[key].version if key in self.from_base else pin.version
            for key, pin in self.pins.items()
        }


def _only_in_base(key: str) -> bool:
    return key in _ONLY_IN_BASE or key.startswith(_ONLY_IN_BASE_PREFIXES)


def venvs_of(home: Home) -> Path:
    """Where overlays lie."""
    return home.trainer / "venvs"


def make_plan(
    home: Home, name: str, *, lists: Path = LISTS, base: Base | None = None,
    installed: Mapping[str, list[Distribution]] | None = None,
) -> Plan:  # fmt: skip
    """Compare a set's pins with the base; `installed` saves looking at the base again."""
    base = base or Base.current()
    pins = pins_of(name, lists)
    present = base.distributions() if installed is None else installed
    from_base: dict[str, Distribution] = {}
    own: list[Pin] = []
    for key, pin in pins.items():
        found = present.get(key, [])
        # Two versions side by side are the rest of a broken upgrade: nobody can say which one Python would take.
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
    """The operating system and processor, as they decide which wheels fit."""
    return f"{sys.platform}-{platform.machine()}"
