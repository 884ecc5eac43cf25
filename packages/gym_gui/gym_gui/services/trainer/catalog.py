"""The workers of this installation: entry points of the group `mosaic.workers`, and `worker.json` files of the home.

A worker is never imported here. One found by entry point is asked `--describe` in a process of its own, and the answer
is kept under `cache/describe/` until one of its files, or what is installed, changes. One in another Python
environment has a `workers/<name>/worker.json`: its whole description with `argv`, or `{"name": …, "argv": […]}`, and
then it is asked, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path

from mosaic_wire.errors import SpecError
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import ScriptSpec, WorkerSpec, nearest

from gym_gui.logging_config.log_constants import LOG_WORKER_DESCRIBE_FAILED, log_code
from gym_gui.services.trainer.describe import checked_spec, describe, describe_script
from gym_gui.services.trainer.errors import UnknownWorker
from gym_gui.services.trainer.file_threads import FileThreads
from gym_gui.services.trainer.worker_sources import Source, find_sources

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S = 30.0
ask_workers = FileThreads("catalog", 4, 60.0, what="it did not say what it can do")
"""For what may wait for a worker's answer"""
_LOOK_AGAIN_S = 1.0
"""Within this time the files are not looked at again; a burst of submissions costs one look"""
_MOST_SCRIPTS = 256
_MAX_SCRIPT_BYTES = 16 << 20


@dataclass(frozen=True)
class CatalogEntry:
    """A worker that is installed: with its description, or with why it cannot be used and what to do."""

    name: str
    display_name: str
    version: str
    origin: str
    spec: WorkerSpec | None = None
    problem: str = ""


class WorkerCatalog:
    """Finds workers and keeps what they said about themselves; safe to use from several threads."""

    def __init__(
        self, home: Home, *, python: str = sys.executable, describe_timeout_s: float = DESCRIBE_TIMEOUT_S
    ) -> None:
        self._home, self._python, self._timeout_s = home, python, describe_timeout_s
        self._lock = threading.Lock()
        self._sources: tuple[Source, ...] = ()
        self._looked_at: float | None = None
        self._known: dict[str, CatalogEntry] = {}
        self._asking: dict[str, threading.Lock] = {}
        self._awaited: dict[str, asyncio.Task[WorkerSpec | Exception]] = {}
        self._scripts: OrderedDict[tuple[str, str, str], ScriptSpec] = OrderedDict()

    def entries(self) -> list[CatalogEntry]:
        """Every worker, usable or not; those that were never asked are asked now, side by side."""
        sources = self._look()
        with ThreadPoolExecutor(max_workers=4, thread_name_prefix="describe") as pool:
            return list(pool.map(self._entry, sources))

    def names(self) -> list[str]:
        """The names of all workers; asks nobody."""
        return list(dict.fromkeys(source.name for source in self._look()))

    def get(self, name: str) -> WorkerSpec:
        """A worker's description; raise UnknownWorker, or SpecError with its problem. Other workers are not asked."""
        sources = self._look()
        source = _first_of(sources, name)
        if source is None:  # it may have been installed a moment ago
            sources = self._look(anew=True)
            source = _first_of(sources, name)
        if source is None:
            raise UnknownWorker(name, nearest(name, [source.name for source in sources]))
        entry = self._entry(source)
        if entry.spec is None:
            raise SpecError(f"worker {name!r} ({entry.origin}): {entry.problem}")
        return entry.spec

    async def find(self, name: str) -> WorkerSpec:
        """The same for the event loop: however many wait for a worker's answer, they take one thread."""
        if (asking := self._awaited.get(name)) is None:
            asking = self._awaited[name] = asyncio.create_task(self._find(name), name=f"describe {name}")
            asking.add_done_callback(lambda _: self._awaited.pop(name, None))
        spec = await asyncio.shield(asking)
        if isinstance(spec, Exception):
            raise spec
        return spec

    async def _find(self, name: str) -> WorkerSpec | Exception:
        try:
            return await ask_workers(self.get, name)
        except TimeoutError as error:
            return SpecError(f"worker {name!r}: {error}")
        except (UnknownWorker, SpecError) as error:
            return error

    def known(self, name: str) -> WorkerSpec | None:
        """A worker's description if it was asked for before; asks nobody and reads no file."""
        with self._lock:
            return next((entry.spec for entry in self._known.values() if entry.name == name), None)

    def script(self, name: str, path: str) -> ScriptSpec:
        """What a worker makes of a script, asked again only when the file's content has changed; raise SpecError."""
        spec = self.get(name)
        if not spec.runs_scripts:
            raise SpecError(f"worker {name!r} runs no scripts")
        if not os.path.isfile(path):  # a pipe would be waited on for ever
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
            while len(self._scripts) > _MOST_SCRIPTS:
                self._scripts.popitem(last=False)
        return found

    def refresh(self) -> None:
        """Forget everything, also what is kept on disk, so that each worker is asked again."""
        with self._lock:
            self._looked_at = None
            self._known.clear()
            self._scripts.clear()
        for path in self._cache.glob("*.json") if self._cache.is_dir() else ():
            path.unlink(missing_ok=True)

    @property
    def _cache(self) -> Path:
        return self._home.cache / "describe"

    def _look(self, *, anew: bool = False) -> tuple[Source, ...]:
        with self._lock:
            now = time.monotonic()
            if anew or self._looked_at is None or now - self._looked_at > _LOOK_AGAIN_S:
                self._sources = find_sources(self._home, self._python)
                self._looked_at = now
                current = {source.fingerprint for source in self._sources}
                for forgotten in self._known.keys() - current:
                    del self._known[forgotten]
            return self._sources

    def _entry(self, source: Source) -> CatalogEntry:
        with self._lock:
            if (known := self._known.get(source.fingerprint)) is not None:
                return known
            asking = self._asking.setdefault(source.fingerprint, threading.Lock())
        with asking:  # a second thread waits for the first one's answer instead of asking again
            with self._lock:
                if (known := self._known.get(source.fingerprint)) is not None:
                    return known
            entry = self._find_out(source)
            with self._lock:
                self._known[source.fingerprint] = entry
                self._asking.pop(source.fingerprint, None)
            return entry

    def _find_out(self, source: Source) -> CatalogEntry:
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
        elif (kept := self._read_kept(source)) is not None:
            spec = kept
        else:
            spec = self._ask(source)
            if spec.name == source.name:
                self._keep(source, spec)
        if spec.name != source.name:
            raise SpecError(f"it calls itself {spec.name!r}, but is installed as {source.name!r}; make them the same")
        return spec

    def _ask(self, source: Source) -> WorkerSpec:
        try:
            return replace(describe(source.argv, timeout_s=self._timeout_s), argv=source.argv)
        except SpecError as error:
            # Not kept on disk: a busy machine may have been the reason.
            raise SpecError(f"{error}; once cured, `mosaic workers --refresh` asks again") from None

    def _read_kept(self, source: Source) -> WorkerSpec | None:
        try:
            document = read_json_object(self._cache_file(source))
            if document.get("fingerprint") != source.fingerprint:
                return None
            if not {part.name for part in fields(WorkerSpec)} <= set(document.get("spec") or ()):
                return None  # kept by an older daemon, which did not read all of it
            return replace(checked_spec(document.get("spec")), argv=source.argv)
        except (OSError, ValueError, SpecError):
            return None  # not there or damaged: it is asked again

    def _keep(self, source: Source, spec: WorkerSpec) -> None:
        target = self._cache_file(source)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            document = {"fingerprint": source.fingerprint, "spec": spec.to_json()}
            write_json_atomically(target, document, sealed=True)
        except OSError as error:
            logger.info("the description of worker %r is not kept: %s", source.name, error)

    def _cache_file(self, source: Source) -> Path:
        return self._cache / f"{source.name}.json"


def _first_of(sources: Sequence[Source], name: str) -> Source | None:
    return next((source for source in sources if source.name == name and not source.is_second), None)


def usable(entries: Sequence[CatalogEntry]) -> list[WorkerSpec]:
    """The descriptions of the workers that can be used."""
    return [entry.spec for entry in entries if entry.spec is not None]
