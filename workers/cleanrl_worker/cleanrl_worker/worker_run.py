"""What every run of this worker has: registration, a first manifest, an ending, an exit code."""

from __future__ import annotations

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.errors import RegistrationRefused, SessionError, SessionStopped
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.frames import remove_frames
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import WorkerSession

from cleanrl_worker import get_worker_metadata
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.disk_reserve import DiskReserve, is_disk_full
from cleanrl_worker.telemetry import LifecycleEmitter

logger = logging.getLogger(__name__)

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_CANCELLED = 0, 1, 2, 130

POLL_S = 0.25
_DEFAULT_GRACE_S = 30.0
SHARE_OF_GRACE = 0.8
"""The part of the grace the process below may use; the rest is for the worker's own ending"""


@dataclass(frozen=True)
class Ending:
    """How a run ended, ready for `session.finish`."""

    outcome: ExitOutcome
    exit_code: int
    reason: str = ""
    payload: dict[str, Any] = field(default_factory=dict)


class WorkerRun(ABC):
    """Runs one config from registration to exit code; subclasses say what is done in between."""

    def __init__(self, config: CleanRLWorkerConfig, folder: RunFolder, *, target: str | None) -> None:
        self._config, self._folder, self._target = config, folder, target

    def capabilities(self) -> WorkerCapabilities:
        """What the daemon may ask of this run."""
        return get_worker_metadata()

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """What a dry run shows."""

    @abstractmethod
    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        """The manifest at the start."""

    @abstractmethod
    def started_facts(self) -> dict[str, Any]:
        """What `run_started` tells."""

    @abstractmethod
    def supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        """Do the work, and say how it ended."""

    def run(self) -> int:
        """Register, work, end; return the exit code."""
        config = self._config
        with WorkerSession.from_environment(
            config.run_id, self._folder.root, capabilities=self.capabilities(), algo=config.algo,
            env_id=config.env_id, extras=config.extras, target=self._target,
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
            try:
                return self._run_registered(session)
            finally:
                remove_frames(config.run_id)  # a training process that failed or was killed leaves them

    def _run_registered(self, session: WorkerSession) -> int:
        emitter = LifecycleEmitter(session, self.first_manifest(session))
        reserve = DiskReserve(self._folder.root)
        try:
            emitter.write_manifest()
            session.started(self.started_facts())
            session.follow_metrics(self._folder.tensorboard)
            ending = self.supervise(session, emitter)
            reserve.give_back()
            session.finish(
                ending.outcome, reason=ending.reason, payload=ending.payload, exit_code=ending.exit_code,
                manifest=emitter.manifest,
            )  # fmt: skip
        except Exception as error:  # the boundary of the process: whatever happened, the run gets an ending
            logger.exception("the worker failed")
            failure = {"error": str(error), "error_type": type(error).__name__}
            reason = f"the worker failed: {error or type(error).__name__}"
            if is_disk_full(error):
                reason = failure["error"] = f"no space left on the disk of {self._folder.root}"
            reserve.give_back()
            session.finish(
                ExitOutcome.FAILED, reason=reason, payload=failure, exit_code=EXIT_FAILED, manifest=emitter.manifest
            )
            return EXIT_FAILED
        return ending.exit_code


def print_tail(lines: Sequence[str]) -> None:
    """Repeat the last lines of the process below: the daemon quotes the worker's own stderr in its reason."""
    for line in lines:
        sys.stderr.write(f"{line}\n")


def drawing_variables() -> dict[str, str]:
    """Without a screen pictures are drawn in memory, where the user has not said otherwise."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return {}
    wanted = (("SDL_VIDEODRIVER", "dummy"), ("MUJOCO_GL", "egl"))
    return {name: os.environ.get(name, value) for name, value in wanted}


def grace_s() -> float:
    """How long after SIGTERM this worker has until the daemon kills it."""
    try:
        return max(1.0, float(os.environ[env.MOSAIC_GRACE_S]))
    except (KeyError, ValueError):
        return _DEFAULT_GRACE_S
