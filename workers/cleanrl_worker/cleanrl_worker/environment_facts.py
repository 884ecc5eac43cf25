"""Asks the probe about environments, in the interpreter a run would have; remembers what it said.

An answer is kept under `cache/environments/` of the home, by interpreter, versions, id and arguments. Environments of
somebody's own module are asked about each time: their code may have changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import Home

logger = logging.getLogger(__name__)

PROBE = "cleanrl_worker.environment_probe"
TIMEOUT_S = 15.0
"""Below what the daemon waits for a check; an environment that takes longer is not checked"""
_ERROR_CHARACTERS = 400
_JUST_NOW_S = 5.0
_just_now: dict[str, tuple[float, dict[str, Any]]] = {}

Request = tuple[str, Mapping[str, Any], str, str]
"""An environment's id, the arguments it is made with, the pipeline before the algorithm, and what is to step it"""


def facts_about(
    requests: Sequence[Request], *, python: Path, versions: Mapping[str, str], home: Home, environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    """For each request its spaces, or `{"problem": …}`, with `timed_out` when nothing is known."""
    files = [_cache_file(home, request, python, versions) for request in requests]
    keys = [json.dumps([str(python), dict(versions), *request], sort_keys=True) for request in requests]
    known = [_read(file) or _asked_just_now(key) for file, key in zip(files, keys, strict=True)]
    missing = [request for request, answer in zip(requests, known, strict=True) if answer is None]
    fresh = iter(_ask(missing, python, environ) if missing else [])
    answers = []
    for key, file, answer in zip(keys, files, known, strict=True):
        if answer is None:
            answer = next(fresh)
            _just_now[key] = time.monotonic(), answer
            if file is not None and "problem" not in answer:
                _keep(file, answer, home)
        answers.append(answer)
    return answers


def _asked_just_now(key: str) -> dict[str, Any] | None:
    """What is not kept, because it may change, is not asked again within seconds: for the other algorithms."""
    asked_at, answer = _just_now.get(key, (0.0, None))
    return answer if answer is not None and time.monotonic() - asked_at < _JUST_NOW_S else None


def _ask(requests: Sequence[Request], python: Path, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    asked = json.dumps([[env_id, dict(given), *rest] for env_id, given, *rest in requests])
    try:
        code, output, errors = _run([str(python), "-m", PROBE, asked], environ)
    except subprocess.TimeoutExpired:
        late = f"could not be made within {TIMEOUT_S:g} s, so nothing about it was checked"
        return [{"problem": f"{env_id} {late}", "timed_out": True} for env_id, *_ in requests]
    except OSError as error:
        return [{"problem": f"{env_id} could not be looked at with {python}: {error}"} for env_id, *_ in requests]
    with suppress(ValueError, IndexError):
        if code == 0:
            return list(json.loads(output.splitlines()[-1]))
    last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    words = f"making it ended with exit code {code}: {last[0][:_ERROR_CHARACTERS]}"
    return [{"problem": f"{env_id} cannot be made: {words}"} for env_id, *_ in requests]


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Exit code, output and errors. Files, not pipes: a process that the environment left behind would hold those."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            argv, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            process.wait(TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        return process.returncode, output.read(), errors.read()


def _cache_file(home: Home, request: Request, python: Path, versions: Mapping[str, str]) -> Path | None:
    env_id, env_kwargs, pipeline, backend = request
    if ":" in env_id or not home.root.is_dir():
        return None
    here = Path(__file__).parent
    sources = (here / "environment_probe.py", *sorted(here.glob("training/envs/*.py")))
    how = [file.stat().st_mtime_ns for file in sources]
    identity = {
        "python": str(python), "versions": dict(versions), "gymnasium": metadata.version("gymnasium"),
        "env_id": env_id, "env_kwargs": dict(env_kwargs), "pipeline": pipeline,
        "backend": backend, "how": how,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    return home.cache / "environments" / f"{key}.json"


def _read(file: Path | None) -> dict[str, Any] | None:
    try:
        return read_json_object(file, max_bytes=1 << 20) if file is not None else None
    except (OSError, ValueError):
        return None


def _keep(file: Path, answer: Mapping[str, Any], home: Home) -> None:
    try:
        if not home.cache.is_dir():
            home.cache.mkdir(mode=0o700)
        file.parent.mkdir(exist_ok=True)
        write_json_atomically(file, answer, sealed=True)
    except OSError as error:
        logger.debug("the answer about an environment is not kept: %s", error)
