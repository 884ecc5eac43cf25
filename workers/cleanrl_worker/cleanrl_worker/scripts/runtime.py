"""The worker process of a run that trains with a script: it starts the script, follows it from outside, and reports."""

from __future__ import annotations

import ast
import math
import os
import re
import signal
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_extras.overlays import holding
from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import WorkerSession
from mosaic_wire.system_metrics import FOLDER as SYSTEM_FOLDER

from cleanrl_worker.analytics import copy_script, script_git_state
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.preflight import Preflight
from cleanrl_worker.runtime import (
    EXIT_CANCELLED,
    EXIT_DONE,
    EXIT_FAILED,
    POLL_S,
    Ending,
    ProgressWatch,
    SupervisedRun,
    TrainingProcess,
    is_retried,
    signal_name,
    training_variables,
    with_wandb,
)
from cleanrl_worker.scripts.checking import ScriptChoice, values_for
from cleanrl_worker.scripts.running import launch_arguments
from cleanrl_worker.sitecustomize import HookSettings
from cleanrl_worker.telemetry import LifecycleEmitter
from cleanrl_worker.wandb_settings import OFFLINE, WandbSettings, wandb_settings


class ScriptRun(SupervisedRun):
    """Run a script: it has no safe points, so it is stopped by signal, and leaves nothing to resume from."""

    _in_phases = False

    def capabilities(self) -> WorkerCapabilities:
        """Return what the daemon may request: neither a pause nor a checkpoint (the daemon can still SIGSTOP it)."""
        return replace(super().capabilities(), supports_pause=False, supports_checkpointing=False)

    @property
    @abstractmethod
    def script_path(self) -> Path:
        """The script's file."""

    @abstractmethod
    def start(self, keep_open: Sequence[int]) -> TrainingProcess:
        """Start the script."""

    def supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        """Follow the script until its process has exited."""
        follower = HeadlineFollower(self._folder, in_phases=self._in_phases)
        with holding(self._found.python) as held:
            try:
                training = self.start(held)
            except (FileNotFoundError, PermissionError) as error:
                reason = f"the script cannot be started: {error.strerror or error}"
                return Ending(ExitOutcome.FAILED, EXIT_FAILED, reason, {"error_type": "SpawnFailed"})
            try:
                stuck = self._follow(session, emitter, training, follower)
            finally:
                training.close()
        for message in self._new_messages(follower, now=True):
            emitter.receive(message)
        emitter.list_artifacts(self._config.tensorboard_folder(self._folder))
        return self._ending(session, emitter, training, follower.newest, stuck)

    def _follow(
        self, session: WorkerSession, emitter: LifecycleEmitter, training: TrainingProcess, follower: HeadlineFollower
    ) -> str:
        """Report until the process has exited; return why it was ended for making no progress."""
        watch = ProgressWatch(self._config.extras)
        while training.returncode is None:
            messages = training.messages(POLL_S)
            if training.at_end:
                training.wait(POLL_S)  # the script has no pipe, closed its end of it, or is about to exit
            messages += self._new_messages(follower)
            for message in messages:
                emitter.receive(message)
                watch.on_message(message)
            self._stop_if_requested(session, training, lambda: training.signal(signal.SIGTERM))
            if (stuck := watch.reason_to_end()) and self._stop_deadline is None:
                training.kill()
                return stuck
        for message in training.messages(0):
            emitter.receive(message)
        return ""

    def _new_messages(self, follower: HeadlineFollower, *, now: bool = False) -> list[dict[str, Any]]:
        if not follower.has_updates(now=now):
            return []
        progress = {"kind": "progress", "total": self._total_timesteps, **asdict(follower.newest)}
        parameters = {"kind": "parameters", "values": follower.parameters}
        return [progress, parameters] if follower.parameters and not self._in_phases else [progress]

    def _ending(
        self,
        session: WorkerSession,
        emitter: LifecycleEmitter,
        training: TrainingProcess,
        headline: Headline,
        stuck: str,
    ) -> Ending:
        returncode = training.returncode
        assert returncode is not None
        manifest = emitter.manifest
        result = {**asdict(headline), "policy": manifest.policy, "videos": list(manifest.videos)}
        if returncode == 0:
            return Ending(ExitOutcome.COMPLETED, EXIT_DONE, payload=result)
        # The signal goes to the whole tree; the script may exit before this process has seen its own.
        is_signaled = returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
        if not stuck and session.stop_requested.wait(1.0 if is_signaled else 0):
            return Ending(ExitOutcome.CANCELLED, EXIT_CANCELLED, f"cancelled at step {headline.step}", result)
        known = emitter.failure or {}
        return self._failure(
            session,
            training,
            stuck or str(known.get("error") or f"{self.script_path.name} ended with {signal_name(returncode)}"),
            "NoProgress" if stuck else known.get("error_type") or "ScriptFailed",
            returncode if 0 < returncode < 126 and not stuck else EXIT_FAILED,
            step=headline.step,
        )


class ScriptRuntime(ScriptRun):
    """A run of an unmodified training script, with hooks around the libraries it uses."""

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        choice: ScriptChoice,
        found: Preflight,
        folder: RunFolder,
        *,
        target: str | None,
    ) -> None:
        super().__init__(config, folder, target=target, found=found)
        self._script, self._checkout = choice.script, choice.checkout

    @property
    def script_path(self) -> Path:
        """The script's file."""
        return self._script.path

    @cached_property
    def _values(self) -> dict[str, Any]:
        return values_for(self._script, self._config)

    def _value(self, name: str) -> Any:
        known = self._script.parameter(name)
        return self._values.get(name, known.field.default if known is not None else None)

    @property
    def _seed(self) -> Any:
        return self._value("seed")

    @property
    def _is_tracked(self) -> bool:
        return self._values.get("track") is True or self._config.extras.get("track_wandb") is True

    @cached_property
    def _wandb(self) -> WandbSettings:
        return wandb_settings(
            self._config.run_id,
            self._folder.root,
            self._config.extras,
            os.environ,
            project=str(self._value("wandb_project_name") or ""),
            entity=str(self._value("wandb_entity") or ""),
            is_resumed=is_retried(),
        )

    @cached_property
    def command(self) -> list[str]:
        """The argv of the training process."""
        settings = HookSettings(
            run_dir=str(self._folder.root),
            tensorboard_dir=str(self._config.tensorboard_folder(self._folder)),
            wandb_mode=OFFLINE if self._wandb.mode == OFFLINE else "",
            wandb_name=str(self._config.extras.get("wandb_run_name") or ""),
        )
        script, add_path = self._script, str(self._checkout or "")
        arguments = launch_arguments(
            str(script.path), script.sha256, settings, script.argv(self._values), add_path=add_path
        )
        return [str(self._found.python), "-u", "-m", "cleanrl_worker.launcher", *arguments]

    @cached_property
    def variables(self) -> dict[str, str]:
        """The environment variables of the training process, besides the worker's own."""
        common = training_variables(
            self._config, self._folder, seed=self._seed, num_envs=self._value("num_envs"), is_tracked=self._is_tracked
        )
        return {**common, env.TRACK_TENSORBOARD: "1", **self._wandb.variables}

    def summary(self) -> dict[str, Any]:
        """Return what a dry run shows."""
        return {
            **super().summary(),
            "script": str(self._script.path),
            "script_sha256": self._script.sha256,
            "style": str(self._script.style),
            "python": str(self._found.python),
            "arguments": self._script.argv(self._values),
            "tensorboard_dir": str(self._config.tensorboard_folder(self._folder)),
            "wandb": str(self._wandb),
        }

    def started_facts(self) -> dict[str, Any]:
        """Return the payload of `run_started`."""
        return {**super().started_facts(), "script": str(self._script.path), "sha256": self._script.sha256}

    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        """Return the manifest at the start, with where the script came from."""
        manifest, script = super().first_manifest(session), self._script
        facts = copy_script(script.path, script.content, self._folder)
        facts |= {"style": str(script.style), **script_git_state(script.path, self._folder, session.redact)}
        facts["arguments"] = script.argv(self._values)
        manifest = replace(
            manifest,
            seed=self._seed if type(self._seed) is int else manifest.seed,
            extra={**manifest.extra, "script": facts},
        )
        if not self._is_tracked:
            return manifest
        return with_wandb(manifest, self._wandb, self._value("wandb_project_name"), self._value("wandb_entity"))

    def start(self, keep_open: Sequence[int]) -> TrainingProcess:
        """Start the script with the interpreter of its requirement sets."""
        environ = self._wandb.apply_to(os.environ)
        if self._found.python != Path(sys.executable):
            # Paths meant for this interpreter would come before the packages of the other one.
            for name in ("PYTHONPATH", "PYTHONHOME"):
                environ.pop(name, None)
        folder, environ = self._folder, {**environ, **self.variables}
        return TrainingProcess(self.command, environ, cwd=folder.root, logs=folder.logs, keep_open=keep_open)


# ------------------------------------------------------------------ how far a script is, from its event files

POLL_EVENTS_S = 2.0
"""How often the event files are read"""

RETURN_TAGS = ("charts/episodic_return", "charts/episode_return", "rollout/ep_rew_mean", "episodic_return")
SPS_TAGS = ("charts/SPS", "time/fps", "SPS")
_EPISODES = 100
"""Of which the return is the mean: as many as of every other run"""


def parameters_in(table: str) -> dict[str, str]:
    """Return the rows of the Markdown table that every run of ours and of CleanRL's writes as `hyperparameters`."""
    rows = re.findall(r"^\|([A-Za-z0-9_]+)\|(.*)\|\s*$", table, re.MULTILINE)
    return {name: value for name, value in rows if name != "param"}


def _value(text: str) -> Any:
    """Return `True`, `2.5e-4`, `None` as values; anything else stays a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@dataclass(frozen=True)
class Headline:
    """What a heartbeat reports of a run."""

    step: int = 0
    episodic_return: float | None = None
    """mean of the last 100 episodes"""
    sps: float | None = None


class HeadlineFollower:
    """Read what was added to the event files of a run; those of an earlier attempt do not count."""

    def __init__(self, folder: RunFolder, *, in_phases: bool = False) -> None:
        """Follow one training; `in_phases` several in a row, each in its own folder, whose steps are added up."""
        self.newest = Headline()
        self.parameters: dict[str, Any] = {}
        """The script's hyper-parameters"""
        self._read_at = time.monotonic()
        self._reader = EventFolderReader(folder.tensorboard, beside=True, bulk=False, texts=True)
        self._in_phases = in_phases
        self._returns: deque[float] = deque(maxlen=_EPISODES)
        self._steps: dict[str, int] = {}
        """Folder → its largest step"""
        self._trainings: set[str] = set()
        """Folders with returns or a speed"""
        self._sps: float | None = None
        self._reader.read()
        while self._reader.has_more:
            self._reader.read()

    def has_updates(self, *, now: bool = False) -> bool:
        """Read the events when it is time to (or `now`); return whether `newest` has changed."""
        if not now and time.monotonic() - self._read_at < POLL_EVENTS_S:
            return False
        self._read_at = time.monotonic()
        earlier, self.newest = self.newest, self._read()
        return self.newest != earlier

    def _read(self) -> Headline:
        while True:
            for batch in self._reader.read():
                for text in batch.texts:
                    if text.tag.split("/")[0] == "hyperparameters":
                        self.parameters |= {name: _value(value) for name, value in parameters_in(text.text).items()}
                for tag, column in batch.columns.items():
                    self._count(batch.folder, tag, column.steps, column.values)
            if not self._reader.has_more:
                break
        mean = sum(self._returns) / len(self._returns) if self._returns else None
        largest = max(self._steps.values(), default=0)
        added = sum(self._steps[folder] for folder in self._trainings) if self._in_phases else 0
        return Headline(max(largest, added), mean, self._sps)

    def _count(self, folder: str, tag: str, steps: Sequence[int], values: Sequence[float]) -> None:
        if tag.startswith("eval/") or folder == SYSTEM_FOLDER:  # evaluations count episodes, not steps
            return
        self._steps[folder] = max(self._steps.get(folder, 0), *steps)
        finite = [value for value in values if math.isfinite(value)]
        if tag in RETURN_TAGS or tag in SPS_TAGS:
            self._trainings.add(folder)
        if tag in RETURN_TAGS:
            self._returns.extend(finite)
        elif tag in SPS_TAGS and finite:
            self._sps = finite[-1]
