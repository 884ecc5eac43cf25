"""What a training form shows for a trial: the config that `mosaic train --from-trial` submits, or the best guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gym_gui.services.analytics.studies.study import Trial
from gym_gui.services.sweeps import config_of_trial
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_USUAL_WORKER, _USUAL_ALGORITHM = "cleanrl", "ppo"


@dataclass(frozen=True)
class TrainingConfig:
    """A run config, and what a person should look at before starting it."""

    document: dict[str, Any]
    notice: str = ""

    @property
    def worker(self) -> str:
        return str(self.document["metadata"]["worker"].get("type") or _USUAL_WORKER)


def training_of_sweep(sweep: pb.Run, trial: Trial) -> TrainingConfig:
    """What the trial of a sweep trained; SweepUnreadable when the sweep's config cannot be read here."""
    document = config_of_trial(sweep, trial)
    document["run_name"] = f"trial-{trial.number}-of-{short_id(sweep.run_id)}"
    document["metadata"]["worker"]["config"]["seed"] = 1
    return TrainingConfig(document)


def training_of_parameters(trial: Trial) -> TrainingConfig:
    """Of a study that anybody wrote: it knows parameters and nothing else."""
    # CleanRL's own tuner names parameters as flags: learning-rate.
    parameters = {name.lstrip("-").replace("-", "_"): value for name, value in trial.params.items()}
    config = {"algo": _USUAL_ALGORITHM, "extras": {"algo_params": parameters}}
    return TrainingConfig(
        {"metadata": {"worker": {"type": _USUAL_WORKER, "config": config}}},
        "The study does not say which algorithm it tuned, nor where and how long: please choose them.",
    )
