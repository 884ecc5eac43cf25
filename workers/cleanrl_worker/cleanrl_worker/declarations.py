"""What each algorithm needs, as plain functions of its flags: rules between them, memory, checkpoints.

A dry run imports this instead of the algorithms: nothing here imports torch. A function reads flags as attributes, and
the sizes of the environment beside them (`obs_size`, `obs_bytes`, `actions`). One that reads an unknown value is left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any


class Flags:
    """Flags and sizes by name; a value that is unknown or no number cannot be read."""

    def __init__(self, values: Mapping[str, Any], leaving_out: Collection[str] = ()) -> None:
        self._values = {
            name: value
            for name, value in values.items()
            if name not in leaving_out and type(value) in (int, float, bool)
        }
        self.read: set[str] = set()
        """What has been read so far"""

    def __getattr__(self, name: str) -> Any:
        if name not in self._values:
            raise AttributeError(name)
        self.read.add(name)
        return self._values[name]


Rule = Callable[[Any], str | None]
"""Returns what is wrong with these flags, or None"""
Size = Callable[[Any], float]
"""Returns bytes"""


def broken_rules(rules: Sequence[Rule], values: Mapping[str, Any], *, leaving_out: Collection[str] = ()) -> list[str]:
    """Return the rules that these values break; a value that is invalid by itself breaks no rule."""
    found = []
    for rule in rules:
        with suppress(AttributeError):
            found.append(rule(Flags(values, leaving_out)))
    return [sentence for sentence in found if sentence is not None]


# ---------------------------------------------------------------- rules


def unless(holds: Any, sentence: str) -> str | None:
    """Return the sentence where a rule does not hold."""
    return None if holds else sentence


def evaluations_have_episodes(f: Any) -> str | None:
    return unless(
        not f.eval_freq or f.eval_episodes,
        f"--eval-freq {f.eval_freq} asks for evaluations without an episode: give --eval-episodes, too",
    )


def minibatches_divide_the_batch(f: Any, envs: str = "num_envs") -> str | None:
    count = getattr(f, envs) * f.num_steps
    if count % f.num_minibatches:
        flag = f"--{envs.replace('_', '-')} {getattr(f, envs)}"
        return (
            f"--num-minibatches {f.num_minibatches} does not divide the batch of {count} steps "
            f"({flag} × --num-steps {f.num_steps})"
        )
    return None


def minibatches_divide_the_environments(f: Any) -> str | None:
    return unless(
        f.num_envs % f.num_minibatches == 0,
        f"--num-minibatches {f.num_minibatches} does not divide --num-envs {f.num_envs}: a recurrent network "
        "learns from whole sequences, so a minibatch is made of environments",
    )


def minibatches_have_two_steps(f: Any, envs: str = "num_envs") -> str | None:
    size = getattr(f, envs) * f.num_steps // f.num_minibatches
    return unless(size >= 2, f"a minibatch of {size} step is too small: lower --num-minibatches")


def players_come_in_pairs(f: Any) -> str | None:
    return unless(
        f.num_envs % 2 == 0, f"--num-envs {f.num_envs}: each game has two players, so the number must be even"
    )


def buffer_holds_a_batch(f: Any) -> str | None:
    return unless(
        f.batch_size <= f.buffer_size,
        f"--buffer-size {f.buffer_size} is smaller than a batch of {f.batch_size}: raise it, or lower --batch-size",
    )


def buffer_holds_a_step(f: Any) -> str | None:
    return unless(
        f.num_envs <= f.buffer_size,
        f"--buffer-size {f.buffer_size} does not hold one step of {f.num_envs} environments: raise it, or lower "
        "--num-envs",
    )


def buffer_holds_n_steps(f: Any) -> str | None:
    return unless(
        f.buffer_size // f.num_envs > f.n_step,
        f"--buffer-size {f.buffer_size} is too small: it must hold more than --n-step {f.n_step} steps of each of "
        f"--num-envs {f.num_envs} environments",
    )


def values_have_a_range(f: Any) -> str | None:
    return unless(f.v_min < f.v_max, f"--v-min {f.v_min} must be less than --v-max {f.v_max}")


def temperature_is_positive(f: Any) -> str | None:
    return unless(f.temperature > 0, f"--temperature {f.temperature} must be more than 0")


# ---------------------------------------------------------------- notes: the run starts, as CleanRL's script does


def learning_starts_in_time(f: Any) -> str | None:
    if f.learning_starts >= f.total_timesteps:
        steps = f.total_timesteps
        return f"--learning-starts {f.learning_starts} is not reached in {steps} steps: nothing will be learned"
    return None


def student_learns_from_its_own_play(f: Any) -> str | None:
    steps = f.offline_steps + f.total_timesteps
    return unless(
        f.learning_starts < steps,
        f"--learning-starts {f.learning_starts} is not reached in {steps} steps (--offline-steps + "
        "--total-timesteps): the student learns nothing from its own play",
    )


def steps_fill_a_batch(f: Any) -> str | None:
    return unless(
        f.total_timesteps >= f.num_envs * f.num_steps,
        f"--total-timesteps {f.total_timesteps} is less than one batch of {f.num_envs * f.num_steps} steps "
        f"(--num-envs {f.num_envs} × --num-steps {f.num_steps}): nothing will be trained",
    )


def steps_fill_the_batch_of_all_processes(f: Any) -> str | None:
    processes = max(f.world_size, 1)
    steps = f.local_num_envs * f.num_steps * processes
    return unless(
        f.total_timesteps >= steps,
        f"--total-timesteps {f.total_timesteps} is less than one batch of {steps} steps (--local-num-envs "
        f"{f.local_num_envs} × --num-steps {f.num_steps} × {processes} processes): nothing will be trained",
    )


def steps_fill_a_phase(f: Any) -> str | None:
    steps = f.num_envs * f.num_steps * f.n_iteration
    return unless(
        f.total_timesteps >= steps,
        f"--total-timesteps {f.total_timesteps} is less than one phase of {steps} steps (--num-envs {f.num_envs} × "
        f"--num-steps {f.num_steps} × --n-iteration {f.n_iteration}): nothing will be trained",
    )


def auxiliary_minibatches_divide_a_phase(f: Any) -> str | None:
    sequences, share = f.num_envs * f.n_iteration, f.num_aux_rollouts * f.n_aux_grad_accum
    return unless(
        sequences % share == 0,
        f"the {sequences} sequences of a phase (--num-envs × --n-iteration) are not a multiple of {share} "
        "(--num-aux-rollouts × --n-aux-grad-accum): the last minibatch of a pass is smaller, and gradients that no "
        "step follows count in the next pass",
    )


# ---------------------------------------------------------------- all of it by algorithm


@dataclass(frozen=True)
class Declaration:
    """What one algorithm needs."""

    rules: tuple[Rule, ...] = ()
    """What must hold between its flags; `evaluations_have_episodes` holds for all"""
    notes: tuple[Rule, ...] = (learning_starts_in_time, steps_fill_a_batch)
    """What the user should know about flags that a run can start with"""
    memory: Mapping[str, Size] = field(default_factory=dict)
    """By purpose, bytes that training allocates on top of the process itself"""
    checkpoint: Size = lambda f: 0
    """Bytes of one checkpoint, without the replay buffer: weights, the optimizer's moments, environments"""
    shapes: Callable[[Any], Mapping[str, Sequence[int]]] = lambda f: {}
    """Shapes of the checkpoint's arrays, where it has arrays of these names"""
    resume_needs: tuple[str, ...] = ("env_id", "env_kwargs", "num_envs")
    """A checkpoint is refused when it was made with other values of these"""
    needs_files: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(flags of which one must name a file, the message if none is given)"""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Flags of CleanRL's that are not offered, and the message if one is given"""
    agents: Mapping[str, str] = field(default_factory=dict)
    """The observations that each --agent plays; `auto` finds the right one"""
    largest_image: int | None = None
    """Cells of a grid world's side; for larger images `ppo` chooses no network of its own accord"""
    normalizes_observations: bool = False
    """Weights are worth nothing without the normalizer's statistics; a file that lacks them is refused"""

    def problems(self, values: Mapping[str, Any], *, leaving_out: Collection[str] = ()) -> list[str]:
        """Return why no run can be made of these flags."""
        return broken_rules((*self.rules, evaluations_have_episodes), values, leaving_out=leaving_out)

    def notes_on(self, values: Mapping[str, Any], *, leaving_out: Collection[str] = ()) -> list[str]:
        """Return what the user should know about flags that a run can start with."""
        return broken_rules(self.notes, values, leaving_out=leaving_out)


_MINIBATCHES = (minibatches_divide_the_batch, minibatches_have_two_steps)
_REPLAY = (buffer_holds_a_batch, buffer_holds_a_step)
_REPLAY_NEEDS = ("env_id", "env_kwargs", "num_envs", "buffer_size")


def _games(f: Any) -> Any:
    """Bytes of Atari environments in a checkpoint."""
    return f.num_envs * (2 * f.obs_bytes + 65536)


def _minibatch(f: Any) -> Any:
    return f.num_envs * f.num_steps // f.num_minibatches


def _rollout_of_images(f: Any) -> Any:
    return 2 * f.num_envs * (f.num_steps + 1) * (f.obs_bytes + 4 * f.actions + 24)


def _images_memory(bytes_per_row: int) -> dict[str, Size]:
    return {
        "rollout and its shuffled copy": _rollout_of_images,
        "a minibatch and its gradients": lambda f: _minibatch(f) * (4 * f.obs_size + bytes_per_row),
    }


def _phase_in_checkpoint(f: Any) -> Any:
    return (f.n_iteration - 1) * f.num_envs * f.num_steps * (f.obs_bytes + 4)


def _two_hidden(f: Any) -> Any:
    """Numbers in the hidden layers of CleanRL's networks of 120 and 84 units."""
    return 120 * (f.obs_size + 85)


_PPO = Declaration(
    rules=_MINIBATCHES,
    memory={
        "rollout": lambda f: f.num_envs * (f.num_steps + 1) * (4 * f.obs_size + 4 * f.actions + 24),
        "batch and its gradients": lambda f: f.num_envs * f.num_steps * (4 * f.obs_size + 8 * 64),
    },
    checkpoint=lambda f: 3 * 4 * (2 * 64 * (f.obs_size + 65) + 65 * (f.actions + 1)) + 8192 * f.num_envs,
    shapes=lambda f: {
        "agent.actor.0.weight": [64, f.obs_size],
        "agent.actor.4.weight": [f.actions, 64],
        "agent.actor_mean.0.weight": [64, f.obs_size],
        "agent.actor_mean.4.weight": [f.actions, 64],
    },
    agents={"separate": "vector", "mlp": "vector", "minigrid": "image"},
    largest_image=32,
)
_PPO_CONTINUOUS = Declaration(
    rules=_MINIBATCHES, memory=_PPO.memory, checkpoint=_PPO.checkpoint, shapes=_PPO.shapes, normalizes_observations=True
)
_DQN_ATARI_MEMORY: dict[str, Size] = {"replay buffer": lambda f: f.buffer_size * 8000}

DECLARATIONS: Mapping[str, Declaration] = {
    "ppo": _PPO,
    "ppo_continuous_action": _PPO_CONTINUOUS,
    "rpo_continuous_action": _PPO_CONTINUOUS,
    "ppo_atari": Declaration(
        rules=_MINIBATCHES,
        memory=_images_memory(250_000),
        checkpoint=lambda f: 3 * 4 * (1684000 + 513 * (f.actions + 1)) + _games(f),
        shapes=lambda f: {"agent.actor.weight": [f.actions, 512]},
    ),
    "ppo_atari_envpool": Declaration(
        rules=_MINIBATCHES,
        memory=_images_memory(250_000),
        checkpoint=lambda f: 3 * 4 * (1684000 + 513 * (f.actions + 1)) + 2 * f.num_envs * f.obs_bytes,
        shapes=lambda f: {"agent.actor.weight": [f.actions, 512]},
    ),
    "ppo_procgen": Declaration(
        rules=_MINIBATCHES,
        memory=_images_memory(1_800_000),
        checkpoint=lambda f: 3 * 4 * (622000 + 257 * (f.actions + 1)) + 2 * f.num_envs * f.obs_bytes,
        shapes=lambda f: {"agent.actor.weight": [f.actions, 256]},
    ),
    "ppo_atari_lstm": Declaration(
        rules=(minibatches_divide_the_environments, minibatches_have_two_steps),
        memory={
            "rollout": lambda f: f.num_envs * (f.num_steps + 1) * (f.obs_bytes + 4 * f.actions + 32),
            "a minibatch and its gradients": lambda f: _minibatch(f) * (f.obs_bytes + 4 * f.obs_size + 280_000),
        },
        checkpoint=lambda f: 3 * 4 * (2007000 + 129 * (f.actions + 1)) + _games(f),
        shapes=lambda f: {"agent.actor.weight": [f.actions, 128]},
    ),
    "ppo_atari_multigpu": Declaration(
        rules=tuple(partial(rule, envs="local_num_envs") for rule in _MINIBATCHES),
        notes=(steps_fill_the_batch_of_all_processes,),
        memory={
            "rollout and its shuffled copy": lambda f: (
                2 * max(f.world_size, 1) * f.local_num_envs * (f.num_steps + 1) * (f.obs_bytes + 4 * f.actions + 24)
            ),
            "a minibatch and its gradients": lambda f: (
                max(f.world_size, 1) * f.local_num_envs * f.num_steps // f.num_minibatches * (4 * f.obs_size + 250_000)
            ),
            "other processes": lambda f: max(f.world_size - 1, 0) * 500_000_000,
        },
        checkpoint=lambda f: (
            3 * 4 * (1684000 + 513 * (f.actions + 1))
            + max(f.world_size, 1) * f.local_num_envs * (2 * f.obs_bytes + 65536)
        ),
        shapes=lambda f: {"agent.actor.weight": [f.actions, 512]},
        resume_needs=("env_id", "env_kwargs", "local_num_envs"),
    ),
    "ppo_pettingzoo_ma_atari": Declaration(
        rules=(players_come_in_pairs, *_MINIBATCHES),
        memory=_images_memory(250_000),
        checkpoint=lambda f: 3 * 4 * (1688000 + 513 * (f.actions + 1)) + _games(f),
        shapes=lambda f: {"agent.actor.weight": [f.actions, 512]},
    ),
    "ppo_rnd_envpool": Declaration(
        rules=_MINIBATCHES,
        memory={
            "rollout": lambda f: f.num_envs * (f.num_steps + 1) * (f.obs_bytes + 7056 + 4 * f.actions + 48),
            "a minibatch and its gradients": lambda f: _minibatch(f) * (f.obs_bytes + 4 * f.obs_size + 700_000),
        },
        checkpoint=lambda f: 3 * 4 * (3600000 + 449 * f.actions) + 6800000 + 16 * 7056 + _games(f),
        shapes=lambda f: {"agent.actor.2.weight": [f.actions, 448]},
    ),
    "ppg_procgen": Declaration(
        rules=_MINIBATCHES,
        notes=(steps_fill_a_phase, auxiliary_minibatches_divide_a_phase),
        memory={
            "rollouts of a phase": lambda f: (
                (f.n_iteration + 1) * f.num_envs * f.num_steps * (f.obs_bytes + 4 * f.actions + 32)
            ),
            "a minibatch and its gradients": lambda f: _minibatch(f) * (4 * f.obs_size + 1_800_000),
        },
        checkpoint=lambda f: 3 * 4 * (622000 + 257 * (f.actions + 2)) + _phase_in_checkpoint(f),
        shapes=lambda f: {"agent.actor.weight": [f.actions, 256]},
        resume_needs=("env_id", "env_kwargs", "num_envs", "num_steps", "n_iteration"),
    ),
    "pqn": Declaration(
        rules=(minibatches_divide_the_batch,),
        memory={
            "rollout": lambda f: f.num_envs * (f.num_steps + 1) * (4 * f.obs_size + 32),
            "a minibatch and its gradients": lambda f: _minibatch(f) * 4 * (f.obs_size + 6 * 204),
        },
        checkpoint=lambda f: 3 * 4 * (120 * (f.obs_size + 87) + 84 * (f.actions + 3) + f.actions) + 8192 * f.num_envs,
        shapes=lambda f: {"agent.network.0.weight": [120, f.obs_size], "agent.network.6.weight": [f.actions, 84]},
    ),
    "pqn_atari_envpool": Declaration(
        rules=(minibatches_divide_the_batch,),
        memory={
            "rollout": lambda f: f.num_envs * (f.num_steps + 1) * (f.obs_bytes + 32),
            "a minibatch and its gradients": lambda f: _minibatch(f) * (f.obs_bytes + 4 * f.obs_size + 400_000),
        },
        checkpoint=lambda f: 3 * 4 * (1730000 + 513 * f.actions) + _games(f),
        shapes=lambda f: {"agent.network.13.weight": [f.actions, 512]},
    ),
    "pqn_atari_envpool_lstm": Declaration(
        rules=(minibatches_divide_the_environments,),
        memory={
            "rollout": lambda f: f.num_envs * (f.num_steps + 1) * (f.obs_bytes + 4 * f.actions + 32),
            "a minibatch and its gradients": lambda f: _minibatch(f) * (f.obs_bytes + 4 * f.obs_size + 450_000),
        },
        checkpoint=lambda f: 3 * 4 * (2052000 + 129 * f.actions) + _games(f),
        shapes=lambda f: {"agent.q_func.weight": [f.actions, 128]},
    ),
    "dqn": Declaration(
        rules=_REPLAY,
        memory={
            "replay buffer": lambda f: f.buffer_size * (2 * f.obs_bytes + 16),
            "networks and a batch": lambda f: (
                24 * (_two_hidden(f) + 85 * f.actions) + 8 * f.batch_size * (2 * f.obs_size + 300)
            ),
        },
        checkpoint=lambda f: 16 * (_two_hidden(f) + 85 * f.actions) + 8192 * f.num_envs,
        shapes=lambda f: {"agent.network.0.weight": [120, f.obs_size], "agent.network.4.weight": [f.actions, 84]},
        resume_needs=_REPLAY_NEEDS,
    ),
    "dqn_atari": Declaration(
        rules=_REPLAY,
        memory={
            **_DQN_ATARI_MEMORY,
            "networks and a batch": lambda f: 24 * (1690000 + 513 * f.actions) + f.batch_size * 400_000,
        },
        checkpoint=lambda f: 16 * (1690000 + 513 * f.actions) + _games(f),
        shapes=lambda f: {"agent.network.9.weight": [f.actions, 512]},
        resume_needs=_REPLAY_NEEDS,
    ),
    "c51": Declaration(
        rules=(values_have_a_range, *_REPLAY),
        memory={
            "replay buffer": lambda f: f.buffer_size * (2 * f.obs_bytes + 16),
            "networks and a batch": lambda f: (
                24 * (_two_hidden(f) + 85 * f.actions * f.n_atoms)
                + 8 * f.batch_size * (2 * f.obs_size + 300 + 4 * f.actions * f.n_atoms)
            ),
        },
        checkpoint=lambda f: 16 * (_two_hidden(f) + 85 * f.actions * f.n_atoms) + 8192 * f.num_envs,
        shapes=lambda f: {
            "agent.network.0.weight": [120, f.obs_size],
            "agent.network.4.weight": [f.actions * f.n_atoms, 84],
        },
        resume_needs=(*_REPLAY_NEEDS, "n_atoms", "v_min", "v_max"),
    ),
    "c51_atari": Declaration(
        rules=(values_have_a_range, *_REPLAY),
        memory={
            **_DQN_ATARI_MEMORY,
            "networks and a batch": lambda f: 24 * (1690000 + 513 * f.actions * f.n_atoms) + f.batch_size * 400_000,
        },
        checkpoint=lambda f: 16 * (1690000 + 513 * f.actions * f.n_atoms) + _games(f),
        shapes=lambda f: {"agent.network.9.weight": [f.actions * f.n_atoms, 512]},
        resume_needs=(*_REPLAY_NEEDS, "n_atoms", "v_min", "v_max"),
    ),
    "rainbow_atari": Declaration(
        rules=(values_have_a_range, buffer_holds_n_steps),
        memory={
            "replay buffer": lambda f: f.buffer_size * 8017,
            "networks": lambda f: 28 * (6600000 + 1026 * f.n_atoms * (f.actions + 1)),
            "a batch and its gradients": lambda f: 4 * f.batch_size * (3 * f.obs_size + 150_000),
        },
        checkpoint=lambda f: 20 * (6600000 + 1026 * f.n_atoms * (f.actions + 1)) + f.buffer_size * 9 + _games(f),
        shapes=lambda f: {
            "agent.advantage_head.2.weight_mu": [f.actions * f.n_atoms, 512],
            "agent.support": [f.n_atoms],
        },
        resume_needs=(*_REPLAY_NEEDS, "gamma", "n_step", "n_atoms", "v_min", "v_max"),
    ),
    "qdagger_dqn_atari_impalacnn": Declaration(
        rules=(temperature_is_positive, *_REPLAY),
        notes=(student_learns_from_its_own_play,),
        memory={
            **_DQN_ATARI_MEMORY,
            "networks": lambda f: 20 * (1100000 + 257 * f.actions) + 4 * (1690000 + 513 * f.actions),
            "a batch and its gradients": lambda f: 4 * f.batch_size * (2 * f.obs_size + 1_200_000),
        },
        checkpoint=lambda f: 16 * (1100000 + 257 * f.actions) + _games(f),
        shapes=lambda f: {"agent.network.7.weight": [f.actions, 256]},
        resume_needs=(*_REPLAY_NEEDS, "teacher_steps", "offline_steps", "temperature"),
        needs_files=(
            (
                ("teacher_checkpoint", "teacher_trajectories"),
                "qdagger_dqn_atari_impalacnn needs a teacher: give --teacher-checkpoint (a checkpoint "
                "folder, a run id or a .cleanrl_model file of dqn_atari) or --teacher-trajectories (a file that "
                "`python -m cleanrl_worker.tools.record_trajectories` has written)",
            ),
        ),
        refused={
            "teacher_policy_hf_repo": "--teacher-policy-hf-repo: nothing is fetched from a hub here; download the "
            "repository's .cleanrl_model file and give it as --teacher-checkpoint"
        },
    ),
    "ddpg_continuous_action": Declaration(
        rules=_REPLAY,
        memory={
            "replay buffer": lambda f: f.buffer_size * (8 * f.obs_size + 4 * f.actions + 8),
            "networks": lambda f: 24 * (512 * (f.obs_size + f.actions) + 132608 + 256 * f.actions),
            "batch": lambda f: 4 * f.batch_size * (3 * f.obs_size + 4 * f.actions + 2048),
        },
        checkpoint=lambda f: (
            16 * (512 * (f.obs_size + f.actions) + 132608 + 256 * f.actions) + f.num_envs * (8192 + 4096 * f.actions)
        ),
        shapes=lambda f: {
            "agent.actor.fc1.weight": [256, f.obs_size],
            "agent.actor.fc_mu.weight": [f.actions, 256],
            "agent.qf1.fc1.weight": [256, f.obs_size + f.actions],
        },
        resume_needs=_REPLAY_NEEDS,
    ),
    "td3_continuous_action": Declaration(
        rules=_REPLAY,
        memory={
            "replay buffer": lambda f: f.buffer_size * (8 * f.obs_size + 4 * f.actions + 8),
            "networks": lambda f: 24 * (768 * (f.obs_size + f.actions) + 198912),
            "batch": lambda f: 4 * f.batch_size * (3 * f.obs_size + 5 * f.actions + 2560),
        },
        checkpoint=lambda f: 16 * (768 * (f.obs_size + f.actions) + 198912) + f.num_envs * (8192 + 4096 * f.actions),
        shapes=lambda f: {
            "agent.actor.fc1.weight": [256, f.obs_size],
            "agent.actor.fc_mu.weight": [f.actions, 256],
            "agent.qf1.fc1.weight": [256, f.obs_size + f.actions],
            "agent.qf2.fc1.weight": [256, f.obs_size + f.actions],
        },
        resume_needs=_REPLAY_NEEDS,
    ),
    "sac_continuous_action": Declaration(
        rules=_REPLAY,
        memory={
            "replay buffer": lambda f: f.buffer_size * (8 * f.obs_size + 4 * f.actions + 8),
            "networks": lambda f: 24 * (768 * f.obs_size + 1024 * f.actions + 198912),
            "batch": lambda f: 4 * f.batch_size * (3 * f.obs_size + (4 + f.policy_frequency) * f.actions + 2560),
        },
        checkpoint=lambda f: (
            16 * (768 * f.obs_size + 1024 * f.actions + 198912) + f.num_envs * (8192 + 4096 * f.actions)
        ),
        shapes=lambda f: {
            "agent.actor.fc1.weight": [256, f.obs_size],
            "agent.actor.fc_mean.weight": [f.actions, 256],
            "agent.qf1.fc1.weight": [256, f.obs_size + f.actions],
            "agent.qf2.fc1.weight": [256, f.obs_size + f.actions],
        },
        resume_needs=_REPLAY_NEEDS,
    ),
    "sac_atari": Declaration(
        rules=_REPLAY,
        memory={
            **_DQN_ATARI_MEMORY,
            "networks": lambda f: 52 * (1690000 + 513 * f.actions),
            "a batch and its gradients": lambda f: 4 * f.batch_size * (4 * f.obs_size + 250_000),
        },
        checkpoint=lambda f: 44 * (1690000 + 513 * f.actions) + _games(f),
        shapes=lambda f: {"agent.actor.fc_logits.weight": [f.actions, 512]},
        resume_needs=(*_REPLAY_NEEDS, "autotune"),
    ),
}


def _upstream_images(f: Any) -> Any:
    """Return a replay buffer of four gray images of 84 × 84."""
    return f.buffer_size * 28224


def _upstream_vectors(f: Any) -> Any:
    return f.buffer_size * (2 * f.obs_bytes + 4 * f.actions + 16)


_UPSTREAM: tuple[tuple[str, dict[str, Size]], ...] = (
    ("dqn_atari dqn_atari_jax c51_atari c51_atari_jax", {"replay buffer": _upstream_images}),
    ("sac_atari rainbow_atari", {"replay buffer": lambda f: 2 * _upstream_images(f)}),
    (
        "qdagger_dqn_atari_impalacnn qdagger_dqn_atari_jax_impalacnn",
        {"replay buffer": _upstream_images, "the teacher's replay buffer": _upstream_images},
    ),
    (
        "dqn dqn_jax c51 c51_jax ddpg_continuous_action ddpg_continuous_action_jax td3_continuous_action "
        "td3_continuous_action_jax sac_continuous_action",
        {"replay buffer": _upstream_vectors},
    ),
)
UPSTREAM_SCRIPTS: Mapping[str, Declaration] = {
    name: Declaration(memory=memory) for names, memory in _UPSTREAM for name in names.split()
}
"""What CleanRL's own scripts allocate: the arrays of their replay buffers, which fill up during training"""


def declaration_of(args: Any) -> Declaration:
    """Return what the algorithm of these flags needs; --exp-name may name the experiment otherwise."""
    return DECLARATIONS.get(type(args).exp_name, Declaration())
