"""The gRPC service: translates protobuf to Python and back."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

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
from gym_gui.services.trainer import archives
from gym_gui.services.trainer.auth import RUN_ID_KEY, RUN_TOKEN_KEY, SESSION_TOKEN_KEY, metadata_value
from gym_gui.services.trainer.catalog import default_seed, learning_parameters, run_in_catalog
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
from gym_gui.services.trainer.executors.contract import Node
from gym_gui.services.trainer.file_threads import run_long_io, run_quick_io
from gym_gui.services.trainer.frame_relay import stream_frames
from gym_gui.services.trainer.fsm import RunStatus
from gym_gui.services.trainer.limits import shortage
from gym_gui.services.trainer.metrics.series import Points
from gym_gui.services.trainer.metrics.store import Folder
from gym_gui.services.trainer.programs import argv_of, run_program
from gym_gui.services.trainer.records import DELETED, LOCAL, HistoryEvent, RunQuery, RunRecord, RunStatistics
from gym_gui.services.trainer.resources import ResourceLedger
from gym_gui.services.trainer.run_files import RunFileReader, list_run_files
from gym_gui.services.trainer.run_supervisor import RunSupervisor
from gym_gui.services.trainer.streams import Kind, TelemetryError
from gym_gui.services.trainer.trainer import Trainer, check_is_own
from gym_gui.services.trainer.validation.json_document import read_config_text
from gym_gui.wording.formats import printable

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024
_MAX_ARCHIVE_BYTES = 64 * 2**30
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_FILTER_NAME = 100
_CURVE_POINTS = 2_000
_PAGE_RUNS, _PAGE_BYTES = 250, 4 << 20
"""Limits of one ListRuns answer, so that other calls are served between two pages"""
_BATCH, _MAX_SENT = 250, 16
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
    (TelemetryError, grpc.StatusCode.RESOURCE_EXHAUSTED),  # the worker keeps the messages and retries
    (TrainerError, grpc.StatusCode.FAILED_PRECONDITION),
)
"""The first match counts"""


async def _abort(context: Any, error: Exception) -> None:
    code = next((code for kind, code in STATUS_CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    trailing: list[tuple[str, str | bytes]] = [("mosaic-error", type(error).__name__)]
    if isinstance(error, InvalidConfig):
        problems = [[problem.path, problem.message, problem.suggestion] for problem in error.problems]
        trailing.append(("mosaic-problems-bin", json.dumps(problems).encode()))
    await context.abort(code, str(error), tuple(trailing))


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an RPC: expected errors become a gRPC status, others are logged with their traceback."""

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


def _translate_errors(service: type[T]) -> type[T]:
    """Wrap every RPC of the service with `_translated`."""
    for name, method in [*vars(service).items()]:
        if name[0].isupper():
            setattr(service, name, _translated(method))
    return service


def _given(request: Any, *names: str) -> dict[str, Any]:
    """Return optional fields of a message; None for those that were not given."""
    return {name: getattr(request, name) if request.HasField(name) else None for name in names}


@_translate_errors
class TrainerService(trainer_pb2_grpc.TrainerServiceServicer):
    """The gRPC interface of the Trainer."""

    def __init__(self, trainer: Trainer, ledger: ResourceLedger, request_shutdown: Callable[[], None]) -> None:
        self._trainer, self._ledger, self._request_shutdown = trainer, ledger, request_shutdown
        self._started = time.monotonic()
        self.addresses: tuple[str, ...] = ()
        self._sent: dict[tuple[tuple[int, str], ...], pb.RunUpdate] = {}

    # ------------------------------------------------------------------ runs

    async def SubmitRun(self, request: pb.SubmitRunRequest, context: Any) -> pb.SubmitRunResponse:
        """Queue a run."""
        record, known, notes = await self._trainer.submit(
            request.config_json, request.idempotency_key, submitter=await self._submitter(context)
        )
        return pb.SubmitRunResponse(run=self._run(record), already_known=known, notes=notes)

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.Run:
        """Cancel a run."""
        run_id, _ = await self._permitted(request.run_id, context)
        return self._run(await self._trainer.cancel(run_id, request.reason))

    async def CancelRuns(self, request: pb.CancelRunsRequest, _context: Any) -> pb.CancelRunsResponse:
        """Cancel several runs."""
        run_ids = [check_run_id(run_id) for run_id in request.run_ids]
        return pb.CancelRunsResponse(refused=await self._trainer.cancel_many(run_ids, request.reason))

    async def PauseRun(self, request: pb.PauseRunRequest, _context: Any) -> pb.Run:
        """Pause a run, or release its resources."""
        return self._run(await self._trainer.pause(check_run_id(request.run_id), release=request.release))

    async def ResumeRun(self, request: pb.ResumeRunRequest, _context: Any) -> pb.Run:
        """Resume a paused or finished run."""
        record = await self._trainer.resume(
            check_run_id(request.run_id),
            additional_timesteps=request.additional_timesteps,
            checkpoint=request.checkpoint,
            idempotency_key=request.idempotency_key,
        )
        return self._run(record)

    async def UpdateRun(self, request: pb.UpdateRunRequest, _context: Any) -> pb.Run:
        """Change name, notes, tags or priority."""
        record = await self._trainer.update(
            check_run_id(request.run_id),
            **_given(request, "name", "notes", "priority"),
            add_tags=tuple(request.add_tags),
            remove_tags=tuple(request.remove_tags),
        )
        return self._run(record)

    async def GetRun(self, request: pb.RunRequest, context: Any) -> pb.Run:
        """Return a run."""
        record = await self._trainer.get((await self._permitted(request.run_id, context))[0])
        await self._trainer.load_workers([record.worker_type])
        return self._run(record)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        """Return the runs that match, newest first."""
        submitter = await self._submitter(context)
        limit = min(request.limit if request.limit > 0 else _PAGE_RUNS, _PAGE_RUNS)
        several: dict[str, Any] = {name: tuple(getattr(request, name)) for name in ("statuses", "outcomes", "tags")}
        query = RunQuery(
            **several,
            text=request.text,
            include_archived=request.include_archived,
            run_id_prefix=request.run_id_prefix,
            before_number=request.before_number,
            limit=limit,
            submitted_by=submitter.run_id if submitter is not None else request.submitted_by,
        )
        page = await self._trainer.journal.read(self._trainer.journal.registry.list, query)
        await self._trainer.load_workers({record.worker_type for record in page.runs})
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

    async def WatchRuns(self, request: pb.WatchRunsRequest, context: Any) -> AsyncIterator[pb.RunUpdate]:
        """Stream events and newer statistics of runs."""
        journal, run_id = self._trainer.journal, ""
        if request.run_id:
            run_id, submitted_by = await self._permitted(request.run_id, context)
            await self._trainer.get(run_id)  # an unknown run would never produce an update
        else:
            submitter = await self._submitter(context)
            submitted_by = submitter.run_id if submitter is not None else ""
        if request.since_seq > (last := await journal.read(journal.registry.last_seq)):
            raise NotPossibleNow(
                f"event {request.since_seq} does not exist; the last event is {last}. List the runs again"
            )
        # Subscribe before the replay, so that no event is missed.
        watcher = journal.watch(run_id, submitted_by=submitted_by)
        seen = request.since_seq
        try:
            if request.since_seq:
                async for event, record in self._replay(seen, run_id):
                    seen = event.seq
                    if submitted_by in ("", record.submitted_by):
                        yield pb.RunUpdate(run=self._run(record), event=_event_message(event))
            while not watcher.overflowed:
                current, live = await watcher.get()
                if live is None:
                    yield pb.RunUpdate(run=self._run(current))
                    continue
                updates = [(current, live), *(watcher.waiting(_BATCH - 1) if request.batches else ())]
                updates = [(record, event) for record, event in updates if event.seq > seen or event.kind == DELETED]
                if updates:
                    yield self._batch(updates)
            raise NotPossibleNow("this client fell too far behind; list the runs again and watch from there")
        finally:
            journal.unwatch(watcher)

    def _batch(self, updates: Sequence[tuple[RunRecord, HistoryEvent]]) -> pb.RunUpdate:
        """Return one message for several updates, built once for all watchers."""
        key = tuple((event.seq, event.run_id) for _, event in updates)
        if (known := self._sent.get(key)) is None:
            first, *more = (
                pb.RunUpdate(run=self._run(record), event=_event_message(event)) for record, event in updates
            )
            first.more.extend(more)
            known = self._sent[key] = first
            while len(self._sent) > _MAX_SENT:
                del self._sent[next(iter(self._sent))]
        return known

    async def _replay(self, since_seq: int, run_id: str) -> AsyncIterator[tuple[HistoryEvent, RunRecord]]:
        registry, read = self._trainer.journal.registry, self._trainer.journal.read
        while events := await read(registry.events_since, since_seq, run_id=run_id):
            for event in events:
                since_seq = event.seq
                try:
                    yield event, await read(registry.get, event.run_id)
                except RunNotFound:  # deleted since
                    continue

    async def GetStory(self, request: pb.GetStoryRequest, _context: Any) -> pb.GetStoryResponse:
        """Return the history of a run."""
        await self._trainer.get(check_run_id(request.run_id))
        registry = self._trainer.journal.registry
        events = await self._trainer.journal.read(registry.history, request.run_id, request.since_seq)
        return pb.GetStoryResponse(events=[_event_message(event) for event in events])

    async def StreamRunLogs(self, request: pb.StreamRunLogsRequest, _context: Any) -> AsyncIterator[pb.LogChunk]:
        """Stream a log of a run."""
        path = self._log_path(check_run_id(request.run_id), request.stream or "stdout")
        offset = 0
        if request.tail_bytes < 0:
            raise NotPossibleNow(f"cannot show the last {request.tail_bytes} bytes; give a number from 0")
        if request.tail_bytes:
            offset = max(0, await run_quick_io(_size_of, path) - request.tail_bytes)
        watcher = self._trainer.journal.watch(request.run_id)
        try:
            # Read after subscribing, so that the end of the run is not missed.
            record = await self._trainer.get(request.run_id)
            while True:
                over = record.status is RunStatus.TERM
                while data := await run_quick_io(self._read_log, request.run_id, path, offset):
                    yield pb.LogChunk(data=data, offset=offset)
                    offset += len(data)
                if not request.follow or over:
                    return
                # Wait for the next update, but at most half a second: output also arrives between heartbeats.
                try:
                    async with asyncio.timeout(0.5):
                        record, _ = await watcher.get()
                except TimeoutError:
                    if await run_quick_io(_size_of, path) < offset:
                        offset = 0  # it outgrew its cap and was truncated
        finally:
            self._trainer.journal.unwatch(watcher)

    def _read_log(self, run_id: str, path: Path, offset: int) -> bytes:
        """Return a log from an offset on; of a live run only what was written before its secrets were redacted."""
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

    async def ListRunFiles(self, request: pb.ListRunFilesRequest, _context: Any) -> pb.ListRunFilesResponse:
        """Return the files of a run."""
        await self._trainer.get(check_run_id(request.run_id))
        home, patterns = self._trainer.home, tuple(request.patterns)
        files, is_cut = await run_long_io(list_run_files, home, request.run_id, patterns)
        listed = [pb.RunFile(path=file.path, size=file.size, modified_ns=file.modified_ns) for file in files]
        return pb.ListRunFilesResponse(files=listed, is_cut=is_cut)

    async def ReadRunFiles(self, request: pb.ReadRunFilesRequest, _context: Any) -> AsyncIterator[pb.FilePiece]:
        """Stream files of a run in pieces."""
        await self._trainer.get(check_run_id(request.run_id))
        for requested in request.files:
            try:
                async for piece in self._file_pieces(request.run_id, requested.path, requested.offset):
                    yield piece
            except (OSError, NotPossibleNow) as error:
                yield pb.FilePiece(path=requested.path, problem=getattr(error, "strerror", None) or str(error))

    async def _file_pieces(self, run_id: str, path: str, offset: int) -> AsyncIterator[pb.FilePiece]:
        reader = await run_quick_io(self._open_file, run_id, path, offset)
        try:
            while True:
                begin = reader.offset
                data = await run_quick_io(reader.read)
                yield pb.FilePiece(
                    path=path,
                    offset=begin,
                    data=data,
                    size=reader.size,
                    modified_ns=reader.modified_ns,
                    sha256=reader.sha256,
                )
                if reader.sha256:
                    return
        finally:
            reader.close()

    def _open_file(self, run_id: str, path: str, offset: int) -> RunFileReader:
        """Open a file; of a log of a live run only what was written before its secrets were redacted is read."""
        reader = RunFileReader(self._trainer.home, run_id, path, offset)
        supervisor = self._trainer.dispatcher.supervisors.get(run_id)
        if supervisor is not None and path.endswith(".log"):
            supervisor.clean(reader.path)
        return reader

    async def ListRunMetrics(self, request: pb.RunRequest, context: Any) -> pb.ListRunMetricsResponse:
        """Return the tags of a run's curves."""
        await self._trainer.get((await self._permitted(request.run_id, context))[0])
        tags = await self._trainer.metrics.tags(request.run_id)
        return pb.ListRunMetricsResponse(
            tags=[
                pb.MetricTag(tag=tag, points=points, last_step=step, last_value=value)
                for tag, (points, step, value) in tags.items()
            ]
        )

    async def StreamRunMetrics(self, request: pb.StreamRunMetricsRequest, context: Any) -> AsyncIterator[pb.RunMetrics]:
        """Stream curves of a run."""
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
        async for updates in curves:
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
                    for curve in updates
                ]
            )

    async def StreamFrames(self, request: pb.StreamFramesRequest, _context: Any) -> AsyncIterator[pb.RunFrame]:
        """Stream the frames that a run renders."""
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

    async def StreamRunSteps(self, request: pb.StreamTelemetryRequest, _context: Any) -> AsyncIterator[pb.RunSteps]:
        """Stream the steps of a run."""
        async for messages, about in self._telemetry(request, "steps"):
            yield pb.RunSteps(steps=messages, **about)

    async def StreamRunEpisodes(
        self, request: pb.StreamTelemetryRequest, _context: Any
    ) -> AsyncIterator[pb.RunEpisodes]:
        """Stream the episodes of a run."""
        async for messages, about in self._telemetry(request, "episodes"):
            yield pb.RunEpisodes(episodes=messages, **about)

    async def _telemetry(
        self, request: pb.StreamTelemetryRequest, kind: Kind
    ) -> AsyncIterator[tuple[list[Any], dict[str, Any]]]:
        run_id = check_run_id(request.run_id)
        await self._trainer.get(run_id)
        stream = self._trainer.telemetry.stream(
            run_id,
            kind,
            request.since_seq,
            **_given(request, "episode"),
            follow=request.follow and run_id in self._trainer.dispatcher.supervisors,
        )
        async for batch in stream:
            about = {"skipped": batch.skipped, "control": batch.control or "", "total": batch.total}
            yield batch.messages, about

    # ------------------------------------------------------------------ archiving and deleting

    async def ArchiveRun(self, request: pb.ArchiveRunRequest, _context: Any) -> pb.Run:
        """Hide a run from listings, or show it again."""
        return self._run(await self._trainer.archive(check_run_id(request.run_id), archived=request.archived))

    async def DeleteRun(self, request: pb.RunRequest, _context: Any) -> pb.DeleteRunResponse:
        """Delete a run and its files."""
        return pb.DeleteRunResponse(freed_bytes=await self._trainer.delete(check_run_id(request.run_id)))

    async def ExportRun(self, request: pb.RunRequest, _context: Any) -> AsyncIterator[pb.ArchiveChunk]:
        """Stream a run as an archive."""
        path = await self._trainer.export(check_run_id(request.run_id))
        try:
            offset = 0
            while data := await asyncio.to_thread(_read_at, path, offset):
                yield pb.ArchiveChunk(data=data)
                offset += len(data)
        finally:
            path.unlink(missing_ok=True)

    async def ImportRun(self, chunks: AsyncIterator[pb.ArchiveChunk], _context: Any) -> pb.Run:
        """Store a run from an archive."""
        folder = self._trainer.home.trainer
        descriptor, name = tempfile.mkstemp(prefix=archives.UPLOAD_PREFIX, suffix=".tar.gz", dir=folder)
        path, received = Path(name), 0
        try:
            with os.fdopen(descriptor, "wb") as stream:
                async for chunk in chunks:
                    if not received and not _GZIP_MAGIC.startswith(chunk.data[:2]):
                        raise ArchiveRefused("the archive is not a valid .tar.gz: it has no gzip header")
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
        """Raise ArchiveRefused when an upload of this size would leave less than the reserve of the runs' disk free."""
        home, reserve_mb = self._trainer.home.root, self._trainer.settings.min_free_disk_mb
        if shutil.disk_usage(home).free - size < reserve_mb << 20:
            raise ArchiveRefused(
                f"the disk has no space for the archive: {reserve_mb} MB must stay free under {home}; "
                "make some and import again"
            )

    # ------------------------------------------------------------------ the daemon

    async def ListWorkers(self, request: pb.ListWorkersRequest, _context: Any) -> pb.ListWorkersResponse:
        """Return the installed workers."""
        catalog = self._trainer.catalog
        if request.refresh:
            await run_in_catalog(catalog.refresh)
        entries = await run_in_catalog(catalog.entries)
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

    async def RunProgram(self, request: pb.RunProgramRequest, _context: Any) -> AsyncIterator[pb.ProgramOutput]:
        """Run a program of this machine for a client and stream its output."""
        spec = await run_in_catalog(self._trainer.catalog.get, request.worker) if request.worker else None
        argv = argv_of(spec, request.program, request.arguments)
        async for output in run_program(argv, self._trainer.home, spec, request.config_json):
            if isinstance(output, int):
                yield pb.ProgramOutput(exit_code=output)
            else:
                name, data = output
                yield pb.ProgramOutput(stdout=data) if name == "stdout" else pb.ProgramOutput(stderr=data)

    async def SaveFilter(self, request: pb.SavedFilter, _context: Any) -> pb.SavedFilter:
        """Store a named filter."""
        if not 0 < len(request.name) <= _MAX_FILTER_NAME or not request.name.isprintable():
            raise NotPossibleNow(f"a filter needs a name of 1 to {_MAX_FILTER_NAME} printable characters")
        try:
            query = read_config_text(request.query_json or "{}")
        except InvalidConfig as error:
            raise NotPossibleNow(f"the filter {request.name!r} cannot be saved: {error.problems[0]}") from error
        registry = self._trainer.journal.registry
        await self._trainer.journal.read(registry.save_filter, request.name, query)
        return request

    async def ListFilters(self, _request: pb.ListFiltersRequest, _context: Any) -> pb.ListFiltersResponse:
        """Return the stored filters."""
        filters = await self._trainer.journal.read(self._trainer.journal.registry.filters)
        saved = [pb.SavedFilter(name=name, query_json=json.dumps(query)) for name, query in filters.items()]
        return pb.ListFiltersResponse(filters=saved)

    async def DeleteFilter(self, request: pb.DeleteFilterRequest, _context: Any) -> pb.DeleteFilterResponse:
        """Remove a stored filter."""
        await self._trainer.journal.read(self._trainer.journal.registry.remove_filter, request.name)
        return pb.DeleteFilterResponse()

    async def GetHealth(self, _request: pb.GetHealthRequest, _context: Any) -> pb.Health:
        """Report the daemon's state and the machine's resources."""
        trainer, free, inventory = self._trainer, self._ledger.free(), self._ledger.inventory
        live = trainer.dispatcher.supervisors.values()
        pending = sum(each.record.status is RunStatus.INIT for each in live)  # in the queue of an engine
        return pb.Health(
            version=__version__,
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            home=str(trainer.home.root),
            addresses=self.addresses,
            uptime_s=time.monotonic() - self._started,
            queued=len(trainer.dispatcher.queue) + pending,
            running=len(live) - pending,
            cpus_total=inventory.cpus,
            cpus_free=free.cpus,
            memory_mb_total=inventory.memory_mb,
            memory_mb_available=psutil.virtual_memory().available >> 20,
            disk_mb_free=psutil.disk_usage(str(trainer.home.runs)).free >> 20,
            gpus=[
                pb.Gpu(
                    id=gpu.id, name=gpu.name, memory_mb=gpu.memory_mb, reserved_by=self._ledger.holder_of(gpu.id) or ""
                )
                for gpu in inventory.gpus
            ],
            trouble=trainer.journal.trouble,
            last_seq=await trainer.journal.read(trainer.journal.registry.last_seq),
        )

    async def ListMachines(self, _request: pb.ListMachinesRequest, _context: Any) -> pb.ListMachinesResponse:
        """Report where runs can run: this machine, and what the engines of the settings have."""
        free, inventory = self._ledger.free(), self._ledger.inventory
        here = Node(
            socket.gethostname(),
            "here",
            inventory.cpus,
            free.cpus,
            inventory.memory_mb,
            len(inventory.gpus),
            len(free.gpus),
        )
        states = []
        for name, (kind, machines, queued, running) in (await self._trainer.dispatcher.machines()).items():
            nodes = (here,) if name == LOCAL else machines.nodes
            state = pb.ExecutorState(
                name=name,
                type=kind,
                problem=machines.problem,
                nodes=[pb.Node(**asdict(node)) for node in nodes],
                pending=machines.pending,
                own_queued=queued,
                own_running=running,
            )
            states.append(state)
        return pb.ListMachinesResponse(executors=states)

    async def Shutdown(self, _request: pb.ShutdownRequest, _context: Any) -> pb.ShutdownResponse:
        """Stop the daemon; workers keep running."""
        self._request_shutdown()
        return pb.ShutdownResponse(running=len(self._trainer.dispatcher.supervisors))

    # ------------------------------------------------------------------ workers

    async def RegisterWorker(self, request: pb.RegisterWorkerRequest, context: Any) -> pb.RegisterWorkerResponse:
        """Accept a worker and give it a session token."""
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

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        """Apply a worker's heartbeat."""
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        statistics = RunStatistics(
            request.step, request.total, **_given(request, "episodic_return", "sps", "seconds_since_step")
        )
        await self._trainer.heartbeat(check_run_id(request.run_id), token, statistics, request.lifecycle_seq)
        return pb.HeartbeatResponse()

    async def ControlStream(self, request: pb.ControlStreamRequest, context: Any) -> AsyncIterator[pb.ControlCommand]:
        """Stream commands to a worker."""
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        supervisor = await self._trainer.worker_session(check_run_id(request.run_id), token)
        commands = supervisor.controls()
        while True:
            yield await commands.get()

    async def PublishRunMetrics(
        self, request: pb.PublishRunMetricsRequest, context: Any
    ) -> pb.PublishRunMetricsResponse:
        """Store new points of a run's curves."""
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        supervisor = await self._trainer.worker_session(check_run_id(request.run_id), token)
        answer = await self._trainer.metrics.publish(
            request.run_id,
            [_metric_folder(folder) for folder in request.folders],
            _position(request.before_json),
            _position(request.after_json),
        )
        if answer.curves is not None:
            supervisor.apply_curves(answer.curves)
        is_watched = self._trainer.journal.is_watched(request.run_id, supervisor.record.submitted_by)
        return pb.PublishRunMetricsResponse(
            accepted=answer.accepted,
            position_json="" if answer.position is None else json.dumps(answer.position),
            credits=answer.credits,
            retry_after_s=answer.retry_after_s,
            interval_s=self._trainer.metrics.requested_interval_s(request.run_id, watched=is_watched),
        )

    async def PublishRunSteps(self, request: pb.PublishRunStepsRequest, context: Any) -> pb.PublishTelemetryResponse:
        """Store steps of a run."""
        return await self._publish_telemetry(request.run_id, "steps", request.steps, context)

    async def PublishRunEpisodes(
        self, request: pb.PublishRunEpisodesRequest, context: Any
    ) -> pb.PublishTelemetryResponse:
        """Store episodes of a run."""
        return await self._publish_telemetry(request.run_id, "episodes", request.episodes, context)

    async def _publish_telemetry(
        self, run_id: str, kind: Kind, messages: Sequence[Any], context: Any
    ) -> pb.PublishTelemetryResponse:
        token = metadata_value(context.invocation_metadata(), SESSION_TOKEN_KEY)
        receipt = await self._trainer.publish_telemetry(check_run_id(run_id), token, kind, messages)
        return pb.PublishTelemetryResponse(
            stored_seq=receipt.stored_seq, credits=receipt.credits, next_episode=receipt.next_episode
        )

    # ------------------------------------------------------------------ nodes

    async def OpenNode(self, request: pb.OpenNodeRequest, context: Any) -> pb.OpenNodeResponse:
        """Accept the process that runs a worker on another machine."""
        return await self._trainer.open_node(
            check_run_id(request.run_id),
            metadata_value(context.invocation_metadata(), RUN_TOKEN_KEY),
            attempt=request.attempt,
            protocol_version=request.protocol_version,
            instance=request.instance,
            host=request.host,
        )

    async def ReadNodeInputs(self, request: pb.ReadRunFilesRequest, context: Any) -> AsyncIterator[pb.FilePiece]:
        """Stream files that a run on a node starts from."""
        supervisor = await self._of_node(request.run_id, context)
        allowed = await self._trainer.node_inputs(request.run_id, supervisor.record.attempt)
        for requested in request.files:
            if requested.path not in allowed:
                raise NotAllowed(f"run {request.run_id} does not start from {requested.path[:200]!r}")
            owner, _, path = requested.path.partition("/")
            async for piece in self._file_pieces(owner, path, requested.offset):
                supervisor.node(is_preparing=True)
                piece.path = requested.path
                yield piece

    async def SendRunFiles(self, request: pb.SendRunFilesRequest, context: Any) -> pb.SendRunFilesResponse:
        """Write files of a run that its node sends."""
        supervisor = await self._of_node(request.run_id, context, request.instance)
        states = await supervisor.receive(request)
        return pb.SendRunFilesResponse(
            files=states,
            stop=supervisor.is_cancelled or supervisor.is_ending,
            frame_interval_s=supervisor.node().frame_interval_s,
        )

    async def SendRunFrame(self, request: pb.SendRunFrameRequest, context: Any) -> pb.SendRunFrameResponse:
        """Show a frame of a run on a node."""
        node = (await self._of_node(request.run_id, context, request.instance)).node()
        await node.show(request.frame)
        return pb.SendRunFrameResponse(frame_interval_s=node.frame_interval_s)

    async def _of_node(self, run_id: str, context: Any, instance: str | None = None) -> RunSupervisor:
        token = metadata_value(context.invocation_metadata(), RUN_TOKEN_KEY)
        return await self._trainer.node_session(check_run_id(run_id), token, instance)

    async def _submitter(self, context: Any) -> RunRecord | None:
        """Return the run whose worker calls, or None for a client, whose token the interceptor has checked."""
        metadata = context.invocation_metadata()
        if not (token := metadata_value(metadata, SESSION_TOKEN_KEY)):
            return None
        return await self._trainer.submitter(metadata_value(metadata, RUN_ID_KEY), token)

    async def _permitted(self, run_id: str, context: Any) -> tuple[str, str]:
        """Check that the caller may access a run; return its id and the caller's own run, if it is a worker."""
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
            record = live.record  # its statistics are newer than the stored ones
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
            **dict(zip(_SAME_FIELDS, _same_values(record), strict=True)),
            outcome=record.outcome or "",
            seed=seed,
            flags=flags,
            queue_reason=queue_reason,
            result_json=json.dumps(record.result) if record.result is not None else "",
            started_at=record.started_at or 0.0,
            finished_at=record.finished_at or 0.0,
            memory_mb=record.memory_mb or 0,
            max_wallclock_minutes=record.max_wallclock_minutes or 0.0,
            run_dir=str(home.run_folder(record.run_id).root),
            logs_dir=str(home.run_logs(record.run_id)),
            capabilities_json=json.dumps(record.capabilities) if record.capabilities else "",
            extras_json=json.dumps(record.extras) if record.extras else "",
            learning_json=learning,
            eta_s=_eta_s(record),
        )
        if record.parent is not None:
            parent = record.parent
            run.step = max(run.step, parent.step)  # its first step, until its worker reports
            run.parent.CopyFrom(pb.ParentRun(run_id=parent.run_id, step=parent.step, sha256=parent.sha256))
        return run


_SAME_FIELDS = (
    *("run_id", "number", "status", "reason", "name", "worker_type", "worker_id", "algo", "env_id", "step", "total"),
    *("episodic_return", "sps", "seconds_since_step", "priority", "tags", "notes", "archived", "created_at", "cpus"),
    *("gpus", "gpu_ids", "attempt", "retries", "pid", "size_bytes", "protocol_version", "event_seq", "metrics"),
    *("submitted_by", "executor", "node"),
)
_same_values = attrgetter(*_SAME_FIELDS)


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
        raise NotPossibleNow(f"not a position in event files: {text[:80]!r}") from error


def _metric_folder(folder: pb.MetricFolder) -> Folder:
    columns = {}
    for column in folder.columns:
        if not len(column.steps) == len(column.wall_times) == len(column.values):
            raise NotPossibleNow(f"the columns of {column.tag[:80]!r} differ in length")
        columns[column.tag] = Points(array("q", column.steps), array("d", column.wall_times), array("d", column.values))
    drop_from = folder.drop_from if folder.HasField("drop_from") else None
    return Folder(folder.folder, folder.is_reset, drop_from, columns)


_EVENT_FIELDS = ("seq", "run_id", "timestamp", "kind", "reason", "attempt")
_event_values = attrgetter(*_EVENT_FIELDS)


def _event_message(event: HistoryEvent) -> pb.StoryEvent:
    return pb.StoryEvent(
        **dict(zip(_EVENT_FIELDS, _event_values(event), strict=True)),
        from_status=event.from_status or "",
        to_status=event.to_status or "",
        payload_json=json.dumps(event.payload) if event.payload else "",
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
