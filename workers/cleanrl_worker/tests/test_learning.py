"""That the algorithms learn, on classic control: one seed each, minutes of training. Identity worlds are in CI."""

from __future__ import annotations

import sys

import pytest
from cleanrl_worker.tools.learning_results import train_and_report

EARLY = ("--learning-starts", "1000")
CASES = [
    ("ppo", "CartPole-v1", 300_000, (), 450),
    ("dqn", "CartPole-v1", 250_000, (), 400),
    ("c51", "CartPole-v1", 400_000, (), 400),
    ("pqn", "CartPole-v1", 500_000, (), 450),
    ("ddpg_continuous_action", "Pendulum-v1", 20_000, EARLY, -200),
    ("td3_continuous_action", "Pendulum-v1", 20_000, EARLY, -200),
    ("sac_continuous_action", "Pendulum-v1", 20_000, EARLY, -200),
]
"""Steps, flags, and the mean return over the last 100 training episodes that is to be reached"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("algo", "env_id", "steps", "flags", "least"), CASES, ids=[case[0] for case in CASES])
def test_it_learns_to_the_return_it_should(algo, env_id, steps, flags, least, tmp_path):
    text = ["--env-id", env_id, "--total-timesteps", str(steps), "--seed", "1", *flags]
    result = train_and_report(algo, text, python=sys.executable, folder=tmp_path)
    assert result.episodes >= 100
    assert result.mean_last_100 >= least
