"""Sweeps as clients see them: put together from what a person asked for, and read back from what is stored of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.errors import Problem
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.sweep_ranges import check_ranges, range_from_text, read_ranges
from mosaic_wire.sweep_settings import ALGORITHM, STUDY_FILES, WORKER_TYPE, read_settings, sweep_fields, with_parameters
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec, check_algorithm_choice, nearest

from gym_gui.services import run_configs
from gym_gui.services.run_configs import ConfigUnreadable

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.studies import Study, Trial

_SETTINGS = tuple(each.name for each in sweep_fields() if each.name not in ("total_timesteps", "seed", "trial"))
_OF_THE_TRIAL = ("algo", "env_id", "total_timesteps", "worker", "fixed", "extras", "resources", "scheduling")
_OF_THE_RUN = ("name", "tags", "notes", "trials", "seed")
KEYS = (*_OF_THE_TRIAL, *_OF_THE_RUN, *_SETTINGS)
"""What a sweep file may say"""


class SweepUnreadable(ValueError):
    """What is stored of a sweep cannot be read here; the words are for people."""


@dataclass
class SweepOrder:
    """A sweep as a person writes it, in a file or on the command line: the keys are those of `KEYS`."""

    values: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """Name → range, as text or as an object."""
        found = self.values.get("parameters")
        return dict(found) if isinstance(found, Mapping) else {}

    def config(self, spec: WorkerSpec, algorithm: AlgorithmSpec) -> tuple[dict[str, Any], list[Problem]]:
        """The run config to submit, and everything that is wrong with it."""
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
        config = {
            "algo": ALGORITHM, "env_id": env_id, "total_timesteps": trials, "seed": seed,
            "extras": {"algo_params": settings},
        }  # fmt: skip
        if notes := self.values.get("notes"):
            config["extras"] = {**config["extras"], "notes": notes}
        name = self.values.get("name") or f"sweep-{algorithm.name}-{env_id}"
        return {
            "run_name": str(name)[:200], "tags": list(self.values.get("tags") or ()),
            "metadata": {"worker": {"type": WORKER_TYPE, "config": config}},
        }, problems  # fmt: skip

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
        extras = dict(self.values.get("extras") or {})
        if fixed:
            extras["algo_params"] = dict(fixed)
        config = {"algo": algorithm.name, "env_id": env_id, "total_timesteps": total, "extras": extras}
        trial: dict[str, Any] = {"metadata": {"worker": {"type": spec.name, "config": config}}}
        for key in ("resources", "scheduling"):
            if found := self.values.get(key):
                trial[key] = found
        return trial


# ---------------------------------------------------------------- what is stored of a sweep


def is_sweep(run: pb.Run) -> bool:
    return run.worker_type == WORKER_TYPE


def settings_of(run: pb.Run) -> dict[str, Any]:
    """A sweep's settings as they were submitted."""
    if not is_sweep(run):
        raise SweepUnreadable(f"run {run.run_id} is no sweep: it is {run.algo} of worker {run.worker_type}")
    try:
        config = run_configs.config_of(run).document["metadata"]["worker"]["config"]
    except ConfigUnreadable as error:
        raise SweepUnreadable(str(error)) from error
    settings = config.get("extras", {}).get("algo_params")
    if not isinstance(settings, dict):
        raise SweepUnreadable(f"the config of sweep {run.run_id} has no settings")
    return settings


def study_address(run: pb.Run) -> str:
    """Where the study of a sweep lies: a file here, or the URL of a database (without its password)."""
    try:
        named = AnalyticsManifest.read(Path(run.run_dir) / "analytics.json").optuna_db_path
    except (OSError, ValueError):
        named = None
    named = named or next((name for name in STUDY_FILES.values() if (Path(run.run_dir) / name).exists()), None)
    if named is None:
        raise SweepUnreadable(f"sweep {run.run_id} has not written its study yet")
    return named if "://" in named else str(Path(run.run_dir) / named)


def study_of(run: pb.Run) -> Study:
    """The study of a sweep as it is now; read without Optuna, and never changed."""
    from gym_gui.services.analytics.studies import StudyError, is_url, open_study

    settings_of(run)  # says so when it is no sweep
    address = study_address(run)
    if is_url(address):
        raise SweepUnreadable(
            f"the study of this sweep lies in a database: {address}; look at it with optuna-dashboard"
        )
    try:
        return open_study(address)
    except StudyError as error:
        raise SweepUnreadable(str(error)) from error


def trial_of(run: pb.Run, number: int | None = None) -> Trial:
    """A trial of a sweep; None: the best one."""
    study = study_of(run)
    if number is None:
        if study.best is None:
            yet = "" if run.status == "TERM" else " yet"
            raise SweepUnreadable(f"no trial of sweep {run.run_id} has completed{yet}")
        return study.best
    found = next((trial for trial in study.trials if trial.number == number), None)
    if found is None:
        raise SweepUnreadable(f"sweep {run.run_id} has no trial {number}; it has {len(study.trials)}, from 0 on")
    return found


def config_of_trial(run: pb.Run, trial: Trial) -> dict[str, Any]:
    """The run config that trains with a trial's values; the seed is left to whoever submits it."""
    template = settings_of(run).get("trial")
    if not isinstance(template, dict):
        raise SweepUnreadable(f"the config of sweep {run.run_id} does not say what a trial is")
    document = with_parameters(template, trial.params)
    document["metadata"]["worker"]["config"].pop("seed", None)
    document["tags"] = [*document.get("tags", []), f"from:{run.run_id}", f"from-trial:{trial.number}"]
    return document
