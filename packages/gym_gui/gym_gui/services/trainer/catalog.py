"""Installed workers: entry points of the group `mosaic.workers`, and `worker.json` files of the home.

A worker is never imported here. For an entry point, `--describe` runs in its own process, and the answer is cached
under `cache/describe/` until one of its files or the installed packages change. A worker of another Python environment
has a `workers/<name>/worker.json`: its whole description with `argv`, or `{"name": …, "argv": […]}`, for which
`--describe` runs as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mosaic_wire.errors import SpecError
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import Home, is_ours
from mosaic_wire.run_request import RESERVED_EXTRAS
from mosaic_wire.worker_spec import ScriptSpec, WorkerSpec, nearest

from gym_gui.logging_config.log_constants import LOG_WORKER_DESCRIBE_FAILED, log_code
from gym_gui.services.trainer.describe import checked_spec, describe, describe_script
from gym_gui.services.trainer.errors import UnknownWorker
from gym_gui.services.trainer.file_threads import FileThreads
from gym_gui.wording.formats import is_utf8, printable

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S = 30.0
run_in_catalog = FileThreads("catalog", 4, 60.0, what="it did not describe itself")
"""Run a call that may wait for a worker's answer"""
_RESCAN_S = 1.0
"""Minimum seconds between two scans of the files, so that a burst of submissions costs one scan"""
_MAX_SCRIPTS = 256
_MAX_SCRIPT_BYTES = 16 << 20


@dataclass(frozen=True)
class CatalogEntry:
    """An installed worker, with its description or with the reason why it cannot be used."""

    name: str
    display_name: str
    version: str
    origin: str
    spec: WorkerSpec | None = None
    problem: str = ""


class WorkerCatalog:
    """Finds workers and caches their descriptions; thread-safe."""

    def __init__(
        self, home: Home, *, python: str = sys.executable, describe_timeout_s: float = DESCRIBE_TIMEOUT_S
    ) -> None:
        self._home, self._python, self._timeout_s = home, python, describe_timeout_s
        self._lock = threading.Lock()
        self._sources: tuple[Source, ...] = ()
        self._scanned_at: float | None = None
        self._known: dict[str, CatalogEntry] = {}
        self._describing: dict[str, threading.Lock] = {}
        self._awaited: dict[str, asyncio.Task[WorkerSpec | Exception]] = {}
        self._scripts: OrderedDict[tuple[str, str, str], ScriptSpec] = OrderedDict()

    def entries(self) -> list[CatalogEntry]:
        """Return every worker, usable or not; describe new ones concurrently."""
        sources = self._scan()
        with ThreadPoolExecutor(max_workers=4, thread_name_prefix="describe") as pool:
            return list(pool.map(self._entry, sources))

    def names(self) -> list[str]:
        """Return the names of all workers without describing them."""
        return list(dict.fromkeys(source.name for source in self._scan()))

    def get(self, name: str) -> WorkerSpec:
        """Return a worker's description; raise UnknownWorker, or SpecError with the problem."""
        sources = self._scan()
        source = _first_of(sources, name)
        if source is None:  # it may have just been installed
            sources = self._scan(anew=True)
            source = _first_of(sources, name)
        if source is None:
            raise UnknownWorker(name, nearest(name, [source.name for source in sources]))
        entry = self._entry(source)
        if entry.spec is None:
            raise SpecError(f"worker {name!r} ({entry.origin}): {entry.problem}")
        return entry.spec

    async def find(self, name: str) -> WorkerSpec:
        """Return the same as `get` without blocking; concurrent callers share one thread."""
        if (describing := self._awaited.get(name)) is None:
            describing = self._awaited[name] = asyncio.create_task(self._find(name), name=f"describe {name}")
            describing.add_done_callback(lambda _: self._awaited.pop(name, None))
        spec = await asyncio.shield(describing)
        if isinstance(spec, Exception):
            raise spec
        return spec

    async def _find(self, name: str) -> WorkerSpec | Exception:
        try:
            return await run_in_catalog(self.get, name)
        except TimeoutError as error:
            return SpecError(f"worker {name!r}: {error}")
        except (UnknownWorker, SpecError) as error:
            return error

    def known(self, name: str) -> WorkerSpec | None:
        """Return a worker's description if it is in memory, or None."""
        with self._lock:
            return next((entry.spec for entry in self._known.values() if entry.name == name), None)

    def script(self, name: str, path: str) -> ScriptSpec:
        """Return a worker's description of a script, cached by the file's content; raise SpecError."""
        spec = self.get(name)
        if not spec.runs_scripts:
            raise SpecError(f"worker {name!r} runs no scripts")
        if not os.path.isfile(path):  # opening a pipe would block
            raise SpecError(f"the script {path} cannot be read: there is no such file")
        try:
            with open(path, "rb") as stream:
                content = stream.read(_MAX_SCRIPT_BYTES)
        except OSError as error:
            raise SpecError(f"the script {path} cannot be read: {error.strerror}") from None
        key = (" ".join(spec.argv) + spec.version, path, hashlib.sha256(content).hexdigest())
        with self._lock:
            if (known := self._scripts.get(key)) is not None:
                self._scripts.move_to_end(key)
                return known
        found = describe_script(spec.argv, path, timeout_s=self._timeout_s)
        with self._lock:
            self._scripts[key] = found
            while len(self._scripts) > _MAX_SCRIPTS:
                self._scripts.popitem(last=False)
        return found

    def refresh(self) -> None:
        """Clear all caches, also on disk, so that each worker is described again."""
        with self._lock:
            self._scanned_at = None
            self._known.clear()
            self._scripts.clear()
        for path in self._cache.glob("*.json") if self._cache.is_dir() else ():
            path.unlink(missing_ok=True)

    @property
    def _cache(self) -> Path:
        return self._home.cache / "describe"

    def _scan(self, *, anew: bool = False) -> tuple[Source, ...]:
        with self._lock:
            now = time.monotonic()
            if anew or self._scanned_at is None or now - self._scanned_at > _RESCAN_S:
                self._sources = find_sources(self._home, self._python)
                self._scanned_at = now
                current = {source.fingerprint for source in self._sources}
                for forgotten in self._known.keys() - current:
                    del self._known[forgotten]
            return self._sources

    def _entry(self, source: Source) -> CatalogEntry:
        with self._lock:
            if (known := self._known.get(source.fingerprint)) is not None:
                return known
            describing = self._describing.setdefault(source.fingerprint, threading.Lock())
        with describing:  # another thread may be describing it already
            with self._lock:
                if (known := self._known.get(source.fingerprint)) is not None:
                    return known
            entry = self._describe_source(source)
            with self._lock:
                self._known[source.fingerprint] = entry
                self._describing.pop(source.fingerprint, None)
            return entry

    def _describe_source(self, source: Source) -> CatalogEntry:
        try:
            spec = self._spec(source)
        except SpecError as error:
            log_code(logger, LOG_WORKER_DESCRIBE_FAILED, f"worker {source.name!r}: {error}", origin=source.origin)
            return CatalogEntry(source.name, source.name, source.version, source.origin, None, str(error))
        return CatalogEntry(spec.name, spec.display_name, spec.version, source.origin, spec)

    def _spec(self, source: Source) -> WorkerSpec:
        if source.problem:
            raise SpecError(source.problem)
        if source.description is not None:
            try:
                spec = checked_spec({**source.description, "argv": list(source.argv)})
            except SpecError as error:
                raise SpecError(f"{error}; repair or remove {source.origin}") from None
        elif (cached := self._read_cached(source)) is not None:
            spec = cached
        else:
            spec = self._describe(source)
            if spec.name == source.name:
                self._cache_spec(source, spec)
        if spec.name != source.name:
            raise SpecError(f"it calls itself {spec.name!r}, but is installed as {source.name!r}; make them the same")
        return spec

    def _describe(self, source: Source) -> WorkerSpec:
        try:
            return replace(describe(source.argv, timeout_s=self._timeout_s), argv=source.argv)
        except SpecError as error:
            # Not cached on disk: a busy machine may have been the reason.
            raise SpecError(f"{error}; after a repair run `mosaic workers --refresh`") from None

    def _read_cached(self, source: Source) -> WorkerSpec | None:
        try:
            document = read_json_object(self._cache_file(source))
            if document.get("fingerprint") != source.fingerprint:
                return None
            if not {part.name for part in fields(WorkerSpec)} <= set(document.get("spec") or ()):
                return None  # cached by an older daemon, which read fewer fields
            return replace(checked_spec(document.get("spec")), argv=source.argv)
        except (OSError, ValueError, SpecError):
            return None  # missing or damaged: describe it again

    def _cache_spec(self, source: Source, spec: WorkerSpec) -> None:
        target = self._cache_file(source)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            document = {"fingerprint": source.fingerprint, "spec": spec.to_json()}
            write_json_atomically(target, document, sealed=True)
        except OSError as error:
            logger.info("the description of worker %r is not cached: %s", source.name, error)

    def _cache_file(self, source: Source) -> Path:
        return self._cache / f"{source.name}.json"


def _first_of(sources: Sequence[Source], name: str) -> Source | None:
    return next((source for source in sources if source.name == name and not source.is_second), None)


def usable(entries: Sequence[CatalogEntry]) -> list[WorkerSpec]:
    """Return the descriptions of the workers that can be used."""
    return [entry.spec for entry in entries if entry.spec is not None]


# ---------------------------------------------------------------- worker sources


GROUP = "mosaic.workers"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MAX_FILES = 20_000
_LISTING_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Source:
    """An entry point or file that declares a worker."""

    name: str
    version: str
    origin: str
    fingerprint: str
    argv: tuple[str, ...] = ()
    description: Mapping[str, Any] | None = None
    """From worker.json; None when the worker has to be described"""
    problem: str = ""
    is_second: bool = False
    """Whether an earlier source has the same name"""


def find_sources(home: Home, python: str) -> tuple[Source, ...]:
    """Return every worker of this environment and home; later ones with the same name have a problem."""
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
    listed = list_entry_points() if here else _list_entry_points_of(python)
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
    """Return name, package, distribution, version and a digest of the package's files of each entry point."""
    listed = []
    for point in metadata.entry_points(group=GROUP):
        package, files = _package_of(point.module)
        name, version = ("unknown", "unknown") if point.dist is None else (point.dist.name, point.dist.version)
        listed.append((point.name, package, name, version, files))
    return listed


def _list_entry_points_of(python: str) -> list[tuple[str, str, str, str, str]]:
    """Return the same list for another interpreter."""
    script = "import json, gym_gui.services.trainer.catalog as s; print(json.dumps(s.list_entry_points()))"
    try:
        answer = subprocess.run(
            [python, "-c", script], capture_output=True, timeout=_LISTING_TIMEOUT_S, check=True, cwd="/"
        )
        return [(str(a), str(b), str(c), str(d), str(e)) for a, b, c, d, e in json.loads(answer.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return []


def _package_of(module: str) -> tuple[str, str]:
    """Return the package of an entry point's module and a digest of its files, without importing it."""
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
    """Return a digest that changes when packages are installed or removed, which may change a worker's environments."""
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
        for path in (file.parent.parent, file.parent, file):  # its author decides what runs as this user
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
        raise SpecError(f"argv begins with the relative path {program!r}; write it as an absolute path")
    found = shutil.which(program)
    if found is None:
        raise SpecError(f"the program {program!r} of argv does not exist or may not be executed")
    return (found, *argv[1:])


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


# ---------------------------------------------------------------- learning parameters


def learning_parameters(spec: WorkerSpec, algo: str, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that may change learning and differ from their defaults.

    Defaults of a script are not considered, because its file may have changed since.
    """
    algorithm = None if extras.get("script_path") else spec.algorithm(algo)
    fields = {field.name: field for field in algorithm.fields} if algorithm is not None else {}
    given = {name: extras[name] for name in extras.keys() & fields.keys() - RESERVED_EXTRAS}
    given |= {"env_kwargs": extras["env_kwargs"]} if extras.get("env_kwargs") else {}
    given |= {"arguments": shlex.join(extras["script_arguments"])} if extras.get("script_arguments") else {}
    if isinstance(params := extras.get("algo_params"), Mapping):
        given |= {str(name).replace("-", "_"): value for name, value in params.items()}
    return {
        name: _environment_arguments(value) if name == "env_kwargs" else value
        for name, value in given.items()
        if name not in spec.non_learning and not (name in fields and _is_same(value, fields[name].default))
    }


def default_seed(spec: WorkerSpec, algo: str, extras: Mapping[str, Any]) -> int | None:
    """Return the algorithm's default seed, which a run without a seed uses, or None."""
    algorithm = None if extras.get("script_path") else spec.algorithm(algo)
    field = algorithm.field("seed") if algorithm is not None else None
    return field.default if field is not None and isinstance(field.default, int) else None


def _is_same(value: Any, default: Any) -> bool:
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def _environment_arguments(value: Any) -> Any:
    """Return the object, which may have been given as JSON text."""
    if isinstance(value, str):
        with suppress(ValueError):
            return json.loads(value)
    return value
