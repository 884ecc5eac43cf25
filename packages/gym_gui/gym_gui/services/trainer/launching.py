"""From a queued record to a worker process: its folders, its config, its secrets, its command."""

from __future__ import annotations

import asyncio
import os
import secrets as random_tokens
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.errors import SpawnFailed
from gym_gui.services.trainer.executors.base import Executor, WorkerHandle
from gym_gui.services.trainer.file_threads import work_on
from gym_gui.services.trainer.journal import Journal
from gym_gui.services.trainer.launch import build_launch, is_training, with_checkpoint
from gym_gui.services.trainer.preparing import mark_of, prepare
from gym_gui.services.trainer.process_tree import pid_namespace
from gym_gui.services.trainer.records import RunRecord
from gym_gui.services.trainer.secrets import SecretStore, referred_secrets, to_environment
from gym_gui.services.trainer.tokens import digest, new_token


class RunLauncher:
    """Starts workers, and lets them prepare what a run lacks."""

    def __init__(
        self,
        home: Home,
        *,
        journal: Journal,
        catalog: WorkerCatalog,
        executor: Executor,
        secret_store: SecretStore,
        settings: Settings,
        grpc_target: str,
    ) -> None:
        self._home, self._journal, self._catalog, self._executor = home, journal, catalog, executor
        self._secret_store, self._settings, self._grpc_target = secret_store, settings, grpc_target

    async def launch(self, record: RunRecord, gpu_ids: Sequence[str]) -> tuple[WorkerHandle, dict[str, str]] | None:
        """Start the worker and return it with the run's secrets; None when the run was cancelled before that."""
        run_id, attempt = record.run_id, record.attempt
        spec = await self._catalog.find(record.worker_type)
        secrets = await asyncio.to_thread(self._secrets_of, run_id)
        token, mark = new_token(), f"{run_id}.{attempt}.{random_tokens.token_hex(4)}"
        await work_on(self._make_folders, record, spec)
        # Claimed before it is started: a daemon that dies in between finds the process by its mark, or knows of none.
        fresh = await self._journal.record(
            run_id,
            "",
            claimed=True,
            mark=mark,
            pid_namespace=pid_namespace(),
            run_token_sha256=digest(token),
            gpu_ids=tuple(gpu_ids),
        )
        if fresh.cancel_requested:
            return None
        launch = build_launch(
            spec,
            fresh,
            self._home,
            gpu_ids=gpu_ids,
            run_token=token,
            mark=mark,
            attempt=attempt,
            grpc_target=self._grpc_target,
            grace_s=self._settings.grace_s,
            secrets=to_environment(secrets),
            base_env=os.environ,
            max_processes=self._settings.max_processes,
            script_folders=self._settings.custom_scripts,
        )
        return await self._executor.submit(launch), secrets

    async def prepare(self, record: RunRecord, tell: Callable[[str, str], None]) -> str:
        """Let the worker install what the run lacks; return what went wrong, or nothing."""
        run_id = record.run_id
        spec = await self._catalog.find(record.worker_type)
        if not spec.prepares:
            return ""
        await work_on(self._make_folders, record, spec)
        await self._journal.record(run_id, "preparing", reason="installing what this run lacks")
        told = ""

        async def report(phase: str, message: str) -> None:
            nonlocal told
            tell(run_id, message)
            if phase != told:
                told = phase
                await self._journal.record(run_id, "preparing", reason=message)

        launch = build_launch(
            spec, record, self._home, gpu_ids=(), run_token="", mark=mark_of(run_id, record.attempt),
            attempt=record.attempt, grpc_target="", grace_s=self._settings.grace_s, secrets={}, base_env=os.environ,
        )  # fmt: skip
        argv = (*spec.argv, "--config", str(self._home.worker_config_file(run_id)), "--run-id", run_id, "--prepare")
        log = self._home.run_logs(run_id) / "prepare.log"
        return await prepare(argv, launch.env, self._home.run_folder(run_id).root, log, report)

    def _make_folders(self, record: RunRecord, spec: WorkerSpec) -> None:
        """Make the run's folders and write the worker's part of the config, with the checkpoint to go on from."""
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
        """What the run's config refers to; a run without secrets does not care whether the store can be read."""
        wanted = referred_secrets(self._worker_part(run_id))
        kept = self._secret_store.get(run_id) if wanted else {}
        if missing := ", ".join(sorted(wanted - kept.keys())):
            raise SpawnFailed(f"its secrets ({missing}) are not kept here; submit the run again with them")
        return kept

    def _worker_part(self, run_id: str) -> dict[str, Any]:
        path = self._home.config_file(run_id)
        try:
            config = read_json_object(path)["metadata"]["worker"]["config"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpawnFailed(f"its config {path} cannot be used: {error}; submit the run again") from error
        if not isinstance(config, dict):
            raise SpawnFailed(f"its config {path} holds no worker config; submit the run again")
        return config


def with_checkpoint_here(worker_config: dict[str, Any], home: Home) -> dict[str, Any]:
    """The config with its checkpoint where it lies now: a home that was moved is still called by its old name in it."""
    extras = worker_config.get("extras")
    if not isinstance(extras, dict):
        return worker_config
    found: dict[str, str] = {}
    for name in ("checkpoint_path", "policy_path"):
        named = Path(str(extras.get(name) or ""))
        run_id = named.parent.parent.name
        if named.is_absolute() and not named.exists() and named.parent.name == "checkpoints" and is_run_id(run_id):
            here = home.run_folder(run_id).checkpoints / named.name
            found |= {name: str(here)} if here.is_dir() else {}
    return {**worker_config, "extras": {**extras, **found}}
