"""Relatives of PPO."""

from __future__ import annotations

from gym_gui.Algo_docs.cleanrl_worker.pages import Advice, Page

PAGES = {
    "ppg_procgen": Page(
        "PPG: phasic policy gradient",
        "Alternates between improving the policy and a longer phase that teaches its network the value function as "
        "well, while a penalty keeps the policy where it is. Uses samples better than PPO on Procgen.",
        (
            Advice(
                "Procgen", "starpilot, coinrun", "25,000,000", "64", "requirement set procgen; a GPU is all but needed"
            ),
        ),
        ("The auxiliary phase keeps whole rollouts in memory: several GB.",),
    ),
    "pqn": Page(
        "PQN: parallelised Q-network",
        "Q-learning without replay buffer and without target network: many environments at once, layer normalisation "
        "and lambda-returns keep it stable.",
        (Advice("Classic control", "CartPole-v1, Acrobot-v1", "500,000", "4", "base"),),
        ("Its batches are PPO's: num_envs × num_steps, divided by num_minibatches.",),
    ),
    "pqn_atari_envpool": Page(
        "PQN for Atari",
        "The same on pictures, with EnvPool's fast environments.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement set envpool"),),
    ),
    "pqn_atari_envpool_lstm": Page(
        "Recurrent PQN for Atari",
        "With an LSTM instead of stacked frames.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement set envpool"),),
        ("num_minibatches must divide num_envs: sequences stay whole.",),
    ),
    "rpo_continuous_action": Page(
        "RPO: robust policy optimisation",
        "PPO for continuous actions whose policy keeps a fixed amount of uniform noise, so that it does not stop "
        "exploring.",
        (Advice("MuJoCo", "HalfCheetah-v4, Walker2d-v4", "8,000,000", "1", "requirement set mujoco"),),
        ("--rpo-alpha 0.01 instead of 0.5 suits some environments better (Ant, Hopper).",),
    ),
}
