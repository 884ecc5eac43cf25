"""Proximal policy optimisation and its variants."""

from __future__ import annotations

from gym_gui.Algo_docs.cleanrl_worker.pages import Advice, Page

_CLASSIC = Advice(
    "Classic control", "CartPole-v1, Acrobot-v1", "500,000", "4 to 8", "base; --stop-at-return 475 ends CartPole early"
)
_TOY_TEXT = Advice(
    "Toy text",
    "FrozenLake-v1, Taxi-v4",
    "500,000 to 2,000,000",
    "8",
    'base; --env-kwargs {"is_slippery": false} for an easier FrozenLake',
)
_BOX2D = Advice(
    "Box2D", "LunarLander-v3", "1,000,000", "8 to 16", "requirement set box2d; --gamma 0.999 --num-steps 1024"
)
_GRID = Advice(
    "MiniGrid and BabyAI",
    "MiniGrid-Empty-5x5-v0, BabyAI-GoToRedBallGrey-v0",
    "200,000 and more",
    "8",
    "requirement set minigrid; --agent minigrid for the 7×7 view",
)
_ATARI = Advice(
    "Atari", "BreakoutNoFrameskip-v4, PongNoFrameskip-v4", "10,000,000", "8", "requirement set atari; a GPU helps"
)
_MUJOCO = Advice("MuJoCo", "HalfCheetah-v4, Hopper-v4, Walker2d-v4", "1,000,000", "1", "requirement set mujoco")
_PROCGEN = Advice(
    "Procgen", "starpilot, coinrun", "25,000,000", "64", "requirement set procgen; a GPU is all but needed"
)

PAGES = {
    "ppo": Page(
        "PPO: proximal policy optimisation",
        "Plays some steps in several environments, then learns from them a few times over while a clipped objective "
        "keeps the new policy near the old one. Robust, easy to tune, and the usual first choice. This file takes "
        "discrete actions; observations are vectors, or the small images of grid worlds.",
        (_CLASSIC, _TOY_TEXT, _BOX2D, _GRID),
        (
            "One batch is num_envs × num_steps transitions; total_timesteps must be at least that, and num_minibatches "
            "must divide it. A dry run says so.",
            "MountainCar-v0 gives no reward until the goal is reached: plain PPO rarely finds it.",
            "With few environments, more CPU threads cost time: --torch-threads 1 is the default.",
            "Periodic checkpoints need --checkpoint-freq; without it only the last one is written.",
        ),
    ),
    "ppo_continuous_action": Page(
        "PPO for continuous actions",
        "The same idea with a Gaussian policy. Observations and rewards are normalised while it trains; those "
        "statistics belong to the policy.",
        (_MUJOCO, Advice("Classic control", "Pendulum-v1", "1,000,000", "1 to 4", "base")),
        ("Evaluate with the normaliser of the same run: without it a good policy looks bad.",),
    ),
    "ppo_atari": Page(
        "PPO for Atari",
        "PPO on four stacked grey pictures of 84 × 84, with the usual Atari wrappers: no-ops at the start, frames "
        "skipped, rewards clipped, an episode per life.",
        (_ATARI,),
        ("Rewards are clipped while training: the return in the charts is the true one of whole games.",),
    ),
    "ppo_atari_multigpu": Page(
        "PPO for Atari over several processes",
        "Each process plays its own environments on its own GPU (or CPU) and gradients are averaged, so several GPUs "
        "learn one policy.",
        (
            Advice(
                "Atari",
                "BreakoutNoFrameskip-v4",
                "10,000,000",
                "local_num_envs 8 per process",
                "requirement set atari; --world-size 2 for two processes",
            ),
        ),
        (
            "num_envs is computed: local_num_envs × the number of processes.",
            "--world-size says how many processes the run starts; under torchrun leave it out.",
            "A checkpoint goes on with as many processes as it was made by.",
        ),
    ),
    "ppo_atari_lstm": Page(
        "Recurrent PPO for Atari",
        "An LSTM remembers what single frames do not show; it sees one grey picture at a time instead of four.",
        (_ATARI,),
        ("num_minibatches counts environments here: it must divide num_envs.",),
    ),
    "ppo_atari_envpool": Page(
        "PPO for Atari on EnvPool",
        "The same learner on environments that run in C++ threads: several times as many steps a second.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement set envpool"),),
        ("EnvPool's Breakout-v5 is its own environment, not gymnasium's ALE/Breakout-v5.",),
    ),
    "ppo_atari_envpool_xla_jax": Page(
        "PPO in JAX with EnvPool inside the compiled program",
        "Stepping and learning are compiled together, so nothing waits for Python.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement sets envpool and jax"),),
        ("The first steps take a while: they are compiled.",),
    ),
    "ppo_atari_envpool_xla_jax_scan": Page(
        "PPO in JAX, loops compiled with scan",
        "The variant above with its loops written as scans: shorter compile times, the same learning.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement sets envpool and jax"),),
    ),
    "ppo_procgen": Page(
        "PPO for Procgen",
        "PPO with a deeper, residual network for games whose levels are generated anew: a test of generalisation.",
        (_PROCGEN,),
        ("Needs an environment of its own: Procgen wants an older NumPy.",),
    ),
    "ppo_rnd_envpool": Page(
        "PPO with random network distillation",
        "Adds a reward for states a predictor network does not know yet, so games without early rewards are explored.",
        (
            Advice(
                "Atari, hard to explore",
                "MontezumaRevenge-v5",
                "2,000,000,000",
                "128",
                "requirement set envpool; a GPU and days",
            ),
        ),
        ("The horizon is two thousand million steps: begin with a small part of it to see the curiosity reward move.",),
    ),
    "ppo_pettingzoo_ma_atari": Page(
        "PPO for two-player Atari",
        "Both players are the same network that learns by playing itself.",
        (Advice("PettingZoo Atari", "pong_v3, surround_v2", "20,000,000", "16", "requirement set pettingzoo"),),
        (
            "num_envs counts players: two for each game.",
            "The mean return of self-play says little: what one player wins the other loses. Evaluation plays the "
            "first player against one who presses buttons at random.",
        ),
    ),
}
