"""The sweep worker: the daemon starts it for `mosaic sweep`.

python -m sweep_worker.cli --describe
python -m sweep_worker.cli --config worker.json --dry-run
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.checkpoints import read_checkpoint
from mosaic_wire.config_checks import CheckAnswer, serve_checks
from mosaic_wire.errors import ConfigProblems, DamagedCheckpoint, Problem
from mosaic_wire.exit_record import BAD_INPUT, ExitOutcome
from mosaic_wire.ids import is_run_id, new_run_id
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.redaction import with_secrets
from mosaic_wire.run_request import Mode, worker_part
from mosaic_wire.session import WorkerSession
from mosaic_wire.sweep_settings import (
    ALGORITHM,
    WORKER_TYPE,
    SweepSettings,
    read_settings,
    sweep_fields,
    with_parameters,
)
from mosaic_wire.worker_config import WorkerConfig, add_worker_arguments, canonical_flags, daemon_target, overrides_from
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec, check_algorithm_choice

from sweep_worker import __version__, get_worker_metadata

if TYPE_CHECKING:  # a description or a refusal does not wait for Optuna
    from sweep_worker.controller import Runs, SweepController
    from sweep_worker.study import StudyPlace


@dataclass(frozen=True)
class SweepTask:
    """A checked sweep."""

    config: WorkerConfig
    settings: SweepSettings
    state: dict[str, Any]
    """Of the checkpoint to continue from"""
    source: Path | None = None
    """The run folder that the checkpoint lies in"""


def load(config: WorkerConfig, *, may_run: bool) -> SweepTask:
    """Return the config and the checkpoint to continue from; raises ConfigProblems or DamagedCheckpoint."""
    parameters = with_secrets(config.parameters, os.environ)
    problems = check_algorithm_choice(describe(), config.algo, config.env_id, parameters)
    if config.total_timesteps > 1_000_000:
        problems.append(Problem("total_timesteps", "a sweep has at most 1,000,000 trials; it is the number of trials"))
    settings, wrong = read_settings(parameters)
    problems += wrong
    state: dict[str, Any] = {}
    source = None
    if (folder := config.checkpoint_to_resume) is not None:
        state = read_checkpoint(folder)
        source = folder.parent.parent
        if state.get("algo") != config.algo:
            problems.append(Problem("extras.checkpoint_path", f"{folder} is not a checkpoint of a sweep"))
    elif config.extras.get("mode", "train") != "train":
        problems.append(Problem("extras.mode", "must be 'train', or 'resume_training' with a checkpoint_path"))
    if settings is not None:
        if missing := missing_packages(*SAMPLER_NEEDS.get(settings.sampler, ())):
            problems.append(Problem("sampler", f"{settings.sampler}: {missing}; or choose tpe"))
        if not settings.rehearse_s and not may_run:
            problems.append(Problem("", "a sweep has its trials run by a daemon: submit it with `mosaic sweep`"))
    if problems or settings is None:
        raise ConfigProblems("the worker config", problems)
    return SweepTask(config, settings, state, source)


def check_document(document: Mapping[str, Any]) -> CheckAnswer:
    """Return what is wrong with a sweep; its trials begin like the run that goes with the answer."""
    try:
        settings = load(WorkerConfig.from_json(document, make_run_id=new_run_id), may_run=True).settings
    except DamagedCheckpoint as error:
        return CheckAnswer([Problem("extras.checkpoint_path", str(error))])
    values = {each.name: each.choices[0] if each.choices else each.low for each in settings.parameters}
    if not settings.trial:
        return CheckAnswer()
    run = with_parameters(settings.trial, values)
    if settings.seeds != (None,):
        worker_part(run)["seed"] = settings.seeds[0]
    return CheckAnswer(runs=[run], varied=list(values))


def place_of(request: SweepTask, folder: Path) -> StudyPlace:
    """Return where the study lies: as the checkpoint says, else as the settings say."""
    from sweep_worker.study import StudyPlace

    settings, config = request.settings, request.config
    name = settings.study_name or str(request.state.get("study_name") or "")
    if not name:
        name = f"{_trial_part(settings).get('algo', 'rehearsal')}-{config.env_id}"
        if "://" in str(settings.storage):
            name = f"{name}-{config.run_id}"  # a database has studies of others, too
    return StudyPlace(str(settings.storage), name, folder)


def _trial_part(settings: SweepSettings) -> Any:
    return settings.trial_config if settings.trial else {}


def prepare(request: SweepTask, session: WorkerSession, runs: Runs, place: StudyPlace) -> SweepController:
    """Open the study and build the controller; ConfigProblems when the study cannot be used."""
    from sweep_worker import rehearsal
    from sweep_worker.controller import SweepController, SweepPlan
    from sweep_worker.study import Study, bring_along

    config, settings = request.config, request.settings
    total = rehearsal.TOTAL_TIMESTEPS if settings.rehearse_s else int(settings.trial_config["total_timesteps"])
    if settings.rehearse_s and not settings.trial:
        settings = replace(settings, trial=rehearsal.TRIAL)
    if request.source is not None:
        bring_along(place, request.source)
    study = Study.open(
        place,
        settings,
        seed=config.seed,
        total_timesteps=total,
        report_problem=session.print_error,
        is_stopping=session.stop_requested.is_set,
    )
    parent = request.source.name if request.source is not None and is_run_id(request.source.name) else ""
    plan = SweepPlan(
        config.run_id,
        settings,
        config.total_timesteps,
        total,
        "" if parent == config.run_id else parent,
        is_shared=place.is_shared,
    )
    controller = SweepController(plan, session, study, runs)
    controller.progress.state = {"algo": config.algo, "study_name": place.name, "storage": place.shown}
    controller.progress.manifest = AnalyticsManifest(
        config.run_id,
        "sweep",
        config.algo,
        config.env_id,
        config.seed,
        tensorboard_dir="tensorboard",
        optuna_db_path=place.shown,
        versions={"sweep_worker": __version__, "optuna": _optuna_version()},
    )
    return controller


def _optuna_version() -> str:
    import optuna

    return optuna.__version__


def run(request: SweepTask, target: str | None) -> int:
    """Register, sweep, end; the exit code."""
    with WorkerSession.of(request.config, get_worker_metadata(), target) as session:
        code = session.open_or_explain()
        return _run_registered(request, session) if code is None else code


def _run_registered(request: SweepTask, session: WorkerSession) -> int:
    from sweep_worker.controller import SweepFailed
    from sweep_worker.rehearsal import RehearsedRuns
    from sweep_worker.study import DamagedJournal

    config, folder = request.config, session.run_folder
    place = place_of(request, folder.root)
    manifest = AnalyticsManifest(config.run_id, "sweep", config.algo, config.env_id, config.seed)
    facts: dict[str, Any] = {}
    try:
        children = session.child_runs()
        runs: Runs = RehearsedRuns(request.settings) if request.settings.rehearse_s or children is None else children
        with runs:
            controller = prepare(request, session, runs, place)
            progress = controller.progress
            progress.manifest.write(folder.manifest)
            facts = {"seed": config.seed, "total_timesteps": config.total_timesteps, "study": place.shown}
            session.started({**facts, "module": "sweep_worker.cli", "study_name": place.name})
            session.follow_metrics(folder.root / "tensorboard")
            if request.source is not None:
                session.emit(LifecycleKind.CHECKPOINT_LOADED, {"step": request.state.get("step", 0)})
            progress.save()  # so that there is always one to continue from
            manifest = progress.manifest
            outcome = controller.run()
            if outcome is not ExitOutcome.RELEASED:
                progress.save()
            progress.close()
            return session.finish(outcome, payload=progress.summary(), manifest=progress.manifest)
    except (SweepFailed, ConfigProblems, DamagedJournal) as error:
        # The same would happen again: nothing to retry.
        facts = {**facts, "final": True, "error_type": type(error).__name__}
        return session.finish(ExitOutcome.FAILED, reason=str(error), payload=facts, manifest=manifest)
    except Exception as error:  # noqa: BLE001 - the process boundary: the run ends as failed
        return session.fail(error, facts, manifest)


def parser() -> argparse.ArgumentParser:
    """Return the flags every worker has."""
    made = argparse.ArgumentParser(prog="python -m sweep_worker.cli", description="MOSAIC's sweep worker")
    add_worker_arguments(made)
    made.add_argument("--check", action="store_true", help="answer a config a line on standard input")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    arguments = parser().parse_args(canonical_flags(sys.argv[1:] if argv is None else argv))
    if arguments.describe:
        print(json.dumps(describe().to_json()))
        return 0
    if arguments.check:
        return serve_checks(check_document)
    try:
        config = WorkerConfig.load(arguments.config, overrides_from(arguments), make_run_id=new_run_id)
        request = load(config, may_run=arguments.grpc or arguments.dry_run)
    except (ConfigProblems, DamagedCheckpoint) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if arguments.dry_run:
        print(json.dumps({"would_run": request.settings.sampler, "trials": request.config.total_timesteps}))
        return 0
    return run(request, daemon_target(arguments))


# ---------------------------------------------------------------- description


def describe() -> WorkerSpec:
    """Data enough to draw a form, check a config and start this worker."""
    text = "searches for good hyper-parameters; every trial is a run"
    unavailable = missing_packages("optuna")
    modes = (Mode.TRAIN.value, Mode.RESUME.value)
    algorithm = AlgorithmSpec(ALGORITHM, text, sweep_fields(), modes=modes, unavailable=unavailable)
    return WorkerSpec(
        name=WORKER_TYPE,
        display_name="Sweep (Optuna)",
        version=__version__,
        capabilities=get_worker_metadata(),
        module="sweep_worker.cli",
        argv=(sys.executable, "-m", "sweep_worker.cli"),
        checks=True,
        algorithms=(algorithm,),
    )


SAMPLER_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy", "torch")}


def missing_packages(*names: str) -> str:
    """Return which of these packages are missing and how to install them, without importing them; empty: none."""
    missing = [name for name in names if find_spec(name) is None]
    if not missing:
        return ""
    beside = " (the CPU build will do; the CleanRL worker's environment has it)" if "torch" in missing else ""
    packages = " ".join(missing)
    return f"{' and '.join(missing)} must be installed{beside}: {sys.executable} -m pip install {packages}"


if __name__ == "__main__":
    sys.exit(main())
