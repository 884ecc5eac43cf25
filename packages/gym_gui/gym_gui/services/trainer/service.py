"""TrainerService: translate protobuf to Python and back, nothing else."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil
from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.errors import InvalidRunId, WireError
from mosaic_wire.files import NotAPlainFile, open_plain, parse_json
from mosaic_wire.frames import fastlane_path
from mosaic_wire.ids import check_run_id
from mosaic_wire.limits import MAX_POSITION_BYTES, too_long
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto import trainer_pb2_grpc

from gym_gui import __version__
from gym_gui.logging_config.log_constants import LOG_TRAINER_ARCHIVE_REFUSED, log_code
from gym_gui.services.telemetry.hub import Parcel
from gym_gui.services.telemetry.store import Kind, TelemetryError
from gym_gui.services.trainer import archives
from gym_gui.services.trainer.auth import RUN_ID_KEY, RUN_TOKEN_KEY, SESSION_TOKEN_KEY, metadata_value
from gym_gui.services.trainer.catalog import ask_workers
from gym_gui.services.trainer.errors import (
    ArchiveRefused,
    InvalidConfig,
    InvalidTransition,
    NotAllowed,
    NotPossibleNow,
    RegistryError,
    RunNotFound,
    StaleRun,
    TrainerError,
)
from gym_gui.services.trainer.file_threads import look_at
from gym_gui.services.trainer.frame_relay import stream_frames
from gym_gui.services.trainer.fsm import RunStatus
from gym_gui.services.trainer.learning_parameters import default_seed, learning_parameters
from gym_gui.services.trainer.limits import shortage
from gym_gui.services.trainer.metrics.series import Points
from gym_gui.services.trainer.metrics.store import Folder
from gym_gui.services.trainer.records import DELETED, Headline, RunQuery, RunRecord, StoryEvent
from gym_gui.services.trainer.resources import ResourceLedger
from gym_gui.services.trainer.trainer import Trainer, check_is_own
from gym_gui.services.trainer.validation.json_document import read_config_text
from gym_gui.wording.plain_text import printable

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024
_MAX_ARCHIVE_BYTES = 64 * 2**30
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_FILTER_NAME = 100
_CURVE_POINTS = 2_000
_PAGE_RUNS, _PAGE_BYTES = 250, 4 << 20
"""What one answer of ListRuns holds at most: other calls are served between two pages"""
_BATCH, _MOST_SENT = 250, 16
_LAST_STEP = 2**62

STATUS_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (InvalidConfig, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidRunId, grpc.StatusCode.INVALID_ARGUMENT),
    (ArchiveRefused, grpc.StatusCode.INVALID_ARGUMENT),
    (RunNotFound, grpc.StatusCode.NOT_FOUND),
    (NotPossibleNow, grpc.StatusCode.FAILED_PRECONDITION),
    (StaleRun, grpc.StatusCode.FAILED_PRECONDITION),
    (InvalidTransition, grpc.StatusCode.FAILED_PRECONDITION),
    (NotAllowed, grpc.StatusCode.UNAUTHENTICATED),
    (RegistryError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (TelemetryError, grpc.StatusCode.RESOURCE_EXHAUSTED),  # the worker keeps it and tries again
    (TrainerError, grpc.StatusCode.FAILED_PRECONDITION),
)
"""First match wins."""


async def _abort(context: Any, error: Exception) -> None:
    code = next((code for kind, code in STATUS_CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    trailing: list[tuple[str, str | bytes]] = [("mosaic-error", type(error).__name__)]
    if isinstance(error, InvalidConfig):
        problems = [[problem.path, problem.message, problem.suggestion] for problem in error.problems]
        trailing.append(("mosaic-problems-bin", json.dumps(problems).encode()))
    await context.abort(code, str(error), tuple(trailing))


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    """Errors meant for people become a gRPC status; anything else is a bug, logged with its traceback."""

    def unexpected(error: Exception) -> Exception:
        if lacking := shortage(error):
            logger.warning("%s: %s", method.__name__, lacking)
            return NotPossibleNow(f"the daemon cannot do this now: {lacking}")
        logger.error("%s failed", method.__name__, exc_info=error)
        return RuntimeError(f"the daemon failed in {method.__name__} ({type(error).__name__}); its log has the details")

    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async for message in method(self, request, context):
                    yield message
            except (TrainerError, WireError) as error:
                await _abort(context, error)
            except Exception as error:  # noqa: BLE001 - the process boundary
                await _abort(context, unexpected(error))

        return stream

    @functools.wraps(method)
    async def unary(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except (TrainerError, WireError) as error:
            await _abort(context, error)
        except Exception as error:  # noqa: BLE001 - the process boundary
            await _abort(context, unexpected(error))

    return unary


class TrainerService(trainer_pb2_grpc.TrainerServiceServicer):
    """The gRPC face of the Trainer."""

    def __init__(self, trainer: Trainer, ledger: ResourceLedger, request_shutdown: Callable[[], None]) -> None:
        self._trainer, self._ledger, self._request_shutdown = trainer, ledger, request_shutdown
        self._started = time.monotonic()
        self.addresses: tuple[str, ...] = ()
        self._sent: dict[tuple[tuple[int, str], ...], pb.RunUpdate] = {}

    # ------------------------------------------------------------------ runs

    @_translated
    async def SubmitRun(self, request: pb.SubmitRunRequest, context: Any) -> pb.SubmitRunResponse:
        record, known, notes = await self._trainer.submit(
            request.config_json, request.idempotency_key, submitter=await self._submitter(context)
        )
        return pb.SubmitRunResponse(run=self._run(record), already_known=known, notes=notes)

    @_translated
    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.Run:
        run_id, _ = await self._permitted(request.run_id, context)
        return self._run(await self._trainer.cancel(run_id, request.reason))

    @_translated
    async def CancelRuns(self, request: pb.CancelRunsRequest, _context: Any) -> pb.CancelRunsResponse:
        run_ids = [check_run_id(run_id) for run_id in request.run_ids]
        return pb.CancelRunsResponse(refused=await self._trainer.cancel_many(run_ids, request.reason))

    @_translated
    async def PauseRun(self, request: pb.PauseRunRequest, _context: Any) -> pb.Run:
        return self._run(await self._trainer.pause(check_run_id(request.run_id), release=request.release))

    @_translated
    async def ResumeRun(self, request: pb.ResumeRunRequest, _context: Any) -> pb.Run:
        record = await self._trainer.resume(
            check_run_id(request.run_id),
            additional_timesteps=request.additional_timesteps,
            checkpoint=request.checkpoint,
            idempotency_key=request.idempotency_key,
        )
        return self._run(record)

    @_translated
    async def UpdateRun(self, request: pb.UpdateRunRequest, _context: Any) -> pb.Run:
        record = await self._trainer.update(
            check_run_id(request.run_id),
            name=request.name if request.HasField("name") else None,
            notes=request.notes if request.HasField("notes") else None,
            priority=request.priority if request.HasField("priority") else None,
            add_tags=tuple(request.add_tags),
            remove_tags=tuple(request.remove_tags),
        )
        return self._run(record)

    @_translated
    async def GetRun(self, request: pb.RunRequest, context: Any) -> pb.Run:
        record = await self._trainer.get((await self._permitted(request.run_id, context))[0])
        await self._trainer.learn_of_workers([record.worker_type])
        return self._run(record)

    @_translated
    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        submitter = await self._submitter(context)
        limit = min(request.limit if request.limit > 0 else _PAGE_RUNS, _PAGE_RUNS)
        query = RunQuery(
            statuses=tuple(request.statuses),
            outcomes=tuple(request.outcomes),
            tags=tuple(request.tags),
            text=request.text,
            include_archived=request.include_archived,
            limit=limit,
            run_id_prefix=request.run_id_prefix,
            submitted_by=submitter.run_id if submitter is not None else request.submitted_by,
            before_number=request.before_number,
        )
        page = await self._trainer.journal.read(self._trainer.journal.registry.list, query)
        await self._trainer.learn_of_workers({record.worker_type for record in page.runs})
        answer = pb.ListRunsResponse(matching=page.matching, last_seq=page.last_seq)
        left = _PAGE_BYTES
        for record in page.runs:
            run = self._run(record)
            answer.runs.append(run)
            if (left := left - run.ByteSize()) < 0:
                break
        is_all = len(answer.runs) == len(page.runs) and (len(page.runs) < limit or request.limit == limit)
        if not is_all:
            answer.next_before = answer.runs[-1].number
        return answer

    @_translated
    async def WatchRuns(self, request: pb.WatchRunsRequest, context: Any) -> AsyncIterator[pb.RunUpdate]:
        journal, run_id = self._trainer.journal, ""
        if request.run_id:
            run_id, submitted_by = await self._permitted(request.run_id, context)
            await self._trainer.get(run_id)  # nothing would ever be told of a run that is not there
        else:
            submitter = await self._submitter(context)
            submitted_by = submitter.run_id if submitter is not None else ""
        if request.since_seq > (last := await journal.read(journal.registry.last_seq)):
            raise NotPossibleNow(
                f"event {request.since_seq} has not happened, the last event here is {last}; list the runs again"
            )
        # Before the replay, so that nothing falls between the two.
        watcher = journal.watch(run_id, submitted_by=submitted_by)
        seen = request.since_seq
        try:
            if request.since_seq:
                async for event, record in self._replay(seen, run_id):
                    seen = event.seq
                    if submitted_by in ("", record.submitted_by):
                        yield pb.RunUpdate(run=self._run(record), event=_story_event(event))
            while not watcher.overflowed:
                current, live = await watcher.get()
                if live is None:
                    yield pb.RunUpdate(run=self._run(current))
                    continue
                news = [(current, live), *(watcher.waiting(_BATCH - 1) if request.batches else ())]
                news = [(record, event) for record, event in news if event.seq > seen or event.kind == DELETED]
                if news:
                    yield self._updates(news)
            raise NotPossibleNow("this client fell too far behind; list the runs again and watch from there")
        finally:
            journal.unwatch(watcher)

    def _updates(self, news: Sequence[tuple[RunRecord, StoryEvent]]) -> pb.RunUpdate:
        """One message for news that wait together; many watchers get the same ones, so it is made once."""
        key = tuple((event.seq, event.run_id) for _, event in news)
        if (known := self._sent.get(key)) is None:
            first, *more = (pb.RunUpdate(run=self._run(record), event=_story_event(event)) for record, event in news)
            first.more.extend(more)
            known = self._sent[key] = first
            while len(self._sent) > _MOST_SENT:
                del self._sent[next(iter(self._sent))]
        return known

    async def _replay(self, since_seq: int, run_id: str) -> AsyncIterator[tuple[StoryEvent, RunRecord]]:
        registry, read = self._trainer.journal.registry, self._trainer.journal.read
        while events := await read(registry.events_since, since_seq, run_id=run_id):
            for event in events:
                since_seq = event.seq
                try:
                    yield event, await read(registry.get, event.run_id)
                except RunNotFound:  # deleted since
                    continue

    @_translated
    async def GetStory(self, request: pb.GetStoryRequest, _context: Any) -> pb.GetStoryResponse:
        await self._trainer.get(check_run_id(request.run_id))
        registry = self._trainer.journal.registry
        events = await self._trainer.journal.read(registry.story, request.run_id, request.since_seq)
        return pb.GetStoryResponse(events=[_story_event(event) for event in events])

    @_translated
    async def StreamRunLogs(self, request: pb.StreamRunLogsRequest, _context: Any) -> AsyncIterator[pb.LogChunk]:
        path = self._log_path(check_run_id(request.run_id), request.stream or "stdout")
        offset = 0
        if request.tail_bytes < 0:
            raise NotPossibleNow(f"cannot show the last {request.tail_bytes} bytes; give a number from 0")
        if request.tail_bytes:
            offset = max(0, await look_at(_size_of, path) - request.tail_bytes)
        watcher = self._trainer.journal.watch(request.run_id)
        try:
            # Looked at when its changes are watched already: the end must not fall between the two.
            record = await self._trainer.get(request.run_id)
            while True:
                over = record.status is RunStatus.TERM
                while data := await look_at(self._read_log, request.run_id, path, offset):
                    yield pb.LogChunk(data=data, offset=offset)
                    offset += len(data)
                if not request.follow or over:
                    return
                # The worker's next sign of life, or half a second: output comes between heartbeats too.
                try:
                    async with asyncio.timeout(0.5):
                        record, _ = await watcher.get()
                except TimeoutError:
                    if await look_at(_size_of, path) < offset:
                        offset = 0  # it outgrew its cap and was cut
        finally:
            self._trainer.journal.unwatch(watcher)

    def _read_log(self, run_id: str, path: Path, offset: int) -> bytes:
        """Read on in a log; of a live run only what was written before its secrets were blotted out."""
        supervisor = self._trainer.dispatcher.supervisors.get(run_id)
        if supervisor is None:
            return _read_at(path, offset)
        size = _size_of(path)
        supervisor.clean(path)
        return _read_at(path, offset)[: max(0, size - offset)]

    def _log_path(self, run_id: str, stream: str) -> Path:
        home = self._trainer.home
        places = {
            "stdout": home.run_logs(run_id) / "stdout.log",
            "stderr": home.run_logs(run_id) / "stderr.log",
            "training_stdout": home.run_folder(run_id).logs / "stdout.log",
            "training_stderr": home.run_folder(run_id).logs / "stderr.log",
        }
        if stream not in places:
            raise NotPossibleNow(f"there is no log {stream!r}; a run has {', '.join(places)}")
        return places[stream]

    @_translated
    async def ListRunMetrics(self, request: pb.RunRequest, context: Any) -> pb.ListRunMetricsResponse:
        await self._trainer.get((await self._permitted(request.run_id, context))[0])
        tags = await self._trainer.metrics.tags(request.run_id)
        return pb.ListRunMetricsResponse(
            tags=[
                pb.MetricTag(tag=tag, points=points, last_step=step, last_value=value)
                for tag, (points, step, value) in tags.items()
            ]
        )

    @_translated
    async def StreamRunMetrics(self, request: pb.StreamRunMetricsRequest, context: Any) -> AsyncIterator[pb.RunMetrics]:
        run_id, _ = await self._permitted(request.run_id, context)
        await self._trainer.get(run_id)
        supervisors = self._trainer.dispatcher.supervisors
        curves = self._trainer.metrics.stream(
            run_id,
            tuple(request.tags),
            first_step=request.since_step,
            last_step=request.until_step if request.HasField("until_step") else _LAST_STEP,
            most=request.max_points or _CURVE_POINTS,
            means=request.means,
            follow=lambda: request.follow and run_id in supervisors,
        )
        async for news in curves:
            yield pb.RunMetrics(
                curves=[
                    pb.MetricCurve(
                        tag=curve.tag,
                        steps=curve.points.steps,
                        wall_times=curve.points.times,
                        values=curve.points.values,
                        total=curve.total,
                        is_reset=curve.is_reset,
                    )
                    for curve in news
                ]
            )

    @_translated
    async def StreamFrames(self, request: pb.StreamFramesRequest, _context: Any) -> AsyncIterator[pb.RunFrame]:
        run_id = check_run_id(request.run_id)
        await self._trainer.get(run_id)
        supervisors = self._trainer.dispatcher.supervisors
        frames = stream_frames(
            fastlane_path(run_id),
            max_fps=request.max_fps,
            max_side=request.max_side,
            encoding=request.encoding,
            is_live=lambda: run_id in supervisors,
        )
        async for frame in frames:
            yield frame

    @_translated
    async def StreamRunSteps(self, request: pb.StreamTelemetryRequest, _context: Any) -> AsyncIterator[pb.RunSteps]:
        async for parcel in self._telemetry(request, "steps"):
            yield pb.RunSteps(
                steps=parcel.messages, skipped=parcel.skipped, control=parcel.control or "", total=parcel.total
            )

    @_translated
    async def StreamRunEpisodes(
        self, request: pb.StreamTelemetryRequest, _context: Any
    ) -> AsyncIterator[pb.RunEpisodes]:
        async for parcel in self._telemetry(request, "episodes"):
            yield pb.RunEpisodes(
                episodes=parcel.messages, skipped=parcel.skipped, control=parcel.control or "", total=parcel.total
            )

    async def _telemetry(self, request: pb.StreamTelemetryRequest, kind: Kind) -> AsyncIterator[Parcel]:
        run_id = check_run_id(request.run_id)
        await self._trainer.get(run_id)
        stream = self._trainer.telemetry.stream(
            run_id,
            kind,
            request.since_seq,
            episode=request.episode if request.HasField("episode") else None,
            follow=request.follow and run_id in self._trainer.dispatcher.supervisors,
        )
        async for parcel in stream:
            yield parcel

    # ------------------------------------------------------------------ keeping and removing

    @_translated
    async def ArchiveRun(self, request: pb.ArchiveRunRequest, _context: Any) -> pb.Run:
        return self._run(await self._trainer.archive(check_run_id(request.run_id), archived=request.archived))

    @_translated
    async def DeleteRun(self, request: pb.RunRequest, _context: Any) -> pb.DeleteRunResponse:
        return pb.DeleteRunResponse(freed_bytes=await self._trainer.delete(check_run_id(request.run_id)))

    @_translated
    async def ExportRun(self, request: pb.RunRequest, _context: Any) -> AsyncIterator[pb.ArchiveChunk]:
        path = await self._trainer.export(check_run_id(request.run_id))
        try:
            offset = 0
            while data := await asyncio.to_thread(_read_at, path, offset):
                yield pb.ArchiveChunk(data=data)
                offset += len(data)
        finally:
            path.unlink(missing_ok=True)

    @_translated
    async def ImportRun(self, chunks: AsyncIterator[pb.ArchiveChunk], _context: Any) -> pb.Run:
        folder = self._trainer.home.trainer
        descriptor, name = tempfile.mkstemp(prefix=archives.UPLOAD_PREFIX, suffix=".tar.gz", dir=folder)
        path, received = Path(name), 0
        try:
            with os.fdopen(descriptor, "wb") as stream:
                async for chunk in chunks:
                    if not received and not _GZIP_MAGIC.startswith(chunk.data[:2]):
                        raise ArchiveRefused("the archive is not a sound .tar.gz: it does not begin like one")
                    received += len(chunk.data)
                    if received > _MAX_ARCHIVE_BYTES:
                        raise ArchiveRefused(f"the archive is larger than {_MAX_ARCHIVE_BYTES >> 30} GiB")
                    await asyncio.to_thread(self._expect_room_for, len(chunk.data))
                    await asyncio.to_thread(stream.write, chunk.data)
            return self._run(await self._trainer.import_archive(path))
        except ArchiveRefused as error:
            log_code(logger, LOG_TRAINER_ARCHIVE_REFUSED, str(error))
            raise
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def _expect_room_for(self, size: int) -> None:
        """Raise ArchiveRefused when so many bytes of an upload would take from what the runs' disk is to keep free."""
        home, reserve_mb = self._trainer.home.root, self._trainer.settings.min_free_disk_mb
        if shutil.disk_usage(home).free - size < reserve_mb << 20:
            raise ArchiveRefused(
                f"there is no room for the archive: {reserve_mb} MB are to stay free under {home}; "
                "make some and import again"
            )

    # ------------------------------------------------------------------ the daemon

    @_translated
    async def ListWorkers(self, request: pb.ListWorkersRequest, _context: Any) -> pb.ListWorkersResponse:
        catalog = self._trainer.catalog
        if request.refresh:
            await ask_workers(catalog.refresh)
        entries = await ask_workers(catalog.entries)
        return pb.ListWorkersResponse(
            workers=[
                pb.Worker(
                    name=entry.name,
                    display_name=printable(entry.display_name),
                    version=printable(entry.version),
                    origin=entry.origin,
                    spec_json=json.dumps(entry.spec.to_json()) if entry.spec is not None else "",
                    problem=printable(entry.problem),
                )
                for entry in entries
                if request.name in ("", entry.name)
            ]
        )

    @_translated
    async def SaveFilter(self, request: pb.SavedFilter, _context: Any) -> pb.SavedFilter:
        if not 0 < len(request.name) <= _MAX_FILTER_NAME or not request.name.isprintable():
            raise NotPossibleNow(f"a filter needs a name of 1 to {_MAX_FILTER_NAME} printable characters")
        try:
            query = read_config_text(request.query_json or "{}")
        except InvalidConfig as error:
            raise NotPossibleNow(f"the filter {request.name!r} cannot be kept: {error.problems[0]}") from error
        registry = self._trainer.journal.registry
        await self._trainer.journal.read(registry.save_filter, request.name, query)
        return request

    @_translated
    async def ListFilters(self, _request: pb.ListFiltersRequest, _context: Any) -> pb.ListFiltersResponse:
        filters = await self._trainer.journal.read(self._trainer.journal.registry.filters)
        saved = [pb.SavedFilter(name=name, query_json=json.dumps(query)) for name, query in filters.items()]
        return pb.ListFiltersResponse(filters=saved)

    @_translated
    async def DeleteFilter(self, request: pb.DeleteFilterRequest, _context: Any) -> pb.DeleteFilterResponse:
        await self._trainer.journal.read(self._trainer.journal.registry.remove_filter, request.name)
        return pb.DeleteFilterResponse()

    @_translated
    async def GetHealth(self, _request: pb.GetHealthRequest, _context: Any) -> pb.Health:
        trainer, free, inventory = self._trainer, self._ledger.free(), self._ledger.inventory
        return pb.Health(
            version=__version__,
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            home=str(trainer.home.root),
            addresses=self.addresses,
            uptime_s=time.monotonic() - self._started,
            queued=len(trainer.dispatcher.queue),
            running=len(trainer.dispatcher.supervisors),
            cpus_total=inventory.cpus,
            cpus_free=free.cpus,
            memory_mb_total=inventory.memory_mb,
            memory_mb_available=psutil.virtual_memory().available >> 20,
            disk_mb_free=psutil.disk_usage(str(trainer.home.root)).free >> 20,
            gpus=[
                pb.Gpu(
                    id=gpu.id, name=gpu.name, memory_mb=gpu.memory_mb, reserved_by=self._ledger.holder_of(gpu.id) or ""
                )
                for gpu in inventory.gpus
            ],
            trouble=trainer.journal.trouble,
            last_seq=await trainer.journal.read(trainer.journal.registry.last_seq),
        )

    @_translated
    async def Shutdown(self, _request: pb.ShutdownRequest, _context: Any) -> pb.ShutdownResponse:
        self._request_shutdown()
        return pb.ShutdownResponse(running=len(self._trainer.dispatcher.supervisors))

    # ------------------------------------------------------------------ workers

    @_translated
    async def RegisterWorker(self, request: pb.RegisterWorkerRequest, context: Any) -> pb.RegisterWorkerResponse:
        token = await self._trainer.register(
            check_run_id(request.run_id),
            metadata_value(context.invocation_metadata(), RUN_TOKEN_KEY),
            attempt=request.attempt,
            protocol_version=request.protocol_version,
            instance=request.instance,
            capabilities_json=request.capabilities_json,
            algo=request.algo,
            env_id=request.env_id,
            extras_json=request.extras_json,
        )
        return pb.RegisterWorkerResponse(session_token=token, heartbeat_s=self._trainer.settings.heartbeat_s)

    @_translated
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        optional = {
            name: getattr(request, name) if request.HasField(name) else None
            for name in ("episodic_return", "sps", "seconds_since_step")
        }
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        headline = Headline(step=request.step, total=request.total, **optional)
        await self._trainer.heartbeat(check_run_id(request.run_id), token, headline, request.lifecycle_seq)
        return pb.HeartbeatResponse()

    @_translated
    async def ControlStream(self, request: pb.ControlStreamRequest, context: Any) -> AsyncIterator[pb.ControlCommand]:
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        supervisor = await self._trainer.worker_session(check_run_id(request.run_id), token)
        commands = supervisor.controls()
        while True:
            yield await commands.get()

    @_translated
    async def PublishRunMetrics(
        self, request: pb.PublishRunMetricsRequest, context: Any
    ) -> pb.PublishRunMetricsResponse:
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        supervisor = await self._trainer.worker_session(check_run_id(request.run_id), token)
        answer = await self._trainer.metrics.publish(
            request.run_id,
            [_metric_folder(folder) for folder in request.folders],
            _position(request.before_json),
            _position(request.after_json),
        )
        if answer.accepted:
            supervisor.heard_metrics(answer.headline, answer.last_step)
        is_watched = self._trainer.journal.is_watched(request.run_id, supervisor.record.submitted_by)
        return pb.PublishRunMetricsResponse(
            accepted=answer.accepted,
            position_json="" if answer.position is None else json.dumps(answer.position),
            credits=answer.credits,
            retry_after_s=answer.retry_after_s,
            interval_s=self._trainer.metrics.wanted_interval_s(request.run_id, watched=is_watched),
        )

    @_translated
    async def PublishRunSteps(self, request: pb.PublishRunStepsRequest, context: Any) -> pb.PublishTelemetryResponse:
        return await self._publish_telemetry(request.run_id, "steps", request.steps, context)

    @_translated
    async def PublishRunEpisodes(
        self, request: pb.PublishRunEpisodesRequest, context: Any
    ) -> pb.PublishTelemetryResponse:
        return await self._publish_telemetry(request.run_id, "episodes", request.episodes, context)

    async def _publish_telemetry(
        self, run_id: str, kind: Kind, messages: Sequence[Any], context: Any
    ) -> pb.PublishTelemetryResponse:
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        receipt = await self._trainer.publish_telemetry(check_run_id(run_id), token, kind, messages)
        return pb.PublishTelemetryResponse(
            stored_seq=receipt.stored_seq, credits=receipt.credits, next_episode=receipt.next_episode
        )

    async def _submitter(self, context: Any) -> RunRecord | None:
        """The run whose worker calls; None: it is a client, whose token was checked at the door."""
        metadata = context.invocation_metadata()
        if not (token := metadata_value(metadata, SESSION_TOKEN_KEY)):
            return None
        return await self._trainer.submitter(metadata_value(metadata, RUN_ID_KEY), token)

    async def _permitted(self, run_id: str, context: Any) -> tuple[str, str]:
        """A run that the caller may look at and steer, and the run whose worker the caller is, if it is one."""
        check_run_id(run_id)
        if (submitter := await self._submitter(context)) is None:
            return run_id, ""
        check_is_own(submitter.run_id, await self._trainer.get(run_id))
        return run_id, submitter.run_id

    # ------------------------------------------------------------------ translation

    def _run(self, record: RunRecord) -> pb.Run:
        home = self._trainer.home
        live = self._trainer.dispatcher.supervisors.get(record.run_id)
        if live is not None and live.record.event_seq == record.event_seq:
            record = live.record  # its headline is newer than the stored one
        queue_reason = self._trainer.dispatcher.waiting_reason(record.run_id) if record.status is RunStatus.INIT else ""
        flow = {
            "throttled": self._trainer.metrics.is_throttled(record.run_id),
            "starved": self._trainer.telemetry.is_starved(record.run_id),
        }
        flags = (*record.flags, *(flag for flag, holds in flow.items() if holds))
        seed, learning = record.seed, ""
        if (spec := self._trainer.catalog.known(record.worker_type)) is not None:
            learning = json.dumps(learning_parameters(spec, record.algo, record.extras))
            seed = default_seed(spec, record.algo, record.extras) if seed is None else seed
        run = pb.Run(
            run_id=record.run_id, number=record.number, status=record.status, outcome=record.outcome or "",
            reason=record.reason, name=record.name, worker_type=record.worker_type, worker_id=record.worker_id,
            algo=record.algo, env_id=record.env_id, seed=seed, step=record.step, total=record.total,
            episodic_return=record.episodic_return, sps=record.sps, seconds_since_step=record.seconds_since_step,
            result_json=json.dumps(record.result) if record.result is not None else "", priority=record.priority,
            tags=record.tags, notes=record.notes, archived=record.archived, flags=flags,
            queue_reason=queue_reason, created_at=record.created_at, started_at=record.started_at or 0.0,
            finished_at=record.finished_at or 0.0, cpus=record.cpus, gpus=record.gpus, gpu_ids=record.gpu_ids,
            memory_mb=record.memory_mb or 0, max_wallclock_minutes=record.max_wallclock_minutes or 0.0,
            attempt=record.attempt, retries=record.retries, pid=record.pid,
            run_dir=str(home.run_folder(record.run_id).root), logs_dir=str(home.run_logs(record.run_id)),
            size_bytes=record.size_bytes, protocol_version=record.protocol_version,
            capabilities_json=json.dumps(record.capabilities) if record.capabilities else "",
            extras_json=json.dumps(record.extras) if record.extras else "", event_seq=record.event_seq,
            learning_json=learning, metrics=record.metrics, eta_s=_eta_s(record), submitted_by=record.submitted_by,
        )  # fmt: skip
        if record.parent is not None:
            parent = record.parent
            run.step = max(run.step, parent.step)  # what it begins with, until its worker reports
            run.parent.CopyFrom(pb.ParentRun(run_id=parent.run_id, step=parent.step, sha256=parent.sha256))
        return run


def _eta_s(record: RunRecord) -> float | None:
    if record.status is not RunStatus.EXEC or not record.sps or record.total <= record.step:
        return None
    return (record.total - record.step) / record.sps


def _position(text: str) -> Any:
    if len(text) > MAX_POSITION_BYTES:
        raise NotPossibleNow(too_long("a position in event files", len(text), MAX_POSITION_BYTES, "bytes"))
    try:
        return parse_json(text) if text else None
    except ValueError as error:
        raise NotPossibleNow(f"this is no position in event files: {text[:80]!r}") from error


def _metric_folder(folder: pb.MetricFolder) -> Folder:
    columns = {}
    for column in folder.columns:
        if not len(column.steps) == len(column.wall_times) == len(column.values):
            raise NotPossibleNow(f"the columns of {column.tag[:80]!r} differ in length")
        columns[column.tag] = Points(array("q", column.steps), array("d", column.wall_times), array("d", column.values))
    drop_from = folder.drop_from if folder.HasField("drop_from") else None
    return Folder(folder.folder, folder.is_reset, drop_from, columns)


def _story_event(event: StoryEvent) -> pb.StoryEvent:
    return pb.StoryEvent(
        seq=event.seq,
        run_id=event.run_id,
        timestamp=event.timestamp,
        kind=event.kind,
        from_status=event.from_status or "",
        to_status=event.to_status or "",
        reason=event.reason,
        payload_json=json.dumps(event.payload) if event.payload else "",
        attempt=event.attempt,
    )


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def _read_at(path: Path, offset: int) -> bytes:
    try:
        with open_plain(path) as stream:
            stream.seek(offset)
            return stream.read(_CHUNK_BYTES)
    except FileNotFoundError:
        return b""
    except NotAPlainFile as error:
        raise NotPossibleNow(f"{path} cannot be shown: {error.strerror}") from error
