"""Following a script from outside: how far it is, whether it still moves, and what it left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import WorkerSession

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.scripts import outcome
from cleanrl_worker.scripts.headline import Headline, HeadlineFollower
from cleanrl_worker.telemetry import HEARTBEAT_LINE_S

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""How often the event files are looked at"""
NO_PROGRESS_S = 300.0
"""After this long without a step a script is said to make no progress"""

_STOPPED_S = 10.0
"""A loop that takes this long was stopped (SIGSTOP), not slow"""


class Watch:
    """Looks at the event files now and then; notices a script that no longer moves."""

    def __init__(
        self, config: CleanRLWorkerConfig, follower: HeadlineFollower, session: WorkerSession, report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.headline = Headline()
        self._total = config.total_timesteps
        self._kills = config.extras.get("no_progress") == "kill"
        self._limit_s = float(config.extras.get("no_progress_s") or NO_PROGRESS_S)
        self._follower, self._session, self._report, self._clock = follower, session, report, clock
        self._moved_at = self._ticked_at = clock()
        self._looked_at = 0.0

    def look(self, *, now: bool = False) -> str:
        """Tell the daemon how far it is; return a reason to end the script, if there is one."""
        moment = self._clock()
        if moment - self._ticked_at > _STOPPED_S:
            self._moved_at += moment - self._ticked_at  # a pause is not a script that hangs
        self._ticked_at = moment
        if not now and moment - self._looked_at < LOOK_EVERY_S:
            return ""
        self._looked_at = moment
        newest = self._follower.read()
        if newest.step > self.headline.step:
            self._moved_at = moment
        if newest != self.headline or now:
            self.headline = newest
            self._session.progress(newest.step, self._total, newest.episodic_return, newest.sps)
            self._report.heartbeat(newest, self._total)
        still_s = moment - self._moved_at
        if self._kills and still_s > self._limit_s:
            return f"no step for more than {self._limit_s:g} s (extras.no_progress says: kill)"
        return ""


class Report:
    """Keeps the manifest true, and what the training process said about itself."""

    def __init__(self, session: WorkerSession, manifest: AnalyticsManifest) -> None:
        self._session = session
        self.manifest = manifest
        self.failure: dict[str, Any] = {}
        self._heartbeat_at = time.monotonic()

    def receive(self, message: dict[str, Any]) -> None:
        """Handle one line of the progress pipe."""
        match message.get("kind"):
            case "versions" if isinstance(message.get("versions"), dict):
                # Of the interpreter that runs the script; those of the worker itself stay.
                self._change(versions={**self.manifest.versions, **message["versions"]})
            case "failed":
                self.failure = message
            case unknown:
                logger.warning("the training process said %r, which nobody here understands", unknown)

    def heartbeat(self, headline: Headline, total: int) -> None:
        """A line in the lifecycle file now and then, for people who read files."""
        if time.monotonic() - self._heartbeat_at >= HEARTBEAT_LINE_S:
            self._heartbeat_at = time.monotonic()
            facts = {**asdict(headline), "total": total}
            self._session.emit(LifecycleKind.HEARTBEAT, facts)

    def list_artefacts(self, folder: RunFolder, tensorboard: Path) -> None:
        """Enter what the script left into the manifest."""
        left = outcome.artefacts_of(folder, tensorboard)
        self._change(policy=left.policy, videos=left.videos, tensorboard_dir=left.tensorboard_dir)

    def result(self, headline: Headline) -> dict[str, Any]:
        """The payload of the ending."""
        return {**asdict(headline), "policy": self.manifest.policy, "videos": list(self.manifest.videos)}

    def _change(self, **changes: Any) -> None:
        self.manifest = replace(self.manifest, **changes)
        self.write_manifest()

    def write_manifest(self) -> None:
        """Write it as it stands; a full disk is not yet the end of the run."""
        try:
            self.manifest.write(self._session.run_folder.manifest)
        except OSError as error:
            logger.error("the manifest could not be written: %s", error)
