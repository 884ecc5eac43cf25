"""The reference worker: acts at random, and does everything else a worker must do.

    python -m random_worker.cli --algo random --env-id none --total-timesteps 1000

It shows the whole contract: describe, read the config, register, report, pause, checkpoint, resume, end honestly.
Every `misbehaviour` line is for the daemon's tests; leave them out of a worker of your own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mosaic_wire.checkpoints import read_checkpoint, write_checkpoint
from mosaic_wire.errors import ConfigProblems, DamagedCheckpoint, Problem, SessionError, SessionStopped
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.ids import new_run_id
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest, earlier_checkpoints
from mosaic_wire.session import CommandKind, WorkerSession
from mosaic_wire.worker_config import (
    WorkerConfig,
    add_worker_arguments,
    canonical_flags,
    daemon_target,
    overrides_from,
    run_folder_of,
)
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice

from random_worker import __version__, get_worker_metadata, misbehaviour
from random_worker.worlds import World, make_world

FIELDS = (
    FieldSpec("steps_per_second", "float", 0.0, "at most this many steps a second; 0: flat out", minimum=0),
    FieldSpec("sleep_s", "float", 0.0, "sleep this long before the first step", minimum=0),
    FieldSpec("checkpoint_every", "int", 0, "write a checkpoint every so many steps; 0: only when asked to", minimum=0),
)
EXIT_CODES = {
    ExitOutcome.COMPLETED: 0, ExitOutcome.RELEASED: 0, ExitOutcome.FAILED: 1, ExitOutcome.CANCELLED: 130,
}  # fmt: skip
BAD_INPUT = 2


def describe() -> WorkerSpec:
    """What `--describe` prints: data enough to draw a form, check a config and start this worker."""
    fields = (*FIELDS, *misbehaviour.FIELDS)
    return WorkerSpec(
        name="random",
        display_name="Random (reference)",
        version=__version__,
        capabilities=get_worker_metadata(),
        module="random_worker.cli",
        argv=(sys.executable, "-m", "random_worker.cli"),
        algorithms=(AlgorithmSpec("random", "acts at random", fields, modes=("train", "resume_training")),),
        hidden=True,
    )


class RandomRun:
    """One run: a world, random actions in it, and how far they got."""

    def __init__(self, config: WorkerConfig, session: WorkerSession, world: World, state: dict[str, Any]) -> None:
        self.config, self.session, self.world = config, session, world
        self.parameters = config.parameters
        self.rng = random.Random(config.seed)
        self.step = 0
        if state:  # go on exactly where a checkpoint was written
            version, internal, gauss = state["rng"]
            self.rng.setstate((version, tuple(internal), gauss))
            self.world.restore(state["world"])
            self.step = state["step"]
        self.manifest = AnalyticsManifest(
            config.run_id, "random", config.algo, config.env_id, config.seed, versions={"random_worker": __version__},
            checkpoints=earlier_checkpoints(session.run_folder.manifest, up_to_step=self.step),
        )  # fmt: skip

    def save(self, kind: str = "periodic") -> None:
        """Write a checkpoint, list it in the manifest, tell it: in this order nobody hears of what is not there."""
        folder = self.session.run_folder
        state = {"algo": self.config.algo, "rng": self.rng.getstate(), "world": self.world.state()}
        entry = write_checkpoint(folder, self.step, state, kind=kind)
        others = tuple(known for known in self.manifest.checkpoints if known.path != entry.path)
        self.manifest = replace(self.manifest, checkpoints=(*others, entry))
        self.manifest.write(folder.manifest)
        self.session.emit(LifecycleKind.CHECKPOINT_SAVED, entry.to_json())

    def train(self) -> ExitOutcome:
        """Step until done, cancelled or released."""
        total, first, began = self.config.total_timesteps, self.step, time.monotonic()
        rate, every = self.parameters.get("steps_per_second", 0), self.parameters.get("checkpoint_every", 0)
        self.session.stop_requested.wait(self.parameters.get("sleep_s", 0))
        while self.step < total:
            if (outcome := self.obey()) is not None:
                return outcome
            self.step += 1
            episodic_return = self.world.step(self.rng)
            misbehaviour.at_step(self.parameters, self.step)
            sps = (self.step - first) / (time.monotonic() - began + 1e-9)
            self.session.progress(self.step, total, episodic_return, sps)
            if every and self.step % every == 0:
                self.save()
            if rate:
                self.session.stop_requested.wait(1 / rate)
        return ExitOutcome.COMPLETED

    def obey(self) -> ExitOutcome | None:
        """A safe point: do what the daemon or a signal asks for; an outcome ends the run."""
        command = self.session.next_command()
        if command is None and not self.session.stop_requested.is_set():
            return None
        self.save("last")
        if command is CommandKind.PAUSE:
            command = self.session.hold({"step": self.step})
        if self.session.stop_requested.is_set():
            return ExitOutcome.CANCELLED
        return ExitOutcome.RELEASED if command is CommandKind.RELEASE else None


def load(arguments: argparse.Namespace) -> tuple[WorkerConfig, World, dict[str, Any]]:
    """The config, its world and the state to resume from; raises ConfigProblems or DamagedCheckpoint."""
    config = WorkerConfig.load(arguments.config, overrides_from(arguments), make_run_id=new_run_id)
    problems = check_algorithm_choice(describe(), config.algo, config.env_id, config.parameters)
    state: dict[str, Any] = {}
    if (folder := config.checkpoint_to_resume) is not None:
        state = read_checkpoint(folder)
        if state.get("algo") != config.algo or not {"rng", "world"} <= state.keys():
            problems.append(Problem("extras.checkpoint_path", f"{folder} is not a checkpoint of {config.algo!r}"))
    elif config.extras.get("mode", "train") != "train":
        problems.append(Problem("extras.mode", "must be 'train', or 'resume_training' with a checkpoint_path"))
    if problems:
        raise ConfigProblems("the worker config", problems)
    return config, make_world(config.env_id), state


def run(config: WorkerConfig, world: World, state: dict[str, Any], target: str | None) -> int:
    """Register, train, end; the exit code."""
    misbehaviour.before_registration(config.parameters)
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
        job = RandomRun(config, session, world, state)
        try:
            job.manifest.write(session.run_folder.manifest)
            facts = {"seed": config.seed, "total_timesteps": config.total_timesteps, "step": job.step}
            session.started({**facts, "module": "random_worker.cli"})
            if state:
                session.emit(LifecycleKind.CHECKPOINT_LOADED, {"step": job.step})
            misbehaviour.after_start(config.parameters)
            outcome, reason = job.train(), ""
            payload = {"step": job.step, **world.state()}
            session.finish(outcome, payload=payload, exit_code=EXIT_CODES[outcome], manifest=job.manifest)
        except Exception as error:  # noqa: BLE001 - the process boundary: it becomes the run's honest ending
            session.complain(traceback.format_exc())
            outcome, reason = ExitOutcome.FAILED, f"{type(error).__name__}: {error}"
            payload = {"error_type": type(error).__name__, "step": job.step}
            session.finish(outcome, reason=reason, payload=payload, exit_code=1, manifest=job.manifest)
        return EXIT_CODES[outcome]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m random_worker.cli", description="MOSAIC's reference worker")
    add_worker_arguments(parser)
    arguments = parser.parse_args(canonical_flags(sys.argv[1:] if argv is None else argv))
    if arguments.describe:
        print(json.dumps(describe().to_json()))
        return 0
    try:
        config, world, state = load(arguments)
    except (ConfigProblems, DamagedCheckpoint) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    try:
        if arguments.dry_run:
            print(json.dumps({"would_run": config.algo, "env_id": config.env_id, "steps": config.total_timesteps}))
            return 0
        return run(config, world, state, daemon_target(arguments))
    finally:
        world.close()


if __name__ == "__main__":
    sys.exit(main())
