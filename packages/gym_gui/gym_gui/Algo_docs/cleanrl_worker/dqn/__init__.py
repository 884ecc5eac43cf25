"""Q-learning with a replay buffer."""

from __future__ import annotations

from gym_gui.Algo_docs.cleanrl_worker.pages import Advice, Page

_CLASSIC = Advice("Classic control", "CartPole-v1, Acrobot-v1, MountainCar-v0", "500,000", "1", "base")
_ATARI = Advice(
    "Atari",
    "BreakoutNoFrameskip-v4, PongNoFrameskip-v4",
    "10,000,000",
    "1",
    "requirement set atari; --buffer-size 100000 where memory is short",
)
_REPLAY = (
    "A replay buffer of a million transitions fills up to 7.5 GiB, because each picture is stored once; a dry run "
    "compares it with the free memory."
)
_REPLAY_OF_SCRIPT = (
    "The replay buffer of a million transitions fills up to 26 GiB; a dry run compares it with the free memory."
)

PAGES = {
    "dqn": Page(
        "DQN: deep Q-network",
        "Learns the value of each action from transitions drawn out of a replay buffer, against a target network that "
        "moves slowly. For discrete actions.",
        (_CLASSIC,),
        ("Exploration falls over exploration_fraction of the run: a longer run explores longer.",),
    ),
    "dqn_atari": Page(
        "DQN for Atari", "DQN on four stacked grey pictures, with the usual Atari wrappers.", (_ATARI,), (_REPLAY,)
    ),
    "dqn_jax": Page(
        "DQN in JAX", "The same algorithm with JAX and Flax.", (_CLASSIC,), ("Needs the requirement set jax.",)
    ),
    "dqn_atari_jax": Page(
        "DQN for Atari in JAX",
        "DQN for pictures with JAX and Flax.",
        (_ATARI,),
        (_REPLAY_OF_SCRIPT, "Needs the requirement sets atari and jax."),
    ),
    "rainbow_atari": Page(
        "Rainbow",
        "DQN with its best-known improvements together: distributions of returns, double and duelling networks, noisy "
        "layers, n-step returns and prioritised replay.",
        (_ATARI,),
        (_REPLAY, "Which part of the replay buffer is drawn changes with every update: it costs more time than DQN."),
    ),
    "qdagger_dqn_atari_impalacnn": Page(
        "QDagger",
        "Begins from a teacher: first learns from the teacher's transitions, then plays itself while the teacher's "
        "influence fades.",
        (_ATARI,),
        (
            "Name the teacher: --teacher-checkpoint takes a run, a checkpoint or a .cleanrl_model of dqn_atari; "
            "--teacher-trajectories a file of recorded games. Nothing is fetched from a hub.",
            "teacher_steps and offline_steps come before total_timesteps, on the same axis of the charts.",
            _REPLAY,
        ),
    ),
    "qdagger_dqn_atari_jax_impalacnn": Page(
        "QDagger in JAX",
        "The same with JAX and Flax.",
        (_ATARI,),
        (
            "The teacher's weights come from the Hugging Face hub: without a network it cannot run.",
            "Needs the requirement sets atari and jax.",
        ),
    ),
}
