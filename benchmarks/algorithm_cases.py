"""The cases of `algorithms.py`: one row per algorithm and environment, with the target ratios."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """The same flags for both sides; what is not named here has the same default in both."""

    algo: str
    env_id: str
    steps: tuple[int, int]
    """Two horizons. What the longer run costs more is what training costs; the start of both is the same"""
    target: float
    moonshot: float
    flags: tuple[str, ...] = ()
    own_flags: tuple[str, ...] = ()
    """Flags of ours alone, which their script does not have; a separate row"""

    @property
    def name(self) -> str:
        return " ".join((self.algo, self.env_id, *self.own_flags))

    def shorter(self, divisor: int) -> tuple[int, int]:
        """Return the same with fewer steps between the horizons, in whole batches of 2,048."""
        short, long = self.steps
        batch = 2048 if (long - short) % 2048 == 0 else 1
        return short, short + max(batch, (long - short) // divisor // batch * batch)


# An off-policy run learns nothing before `learning_starts`: with the default a short run would measure an empty loop.
_LEARNS_EARLY = ("--learning-starts", "1000")
_LEARNS_AT_ONCE = ("--learning-starts", "100")

CASES = (
    Case("ppo", "CartPole-v1", (4_096, 4_096 + 81_920), 4, 8),
    Case("dqn", "CartPole-v1", (4_000, 44_000), 3, 6, _LEARNS_EARLY),
    Case("c51", "CartPole-v1", (4_000, 34_000), 2.5, 6, _LEARNS_EARLY),
    Case("pqn", "CartPole-v1", (4_096, 4_096 + 81_920), 4, 6),
    Case("ppo_continuous_action", "Pendulum-v1", (2_048, 2_048 + 20_480), 4, 8),
    Case("sac_continuous_action", "Pendulum-v1", (300, 1_500), 1.6, 3, _LEARNS_AT_ONCE),
    Case("td3_continuous_action", "Pendulum-v1", (300, 2_100), 1.6, 3, _LEARNS_AT_ONCE),
    Case("ddpg_continuous_action", "Pendulum-v1", (300, 2_700), 2, 3, _LEARNS_AT_ONCE),
    Case("ppo_atari", "PongNoFrameskip-v4", (1_024, 1_024 + 2_048), 2, 4),
    Case("ppo_atari", "PongNoFrameskip-v4", (1_024, 1_024 + 2_048), 2, 4, own_flags=("--bf16",)),
)
