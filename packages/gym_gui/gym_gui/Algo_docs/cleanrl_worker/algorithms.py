"""Recommended settings and common mistakes for each algorithm of the CleanRL worker."""

from __future__ import annotations

from gym_gui.Algo_docs.cleanrl_worker.pages import Advice, HelpPage

# ---------------------------------------------------------------- Proximal policy optimization and its variants

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
    "Box2D",
    "LunarLander-v3",
    "2,000,000",
    "16",
    "requirement set box2d; --num-steps 256 --num-minibatches 16 --update-epochs 10 --learning-rate 0.001",
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

# ---------------------------------------------------------------- Q-learning with a replay buffer

_DQN_CLASSIC = Advice("Classic control", "CartPole-v1, Acrobot-v1, MountainCar-v0", "500,000", "1", "base")
_DQN_ATARI = Advice(
    "Atari",
    "BreakoutNoFrameskip-v4, PongNoFrameskip-v4",
    "10,000,000",
    "1",
    "requirement set atari; --buffer-size 100000 where memory is short",
)
_REPLAY = (
    "A replay buffer of a million transitions fills up to 7.5 GiB, because each frame is stored once; a dry run "
    "compares it with the free memory."
)
_REPLAY_OF_SCRIPT = (
    "The replay buffer of a million transitions fills up to 26 GiB; a dry run compares it with the free memory."
)

# ---------------------------------------------------------------- Q-learning that knows the distribution of returns

_C51_CLASSIC = Advice("Classic control", "CartPole-v1, Acrobot-v1", "500,000", "1", "base")
_C51_ATARI = Advice(
    "Atari",
    "BreakoutNoFrameskip-v4, PongNoFrameskip-v4",
    "10,000,000",
    "1",
    "requirement set atari; --buffer-size 100000 where memory is short",
)


_SUPPORT = (
    "Returns outside v_min to v_max cannot be distinguished: choose them for your environment's discounted returns."
)

# ---------------------------------------------------------------- Off-policy actor-critics

_CONTINUOUS_MUJOCO = Advice(
    "MuJoCo", "Hopper-v4, HalfCheetah-v4, Walker2d-v4", "1,000,000", "1", "requirement set mujoco"
)
_PENDULUM = Advice("Classic control", "Pendulum-v1", "20,000 to 100,000", "1", "base; --learning-starts 1000")
_JAX = "Needs the requirement set jax."

PAGES: dict[str, HelpPage] = {
    # Proximal policy optimization and its variants.
    "ppo": HelpPage(
        "PPO: proximal policy optimization",
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
    "ppo_continuous_action": HelpPage(
        "PPO for continuous actions",
        "The same idea with a Gaussian policy. Observations and rewards are normalized while it trains; those "
        "statistics belong to the policy.",
        (_MUJOCO, Advice("Classic control", "Pendulum-v1", "1,000,000", "1 to 4", "base")),
        ("Evaluate with the normalizer of the same run: without it a good policy looks bad.",),
    ),
    "ppo_atari": HelpPage(
        "PPO for Atari",
        "PPO on four stacked gray frames of 84 × 84, with the usual Atari wrappers: no-ops at the start, frames "
        "skipped, rewards clipped, an episode per life.",
        (_ATARI,),
        ("Rewards are clipped while training: the return in the charts is the true one of whole games.",),
    ),
    "ppo_atari_multigpu": HelpPage(
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
            "A checkpoint resumes with the number of processes it was written with.",
        ),
    ),
    "ppo_atari_lstm": HelpPage(
        "Recurrent PPO for Atari",
        "An LSTM remembers what single frames do not show; it sees one gray frame at a time instead of four.",
        (_ATARI,),
        ("num_minibatches counts environments here: it must divide num_envs.",),
    ),
    "ppo_atari_envpool": HelpPage(
        "PPO for Atari on EnvPool",
        "The same learner on environments that run in C++ threads: several times as many steps a second.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement set envpool"),),
        ("EnvPool's Breakout-v5 is its own environment, not gymnasium's ALE/Breakout-v5.",),
    ),
    "ppo_atari_envpool_xla_jax": HelpPage(
        "PPO in JAX with EnvPool inside the compiled program",
        "Stepping and learning are compiled together, so nothing waits for Python.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement sets envpool and jax"),),
        ("The first steps take a while: they are compiled.",),
    ),
    "ppo_atari_envpool_xla_jax_scan": HelpPage(
        "PPO in JAX, loops compiled with scan",
        "The variant above with its loops written as scans: shorter compile times, the same learning.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement sets envpool and jax"),),
    ),
    "ppo_procgen": HelpPage(
        "PPO for Procgen",
        "PPO with a deeper, residual network for games whose levels are generated anew: a test of generalization.",
        (_PROCGEN,),
        ("Needs an environment of its own: Procgen wants an older NumPy.",),
    ),
    "ppo_rnd_envpool": HelpPage(
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
    "ppo_pettingzoo_ma_atari": HelpPage(
        "PPO for two-player Atari",
        "Both players are the same network that learns by playing itself.",
        (Advice("PettingZoo Atari", "pong_v3, surround_v2", "20,000,000", "16", "requirement set pettingzoo"),),
        (
            "num_envs counts players: two for each game.",
            "The mean return of self-play says little: what one player wins the other loses. Evaluation plays the "
            "first player against one with random actions.",
        ),
    ),
    # Relatives of PPO.
    "ppg_procgen": HelpPage(
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
    "pqn": HelpPage(
        "PQN: parallelized Q-network",
        "Q-learning without replay buffer and without target network: many environments at once, layer normalization "
        "and lambda-returns keep it stable.",
        (Advice("Classic control", "CartPole-v1, Acrobot-v1", "500,000", "4", "base"),),
        ("Its batches are PPO's: num_envs × num_steps, divided by num_minibatches.",),
    ),
    "pqn_atari_envpool": HelpPage(
        "PQN for Atari",
        "The same on images, with EnvPool's fast environments.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement set envpool"),),
    ),
    "pqn_atari_envpool_lstm": HelpPage(
        "Recurrent PQN for Atari",
        "With an LSTM instead of stacked frames.",
        (Advice("Atari", "Breakout-v5, Pong-v5", "10,000,000", "8", "requirement set envpool"),),
        ("num_minibatches must divide num_envs: sequences stay whole.",),
    ),
    "rpo_continuous_action": HelpPage(
        "RPO: robust policy optimization",
        "PPO for continuous actions whose policy keeps a fixed amount of uniform noise, so that it does not stop "
        "exploring.",
        (Advice("MuJoCo", "HalfCheetah-v4, Walker2d-v4", "8,000,000", "1", "requirement set mujoco"),),
        ("--rpo-alpha 0.01 instead of 0.5 suits some environments better (Ant, Hopper).",),
    ),
    # Q-learning with a replay buffer.
    "dqn": HelpPage(
        "DQN: deep Q-network",
        "Learns the value of each action from transitions drawn out of a replay buffer, against a target network that "
        "moves slowly. For discrete actions.",
        (_DQN_CLASSIC,),
        ("Exploration falls over exploration_fraction of the run: a longer run explores longer.",),
    ),
    "dqn_atari": HelpPage(
        "DQN for Atari", "DQN on four stacked gray frames, with the usual Atari wrappers.", (_DQN_ATARI,), (_REPLAY,)
    ),
    "dqn_jax": HelpPage(
        "DQN in JAX", "The same algorithm with JAX and Flax.", (_DQN_CLASSIC,), ("Needs the requirement set jax.",)
    ),
    "dqn_atari_jax": HelpPage(
        "DQN for Atari in JAX",
        "DQN for images with JAX and Flax.",
        (_DQN_ATARI,),
        (_REPLAY_OF_SCRIPT, "Needs the requirement sets atari and jax."),
    ),
    "rainbow_atari": HelpPage(
        "Rainbow",
        "DQN with its best-known improvements together: distributions of returns, double and dueling networks, noisy "
        "layers, n-step returns and prioritized replay.",
        (_DQN_ATARI,),
        (_REPLAY, "Which part of the replay buffer is drawn changes with every update: it costs more time than DQN."),
    ),
    "qdagger_dqn_atari_impalacnn": HelpPage(
        "QDagger",
        "Begins from a teacher: first learns from the teacher's transitions, then plays itself while the teacher's "
        "influence fades.",
        (_DQN_ATARI,),
        (
            "Name the teacher: --teacher-checkpoint takes a run, a checkpoint or a .cleanrl_model of dqn_atari; "
            "--teacher-trajectories a file of recorded games. Nothing is fetched from a hub.",
            "teacher_steps and offline_steps come before total_timesteps, on the same axis of the charts.",
            _REPLAY,
        ),
    ),
    "qdagger_dqn_atari_jax_impalacnn": HelpPage(
        "QDagger in JAX",
        "The same with JAX and Flax.",
        (_DQN_ATARI,),
        (
            "The teacher's weights come from the Hugging Face hub: without a network it cannot run.",
            "Needs the requirement sets atari and jax.",
        ),
    ),
    # Q-learning that knows the distribution of returns.
    "c51": HelpPage(
        "C51: categorical DQN",
        "Instead of the mean return of an action it learns the whole distribution, as probabilities of fixed points "
        "(atoms). For discrete actions.",
        (_C51_CLASSIC,),
        (_SUPPORT,),
    ),
    "c51_jax": HelpPage(
        "C51 in JAX",
        "The same algorithm with JAX and Flax.",
        (_C51_CLASSIC,),
        (_SUPPORT, "Needs the requirement set jax."),
    ),
    "c51_atari": HelpPage(
        "C51 for Atari",
        "Categorical DQN on images: 51 atoms from -10 to 10, for clipped rewards.",
        (_C51_ATARI,),
        (_REPLAY, _SUPPORT),
    ),
    "c51_atari_jax": HelpPage(
        "C51 for Atari in JAX",
        "The same with JAX and Flax.",
        (_C51_ATARI,),
        (_REPLAY_OF_SCRIPT, "Needs the requirement sets atari and jax."),
    ),
    # Off-policy actor-critics.
    "ddpg_continuous_action": HelpPage(
        "DDPG: deep deterministic policy gradient",
        "A deterministic policy and a critic learn from a replay buffer; noise on the actions explores.",
        (_CONTINUOUS_MUJOCO, _PENDULUM),
        ("TD3 is the same with three cures for its known weaknesses; prefer it unless you compare.",),
    ),
    "ddpg_continuous_action_jax": HelpPage(
        "DDPG in JAX", "The same algorithm with JAX and Flax.", (_CONTINUOUS_MUJOCO, _PENDULUM), (_JAX,)
    ),
    "td3_continuous_action": HelpPage(
        "TD3: twin delayed DDPG",
        "DDPG with two critics of which the smaller counts, a policy that is updated less often, and smoothed targets.",
        (_CONTINUOUS_MUJOCO, _PENDULUM),
    ),
    "td3_continuous_action_jax": HelpPage(
        "TD3 in JAX", "The same algorithm with JAX and Flax.", (_CONTINUOUS_MUJOCO, _PENDULUM), (_JAX,)
    ),
    "sac_continuous_action": HelpPage(
        "SAC: soft actor-critic",
        "A stochastic policy that is rewarded for staying random where that costs nothing; explores well and needs "
        "little tuning.",
        (_CONTINUOUS_MUJOCO, _PENDULUM),
        ("With autotune the weight of the entropy finds its own value and alpha is ignored.",),
    ),
    "sac_atari": HelpPage(
        "SAC for Atari",
        "The discrete version on images.",
        (
            Advice(
                "Atari",
                "BeamRiderNoFrameskip-v4, PongNoFrameskip-v4",
                "5,000,000",
                "1",
                "requirement set atari; --buffer-size 100000 where memory is short",
            ),
        ),
        (
            "A replay buffer of a million transitions fills up to 7.5 GiB, because each frame is stored once; a dry "
            "run compares it with the free memory.",
        ),
    ),
}
