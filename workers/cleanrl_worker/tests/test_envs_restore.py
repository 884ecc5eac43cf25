"""Snapshots in the middle of an episode go on in a fresh process, bit for bit, across thousands of steps and resets."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.training.envs import EnvState, VectorEnvs, make_envs
from mosaic_extras.testing import interpreter_with
from safetensors.numpy import load_file, save_file

CASES = {
    # environment: requirement set, pipeline, steps before the snapshot, steps after it, environments
    "CartPole-v1": ("base", "plain", 37, 3000, 2),
    "FrozenLake-v1": ("base", "plain", 20, 3000, 2),
    "tiny_worlds:LegacyJoystick-v0": ("base", "plain", 20, 300, 2),  # np.random.RandomState
    "MiniGrid-DoorKey-6x6-v0": ("minigrid", "plain", 211, 2000, 2),
    "PongNoFrameskip-v4": ("atari", "atari", 301, 1500, 1),
    "Hopper-v4": ("mujoco", "plain", 50, 2000, 1),
}
SLOW_CASES = (
    {
        f"{game}NoFrameskip-v4": ("atari", "atari", 150, 1500, 1)
        for game in ("Qbert", "YarsRevenge", "Assault", "Tennis", "MontezumaRevenge", "SpaceInvaders", "Berzerk")
    }
    | {
        f"{robot}-v5": ("mujoco", "plain", 40, 1500, 1)
        for robot in ("Ant", "HumanoidStandup", "InvertedDoublePendulum", "Pusher", "Swimmer", "Walker2d")
    }
    | {
        "Acrobot-v1": ("base", "plain", 333, 1500, 2),
        "Pendulum-v1": ("base", "plain", 333, 3000, 2),
        "ALE/Breakout-v5": ("atari", "atari", 111, 1200, 1),  # sticky actions, lives, FIRE
        "Humanoid-v5": ("mujoco", "plain", 12, 500, 1),  # contact forces are in its observation
        "BabyAI-GoToLocal-v0": ("minigrid", "plain", 100, 600, 1),
        "HalfCheetah-v5": ("mujoco", "plain", 750, 2000, 1),
        "InvertedPendulum-v5": ("mujoco", "plain", 30, 3000, 2),
        "dm_control/cartpole-balance-v0": ("dm_control", "plain", 1300, 1500, 2),
    }
)

HALF = """
import sys
sys.path.insert(0, sys.argv[1])
import test_envs_restore
print(getattr(test_envs_restore, sys.argv[2])(*sys.argv[3:]))
"""


def actions_of(space: gym.Space, steps: int, num_envs: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(space.n, size=(steps, num_envs))
    return rng.uniform(space.low, space.high, size=(steps, num_envs, *space.shape)).astype(np.float32)


def digest(envs: VectorEnvs, actions: np.ndarray) -> str:
    """Of every array of every step."""
    seen, ends = hashlib.sha256(), 0
    for row in actions:
        step = envs.step(row)
        ends += int(step.ended.sum())
        for array in step:
            seen.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    return f"{seen.hexdigest()} {ends}"


def begin(env_id: str, pipeline: str, num_envs: str, before: str, after: str, folder: str) -> str:
    """The half before: files out, the digest of what would follow."""
    envs = make_envs(env_id, int(num_envs), pipeline=pipeline, backend="sync")
    envs.reset(3)
    actions = actions_of(envs.action_space, int(before) + int(after), int(num_envs))
    digest(envs, actions[: int(before)])
    state = envs.snapshot()
    save_file(dict(state.arrays), Path(folder) / "arrays.safetensors")
    (Path(folder) / "values.json").write_text(json.dumps(state.values))
    return digest(envs, actions[int(before) :])


def go_on(env_id: str, pipeline: str, num_envs: str, before: str, after: str, folder: str) -> str:
    """The half in the fresh process: files in, digest out."""
    arrays = load_file(Path(folder) / "arrays.safetensors")
    state = EnvState(arrays, json.loads((Path(folder) / "values.json").read_text()))
    envs = make_envs(env_id, int(num_envs), pipeline=pipeline, backend="sync")
    if envs.restore(state) is None:
        return "not restored"
    actions = actions_of(envs.action_space, int(before) + int(after), int(num_envs))
    return digest(envs, actions[int(before) :])


def in_a_process_of_its_own(half: str, requirement_set: str, reported: list[str]) -> str:
    sets = () if requirement_set == "base" else (requirement_set,)
    argv = [str(interpreter_with(*sets)), "-c", HALF, str(Path(__file__).parent), half, *reported]
    environ = {**os.environ, "MUJOCO_GL": "egl"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture
def set_of_case(request: pytest.FixtureRequest) -> str:
    name = {**CASES, **SLOW_CASES}[request.node.callspec.params["env_id"]][0]
    if name not in ("base", "dm_control"):
        request.getfixturevalue(name)
    return name


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
@pytest.mark.parametrize("env_id", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_CASES)])
def test_a_fresh_process_continues_in_the_middle_of_an_episode(env_id, set_of_case, tmp_path):
    _, pipeline, before, after, num_envs = {**CASES, **SLOW_CASES}[env_id]
    reported = [env_id, pipeline, str(num_envs), str(before), str(after), str(tmp_path)]
    is_apart = set_of_case == "dm_control"  # it changes MuJoCo's logging for the whole process
    expected = in_a_process_of_its_own("begin", set_of_case, reported) if is_apart else begin(*reported)
    assert int(expected.split()[1]) > 0, "no episode ended: the test says nothing about resets"
    assert in_a_process_of_its_own("go_on", set_of_case, reported) == expected


def test_an_environment_whose_generator_is_none_of_numpys_begins_a_new_episode_when_it_is_resumed():
    envs = make_envs("tiny_worlds:HomemadeJoystick-v0", 1, backend="sync")
    envs.reset(0)
    digest(envs, actions_of(envs.action_space, 7, 1))
    state = envs.snapshot()
    assert json.loads(json.dumps(state.values))["states"] == [{"origin": {}}]
    assert envs.restore(state) is None


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "HalfCheetah-v5"])
def test_a_long_episode_does_not_make_the_snapshot_longer(env_id, set_of_case):
    _, pipeline, *_ = {**CASES, **SLOW_CASES}[env_id]
    envs = make_envs(env_id, 1, pipeline=pipeline, backend="sync")
    envs.reset(0)
    sizes = []
    for _ in range(2):
        digest(envs, actions_of(envs.action_space, 60, 1))
        sizes.append(sum(array.nbytes for array in envs.snapshot().arrays.values()))
    # The emulator writes some numbers as text, hence not quite the same length.
    assert abs(sizes[0] - sizes[1]) < 200
    assert max(sizes) < 100_000
