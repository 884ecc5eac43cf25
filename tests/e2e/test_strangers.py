"""Fault 15: strangers are refused. No token, a wrong one, another run's, another user, a browser, the network."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from gym_gui.services.trainer.auth import (
    RUN_ID_KEY,
    RUN_TOKEN_KEY,
    SESSION_TOKEN_KEY,
    SUBMITTER_METHODS,
    WORKER_METHODS,
)
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, NotAllowed
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import RunningDaemon, certificate, install_scripted_worker, random_config, scripted_config
from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub
from mosaic_wire.testing import wait_until

SERVICE = pb.DESCRIPTOR.services_by_name["TrainerService"]
QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}
ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 50}
NOBODY = 65534

Metadata = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon that listens on TCP, too."""
    folder = tmp_path_factory.mktemp("shared")
    with RunningDaemon(Home(folder / "home"), folder / "config", settings={**QUICK, "listen": "127.0.0.1"}) as daemon:
        yield daemon


@pytest.fixture
def channels(daemon: RunningDaemon) -> Iterator[list[grpc.Channel]]:
    """The daemon's two doors."""
    record = running_record(daemon.home)
    assert record is not None
    opened = [grpc.insecure_channel(target) for target in (record.unix, record.tcp)]
    yield opened
    for channel in opened:
        channel.close()


def answer_to(call: Callable[[], Any]) -> grpc.StatusCode:
    """The status a call ends with; a stream is read up to its first message."""
    try:
        answer = call()
        if not hasattr(answer, "DESCRIPTOR"):
            next(iter(answer))
            answer.cancel()
    except grpc.RpcError as error:
        return error.code()
    except StopIteration:
        pass
    return grpc.StatusCode.OK


def call(channel: grpc.Channel, method: Any, metadata: Metadata) -> grpc.StatusCode:
    """Call any method of the service with an empty request."""
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    request_type, response_type = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    ask = getattr(channel, kind)(
        f"/{SERVICE.full_name}/{method.name}",
        request_serializer=request_type.SerializeToString,
        response_deserializer=response_type.FromString,
    )
    request = iter([request_type()]) if method.client_streaming else request_type()
    return answer_to(lambda: ask(request, metadata=metadata, timeout=20))


# ---------------------------------------------------------------------- clients


def test_no_call_of_the_service_works_without_the_daemons_token(daemon: RunningDaemon, channels) -> None:
    token = daemon.home.token.read_text().strip()
    wrong: list[Metadata] = [
        (),
        (("authorization", ""),),
        (("authorization", "Bearer"),),
        (("authorization", token),),
        (("authorization", f"bearer {token}x"),),
        (("authorization", f"Bearer {token[:-1]}"),),
        (("authorization", f"Bearer {'0' * 64}"),),
        (("authorization", "Bearer wrong"), ("authorization", f"Bearer {token}")),
        (("x-authorization", f"Bearer {token}"),),
    ]
    for channel in channels:
        for method in SERVICE.methods:
            if f"/{SERVICE.full_name}/{method.name}" in WORKER_METHODS:
                continue  # these ask for the run's token: below
            for metadata in wrong if method.name in ("GetHealth", "SubmitRun", "WatchRuns") else wrong[:1]:
                assert call(channel, method, metadata) is grpc.StatusCode.UNAUTHENTICATED, (method.name, metadata)
    health = SERVICE.methods_by_name["GetHealth"]
    for channel in channels:
        assert call(channel, health, (("authorization", f"Bearer {token}"),)) is grpc.StatusCode.OK
    assert list(daemon.client.list().runs) == []  # and no request shut it down


def test_a_method_that_does_not_exist_is_not_a_way_in(daemon: RunningDaemon, channels) -> None:
    for path in ("/gymgui.trainer.TrainerService/Evil", "/grpc.reflection.v1alpha.ServerReflection/X", "/", "//"):
        ask = channels[0].unary_unary(path)
        code = answer_to(lambda ask=ask: ask(b"", timeout=20))
        assert code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED), path


def test_a_client_with_a_wrong_token_is_reported_so_in_words(daemon: RunningDaemon) -> None:
    record = running_record(daemon.home)
    assert record is not None
    with TrainerClient(record.unix, "0" * 64) as client, pytest.raises(NotAllowed, match="token is missing or wrong"):
        client.health()


# ---------------------------------------------------------------------- workers


def run_token_of(run: pb.Run) -> str:
    """What the daemon put into the worker's environment; only this user (and root) can read it there."""
    variables = Path(f"/proc/{run.pid}/environ").read_bytes().split(b"\0")
    return next(entry for entry in variables if entry.startswith(b"MOSAIC_RUN_TOKEN=")).split(b"=")[1].decode()


def registration(run: pb.Run) -> pb.RegisterWorkerRequest:
    capabilities = json.dumps({"worker_type": "random"})
    return pb.RegisterWorkerRequest(
        run_id=run.run_id, attempt=1, protocol_version=PROTOCOL_VERSION, instance="me", capabilities_json=capabilities
    )


def test_each_worker_call_is_refused_with_any_token_but_its_own_runs(daemon: RunningDaemon, channels) -> None:
    runs = [
        daemon.wait_for(daemon.submit(**ENDLESS, never_register=True).run_id, "HSHK", timeout_s=60) for _ in range(2)
    ]
    stub = TrainerServiceStub(channels[0])
    refused, fine = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.OK
    daemon_token = daemon.home.token.read_text().strip()
    tokens = [run_token_of(run) for run in runs]

    def register(run: pb.Run, *metadata: tuple[str, str]) -> grpc.StatusCode:
        return answer_to(lambda: stub.RegisterWorker(registration(run), metadata=metadata, timeout=20))

    for mine, others in ((0, 1), (1, 0)):
        assert register(runs[mine]) is refused
        assert register(runs[mine], (RUN_TOKEN_KEY, "")) is refused
        assert register(runs[mine], (RUN_TOKEN_KEY, tokens[others])) is refused
        assert register(runs[mine], (RUN_TOKEN_KEY, daemon_token)) is refused
        assert register(runs[mine], ("authorization", f"Bearer {daemon_token}")) is refused
        assert register(runs[mine], (SESSION_TOKEN_KEY, tokens[mine])) is refused
        assert daemon.client.get(runs[mine].run_id).status == "HSHK"
    sessions = [
        stub.RegisterWorker(registration(run), metadata=((RUN_TOKEN_KEY, token),), timeout=20).session_token
        for run, token in zip(runs, tokens, strict=True)
    ]
    assert sessions[0] != sessions[1]

    def beat(run: pb.Run, *metadata: tuple[str, str]) -> grpc.StatusCode:
        request = pb.HeartbeatRequest(run_id=run.run_id, step=999)
        return answer_to(lambda: stub.Heartbeat(request, metadata=metadata, timeout=20))

    def control(run: pb.Run, *metadata: tuple[str, str]) -> grpc.StatusCode:
        request = pb.ControlStreamRequest(run_id=run.run_id)
        return answer_to(lambda: stub.ControlStream(request, metadata=metadata, timeout=1))

    def publish(run: pb.Run, *metadata: tuple[str, str]) -> grpc.StatusCode:
        (answer,) = {
            answer_to(lambda method=method, make=make: method(make(run_id=run.run_id), metadata=metadata, timeout=20))
            for method, make in (
                (stub.PublishRunMetrics, pb.PublishRunMetricsRequest),
                (stub.PublishRunSteps, pb.PublishRunStepsRequest),
                (stub.PublishRunEpisodes, pb.PublishRunEpisodesRequest),
            )
        }
        return answer

    for ask in (beat, control, publish):
        for mine, others in ((0, 1), (1, 0)):
            assert ask(runs[mine]) is refused
            assert ask(runs[mine], (SESSION_TOKEN_KEY, sessions[others])) is refused
            assert ask(runs[mine], (SESSION_TOKEN_KEY, tokens[mine])) is refused
            assert ask(runs[mine], (RUN_TOKEN_KEY, tokens[mine])) is refused
            assert ask(runs[mine], ("authorization", f"Bearer {daemon_token}")) is refused
    assert [daemon.client.get(run.run_id).step for run in runs] == [0, 0]
    assert beat(runs[0], (SESSION_TOKEN_KEY, sessions[0])) is fine
    assert daemon.client.get(runs[0].run_id).step == 999
    assert control(runs[0], (SESSION_TOKEN_KEY, sessions[0])) is grpc.StatusCode.DEADLINE_EXCEEDED  # it listens

    # A run's token ends with its run, and a run's tokens open nothing but its worker calls.
    for name in ("GetHealth", "SubmitRun", "Shutdown"):
        for token in (tokens[1], sessions[1]):
            metadata = (("authorization", f"Bearer {token}"), (RUN_TOKEN_KEY, tokens[1]))
            assert call(channels[0], SERVICE.methods_by_name[name], metadata) is refused
    for run in runs:
        daemon.client.cancel(run.run_id)
        daemon.wait_for(run.run_id)
    assert register(runs[0], (RUN_TOKEN_KEY, tokens[0])) is refused
    assert beat(runs[0], (SESSION_TOKEN_KEY, sessions[0])) is refused
    assert control(runs[0], (SESSION_TOKEN_KEY, sessions[0])) is refused


@dataclass(frozen=True)
class Asking:
    """Two workers that may ask for runs, and one that may not; each with the session it was given."""

    stub: TrainerServiceStub
    askers: list[pb.Run]
    plain: pb.Run
    first: Metadata
    second: Metadata
    stranger: Metadata

    def submit(self, key: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
        return answer_to(lambda: self.stub.SubmitRun(self.request(key), metadata=metadata, timeout=20))

    def child(self, key: str = "") -> pb.Run:
        return self.stub.SubmitRun(self.request(key), metadata=self.first, timeout=20).run

    def request(self, key: str) -> pb.SubmitRunRequest:
        config = random_config(timesteps=10**6, steps_per_second=50, tags=(f"asker:{self.plain.run_id}",))
        return pb.SubmitRunRequest(config_json=json.dumps(config), idempotency_key=key)


@pytest.fixture
def asking(daemon: RunningDaemon, channels) -> Iterator[Asking]:
    install_scripted_worker(daemon.home, "asker", "while True: time.sleep(60)", submits_runs=True)
    plain = daemon.wait_for(daemon.submit(**ENDLESS, never_register=True).run_id, "HSHK")
    askers = [
        daemon.wait_for(daemon.client.submit(scripted_config("asker")).run.run_id, "HSHK", timeout_s=60)
        for _ in range(2)
    ]
    stub = TrainerServiceStub(channels[0])

    def session_of(run: pb.Run) -> Metadata:
        """Registers as the run's worker; the plain one claims what it may not do, too."""
        request = registration(run)
        request.capabilities_json = json.dumps({"worker_type": run.worker_type, "submits_runs": True})
        answer = stub.RegisterWorker(request, metadata=((RUN_TOKEN_KEY, run_token_of(run)),), timeout=20)
        return (RUN_ID_KEY, run.run_id), (SESSION_TOKEN_KEY, answer.session_token)

    yield Asking(stub, askers, plain, *(session_of(run) for run in (*askers, plain)))
    for run in daemon.unfinished():
        daemon.client.cancel(run.run_id)
    assert wait_until(lambda: not daemon.unfinished())


def test_only_a_worker_that_may_ask_for_runs_submits_one_and_only_as_its_own(
    daemon: RunningDaemon, asking: Asking
) -> None:
    first, second, refused = asking.first, asking.second, grpc.StatusCode.UNAUTHENTICATED
    assert asking.submit("", *asking.stranger) is refused, "what a worker claims of itself is no proof"
    assert asking.submit("", first[0], second[1]) is refused, "another run's session"
    assert asking.submit("", first[1]) is refused, "a session without its run"
    assert asking.submit("", first[0], (SESSION_TOKEN_KEY, run_token_of(asking.askers[0]))) is refused
    assert asking.submit("", first[0], (SESSION_TOKEN_KEY, "")) is refused
    assert asking.submit("", first[0], ("authorization", f"Bearer {first[1][1]}")) is refused
    before = len(daemon.client.list().runs)
    child = asking.child("mine")
    assert asking.child("mine").run_id == child.run_id
    assert asking.submit("mine", *second) is refused, "the key is another's"
    assert len(daemon.client.list().runs) == before + 1
    assert child.submitted_by == asking.askers[0].run_id
    assert list(child.tags) == [f"asker:{asking.askers[0].run_id}"], "a tag that says otherwise is not taken"
    nested = pb.SubmitRunRequest(config_json=json.dumps(scripted_config("asker")))
    answer = answer_to(lambda: asking.stub.SubmitRun(nested, metadata=first, timeout=20))
    assert answer is grpc.StatusCode.FAILED_PRECONDITION, "a sweep of sweeps"
    daemon.client.cancel(asking.askers[0].run_id)
    ended = daemon.wait_for(child.run_id)
    assert (ended.outcome, ended.reason) == (
        "cancelled",
        f"cancelled with run {asking.askers[0].run_id}, which submitted it",
    )
    assert asking.submit("", *first) is refused, "a session ends with its run"


def test_a_worker_looks_at_and_steers_only_the_runs_it_asked_for(
    daemon: RunningDaemon, asking: Asking, channels
) -> None:
    stub, first, second, refused = asking.stub, asking.first, asking.second, grpc.StatusCode.UNAUTHENTICATED
    child = asking.child()
    # Tags are for people, and people may change them: they open no door.
    daemon.client.update(child.run_id, remove_tags=child.tags, add_tags=[f"asker:{asking.askers[1].run_id}"])
    others = [daemon.submit(**ENDLESS).run_id, *(run.run_id for run in asking.askers)]
    asks: dict[str, tuple[Any, Any]] = {
        "GetRun": (stub.GetRun, pb.RunRequest),
        "ListRunMetrics": (stub.ListRunMetrics, pb.RunRequest),
        "StreamRunMetrics": (stub.StreamRunMetrics, pb.StreamRunMetricsRequest),
        "WatchRuns": (stub.WatchRuns, pb.WatchRunsRequest),
        "CancelRun": (stub.CancelRun, pb.CancelRunRequest),
    }
    assert {*asks, "SubmitRun", "ListRuns"} == {method.rpartition("/")[2] for method in SUBMITTER_METHODS}
    attempts = [(run_id, first) for run_id in others]
    attempts += [(child.run_id, metadata) for metadata in (second, asking.stranger, (first[0], second[1]))]
    for name, (method, make) in asks.items():
        for run_id, metadata in attempts:
            answer = answer_to(partial(method, make(run_id=run_id), metadata=metadata, timeout=20))
            assert answer is refused, f"{name} of {run_id}"
    everything = pb.ListRunsRequest()
    assert [run.run_id for run in stub.ListRuns(everything, metadata=first, timeout=20).runs] == [child.run_id]
    assert not stub.ListRuns(pb.ListRunsRequest(submitted_by=first[0][1]), metadata=second, timeout=20).runs
    assert answer_to(partial(stub.ListRuns, everything, metadata=asking.stranger, timeout=20)) is refused
    for name in ("PauseRun", "DeleteRun", "UpdateRun", "GetHealth", "Shutdown", "ExportRun", "GetStory"):
        assert call(channels[0], SERVICE.methods_by_name[name], first) is refused
    watched = stub.WatchRuns(pb.WatchRunsRequest(since_seq=1), metadata=first, timeout=20)
    stub.CancelRun(pb.CancelRunRequest(run_id=child.run_id, reason="seen enough"), metadata=first, timeout=20)
    assert daemon.wait_for(child.run_id).reason == "seen enough"
    assert {next(watched).run.run_id for _ in range(4)} == {child.run_id}, "of others it hears nothing"
    watched.cancel()


def test_the_methods_that_need_no_daemon_token_are_those_of_workers_alone() -> None:
    assert {method.rpartition("/")[2] for method in WORKER_METHODS} == {
        "RegisterWorker",
        "Heartbeat",
        "ControlStream",
        "PublishRunMetrics",
        "PublishRunSteps",
        "PublishRunEpisodes",
    }


# ---------------------------------------------------------------------- another user of the machine


STRANGER = """
import json, os, socket, sys
import grpc
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub
from mosaic_wire.testing import wait_until

home, unix, tcp, pid, uid = sys.argv[1:]
os.setgroups([]); os.setgid(int(uid)); os.setuid(int(uid))

def attempt(what):
    try:
        return what() or "done"
    except PermissionError:
        return "PermissionError"
    except grpc.RpcError as error:
        return error.code().name

def connect():
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(unix)

def over_tcp():
    with grpc.insecure_channel(tcp) as channel:
        TrainerServiceStub(channel).GetHealth(pb.GetHealthRequest(), timeout=20)

def signal_it():
    os.kill(int(pid), 15)

readable = []
for folder, folders, files in os.walk(home):
    for name in files:
        try:
            open(os.path.join(folder, name), "rb").close()
            readable.append(os.path.relpath(os.path.join(folder, name), home))
        except PermissionError:
            pass
    for name in (folder, *folders):
        assert not os.access(os.path.join(folder, name), os.W_OK), name
print(json.dumps({
    "token": attempt(lambda: open(f"{home}/trainer/token").read()),
    "socket": attempt(connect),
    "tcp": attempt(over_tcp),
    "environment": attempt(lambda: str(open(f"/proc/{pid}/environ", "rb").read())),
    "signal": attempt(signal_it),
    "readable": readable,
}))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_gets_in_nowhere() -> None:
    folder = Path(tempfile.mkdtemp(prefix="mosaic-open-"))  # tmp_path would keep strangers out by itself
    folder.chmod(0o755)
    earlier = os.umask(0)  # the worst a user may have
    try:
        (folder / "home").mkdir(0o755)
        settings = {**QUICK, "listen": "127.0.0.1"}
        with RunningDaemon(Home(folder / "home"), folder / "config", settings=settings) as daemon:
            run = daemon.wait_for(daemon.submit(**ENDLESS).run_id, "EXEC")
            daemon.wait_for(daemon.submit(timesteps=5).run_id)
            record = running_record(daemon.home)
            assert record is not None
            arguments = [daemon.home.root, record.unix.removeprefix("unix:"), record.tcp, run.pid, NOBODY]
            stranger = subprocess.run(
                [sys.executable, "-c", STRANGER, *map(str, arguments)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert stranger.returncode == 0, stranger.stderr
            found = json.loads(stranger.stdout.splitlines()[-1])
            readable = found.pop("readable")
            assert found == {
                "token": "PermissionError",
                "socket": "PermissionError",
                "tcp": "UNAUTHENTICATED",
                "environment": "PermissionError",
                "signal": "PermissionError",
            }
            # What is installed is no secret; configs, runs, logs and the database are not to be seen.
            assert {name.split("/")[0] for name in readable} <= {"cache", "workers"}
            assert daemon.client.get(run.run_id).status == "EXEC"
    finally:
        os.umask(earlier)
        shutil.rmtree(folder)


def test_private_files_are_private_whatever_the_umask_is(make_daemon) -> None:
    earlier = os.umask(0)
    try:
        daemon = make_daemon()
        daemon.wait_for(daemon.submit(timesteps=5, extras={"wandb_api_key": "0123456789abcdef"}).run_id)
    finally:
        os.umask(earlier)
    home = daemon.home
    secrets = daemon.config_home / "secrets.json"
    for file in (home.token, home.daemon_record, home.database, home.socket, secrets):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    for folder in (home.trainer, home.socket.parent, home.workers, home.cache, home.root / "logs"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_token_that_others_can_read_is_not_used(make_daemon) -> None:
    daemon = make_daemon()
    daemon.stop()
    daemon.home.token.chmod(0o644)
    daemon.spawn()
    assert daemon.wait_for_exit() == 1
    last = daemon.log().splitlines()[-1]
    assert "can be read by other users" in last
    assert f"chmod 600 {daemon.home.token}" in last
    daemon.home.token.chmod(0o600)


# ---------------------------------------------------------------------- what is not gRPC at all


def http(*lines: str, body: str = "") -> bytes:
    return ("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]) + body).encode()


FOREIGN = {
    "a form of a web page": http(
        "POST /gymgui.trainer.TrainerService/Shutdown HTTP/1.1",
        "Host: 127.0.0.1",
        "Origin: http://evil.example",
        "Content-Type: application/x-www-form-urlencoded",
        body="config_json=%7B%7D",
    ),
    "grpc-web": http(
        "POST /gymgui.trainer.TrainerService/ListRuns HTTP/1.1",
        "Host: localhost",
        "Origin: http://evil.example",
        "Content-Type: application/grpc-web+proto",
        "X-Grpc-Web: 1",
        body="\0\0\0\0\0",
    ),
    "a preflight": http(
        "OPTIONS /gymgui.trainer.TrainerService/SubmitRun HTTP/1.1",
        "Host: localhost",
        "Origin: http://evil.example",
        "Access-Control-Request-Method: POST",
    ),
    "a websocket": http(
        "GET / HTTP/1.1",
        "Host: localhost",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "an upgrade to HTTP/2": http(
        "POST /gymgui.trainer.TrainerService/Shutdown HTTP/1.1",
        "Host: localhost",
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    ),
    "a TLS greeting": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "a preface and then rubbish": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
    "zeros": bytes(100_000),
    "one byte": b"\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_stranger_that_does_not_speak_grpc_gets_nothing(daemon: RunningDaemon, kind: str) -> None:
    record = running_record(daemon.home)
    assert record is not None
    host, port = record.tcp.rsplit(":", 1)
    before = len(daemon.client.list(include_archived=True).runs)
    answer = b""
    with socket.create_connection((host, int(port)), timeout=20) as stranger:
        try:
            stranger.sendall(FOREIGN[kind])
            stranger.shutdown(socket.SHUT_WR)
            while len(answer) < 100_000 and (data := stranger.recv(4096)):
                answer += data
        except TimeoutError:
            pytest.fail("the daemon left a stranger hanging")
        except OSError:
            pass  # it hung up on us
    assert b"HTTP/1.1 2" not in answer
    assert b"Access-Control-Allow" not in answer
    assert len(daemon.client.list(include_archived=True).runs) == before
    assert "Traceback" not in daemon.log()


def test_silent_connections_keep_no_other_client_out(daemon: RunningDaemon) -> None:
    record = running_record(daemon.home)
    assert record is not None
    host, port = record.tcp.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(100)]
    try:
        with TrainerClient(record.tcp, daemon.home.token.read_text().strip(), timeout_s=30) as client:
            assert client.health().pid == daemon.pid
    finally:
        for connection in silent:
            connection.close()


# ---------------------------------------------------------------------- the network


def refusal(daemon: RunningDaemon, *flags: str) -> tuple[int, str]:
    """Start a daemon that will not start; its exit code and what it says."""
    command = [sys.executable, "-m", "gym_gui.services.trainer.daemon", "run", *flags]
    ended = subprocess.run(command, env=daemon.variables, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stderr


def test_listening_to_the_network_in_clear_is_refused(make_daemon) -> None:
    daemon = make_daemon(start=False)
    for address in ("0.0.0.0", "192.0.2.1"):
        code, reported = refusal(daemon, "--listen", address)
        assert code == 1
        assert f"listening on '{address}' without TLS would expose this machine to the network" in reported
        assert "--tls-cert" in reported
    assert len(reported.splitlines()) == 1
    code, reported = refusal(daemon, "--listen", "0.0.0.0", "--tls-cert", "/only/half")
    assert (code, "needs both a certificate and a key" in reported) == (1, True)
    settings = daemon.config_home / "settings.toml"
    earlier = settings.read_text()
    settings.write_text(earlier + 'listen = "0.0.0.0"\n')
    code, reported = refusal(daemon)
    assert (code, "is not loopback: set tls_cert and tls_key" in reported) == (2, True)
    settings.write_text(earlier)


def test_over_tls_a_client_that_knows_the_certificate_gets_in_and_others_do_not(make_daemon, tmp_path: Path) -> None:
    ours, key = certificate(tmp_path, "ours")
    theirs, _ = certificate(tmp_path, "theirs")
    daemon = make_daemon(listen="127.0.0.1", tls_cert=str(ours), tls_key=str(key))
    record = running_record(daemon.home)
    assert record is not None
    token = daemon.home.token.read_text().strip()
    with TrainerClient(record.tcp, token, tls_ca=ours, timeout_s=30) as client:
        assert client.health().pid == daemon.pid
        run_id = daemon.submit(timesteps=5).run_id
        daemon.wait_for(run_id)
        assert client.get(run_id).outcome == "completed"
    with TrainerClient(record.tcp, "0" * 64, tls_ca=ours) as client, pytest.raises(NotAllowed):
        client.health()
    for authority in (None, theirs):  # in clear, and trusting another CA
        with (
            TrainerClient(record.tcp, token, tls_ca=authority, timeout_s=2) as client,
            pytest.raises(DaemonUnreachable),
        ):
            client.health()
    assert "Traceback" not in daemon.log()


def test_unusable_certificates_are_reported_for_what_they_are(make_daemon, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "ours")
    _, another_key = certificate(tmp_path, "theirs")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\nnot base64\n")
    daemon = make_daemon(start=False)
    for files in ((garbage, key), (cert, garbage), (cert, another_key), (cert, tmp_path / "missing")):
        code, reported = refusal(daemon, "--tls-cert", str(files[0]), "--tls-key", str(files[1]))
        assert code == 1
        assert "TLS" in reported.splitlines()[-1]
        assert "busy" not in reported
