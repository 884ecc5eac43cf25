"""Turn what the training process reports into lifecycle events, heartbeats and the manifest."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.redaction import redact_document
from mosaic_wire.run_artifacts import artifacts_of
from mosaic_wire.session import WorkerSession

logger = logging.getLogger(__name__)

HEARTBEAT_LINE_S = 30.0
"""How often the lifecycle file gets a heartbeat line of its own, for readers of the file"""


class LifecycleEmitter:
    """Report to the session what training reported, and keep `analytics.json` current while it runs."""

    def __init__(self, session: WorkerSession, manifest: AnalyticsManifest) -> None:
        self._session = session
        self.manifest = manifest
        self.ending: Mapping[str, Any] | None = None
        """The training process' last message: how it ended"""
        self.failure: Mapping[str, Any] | None = None
        self._headline: dict[str, Any] = {}
        self._heartbeat_at = time.monotonic()

    def receive(self, message: Mapping[str, Any]) -> None:
        """Handle one line of the progress pipe."""
        facts = {key: value for key, value in message.items() if key != "kind"}
        match message.get("kind"):
            case "progress":
                self._headline = facts
                self._session.progress(facts["step"], facts["total"], facts["episodic_return"], facts["sps"])
                self._write_heartbeat_line()
            case "checkpoint_saved":
                self._add_checkpoint(facts)
            case "checkpoint_removed":
                left = tuple(known for known in self.manifest.checkpoints if known.path != facts["path"])
                self._change_manifest(checkpoints=left)
            case "best":
                self._name_best(facts)
            case "checkpoint_loaded":
                self._change_manifest(extra={"loaded_from": facts})
                self._session.emit(LifecycleKind.CHECKPOINT_LOADED, facts)
            case "paused" | "resumed" | "stage_changed" as kind:
                self._session.emit(LifecycleKind(kind), facts)
            case "ended":
                self.ending = facts
                if facts.get("evaluation"):
                    self._change_manifest(evaluation=facts["evaluation"])
            case "policy" | "video" | "versions" | "wandb" | "note" | "parameters" as kind:
                self._note_in_manifest(kind, facts)
            case "failed":
                self.failure = facts
            case "alive":
                pass  # it evaluates: no step is made, and nothing is wrong
            case unknown:
                logger.warning("the training process sent %r, which is no known message", unknown)

    def write_manifest(self) -> None:
        """Write the manifest; a full disk does not end the run yet."""
        try:
            self.manifest.write(self._session.run_folder.manifest)
        except OSError as error:
            logger.error("the manifest could not be written: %s", error)

    def list_artifacts(self, tensorboard: Path) -> None:
        """List what a script left in the run folder; it reports nothing itself."""
        self.manifest = replace(self.manifest, **vars(artifacts_of(self._session.run_folder, tensorboard)))

    def result(self) -> dict[str, Any]:
        """Return the payload of `run_completed`."""
        facts = {key: value for key, value in (self.ending or {}).items() if key != "outcome"}
        episodic_return = self._headline.get("episodic_return")
        return {**facts, "episodic_return": episodic_return, "policy": self.manifest.policy}

    def _add_checkpoint(self, facts: Mapping[str, Any]) -> None:
        entry = CheckpointEntry(facts["path"], facts["step"], facts["sha256"], facts["checkpoint_kind"])
        # Resuming from an earlier step writes some steps again; the newer one counts. Only one is the last.
        others = [
            replace(known, kind="periodic") if known.kind == "last" else known
            for known in self.manifest.checkpoints
            if known.path != entry.path
        ]
        self._change_manifest(checkpoints=tuple(sorted([*others, entry], key=lambda known: known.step)))
        self._session.emit(LifecycleKind.CHECKPOINT_SAVED, entry.to_json())

    def _name_best(self, facts: Mapping[str, Any]) -> None:
        """Record the best checkpoint so far; it may also be the last one."""
        checkpoints = tuple(
            replace(known, kind="periodic") if known.kind == "best" and known.path != facts["path"] else known
            for known in self.manifest.checkpoints
        )
        self._change_manifest(checkpoints=checkpoints, extra={"best": facts})

    def _note_in_manifest(self, kind: str, facts: Mapping[str, Any]) -> None:
        match kind:
            case "policy":
                self._change_manifest(policy=facts["path"])
            case "video":
                known = (*self.manifest.videos, facts["path"])  # an earlier attempt may have reported it
                noted = {facts["path"]: facts["step"]} if "step" in facts else {}  # an evaluation has none
                steps = {**noted, **self.manifest.extra.get("video_steps", {})}
                extra = {"video_steps": steps} if steps else {}
                self._change_manifest(videos=tuple(dict.fromkeys(known)), extra=extra)
            case "parameters" if (values := redact_document(facts["values"])) != self.manifest.hyperparameters:
                self._change_manifest(hyperparameters=values)
            case "versions":  # of an interpreter that is not this one
                self._change_manifest(versions={**self.manifest.versions, **facts["versions"]})
            case "wandb":
                self._note_wandb(facts)
            case "note":
                logger.info("note: %s", facts["note"])
                notes = [*self.manifest.extra.get("training_notes", ()), facts["note"]]
                notes = list(dict.fromkeys(notes))  # an earlier attempt may have reported it
                self._change_manifest(extra={"training_notes": notes})

    def _note_wandb(self, facts: Mapping[str, Any]) -> None:
        extra = {f"wandb_{name}": facts[name] for name in ("url", "problem") if name in facts}
        path = facts.get("run_path") or self.manifest.wandb_run_path
        entity = path.split("/")[0] if path and path.count("/") == 2 else self.manifest.wandb_entity
        self._change_manifest(wandb_run_path=path, wandb_entity=entity, extra=extra)

    def _change_manifest(self, *, extra: Mapping[str, Any] | None = None, **changes: Any) -> None:
        self.manifest = replace(self.manifest, **changes, extra={**self.manifest.extra, **(extra or {})})
        self.write_manifest()

    def _write_heartbeat_line(self) -> None:
        now = time.monotonic()
        if now - self._heartbeat_at >= HEARTBEAT_LINE_S:
            self._heartbeat_at = now
            self._session.emit(LifecycleKind.HEARTBEAT, self._headline)
