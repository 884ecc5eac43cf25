"""Every name of CleanRL's that MOSAIC implements, through a real daemon at a short horizon: it ends TERM/completed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.requirement_sets import sets_needed
from gym_gui.cli.submit import SMOKE_FILE, smoke_report
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_extras.testing import lend_sets
from mosaic_wire.checkpoints import verify_checkpoint
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

pytestmark = pytest.mark.timeout(1200)  # the first test waits for the runs of all

PATIENCE_S = 600
QUICK_NAMES = {"ppo", "ppo_atari"}
"""Run in `make test`, for each set that is installed there; each of the others costs five seconds of CPU"""

TINY: dict[str, Any] = {
    "num_envs": 2,
    "local_num_envs": 2,
    "num_steps": 16,
    "num_minibatches": 2,
    "update_epochs": 1,
    "batch_size": 16,
    "learning_starts": 32,
    "buffer_size": 128,
    "n_iteration": 1,
    "e_auxiliary": 1,
    "e_policy": 1,
    "v_value": 1,
    "num_aux_rollouts": 1,
    "n_aux_grad_accum": 1,
    "num_iterations_obs_norm_init": 1,
    "teacher_steps": 64,
    "offline_steps": 32,
    "teacher_eval_episodes": 1,
    "target_network_frequency": 32,
    "n_atoms": 11,
}
"""What makes a training end soon; each name is given those flags it has and does not compute"""


@dataclass(frozen=True)
class Preset:
    """A name in an environment, with what it needs besides the tiny flags."""

    algo: str
    env_id: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    steps: int = 128

    def __str__(self) -> str:
        how = self.flags.get("env_backend", "")
        return "-".join(filter(None, (self.algo, self.env_id, how)))

    @property
    def defaults(self) -> dict[str, Any]:
        return {spec.name: spec.default for spec in DEFAULT_ALGO_REGISTRY[self.algo].spec().fields}

    @property
    def environment(self) -> str:
        return self.env_id or str(self.defaults["env_id"])

    @property
    def sets(self) -> tuple[str, ...]:
        return sets_needed(DEFAULT_ALGO_REGISTRY[self.algo], self.environment, {"algo_params": self.flags})

    def config(self, **more: Any) -> dict[str, Any]:
        known = self.defaults
        tiny = {name: value for name, value in TINY.items() if known.get(name)}  # a default of 0 is computed
        if "buffer_size" in known:
            tiny.pop("num_envs", None)
        worker_config = {
            "algo": self.algo,
            "env_id": self.environment,
            "seed": 1,
            "total_timesteps": self.steps,
            "extras": {"algo_params": {**tiny, **self.flags, **more}},
        }
        return {
            "resources": {"cpus": {"requested": 1}},
            "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": worker_config}},
        }


MINIGRID = Preset("ppo", "MiniGrid-Empty-5x5-v0", steps=256)
FAMILIES = (
    MINIGRID,
    Preset("ppo", "FrozenLake-v1"),
    Preset("ppo", "BabyAI-GoToRedBallGrey-v0"),
    Preset("ppo_continuous_action", "InvertedPendulum-v5"),
    Preset("ppo", "LunarLander-v3", steps=512),
    Preset("ppo", "CartPole-v1", {"env_backend": "envpool"}),
    Preset("ppo_continuous_action", "dm_control/cartpole-balance-v0", steps=2304),  # its episodes have 1,000 steps
    Preset("sac_continuous_action", "dm_control/pendulum-swingup-v0", steps=1100),
)
"""Families of environments that no name has as its default (those are classic control, MuJoCo v4, Atari, Procgen,
two-player games and envpool's Atari); long enough for an episode to end"""
FLAGS = {
    "qdagger_dqn_atari_impalacnn": {"env_kwargs": '{"max_episode_steps": 60}'},  # a bad teacher may play for hours
    "ppo_atari_multigpu": {"world_size": 2, "num_steps": 8},
}
TEACHER, PUPIL = "dqn_atari", "qdagger_dqn_atari_impalacnn"
PRESETS = [
    *(Preset(name, "", FLAGS.get(name, {})) for name, entry in DEFAULT_ALGO_REGISTRY.items() if entry.module),
    *FAMILIES,
]
QUICK = [preset for preset in PRESETS if preset == MINIGRID or (preset.algo in QUICK_NAMES and preset not in FAMILIES)]
SLOW = [preset for preset in PRESETS if preset not in QUICK]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for all of them; as many train at a time as there are cores."""
    folder = tmp_path_factory.mktemp("presets")
    settings = {"heartbeat_s": 0.5, "min_free_disk_mb": 0}
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=settings) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def runs(daemon: RunningDaemon, request: pytest.FixtureRequest) -> dict[str, str]:
    """Preset → run. All that were selected are queued at once, and have ended when the first test looks at its own."""
    asked = {str(item.callspec.params["preset"]) for item in request.session.items if _is_ours(item)}
    if PUPIL in asked:
        asked.add(TEACHER)
    selected = {str(preset): preset for preset in PRESETS if str(preset) in asked}
    for name in sorted({name for preset in selected.values() for name in preset.sets}):
        lend_sets(daemon.home, name)  # one by one: not all of them go together
    pupil = selected.pop(PUPIL, None)
    # The teacher comes first, so that its pupil need not wait for all the others.
    ordered = sorted(selected, key=lambda name: name != TEACHER)
    runs = {name: daemon.client.submit(selected[name].config()).run.run_id for name in ordered}
    if pupil is not None:
        daemon.wait_for(runs[TEACHER], timeout_s=PATIENCE_S)
        runs[PUPIL] = daemon.client.submit(pupil.config(teacher_checkpoint=runs[TEACHER])).run.run_id
    for run_id in runs.values():
        daemon.wait_for(run_id, timeout_s=PATIENCE_S)
    return runs


def _is_ours(item: pytest.Item) -> bool:
    return item.path == Path(__file__) and hasattr(item, "callspec")


@pytest.mark.parametrize(
    "preset", [*QUICK, *(pytest.param(preset, marks=pytest.mark.slow) for preset in SLOW)], ids=str
)
def test_it_trains_and_leaves_what_its_manifest_says(
    preset: Preset, daemon: RunningDaemon, runs: dict[str, str]
) -> None:
    run_id = runs[str(preset)]
    run = daemon.client.get(run_id)
    assert run.outcome == "completed", f"{run.reason}\n{daemon.output(run_id, 'stderr')[-3000:]}"
    folder, manifest = daemon.home.run_folder(run_id), daemon.manifest(run_id)
    assert (manifest.run_id, manifest.outcome, manifest.finalised_by) == (run_id, "completed", "worker")
    if preset in FAMILIES:
        assert math.isfinite(run.episodic_return), "no episode ended"
    assert run.step == manifest.checkpoints[-1].step > 0
    for entry in manifest.checkpoints:
        assert verify_checkpoint(folder.root / entry.path, entry.sha256) is None
    assert (folder.root / manifest.policy).stat().st_size > 0
    assert any((folder.root / manifest.tensorboard_dir).glob("events.out.tfevents.*"))
    assert set(manifest.requirements) - {"base"} == set(preset.sets)
    write_json_atomically(folder.root / SMOKE_FILE, smoke_report(daemon.client, run))
    report = read_json_object(folder.root / SMOKE_FILE)
    assert (report["algo"], report["outcome"], report["source"]) == (preset.algo, "completed", "mosaic")
    assert "HSHK -> RDY" in report["handshake"]
    assert wait_until(lambda: not processes_of(run_id))
