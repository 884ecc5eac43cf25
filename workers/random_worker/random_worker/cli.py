"""The reference worker: random actions, and everything that a worker must implement.

    python -m random_worker.cli --algo random --env-id none --total-timesteps 1000

It shows the whole contract: describe, read the config, register, report, pause, checkpoint, resume, end honestly.
Every `misbehavior` line is for the daemon's tests; leave them out of a worker of your own.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_run import WorkerRun, run_worker, state_to_resume
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice

from random_worker import __version__, get_worker_metadata, misbehavior
from random_worker.worlds import World, make_world

FIELDS = (
    FieldSpec("steps_per_second", "float", 0.0, "at most this many steps a second; 0: flat out", minimum=0),
    FieldSpec("sleep_s", "float", 0.0, "sleep this long before the first step", minimum=0),
    FieldSpec("checkpoint_every", "int", 0, "write a checkpoint every so many steps; 0: only when asked to", minimum=0),
)


def describe() -> WorkerSpec:
    """Return what `--describe` prints, enough for a form, config checks and starting this worker."""
    fields = (*FIELDS, *misbehavior.FIELDS)
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


def load(config: WorkerConfig) -> RandomRun:
    """Return the run of a config; raise ConfigProblems or DamagedCheckpoint."""
    problems = check_algorithm_choice(describe(), config.algo, config.env_id, config.parameters)
    state = state_to_resume(config, problems)
    if state and not {"rng", "world"} <= state.keys():
        problems.append(Problem("extras.checkpoint_path", "is not a checkpoint of this worker"))
    if problems:
        raise ConfigProblems("the worker config", problems)
    return RandomRun(config, make_world(config.env_id), state)


class RandomRun(WorkerRun):
    """One run: a world, random actions in it, and its progress."""

    def __init__(self, config: WorkerConfig, world: World, state: Mapping[str, Any]) -> None:
        manifest = AnalyticsManifest(
            config.run_id, "random", config.algo, config.env_id, config.seed, versions={"random_worker": __version__}
        )
        super().__init__(config, manifest, resumed_at=state.get("step"))
        self.world, self.parameters = world, config.parameters
        self.rng = random.Random(config.seed)
        if state:  # continue exactly from the checkpoint
            version, internal, gauss = state["rng"]
            self.rng.setstate((version, tuple(internal), gauss))
            self.world.restore(state["world"])

    def register(self) -> int | None:
        """Register with the daemon."""
        misbehavior.before_registration(self.parameters)
        return super().register()

    def train(self) -> ExitOutcome:
        """Step until done, cancelled or released."""
        misbehavior.after_start(self.parameters)
        total, first, began = self.config.total_timesteps, self.step, time.monotonic()
        rate, every = self.parameters.get("steps_per_second", 0), self.parameters.get("checkpoint_every", 0)
        self.session.stop_requested.wait(self.parameters.get("sleep_s", 0))
        while self.step < total:
            if (outcome := self.obey()) is not None:
                return outcome
            self.step += 1
            episodic_return = self.world.step(self.rng)
            misbehavior.at_step(self.parameters, self.step)
            sps = (self.step - first) / (time.monotonic() - began + 1e-9)
            self.session.progress(self.step, total, episodic_return, sps)
            if every and self.step % every == 0:
                self.save()
            if rate:
                self.session.stop_requested.wait(1 / rate)
        return ExitOutcome.COMPLETED

    def state(self) -> Mapping[str, Any]:
        """Return what a checkpoint holds."""
        return {"rng": self.rng.getstate(), "world": self.world.state()}

    def result(self) -> Mapping[str, Any]:
        """Return facts for the event that ends the run."""
        return {"step": self.step, **self.world.state()}

    def close(self) -> None:
        """Close the environment."""
        self.world.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_worker("random_worker.cli", describe, load, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
