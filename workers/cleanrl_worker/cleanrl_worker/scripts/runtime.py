"""The worker process of a run that trains with a script: it starts the script, follows it from outside, and reports."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import WorkerSession

from cleanrl_worker.analytics import build_manifest
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.description import MODULE
from cleanrl_worker.fastlane import fastlane_variables
from cleanrl_worker.no_progress import ProgressWatch
from cleanrl_worker.preflight import Preflight
from cleanrl_worker.requirement_sets import hold
from cleanrl_worker.requirement_sets.errors import RequirementSetError
from cleanrl_worker.scripts.checking import values_for
from cleanrl_worker.scripts.choice import ScriptChoice
from cleanrl_worker.scripts.headline import Headline, HeadlineFollower
from cleanrl_worker.scripts.provenance import keep_copy
from cleanrl_worker.scripts.running import launch_words
from cleanrl_worker.sitecustomize import HookSettings
from cleanrl_worker.telemetry import LifecycleEmitter
from cleanrl_worker.training_process import TrainingProcess, signal_name
from cleanrl_worker.wandb_settings import OFFLINE, WandbSettings, wandb_settings
from cleanrl_worker.worker_run import (
    EXIT_BAD_INPUT,
    EXIT_CANCELLED,
    EXIT_DONE,
    EXIT_FAILED,
    POLL_S,
    SHARE_OF_GRACE,
    Ending,
    WorkerRun,
    drawing_variables,
    grace_s,
    print_tail,
)

logger = logging.getLogger(__name__)


class ScriptRuntime(WorkerRun):
    """Runs one script from registration to exit code."""

    def __init__(
        self, config: CleanRLWorkerConfig, choice: ScriptChoice, found: Preflight, folder: RunFolder, *,
        target: str | None,
    ) -> None:  # fmt: skip
        super().__init__(config, folder, target=target)
        self._choice, self._found = choice, found
        self._stop_deadline: float | None = None

    def capabilities(self) -> WorkerCapabilities:
        """A script knows no safe points: it is stopped by signal, and leaves nothing to go on from."""
        return replace(super().capabilities(), supports_pause=False, supports_checkpointing=False)

    # -- what will run

    @cached_property
    def _values(self) -> dict[str, Any]:
        return values_for(self._choice.script, self._config)

    def _value(self, name: str) -> Any:
        known = self._choice.script.parameter(name)
        return self._values.get(name, known.field.default if known is not None else None)

    @cached_property
    def _wandb(self) -> WandbSettings:
        return wandb_settings(
            self._config.run_id, self._folder.root, self._config.extras, os.environ,
            project=str(self._value("wandb_project_name") or ""), entity=str(self._value("wandb_entity") or ""),
            is_resumed=os.environ.get(env.MOSAIC_RUN_ATTEMPT, "1") not in ("", "1"),
        )  # fmt: skip

    @cached_property
    def command(self) -> list[str]:
        """The training process' argv."""
        script, folder = self._choice.script, self._folder
        settings = HookSettings(
            run_dir=str(folder.root), tensorboard_dir=str(self._config.tensorboard_folder(folder)),
            wandb_mode=OFFLINE if self._wandb.mode == OFFLINE else "",
            wandb_name=str(self._config.extras.get("wandb_run_name") or ""),
        )  # fmt: skip
        checkout = self._choice.checkout
        words = launch_words(
            str(script.path), script.sha256, settings, script.argv(self._values),
            add_path=str(checkout) if checkout is not None else "",
        )  # fmt: skip
        return [str(self._found.python), "-u", "-m", "cleanrl_worker.launcher", *words]

    @cached_property
    def variables(self) -> dict[str, str]:
        """What the training process finds in its environment, besides the worker's own."""
        config, folder = self._config, self._folder
        seed, num_envs = self._value("seed"), self._value("num_envs")
        own = {
            env.MOSAIC_RUN_ID: config.run_id,
            env.MOSAIC_RUN_DIR: str(folder.root),
            env.CLEANRL_RUN_ID: config.run_id,
            env.CLEANRL_RUN_DIR: str(folder.root),
            env.CLEANRL_TENSORBOARD_DIR: str(config.tensorboard_folder(folder)),
            env.CLEANRL_WORKER_ID: config.worker_id or "",
            env.CLEANRL_AGENT_ID: str(config.extras.get("agent_id") or ""),
            env.CLEANRL_SEED: "" if seed is None else str(seed),
            env.CLEANRL_NUM_ENVS: "" if num_envs is None else str(num_envs),
            env.TRACK_TENSORBOARD: "1",
            env.TRACK_WANDB: "1" if self._is_tracked else "0",
            **self._wandb.variables,
        }
        return {**own, **drawing_variables(), **fastlane_variables(config.extras)}

    @property
    def _is_tracked(self) -> bool:
        return self._values.get("track") is True or self._config.extras.get("track_wandb") is True

    def _environment(self) -> dict[str, str]:
        environ = dict(os.environ)
        if Path(self._found.python) != Path(sys.executable):
            # Paths meant for this interpreter would come before the packages of the other one.
            for name in ("PYTHONPATH", "PYTHONHOME"):
                environ.pop(name, None)
        return {**self._wandb.apply_to(environ), **self.variables}

    def summary(self) -> dict[str, Any]:
        """What a dry run shows."""
        script = self._choice.script
        return {
            "run_id": self._config.run_id,
            "algo": self._config.algo,
            "script": str(script.path),
            "script_sha256": script.sha256,
            "style": str(script.style),
            "env_id": self._config.env_id,
            "total_timesteps": self._config.total_timesteps,
            "seed": self._value("seed"),
            "python": str(self._found.python),
            "arguments": script.argv(self._values),
            "argv": self.command,
            "environment": self.variables,
            "run_dir": str(self._folder.root),
            "tensorboard_dir": str(self._config.tensorboard_folder(self._folder)),
            "wandb": self._wandb.mode + (f": {self._wandb.reason}" if self._wandb.reason else ""),
        }

    # -- running it

    def started_facts(self) -> dict[str, Any]:
        """What `run_started` tells."""
        script = self._choice.script
        return {
            "seed": self._value("seed"), "total_timesteps": self._config.total_timesteps, "module": MODULE,
            "mode": "train", "script": str(script.path), "sha256": script.sha256,
        }  # fmt: skip

    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        """The manifest at the start, with where the script came from."""
        manifest = build_manifest(
            self._config, self._folder, argv=self.command, requirements=self._found.sets or ("base",),
            threads=int(os.environ.get(env.THREAD_COUNTS[0]) or os.cpu_count() or 1), attempt=session.attempt,
            versions=self._found.versions,
        )  # fmt: skip
        script = keep_copy(self._choice.script, self._folder, session.redact)
        script["arguments"] = self._choice.script.argv(self._values)
        seed = self._value("seed")
        manifest = replace(
            manifest, seed=seed if type(seed) is int else manifest.seed, extra={**manifest.extra, "script": script}
        )
        if self._is_tracked:
            project, entity = self._value("wandb_project_name"), self._value("wandb_entity")
            path = f"{entity}/{project}/{self._config.run_id}" if entity and project else None
            manifest = replace(
                manifest, wandb_run_id=self._config.run_id, wandb_project=project, wandb_entity=entity,
                wandb_run_path=path, extra={**manifest.extra, "wandb_mode": self._wandb.mode},
            )  # fmt: skip
        return manifest

    def supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        """Follow the script until its process is gone."""
        try:
            held = hold(Path(self._found.python))
        except RequirementSetError as error:
            return Ending(ExitOutcome.FAILED, EXIT_BAD_INPUT, str(error))
        follower = HeadlineFollower(self._folder)
        training = TrainingProcess(
            self.command, self._environment(), cwd=self._folder.root, logs=self._folder.logs, keep_open=held
        )
        try:
            stuck = self._follow(session, emitter, training, follower)
            for message in self._news(follower, now=True):
                emitter.receive(message)
            emitter.list_artefacts(self._config.tensorboard_folder(self._folder))
            return self._ending(session, emitter, training, follower.newest, stuck)
        finally:
            training.close()
            for descriptor in held:
                os.close(descriptor)

    def _follow(
        self, session: WorkerSession, emitter: LifecycleEmitter, training: TrainingProcess, follower: HeadlineFollower
    ) -> str:
        """Report until the process is gone; the text says why it was ended for standing still."""
        watch = ProgressWatch(self._config.extras)
        while training.returncode is None:
            messages = training.messages(POLL_S)
            if training.at_end:
                training.wait(POLL_S)  # the script closed its end of the pipe, or is about to be gone
            messages += self._news(follower)
            for message in messages:
                emitter.receive(message)
                watch.hear(message)
            self._stop_if_asked(session, training)
            if (stuck := watch.reason_to_end()) and self._stop_deadline is None:
                training.kill()
                return stuck
        for message in training.messages(0):
            emitter.receive(message)
        return ""

    def _news(self, follower: HeadlineFollower, *, now: bool = False) -> list[dict[str, Any]]:
        if not follower.has_news(now=now):
            return []
        progress = {"kind": "progress", "total": self._config.total_timesteps, **asdict(follower.newest)}
        parameters = {"kind": "parameters", "values": follower.parameters}
        return [progress, *([parameters] if follower.parameters else [])]

    def _stop_if_asked(self, session: WorkerSession, training: TrainingProcess) -> None:
        """A script has no safe points: it gets the signal, and after the grace it is killed."""
        if not session.stop_requested.is_set():
            return
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + grace_s() * SHARE_OF_GRACE
            training.signal(signal.SIGTERM)
        elif time.monotonic() > self._stop_deadline:
            logger.warning("the script did not end within the grace; it is killed")
            training.kill()

    # -- how it ended

    def _ending(
        self, session: WorkerSession, emitter: LifecycleEmitter, training: TrainingProcess, headline: Headline,
        stuck: str,
    ) -> Ending:  # fmt: skip
        returncode = training.returncode
        assert returncode is not None
        manifest = emitter.manifest
        result = {**asdict(headline), "policy": manifest.policy, "videos": list(manifest.videos)}
        if returncode == 0:
            return Ending(ExitOutcome.COMPLETED, EXIT_DONE, payload=result)
        # The signal goes to the whole tree; the script may be gone before this process has seen its own.
        is_signalled = returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
        if not stuck and session.stop_requested.wait(1.0 if is_signalled else 0):
            reason = f"cancelled at step {headline.step}"
            return Ending(ExitOutcome.CANCELLED, EXIT_CANCELLED, reason, result)
        tail = [session.redact(line) for line in training.stderr_tail()]
        known = emitter.failure or {}
        name = self._choice.script.path.name
        error = stuck or str(known.get("error") or f"{name} ended with {signal_name(returncode)}")
        payload = {
            "error": error,
            "error_type": "NoProgress" if stuck else known.get("error_type") or "ScriptFailed",
            "return_code": returncode,
            "command": self.command,
            "stderr_log": str(training.stderr_log.relative_to(self._folder.root)),
            "stderr_tail": tail,
            "step": headline.step,
        }
        print_tail(tail)
        code = returncode if 0 < returncode < 126 and not stuck else EXIT_FAILED
        return Ending(ExitOutcome.FAILED, code, error, payload)
