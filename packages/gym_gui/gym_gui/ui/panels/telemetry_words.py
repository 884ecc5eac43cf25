"""What the live-telemetry view says about a run: whether there is live telemetry, and where its figures are instead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mosaic_wire.capabilities import Lane
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QCoreApplication

from gym_gui.ui.presenters.recent_telemetry import STARVED
from gym_gui.ui.workers.catalog import BUILTIN, find
from gym_gui.wording.run_view import parsed, short_id


def tr(text: str) -> str:
    return QCoreApplication.translate("TelemetryTab", text)


class Flow(Enum):
    """What a run sends live."""

    UNKNOWN = "unknown"
    NOTHING = "nothing"
    EPISODES = "episodes"
    STEPS = "steps"


def flow_of(run: pb.Run) -> Flow:
    """By what the worker said of itself when it registered; before that, by what is known of its kind."""
    told = parsed(run.capabilities_json)
    lane = told.get("lane") if isinstance(told, dict) else None
    if lane is None:
        entry = find(BUILTIN, run.worker_type)
        if entry is None:
            return Flow.UNKNOWN
        lane = entry.lane
    if lane != Lane.ANALYTICS:
        return Flow.STEPS
    extras = parsed(run.extras_json)
    minimal = isinstance(extras, dict) and extras.get("minimal_telemetry") is True
    return Flow.EPISODES if minimal else Flow.NOTHING


def no_live_telemetry(run: pb.Run) -> str:
    """The banner over the view of a run of the analytics lane."""
    entry = find(BUILTIN, run.worker_type)
    name = entry.display_name.removesuffix(" Worker") if entry is not None else run.worker_type or tr("This")
    return tr("{0} worker streams metrics via TensorBoard/W&B; live telemetry not available.").format(name)


@dataclass(frozen=True)
class Place:
    """Where figures of a run are."""

    what: str
    where: str


def places_of(run: pb.Run, manifest: AnalyticsManifest | None) -> tuple[Place, ...]:
    """Where a person finds what this view does not have; `manifest` is None when it cannot be read from here."""
    folder = RunFolder(Path(run.run_dir))
    found = [Place(tr("Curves"), tr("under “Live view”, while it trains and afterwards"))]
    tensorboard = manifest.tensorboard_dir if manifest is not None else "tensorboard"
    if tensorboard:
        found.append(Place(tr("TensorBoard files"), str(folder.root / tensorboard)))
    if manifest is not None and manifest.wandb_run_id:
        found.append(Place(tr("Weights & Biases"), manifest.wandb_run_path or manifest.wandb_run_id))
    if manifest is not None and manifest.optuna_db_path:
        found.append(Place(tr("Optuna"), str(folder.root / manifest.optuna_db_path)))
    found.append(Place(tr("In a terminal"), f"mosaic metrics {short_id(run.run_id)}"))
    return tuple(found)


def flow_words(run: pb.Run, control: str, is_paused: bool, is_following: bool) -> tuple[str, str]:
    """How the flow is, in a word and in a sentence: what the credits between worker, daemon and window say."""
    if run.status == "TERM":
        return tr("over"), tr("The run is over; these are its last steps.")
    if is_paused:
        return tr("view paused"), tr("The run goes on and everything is stored; only this view stands still.")
    if run.status == "PAUSE":
        return tr("run paused"), tr("The run is paused.")
    if "starved" in run.flags:
        return tr("worker waits"), tr("STARVED: the worker has no credits left and waits until its steps are stored.")
    if "throttled" in run.flags:
        return tr("throttled"), tr("The daemon has much to do and takes this run's curves a little later.")
    if control == STARVED:
        return tr("skipping"), tr("STARVED: steps come faster than this window takes them; some are passed over.")
    if not is_following:
        return tr("waiting"), tr("Nothing is sent yet.")
    return tr("live"), tr("Credits are there: every step is stored, and this view shows the newest.")
