"""The sweep worker: the daemon starts it for `mosaic sweep`.

python -m sweep_worker.cli --describe
python -m sweep_worker.cli --config worker.json --dry-run
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.checkpoints import read_checkpoint
from mosaic_wire.config_checks import CheckAnswer, serve_checks
from mosaic_wire.errors import ConfigProblems, DamagedCheckpoint, Problem, SessionError, SessionStopped
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.ids import is_run_id, new_run_id
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.secret_refs import with_secrets
from mosaic_wire.session import WorkerSession
from mosaic_wire.sweep_settings import SweepSettings, read_settings, with_parameters
from mosaic_wire.worker_config import (
    WorkerConfig,
    add_worker_arguments,
    canonical_flags,
    daemon_target,
    overrides_from,
    run_folder_of,
)
from mosaic_wire.worker_spec import check_algorithm_choice

from sweep_worker import __version__, get_worker_metadata
from sweep_worker.description import SAMPLER_NEEDS, describe, missing_packages

if TYPE_CHECKING:  # a description or a refusal does not wait for Optuna
    from sweep_worker.controller import Runs, SweepController
    from sweep_worker.study import StudyPlace

EXIT_CODES = {
    ExitOutcome.COMPLETED: 0, ExitOutcome.RELEASED: 0, ExitOutcome.FAILED: 1, ExitOutcome.CANCELLED: 130,
}  # fmt: skip
BAD_INPUT = 2


@dataclass(frozen=True)
class Order:
    """What to do, checked."""

    config: WorkerConfig
    settings: SweepSettings
    state: dict[str, Any]
    """Of the checkpoint to go on from"""
    source: Path | None = None
    """The run folder that the checkpoint lies in"""


def load(config: WorkerConfig, *, may_run: bool) -> Order:
    """The config and the checkpoint to go on from; raises ConfigProblems or DamagedCheckpoint."""
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
    return Order(config, settings, state, source)


def check_document(document: Mapping[str, Any]) -> CheckAnswer:
    """What is wrong with a sweep; its trials begin like the run that goes with the answer."""
    try:
        settings = load(WorkerConfig.from_json(document, make_run_id=new_run_id), may_run=True).settings
    except DamagedCheckpoint as error:
        return CheckAnswer([Problem("extras.checkpoint_path", str(error))])
    values = {each.name: each.choices[0] if each.choices else each.low for each in settings.parameters}
    if not settings.trial:
        return CheckAnswer()
    run = with_parameters(settings.trial, values)
    if settings.seeds != (None,):
        run["metadata"]["worker"]["config"]["seed"] = settings.seeds[0]
    return CheckAnswer(runs=[run], varied=list(values))


def place_of(order: Order, folder: Path) -> StudyPlace:
    """Where the study lies: as the checkpoint says, else as the settings say."""
    from sweep_worker.study import StudyPlace

    settings, config = order.settings, order.config
    name = settings.study_name or str(order.state.get("study_name") or "")
    if not name:
        name = f"{_trial_part(settings).get('algo', 'rehearsal')}-{config.env_id}"
        if "://" in str(settings.storage):
            name = f"{name}-{config.run_id}"  # a database has studies of others, too
    return StudyPlace(str(settings.storage), name, folder)


def _trial_part(settings: SweepSettings) -> Any:
    return settings.trial_config if settings.trial else {}


def prepare(order: Order, session: WorkerSession, runs: Runs, place: StudyPlace) -> SweepController:
    """Open the study and build the controller; ConfigProblems when the study cannot be used."""
    from sweep_worker import rehearsal
    from sweep_worker.controller import SweepController, SweepPlan
    from sweep_worker.study import Study, bring_along

    config, settings = order.config, order.settings
    total = rehearsal.TOTAL_TIMESTEPS if settings.rehearse_s else int(settings.trial_config["total_timesteps"])
    if settings.rehearse_s and not settings.trial:
        settings = replace(settings, trial=rehearsal.TRIAL)
    if order.source is not None:
        bring_along(place, order.source)
    study = Study.open(
        place, settings, seed=config.seed, total_timesteps=total, complain=session.complain,
        is_stopping=session.stop_requested.is_set,
    )  # fmt: skip
    parent = order.source.name if order.source is not None and is_run_id(order.source.name) else ""
    plan = SweepPlan(
        config.run_id, settings, config.total_timesteps, total, "" if parent == config.run_id else parent,
        is_shared=place.is_shared,
    )  # fmt: skip
    controller = SweepController(plan, session, study, runs)
    controller.progress.state = {"algo": config.algo, "study_name": place.name, "storage": place.told}
    controller.progress.manifest = AnalyticsManifest(
        config.run_id, "sweep", config.algo, config.env_id, config.seed, tensorboard_dir="tensorboard",
        optuna_db_path=place.told, versions={"sweep_worker": __version__, "optuna": _optuna_version()},
    )  # fmt: skip
    return controller


def _optuna_version() -> str:
    import optuna

    return optuna.__version__


def run(order: Order, target: str | None) -> int:
    """Register, sweep, end; the exit code."""
    config = order.config
    session = WorkerSession.from_environment(
        config.run_id, run_folder_of(config.run_id).root, capabilities=get_worker_metadata(), algo=config.algo,
        env_id=config.env_id, extras=config.extras, target=target,
    )  # fmt: skip
    with session:
        session.install_signal_handlers()
        try:
            session.open()
        except SessionStopped:
            return EXIT_CODES[ExitOutcome.CANCELLED]
        except SessionError as error:
            print(error, file=sys.stderr)
            return BAD_INPUT
        return _run_registered(order, session)


def _run_registered(order: Order, session: WorkerSession) -> int:
    from sweep_worker.controller import GivenUp
    from sweep_worker.journal_file import DamagedJournal
    from sweep_worker.rehearsal import RehearsedRuns

    config, folder = order.config, session.run_folder
    place = place_of(order, folder.root)
    manifest = AnalyticsManifest(config.run_id, "sweep", config.algo, config.env_id, config.seed)
    facts: dict[str, Any] = {}
    try:
        children = session.child_runs()
        runs: Runs = RehearsedRuns(order.settings) if order.settings.rehearse_s or children is None else children
        with runs:
            controller = prepare(order, session, runs, place)
            progress = controller.progress
            progress.manifest.write(folder.manifest)
            facts = {"seed": config.seed, "total_timesteps": config.total_timesteps, "study": place.told}
            session.started({**facts, "module": "sweep_worker.cli", "study_name": place.name})
            session.follow_metrics(folder.root / "tensorboard")
            if order.source is not None:
                session.emit(LifecycleKind.CHECKPOINT_LOADED, {"step": order.state.get("step", 0)})
            progress.save()  # so that there is always one to go on from
            manifest = progress.manifest
            outcome = controller.run()
            if outcome is not ExitOutcome.RELEASED:
                progress.save()
            progress.close()
            session.finish(
                outcome, payload=progress.summary(), exit_code=EXIT_CODES[outcome],
                manifest=progress.manifest,
            )  # fmt: skip
            return EXIT_CODES[outcome]
    except (GivenUp, ConfigProblems, DamagedJournal) as error:
        # The same would happen again: nothing to retry.
        reason, facts = str(error), {**facts, "final": True, "error_type": type(error).__name__}
    except Exception as error:  # noqa: BLE001 - the process boundary: it becomes the run's honest ending
        session.complain(traceback.format_exc())
        reason, facts = f"{type(error).__name__}: {error}", {**facts, "error_type": type(error).__name__}
    session.finish(ExitOutcome.FAILED, reason=reason, payload=facts, exit_code=1, manifest=manifest)
    return EXIT_CODES[ExitOutcome.FAILED]


def parser() -> argparse.ArgumentParser:
    """The flags every worker has."""
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
        order = load(config, may_run=arguments.grpc or arguments.dry_run)
    except (ConfigProblems, DamagedCheckpoint) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if arguments.dry_run:
        print(json.dumps({"would_run": order.settings.sampler, "trials": order.config.total_timesteps}))
        return 0
    return run(order, daemon_target(arguments))


if __name__ == "__main__":
    sys.exit(main())
