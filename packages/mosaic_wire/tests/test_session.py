"""The worker's session against a daemon that comes, goes, refuses and commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.errors import RegistrationRefused, SessionError, SessionStopped
from mosaic_wire.exit_record import ExitOutcome, ExitRecord
from mosaic_wire.lifecycle import LifecycleKind, LifecycleReader
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.session import CommandKind, WorkerSession
from mosaic_wire.testing import PlayDaemon, wait_until

RUN_ID = "01M7F8P2TF767091SW55X7DC97"
CAPABILITIES = WorkerCapabilities("random")
MakeSession = Callable[..., WorkerSession]


@pytest.fixture
def daemon() -> Iterator[PlayDaemon]:
    with PlayDaemon(run_token="the-token") as daemon:
        yield daemon


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeSession]:
    sessions: list[WorkerSession] = []

    def make(target: str | None, **options: Any) -> WorkerSession:
        options = {"run_token": "the-token", "heartbeat_s": 0.05, "algo": "ppo", "env_id": "none", **options}
        sessions.append(WorkerSession(RUN_ID, tmp_path / "run", capabilities=CAPABILITIES, target=target, **options))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


def _names(session: WorkerSession) -> list[str]:
    return [str(event.event) for event in LifecycleReader(session.run_folder.lifecycle).read()]


def _heard(daemon: PlayDaemon, predicate: Callable[[Any], bool]) -> bool:
    return wait_until(lambda: any(predicate(beat) for beat in list(daemon.heartbeats)))


# -- with a daemon


def test_a_run_from_registration_to_its_end(make: MakeSession, daemon: PlayDaemon) -> None:
    session = make(daemon.target, attempt=3, extras={"x": 1})
    session.open()
    session.started({"seed": 1})
    session.progress(10, 100, 7.5, 250.0)
    assert _heard(daemon, lambda beat: beat.step == 10 and beat.total == 100 and beat.episodic_return == 7.5)
    session.finish(ExitOutcome.COMPLETED, payload={"mean": 1}, exit_code=0, manifest=AnalyticsManifest(RUN_ID))
    [registration] = daemon.registrations
    assert (registration.run_id, registration.attempt, registration.pid) == (RUN_ID, 3, os.getpid())
    assert (registration.algo, registration.env_id, json.loads(registration.extras_json)) == ("ppo", "none", {"x": 1})
    assert daemon.heartbeats[-1].lifecycle_seq == 2  # reported before finish returned
    assert daemon.heartbeats[-1].sps == 250
    assert _names(session) == ["run_started", "run_completed"]
    record = ExitRecord.read(session.run_folder.exit_record)
    assert record is not None
    assert (record.outcome, record.attempt, record.last_seq) == (ExitOutcome.COMPLETED, 3, 2)
    manifest = AnalyticsManifest.read(session.run_folder.manifest)
    assert (manifest.outcome, manifest.finalised_by) == ("completed", "worker")
    assert not daemon.strangers


def test_an_event_is_reported_at_once_and_not_with_the_next_heartbeat(make: MakeSession) -> None:
    with PlayDaemon(run_token="the-token", heartbeat_s=3600) as daemon:
        session = make(daemon.target)
        session.open()
        for kind in (LifecycleKind.RUN_STARTED, LifecycleKind.CHECKPOINT_SAVED):
            seq = session.emit(kind).seq
            assert _heard(daemon, lambda beat, seq=seq: beat.lifecycle_seq == seq)


def test_a_heartbeat_says_how_long_ago_the_last_step_was(make: MakeSession, daemon: PlayDaemon) -> None:
    session = make(daemon.target)
    session.open()
    session.progress(1, 2)
    assert _heard(daemon, lambda beat: beat.step == 1 and beat.seconds_since_step > 0.2)
    session.progress(1, 2)  # no step forward
    before = daemon.heartbeats[-1].seconds_since_step
    assert _heard(daemon, lambda beat: beat.seconds_since_step > before)
    session.progress(2, 2)
    assert _heard(daemon, lambda beat: beat.step == 2 and beat.seconds_since_step < before)


def test_commands_arrive_once_each(make: MakeSession, daemon: PlayDaemon) -> None:
    session = make(daemon.target)
    session.open()
    assert wait_until(daemon.is_listened_to)
    pause, resume, release = CommandKind.PAUSE, CommandKind.RESUME, CommandKind.RELEASE
    for kind in (resume, pause, pause, resume, resume, pause, release, release, pause, resume):
        daemon.send(kind)
    received = [session.next_command(timeout_s=30) for _ in range(4)]
    assert received == [pause, resume, pause, release]
    assert session.next_command() is None


def test_a_session_outlives_its_daemon(make: MakeSession, daemon: PlayDaemon) -> None:
    session = make(daemon.target)
    session.open()
    assert wait_until(daemon.is_listened_to)
    for round_ in range(1, 3):
        daemon.stop()
        seq = session.emit(LifecycleKind.CHECKPOINT_SAVED).seq
        session.progress(round_, 10)
        daemon.start()
        assert _heard(daemon, lambda beat, seq=seq: beat.lifecycle_seq == seq)
        assert wait_until(daemon.is_listened_to)
        daemon.send(CommandKind.PAUSE)
        assert session.next_command(timeout_s=30) is CommandKind.PAUSE
        daemon.send(CommandKind.RESUME)
        assert session.next_command(timeout_s=30) is CommandKind.RESUME
    assert len(daemon.registrations) == 1
    assert not daemon.strangers


def test_an_ending_does_not_wait_for_a_daemon_that_has_exited(make: MakeSession, daemon: PlayDaemon) -> None:
    session = make(daemon.target)
    session.open()
    session.started()
    daemon.stop()
    session.finish(ExitOutcome.COMPLETED, exit_code=0)
    assert _names(session)[-1] == "run_completed"
    assert ExitRecord.read(session.run_folder.exit_record) is not None


def test_a_daemon_that_arrives_late_is_waited_for(make: MakeSession, daemon: PlayDaemon) -> None:
    daemon.stop()
    threading.Timer(0.3, daemon.start).start()
    make(daemon.target).open(timeout_s=60)
    assert daemon.registrations


@pytest.mark.slow  # videos are recorded beside sessions in every CI
def test_processes_that_a_worker_starts_are_not_hurt_by_its_session(make: MakeSession, daemon: PlayDaemon) -> None:
    make(daemon.target).open()
    for _ in range(150):  # one in fifty was aborted between fork and exec
        started = subprocess.run(["true"], preexec_fn=os.setpgrp, stdin=subprocess.DEVNULL, check=False)
        assert started.returncode == 0


def test_an_unanswered_registration_is_repeated_by_the_same_instance(make: MakeSession, daemon: PlayDaemon) -> None:
    daemon.refusal = (grpc.StatusCode.UNAVAILABLE, "not ready yet")

    def accept_after_two() -> None:
        assert wait_until(lambda: len(daemon.registrations) > 1)
        daemon.refusal = None

    threading.Thread(target=accept_after_two).start()
    make(daemon.target).open(timeout_s=60)
    assert len({registration.instance for registration in daemon.registrations}) == 1
    assert len(daemon.registrations) > 1


@pytest.mark.parametrize(
    "code", ["UNAUTHENTICATED", "FAILED_PRECONDITION", "ALREADY_EXISTS", "INVALID_ARGUMENT", "NOT_FOUND"]
)
def test_a_refusal_carries_the_daemons_words_and_leaves_nothing(
    make: MakeSession, daemon: PlayDaemon, code: str, tmp_path: Path
) -> None:
    daemon.refusal = (grpc.StatusCode[code], "because I say so")
    with pytest.raises(RegistrationRefused, match="because I say so"):
        make(daemon.target).open()
    assert not (tmp_path / "run").exists()
    assert len(daemon.registrations) == 1


def test_a_second_worker_of_the_same_attempt_is_refused(make: MakeSession, daemon: PlayDaemon) -> None:
    make(daemon.target).open()
    with pytest.raises(RegistrationRefused, match="another worker"):
        make(daemon.target).open()


@pytest.mark.parametrize("target", ["unix:/nowhere/daemon.sock", "127.0.0.1:1"])
def test_a_missing_daemon_is_reported_in_a_sentence(make: MakeSession, target: str, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"no trainer daemon let run .* within 0.3 s"):
        make(target).open(timeout_s=0.3)
    assert not (tmp_path / "run").exists()


def test_a_stop_ends_the_wait_for_a_daemon(make: MakeSession) -> None:
    session = make("unix:/nowhere/daemon.sock")
    threading.Timer(0.2, session.stop_requested.set).start()
    with pytest.raises(SessionStopped):
        session.open(timeout_s=600)


def test_secrets_are_removed_from_all_that_is_reported(
    make: MakeSession, daemon: PlayDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-in-the-environment")
    extras = {"wandb_api_key": "canary-in-extras", "nested": {"password": "canary-nested"}, "lr": 1}
    session = make(daemon.target, extras=extras)
    session.open()
    session.started({"argv": ["--key=canary-in-extras"], "token": "canary-by-key"})
    session.finish(
        ExitOutcome.FAILED,
        reason="bad key canary-in-the-environment, canary-nested, the-token",
        exit_code=1,
        manifest=AnalyticsManifest(RUN_ID),
    )
    reported = "".join(str(message) for message in (*daemon.registrations, *daemon.heartbeats))
    written = "".join(path.read_text() for path in session.run_folder.root.rglob("*") if path.is_file())
    for text in (reported, written, capsys.readouterr().out):
        assert "canary" not in text
        assert "the-token" not in text
    assert json.loads(daemon.registrations[0].extras_json)["lr"] == 1


# -- pausing


def test_hold_waits_for_resume(make: MakeSession, daemon: PlayDaemon) -> None:
    session = make(daemon.target)
    session.open()
    assert wait_until(daemon.is_listened_to)
    threading.Timer(0.1, lambda: daemon.send(CommandKind.RELEASE)).start()
    assert session.pause({"step": 5}) is CommandKind.RELEASE
    assert _names(session) == ["paused"]
    session.finish(ExitOutcome.RELEASED, exit_code=0)
    last = LifecycleReader(session.run_folder.lifecycle).read()[-1]
    assert (last.event, last.payload) == (LifecycleKind.PAUSED, {"release": True})


def test_sigterm_ends_a_hold_and_handlers_are_given_back(make: MakeSession) -> None:
    before = signal.getsignal(signal.SIGTERM)
    session = make(None)
    session.open()
    session.install_signal_handlers()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert session.pause() is None
    assert session.stop_requested.is_set()
    session.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_while_the_main_thread_waits_for_a_stop_does_not_lock_it_up(tmp_path: Path) -> None:
    # The moment that no test can hit: the signal comes while `wait` holds the lock of the event.
    program = """if True:
        import os, signal, sys
        from pathlib import Path
        from mosaic_wire.capabilities import WorkerCapabilities
        from mosaic_wire.session import WorkerSession
        capabilities = WorkerCapabilities(worker_type="test")
        session = WorkerSession(sys.argv[1], Path("."), capabilities=capabilities, target=None)
        session.install_signal_handlers()
        with session.stop_requested._cond:
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))  # the handler runs between these steps
        sys.exit(0 if session.stop_requested.wait(30) and session.next_command(30) is None else 1)
    """
    argv = [sys.executable, "-c", program, RUN_ID]
    assert subprocess.run(argv, cwd=tmp_path, timeout=60, check=False).returncode == 0


# -- without a daemon


def test_without_a_target_files_and_stdout_are_all(make: MakeSession, capsys: pytest.CaptureFixture[str]) -> None:
    session = make(None)
    session.open()
    session.started()
    session.progress(1, 2)
    assert session.next_command() is None
    session.finish(ExitOutcome.CANCELLED, reason="asked to", exit_code=130)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == _names(session) == ["run_started", "run_cancelled"]


def test_an_earlier_attempts_exit_record_is_removed(make: MakeSession, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    ExitRecord.now(RUN_ID, 1, ExitOutcome.RELEASED, reason="", exit_code=0, last_seq=3).write(
        tmp_path / "run" / "exit.json"
    )
    make(None, attempt=2).open()
    assert not (tmp_path / "run" / "exit.json").exists()


def test_a_completion_that_cannot_be_written_is_an_error_and_then_a_failure(
    make: MakeSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = make(None)
    session.open()
    session.started()
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        session.finish(ExitOutcome.COMPLETED, exit_code=0)
    assert ExitRecord.read(session.run_folder.exit_record) is None
    session.finish(ExitOutcome.FAILED, reason="No space left on device", exit_code=1)
    monkeypatch.setattr(os, "write", real)
    assert "could not be written" in capsys.readouterr().err
    record = ExitRecord.read(session.run_folder.exit_record)
    assert record is not None
    assert record.outcome is ExitOutcome.FAILED


def test_a_full_stdout_does_not_hurt_the_run(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from mosaic_wire.session import *; from mosaic_wire.capabilities import *\n"
        f"s = WorkerSession({RUN_ID!r}, Path({str(tmp_path)!r}), capabilities=WorkerCapabilities('x'), target=None)\n"
        "s.open(); s.started(); s.close()"
    )
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", code], stdout=full, check=False).returncode == 0
    assert [str(event.event) for event in LifecycleReader(tmp_path / "lifecycle.jsonl").read()] == ["run_started"]


def test_the_token_is_not_inherited_by_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(env.MOSAIC_RUN_TOKEN, "the-token")
    monkeypatch.setenv(env.MOSAIC_RUN_ATTEMPT, "4")
    session = WorkerSession.from_environment(RUN_ID, tmp_path, capabilities=CAPABILITIES, target=None)
    assert session.attempt == 4
    assert session.redact("say the-token") == "say •••"
    assert env.MOSAIC_RUN_TOKEN not in os.environ


def test_a_session_without_a_daemon_does_not_import_grpc(tmp_path: Path) -> None:
    code = (
        "import sys; from mosaic_wire.session import WorkerSession; from mosaic_wire.capabilities import *;"
        "import mosaic_wire.worker_config, mosaic_wire.checkpoints, mosaic_wire.worker_spec\n"
        f"s = WorkerSession({RUN_ID!r}, __import__('pathlib').Path({str(tmp_path)!r}), capabilities="
        "WorkerCapabilities('x'), target=None); s.open(); s.close()\n"
        "assert not {'grpc', 'google', 'pydantic', 'ulid', 'platformdirs'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
