"""A policy file that is damaged, holds something else, or holds NaN is refused and never played or trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from cleanrl_worker.algorithms import ppo
from cleanrl_worker.declarations import Declaration
from cleanrl_worker.modes.checkpoints import file_problems
from gym_gui.cli import main
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.testing import RunningDaemon
from mosaic_wire import env

DAMAGE = {
    "flipped": "it is damaged: the checksum of its part",
    "cut": "it is cut short or damaged",
    "text": "it holds something else",
    "empty": "it is empty",
    "zip": "it is a zip archive of something else",
}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """An untrained policy of ppo for CartPole-v1."""
    world = gym.make("CartPole-v1")
    agent = ppo.make_agent("separate", "CartPole-v1", world.observation_space, world.action_space, algo="ppo")
    torch.save(agent.state_dict(), tmp_path / "policy.cleanrl_model")
    return tmp_path / "policy.cleanrl_model"


def damage(file: Path, kind: str) -> None:
    whole = bytearray(file.read_bytes())
    if kind == "flipped":
        whole[len(whole) // 2] ^= 0x40
    elif kind == "cut":
        del whole[len(whole) // 2 :]
    elif kind == "zip":
        whole = whole.replace(b"data.pkl", b"data.txt")
    else:
        whole = bytearray(b"hello world\n" if kind == "text" else b"")
    file.write_bytes(whole)


def config(mode: str, file: Path) -> dict[str, Any]:
    extras = {"mode": mode, "checkpoint_path": str(file), "eval_episodes": 1}
    worker = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1000, "extras": extras}
    return {"metadata": {"worker": {"type": "cleanrl", "config": worker}}}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_policy_is_refused_at_submission(shared_daemon: RunningDaemon, policy: Path, kind: str) -> None:
    damage(policy, kind)
    for mode in ("policy_eval", "interactive", "resume_training"):
        with pytest.raises(InvalidConfig, match=DAMAGE[kind]):
            shared_daemon.client.submit(config(mode, policy))
    declared = Declaration(needs_files=((("teacher_checkpoint",), "needs a teacher"),))
    ((_, sentence),) = file_problems(declared, {"teacher_checkpoint": str(policy)})
    assert DAMAGE[kind] in sentence


def test_a_policy_with_nan_is_not_played(
    shared_daemon: RunningDaemon, policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = torch.load(policy, weights_only=True)
    weights["actor.0.weight"][0, 0] = float("nan")
    torch.save(weights, policy)
    monkeypatch.setenv(env.MOSAIC_HOME, str(shared_daemon.home.root))
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(policy), "--algo", "ppo", "--env-id", "CartPole-v1", "--episodes", "1"])
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert "1 of its 12 arrays (actor.0.weight) hold NaN or infinite numbers" in printed.out, printed
