"""The requests of clients and workers in Python types; `service.py` translates them from and to protobuf."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.capabilities import Lane, WorkerCapabilities
from mosaic_wire.checkpoints import last_good_checkpoint, verify_checkpoint
from mosaic_wire.errors import Problem, SpecError, WireError
from mosaic_wire.files import parse_json, read_json_object, write_json_atomically
from mosaic_wire.ids import is_run_id, new_run_id
from mosaic_wire.limits import registration_problem
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.node import INSTANCE_PREFIX
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.redaction import is_secret_ref, redact_document, redact_text, spellings_of
from mosaic_wire.run_config import MAX_TAGS, TrainRunConfig
from mosaic_wire.run_request import (
    NOT_TRAINING,
    Extras,
    Mode,
    algo_params,
    plain_parameters,
    with_checkpoint,
    with_worker_part,
    worker_part,
)

from gym_gui.config.settings import Settings
from gym_gui.services.trainer import archives
from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.checking import ConfigChecks
from gym_gui.services.trainer.dispatcher import TrainerDispatcher
from gym_gui.services.trainer.errors import (
    InvalidConfig,
    NotAllowed,
    NotPossibleNow,
    RegistryUnwritable,
    RunNotFound,
    SecretStoreError,
    UnknownWorker,
)
from gym_gui.services.trainer.file_threads import run_long_io
from gym_gui.services.trainer.fsm import RunOutcome, RunStatus
from gym_gui.services.trainer.journal import Journal
from gym_gui.services.trainer.launching import INSTALL_MISSING
from gym_gui.services.trainer.metrics.hub import MetricHub
from gym_gui.services.trainer.node_files import inputs_of
from gym_gui.services.trainer.nodes import is_on_node
from gym_gui.services.trainer.records import LOCAL, NewRun, Parent, RunRecord, RunStatistics
from gym_gui.services.trainer.run_files import delete_run_files, size_of_run
from gym_gui.services.trainer.run_supervisor import RunSupervisor
from gym_gui.services.trainer.secrets import (
    SecretStore,
    lend_secrets,
    naming_run,
    referred_secrets,
    split_secrets,
    to_environment,
)
from gym_gui.services.trainer.streams import Kind, Receipt, TelemetryAsyncHub
from gym_gui.services.trainer.tokens import digest, new_token
from gym_gui.services.trainer.validation.json_document import read_config_text
from gym_gui.services.trainer.validation.train_config import RunIdentity, expand, identity_of, validate_train_run_config
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets
from gym_gui.wording.run_view import STATE_LABELS

logger = logging.getLogger(__name__)

_PART_OF_ID = re.compile("[0-9A-HJKMNP-TV-Z]{4,26}")
_MAX_KEY_CHARACTERS = 256
_MAX_REASON_CHARACTERS = 500


_Key = tuple[str, str]
"""A client's idempotency key, and the fingerprint of what it was used with"""


class Trainer:
    """Checks and carries out every request."""

    def __init__(
        self,
        home: Home,
        *,
        journal: Journal,
        dispatcher: TrainerDispatcher,
        catalog: WorkerCatalog,
        checks: ConfigChecks,
        metrics: MetricHub,
        telemetry: TelemetryAsyncHub,
        secret_store: SecretStore,
        user_secrets: UserSecrets,
        settings: Settings,
    ) -> None:
        self.home, self.journal, self.dispatcher, self.catalog = home, journal, dispatcher, catalog
        self._checks, self.metrics, self.telemetry = checks, metrics, telemetry
        self.settings = settings
        self._secret_store, self._user_secrets = secret_store, user_secrets

    # ------------------------------------------------------------------ submitting

    async def submit(
        self, config_json: str, idempotency_key: str = "", *, submitter: RunRecord | None = None
    ) -> tuple[RunRecord, bool, Sequence[str]]:
        """Accept a run; once this returns, it is never lost. The same key again returns the same run.

        Return its record, whether the key was known, and notes on its values.
        `submitter`: the run whose worker submits it, stored as a tag and in a read-only column.
        """
        _checked_text("idempotency_key", idempotency_key, _MAX_KEY_CHARACTERS)
        key = (idempotency_key, _fingerprint(read_config_text(config_json)) if idempotency_key else "")
        if idempotency_key:
            known = await self.journal.read(self.journal.registry.known_submission, *key)
            if known is not None:
                if submitter is not None:
                    check_is_own(submitter.run_id, known)
                return known, True, ()
        config, notes = await self._checks.accept(config_json)
        await self._check_handles([("run_name", config.run_name), *(("tags", tag) for tag in config.tags)])
        if submitter is None:
            config, left_out = await asyncio.to_thread(self._with_stored_secrets, config)
            return *await self._accept(config, key, await self._parent_of(config)), (*notes, *left_out)
        return *await self._accept_child(config, key, submitter), notes

    async def _accept_child(self, config: TrainRunConfig, key: _Key, submitter: RunRecord) -> tuple[RunRecord, bool]:
        if await asyncio.to_thread(self._submits_runs, config.metadata.worker.type):
            raise NotPossibleNow("a run that a worker submitted cannot submit runs itself")
        kind = f"{submitter.worker_type[:32]}:"
        others = [tag for tag in config.tags if not tag.startswith(kind)]
        marked = config.model_copy(update={"tags": tuple([f"{kind}{submitter.run_id}", *others][:MAX_TAGS])})
        record, known = await self._accept(marked, key, await self._parent_of(config), submitted_by=submitter.run_id)
        if (await self.get(submitter.run_id)).status is RunStatus.TERM and record.status is not RunStatus.TERM:
            record = await self.dispatcher.cancel(
                record.run_id, f"run {submitter.run_id}, which submitted it, has finished"
            )
        return record, known

    def _submits_runs(self, worker_type: str) -> bool:
        """Return whether the worker's description (not its registration) allows it to submit runs."""
        try:
            return self.catalog.get(worker_type).capabilities.submits_runs
        except (UnknownWorker, WireError):
            return False

    async def submitter(self, run_id: str, session_token: str) -> RunRecord:
        """Return the run whose worker submits or watches runs of its own; raise NotAllowed for all other workers."""
        if not is_run_id(run_id):
            raise NotAllowed("a worker that submits runs has to name the run it belongs to")
        record = (await self.worker_session(run_id, session_token)).record
        if not await asyncio.to_thread(self._submits_runs, record.worker_type):
            raise NotAllowed(f"worker {record.worker_type!r} may not submit or watch runs")
        return record

    async def _parent_of(self, config: TrainRunConfig) -> Parent | None:
        """Return the run of this home whose checkpoint a config resumes from, so that clients show one curve."""
        extras = identity_of(config).extras
        chosen = Path(str(extras.get("checkpoint_path") or ""))
        run_id = chosen.parent.parent.name
        if extras.get("mode") != Mode.RESUME or not is_run_id(run_id):
            return None
        if chosen.parent != self.home.run_folder(run_id).checkpoints:
            return None
        try:
            record = await self.get(run_id)
            entry = await run_long_io(self._checkpoint_of, record, f"checkpoints/{chosen.name}")
        except (RunNotFound, NotPossibleNow):
            return None  # the worker reports whether it can be used at all
        await asyncio.to_thread(self._require_remaining_steps, record, entry, identity_of(config).total_timesteps)
        return Parent(run_id, entry.step, entry.sha256)

    async def _accept(
        self, config: TrainRunConfig, key: _Key, parent: Parent | None = None, *, submitted_by: str = ""
    ) -> tuple[RunRecord, bool]:
        run_id = new_run_id()
        new = await asyncio.to_thread(self._store_config, config, run_id, parent)
        new = replace(new, submitted_by=submitted_by)
        try:
            record, known = await self.journal.submit(new, idempotency_key=key[0], fingerprint=key[1])
        except (RegistryUnwritable, NotPossibleNow):
            await asyncio.to_thread(self._forget_config, run_id)
            raise
        if known:  # another client submitted the same key at the same time
            await asyncio.to_thread(self._forget_config, run_id)
            return record, True
        self.dispatcher.enqueue(record)
        return record, False

    def _store_config(self, config: TrainRunConfig, run_id: str, parent: Parent | None) -> NewRun:
        """Write the canonical config, after its secrets went to the secret store."""
        document, secrets = split_secrets(self._with_user_key(expand(config, run_id, self.home).to_json()))
        # A key pasted into the name, a tag or the notes is redacted there too; use the redacted document from here on.
        redacted = TrainRunConfig.from_json(document)
        if parent is not None:  # a resumed run refers to its parent's secrets
            secrets = {**self._secret_store.get(parent.run_id), **secrets}
        identity = identity_of(redacted)
        if secrets:
            self._secret_store.put(run_id, secrets)
        try:
            write_json_atomically(self.home.config_file(run_id), document, sealed=True)
        except OSError as error:
            self._secret_store.delete(run_id)
            raise RegistryUnwritable(
                f"the run was not accepted: its config cannot be written under {self.home.configs}: {error.strerror}; "
                "make room or make the folder writable, then submit again"
            ) from error
        return _new_run(
            run_id, redacted, identity, parent, redact_document(identity.extras, spellings_of(secrets.values()))
        )

    def _with_stored_secrets(self, config: TrainRunConfig) -> tuple[TrainRunConfig, list[str]]:
        """Return the config with the secrets of other runs that it refers to, and notes on those not stored here.

        Only for clients: a worker that submits runs sees no secrets but its own.
        """
        missing: list[str] = []
        document = lend_secrets(self._with_secrets_of_evaluated(config.to_json()), self._secret_store.get, missing)
        notes = [f"{ref.rpartition('/')[2]} is left out: run {ref.rpartition('/')[0]} has none here" for ref in missing]
        return TrainRunConfig.from_json(document), notes

    def _with_secrets_of_evaluated(self, document: dict[str, Any]) -> dict[str, Any]:
        """Let an evaluation refer to the secrets among the parameters of its run, if it does not give its own."""
        part = worker_part(document)
        extras = part.get("extras") or Extras()
        chosen = Path(str(extras.get("checkpoint_path") or extras.get("policy_path") or ""))
        run_id = chosen.parent.parent.name if chosen.is_absolute() else str(chosen)
        if extras.get("mode") != Mode.EVALUATE or not is_run_id(run_id):
            return document
        if chosen.is_absolute() and chosen.parent != self.home.run_folder(run_id).checkpoints:
            return document
        try:
            evaluated = read_json_object(self.home.config_file(run_id))
            theirs = worker_part(evaluated)
            worker = evaluated["metadata"]["worker"]["type"]
        except (OSError, ValueError, KeyError, TypeError):
            return document  # the worker reports whether it can be evaluated at all
        if (worker, theirs.get("algo")) != (document["metadata"]["worker"]["type"], part["algo"]):
            return document
        own = {**plain_parameters(extras), **algo_params(extras)}
        known = {**plain_parameters(theirs.get("extras") or {}), **algo_params(theirs.get("extras") or {})}
        lent = {
            name: naming_run(known[name], run_id) for name in known.keys() - own.keys() if is_secret_ref(known[name])
        }
        if not lent:
            return document
        return with_worker_part(
            document, {**part, "extras": {**extras, "algo_params": {**lent, **algo_params(extras)}}}
        )

    def _with_user_key(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the config with the W&B key entered in the window, if the run logs to W&B and has no key."""
        extras = worker_part(document).get("extras", {})
        if extras.get("track_wandb") is True and not extras.get(WANDB_API_KEY):
            try:
                key = self._user_secrets.get(WANDB_API_KEY)
            except SecretStoreError as error:
                logger.warning("a run that logs to W&B runs without the key that was entered: %s", error)
            else:
                if key:
                    extras["wandb_api_key"] = key
        return document

    def _forget_config(self, run_id: str) -> None:
        self.home.config_file(run_id).unlink(missing_ok=True)
        self._secret_store.delete(run_id)

    # ------------------------------------------------------------------ controlling

    async def get(self, run_id: str) -> RunRecord:
        """Return a run with its newest statistics."""
        return await self.journal.read(self.journal.registry.get, run_id)

    async def cancel(self, run_id: str, reason: str = "") -> RunRecord:
        """Cancel a run and return its record; a second request has no effect."""
        _checked_text("reason", reason, _MAX_REASON_CHARACTERS)
        record = await self.get(run_id)
        if record.status is RunStatus.TERM:
            if record.outcome is RunOutcome.CANCELLED:
                return record
            raise NotPossibleNow(f"run {run_id} has already ended: {record.outcome}")
        return await self.dispatcher.cancel(run_id, reason)

    async def cancel_many(self, run_ids: Iterable[str], reason: str = "") -> dict[str, str]:
        """Cancel runs; return why some cannot be cancelled, by run."""
        _checked_text("reason", reason, _MAX_REASON_CHARACTERS)
        refused: dict[str, str] = {}
        for run_id in await self.dispatcher.cancel_waiting(list(dict.fromkeys(run_ids)), reason):
            try:
                await self.cancel(run_id, reason)
            except (RunNotFound, NotPossibleNow) as error:
                refused[run_id] = str(error)
        return refused

    async def pause(self, run_id: str, *, release: bool) -> RunRecord:
        """Pause a running run; with `release` free its resources."""
        supervisor = await self.dispatcher.supervisor_of(run_id)
        if supervisor is None:
            record = await self.get(run_id)
            if record.status is RunStatus.PAUSE and release and record.released:
                return record
            raise NotPossibleNow(f"run {run_id} is {_state_label(record)}; only a running run can be paused")
        return await supervisor.pause(release=release)

    async def resume(
        self, run_id: str, *, additional_timesteps: int = 0, checkpoint: str = "", idempotency_key: str = ""
    ) -> RunRecord:
        """Resume a run: a paused one in place, a released one through the queue, a finished one as a new run."""
        record = await self.get(run_id)
        _checked_text("idempotency_key", idempotency_key, _MAX_KEY_CHARACTERS)
        if record.status is RunStatus.TERM:
            return await self._continue_finished(record, additional_timesteps, checkpoint, idempotency_key)
        if additional_timesteps or checkpoint:
            raise NotPossibleNow(f"run {run_id} is {_state_label(record)}; only a finished run can be extended")
        if record.status is RunStatus.PAUSE and record.released:
            return await self.dispatcher.requeue_released(record)
        if (supervisor := await self.dispatcher.supervisor_of(run_id)) is None:
            raise NotPossibleNow(f"run {run_id} is {_state_label(record)}; there is nothing to resume")
        return await supervisor.resume()

    async def _continue_finished(
        self, record: RunRecord, additional_timesteps: int, checkpoint: str, idempotency_key: str
    ) -> RunRecord:
        """Start a new run from a checkpoint of a finished one, which becomes its parent and stays unchanged."""
        request = {"resume": record.run_id, "timesteps": additional_timesteps, "checkpoint": checkpoint}
        key = (idempotency_key, _fingerprint(request))
        if (known := await self.journal.read(self.journal.registry.known_submission, *key)) is not None:
            return known
        config, parent = await run_long_io(self._child_config, record, additional_timesteps, checkpoint)
        await self._checks.check(config)
        child, _ = await self._accept(config, key, parent)
        return child

    def _child_config(
        self, record: RunRecord, additional_timesteps: int, checkpoint: str
    ) -> tuple[TrainRunConfig, Parent]:
        entry = self._checkpoint_of(record, checkpoint)
        try:
            document = read_json_object(self.home.config_file(record.run_id))
            part = worker_part(document)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotPossibleNow(
                f"run {record.run_id} cannot be continued, its config is unreadable: {error}"
            ) from error
        part = with_checkpoint(part, self.home.run_folder(record.run_id).root / entry.path)
        part.pop("run_id", None)
        total = part.get("total_timesteps") or record.total
        if additional_timesteps < 0:
            raise NotPossibleNow(f"cannot extend by {additional_timesteps} timesteps; give a positive number")
        part["total_timesteps"] = max(total, entry.step) + additional_timesteps
        self._require_remaining_steps(record, entry, part["total_timesteps"])
        document = with_worker_part(document, part)
        config = validate_train_run_config(document, workers=self.catalog.get, scripts=self.catalog.script)
        return config, Parent(record.run_id, entry.step, entry.sha256)

    def _require_remaining_steps(self, record: RunRecord, entry: CheckpointEntry, total: int) -> None:
        try:  # the submitted total: a worker may report a total rounded to whole batches
            config = worker_part(read_json_object(self.home.config_file(record.run_id)))
            planned = int(config["total_timesteps"])
        except (OSError, ValueError, KeyError, TypeError):
            planned = record.total
        # Training in whole batches may end below the total; a sweep may have run out of time before its last trial.
        is_done = record.outcome is RunOutcome.COMPLETED and entry.step >= record.step and total <= planned
        if entry.step >= total or (is_done and not self._submits_runs(record.worker_type)):
            raise NotPossibleNow(
                f"run {record.run_id} has trained all of its {total} timesteps (it ended at {record.step}); "
                f"add more with `mosaic extend {record.run_id} --timesteps N`"
            )

    def _checkpoint_of(self, record: RunRecord, checkpoint: str) -> CheckpointEntry:
        folder = self.home.run_folder(record.run_id)
        if (mode := record.extras.get("mode")) in NOT_TRAINING:
            raise NotPossibleNow(f"run {record.run_id} cannot be continued: its mode was {mode}, which trains nothing")
        if record.extras.get("script_path") and not record.capabilities.get("supports_checkpointing", False):
            raise NotPossibleNow(
                f"run {record.run_id} cannot be resumed: it trained with the script {record.extras['script_path']}, "
                "which writes no checkpoint that MOSAIC could resume from. Train it again from the start"
            )
        if not checkpoint:
            if (entry := last_good_checkpoint(folder)) is None:
                raise NotPossibleNow(f"run {record.run_id} left no usable checkpoint, so it cannot be continued")
            return entry
        try:
            entries = AnalyticsManifest.read(folder.manifest).checkpoints
        except (OSError, ValueError) as error:
            raise NotPossibleNow(f"run {record.run_id} has no readable manifest: {error}") from error
        entry = next((known for known in entries if checkpoint in (known.path, str(known.step))), None)
        if entry is None:
            names = ", ".join(known.path for known in entries) or "none"
            raise NotPossibleNow(f"run {record.run_id} has no checkpoint {checkpoint!r}; it has: {names}")
        if (problem := verify_checkpoint(folder.root / entry.path, entry.sha256)) is not None:
            raise NotPossibleNow(f"checkpoint {checkpoint!r} of run {record.run_id} is damaged: {problem}")
        return entry

    async def _check_handles(self, texts: Iterable[tuple[str, str | None]]) -> None:
        """Raise InvalidConfig for names and tags that commands would read as something else."""
        problems = [
            Problem(path, problem)
            for path, text in texts
            if text is not None and (problem := await self._handle_problem(text))
        ]
        if problems:
            raise InvalidConfig(problems)

    async def _handle_problem(self, text: str) -> str:
        handle = text.strip().upper()
        if not handle:
            return f"needs at least one visible character, got {text!r}"
        if handle in ("LAST", "@"):
            return f"cannot be {text!r}: that means the last run you started"
        if _PART_OF_ID.fullmatch(handle):
            run_id = await self.journal.read(self.journal.registry.id_with, handle)
            if run_id is not None:
                return f"cannot be {text!r}: that means run {run_id}, by the beginning or the end of its id"
        return ""

    async def update(
        self,
        run_id: str,
        *,
        name: str | None = None,
        notes: str | None = None,
        priority: int | None = None,
        add_tags: tuple[str, ...] = (),
        remove_tags: tuple[str, ...] = (),
    ) -> RunRecord:
        """Change a run's name, notes, tags or priority; also refresh the stored size of a finished run's files."""
        record = await self.get(run_id)
        await self._check_handles([("name", name), *(("tag", tag) for tag in add_tags)])
        changes: dict[str, Any] = {}
        if name is not None:
            changes["name"] = _checked_text("name", name, 200, empty=False)
        if notes is not None:
            changes["notes"] = _checked_text("notes", notes, 65_536)
        if priority is not None:
            if record.status is not RunStatus.INIT:
                raise NotPossibleNow(
                    f"run {run_id} is {_state_label(record)}; the priority counts only while it is queued"
                )
            if run_id in self.dispatcher.supervisors:
                raise NotPossibleNow(f"run {run_id} is in the queue of {record.executor}, whose priorities are its own")
            if not -1000 <= priority <= 1000:
                raise InvalidConfig([Problem("priority", f"expected -1000 to 1000, got {priority}")])
            changes["priority"] = priority
        tags = dict.fromkeys((*record.tags, *(_checked_text("tag", tag, 64, empty=False) for tag in add_tags)))
        changes["tags"] = tuple(tag for tag in tags if tag not in remove_tags)
        if len(changes["tags"]) > max(MAX_TAGS, len(record.tags)):
            raise InvalidConfig([Problem("tag", f"a run has at most {MAX_TAGS} tags, this would make {len(tags)}")])
        secrets = await asyncio.to_thread(self._secret_store.known, run_id)
        changes = {key: _redacted(value, spellings_of(secrets.values())) for key, value in changes.items()}
        changes = {key: value for key, value in changes.items() if value != getattr(record, key)}
        # A client that removed some of its files (the window's cleanup) sends an update without changes.
        sizes: dict[str, Any] = {}
        if record.status is RunStatus.TERM:
            size = await run_long_io(size_of_run, self.home, run_id)
            sizes = {"size_bytes": size} if size != record.size_bytes else {}
        if not changes:
            return await self.journal.record(run_id, "", insist=False, **sizes) if sizes else record
        record = await self.journal.record(run_id, "edited", payload=changes, insist=False, **changes, **sizes)
        if "priority" in changes and run_id in self.dispatcher.queue:
            self.dispatcher.reprioritize(record)
        return record

    # ------------------------------------------------------------------ archiving and deleting

    async def archive(self, run_id: str, *, archived: bool) -> RunRecord:
        """Hide a finished run from listings or show it again; nothing is removed."""
        record = await self.get(run_id)
        if archived:
            _require_finished(record, "archived")
        if record.archived == archived:
            return record
        kind = "archived" if archived else "unarchived"
        return await self.journal.record(run_id, kind, archived=archived, insist=False)

    async def delete(self, run_id: str) -> int:
        """Delete a finished run with all its files; return the bytes freed."""
        record = await self.get(run_id)
        _require_finished(record, "deleted")
        await self.metrics.forget(run_id)
        # Files first: after a crash in between or a refusal, the run can be deleted again.
        freed = await run_long_io(delete_run_files, self.home, run_id)
        await self.telemetry.forget(run_id)
        await asyncio.to_thread(self._secret_store.delete, run_id)
        await self.journal.read(self.journal.registry.remove, run_id)
        self.journal.publish_deleted(record)
        return freed

    async def export(self, run_id: str) -> Path:
        """Return an archive of a finished run; the caller removes the file."""
        record = await self.get(run_id)
        _require_finished(record, "exported")
        events = await self.journal.read(self.journal.registry.history, run_id)
        secrets = await asyncio.to_thread(self._secret_store.get, run_id)
        return await run_long_io(archives.export_archive, self.home, record, events, secrets=tuple(secrets.values()))

    async def import_archive(self, archive: Path) -> RunRecord:
        """Import a run from an archive, completely or not at all."""
        imported = await asyncio.to_thread(archives.import_archive, archive, self.home)
        with contextlib.suppress(RunNotFound):
            await self.get(imported.record.run_id)
            await asyncio.to_thread(imported.abandon)
            raise NotPossibleNow(f"run {imported.record.run_id} already exists; delete it first to import it again")
        try:
            # The id is unknown here: files of that name were left by an interrupted import.
            await asyncio.to_thread(imported.commit, replace=True)
            record = await self.journal.restore(imported.record, imported.history)
        except BaseException:
            await asyncio.to_thread(imported.abandon)
            raise
        return await self.journal.record(record.run_id, "imported")

    # ------------------------------------------------------------------ workers

    async def register(
        self,
        run_id: str,
        run_token: str,
        *,
        attempt: int,
        protocol_version: int,
        instance: str,
        capabilities_json: str,
        algo: str,
        env_id: str,
        extras_json: str,
    ) -> str:
        """Register a worker for its run and return its session token."""
        supervisor = await self.dispatcher.supervisor_of(run_id)
        if supervisor is None:
            raise NotAllowed(f"run {run_id} expects no worker")
        record = supervisor.record
        supervisor.check_run_token(run_token)
        _require_expected(record, attempt, protocol_version, instance)
        capabilities, extras = _registration_documents(capabilities_json, extras_json, algo, env_id, instance)
        secrets = await asyncio.to_thread(self._secret_store.known, run_id)
        token = new_token()
        await supervisor.registered(
            session_token_sha256=digest(token),
            worker_instance=instance,
            protocol_version=protocol_version,
            capabilities=capabilities,
            extras=redact_document(extras, spellings_of(secrets.values())) or record.extras,
            algo=algo or record.algo,
            env_id=env_id or record.env_id,
        )
        return token

    async def open_node(
        self, run_id: str, run_token: str, *, attempt: int, protocol_version: int, instance: str, host: str
    ) -> pb.OpenNodeResponse:
        """Accept the process that will run the worker on another machine; return what it needs for that."""
        supervisor = await self.dispatcher.supervisor_of(run_id)
        if supervisor is None:
            raise NotAllowed(f"run {run_id} expects no worker")
        supervisor.check_run_token(run_token)
        _require_expected(supervisor.record, attempt, protocol_version, instance)
        if not is_on_node(instance) or len(instance) > _MAX_KEY_CHARACTERS:
            raise InvalidConfig([Problem("instance", f"expected {INSTANCE_PREFIX!r} and a random number")])
        spec = await self.catalog.find(supervisor.record.worker_type)
        config, inputs, secrets = await run_long_io(self._for_node, run_id, attempt)
        await supervisor.open_node(instance, _checked_text("host", host, 200))
        record = supervisor.record
        return pb.OpenNodeResponse(
            module=spec.module,
            worker_config_json=json.dumps(config),
            home=str(self.home.root),
            inputs=inputs,
            secrets=secrets,
            prepares=spec.prepares,
            cpus=record.cpus,
            gpus_mandatory=record.gpus_mandatory,
            grace_s=self.settings.grace_s,
            bytes_per_s=int(self.settings.nodes.mb_per_s * 1e6),
        )

    def _for_node(self, run_id: str, attempt: int) -> tuple[dict[str, Any], list[pb.RunFile], dict[str, str]]:
        """Return the worker config, the files the run starts from, and its secrets as variables."""
        config = read_json_object(self.home.worker_config_file(run_id))
        requested = referred_secrets(config)
        stored = self._secret_store.get(run_id) if requested else {}
        secrets = {name: value for name, value in stored.items() if name in requested}
        return config, inputs_of(self.home, run_id, config, attempt=attempt), to_environment(secrets)

    async def node_inputs(self, run_id: str, attempt: int) -> set[str]:
        """Return the paths that the node of a run may read."""
        _, inputs, _ = await run_long_io(self._for_node, run_id, attempt)
        return {file.path for file in inputs}

    async def node_session(self, run_id: str, run_token: str, instance: str | None) -> RunSupervisor:
        """Return the supervisor of the live run that this run token, and the instance if one is needed, belong to."""
        supervisor = await self.dispatcher.supervisor_of(run_id)
        if supervisor is None:
            raise NotAllowed(f"run {run_id} has no live worker")
        if instance is None:
            supervisor.check_run_token(run_token)
        else:
            supervisor.check_node(run_token, instance)
        return supervisor

    async def heartbeat(self, run_id: str, session_token: str, statistics: RunStatistics, lifecycle_seq: int) -> None:
        """Apply a worker's heartbeat."""
        supervisor = await self.worker_session(run_id, session_token)
        supervisor.heartbeat(statistics, lifecycle_seq)
        self.dispatcher.plan_statistics_flush()

    async def publish_telemetry(self, run_id: str, session_token: str, kind: Kind, messages: Sequence[Any]) -> Receipt:
        """Publish steps or episodes of a live worker; an analytics run may send episodes if its config allows it."""
        supervisor = await self.worker_session(run_id, session_token)
        record = supervisor.record
        is_live = record.capabilities.get("lane", Lane.ANALYTICS) != Lane.ANALYTICS
        if not is_live and not (kind == "episodes" and record.extras.get("minimal_telemetry") is True):
            remedy = "" if kind == "steps" else "; extras.minimal_telemetry lets it send episodes"
            raise NotPossibleNow(
                f"worker {record.worker_type!r} is in the {Lane.ANALYTICS} lane: its {kind} are not accepted{remedy}"
            )
        return await self.telemetry.publish(run_id, kind, messages)

    async def load_workers(self, names: Iterable[str]) -> None:
        """Load the descriptions of these workers into the catalog; one that cannot be used stays unknown."""
        for name in names:
            if self.catalog.known(name) is None:
                with contextlib.suppress(UnknownWorker, SpecError):
                    await self.catalog.find(name)

    async def worker_session(self, run_id: str, session_token: str) -> RunSupervisor:
        """Return the supervisor of the live run that this session token belongs to."""
        supervisor = await self.dispatcher.supervisor_of(run_id)
        if supervisor is None:
            raise NotAllowed(f"run {run_id} has no live worker")
        supervisor.check_session(session_token)
        return supervisor


def _require_expected(record: RunRecord, attempt: int, protocol_version: int, instance: str) -> None:
    """Raise NotPossibleNow for a worker, or the node of one, that is not the one this attempt waits for."""
    if attempt != record.attempt:
        raise NotPossibleNow(f"run {record.run_id} is at attempt {record.attempt}, not {attempt}")
    if protocol_version != PROTOCOL_VERSION:
        raise NotPossibleNow(
            f"worker {record.worker_type!r} speaks protocol {protocol_version}, this daemon {PROTOCOL_VERSION}; "
            "install versions of mosaic-wire that match"
        )
    if record.worker_instance and record.worker_instance != instance:
        raise NotPossibleNow(f"run {record.run_id} already has a registered worker; a second one is refused")


def _fingerprint(document: Mapping[str, Any]) -> str:
    """Return a digest of what defines the training: not its name, tags or resources."""
    text = json.dumps(redact_document(document.get("metadata", document)))
    # Nor whether missing packages may be installed.
    shown = json.loads(text, object_hook=lambda part: {key: part[key] for key in part if key != INSTALL_MISSING})
    return digest(json.dumps(shown, sort_keys=True))


def check_is_own(submitter: str, record: RunRecord) -> None:
    """Raise NotAllowed when a worker requests a run that its own run did not submit."""
    if record.submitted_by != submitter:
        raise NotAllowed(f"run {record.run_id} was not submitted by run {submitter}")


def _new_run(
    run_id: str, config: TrainRunConfig, identity: RunIdentity, parent: Parent | None, extras: Mapping[str, Any]
) -> NewRun:
    resources, scheduling = config.resources, config.scheduling
    return NewRun(
        run_id=run_id,
        name=identity.name,
        worker_type=config.metadata.worker.type,
        worker_id=identity.worker_id or "",
        algo=identity.algo,
        env_id=identity.env_id,
        seed=identity.seed,
        total=identity.total_timesteps,
        priority=scheduling.priority,
        tags=tuple(dict.fromkeys(config.tags)),
        notes=str(extras.get("notes") or ""),
        parent=parent,
        cpus=resources.cpus.requested,
        gpus=resources.gpus.requested,
        gpus_mandatory=resources.gpus.mandatory,
        memory_mb=resources.memory_mb,
        max_wallclock_minutes=resources.max_wallclock_minutes,
        silence_s=scheduling.silence_s,
        retries=scheduling.retries,
        extras=dict(extras),
        executor="" if scheduling.executor in (None, LOCAL) else scheduling.executor,
    )


def _registration_documents(
    capabilities_json: str, extras_json: str, *names: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    if problem := registration_problem(capabilities_json, extras_json, *names):
        raise InvalidConfig([Problem("registration", problem)])
    problems: list[Problem] = []
    documents: list[dict[str, Any]] = []
    for path, text in (("capabilities", capabilities_json), ("extras", extras_json)):
        try:
            document = parse_json(text or "{}")
        except ValueError as error:
            problems.append(Problem(path, f"not JSON: {error}"))
            continue
        if not isinstance(document, dict):
            problems.append(Problem(path, "expected a JSON object"))
            continue
        documents.append(document)
    if not problems:
        try:
            WorkerCapabilities.from_json(documents[0])
        except WireError as error:
            problems.append(Problem("capabilities", str(error)))
    if problems:
        raise InvalidConfig(problems)
    return documents[0], documents[1]


def _checked_text(what: str, text: str, limit: int, *, empty: bool = True) -> str:
    if len(text) > limit or (not empty and not text.strip()):
        raise InvalidConfig([Problem(what, f"expected {'0' if empty else '1'} to {limit} characters, got {len(text)}")])
    if not (text.replace("\n", "").replace("\t", "") if empty else text).isprintable():
        # These texts are shown in terminals, so escape sequences are refused.
        raise InvalidConfig([Problem(what, "must not contain control characters")])
    return text


def _redacted(value: Any, secrets: list[str]) -> Any:
    """Return a name, notes or tags with the run's secrets redacted; a user may have pasted one."""
    if isinstance(value, tuple):
        return tuple(dict.fromkeys(_redacted(item, secrets) for item in value))
    return redact_text(value, secrets) if isinstance(value, str) else value


def _require_finished(record: RunRecord, verb: str) -> None:
    if record.status is not RunStatus.TERM:
        raise NotPossibleNow(f"run {record.run_id} is {_state_label(record)}; cancel it first, then it can be {verb}")


def _state_label(record: RunRecord) -> str:
    return f"over ({record.outcome})" if record.status is RunStatus.TERM else STATE_LABELS[record.status]
