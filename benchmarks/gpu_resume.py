"""Is a run on a GPU the same to the bit when it is repeated, and when it is interrupted and resumed?

Trains each algorithm three times for some seconds in environments of its own: twice undisturbed, once stopped halfway
and resumed from the checkpoint. Needs torch with CUDA; `--cpu` tries the script without. A machine where nothing can
be installed gets the packages as a folder:

    python benchmarks/gpu_resume.py --collect FOLDER       where MOSAIC is installed: copy what is needed (25 MB)
    PYTHONPATH=packages/mosaic_wire:workers/cleanrl_worker:FOLDER python benchmarks/gpu_resume.py
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

CARRIED = (
    "gymnasium",
    "farama_notifications",
    "cloudpickle",
    "safetensors",
    "tensorboard",
    "google",
    "absl",
    "packaging",
)
"""Packages that run on any Python from 3.10 on, as they lie in site-packages"""


class Images(gym.Env):
    """Name the quadrant that is bright; episodes end at random or after 25 steps."""

    action_space = gym.spaces.Discrete(4)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, dtype=np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._draw(), {}

    def step(self, action):
        reward = float(action == self._bright)
        self._count += 1
        return self._draw(), reward, bool(self.np_random.random() < 0.05), self._count == 25, {}

    def _draw(self):
        shape = self.observation_space.shape
        self._bright = int(self.np_random.integers(4))
        image = self.np_random.integers(0, 60, shape, dtype=np.uint8)
        channels_last = shape[-1] <= 4
        height, width = (shape[0], shape[1]) if channels_last else (shape[1], shape[2])
        down, right = divmod(self._bright, 2)
        rows = slice(down * height // 2, (down + 1) * height // 2)
        columns = slice(right * width // 2, (right + 1) * width // 2)
        image[(rows, columns) if channels_last else (slice(None), rows, columns)] += 150
        return image


FRAMES, FRAME, COLORS = "Frames-v0", "Frame-v0", "Colors-v0"
for name, shape in ((FRAMES, (4, 84, 84)), (FRAME, (1, 84, 84)), (COLORS, (64, 64, 3))):
    gym.register(name, Images, kwargs={"shape": shape})

ROLLOUTS = {"num_envs": 8, "num_steps": 32, "total_timesteps": 8 * 32 * 8, "env_backend": "sync"}
REPLAY = {"total_timesteps": 1200, "learning_starts": 200, "buffer_size": 1000, "env_backend": "sync"}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("c51", {**REPLAY, "env_id": "CartPole-v1", "train_frequency": 2}),
    ("c51_atari", {**REPLAY, "env_id": FRAMES}),
    ("rainbow_atari", {**REPLAY, "env_id": FRAMES}),
    ("dqn", {**REPLAY, "env_id": "CartPole-v1", "train_frequency": 2}),
    ("dqn_atari", {**REPLAY, "env_id": FRAMES}),
    (
        "qdagger_dqn_atari_impalacnn",
        {
            **REPLAY,
            "env_id": FRAMES,
            "teacher_steps": 200,
            "offline_steps": 200,
            "total_timesteps": 600,
            "learning_starts": 50,
            "teacher_eval_episodes": 2,
        },
    ),
    ("sac_atari", {**REPLAY, "env_id": FRAMES}),
    ("sac_continuous_action", {**REPLAY, "env_id": "Pendulum-v1"}),
    ("td3_continuous_action", {**REPLAY, "env_id": "Pendulum-v1"}),
    ("ddpg_continuous_action", {**REPLAY, "env_id": "Pendulum-v1"}),
    ("ppo", {**ROLLOUTS, "env_id": "CartPole-v1"}),
    ("ppo_continuous_action", {**ROLLOUTS, "env_id": "Pendulum-v1", "num_minibatches": 4}),
    ("ppo_atari", {**ROLLOUTS, "env_id": FRAMES}),
    ("ppo_atari_lstm", {**ROLLOUTS, "env_id": FRAME}),
    ("ppo_procgen", {**ROLLOUTS, "env_id": COLORS, "num_minibatches": 2}),
    ("ppg_procgen", {**ROLLOUTS, "env_id": COLORS, "num_minibatches": 2, "n_iteration": 2, "e_auxiliary": 2}),
    ("ppo_rnd_envpool", {**ROLLOUTS, "env_id": FRAMES, "num_iterations_obs_norm_init": 1}),
    ("pqn", {**ROLLOUTS, "env_id": "CartPole-v1"}),
    ("pqn_atari_envpool", {**ROLLOUTS, "env_id": FRAMES}),
    ("pqn_atari_envpool_lstm", {**ROLLOUTS, "env_id": FRAME}),
)


def qdagger_train(args: Any, run: Any) -> Any:
    """`train` of QDagger with a teacher that has learned nothing: reading one from a file takes another process."""
    import torch
    from cleanrl_worker.algorithms.qdagger import QDaggerLearner
    from cleanrl_worker.training.replay import make_replay
    from cleanrl_worker.training.run import device_for, run_training_loop
    from cleanrl_worker.training.teacher import TeacherNetwork

    envs = run.make_envs(args)
    torch.manual_seed(0)
    learner = QDaggerLearner(
        args,
        envs,
        device_for(args),
        teacher=TeacherNetwork(4, 4),
        make_buffer=lambda size: make_replay(replace(args, buffer_size=size), envs, folder=run.folder.root),
    )
    return run_training_loop(learner, run, total=learner.total)


def train(module: ModuleType | SimpleNamespace, args: Any, folder: Path, **how: Any) -> tuple[str, int, str]:
    """Train; return the digest of the weights, how often a stop was possible, and how environments came back."""
    from cleanrl_worker.testing import Quiet, weights_digest
    from cleanrl_worker.training.run import RunContext

    class Counting(Quiet):
        polls = 0

        def poll(self, timeout_s: float = 0) -> list[Any]:
            self.polls += 1
            return super().poll(timeout_s)

    folder.mkdir(parents=True, exist_ok=True)
    channel = Counting(how.get("commands", ()))
    run = RunContext("plain", folder, channel, resume=how.get("resume"))
    try:
        module.train(args, run)
        run.finish_saving()
    finally:
        run.writer.close()
    loaded = next((message["environments"] for kind, message in channel.messages if kind == "checkpoint_loaded"), "")
    return weights_digest(folder), channel.polls, loaded


def compare(algo: str, flags: dict[str, Any], folder: Path, *, cuda: bool) -> tuple[bool, bool, str]:
    """Compare two undisturbed runs, an interrupted one, and how its environments were restored."""
    from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
    from cleanrl_worker.training.channel import Command

    entry = DEFAULT_ALGO_REGISTRY[algo]
    module = importlib.import_module(entry.module)
    args = getattr(module, entry.preset)(**flags, cuda=cuda)
    trained = SimpleNamespace(train=qdagger_train) if "qdagger" in algo else module
    whole, polls, _ = train(trained, args, folder / "whole")
    again, _, _ = train(trained, args, folder / "again")
    train(trained, args, folder / "parts", commands=[*[None] * (polls // 2), Command.STOP])
    checkpoint = max((folder / "parts" / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    resumed, _, environments = train(trained, args, folder / "parts", resume=checkpoint)
    return whole == again, whole == resumed, environments


def collect(destination: Path) -> None:
    """Copy the packages that another machine lacks."""
    for name in CARRIED:
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            sys.exit(f"{name} is not installed here")
        for place in found.submodule_search_locations:
            ignore = shutil.ignore_patterns("__pycache__", "*.pyi", "tests")
            shutil.copytree(place, destination / name, ignore=ignore, dirs_exist_ok=True)
    print(f"put {destination} on PYTHONPATH")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="without a GPU and with fewer steps, to try this script")
    parser.add_argument("--only", default="", help="algorithms, separated by commas")
    parser.add_argument("--collect", type=Path, metavar="FOLDER", help="copy packages there, and exit")
    arguments = parser.parse_args()
    if arguments.collect is not None:
        collect(arguments.collect)
        return 0
    import torch
    from cleanrl_worker.threads import set_numpy_threads

    set_numpy_threads(1)
    if not arguments.cpu and not torch.cuda.is_available():
        print("no GPU that torch can use; --cpu tries the script without")
        return 0
    torch.set_num_threads(1)
    device = "CPU" if arguments.cpu else torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    print("| algorithm | repeated | resumed | environments | seconds |\n| --- | --- | --- | --- | --- |")
    selected = arguments.only.split(",") if arguments.only else [algo for algo, _ in CASES]
    for algo, flags in CASES:
        if algo in selected:
            began = time.monotonic()
            if arguments.cpu:
                flags = {**flags, "total_timesteps": flags["total_timesteps"] // 4}
            with tempfile.TemporaryDirectory(prefix="mosaic-gpu-") as folder:
                try:
                    repeated, resumed, environments = compare(algo, flags, Path(folder), cuda=not arguments.cpu)
                    cells = ["same" if same else "DIFFERS" for same in (repeated, resumed)] + [environments]
                except Exception as error:  # noqa: BLE001 - the other algorithms are still to be tried
                    cells = [f"{type(error).__name__}: {error}", "", ""]
            print(f"| {algo} | {' | '.join(cells)} | {time.monotonic() - began:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
