"""The worker process of a run that trains with a script: it starts the script, follows it from outside, and reports."""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import RegistrationRefused, SessionError, SessionStopped
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import WorkerSession

from cleanrl_worker import get_worker_metadata
from cleanrl_worker.analytics import build_manifest
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.description import MODULE
from cleanrl_worker.preflight import Preflight
from cleanrl_worker.requirement_sets import hold
from cleanrl_worker.requirement_sets.errors import RequirementSetError
from cleanrl_worker.runtime import EXIT_BAD_INPUT, EXIT_CANCELLED, EXIT_DONE, EXIT_FAILED, Ending
from cleanrl_worker.scripts import outcome
from cleanrl_worker.scripts.checking import values_for
from cleanrl_worker.scripts.choice import ScriptChoice
from cleanrl_worker.scripts.following import Report, Watch
from cleanrl_worker.scripts.headline import HeadlineFollower
from cleanrl_worker.scripts.provenance import keep_copy
from cleanrl_worker.scripts.running import launch_words
from cleanrl_worker.sitecustomize import HookSettings
from cleanrl_worker.training_process import TrainingProcess, signal_name
from cleanrl_worker.wandb_settings import WandbSettings, wandb_settings

logger = logging.getLogger(__name__)

_POLL_S = 0.25
_DEFAULT_GRACE_S = 30.0
_SHARE_OF_GRACE = 0.8
"""The part of the grace the script may use after SIGTERM; the rest is for the worker's own ending"""


class ScriptRuntime:
    """Runs one config from registration to exit code."""

    def __init__(
        self, config: CleanRLWorkerConfig, choice: ScriptChoice, found: Preflight, folder: RunFolder, *,
        target: str | None,
    ) -> None:  # fmt: skip
        self._config, self._choice, self._found = config, choice, found
        self._folder, self._target = folder, target
        self._stop_deadline: float | None = None

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
            wandb_mode=self._wandb.mode, wandb_name=str(self._config.extras.get("wandb_run_name") or ""),
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
        if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
            # Without a screen: pictures are drawn in memory, where the user has not said otherwise.
            own |= {
                name: os.environ.get(name, value)
                for name, value in (("SDL_VIDEODRIVER", "dummy"), ("MUJOCO_GL", "egl"))
            }
        return own

    @property
    def _is_tracked(self) -> bool:
        return self._values.get("track") is True or self._config.extras.get("track_wandb") is True

    def _environment(self) -> dict[str, str]:
        # Paths of this interpreter would come before those of the one that runs the script.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return {**self._wandb.apply_to(kept), **self.variables}

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

    def run(self) -> int:
        """Register, run the script, end; return the exit code."""
        config = self._config
        capabilities = replace(get_worker_metadata(), supports_pause=False, supports_checkpointing=False)
        with WorkerSession.from_environment(
            config.run_id, self._folder.root, capabilities=capabilities, algo=config.algo, env_id=config.env_id,
            extras=config.extras, target=self._target,
        ) as session:  # fmt: skip
            session.install_signal_handlers()
            try:
                session.open()
            except RegistrationRefused as error:
                logger.error("%s", error)
                return EXIT_BAD_INPUT
            except SessionStopped:
                return EXIT_CANCELLED
            except SessionError as error:
                logger.error("%s", error)
                return EXIT_FAILED
            return self._run_registered(session)

    def _run_registered(self, session: WorkerSession) -> int:
        report = Report(session, self._first_manifest(session))
        try:
            report.write_manifest()
            session.started({
                "seed": self._value("seed"), "total_timesteps": self._config.total_timesteps, "module": MODULE,
                "mode": "train", "script": str(self._choice.script.path), "sha256": self._choice.script.sha256,
            })  # fmt: skip
            ending = self._supervise(session, report)
            session.finish(
                ending.outcome, reason=ending.reason, payload=ending.payload, exit_code=ending.exit_code,
                manifest=report.manifest,
            )  # fmt: skip
        except Exception as error:  # the boundary of the process: whatever happened, the run gets an ending
            logger.exception("the worker failed")
            failure = {"error": str(error), "error_type": type(error).__name__}
            reason = f"the worker failed: {error or type(error).__name__}"
            session.finish(
                ExitOutcome.FAILED, reason=reason, payload=failure, exit_code=EXIT_FAILED, manifest=report.manifest
            )
            return EXIT_FAILED
        return ending.exit_code

    def _first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        manifest = build_manifest(
            self._config, self._folder, argv=self.command, requirements=self._found.sets or ("base",),
            threads=int(os.environ.get(env.THREAD_COUNTS[0]) or os.cpu_count() or 1), attempt=session.attempt,
        )  # fmt: skip
        script = keep_copy(self._choice.script, self._folder, session.redact)
        script["arguments"] = self._choice.script.argv(self._values)
        manifest = replace(manifest, extra={**manifest.extra, "script": script})
        if self._is_tracked:
            project, entity = self._value("wandb_project_name"), self._value("wandb_entity")
            path = f"{entity}/{project}/{self._config.run_id}" if entity and project else None
            manifest = replace(
                manifest, wandb_run_id=self._config.run_id, wandb_project=project, wandb_entity=entity,
                wandb_run_path=path, extra={**manifest.extra, "wandb_mode": self._wandb.mode},
            )  # fmt: skip
        return manifest

    def _supervise(self, session: WorkerSession, report: Report) -> Ending:
        """Follow the script until its process is gone."""
        try:
            held = hold(Path(self._found.python))
        except RequirementSetError as error:
            return Ending(ExitOutcome.FAILED, EXIT_BAD_INPUT, str(error))
        tensorboard = self._config.tensorboard_folder(self._folder)
        follower = HeadlineFollower([tensorboard, self._folder.root / "runs"])
        training = TrainingProcess(
            self.command, self._environment(), cwd=self._folder.root, logs=self._folder.logs, keep_open=held
        )
        watch = Watch(self._config, follower, session, report)
        try:
            while training.returncode is None:
                for message in training.messages(_POLL_S):
                    report.receive(message)
                self._stop_if_asked(session, training)
                if (stuck := watch.look()) and self._stop_deadline is None:
                    training.kill()
                    return self._failure(session, report, training, watch, stuck)
            for message in training.messages(0):
                report.receive(message)
            watch.look(now=True)
            report.list_artefacts(self._folder, tensorboard)
            return self._ending(session, report, training, watch)
        finally:
            training.close()
            for descriptor in held:
                os.close(descriptor)

    def _stop_if_asked(self, session: WorkerSession, training: TrainingProcess) -> None:
        """A script has no safe points: it gets the signal, and after the grace it is killed."""
        if not session.stop_requested.is_set():
            return
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + _grace_s() * _SHARE_OF_GRACE
            training.signal(signal.SIGTERM)
        elif time.monotonic() > self._stop_deadline:
            logger.warning("the script did not end within the grace; it is killed")
            training.kill()

    # -- how it ended

    def _ending(self, session: WorkerSession, report: Report, training: TrainingProcess, watch: Watch) -> Ending:
        returncode = training.returncode
        assert returncode is not None
        if returncode == 0:
            return Ending(ExitOutcome.COMPLETED, EXIT_DONE, payload=report.result(watch.headline))
        # The signal goes to the whole tree; the script may be gone before this process has seen its own.
        if session.stop_requested.wait(1.0 if returncode in (-signal.SIGTERM, 128 + signal.SIGTERM) else 0):
            reason = f"cancelled at step {watch.headline.step}"
            return Ending(ExitOutcome.CANCELLED, EXIT_CANCELLED, reason, report.result(watch.headline))
        return self._failure(session, report, training, watch, "")

    def _failure(
        self, session: WorkerSession, report: Report, training: TrainingProcess, watch: Watch, reason: str
    ) -> Ending:
        returncode = training.returncode
        assert returncode is not None
        tail = [session.redact(line) for line in training.stderr_tail()]
        known = report.failure
        error = reason or str(
            known.get("error") or f"{self._choice.script.path.name} ended with {signal_name(returncode)}"
        )
        payload = {
            "error": error,
            "error_type": "NoProgress" if reason else known.get("error_type") or "ScriptFailed",
            "return_code": returncode,
            "command": self.command,
            "stderr_log": str(training.stderr_log.relative_to(self._folder.root)),
            "stderr_tail": tail,
            "step": watch.headline.step,
        }
        outcome.print_tail(tail)
        code = EXIT_FAILED if reason else returncode if 0 < returncode < 126 else EXIT_FAILED
        return Ending(ExitOutcome.FAILED, code, error, payload)


def _grace_s() -> float:
    try:
        return max(1.0, float(os.environ[env.MOSAIC_GRACE_S]))
    except (KeyError, ValueError):
        return _DEFAULT_GRACE_S
