"""The worker process of a custom_script run: starts the script, follows it, ends its whole process group."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.files import write_bytes_atomically
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import WorkerSession

from cleanrl_worker.analytics import build_manifest
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.description import MODULE
from cleanrl_worker.modes.custom_script import CustomScript
from cleanrl_worker.scripts.headline import Headline, HeadlineFollower
from cleanrl_worker.telemetry import LifecycleEmitter
from cleanrl_worker.training_process import signal_name
from cleanrl_worker.worker_run import (
    EXIT_CANCELLED,
    EXIT_DONE,
    EXIT_FAILED,
    POLL_S,
    SHARE_OF_GRACE,
    Ending,
    WorkerRun,
    grace_s,
    print_tail,
)

logger = logging.getLogger(__name__)

_TAIL_BYTES, _TAIL_LINES = 8192, 20


class CustomScriptRun(WorkerRun):
    """One run of a person's own script."""

    def __init__(
        self, config: CleanRLWorkerConfig, script: CustomScript, folder: RunFolder, *, target: str | None
    ) -> None:
        super().__init__(config, folder, target=target)
        self._script = script
        self._argv = [*script.argv(), *(config.extras.get("script_arguments") or ())]
        self._headline = Headline()

    def capabilities(self) -> WorkerCapabilities:
        # The daemon pauses it with SIGSTOP; only the script knows how it could go on later.
        return replace(super().capabilities(), supports_pause=False, supports_checkpointing=False)

    @property
    def variables(self) -> dict[str, str]:
        """What the script finds in its environment, besides the worker's own."""
        here = str(Path(sys.executable).parent)
        return {
            env.MOSAIC_RUN_ID: self._config.run_id,
            env.MOSAIC_RUN_DIR: str(self._folder.root),
            env.MOSAIC_CHECKPOINT_DIR: str(self._folder.checkpoints),
            env.MOSAIC_CUSTOM_SCRIPTS_DIR: str(self._script.root),
            env.MOSAIC_SCRIPT_RUN: self._config.run_id,  # a worker the script starts makes a phase of this run
            # `python` and `cleanrl-worker` in the script are those of this installation.
            "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",
        }

    def summary(self) -> dict[str, Any]:
        return {
            "run_id": self._config.run_id, "mode": self._config.mode, "script": str(self._script.path),
            "sha256": self._script.sha256, **self._script.facts, "argv": self._argv,
            "environment": self.variables, "run_dir": str(self._folder.root),
        }  # fmt: skip

    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        manifest = build_manifest(
            self._config, self._folder, argv=self._argv, attempt=session.attempt,
            threads=int(os.environ.get(env.THREAD_COUNTS[0]) or os.cpu_count() or 1),
        )  # fmt: skip
        copy = self._folder.root / "scripts" / self._script.path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(copy, self._script.content)
        facts = {
            "path": str(self._script.path), "sha256": self._script.sha256,
            "copy": str(copy.relative_to(self._folder.root)), **self._script.facts,
        }  # fmt: skip
        return replace(manifest, extra={**manifest.extra, "script": facts})

    @property
    def _total(self) -> int:
        """The steps the script is to take; 0: neither the config nor the script says so."""
        given = self._config.total_timesteps  # a config cannot leave it out: 1 is as good as nothing
        return given if given > 1 else int(self._script.facts.get("total_timesteps") or 0)

    def started_facts(self) -> dict[str, Any]:
        return {
            "seed": self._config.seed, "total_timesteps": self._total, "module": MODULE,
            "mode": self._config.mode, "script": str(self._script.path), "sha256": self._script.sha256,
            **{name: value for name, value in self._script.facts.items() if name != "total_timesteps"},
        }  # fmt: skip

    def supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        for folder in (self._folder.logs, self._folder.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        stdout, stderr = self._folder.logs / "stdout.log", self._folder.logs / "stderr.log"
        follower = HeadlineFollower(self._folder, in_phases=True)
        start = stderr.stat().st_size if stderr.exists() else 0
        try:
            with stdout.open("ab") as out, stderr.open("ab") as err:
                process = subprocess.Popen(
                    self._argv, cwd=self._folder.root, env={**os.environ, **self.variables},
                    stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            reason = f"the script cannot be started: {error.strerror or error}"
            return Ending(ExitOutcome.FAILED, EXIT_FAILED, reason, {"error_type": "SpawnFailed"})
        try:
            self._wait(process, session, follower)
        finally:
            _end_group(process)  # whatever it left running in the background ends with it
        self._look(session, follower, now=True)
        emitter.list_artefacts(self._folder.tensorboard)
        return self._ending(session, emitter, process.returncode, _tail(stderr, start))

    def _wait(self, process: subprocess.Popen[bytes], session: WorkerSession, follower: HeadlineFollower) -> None:
        deadline: float | None = None
        while True:
            try:
                process.wait(POLL_S)
                return
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if session.stop_requested.is_set() and deadline is None:
                deadline = now + grace_s() * SHARE_OF_GRACE
                _signal_group(process, signal.SIGTERM)
            elif deadline is not None and now > deadline:
                logger.warning("the script did not end within the grace; it is killed")
                _signal_group(process, signal.SIGKILL)
            self._look(session, follower)

    def _look(self, session: WorkerSession, follower: HeadlineFollower, *, now: bool = False) -> None:
        if follower.has_news(now=now):
            self._headline = newest = follower.newest
            session.progress(newest.step, self._total, newest.episodic_return, newest.sps)

    def _ending(self, session: WorkerSession, emitter: LifecycleEmitter, code: int, tail: list[str]) -> Ending:
        facts: dict[str, Any] = {
            "step": self._headline.step, "episodic_return": self._headline.episodic_return,
            "policy": emitter.manifest.policy, "return_code": code,
        }  # fmt: skip
        if code == 0:
            return Ending(ExitOutcome.COMPLETED, EXIT_DONE, payload=facts)
        ended_by_signal = code in (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGKILL)
        # The signal goes to the whole tree; the script may be gone before this process has seen its own.
        if session.stop_requested.wait(1.0 if ended_by_signal else 0):
            return Ending(ExitOutcome.CANCELLED, EXIT_CANCELLED, "cancelled", facts)
        told = [session.redact(line) for line in tail]
        print_tail(told)
        error = f"{self._script.path.name} ended with {signal_name(code)}"
        payload = {
            **facts, "error": error, "error_type": "ScriptFailed", "command": self._argv,
            "stderr_log": "logs/stderr.log", "stderr_tail": told,
        }  # fmt: skip
        return Ending(ExitOutcome.FAILED, code if 0 < code < 126 else EXIT_FAILED, error, payload)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _end_group(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _tail(log: Path, start: int) -> list[str]:
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(start, size - _TAIL_BYTES))
        return stream.read(_TAIL_BYTES).decode(errors="replace").splitlines()[-_TAIL_LINES:]
