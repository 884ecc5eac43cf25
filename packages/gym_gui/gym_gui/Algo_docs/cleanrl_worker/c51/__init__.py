"""Q-learning that knows the distribution of returns."""

from __future__ import annotations

from gym_gui.Algo_docs.cleanrl_worker.pages import Advice, Page

_CLASSIC = Advice("Classic control", "CartPole-v1, Acrobot-v1", "500,000", "1", "base")
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
_SUPPORT = "Returns outside v_min to v_max cannot be told apart: choose them for your environment's discounted returns."

PAGES = {
    "c51": Page(
        "C51: categorical DQN",
        "Instead of the mean return of an action it learns the whole distribution, as probabilities of fixed points "
        "(atoms). For discrete actions.",
        (_CLASSIC,),
        (_SUPPORT,),
    ),
    "c51_jax": Page(
        "C51 in JAX", "The same algorithm with JAX and Flax.", (_CLASSIC,), (_SUPPORT, "Needs the requirement set jax.")
    ),
    "c51_atari": Page(
        "C51 for Atari",
        "Categorical DQN on pictures: 51 atoms from -10 to 10, for clipped rewards.",
        (_ATARI,),
        (_REPLAY, _SUPPORT),
    ),
    "c51_atari_jax": Page(
        "C51 for Atari in JAX",
        "The same with JAX and Flax.",
        (_ATARI,),
        (_REPLAY_OF_SCRIPT, "Needs the requirement sets atari and jax."),
    ),
}
