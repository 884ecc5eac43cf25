"""Sweeps for clients: build the run config of a sweep, and read stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.errors import InvalidRunId, Problem
from mosaic_wire.ids import check_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import run_request, worker_part
from mosaic_wire.run_status import RunStatus
from mosaic_wire.sweep_settings import (
    ALGORITHM,
    STUDY_FILES,
    WORKER_TYPE,
    check_ranges,
    range_from_text,
    read_ranges,
    read_settings,
    sweep_fields,
    with_parameters,
)
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec, check_algorithm_choice, nearest

from gym_gui.services import run_configs
from gym_gui.services.analytics.studies.study import Trial
from gym_gui.services.run_configs import ConfigUnreadable
from gym_gui.services.trainer.errors import RunNotFound
from gym_gui.services.trainer.run_copies import DOCUMENTS, SCRIPTS
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from gym_gui.services.analytics.studies.study import Study, Trial
    from gym_gui.services.trainer.client import TrainerClient


_SETTINGS = tuple(each.name for each in sweep_fields() if each.name not in ("total_timesteps", "seed", "trial"))
_OF_THE_TRIAL = ("algo", "env_id", "total_timesteps", "worker", "fixed", "extras", "resources", "scheduling")
_OF_THE_RUN = ("name", "tags", "notes", "trials", "seed")
KEYS = (*_OF_THE_TRIAL, *_OF_THE_RUN, *_SETTINGS)
"""Keys of a sweep file"""


class SweepUnreadable(ValueError):
    """The stored sweep cannot be read here."""


@dataclass
class SweepDocument:
    """A sweep as written in a file or on the command line, with the keys of `KEYS`."""

    values: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """Ranges by parameter name, as text or as an object"""
        found = self.values.get("parameters")
        return dict(found) if isinstance(found, Mapping) else {}

    def config(self, spec: WorkerSpec, algorithm: AlgorithmSpec) -> tuple[dict[str, Any], list[Problem]]:
        """Return the run config to submit, and all its problems."""
        problems = [
            Problem(key, "is not a key of a sweep", nearest(key, KEYS)) for key in self.values if key not in KEYS
        ]
        ranges = self._ranges(algorithm, problems)
        problems += check_ranges(read_ranges(ranges, problems), algorithm) if ranges or not problems else []
        trial = self._trial(spec, algorithm, problems)
        settings = {name: self.values[name] for name in _SETTINGS if self.values.get(name) is not None}
        settings |= {"parameters": ranges, "trial": trial}
        trials, seed = self.values.get("trials", 50), self.values.get("seed", 1)
        known = {each.name: each for each in sweep_fields()}
        checked = {**settings, "total_timesteps": trials, "seed": seed}
        problems += [
            Problem("trials" if name == "total_timesteps" else name, wrong)
            for name, value in checked.items()
            if (wrong := known[name].problem_with(value)) is not None
        ]
        if not problems:
            problems += read_settings(settings)[1]
        env_id = str(self.values.get("env_id") or "")
        name = self.values.get("name") or f"sweep-{algorithm.name}-{env_id}"
        request = run_request(
            WORKER_TYPE,
            algo=ALGORITHM,
            env_id=env_id,
            total_timesteps=trials,
            seed=seed,
            extras={"algo_params": settings, "notes": self.values.get("notes") or None},
            run_name=str(name)[:200],
            tags=list(self.values.get("tags") or ()),
        )
        return request, problems

    def _ranges(self, algorithm: AlgorithmSpec, problems: list[Problem]) -> dict[str, Any]:
        ranges: dict[str, Any] = {}
        for name, given in self.parameters.items():
            plain = str(name).replace("-", "_")
            if not isinstance(given, str):
                ranges[plain] = given
                continue
            try:
                ranges[plain] = range_from_text(plain, given, algorithm.field(plain))
            except ValueError as error:
                problems.append(Problem(f"parameters.{plain}", str(error).removeprefix(f"{plain}: ")))
        return ranges

    def _trial(self, spec: WorkerSpec, algorithm: AlgorithmSpec, problems: list[Problem]) -> dict[str, Any]:
        env_id, fixed = self.values.get("env_id"), self.values.get("fixed") or {}
        if not isinstance(env_id, str) or not env_id:
            problems.append(Problem("env_id", "which environment? --env ENV"))
            env_id = ""
        total = self.values.get("total_timesteps")
        if total is None:
            default = algorithm.field("total_timesteps")
            total = default.default if default is not None else None
        if type(total) is not int or total < 1:
            problems.append(Problem("total_timesteps", "how long does a trial train? --total-timesteps N"))
        if env_id:
            problems += check_algorithm_choice(spec, algorithm.name, env_id, fixed, path="")
        return run_request(
            spec.name,
            algo=algorithm.name,
            env_id=env_id,
            total_timesteps=total,
            extras={**(self.values.get("extras") or {}), **({"algo_params": dict(fixed)} if fixed else {})},
            run_id=None,
            resources=self.values.get("resources"),
            scheduling=self.values.get("scheduling"),
        )


# ---------------------------------------------------------------- what is stored of a sweep


def is_sweep(run: pb.Run) -> bool:
    """Return whether a run is a sweep."""
    return run.worker_type == WORKER_TYPE


def settings_of(run: pb.Run) -> dict[str, Any]:
    """Return a sweep's submitted settings."""
    if not is_sweep(run):
        raise SweepUnreadable(f"run {run.run_id} is no sweep: it is {run.algo} of worker {run.worker_type}")
    try:
        config = worker_part(run_configs.config_of(run).document)
    except ConfigUnreadable as error:
        raise SweepUnreadable(str(error)) from error
    settings = config.get("extras", {}).get("algo_params")
    if not isinstance(settings, dict):
        raise SweepUnreadable(f"the config of sweep {run.run_id} has no settings")
    return settings


def study_address(run: pb.Run) -> str:
    """Return the study of a sweep: a file, or the URL of a database (without its password)."""
    manifest = AnalyticsManifest.find(Path(run.run_dir) / "analytics.json")
    named = manifest.optuna_db_path if manifest is not None else None
    named = named or next((name for name in STUDY_FILES.values() if (Path(run.run_dir) / name).exists()), None)
    if named is None:
        raise SweepUnreadable(f"sweep {run.run_id} has not written its study yet")
    return named if "://" in named else str(Path(run.run_dir) / named)


def study_of(run: pb.Run) -> Study:
    """Return the present study of a sweep, read without Optuna and without changing it."""
    from gym_gui.services.analytics.studies.readers import is_url, open_study
    from gym_gui.services.analytics.studies.study import StudyError

    settings_of(run)  # raises if it is not a sweep
    address = study_address(run)
    if is_url(address):
        raise SweepUnreadable(f"the study of this sweep lies in a database: {address}; open it with optuna-dashboard")
    try:
        return open_study(address)
    except StudyError as error:
        raise SweepUnreadable(str(error)) from error


def trial_of(run: pb.Run, number: int | None = None) -> Trial:
    """Return a trial of a sweep; None selects the best one."""
    study = study_of(run)
    if number is None:
        if study.best is None:
            yet = "" if run.status == RunStatus.TERM else " yet"
            raise SweepUnreadable(f"no trial of sweep {run.run_id} has completed{yet}")
        return study.best
    found = next((trial for trial in study.trials if trial.number == number), None)
    if found is None:
        raise SweepUnreadable(f"sweep {run.run_id} has no trial {number}; it has {len(study.trials)}, from 0 on")
    return found


def config_of_trial(run: pb.Run, trial: Trial) -> dict[str, Any]:
    """Return the run config that trains with a trial's values, without a seed."""
    template = settings_of(run).get("trial")
    if not isinstance(template, dict):
        raise SweepUnreadable(f"the config of sweep {run.run_id} does not define a trial")
    document = with_parameters(template, trial.params)
    worker_part(document).pop("seed", None)
    document["tags"] = [*document.get("tags", []), f"from:{run.run_id}", f"from-trial:{trial.number}"]
    return document


def use_trials_script(
    run: pb.Run, trial: Trial, document: dict[str, Any], client: TrainerClient | None = None
) -> tuple[str, ...]:
    """Make a trial's config train the code that the trial ran: where the file has changed, the copy of its run.

    Return what the user should know of it. `run` is the sweep as the daemon has it, `client` fetches the trial's files.
    """
    extras = worker_part(document).get("extras") or {}
    if not extras.get("script_path"):
        return ()
    try:
        run_id = check_run_id(next(iter(trial.run_ids), ""))
        daemons = pb.Run(run_id=run_id, run_dir=str(Path(run.run_dir).parent / run_id))
        found = run_configs.config_of(daemons, client.local(daemons, *DOCUMENTS, *SCRIPTS) if client else None)
    except (InvalidRunId, ConfigUnreadable, RunNotFound):
        return (f"the run of the trial is missing; whether {extras['script_path']} has changed since is not known",)
    trained = worker_part(found.document)["extras"]
    extras["script_path"], extras["script_sha256"] = trained.get("script_path"), trained.get("script_sha256")
    return found.notices


# ---------------------------------------------------------------- trial config


_USUAL_WORKER, _USUAL_ALGORITHM = "cleanrl", "ppo"


@dataclass(frozen=True)
class TrainingConfig:
    """A run config, and what the user should check before starting it."""

    document: dict[str, Any]
    notice: str = ""

    @property
    def worker(self) -> str:
        """Return the worker that is to train it."""
        return str(self.document["metadata"]["worker"].get("type") or _USUAL_WORKER)


def training_of_sweep(sweep: pb.Run, trial: Trial, client: TrainerClient) -> TrainingConfig:
    """Return what the trial of a sweep trained; SweepUnreadable when the sweep's config cannot be read."""
    document = config_of_trial(client.local(sweep, *DOCUMENTS), trial)
    document["run_name"] = f"trial-{trial.number}-of-{short_id(sweep.run_id)}"
    worker_part(document)["seed"] = 1
    return TrainingConfig(document, "; ".join(use_trials_script(sweep, trial, document, client)))


def training_of_parameters(trial: Trial) -> TrainingConfig:
    """Return the config for a trial of any study: only its parameters are known."""
    # CleanRL's own tuner names parameters as flags: learning-rate.
    parameters = {name.lstrip("-").replace("-", "_"): value for name, value in trial.params.items()}
    return TrainingConfig(
        run_request(_USUAL_WORKER, algo=_USUAL_ALGORITHM, run_id=None, extras={"algo_params": parameters}),
        "The study does not name the algorithm, environment and length of its trials: please choose them.",
    )
