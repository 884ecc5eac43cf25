"""The conformance suite: inherit it in your worker's tests, and the daemon will get along with your worker.

    class TestMyWorker(WorkerConformance):
        worker_argv = [sys.executable, "-m", "my_worker.cli"]
        worker_config = {"algo": "mine", "env_id": "none", "total_timesteps": 50}
        endless_config = {"algo": "mine", "env_id": "none", "total_timesteps": 10**9}

Each test starts the worker as a real process, as the daemon would, against a real gRPC server that plays the daemon.
Tests of abilities that the worker does not claim in its capabilities are skipped. Needs pytest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from mosaic_wire import PROTOCOL_VERSION, env
from mosaic_wire.checkpoints import last_good_checkpoint, verify_checkpoint
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home
from mosaic_wire.session import CommandKind
from mosaic_wire.testing import GENEROUS_S, PlayDaemon, WorkerProcess, wait_until
from mosaic_wire.worker_spec import WorkerSpec

CANARY = "canary-5f3b1d9e7a2c4680"
"""A secret that must not turn up anywhere"""

StartWorker = Callable[..., WorkerProcess]


class WorkerConformance:
    """Tests that every worker must pass. A subclass defines how to start it and with which configs."""

    worker_argv: Sequence[str]
    """How to start it, as in `WorkerSpec.argv`"""
    worker_config: Mapping[str, Any]
    """A flat worker config (without run_id) that trains for about half a second and completes"""
    endless_config: Mapping[str, Any]
    """One that does not complete while a test watches it, takes a step every moment, and stops within seconds"""
    modules_describe_must_not_import: Sequence[str] = ("torch", "jax", "tensorflow")
    patience_s: float = GENEROUS_S
    """Timeout of every wait; raise it for a worker that starts slowly"""

    # -- fixtures

    @pytest.fixture
    def home(self, tmp_path: Path) -> Home:
        """Return an empty home."""
        return Home(tmp_path / "home")

    @pytest.fixture
    def daemon(self) -> Iterator[PlayDaemon]:
        """Yield a daemon that records what the worker sends."""
        with PlayDaemon(run_token="run-token-of-this-test") as daemon:
            yield daemon

    @pytest.fixture
    def start(self, home: Home) -> Iterator[StartWorker]:
        """Starts the worker; kills what is left of it after the test."""
        started: list[WorkerProcess] = []

        def start(config: Mapping[str, Any] | str, **options: Any) -> WorkerProcess:
            started.append(WorkerProcess(self.worker_argv, config, home, **options))
            return started[-1]

        yield start
        for worker in started:
            worker.close()

    @pytest.fixture(scope="class")
    @classmethod
    def described(cls) -> subprocess.CompletedProcess[str]:
        """Output of `--describe`, and its imports on stderr; run once."""
        variables = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", env.CUDA_VISIBLE_DEVICES: ""}
        return subprocess.run(
            [*cls.worker_argv, "--describe"],
            env=variables,
            capture_output=True,
            text=True,
            timeout=cls.patience_s,
            check=True,
            stdin=subprocess.DEVNULL,
        )

    @pytest.fixture(scope="class")
    @classmethod
    def spec(cls, described: subprocess.CompletedProcess[str]) -> WorkerSpec:
        """Return what `--describe` prints."""
        return WorkerSpec.from_json(json.loads(described.stdout))

    @pytest.fixture(scope="class")
    @classmethod
    def completed(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
        """A run beside a daemon from its start to its end, with a secret in its config; several tests examine it."""
        extras = {**cls.worker_config.get("extras", {}), "wandb_api_key": CANARY}
        config, home = {**cls.worker_config, "extras": extras}, Home(tmp_path_factory.mktemp("completed") / "home")
        with (
            PlayDaemon(run_token="run-token-of-this-class") as daemon,
            WorkerProcess(cls.worker_argv, config, home, daemon=daemon) as worker,
        ):
            worker.wait(cls.patience_s)
            yield worker

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
        """A run without a daemon from its start to its end."""
        home = Home(tmp_path_factory.mktemp("alone") / "home")
        with WorkerProcess(cls.worker_argv, cls.worker_config, home) as worker:
            worker.wait(cls.patience_s)
            yield worker

    def _wait(self, predicate: Callable[[], object], what: str, worker: WorkerProcess) -> None:
        def over_or_true() -> object:
            return predicate() or worker.process.poll() is not None

        wait_until(over_or_true, timeout_s=self.patience_s)
        assert predicate(), (
            f"{what} did not happen; exit code {worker.process.poll()}; stderr: {worker.stderr()[-2000:]}"
        )

    def _wait_for_steps(self, worker: WorkerProcess, daemon: PlayDaemon) -> None:
        self._wait(lambda: daemon.heartbeats and daemon.heartbeats[-1].step > 0, "a heartbeat with a step", worker)

    def _check_ending(self, worker: WorkerProcess, event: str, outcome: ExitOutcome, exit_code: int) -> None:
        """All four places report the same ending."""
        assert worker.wait(self.patience_s) == exit_code, worker.stderr()[-2000:]
        events = worker.events()
        assert [number.seq for number in events] == list(range(1, len(events) + 1)), "seq must have no gaps"
        assert all(known.run_id == worker.run_id for known in events)
        assert events[0].event == "run_started"
        assert str(events[-1].event) == event
        record = worker.exit_record()
        assert record is not None, "exit.json is missing or unreadable"
        assert (record.run_id, record.outcome, record.exit_code) == (worker.run_id, outcome, exit_code)
        assert record.last_seq == events[-1].seq
        manifest = AnalyticsManifest.read(worker.folder.manifest)
        assert (manifest.run_id, manifest.outcome) == (worker.run_id, str(outcome))
        assert manifest.finalised_by == "worker"
        assert wait_until(lambda: not worker.survivors()), f"processes were left behind: {worker.survivors()}"

    # -- describing

    def test_describe_prints_a_valid_spec(self, spec: WorkerSpec) -> None:
        assert spec.name == spec.capabilities.worker_type
        assert spec.algorithms, "a worker without algorithms cannot run anything"
        assert spec.algorithm(str(self.worker_config["algo"])) is not None

    def test_describe_does_not_import_what_is_slow(self, described: subprocess.CompletedProcess[str]) -> None:
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in described.stderr.splitlines()}
        slow = imported & set(self.modules_describe_must_not_import)
        assert not slow, f"--describe imports {', '.join(sorted(slow))}; import it where it is used"

    # -- a run that goes well

    def test_a_run_registers_reports_and_completes(self, completed: WorkerProcess) -> None:
        worker, daemon = completed, _daemon_of(completed)
        self._check_ending(worker, "run_completed", ExitOutcome.COMPLETED, 0)
        registration = daemon.registrations[0]
        assert (registration.run_id, registration.attempt) == (worker.run_id, 1)
        assert registration.protocol_version == PROTOCOL_VERSION
        assert registration.algo == self.worker_config["algo"]
        assert registration.env_id == self.worker_config["env_id"]
        assert json.loads(registration.capabilities_json)["worker_type"]
        assert not daemon.strangers, f"calls without the right token: {daemon.strangers}"
        assert worker.event_names().count("run_completed") == 1

    def test_the_daemon_hears_of_the_last_event(self, completed: WorkerProcess) -> None:
        beats = _daemon_of(completed).heartbeats
        assert max(beat.lifecycle_seq for beat in beats) == completed.events()[-1].seq

    def test_lifecycle_lines_also_go_to_stdout(self, alone: WorkerProcess) -> None:
        printed = [json.loads(line)["event"] for line in alone.stdout().splitlines() if line.startswith('{"event"')]
        assert printed == alone.event_names()

    def test_a_run_works_without_a_daemon(self, alone: WorkerProcess) -> None:
        self._check_ending(alone, "run_completed", ExitOutcome.COMPLETED, 0)

    def test_a_nested_config_works_too(self, start: StartWorker, spec: WorkerSpec) -> None:
        part = {"type": spec.name, "module": spec.module, "config": dict(self.worker_config)}
        worker = start(json.dumps({"run_name": "nested", "metadata": {"worker": part}}))
        self._check_ending(worker, "run_completed", ExitOutcome.COMPLETED, 0)

    def test_a_dry_run_touches_nothing(self, start: StartWorker) -> None:
        worker = start(self.worker_config, flags=["--dry-run"])
        assert worker.wait(self.patience_s) == 0, worker.stderr()[-2000:]
        assert not list(worker.folder.root.iterdir())

    # -- bad input

    @pytest.mark.parametrize(
        ("damage", "named"),
        [
            ({"total_timesteps": 0}, "total_timesteps"),
            ({"total_timesteps": "many"}, "total_timesteps"),
            ({"algo": "no-such-algorithm"}, "no-such-algorithm"),
            ({"seed": [1]}, "seed"),
            ({"extras": {"algo_params": {"no_such_parameter": 1}}}, "no_such_parameter"),
            ({"totl_timesteps": 5}, "totl_timesteps"),
        ],
    )
    def test_a_bad_config_is_named_and_leaves_nothing(
        self, start: StartWorker, daemon: PlayDaemon, damage: dict[str, Any], named: str
    ) -> None:
        self._check_refusal(start({**self.worker_config, **damage}, daemon=daemon), named)
        assert not daemon.registrations

    def test_a_half_written_config_is_named(self, start: StartWorker) -> None:
        self._check_refusal(start(json.dumps(dict(self.worker_config))[:-10]), "worker-")

    def test_a_refused_registration_ends_the_worker(self, start: StartWorker, daemon: PlayDaemon) -> None:
        daemon.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "this run is over already")
        self._check_refusal(start(self.worker_config, daemon=daemon), "this run is over already")

    def test_a_wrong_run_token_ends_the_worker(self, start: StartWorker, daemon: PlayDaemon) -> None:
        self._check_refusal(start(self.worker_config, daemon=daemon, run_token="another-runs-token"), "token")

    def _check_refusal(self, worker: WorkerProcess, named: str) -> None:
        assert worker.wait(self.patience_s) == 2, worker.stderr()[-2000:]
        assert named in worker.stderr(), f"stderr must name {named!r}: {worker.stderr()[-2000:]}"
        assert "Traceback" not in worker.stderr()
        assert not list(worker.folder.root.iterdir()), "a refused run must leave no files"

    # -- stopping

    def test_sigterm_cancels_the_run(self, start: StartWorker, daemon: PlayDaemon) -> None:
        worker = start(self.endless_config, daemon=daemon)
        self._wait_for_steps(worker, daemon)
        worker.process.send_signal(signal.SIGTERM)
        self._check_ending(worker, "run_cancelled", ExitOutcome.CANCELLED, 130)

    def test_sigterm_cancels_a_run_without_a_daemon(self, start: StartWorker) -> None:
        worker = start(self.endless_config)
        self._wait(lambda: "run_started" in worker.event_names(), "run_started", worker)
        worker.process.send_signal(signal.SIGTERM)
        self._check_ending(worker, "run_cancelled", ExitOutcome.CANCELLED, 130)

    # -- a daemon that comes and goes

    def test_a_daemon_may_arrive_late(self, start: StartWorker, daemon: PlayDaemon) -> None:
        daemon.stop()
        worker = start(self.worker_config, daemon=daemon)
        daemon.start()
        self._check_ending(worker, "run_completed", ExitOutcome.COMPLETED, 0)

    def test_a_run_outlives_a_restart_of_the_daemon(self, start: StartWorker, daemon: PlayDaemon) -> None:
        worker = start(self.endless_config, daemon=daemon)
        self._wait_for_steps(worker, daemon)
        daemon.stop()
        step = daemon.heartbeats[-1].step
        daemon.heartbeats.clear()
        streams = daemon.control_streams
        daemon.start()
        self._wait(
            lambda: daemon.heartbeats and daemon.heartbeats[-1].step > step, "a heartbeat of a later step", worker
        )
        self._wait(lambda: daemon.control_streams > streams, "a new control stream", worker)
        assert not daemon.strangers, "the session token stays valid over a restart"
        worker.process.send_signal(signal.SIGTERM)
        self._check_ending(worker, "run_cancelled", ExitOutcome.CANCELLED, 130)

    def test_a_run_completes_when_the_daemon_is_gone_for_good(self, start: StartWorker, daemon: PlayDaemon) -> None:
        worker = start(self.worker_config, daemon=daemon)
        self._wait(lambda: daemon.registrations and worker.events(), "the registration", worker)
        daemon.stop()
        self._check_ending(worker, "run_completed", ExitOutcome.COMPLETED, 0)

    # -- pausing and releasing

    def test_pause_holds_the_run_and_resume_lets_it_go_on(
        self, start: StartWorker, daemon: PlayDaemon, spec: WorkerSpec
    ) -> None:
        if not spec.capabilities.supports_pause:
            pytest.skip("the worker does not claim supports_pause")
        worker = self._pause(start, daemon)
        beats = len(daemon.heartbeats)
        self._wait(lambda: len(daemon.heartbeats) > beats + 3, "heartbeats while paused", worker)
        held = {beat.step for beat in daemon.heartbeats[beats:]}
        assert len(held) == 1, f"steps were taken while paused: {sorted(held)}"
        daemon.send(CommandKind.PAUSE)  # a repetition has no effect
        daemon.send(CommandKind.RESUME)
        daemon.send(CommandKind.RESUME)
        self._wait(lambda: daemon.heartbeats[-1].step > max(held), "a step after the resume", worker)
        assert worker.event_names().count("paused") == worker.event_names().count("resumed") == 1
        worker.process.send_signal(signal.SIGTERM)
        self._check_ending(worker, "run_cancelled", ExitOutcome.CANCELLED, 130)

    def test_a_paused_run_can_be_cancelled(self, start: StartWorker, daemon: PlayDaemon, spec: WorkerSpec) -> None:
        if not spec.capabilities.supports_pause:
            pytest.skip("the worker does not claim supports_pause")
        worker = self._pause(start, daemon)
        worker.process.send_signal(signal.SIGTERM)
        self._check_ending(worker, "run_cancelled", ExitOutcome.CANCELLED, 130)

    def test_a_released_run_leaves_a_checkpoint_and_goes_on_from_it(
        self, start: StartWorker, daemon: PlayDaemon, spec: WorkerSpec
    ) -> None:
        if not spec.capabilities.supports_checkpointing:
            pytest.skip("the worker does not claim supports_checkpointing")
        worker = start(self.endless_config, daemon=daemon)
        self._wait_for_steps(worker, daemon)
        self._wait(daemon.is_listened_to, "the control stream", worker)
        daemon.send(CommandKind.RELEASE)
        self._check_ending(worker, "paused", ExitOutcome.RELEASED, 0)
        assert worker.events()[-1].payload.get("release") is True
        entry = last_good_checkpoint(worker.folder)
        assert entry is not None, "the manifest lists no good checkpoint"
        folder = worker.folder.root / entry.path
        assert verify_checkpoint(folder, entry.sha256) is None
        extras = {**self.endless_config.get("extras", {}), "mode": "resume_training", "checkpoint_path": str(folder)}
        again = start({**self.endless_config, "extras": extras}, run_id=worker.run_id, daemon=daemon, attempt=2)
        seen = len(daemon.heartbeats)
        self._wait(lambda: "checkpoint_loaded" in again.event_names(), "checkpoint_loaded", again)
        self._wait(lambda: any(beat.step > entry.step for beat in daemon.heartbeats[seen:]), "a later step", again)
        first_step = next(beat.step for beat in daemon.heartbeats[seen:] if beat.step > 0)
        assert first_step >= entry.step, "the resumed run began before its checkpoint"
        again.process.send_signal(signal.SIGTERM)
        self._check_ending(again, "run_cancelled", ExitOutcome.CANCELLED, 130)

    def test_a_damaged_checkpoint_is_refused(self, start: StartWorker, spec: WorkerSpec, tmp_path: Path) -> None:
        if not spec.capabilities.supports_checkpointing:
            pytest.skip("the worker does not claim supports_checkpointing")
        (tmp_path / "state.json").write_text('{"step": 5, "files"')
        extras = {"mode": "resume_training", "checkpoint_path": str(tmp_path)}
        self._check_refusal(start({**self.worker_config, "extras": extras}), "state.json")

    def _pause(self, start: StartWorker, daemon: PlayDaemon) -> WorkerProcess:
        worker = start(self.endless_config, daemon=daemon)
        self._wait_for_steps(worker, daemon)
        self._wait(daemon.is_listened_to, "the control stream", worker)
        daemon.send(CommandKind.PAUSE)
        self._wait(lambda: "paused" in worker.event_names(), "paused", worker)
        return worker

    # -- secrets

    def test_secrets_turn_up_nowhere(self, completed: WorkerProcess) -> None:
        assert completed.wait(self.patience_s) == 0, completed.stderr()[-2000:]
        daemon = _daemon_of(completed)
        received = [*daemon.registrations, *daemon.heartbeats]
        assert not [message for message in received if CANARY in str(message)]
        # The config alone has it: the test wrote it there; the daemon would not.
        files = [path for path in completed.home.root.rglob("*") if path.is_file() and path != completed.config_file]
        found = [path for path in files if CANARY.encode() in path.read_bytes()]
        assert not found, f"the secret stands in {found}"
        token = daemon.run_token.encode()
        found = [path for path in files if token in path.read_bytes()]
        assert not found, f"the run token stands in {found}"


def _daemon_of(worker: WorkerProcess) -> PlayDaemon:
    assert worker.daemon is not None
    return worker.daemon
