"""QDagger (Agarwal et al. 2022, "Reincarnating reinforcement learning"): DQN that starts from a teacher's policy.

Three phases on one axis of steps: the teacher plays and its transitions are stored (`teacher_steps`); the student
learns from them offline (`offline_steps`); the student plays and learns as in DQN, with a distillation loss whose
weight falls as its returns approach the teacher's (`total_timesteps`). As in CleanRL, exploration and `learning_starts`
count the offline steps, too: with the defaults the student begins to play with half of its actions random, and learns
at once. The distillation loss is the mean over the batch, as in the paper. The student's network is IMPALA's, the
teacher is a `dqn_atari`. With a file of expert trajectories instead of a teacher, the first phase is skipped.
Under the flags and defaults of CleanRL's `qdagger_dqn_atari_impalacnn.py`.
Runs alone: python -m cleanrl_worker.algorithms qdagger_dqn_atari_impalacnn --teacher-checkpoint dqn_atari.cleanrl_model
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats
from cleanrl_worker.agents.impala import FEATURES, impala_trunk
from cleanrl_worker.algorithms.dqn import AtariArgs
from cleanrl_worker.declarations import declaration_of
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.checkpoints import file_problems
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import TrainingState, Weights, arrays_of, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.evaluation import evaluate
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, LinearSchedule, compiled
from cleanrl_worker.training.policies import EpsilonGreedy, GreedyPolicy, TorchValues, atari_sizes, network_dtype
from cleanrl_worker.training.replay import NamedReplay, ReplayBuffer, Transitions, make_replay
from cleanrl_worker.training.run import BLOCK_STEPS, Learner, RunContext, TrainResult, device_for, run_training_loop
from cleanrl_worker.training.teacher import TeacherNetwork, Trajectories, fingerprint, load_teacher

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(AtariArgs):
    """Flags of `qdagger_dqn_atari_impalacnn`; literals only, because forms and `--describe` read this as text."""

    exp_name: str = "qdagger_dqn_atari_impalacnn"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game, the one the teacher was trained on"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    """steps the student plays, over all environments; teacher_steps and offline_steps come before them"""
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    """transitions the replay buffer holds, first the teacher's, then the student's"""
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.1
    """share of total_timesteps in which random actions fall from start_e to end_e; offline_steps count as passed"""
    learning_starts: Annotated[int, Range(0)] = 80_000
    """step at which the student learns from its own play, counted with offline_steps"""
    train_frequency: Annotated[int, Range(1)] = 4
    """steps between two updates while the student plays"""

    teacher_policy_hf_repo: str | None = None
    """not offered: nothing is fetched from a hub; download the model and give it as teacher_checkpoint"""
    teacher_model_exp_name: str = "dqn_atari"
    """what the teacher was trained with"""
    teacher_eval_episodes: Annotated[int, Range(1)] = 10
    """episodes of the teacher's evaluation"""
    teacher_steps: Annotated[int, Range(1)] = 500_000
    """steps the teacher plays for the student to learn from"""
    offline_steps: Annotated[int, Range(0)] = 500_000
    """updates from the teacher's transitions, before the student plays"""
    temperature: Annotated[float, Range(0)] = 1.0
    """Q-values are divided by it before the softmax of the distillation loss"""
    teacher_checkpoint: str = ""
    """the teacher: checkpoint folder, run id or .cleanrl_model file of dqn_atari"""
    teacher_trajectories: str = ""
    """a file with expert trajectories (tools/record_trajectories.py) to learn from instead of a teacher's play"""


_RETURN_WINDOW = 10
"""Number of the student's last episodes whose mean return is compared with the teacher's"""


# ---------------------------------------------------------------- networks


class QNetwork(nn.Module):
    """The student: IMPALA's network with a head; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*impala_trunk((frames, 84, 84)), nn.Linear(FEATURES, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the Q-value of every action."""
        values: torch.Tensor = self.network(as_floats(obs).contiguous(memory_format=torch.channels_last))
        return values


# ---------------------------------------------------------------- the loss


class Batch(NamedTuple):
    """`Transitions` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    terminated: torch.Tensor


class Losses(NamedTuple):
    """The loss of a minibatch and its parts."""

    total: torch.Tensor
    td: torch.Tensor
    distill: torch.Tensor
    q_values: torch.Tensor


def qdagger_losses(
    student: QNetwork,
    target: QNetwork,
    batch: Batch,
    distill_obs: torch.Tensor | None,
    teacher_probs: torch.Tensor,
    coefficient: torch.Tensor,
    gamma: float,
    temperature: float,
) -> Losses:
    """Return the squared TD error of a batch plus the weighted KL divergence of the student from `teacher_probs`.

    The divergence is that on `distill_obs`, or on the batch's observations if None.
    """
    with torch.no_grad():
        following = target(batch.next_obs).amax(dim=1)
        td_targets = batch.rewards + gamma * (1 - batch.terminated) * following
    values = student(batch.obs)
    predicted = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    td = functional.mse_loss(predicted, td_targets)
    distill_values = values if distill_obs is None else student(distill_obs)
    log_probs = functional.log_softmax(distill_values / temperature, dim=1)
    distill = functional.kl_div(log_probs, teacher_probs, reduction="batchmean")
    return Losses(td + coefficient * distill, td.detach(), distill.detach(), predicted.detach().mean())


def distill_coefficient(recent: Sequence[float], teacher_return: float) -> float:
    """Return the weight of the distillation loss: max(0, 1 - student / teacher) of the mean returns.

    For a teacher whose return is not positive it is 1 until the student reaches that return.
    """
    if len(recent) < _RETURN_WINDOW:
        return 1.0
    mean = sum(recent) / len(recent)
    if teacher_return <= 0:
        return float(mean < teacher_return)
    return max(1 - mean / teacher_return, 0.0)


# ---------------------------------------------------------------- rollout, update, loop


class Phase(Enum):
    """The phase a step belongs to."""

    TEACHER = "the teacher plays"
    OFFLINE = "the student learns from the teacher's transitions"
    ONLINE = "the student plays"


class QDaggerLearner(Learner):
    """The state of a run. `teacher_replay` holds the teacher's transitions, `buffer` the student's."""

    def __init__(
        self,
        args: Args,
        envs: VectorEnvs,
        device: torch.device,
        *,
        make_buffer: Callable[[int], ReplayBuffer],
        teacher: TeacherNetwork | None,
        trajectories: Trajectories | None = None,
    ) -> None:
        """`make_buffer` makes a replay buffer of the given size for transitions of `envs`."""
        super().__init__(args, envs, device)
        frames, actions = atari_sizes(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        self.agent, self.target = QNetwork(frames, actions).to(device), QNetwork(frames, actions).to(device)
        self.parameters, self._target_parameters = FlatParameters(self.agent), FlatParameters(self.target)
        self._move_target(1.0)
        self.optimizer = FlatAdam(self.parameters.block)
        self._losses = compiled(qdagger_losses, enabled=args.compile)
        self.values = TorchValues(self.agent, device)
        self.teacher = teacher.to(device) if teacher is not None else None
        self._make_buffer, self._actions = make_buffer, actions
        self.teacher_return: float | None = None
        if trajectories is None:
            self.teacher_replay, self.offline_from = (
                make_buffer(min(args.teacher_steps, args.buffer_size)),
                args.teacher_steps,
            )
        else:
            self.teacher_replay, self.offline_from = (
                trajectories.as_replay(envs.observation_space, envs.action_space),
                0,
            )
            self.teacher_return = float(trajectories.returns.mean()) if teacher is None else None
        self._by_trajectories = trajectories is not None
        self._teacher_fingerprint = fingerprint(teacher, trajectories.sha256 if trajectories is not None else "")
        self.online_from = self.offline_from + args.offline_steps
        self.total = self.online_from + args.total_timesteps
        self.buffer = make_buffer(args.buffer_size)
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps)
        self.recent: deque[float] = deque(maxlen=_RETURN_WINDOW)
        self.next_obs = np.zeros(0, dtype=np.uint8)

    @property
    def phase(self) -> Phase:
        """Return the phase of the next step."""
        if self.step < self.offline_from:
            return Phase.TEACHER
        return Phase.OFFLINE if self.step < self.online_from else Phase.ONLINE

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        rngs = None if rng is None else [rng] * len(obs)
        return GreedyPolicy(self.values, self.next_obs.dtype, epsilon=self.args.end_e).act(obs, rngs)

    def learn(self, run: RunContext) -> None:
        """Act and update until the next multiple of BLOCK_STEPS or the end of the phase."""
        if self.teacher_return is None and not self._evaluate_teacher(run):
            return  # a stop is requested
        block = (self.step // BLOCK_STEPS + 1) * BLOCK_STEPS
        match self.phase:
            case Phase.TEACHER:
                charts = self._collect_from_teacher(min(block, self.offline_from))
            case Phase.OFFLINE:
                charts = self._learn_offline(min(block, self.online_from))
            case Phase.ONLINE:
                charts = self._learn_online(min(block, self.total), run)
        self._free_teacher_replay()
        charts["charts/SPS"] = run.steps_per_second(self.step)
        run.writer.add_scalars(charts, self.step)

    def _evaluate_teacher(self, run: RunContext) -> bool:
        """Evaluate the teacher with the student's final epsilon; return False if a stop is requested."""
        assert self.teacher is not None
        rng = np.random.Generator(np.random.PCG64(self.args.seed))
        policy = GreedyPolicy(TorchValues(self.teacher, self.device), self.next_obs.dtype, epsilon=self.args.end_e)
        found = evaluate(
            self.args.env_id,
            lambda obs: policy.act(obs, [rng] * len(obs)),
            episodes=self.args.teacher_eval_episodes,
            seed=self.args.seed,
            should_stop=run.stop_requested,
            env_kwargs=read_env_kwargs(self.args.env_kwargs),
            pipeline=run.pipeline,
        )
        if found is None:
            return False
        self.teacher_return = found.mean_return
        run.writer.add_scalars({"charts/teacher/avg_episodic_return": found.mean_return}, self.step)
        return True

    # -- the three phases; each continues to step `until` and returns its charts

    def _collect_from_teacher(self, until: int) -> dict[str, float]:
        """Store the teacher's transitions while its epsilon falls, like the replay buffer of its own training."""
        args = self.args
        assert self.teacher is not None
        steps = np.arange(self.step, until, args.num_envs)
        epsilons = LinearSchedule(args.start_e, args.end_e, args.teacher_steps).over(steps)
        exploring = EpsilonGreedy(self.rng, epsilons, args.num_envs, self._actions)
        values = TorchValues(self.teacher, self.device)
        for index in range(len(steps)):
            obs = self.next_obs
            actions = exploring.actions(index, obs, values)
            step = self.envs.step(actions)
            self.teacher_replay.add(obs, actions, step.rewards, step.final_obs, step.terminated)
            self.next_obs = step.obs
            self.step += args.num_envs
        if self.phase is not Phase.TEACHER:
            self.begin_episodes()  # the student's
        return {"charts/replay_size": len(self.teacher_replay), "charts/replay_bytes": self.teacher_replay.nbytes}

    def _learn_offline(self, until: int) -> dict[str, float]:
        """Update once per step from the teacher's transitions."""
        while self.step < until:
            batch = self.teacher_replay.sample(self.rng, self.args.batch_size)
            losses = self._update(batch, batch, 1.0)
            before, self.step = self.step, self.step + 1
            self._move_target_if_due(before)
        charts = {"loss": losses.total, "q_loss": losses.td, "distill_loss": losses.distill}
        self.stop_unless_finite(float(losses.total))
        return {f"charts/offline/{name}": float(value) for name, value in charts.items()}

    def _learn_online(self, until: int, run: RunContext) -> dict[str, float]:
        """Train as DQN does, with the distillation loss added."""
        args = self.args
        assert self.teacher_return is not None
        steps = np.arange(self.step, until, args.num_envs)
        epsilons = self.epsilon.over(steps - self.offline_from)  # offline steps count, as in CleanRL
        exploring = EpsilonGreedy(self.rng, epsilons, args.num_envs, self._actions)
        losses = None
        for index in range(len(steps)):
            obs = self.next_obs
            actions = exploring.actions(index, obs, self.values)
            step = self.envs.step(actions)
            self.buffer.add(obs, actions, step.rewards, step.final_obs, step.terminated)
            self.next_obs = step.obs
            before, self.step = self.step, self.step + args.num_envs
            self.recent.extend(episode_return for episode_return, _ in self.chart_episodes(step, run))
            if not self._can_learn():
                continue
            for _ in range(self.step // args.train_frequency - before // args.train_frequency):
                coefficient = distill_coefficient(self.recent, self.teacher_return)
                batch = self.buffer.sample(self.rng, args.batch_size)
                distill = self.teacher_replay.sample(self.rng, args.batch_size) if self.teacher is None else batch
                losses = self._update(batch, distill, coefficient)
            self._move_target_if_due(before)
        charts = {
            "charts/distill_coeff": distill_coefficient(self.recent, self.teacher_return),
            "charts/epsilon": self.epsilon(self.step - self.offline_from),
            "charts/replay_size": len(self.buffer),
            "charts/replay_bytes": self.buffer.nbytes,
        }
        if losses is not None:
            self.stop_unless_finite(float(losses.total))
            named = {"loss": losses.total, "td_loss": losses.td, "distill_loss": losses.distill}
            charts |= {f"losses/{name}": float(value) for name, value in named.items()}
            charts["losses/q_values"] = float(losses.q_values)
        return charts

    def _can_learn(self) -> bool:
        """Return whether learning may begin; a run resumed without its replay buffer fills it first, too."""
        args = self.args
        needed = max(args.learning_starts - args.offline_steps, 0)
        filled = len(self.buffer) >= min(needed, args.buffer_size)
        return filled and self.step - self.offline_from > args.learning_starts

    def _update(self, transitions: Transitions, distill: Transitions, coefficient: float) -> Losses:
        """Take one gradient step; the distillation loss is that on the transitions `distill`."""
        args = self.args
        batch = Batch(*(torch.from_numpy(array).to(self.device) for array in transitions))
        own_obs = distill is not transitions
        obs = torch.from_numpy(distill.obs).to(self.device) if own_obs else batch.obs
        if self.teacher is not None:
            with torch.no_grad():
                teacher_probs = functional.softmax(self.teacher(obs) / args.temperature, dim=1)
        else:  # trajectories hold only the expert's actions
            actions = torch.from_numpy(distill.actions).to(self.device)
            teacher_probs = functional.one_hot(actions, self._actions).float()
        distill_obs, weight = obs if own_obs else None, torch.tensor(coefficient, device=self.device)
        losses = self._losses(
            self.agent, self.target, batch, distill_obs, teacher_probs, weight, args.gamma, args.temperature
        )
        self.parameters.backward(losses.total)
        self.optimizer.step(args.learning_rate)
        return Losses(losses.total.detach(), *losses[1:])

    def _move_target_if_due(self, before: int) -> None:
        if self.step // self.args.target_network_frequency > before // self.args.target_network_frequency:
            self._move_target(self.args.tau)

    def _move_target(self, share: float) -> None:
        self._target_parameters.block.data.lerp_(self.parameters.block.data, share)

    def _free_teacher_replay(self) -> None:
        """Free the memory for the student's transitions; a teacher network makes the stored ones unnecessary."""
        if self.phase is Phase.ONLINE and not self._by_trajectories and len(self.teacher_replay):
            self.teacher_replay = self._make_buffer(self.args.num_envs)

    # -- checkpoints

    def _replay(self) -> NamedReplay:
        """Return the buffer in use; trajectories are read from their file again."""
        if self.phase is Phase.ONLINE or self._by_trajectories:
            return NamedReplay("student", self.buffer)
        return NamedReplay("teacher", self.teacher_replay)

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"adam": self.optimizer}

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, with the replay buffer."""
        state = super().snapshot()
        return replace(
            state,
            arrays={**state.arrays, **arrays_of(self.target, "target")},
            values={
                **state.values,
                "teacher": {"return": self.teacher_return, "is": self._teacher_fingerprint},
                "recent": list(self.recent),
            },
            replay=self._replay(),
        )

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        teacher = state.values["teacher"]
        if teacher["is"] != self._teacher_fingerprint:
            raise BadInput("the checkpoint was made with another teacher; give the same one")
        environments = super().restore(state)
        load_weights(self.target, state.part("target"), what="the checkpoint")
        self.teacher_return = teacher["return"]
        self.recent.extend(state.values["recent"])
        self._free_teacher_replay()
        if not state.restore_replay(self._replay()) and self.phase is Phase.OFFLINE and not self._by_trajectories:
            raise BadInput(
                "the checkpoint holds no replay buffer (--checkpoint-replay none) and was written while the student "
                "learned from the teacher's; begin anew, with --checkpoint-replay full"
            )
        return environments

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the network's weights; the target network becomes a copy."""
        load_weights(self.agent, weights, what=what)
        self._move_target(1.0)


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> GreedyPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    network = QNetwork(*atari_sizes(algo, env_id, observations, actions))
    load_weights(network, weights, what="the policy")
    return GreedyPolicy(TorchValues(network, torch.device("cpu")), network_dtype(observations), normalizer)


def check(args: Args) -> None:
    """Refuse values that no run can be made of."""
    check_args(args)
    if wrong := list(file_problems(declaration_of(args), asdict(args))):
        raise BadInput("; ".join(sentence for _, sentence in wrong))


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check(args)
    envs = run.make_envs(args)
    teacher = trajectories = None
    if args.teacher_checkpoint:
        sizes = atari_sizes(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        teacher = load_teacher(args.teacher_checkpoint, args.teacher_model_exp_name, *sizes)
    if args.teacher_trajectories:
        path = Path(args.teacher_trajectories).expanduser()
        trajectories = Trajectories.read(path, envs.observation_space, envs.action_space)
    learner = QDaggerLearner(
        args,
        envs,
        device_for(args),
        make_buffer=lambda size: make_replay(replace(args, buffer_size=size), envs, folder=run.folder.root),
        teacher=teacher,
        trajectories=trajectories,
    )
    return run_training_loop(learner, run, total=learner.total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
