"""Launch the worker process of a queued run: folders, config, secrets and command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets as random_tokens
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from mosaic_wire import env as variables
from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.files import open_plain, read_json_object, write_json_atomically
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import Home
from mosaic_wire.run_request import WorkerPart, with_checkpoint, worker_part
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.config.settings import Settings
from gym_gui.services.trainer import process_tree
from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.errors import SpawnFailed
from gym_gui.services.trainer.executors.contract import Executor, Worker
from gym_gui.services.trainer.file_threads import run_long_io
from gym_gui.services.trainer.journal import Journal
from gym_gui.services.trainer.launch import build_launch, is_training
from gym_gui.services.trainer.process_tree import ProcessIdentity, pid_namespace, read_home, read_mark
from gym_gui.services.trainer.records import LOCAL, RunRecord
from gym_gui.services.trainer.secrets import SecretStore, referred_secrets, to_environment
from gym_gui.services.trainer.tokens import digest, new_token
from gym_gui.services.trainer.worker_logs import tail_text


class RunLauncher:
    """Starts workers, and lets them install what a run lacks."""

    def __init__(
        self,
        home: Home,
        *,
        journal: Journal,
        catalog: WorkerCatalog,
        executors: Mapping[str, Executor],
        secret_store: SecretStore,
        settings: Settings,
        grpc_target: str,
    ) -> None:
        self._home, self._journal, self._catalog, self._executors = home, journal, catalog, executors
        self._secret_store, self._settings, self._grpc_target = secret_store, settings, grpc_target

    async def launch(self, record: RunRecord, gpu_ids: Sequence[str]) -> tuple[Worker, dict[str, str]] | None:
        """Start the worker; return its handle and the run's secrets, or None when the run was cancelled before that."""
        run_id = record.run_id
        spec = await self._catalog.find(record.worker_type)
        secrets = await asyncio.to_thread(self._secrets_of, run_id)
        token, mark = new_token(), f"{run_id}.{record.attempt}.{random_tokens.token_hex(4)}"
        await run_long_io(self._make_folders, record, spec)
        # Claim first: if the daemon dies now, the next one finds the process by its mark, or knows that there is none.
        claimed = await self._journal.record(
            run_id,
            "",
            claimed=True,
            mark=mark,
            pid_namespace="" if record.executor else pid_namespace(),
            run_token_sha256=digest(token),
            gpu_ids=tuple(gpu_ids),
        )
        if claimed.cancel_requested:
            return None
        launch = build_launch(
            spec,
            claimed,
            self._home,
            self._settings,
            mark=mark,
            base_env=os.environ,
            gpu_ids=gpu_ids,
            run_token=token,
            grpc_target=self._target_of(record),
            secrets=to_environment(secrets),
        )
        worker = await self._executors[record.executor or LOCAL].submit(launch)
        if worker.job_id:
            reason = f"{record.executor}: job {worker.job_id}"
            await self._journal.record(run_id, "handed_over", reason=reason, job_id=worker.job_id)
        return worker, secrets

    def _target_of(self, record: RunRecord) -> str:
        """Return how the run's worker reaches the daemon: by the socket of the home, whose disk its node shares."""
        return self._grpc_target

    async def prepare(self, record: RunRecord, on_progress: Callable[[str, str], None]) -> str:
        """Let the worker install what the run lacks; return what went wrong, or an empty text."""
        run_id = record.run_id
        spec = await self._catalog.find(record.worker_type)
        if not spec.prepares:
            return ""
        await run_long_io(self._make_folders, record, spec)
        await self._journal.record(run_id, "preparing", reason="installing what this run lacks")
        recorded = ""

        async def report(phase: str, message: str) -> None:
            nonlocal recorded
            on_progress(run_id, message)
            if phase != recorded:
                recorded = phase
                await self._journal.record(run_id, "preparing", reason=message)

        mark = mark_of(run_id, record.attempt)
        launch = build_launch(spec, record, self._home, self._settings, mark=mark, base_env=os.environ)
        argv = (*spec.argv, "--config", str(self._home.worker_config_file(run_id)), "--run-id", run_id, "--prepare")
        log = self._home.run_logs(run_id) / "prepare.log"
        return await prepare(argv, launch.env, self._home.run_folder(run_id).root, log, report)

    def _make_folders(self, record: RunRecord, spec: WorkerSpec) -> None:
        """Create the run's folders and write the worker config, with the checkpoint to resume from."""
        folder = self._home.run_folder(record.run_id)
        folder.root.mkdir(parents=True, exist_ok=True)
        logs = self._home.run_logs(record.run_id)
        logs.mkdir(parents=True, exist_ok=True)
        logs.chmod(0o700)
        worker_config = with_checkpoint_here(self._worker_part(record.run_id), self._home)
        if record.attempt > 1 and spec.capabilities.supports_checkpointing and is_training(worker_config):
            checkpoint = last_good_checkpoint(folder)
            if checkpoint is not None:
                worker_config = with_checkpoint(worker_config, folder.root / checkpoint.path)
        write_json_atomically(self._home.worker_config_file(record.run_id), worker_config, sealed=True)

    def _secrets_of(self, run_id: str) -> dict[str, str]:
        """Return the secrets that the run's config refers to; the store is read only if there are any."""
        requested = referred_secrets(self._worker_part(run_id))
        stored = self._secret_store.get(run_id) if requested else {}
        if missing := ", ".join(sorted(requested - stored.keys())):
            raise SpawnFailed(f"its secrets ({missing}) are not stored here; submit the run again with them")
        return stored

    def _worker_part(self, run_id: str) -> WorkerPart:
        path = self._home.config_file(run_id)
        try:
            return worker_part(read_json_object(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpawnFailed(f"its config {path} cannot be used: {error}; submit the run again") from error


def with_checkpoint_here(worker_config: WorkerPart, home: Home) -> WorkerPart:
    """Return the config with the present path of its checkpoint, whose stored path is wrong if the home was moved."""
    extras = worker_config.get("extras")
    if not isinstance(extras, dict):
        return worker_config
    extras = extras.copy()
    for name in ("checkpoint_path", "policy_path"):
        named = Path(str(extras.get(name) or ""))
        run_id = named.parent.parent.name
        if named.is_absolute() and not named.exists() and named.parent.name == "checkpoints" and is_run_id(run_id):
            here = home.run_folder(run_id).checkpoints / named.name
            if here.is_dir():
                extras[name] = str(here)
    return {**worker_config, "extras": extras}


# ---------------------------------------------------------------- preparing


INSTALL_MISSING = "install_missing"
"""The key of `extras` that requests an installation"""

_MAX_LINE_BYTES = 64 * 1024
_GRACE_S = 3.0
"""Seconds between SIGTERM and SIGKILL for an installer; `mosaic daemon stop` waits for it"""
_KILL_S = 5.0
_MARK_END = ".prepare"

Report = Callable[[str, str], Awaitable[None]]
"""Called with (phase, message) for each line"""


async def prepare(argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, report: Report) -> str:
    """Run the command to its end; return what went wrong, or an empty text. Cancelling the task ends the command."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open_plain(log, "ab") as stderr:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            return f"{argv[0]!r} could not be started: {error}"
    assert process.stdout is not None
    last_message = ""
    try:
        async for phase, message in _progress(process.stdout):
            last_message = message
            await report(phase, message)
        code = await process.wait()
    except BaseException:
        await _end_tree(ProcessIdentity.of(process.pid), env[variables.MOSAIC_RUN_MARK])
        raise
    if code == 0:
        return ""
    return last_message or tail_text(log, lines=5) or f"the command exited with code {code} and printed nothing"


def mark_of(run_id: str, attempt: int) -> str:
    """Return the mark of a run's installer and of all processes it starts."""
    return f"{run_id}.{attempt}{_MARK_END}"


async def end_leftovers(home: Home) -> None:
    """End the installers that a killed daemon of this home left running."""
    marks = await asyncio.to_thread(_leftover_marks, home)
    await asyncio.gather(*(_end_tree(None, mark) for mark in marks))


def _leftover_marks(home: Home) -> set[str]:
    marked = {
        pid: mark for pid in process_tree.read_process_table() if (mark := read_mark(pid) or "").endswith(_MARK_END)
    }
    homes = {pid: read_home(pid) for pid in marked}
    return {mark for pid, mark in marked.items() if (root := homes[pid]) and Home(root).identity == home.identity}


async def _end_tree(identity: ProcessIdentity | None, mark: str) -> None:
    """Terminate every process of an installer; kill those that remain after the grace time."""
    find_tree = partial(process_tree.tree_of, identity, mark)
    for number, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
        deadline = time.monotonic() + wait_s
        await asyncio.to_thread(process_tree.signal_all, find_tree, number)
        while await asyncio.to_thread(find_tree):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)


async def _progress(stream: asyncio.StreamReader) -> AsyncIterator[tuple[str, str]]:
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError as error:
            await stream.readexactly(error.consumed)  # not a progress line
            continue
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if isinstance(document, dict) and isinstance(message := document.get("message"), str) and message:
                yield str(document.get("phase") or ""), message[:500]
