"""A synchronous client of the trainer daemon.

    from gym_gui.services.trainer.client import TrainerClient, start_daemon
    from mosaic_wire.paths import find_home

    home = find_home()
    start_daemon(home)                                   # does nothing when one is running
    with TrainerClient.connect(home) as client:
        run = client.submit(config).run                  # a dict or JSON text, see `validate_train_run_config`
        with client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
            for update in updates:
                print(update.run.status, update.run.step, "/", update.run.total)
                if update.run.status == "TERM":
                    break
        print(client.get(run.run_id).outcome)

Every method is one RPC of `trainer.proto` and returns its message. Errors are `TrainerError`s;
`DaemonUnreachable` when the daemon does not answer within `timeout_s`. A client may be used from several threads.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import grpc
from mosaic_wire.files import chosen_file, read_plain_file
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import Home, find_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub
from mosaic_wire.run_request import Mode
from mosaic_wire.worker_spec import EXTRAS, WORKER, WorkerSpec

from gym_gui.services.trainer import local_daemon
from gym_gui.services.trainer.client_errors import connection_problem, translate
from gym_gui.services.trainer.errors import AmbiguousRunId, DaemonUnreachable, NotAllowed, RunNotFound, TrainerError
from gym_gui.services.trainer.local_daemon import StartedDaemon, start_daemon
from gym_gui.services.trainer.run_copies import RunCopies

__all__ = ["RpcStream", "StartedDaemon", "TrainerClient", "start_daemon"]

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
WITHOUT_TRAINING = (Mode.EVALUATE, Mode.INTERACTIVE)
"""Modes of runs that play a policy or a game"""
_SUBMISSION_S = 30.0
"""Longer than other calls, because the worker checks the config, and its check process may have to start"""
_MANY_S = 60.0
_ENGINES_S = 60.0
_MIN_SUFFIX = 4
"""Ids of one day have a common prefix, so suffixes are accepted, but shorter ones could match by chance"""
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
    ("grpc.enable_http_proxy", 0),  # a proxy must not see the token
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),  # reconnect soon to a restarted daemon
    # A network that was cut sends nothing, so only an unanswered ping tells a stream that waits.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


class RpcStream(Iterator[T]):
    """The messages of a streaming RPC, until it ends or `cancel` is called (from any thread)."""

    def __init__(self, call: Any, to_error: Callable[[grpc.RpcError], TrainerError]) -> None:
        self._call = call
        self._to_error = to_error
        self._cancelled = False
        self._waiting: deque[T] = deque()

    def __next__(self) -> T:
        if self._waiting:
            return self._waiting.popleft()
        try:
            message = next(self._call)
            self._waiting.extend(getattr(message, "more", ()))  # updates sent in one batch
            return cast(T, message)
        except grpc.RpcError as error:
            if self._cancelled:
                raise StopIteration from None
            raise self._to_error(error) from error

    def cancel(self) -> None:
        """End the stream; its iteration stops."""
        self._cancelled = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class TrainerClient:
    """A connection to one daemon; close it, or use it in a `with` statement."""

    def __init__(
        self,
        target: str,
        token: str,
        *,
        tls_ca: Path | None = None,
        timeout_s: float = 10,
        describe_silence: Callable[[bool, str], str] | None = None,
    ) -> None:
        self.target, self.tls_ca = target, tls_ca
        self.timeout_s = timeout_s
        self._describe_silence = describe_silence or (
            lambda _waited, details: connection_problem(target, tls_ca, details)
        )
        self.copies = RunCopies(self, token)
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._channel = _open_channel(target, tls_ca)
        self._stub = TrainerServiceStub(self._channel)

    @classmethod
    def connect(cls, home: Home | Path | None = None, *, timeout_s: float = 10) -> TrainerClient:
        """Find the running daemon of this home (by default `find_home()`); raise DaemonUnreachable without one."""
        if not isinstance(home, Home):
            home = find_home() if home is None else Home(home)
        record = local_daemon.running_record(home)
        if record is None:
            raise DaemonUnreachable(local_daemon.no_daemon_message(home))
        return cls(
            record.target,
            local_daemon.read_token(home),
            timeout_s=timeout_s,
            describe_silence=lambda waited, _details: local_daemon.silence_message(home, timeout_s if waited else None),
        )

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ runs

    def submit(self, config: Mapping[str, Any] | str, *, idempotency_key: str = "") -> pb.SubmitRunResponse:
        """Queue a run, or return the run that was submitted with the same key."""
        text = config if isinstance(config, str) else json.dumps(config)
        request = pb.SubmitRunRequest(config_json=text, idempotency_key=idempotency_key)
        return self._call(self._stub.SubmitRun, request, timeout_s=max(_SUBMISSION_S, self.timeout_s))

    def get(self, run_id: str) -> pb.Run:
        """Return the run with this id."""
        return self._call(self._stub.GetRun, pb.RunRequest(run_id=run_id))

    def find(self, text: str) -> pb.Run:
        """Return the run with this id, prefix or suffix of an id, or name; `last` or `@`: the newest one."""
        if text in ("last", "@"):
            return self._last_started(text)
        name = text.strip()
        if is_run_id(name.upper()):
            return self.get(name.upper())
        runs, count = self._abbreviated(name.upper())
        found = {run.run_id: run for run in runs}
        if count != 1 and name:
            # An id has precedence over a name; the text search matches more than names, hence the check.
            named = [run for run in self.list(text=name, include_archived=True).runs if run.name == name]
            continued = {run.parent.run_id for run in named}  # runs of a lineage share a name: prefer the newest
            if newest := {run.run_id: run for run in named if run.run_id not in continued}:
                found, count = newest, len(newest)
        if count > 1:
            raise AmbiguousRunId(text, sorted(found, reverse=True), count)
        if not found:
            raise RunNotFound(text)
        return next(iter(found.values()))

    def _last_started(self, text: str) -> pb.Run:
        """Return the newest run the user started: no evaluation, baseline, trial, game or import."""
        for limit in (20, 1000, 0):  # a sweep may have many newer trials
            runs = self.list(limit=limit, include_archived=True).runs
            if (found := next(filter(self._is_started_by_user, runs), None)) is not None:
                return found
            if len(runs) < limit:
                break
        raise RunNotFound(text)

    def _is_started_by_user(self, run: pb.Run) -> bool:
        extras = json.loads(run.extras_json or "{}")
        if run.submitted_by or run.worker_type == "human" or extras.get("mode") in WITHOUT_TRAINING:
            return False
        return not self.was_imported(run.run_id)

    def was_imported(self, run_id: str) -> bool:
        """Return whether a run was imported from an archive."""
        return any(event.kind == "imported" for event in self.history(run_id))

    def _abbreviated(self, part: str) -> tuple[list[pb.Run], int]:
        """Return some runs whose ids begin or end with this part, and how many there are."""
        if not part.isalnum() or len(part) > 26:
            return [], 0
        answer = self.list(run_id_prefix=part, include_archived=True, limit=6)
        if len(part) < _MIN_SUFFIX:
            return [*answer.runs], answer.matching
        # The daemon's text search also matches names, hence the check.
        found = self.list(text=part, include_archived=True).runs
        ends = [run for run in found if run.run_id.endswith(part) and not run.run_id.startswith(part)]
        return [*answer.runs, *ends], answer.matching + len(ends)

    def list(
        self,
        *,
        statuses: Iterable[str] = (),
        outcomes: Iterable[str] = (),
        tags: Iterable[str] = (),
        text: str = "",
        include_archived: bool = False,
        limit: int = 0,
        run_id_prefix: str = "",
        submitted_by: str = "",
    ) -> pb.ListRunsResponse:
        """Return runs, newest first, fetched in pages; `matching` counts them before the limit (0: no limit)."""
        request = pb.ListRunsRequest(
            statuses=list_of(statuses),
            outcomes=list_of(outcomes),
            tags=list_of(tags),
            text=text,
            include_archived=include_archived,
            limit=limit,
            run_id_prefix=run_id_prefix,
            submitted_by=submitted_by,
        )
        answer = self._call(self._stub.ListRuns, request)
        while answer.next_before and not 0 < limit <= len(answer.runs):
            request.before_number, request.limit = answer.next_before, max(0, limit - len(answer.runs))
            page = self._call(self._stub.ListRuns, request)
            answer.runs.extend(page.runs)
            answer.next_before = page.next_before
        return answer

    def watch(self, *, run_id: str = "", since_seq: int = 0) -> RpcStream[pb.RunUpdate]:
        """Return a stream of changes of one run or all, after the event `since_seq` (0: from now on)."""
        request = pb.WatchRunsRequest(run_id=run_id, since_seq=since_seq, batches=True)
        return self._stream(self._stub.WatchRuns, request)

    def history(self, run_id: str, *, since_seq: int = 0) -> Iterable[pb.StoryEvent]:
        """Return the events of a run in order."""
        return self._call(self._stub.GetStory, pb.GetStoryRequest(run_id=run_id, since_seq=since_seq)).events

    def logs(
        self, run_id: str, stream: str = "stdout", *, follow: bool = False, tail_bytes: int = 0
    ) -> RpcStream[pb.LogChunk]:
        """Return a log: of the worker (stdout, stderr) or its training process (training_stdout, training_stderr)."""
        request = pb.StreamRunLogsRequest(run_id=run_id, stream=stream, follow=follow, tail_bytes=tail_bytes)
        return self._stream(self._stub.StreamRunLogs, request)

    def local(self, run: pb.Run, *patterns: str, listed: Sequence[str] = ()) -> pb.Run:
        """Return the run with folders on this machine, with copies of the files that match (see `run_copies`)."""
        return self.copies.local(run, *patterns, listed=listed)

    def list_files(self, run_id: str, patterns: Iterable[str] = ()) -> pb.ListRunFilesResponse:
        """Return the files of a run that match one of the patterns (run/videos/*; none: all)."""
        request = pb.ListRunFilesRequest(run_id=run_id, patterns=list_of(patterns))
        return self._call(self._stub.ListRunFiles, request, timeout_s=max(_MANY_S, self.timeout_s))

    def read_files(self, run_id: str, files: Mapping[str, int]) -> RpcStream[pb.FilePiece]:
        """Return the content of files of a run in pieces, each from the given offset on."""
        ranges = [pb.FileRange(path=path, offset=offset) for path, offset in files.items()]
        return self._stream(self._stub.ReadRunFiles, pb.ReadRunFilesRequest(run_id=run_id, files=ranges))

    def metric_tags(self, run_id: str) -> Sequence[pb.MetricTag]:
        """Return every curve of a run with its length and last value."""
        return self._call(self._stub.ListRunMetrics, pb.RunRequest(run_id=run_id)).tags

    def metrics(
        self,
        run_id: str,
        tags: Sequence[str] = (),
        *,
        since_step: int = 0,
        until_step: int | None = None,
        max_points: int = 0,
        means: bool = False,
        follow: bool = False,
    ) -> RpcStream[pb.RunMetrics]:
        """Return curves of a run (tags or patterns such as losses/*), thinned to `max_points`: extremes, or means."""
        request = pb.StreamRunMetricsRequest(
            run_id=run_id,
            tags=tags,
            since_step=since_step,
            until_step=until_step,
            max_points=max_points,
            means=means,
            follow=follow,
        )
        return self._stream(self._stub.StreamRunMetrics, request)

    def frames(
        self, run_id: str, *, max_fps: float = 0.0, max_side: int = 0, encoding: str = ""
    ) -> RpcStream[pb.RunFrame]:
        """Return a stream of a run's rendered frames until it ends; it renders only while a client requests them."""
        request = pb.StreamFramesRequest(run_id=run_id, max_fps=max_fps, max_side=max_side, encoding=encoding)
        return self._stream(self._stub.StreamFrames, request)

    def steps(
        self, run_id: str, *, since_seq: int = 0, episode: int | None = None, follow: bool = False
    ) -> RpcStream[pb.RunSteps]:
        """Return stored steps of a live worker after `since_seq` (negative: the last steps), then new ones."""
        request = pb.StreamTelemetryRequest(run_id=run_id, since_seq=since_seq, episode=episode, follow=follow)
        return self._stream(self._stub.StreamRunSteps, request)

    def episodes(
        self, run_id: str, *, since_seq: int = 0, episode: int | None = None, follow: bool = False
    ) -> RpcStream[pb.RunEpisodes]:
        """Return stored episodes of a live worker after `since_seq`, then new ones."""
        request = pb.StreamTelemetryRequest(run_id=run_id, since_seq=since_seq, episode=episode, follow=follow)
        return self._stream(self._stub.StreamRunEpisodes, request)

    def cancel(self, run_id: str, *, reason: str = "") -> pb.Run:
        """Request the end of a run; its status becomes TERM when its whole process tree has ended."""
        return self._call(self._stub.CancelRun, pb.CancelRunRequest(run_id=run_id, reason=reason))

    def cancel_many(self, run_ids: Sequence[str], *, reason: str = "") -> Mapping[str, str]:
        """Cancel runs, queued ones all at once; return why some cannot be cancelled, by run."""
        request = pb.CancelRunsRequest(run_ids=run_ids, reason=reason)
        return self._call(self._stub.CancelRuns, request, timeout_s=max(_MANY_S, self.timeout_s)).refused

    def pause(self, run_id: str, *, release: bool = False) -> pb.Run:
        """Pause a run; with `release` write a checkpoint and free its CPUs and GPUs."""
        return self._call(self._stub.PauseRun, pb.PauseRunRequest(run_id=run_id, release=release))

    def resume(
        self, run_id: str, *, additional_timesteps: int = 0, checkpoint: str = "", idempotency_key: str = ""
    ) -> pb.Run:
        """Resume a paused run, or start a new run that continues a finished one; return it."""
        request = pb.ResumeRunRequest(
            run_id=run_id,
            additional_timesteps=additional_timesteps,
            checkpoint=checkpoint,
            idempotency_key=idempotency_key,
        )
        return self._call(self._stub.ResumeRun, request, timeout_s=max(_SUBMISSION_S, self.timeout_s))

    def update(
        self,
        run_id: str,
        *,
        name: str | None = None,
        notes: str | None = None,
        priority: int | None = None,
        add_tags: Iterable[str] = (),
        remove_tags: Iterable[str] = (),
    ) -> pb.Run:
        """Change a run's name, notes, priority or tags (None: unchanged); refresh a finished run's size on disk."""
        request = pb.UpdateRunRequest(
            run_id=run_id,
            name=name,
            notes=notes,
            priority=priority,
            add_tags=list_of(add_tags),
            remove_tags=list_of(remove_tags),
        )
        return self._call(self._stub.UpdateRun, request)

    # ------------------------------------------------------------------ archiving and deleting

    def archive(self, run_id: str, *, archived: bool = True) -> pb.Run:
        """Hide a finished run from listings, or show it again; nothing is deleted."""
        return self._call(self._stub.ArchiveRun, pb.ArchiveRunRequest(run_id=run_id, archived=archived))

    def delete(self, run_id: str) -> int:
        """Delete a finished run with all its files; return the freed bytes."""
        return self._call(self._stub.DeleteRun, pb.RunRequest(run_id=run_id), timeout_s=300).freed_bytes

    def export(self, run_id: str) -> RpcStream[pb.ArchiveChunk]:
        """Return a finished run as the chunks of a .tar.gz archive."""
        return self._stream(self._stub.ExportRun, pb.RunRequest(run_id=run_id))

    def export_to(
        self,
        run_id: str,
        target: Path,
        *,
        on_progress: Callable[[int], object] | None = None,
        every_bytes: int = _CHUNK_BYTES,
    ) -> int:
        """Write a run's archive to a file and return its size; `on_progress` gets the bytes written and may raise."""
        # An incomplete archive must not have the target's name.
        unfinished = target.with_name(f".{target.name}.part")
        size = reported = 0
        try:
            with unfinished.open("wb") as stream, self.export(run_id) as chunks:
                for chunk in chunks:
                    size += stream.write(chunk.data)
                    if on_progress is not None and size - reported >= every_bytes:
                        reported = size
                        on_progress(size)
            os.replace(unfinished, target)
        except OSError as error:
            if error.errno is None:  # raised by `on_progress`
                raise
            raise TrainerError(f"{target} cannot be written and was removed: {error.strerror}") from error
        finally:
            unfinished.unlink(missing_ok=True)
        return size

    def import_archive(self, path: Path) -> pb.Run:
        """Import a run from an archive of `export`."""
        failures: list[OSError] = []

        def chunks() -> Iterator[pb.ArchiveChunk]:  # runs in a gRPC thread, which only logs exceptions
            try:
                with path.open("rb") as stream:
                    while data := stream.read(_CHUNK_BYTES):
                        yield pb.ArchiveChunk(data=data)
            except OSError as error:
                failures.append(error)

        try:
            return self._stub.ImportRun(chunks(), metadata=self._metadata)
        except grpc.RpcError as error:
            if failures:
                raise TrainerError(f"{path} cannot be read: {failures[0].strerror}") from failures[0]
            raise self._error(error) from error

    # ------------------------------------------------------------------ the daemon

    def workers(self, *, name: str = "", refresh: bool = False) -> Iterable[pb.Worker]:
        """Return every installed worker, also those that cannot be used, with the reason."""
        # The first call runs a process for each worker.
        return self._call(
            self._stub.ListWorkers, pb.ListWorkersRequest(name=name, refresh=refresh), timeout_s=max(60, self.timeout_s)
        ).workers

    def run_program(
        self, worker: str, program: str, arguments: Sequence[str] = (), config: Mapping[str, Any] | None = None
    ) -> RpcStream[pb.ProgramOutput]:
        """Run a program on the daemon's machine (see `programs.py`) and return its output; cancelling ends it."""
        config_json = "" if config is None else json.dumps(config)
        request = pb.RunProgramRequest(
            worker=worker, program=program, arguments=list_of(arguments), config_json=config_json
        )
        return self._stream(self._stub.RunProgram, request)

    def program(self, spec: WorkerSpec, program: str = WORKER) -> tuple[str, ...]:
        """Return the command that starts a worker or its installer of requirement sets where the daemon runs.

        For a daemon elsewhere it is `mosaic daemon relay`, which needs the token in MOSAIC_DAEMON_TOKEN.
        """
        if self.copies.is_here:
            return spec.extras_program if program == EXTRAS else tuple(spec.argv)
        if program == EXTRAS and not spec.extras_program:
            return ()
        authority = () if self.tls_ca is None else ("--tls-ca", str(self.tls_ca))
        return (
            sys.executable,
            "-m",
            "gym_gui",
            "--connect",
            self.target,
            *authority,
            "daemon",
            "relay",
            spec.name,
            program,
        )

    def save_filter(self, name: str, query: Mapping[str, Any]) -> None:
        """Save a query (fields of ListRunsRequest) under a name."""
        self._call(self._stub.SaveFilter, pb.SavedFilter(name=name, query_json=json.dumps(query)))

    def filters(self) -> dict[str, dict[str, Any]]:
        """Return the saved filters by name."""
        saved = self._call(self._stub.ListFilters, pb.ListFiltersRequest()).filters
        return {entry.name: json.loads(entry.query_json) for entry in saved}

    def delete_filter(self, name: str) -> None:
        """Remove a saved filter."""
        self._call(self._stub.DeleteFilter, pb.DeleteFilterRequest(name=name))

    def health(self) -> pb.Health:
        """Return what the daemon reports about itself and the machine."""
        return self._call(self._stub.GetHealth, pb.GetHealthRequest())

    def machines(self) -> Sequence[pb.ExecutorState]:
        """Return where runs can run; an engine that does not answer takes a while."""
        request = pb.ListMachinesRequest()
        return self._call(self._stub.ListMachines, request, timeout_s=max(self.timeout_s, _ENGINES_S)).executors

    def shutdown(self) -> int:
        """Stop the daemon; return how many runs keep running."""
        return self._call(self._stub.Shutdown, pb.ShutdownRequest()).running

    # ------------------------------------------------------------------ calls

    def _call(self, method: Callable[..., T], request: Any, *, timeout_s: float | None = None) -> T:
        try:
            return method(request, timeout=timeout_s or self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(error, request) from error

    def _stream(self, method: Callable[..., Any], request: Any) -> RpcStream[Any]:
        return RpcStream(method(request, metadata=self._metadata), lambda error: self._error(error, request))

    def _error(self, error: grpc.RpcError, request: Any = None) -> TrainerError:
        waited = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        silent = waited or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        return translate(
            error,
            run_id=getattr(request, "run_id", ""),
            unreachable=self._describe_silence(waited, error.details() or "") if silent else "",
        )


def list_of(values: Iterable[str]) -> list[str]:
    """Return the strings as a list; refuse a single string, which would be split into characters."""
    if isinstance(values, str):
        raise TypeError(f"expected several strings, got one: {values!r}")
    return [*values]


def _open_channel(target: str, tls_ca: Path | None) -> grpc.Channel:
    if tls_ca is not None:
        try:
            credentials = grpc.ssl_channel_credentials(read_plain_file(tls_ca, opener=chosen_file))
        except (OSError, ValueError) as error:
            raise NotAllowed(f"cannot read the CA certificate {tls_ca}: {error}") from error
        return grpc.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
    if not _is_local(target):
        raise NotAllowed(
            f"{target} is on another machine and the token would be sent unencrypted; "
            "give the daemon's CA certificate (--tls-ca)"
        )
    return grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)


def _is_local(target: str) -> bool:
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = target.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
