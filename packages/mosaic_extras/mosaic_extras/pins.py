"""Pin lists: `name==version` a line, the full closure of a set; and the sets' descriptions beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mosaic_wire.worker_spec import nearest

from mosaic_extras.errors import BadPinList, SetsDisagree, UnknownSet

LISTS = Path(__file__).parent / "requirements"
"""`requirements-<set>.txt` (edited by hand), `sets/<set>.txt` (the pins), `sets.toml` (what the sets are for)"""

BASE = "base"
"""The set of the base environment itself; it has no overlay"""

_SEPARATORS = re.compile(r"[-_.]+")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!]*)")
_SET_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


def normalized(name: str) -> str:
    """Return a distribution's name for comparisons: `PyOpenGL`, `dm_env` → `pyopengl`, `dm-env`."""
    return _SEPARATORS.sub("-", name).lower()


def public(version: str) -> str:
    """Return a version without its build: `2.13.0+cpu` → `2.13.0`, so any build of the pinned version will do."""
    return version.partition("+")[0]


@dataclass(frozen=True)
class Pin:
    """One package at one version; `name` is spelled as in the list."""

    name: str
    version: str

    @property
    def key(self) -> str:
        """Return the normalized name."""
        return normalized(self.name)

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


Pins = MappingProxyType[str, Pin]


def read_pins(path: Path) -> Pins:
    """Return the pins of a list by normalized name; the file is read again only when it has changed."""
    try:
        status = path.stat()
        return _read_pins(path, status.st_mtime_ns, status.st_size)
    except (OSError, UnicodeDecodeError) as error:
        raise BadPinList(f"cannot read {path}: {error}") from error


@lru_cache(maxsize=64)
def _read_pins(path: Path, modified_ns: int, size: int) -> Pins:
    pins: dict[str, Pin] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _PIN.fullmatch(text)
        if match is None:
            raise BadPinList(f"{path}:{number}: {text!r} is not a pin; expected name==version")
        pin = Pin(match[1], match[2])
        if pin.key in pins:
            raise BadPinList(f"{path}:{number}: {pin.name} is pinned twice")
        pins[pin.key] = pin
    return MappingProxyType(pins)


def set_names(lists: Path = LISTS) -> tuple[str, ...]:
    """Return every set there is a pin list for; the base first."""
    names = sorted(path.stem for path in (lists / "sets").glob("*.txt"))
    return tuple(sorted(names, key=lambda name: name != BASE))


def parse_sets(text: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names in `"atari, dm-control"` or a list as the files have them, sorted, without duplicates."""
    names = re.split(r"[,\s]+", text) if isinstance(text, str) else [str(name) for name in text]
    return tuple(sorted({name.strip().lower().replace("-", "_") for name in names if name.strip()}))


def check_known(sets: Iterable[str], lists: Path = LISTS) -> None:
    """Raise UnknownSet with the nearest name; a name never reaches a path before this."""
    for name in sets:
        if _SET_NAME.fullmatch(name) and (lists / "sets" / f"{name}.txt").is_file():
            continue
        known = set_names(lists)
        hint = nearest(name, known)
        suggestion = f" Did you mean {hint!r}?" if hint else ""
        raise UnknownSet(f"unknown requirement set {name[:80]!r}.{suggestion} There are: {', '.join(known)}")


def pins_of(name: str, lists: Path = LISTS) -> Pins:
    """Return the pin list of a set."""
    check_known([name], lists)
    return read_pins(lists / "sets" / f"{name}.txt")


def check_agreement(sets: Sequence[str], lists: Path = LISTS) -> None:
    """Raise SetsDisagree when sets of one run pin a package differently."""
    chosen: dict[str, tuple[str, Pin]] = {}
    clashes: list[str] = []
    for name in sets:
        for key, pin in pins_of(name, lists).items():
            other, known = chosen.setdefault(key, (name, pin))
            if known.version != pin.version:
                clashes.append(f"{known} ({other}) and {pin} ({name})")
    if clashes:
        more = f" and {len(clashes) - 3} more" if len(clashes) > 3 else ""
        raise SetsDisagree(
            f"the requirement sets {', '.join(sets)} cannot be in one run: they need {'; '.join(clashes[:3])}{more}. "
            "Leave one of them out of extras.requirements, or choose another algorithm or environment."
        )


@dataclass(frozen=True)
class SetDescription:
    """The entry of a set in `sets.toml`."""

    name: str
    purpose: str
    size_mb: int = 0
    """disk the overlay needs, about; checked before anything is downloaded"""
    smoke: str = ""
    """Python that must succeed in the finished overlay"""
    smoke_env: tuple[tuple[str, str], ...] = ()
    ignore_requires_python: bool = False
    known_conflicts: tuple[str, ...] = ()
    """packages whose declared requirements these pins break on purpose"""
    roms_from: str = ""
    """a pin whose wheel brings the Atari games"""
    roms_into: tuple[str, ...] = ()
    """folders of the overlay's site-packages the games are copied to"""

    @property
    def games_pin(self) -> Pin | None:
        """Return `roms_from` as a pin."""
        name, _, version = self.roms_from.partition("==")
        return Pin(name, version) if version else None


def describe(name: str, lists: Path = LISTS) -> SetDescription:
    """Return the description of a set; an undescribed one has only its name."""
    import tomllib  # only lists and installations need it

    path = lists / "sets.toml"
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        entry = document.get(name, {})
        return SetDescription(
            name,
            purpose=str(entry.get("purpose", "")),
            size_mb=int(entry.get("size_mb", 0)),
            smoke=str(entry.get("smoke", "")),
            smoke_env=tuple((str(key), str(value)) for key, value in entry.get("smoke_env", {}).items()),
            ignore_requires_python=bool(entry.get("ignore_requires_python", False)),
            known_conflicts=tuple(normalized(str(name)) for name in entry.get("known_conflicts", ())),
            roms_from=str(entry.get("roms_from", "")),
            roms_into=tuple(map(str, entry.get("roms_into", ()))),
        )
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise BadPinList(f"cannot read {path}: {error}") from error
