"""Off-policy actor-critics."""

from __future__ import annotations

from gym_gui.Algo_docs.cleanrl_worker.pages import Advice, Page

_MUJOCO = Advice("MuJoCo", "Hopper-v4, HalfCheetah-v4, Walker2d-v4", "1,000,000", "1", "requirement set mujoco")
_PENDULUM = Advice("Classic control", "Pendulum-v1", "20,000 to 100,000", "1", "base; --learning-starts 1000")
_JAX = "Needs the requirement set jax."

PAGES = {
    "ddpg_continuous_action": Page(
        "DDPG: deep deterministic policy gradient",
        "A deterministic policy and a critic learn from a replay buffer; noise on the actions explores.",
        (_MUJOCO, _PENDULUM),
        ("TD3 is the same with three cures for its known weaknesses; prefer it unless you compare.",),
    ),
    "ddpg_continuous_action_jax": Page(
        "DDPG in JAX", "The same algorithm with JAX and Flax.", (_MUJOCO, _PENDULUM), (_JAX,)
    ),
    "td3_continuous_action": Page(
        "TD3: twin delayed DDPG",
        "DDPG with two critics of which the smaller counts, a policy that is updated less often, and smoothed targets.",
        (_MUJOCO, _PENDULUM),
    ),
    "td3_continuous_action_jax": Page(
        "TD3 in JAX", "The same algorithm with JAX and Flax.", (_MUJOCO, _PENDULUM), (_JAX,)
    ),
    "sac_continuous_action": Page(
        "SAC: soft actor-critic",
        "A stochastic policy that is rewarded for staying random where that costs nothing; explores well and needs "
        "little tuning.",
        (_MUJOCO, _PENDULUM),
        ("With autotune the weight of the entropy finds its own value and alpha is ignored.",),
    ),
    "sac_atari": Page(
        "SAC for Atari",
        "The discrete version on pictures.",
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
            "A replay buffer of a million transitions fills up to 7.5 GiB, because each picture is stored once; a dry "
            "run compares it with the free memory.",
        ),
    ),
}
