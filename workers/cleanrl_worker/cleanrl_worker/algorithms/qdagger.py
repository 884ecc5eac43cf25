"""QDagger (Agarwal et al. 2022, "Reincarnating reinforcement learning"): a new Q-network that begins as a pupil.

Three phases, one after another on one axis of steps: the teacher plays and what it did is stored (`teacher_steps`); the
student learns from that (`offline_steps`); the student plays and learns as in DQN, and listens to the teacher less
and less as it comes up to its returns (`total_timesteps`). As in CleanRL, exploration and `learning_starts` count the
offline steps, too: with the defaults the student plays its first step with half of its actions random, and learns at
once. The distillation loss is the mean over the batch, as in the paper. The student's network is IMPALA's, the teacher
is a `dqn_atari`; instead of a teacher there may be a file with expert trajectories, and then the first phase is left
out.
Under the flags and defaults of CleanRL's `qdagger_dqn_atari_impalacnn.py`.
Runs alone: python -m cleanrl_worker.algorithms qdagger_dqn_atari_impalacnn --teacher-checkpoint dqn_atari.cleanrl_model
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats
from cleanrl_worker.agents.impala import FEATURES, impala_trunk
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.needed_files import file_problems
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import ObservationNormaliser, network_dtype
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import ReplayArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation, evaluate
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.named_replay import NamedReplay
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import EpsilonGreedy, GreedyPolicy, TorchValues, count_actions
from cleanrl_worker.training.replay import ReplayBuffer, Transitions, make_replay
from cleanrl_worker.training.rollout_state import NEW_EPISODES, arrays_of, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.schedules import LinearSchedule
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.teacher import TeacherNetwork, fingerprint, load_teacher
from cleanrl_worker.training.trajectories import Trajectories
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `qdagger_dqn_atari_impalacnn`; literals only, because forms and `--describe` read this as text."""

    exp_name: str = "qdagger_dqn_atari_impalacnn"
    """the name of this experiment"""
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game, the one the teacher has learned"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    """steps the student plays, over all environments; teacher_steps and offline_steps come before them"""
    learning_rate: Annotated[float, Range(0)] = 1e-4
    """Adam's step size"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel; updates keep their pace per step"""
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    """transitions the replay buffer holds, the teacher's and after it the student's"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Range(0, 1)] = 1.0
    """how far the target network moves towards the other each time: 1 makes it a copy"""
    target_network_frequency: Annotated[int, Range(1)] = 1000
    """steps between two moves of the target network"""
    batch_size: Annotated[int, Range(1)] = 32
    """transitions drawn from the replay buffer for an update"""
    start_e: Annotated[float, Range(0, 1)] = 1.0
    """share of random actions at the start"""
    end_e: Annotated[float, Range(0, 1)] = 0.01
    """share of random actions at the end of exploration"""
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
    """games by which the teacher is judged"""
    teacher_steps: Annotated[int, Range(1)] = 500_000
    """steps the teacher plays for the student to learn from"""
    offline_steps: Annotated[int, Range(0)] = 500_000
    """updates from what the teacher played, before the student plays itself"""
    temperature: Annotated[float, Range(0)] = 1.0
    """values are divided by it before they become the probabilities that are compared"""
    teacher_checkpoint: str = ""
    """the teacher: checkpoint folder, run id or .cleanrl_model file of dqn_atari"""
    teacher_trajectories: str = ""
    """a file with expert trajectories (tools/record_trajectories.py) to learn from instead of a teacher's play"""


RULES = (
    ("temperature > 0", "--temperature {temperature} must be more than 0"),
    (
        "batch_size <= buffer_size",
        "--buffer-size {buffer_size} is smaller than a batch of {batch_size}: raise it, or lower --batch-size",
    ),
    (
        "num_envs <= buffer_size",
        "--buffer-size {buffer_size} does not hold one step of {num_envs} environments: raise it, or lower --num-envs",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

NOTES = (
    (
        "learning_starts < offline_steps + total_timesteps",
        "--learning-starts {learning_starts} is not reached in {offline_steps + total_timesteps} steps "
        "(--offline-steps + --total-timesteps): the student learns nothing from its own play",
    ),
)
"""What a run is told about its flags and can be run with"""

NEEDS_FILES = (
    (
        ("teacher_checkpoint", "teacher_trajectories"),
        "qdagger_dqn_atari_impalacnn needs somebody to learn from: give --teacher-checkpoint (a checkpoint folder, a "
        "run id or a .cleanrl_model file of dqn_atari) or --teacher-trajectories (a file that "
        "`python -m cleanrl_worker.tools.record_trajectories` has written)",
    ),
)
"""One of these fields must name something that is there"""

REFUSED = {
    "teacher_policy_hf_repo": "--teacher-policy-hf-repo: nothing is fetched from a hub here; download the repository's "
    ".cleanrl_model file and give it as --teacher-checkpoint",
}
"""Fields that may not be set, and what to do instead"""

MEMORY = {
    "replay buffer": "buffer_size * 8000",
    "networks": "20 * (1100000 + 257 * actions) + 4 * (1690000 + 513 * actions)",
    "a batch and its gradients": "4 * batch_size * (2 * obs_size + 1200000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "16 * (1100000 + 257 * actions) + num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint without the replay buffer: two networks, Adam's two moments, the environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs", "buffer_size", "teacher_steps", "offline_steps", "temperature")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.network.7.weight": ("actions", "256")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

BLOCK_STEPS = 100
"""Steps between two safe points, and between two points of a chart"""
_JUDGED_BY = 10
"""The student's last episodes that are compared with the teacher"""


# ---------------------------------------------------------------- networks


class QNetwork(nn.Module):
    """The student: IMPALA's network with a head; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*impala_trunk((frames, 84, 84)), nn.Linear(FEATURES, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.network(as_floats(obs).contiguous(memory_format=torch.channels_last))
        return values


def sizes_of(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> tuple[int, int]:
    """(frames, actions) the networks are made for; BadInput when they cannot play these spaces."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[1:] != (84, 84):
        raise BadInput(f"{algo} needs stacked frames of 84 x 84 as observations; those of {env_id} have shape {shape}")
    return shape[0], count


def make_policy(
    env_id: str, observations: gym.Space, actions: gym.Space, weights: Mapping[str, np.ndarray], *,
    algo: str = "qdagger_dqn_atari_impalacnn", normaliser: ObservationNormaliser | None = None,
) -> GreedyPolicy:  # fmt: skip
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    network = QNetwork(*sizes_of(algo, env_id, observations, actions))
    load_weights(network, weights, what="the policy")
    return GreedyPolicy(TorchValues(network, torch.device("cpu")), network_dtype(observations), normaliser)


# ---------------------------------------------------------------- arithmetic


class Batch(NamedTuple):
    """`Transitions` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    terminated: torch.Tensor


class Losses(NamedTuple):
    total: torch.Tensor
    td: torch.Tensor
    distill: torch.Tensor
    q_values: torch.Tensor


def qdagger_losses(
    student: QNetwork,
    target: QNetwork,
    batch: Batch,
    shown: torch.Tensor | None,
    guidance: torch.Tensor,
    coefficient: torch.Tensor,
    gamma: float,
    temperature: float,
) -> Losses:
    """The squared TD error of a batch, and how far the student's policy is from the teacher's (`guidance`,
    probabilities) on the observations that were `shown` (None: on those of the batch).
    """
    with torch.no_grad():
        following = target(batch.next_obs).amax(dim=1)
        wanted = batch.rewards + gamma * (1 - batch.terminated) * following
    values = student(batch.obs)
    predicted = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    td = functional.mse_loss(predicted, wanted)
    said = values if shown is None else student(shown)
    log_probs = functional.log_softmax(said / temperature, dim=1)
    distill = functional.kl_div(log_probs, guidance, reduction="batchmean")
    return Losses(td + coefficient * distill, td.detach(), distill.detach(), predicted.detach().mean())


def distill_coefficient(recent: Sequence[float], teacher_return: float) -> float:
    """How much the teacher still counts: 1 - student / teacher of the mean returns, and 0 where that is negative.

    That ratio says nothing about a teacher whose return is not positive; it then counts until it is reached.
    """
    if len(recent) < _JUDGED_BY:
        return 1.0
    mean = sum(recent) / len(recent)
    if teacher_return <= 0:
        return float(mean < teacher_return)
    return max(1 - mean / teacher_return, 0.0)


# ---------------------------------------------------------------- one run


class Phase(Enum):
    """What a step of the run is."""

    WATCH = "the teacher plays"
    STUDY = "the student learns from what was played"
    PLAY = "the student plays"


class QDaggerLearner:
    """The state of a run. `lessons` are the teacher's transitions, `buffer` the student's."""

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
        """`make_buffer` makes a replay buffer for so many transitions of `envs`."""
        self.args, self.envs, self.device = args, envs, device
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        frames, actions = sizes_of(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        self.agent, self.target = QNetwork(frames, actions).to(device), QNetwork(frames, actions).to(device)
        self.parameters, self._of_target = FlatParameters(self.agent), FlatParameters(self.target)
        self._move_target(1.0)
        self.optimizer = FlatAdam(self.parameters.block)
        self._losses = compiled(qdagger_losses, wanted=args.compile)
        self.values = TorchValues(self.agent, device)
        self.teacher = teacher.to(device) if teacher is not None else None
        self._make_buffer, self._actions = make_buffer, actions
        self.teacher_return: float | None = None
        if trajectories is None:
            self.lessons, self.study_from = make_buffer(min(args.teacher_steps, args.buffer_size)), args.teacher_steps
        else:
            self.lessons, self.study_from = trajectories.as_replay(envs.observation_space, envs.action_space), 0
            self.teacher_return = float(trajectories.returns.mean()) if teacher is None else None
        self._by_trajectories = trajectories is not None
        self._teacher_is = fingerprint(teacher, trajectories.sha256 if trajectories is not None else "")
        self.play_from = self.study_from + args.offline_steps
        self.total = self.play_from + args.total_timesteps
        self.buffer = make_buffer(args.buffer_size)
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps)
        self.episodes = EpisodeTracker(args.num_envs)
        self.recent: deque[float] = deque(maxlen=_JUDGED_BY)
        self.step = 0
        self.next_obs = np.zeros(0, dtype=np.uint8)

    @property
    def phase(self) -> Phase:
        if self.step < self.study_from:
            return Phase.WATCH
        return Phase.STUDY if self.step < self.play_from else Phase.PLAY

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        rngs = None if rng is None else [rng] * len(obs)
        return GreedyPolicy(self.values, self.next_obs.dtype, epsilon=self.args.end_e).act(obs, rngs)

    def learn(self, run: RunContext) -> None:
        """Go on to the next multiple of BLOCK_STEPS, or to the end of the phase."""
        if self.teacher_return is None and not self._judge_teacher(run):
            return  # somebody asks to stop
        block = (self.step // BLOCK_STEPS + 1) * BLOCK_STEPS
        match self.phase:
            case Phase.WATCH:
                charts = self._watch(min(block, self.study_from))
            case Phase.STUDY:
                charts = self._study(min(block, self.play_from))
            case Phase.PLAY:
                charts = self._play(min(block, self.total), run)
        self._forget_lessons()
        charts["charts/SPS"] = run.steps_per_second(self.step)
        run.writer.add_scalars(charts, self.step)

    def _judge_teacher(self, run: RunContext) -> bool:
        """What the teacher reaches with as few random actions as the student will end with."""
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

    # -- the three phases; each goes on to step `until` and returns its charts

    def _watch(self, until: int) -> dict[str, float]:
        """Store what the teacher does, from random play to its best: as a replay buffer of its own would look."""
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
            self.lessons.add(obs, actions, step.rewards, step.final_obs, step.terminated)
            self.next_obs = step.obs
            self.step += args.num_envs
        if self.phase is not Phase.WATCH:
            self.begin_episodes()  # the student's
        return {"charts/replay_size": len(self.lessons), "charts/replay_bytes": self.lessons.nbytes}

    def _study(self, until: int) -> dict[str, float]:
        """An update a step, from the teacher's transitions."""
        while self.step < until:
            lesson = self.lessons.sample(self.rng, self.args.batch_size)
            losses = self._update(lesson, lesson, 1.0)
            before, self.step = self.step, self.step + 1
            self._move_target_if_due(before)
        charts = {"loss": losses.total, "q_loss": losses.td, "distill_loss": losses.distill}
        self._check_finite(losses)
        return {f"charts/offline/{name}": float(value) for name, value in charts.items()}

    def _play(self, until: int, run: RunContext) -> dict[str, float]:
        """DQN, with the teacher's word beside the rewards."""
        args = self.args
        assert self.teacher_return is not None
        steps = np.arange(self.step, until, args.num_envs)
        epsilons = self.epsilon.over(steps - self.study_from)  # offline steps count, as in CleanRL
        exploring = EpsilonGreedy(self.rng, epsilons, args.num_envs, self._actions)
        losses = None
        for index in range(len(steps)):
            obs = self.next_obs
            actions = exploring.actions(index, obs, self.values)
            step = self.envs.step(actions)
            self.buffer.add(obs, actions, step.rewards, step.final_obs, step.terminated)
            self.next_obs = step.obs
            before, self.step = self.step, self.step + args.num_envs
            for episode_return, length in self.episodes.add(step):
                self.recent.append(episode_return)
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            if not self._has_enough():
                continue
            for _ in range(self.step // args.train_frequency - before // args.train_frequency):
                coefficient = distill_coefficient(self.recent, self.teacher_return)
                batch = self.buffer.sample(self.rng, args.batch_size)
                shown = self.lessons.sample(self.rng, args.batch_size) if self.teacher is None else batch
                losses = self._update(batch, shown, coefficient)
            self._move_target_if_due(before)
        charts = {
            "charts/distill_coeff": distill_coefficient(self.recent, self.teacher_return),
            "charts/epsilon": self.epsilon(self.step - self.study_from),
            "charts/replay_size": len(self.buffer),
            "charts/replay_bytes": self.buffer.nbytes,
        }
        if losses is not None:
            self._check_finite(losses)
            named = {"loss": losses.total, "td_loss": losses.td, "distill_loss": losses.distill}
            charts |= {f"losses/{name}": float(value) for name, value in named.items()}
            charts["losses/q_values"] = float(losses.q_values)
        return charts

    def _has_enough(self) -> bool:
        """Tell whether learning may begin; a run that resumes without its replay buffer has to fill it first, too."""
        args = self.args
        needed = max(args.learning_starts - args.offline_steps, 0)
        filled = len(self.buffer) >= min(needed, args.buffer_size)
        return filled and self.step - self.study_from > args.learning_starts

    def _update(self, transitions: Transitions, shown: Transitions, coefficient: float) -> Losses:
        """One step of gradient descent; `shown` is where the teacher's word is known."""
        args = self.args
        batch = Batch(*(torch.from_numpy(array).to(self.device) for array in transitions))
        others = shown is not transitions
        seen = torch.from_numpy(shown.obs).to(self.device) if others else batch.obs
        if self.teacher is not None:
            with torch.no_grad():
                guidance = functional.softmax(self.teacher(seen) / args.temperature, dim=1)
        else:  # of an expert only the actions are known
            taken = torch.from_numpy(shown.actions).to(self.device)
            guidance = functional.one_hot(taken, self._actions).float()
        weight = torch.tensor(coefficient, device=self.device)
        losses = self._losses(
            self.agent, self.target, batch, seen if others else None, guidance, weight, args.gamma, args.temperature
        )
        self.parameters.zero_gradients()
        losses.total.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(args.learning_rate)
        return Losses(losses.total.detach(), *losses[1:])

    def _move_target_if_due(self, before: int) -> None:
        if self.step // self.args.target_network_frequency > before // self.args.target_network_frequency:
            self._move_target(self.args.tau)

    def _move_target(self, share: float) -> None:
        self._of_target.block.data.lerp_(self.parameters.block.data, share)

    def _forget_lessons(self) -> None:
        """The student's transitions need the memory; a teacher that can be asked is better than what it once did."""
        if self.phase is Phase.PLAY and not self._by_trajectories and len(self.lessons):
            self.lessons = self._make_buffer(self.args.num_envs)

    def _check_finite(self, losses: Losses) -> None:
        """Before anything of this block is saved: a checkpoint of such weights would be worth nothing."""
        if not (math.isfinite(losses.total) and math.isfinite(self.parameters.block.data.sum())):
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: lower --learning-rate")

    # -- checkpoints

    def _replay(self) -> NamedReplay:
        """The buffer that is being filled, or learned from; trajectories are read from their file again."""
        if self.phase is Phase.PLAY or self._by_trajectories:
            return NamedReplay("student", self.buffer)
        return NamedReplay("teacher", self.lessons)

    def snapshot(self) -> TrainingState:
        state = snapshot_of(self, {"adam": self.optimizer.arrays()})
        return replace(
            state,
            arrays={**state.arrays, **arrays_of(self.target, "target")},
            values={
                **state.values,
                "teacher": {"return": self.teacher_return, "is": self._teacher_is},
                "recent": list(self.recent),
            },
            replay=self._replay(),
        )

    def restore(self, state: TrainingState) -> str:
        teacher = state.values["teacher"]
        if teacher["is"] != self._teacher_is:
            raise BadInput("the checkpoint was made with another teacher; give the same one")
        exact = restore_into(self, state, RESUME_NEEDS)
        load_weights(self.target, state.part("target"), what="the checkpoint")
        self.optimizer.restore(state.part("adam"))
        self.teacher_return = teacher["return"]
        self.recent.extend(state.values["recent"])
        self._forget_lessons()
        if not state.restore_replay(self._replay()) and self.phase is Phase.STUDY and not self._by_trajectories:
            raise BadInput(
                "the checkpoint holds no replay buffer (--checkpoint-replay none) and was written while the student "
                "learned from the teacher's; begin anew, with --checkpoint-replay full"
            )
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self._move_target(1.0)

    def model(self) -> Any:
        return self.agent.state_dict()


def check(args: Args) -> None:
    """Refuse values that no run can be made of."""
    check_args(args, RULES)
    if wrong := list(file_problems({"NEEDS_FILES": NEEDS_FILES, "REFUSED": REFUSED}, asdict(args))):
        raise BadInput("; ".join(sentence for _, sentence in wrong))


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check(args)
    envs = run.make_envs(args)
    teacher = trajectories = None
    if args.teacher_checkpoint:
        sizes = sizes_of(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        teacher = load_teacher(args.teacher_checkpoint, args.teacher_model_exp_name, *sizes)
    if args.teacher_trajectories:
        path = Path(args.teacher_trajectories).expanduser()
        trajectories = Trajectories.read(path, envs.observation_space, envs.action_space)
    learner = QDaggerLearner(
        args, envs, device_for(args),
        make_buffer=lambda size: make_replay(replace(args, buffer_size=size), envs, folder=run.folder.root),
        teacher=teacher, trajectories=trajectories,
    )  # fmt: skip
    return train_to_the_end(learner, run, total=learner.total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("qdagger_dqn_atari_impalacnn", Args, train)
