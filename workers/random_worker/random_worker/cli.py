"""The reference worker: random actions, and everything that a worker must implement.

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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mosaic_wire.checkpoints import read_checkpoint, write_checkpoint
from mosaic_wire.errors import ConfigProblems, DamagedCheckpoint, Problem
from mosaic_wire.exit_record import BAD_INPUT, ExitOutcome
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
)
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice

from random_worker import __version__, get_worker_metadata, misbehaviour
from random_worker.worlds import World, make_world

FIELDS = (
    FieldSpec("steps_per_second", "float", 0.0, "at most this many steps a second; 0: flat out", minimum=0),
    FieldSpec("sleep_s", "float", 0.0, "sleep this long before the first step", minimum=0),
    FieldSpec("checkpoint_every", "int", 0, "write a checkpoint every so many steps; 0: only when asked to", minimum=0),
)


def describe() -> WorkerSpec:
    """Return what `--describe` prints, enough for a form, config checks and starting this worker."""
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
    """One run: a world, random actions in it, and its progress."""

    def __init__(self, config: WorkerConfig, session: WorkerSession, world: World, state: dict[str, Any]) -> None:
        self.config, self.session, self.world = config, session, world
        self.parameters = config.parameters
        self.rng = random.Random(config.seed)
        self.step = 0
        if state:  # continue exactly from the checkpoint
            version, internal, gauss = state["rng"]
            self.rng.setstate((version, tuple(internal), gauss))
            self.world.restore(state["world"])
            self.step = state["step"]
        self.manifest = AnalyticsManifest(
            config.run_id,
            "random",
            config.algo,
            config.env_id,
            config.seed,
            versions={"random_worker": __version__},
            checkpoints=earlier_checkpoints(session.run_folder.manifest, up_to_step=self.step),
        )

    def save(self, kind: str = "periodic") -> None:
        """Write a checkpoint, add it to the manifest and emit the event, in this order."""
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
        """Handle commands and signals at a safe point; return an outcome to end the run."""
        command = self.session.next_command()
        if command is None and not self.session.stop_requested.is_set():
            return None
        self.save("last")
        if command is CommandKind.PAUSE:
            command = self.session.pause({"step": self.step})
        if self.session.stop_requested.is_set():
            return ExitOutcome.CANCELLED
        return ExitOutcome.RELEASED if command is CommandKind.RELEASE else None


def load(arguments: argparse.Namespace) -> tuple[WorkerConfig, World, dict[str, Any]]:
    """Return the config, its world and the state to resume from; raise ConfigProblems or DamagedCheckpoint."""
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
    """Register, train and end the run; return the exit code."""
    misbehaviour.before_registration(config.parameters)
    with WorkerSession.of(config, get_worker_metadata(), target) as session:
        if (code := session.open_or_explain()) is not None:
            return code
        job = RandomRun(config, session, world, state)
        try:
            job.manifest.write(session.run_folder.manifest)
            facts = {"seed": config.seed, "total_timesteps": config.total_timesteps, "step": job.step}
            session.started({**facts, "module": "random_worker.cli"})
            if state:
                session.emit(LifecycleKind.CHECKPOINT_LOADED, {"step": job.step})
            misbehaviour.after_start(config.parameters)
            outcome = job.train()
            return session.finish(outcome, payload={"step": job.step, **world.state()}, manifest=job.manifest)
        except Exception as error:  # noqa: BLE001 - the process boundary: the run ends as failed
            return session.fail(error, {"step": job.step}, job.manifest)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
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
