"""A small synchronous client of the trainer daemon.

    from gym_gui.services.trainer.client import TrainerClient, start_daemon
    from mosaic_wire.paths import find_home

    home = find_home()
    start_daemon(home)                                   # does nothing when one runs already
    with TrainerClient.connect(home) as client:
        run = client.submit(config).run                  # a dict or JSON text, see `validate_train_run_config`
        with client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
            for update in updates:
                print(update.run.status, update.run.step, "/", update.run.total)
                if update.run.status == "TERM":
                    break
        print(client.get(run.run_id).outcome)

Every method is one RPC of `trainer.proto` and returns its message. Whatever goes wrong is a `TrainerError`;
`DaemonUnreachable` when nobody answers within `timeout_s`. A client may be used from several threads.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc
from mosaic_wire.files import chosen_file, read_plain_file
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import Home, find_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub

from gym_gui.services.trainer import local_daemon
from gym_gui.services.trainer.client_errors import translate
from gym_gui.services.trainer.errors import (
    AmbiguousRunId,
    DaemonUnreachable,
    NotAllowed,
    RunNotFound,
    TrainerError,
)
from gym_gui.services.trainer.local_daemon import StartedDaemon, start_daemon

__all__ = ["RpcStream", "StartedDaemon", "TrainerClient", "start_daemon"]

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
WITHOUT_TRAINING = ("policy_eval", "interactive")
"""Modes of runs that play a policy or a game"""
_SUBMISSION_S = 30.0
"""The worker checks a config before it is queued; the first time its process has to start"""
_MANY_S = 60.0
_MIN_SUFFIX = 4
"""Ids of one day begin alike, so people also abbreviate from the end; fewer characters would hit by chance."""
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
    ("grpc.enable_http_proxy", 0),  # http_proxy in the environment must not see our token
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),  # a restarted daemon is found again soon
]


class RpcStream(Iterator[T]):
    """What a streaming RPC sends, until it ends or `cancel` is called (also from another thread)."""

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
            self._waiting.extend(getattr(message, "more", ()))  # updates that came together
            return cast(T, message)
        except grpc.RpcError as error:
            if self._cancelled:
                raise StopIteration from None
            raise self._to_error(error) from error

    def cancel(self) -> None:
        self._cancelled = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class TrainerClient:
    """Talks to one daemon; close it, or use it in a `with` statement."""

    def __init__(
        self,
        target: str,
        token: str,
        *,
        tls_ca: Path | None = None,
        timeout_s: float = 10,
        describe_silence: Callable[[], str] | None = None,
    ) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self._describe_silence = describe_silence or (lambda: f"no trainer daemon answers at {target}")
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
            describe_silence=lambda: local_daemon.silence_message(home, timeout_s),
        )

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ runs

    def submit(self, config: Mapping[str, Any] | str, *, idempotency_key: str = "") -> pb.SubmitRunResponse:
        """Queue a run; with a key that is known already, the run of that key is returned."""
        text = config if isinstance(config, str) else json.dumps(config)
        request = pb.SubmitRunRequest(config_json=text, idempotency_key=idempotency_key)
        return self._call(self._stub.SubmitRun, request, timeout_s=max(_SUBMISSION_S, self.timeout_s))

    def get(self, run_id: str) -> pb.Run:
        return self._call(self._stub.GetRun, pb.RunRequest(run_id=run_id))

    def find(self, text: str) -> pb.Run:
        """The run that a person means: an id, its beginning, its last 4 or more characters, a name, `last` or `@`."""
        if text in ("last", "@"):
            return self._last_started(text)
        wanted = text.strip()
        if is_run_id(wanted.upper()):
            return self.get(wanted.upper())
        runs, count = self._abbreviated(wanted.upper())
        found = {run.run_id: run for run in runs}
        if count != 1 and wanted:
            # An id wins over a name; the text search is wider than the name, hence the check here.
            named = [run for run in self.list(text=wanted, include_archived=True).runs if run.name == wanted]
            continued = {run.parent.run_id for run in named}  # the newest of a lineage, which shares one name
            if newest := {run.run_id: run for run in named if run.run_id not in continued}:
                found, count = newest, len(newest)
        if count > 1:
            raise AmbiguousRunId(text, sorted(found, reverse=True), count)
        if not found:
            raise RunNotFound(text)
        return next(iter(found.values()))

    def _last_started(self, word: str) -> pb.Run:
        """The newest run that the user started: no evaluation, baseline, trial or game."""
        for limit in (20, 1000, 0):  # behind a sweep lie its trials
            runs = self.list(limit=limit, include_archived=True).runs
            if (found := next((run for run in runs if _is_started_by_user(run)), None)) is not None:
                return found
            if len(runs) < limit:
                break
        raise RunNotFound(word)

    def _abbreviated(self, wanted: str) -> tuple[list[pb.Run], int]:
        """A few of the runs whose ids begin or end so, and how many there are."""
        if not wanted.isalnum() or len(wanted) > 26:
            return [], 0
        answer = self.list(run_id_prefix=wanted, include_archived=True, limit=6)
        if len(wanted) < _MIN_SUFFIX:
            return [*answer.runs], answer.matching
        # The text search narrows it down in the daemon; it also looks into names, hence the check here.
        found = self.list(text=wanted, include_archived=True).runs
        ends = [run for run in found if run.run_id.endswith(wanted) and not run.run_id.startswith(wanted)]
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
        """Runs, newest first; `matching` counts them before the limit (0: all). Many are asked for page by page."""
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
        """Changes of one run or of all, beginning after the story event `since_seq` (0: from now on)."""
        request = pb.WatchRunsRequest(run_id=run_id, since_seq=since_seq, batches=True)
        return self._stream(self._stub.WatchRuns, request)

    def story(self, run_id: str, *, since_seq: int = 0) -> Iterable[pb.StoryEvent]:
        """What happened to a run, in order."""
        return self._call(self._stub.GetStory, pb.GetStoryRequest(run_id=run_id, since_seq=since_seq)).events

    def logs(
        self, run_id: str, stream: str = "stdout", *, follow: bool = False, tail_bytes: int = 0
    ) -> RpcStream[pb.LogChunk]:
        """What the worker (stdout, stderr) or its training process (training_stdout, training_stderr) wrote."""
        request = pb.StreamRunLogsRequest(run_id=run_id, stream=stream, follow=follow, tail_bytes=tail_bytes)
        return self._stream(self._stub.StreamRunLogs, request)

    def metric_tags(self, run_id: str) -> Sequence[pb.MetricTag]:
        """Every curve a run has, with its length and last value."""
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
        """Curves of a run (patterns such as losses/* too), thinned to `max_points` each: extremes kept, or means."""
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
        """What a run draws, until it is over; it draws only while somebody asks."""
        request = pb.StreamFramesRequest(run_id=run_id, max_fps=max_fps, max_side=max_side, encoding=encoding)
        return self._stream(self._stub.StreamFrames, request)

    def steps(
        self, run_id: str, *, since_seq: int = 0, episode: int | None = None, follow: bool = False
    ) -> RpcStream[pb.RunSteps]:
        """Stored steps of a live worker after a number (negative: the last so many), then new ones."""
        request = pb.StreamTelemetryRequest(run_id=run_id, since_seq=since_seq, episode=episode, follow=follow)
        return self._stream(self._stub.StreamRunSteps, request)

    def episodes(
        self, run_id: str, *, since_seq: int = 0, episode: int | None = None, follow: bool = False
    ) -> RpcStream[pb.RunEpisodes]:
        """The same for episodes."""
        request = pb.StreamTelemetryRequest(run_id=run_id, since_seq=since_seq, episode=episode, follow=follow)
        return self._stream(self._stub.StreamRunEpisodes, request)

    def cancel(self, run_id: str, *, reason: str = "") -> pb.Run:
        """Ask for the end of a run; it is TERM when its whole process tree is gone."""
        return self._call(self._stub.CancelRun, pb.CancelRunRequest(run_id=run_id, reason=reason))

    def cancel_many(self, run_ids: Sequence[str], *, reason: str = "") -> Mapping[str, str]:
        """The same for many: queued ones end together, at once. Return by run why it cannot be cancelled."""
        request = pb.CancelRunsRequest(run_ids=run_ids, reason=reason)
        return self._call(self._stub.CancelRuns, request, timeout_s=max(_MANY_S, self.timeout_s)).refused

    def pause(self, run_id: str, *, release: bool = False) -> pb.Run:
        """Hold a run; with `release` it is checkpointed and gives its CPUs and GPUs back."""
        return self._call(self._stub.PauseRun, pb.PauseRunRequest(run_id=run_id, release=release))

    def resume(
        self, run_id: str, *, additional_timesteps: int = 0, checkpoint: str = "", idempotency_key: str = ""
    ) -> pb.Run:
        """Let a paused run go on; of a finished run, return the new run that continues it."""
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
        """Change what people wrote about a run; None leaves a field as it is. A finished run is measured again."""
        request = pb.UpdateRunRequest(
            run_id=run_id,
            name=name,
            notes=notes,
            priority=priority,
            add_tags=list_of(add_tags),
            remove_tags=list_of(remove_tags),
        )
        return self._call(self._stub.UpdateRun, request)

    # ------------------------------------------------------------------ keeping and removing

    def archive(self, run_id: str, *, archived: bool = True) -> pb.Run:
        """Hide a finished run from listings, or bring it back; nothing is deleted."""
        return self._call(self._stub.ArchiveRun, pb.ArchiveRunRequest(run_id=run_id, archived=archived))

    def delete(self, run_id: str) -> int:
        """Remove a finished run with all its files; return the freed bytes."""
        return self._call(self._stub.DeleteRun, pb.RunRequest(run_id=run_id), timeout_s=300).freed_bytes

    def export(self, run_id: str) -> RpcStream[pb.ArchiveChunk]:
        """A run as a .tar.gz, in pieces."""
        return self._stream(self._stub.ExportRun, pb.RunRequest(run_id=run_id))

    def export_to(
        self,
        run_id: str,
        target: Path,
        *,
        told: Callable[[int], object] | None = None,
        every_bytes: int = _CHUNK_BYTES,
    ) -> int:
        """Write a run's archive into a file and return its size; `told` hears how much is written, and may raise."""
        # Half an archive must not look like a whole one.
        unfinished = target.with_name(f".{target.name}.part")
        size = told_at = 0
        try:
            with unfinished.open("wb") as stream, self.export(run_id) as chunks:
                for chunk in chunks:
                    size += stream.write(chunk.data)
                    if told is not None and size - told_at >= every_bytes:
                        told_at = size
                        told(size)
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
        return size

    def import_archive(self, path: Path) -> pb.Run:
        """Take a run in that `export` made, here or on another machine."""
        path.open("rb").close()  # a file that cannot be read is told here, not in the log of gRPC's thread
        chunks = (pb.ArchiveChunk(data=data) for data in _pieces_of(path))
        try:
            return self._stub.ImportRun(chunks, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(error) from error

    # ------------------------------------------------------------------ the daemon

    def workers(self, *, name: str = "", refresh: bool = False) -> Iterable[pb.Worker]:
        """The catalog: every worker that is installed, also those that cannot be used and why."""
        # The first look describes each worker in a process of its own.
        return self._call(
            self._stub.ListWorkers, pb.ListWorkersRequest(name=name, refresh=refresh), timeout_s=max(60, self.timeout_s)
        ).workers

    def save_filter(self, name: str, query: Mapping[str, Any]) -> None:
        """Keep a listing's conditions (fields of ListRunsRequest) under a name."""
        self._call(self._stub.SaveFilter, pb.SavedFilter(name=name, query_json=json.dumps(query)))

    def filters(self) -> dict[str, dict[str, Any]]:
        saved = self._call(self._stub.ListFilters, pb.ListFiltersRequest()).filters
        return {entry.name: json.loads(entry.query_json) for entry in saved}

    def delete_filter(self, name: str) -> None:
        self._call(self._stub.DeleteFilter, pb.DeleteFilterRequest(name=name))

    def health(self) -> pb.Health:
        return self._call(self._stub.GetHealth, pb.GetHealthRequest())

    def shutdown(self) -> int:
        """End the daemon; its runs go on. Returns how many there are."""
        return self._call(self._stub.Shutdown, pb.ShutdownRequest()).running

    # ------------------------------------------------------------------ how calls are made

    def _call(self, method: Callable[..., T], request: Any, *, timeout_s: float | None = None) -> T:
        try:
            return method(request, timeout=timeout_s or self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(error, request) from error

    def _stream(self, method: Callable[..., Any], request: Any) -> RpcStream[Any]:
        return RpcStream(method(request, metadata=self._metadata), lambda error: self._error(error, request))

    def _error(self, error: grpc.RpcError, request: Any = None) -> TrainerError:
        silent = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return translate(
            error,
            run_id=getattr(request, "run_id", ""),
            unreachable=self._describe_silence() if silent else "the call was cancelled",
        )


def _is_started_by_user(run: pb.Run) -> bool:
    extras = json.loads(run.extras_json or "{}")
    return not run.submitted_by and run.worker_type != "human" and extras.get("mode") not in WITHOUT_TRAINING


def list_of(values: Iterable[str]) -> list[str]:
    """A list of strings; one string is refused, it would become its letters."""
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
            f"{target} is on another machine and the token would travel in the clear; "
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


def _pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while data := stream.read(_CHUNK_BYTES):
            yield data
