"""Where workers are found, and a fingerprint of each that changes when its description may have changed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mosaic_wire.errors import SpecError
from mosaic_wire.files import read_json_object
from mosaic_wire.paths import Home, is_ours

from gym_gui.wording.plain_text import is_utf8, printable

GROUP = "mosaic.workers"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MAX_FILES = 20_000
_LISTING_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Source:
    """A place that says there is a worker of this name."""

    name: str
    version: str
    origin: str
    fingerprint: str
    argv: tuple[str, ...] = ()
    description: Mapping[str, Any] | None = None
    """from worker.json; None: the worker is asked"""
    problem: str = ""
    is_second: bool = False
    """another one of this name came first"""


def find_sources(home: Home, python: str) -> tuple[Source, ...]:
    """Every worker of this environment and home; the first of a name wins, the others have a problem."""
    first: dict[str, Source] = {}
    found = []
    for source in (*_from_entry_points(python), *_from_files(home)):
        if (winner := first.setdefault(source.name, source)) is not source:
            problem = f"the name {source.name!r} is taken by {winner.origin}; rename one of the two or uninstall it"
            fingerprint = _digest(source.fingerprint, winner.fingerprint, "second")
            source = replace(source, problem=problem, is_second=True, fingerprint=fingerprint)
        found.append(source)
    return tuple(found)


# ---------------------------------------------------------------------- entry points


def _from_entry_points(python: str) -> Iterator[Source]:
    here = python == sys.executable
    listed = list_entry_points() if here else _ask_for_entry_points(python)
    installed = _installation_stamp() if here else ""
    for name, module, distribution, version, files in sorted(listed):
        origin = f"entry point of {distribution} {version}"
        shown = name if _NAME.fullmatch(name) else re.sub(r"[^\w.-]", "_", name)[:64] or "unnamed"
        fingerprint = _digest(python, name, module, distribution, version, installed, files)
        source = Source(shown, version, origin, fingerprint, (python, "-m", f"{module}.cli"))
        if shown != name:
            source = replace(source, problem=f"its name {name!r} must consist of letters, digits, '_', '-' and '.'")
        elif not _MODULE.fullmatch(module):
            source = replace(source, problem=f"its entry point names {module!r}, which is not a module")
        yield source


def list_entry_points() -> list[tuple[str, str, str, str, str]]:
    """Name, package, distribution, version and a digest of the package's files of each entry point; no imports."""
    listed = []
    for point in metadata.entry_points(group=GROUP):
        package, files = _package_of(point.module)
        name, version = ("unknown", "unknown") if point.dist is None else (point.dist.name, point.dist.version)
        listed.append((point.name, package, name, version, files))
    return listed


def _ask_for_entry_points(python: str) -> list[tuple[str, str, str, str, str]]:
    """The same list, from an interpreter that is not ours."""
    script = "import json, gym_gui.services.trainer.worker_sources as s; print(json.dumps(s.list_entry_points()))"
    try:
        answer = subprocess.run(
            [python, "-c", script], capture_output=True, timeout=_LISTING_TIMEOUT_S, check=True, cwd="/"
        )
        return [(str(a), str(b), str(c), str(d), str(e)) for a, b, c, d, e in json.loads(answer.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return []


def _package_of(module: str) -> tuple[str, str]:
    """The package that an entry point's module belongs to, and a digest of its files; nothing of it is imported."""
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        spec = None
    roots = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    parts = [top]
    for part in below:
        if not any((root.joinpath(*parts[1:]) / part).is_dir() for root in roots):
            break  # a plain module: its package is the one before
        parts.append(part)
    return ".".join(parts) if roots else module, _digest(*_stamps(roots))


def _installation_stamp() -> str:
    """Changes whenever something is installed or removed: a worker may offer other environments then."""
    stamps = []
    for place in sys.path:
        if place.endswith(("site-packages", "dist-packages")):
            try:
                stamps.append(f"{place} {os.stat(place).st_mtime_ns}")
            except OSError:
                continue
    return _digest(*stamps)


def _stamps(folders: Iterable[Path]) -> Iterator[str]:
    count = 0
    for top in folders:
        for folder, subfolders, files in os.walk(top):
            subfolders[:] = sorted(name for name in subfolders if name not in ("__pycache__", "tests"))
            for name in sorted(files):
                count += 1
                if count > _MAX_FILES:
                    return
                try:
                    status = os.stat(os.path.join(folder, name))
                except OSError:
                    continue
                yield f"{folder}/{name} {status.st_mtime_ns} {status.st_size}"


# ---------------------------------------------------------------------- worker.json


def _from_files(home: Home) -> Iterator[Source]:
    try:
        folders = sorted(path for path in home.workers.iterdir() if not path.name.startswith("."))
    except OSError:
        return
    for folder in folders:
        file = folder / "worker.json"
        if file.is_file():
            yield _from_file(file)


def _from_file(file: Path) -> Source:
    origin, fallback = printable(str(file)), re.sub(r"[^\w.-]", "_", file.parent.name)[:64]
    try:
        if not is_utf8(file.parent.name):
            raise SpecError("the name of its folder is not UTF-8")
        for path in (file.parent.parent, file.parent, file):  # whoever writes it decides what is run as this user
            if not is_ours(status := path.stat()) or status.st_mode & 0o002:
                raise SpecError(f"other users may write to {path} (uid {status.st_uid} owns it)")
        document = read_json_object(file, max_bytes=16 << 20)
        name = document.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError(f"name must consist of letters, digits, '_', '-' and '.', not {str(name)[:80]!r}")
        argv = _program(document.get("argv"))
    except (OSError, ValueError, SpecError) as error:
        problem = printable(f"{error}; repair or remove {file}")
        return Source(fallback, "", origin, _digest(origin, problem), problem=problem)
    version = document.get("version")
    short = "capabilities" not in document
    stamp = f"{os.stat(argv[0]).st_mtime_ns}"
    return Source(
        name,
        version if isinstance(version, str) else "",
        origin,
        _digest(origin, json.dumps(document, sort_keys=True), *argv, stamp),
        argv,
        None if short else document,
    )


def _program(argv: Any) -> tuple[str, ...]:
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) and "\0" not in part for part in argv):
        raise SpecError(
            'argv is missing: it must be a list such as ["/path/to/venv/bin/python", "-m", "my_worker.cli"]'
        )
    program = argv[0]
    if "/" in program and not os.path.isabs(program):
        raise SpecError(f"argv begins with the relative path {program!r}; write it from the root on")
    found = shutil.which(program)
    if found is None:
        raise SpecError(f"the program {program!r} of argv is not there, or may not be executed")
    return (found, *argv[1:])


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
