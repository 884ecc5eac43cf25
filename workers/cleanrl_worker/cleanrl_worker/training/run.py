"""A run of an algorithm: its context (metrics, checkpoints, commands) and the training loop of every learner.

An algorithm file defines a `Learner`; `run_training_loop` calls it from one safe point to the next.
"""

from __future__ import annotations

import copy
import io
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mosaic_wire import env
from mosaic_wire.paths import RunFolder

from cleanrl_worker.declarations import DECLARATIONS
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.modes.checkpoints import STATISTICS_KEY
from cleanrl_worker.registry import backend_of, pipeline_of
from cleanrl_worker.training.args import effective_values
from cleanrl_worker.training.channel import Channel, Command
from cleanrl_worker.training.checkpointing import (
    NEW_EPISODES,
    Best,
    Checkpoints,
    ReplayPart,
    SaveRequest,
    TrainingState,
    load_state,
    load_weights,
    restore_into,
    snapshot_of,
    write_policy,
)
from cleanrl_worker.training.envs import EpisodeLines, EpisodeTracker, NormalizedEnvs, Step, VectorEnvs, make_envs
from cleanrl_worker.training.evaluation import Evaluation, Evaluator
from cleanrl_worker.training.fast_cpu import HasEngine
from cleanrl_worker.training.foreign_model import ForeignModel, read_foreign_model
from cleanrl_worker.training.metrics import FINISH_S, QUICK_FINISH_S, EventWriter, WandbTracker
from cleanrl_worker.training.optimizers import FlatParameters
from cleanrl_worker.training.policies import RecurrentPlay
from cleanrl_worker.training.rendering import Recorder, WatchedEnvs, watched
from cleanrl_worker.wrappers.schedule import Schedule

_REPORT_EVERY_S = 0.5
_POLL_PAUSED_S = 0.5
BLOCK_STEPS = 100
"""Steps of off-policy training between two safe points, and between two points of a chart"""

Snapshot = Callable[[], TrainingState]


TrainResult = Evaluation | None
"""What an algorithm's `train` returns: its final evaluation, if there was one"""


class Stop(StrEnum):
    """Why training ended before its steps were used up."""

    CANCELLED = "cancelled"
    RELEASED = "released"


class RunContext:
    """Metrics, checkpoints and commands of a run. Commands are handled in `should_stop`, at a safe point."""

    def __init__(
        self,
        algo: str,
        folder: Path,
        channel: Channel,
        *,
        tensorboard: Path | None = None,
        resume: Path | None = None,
        curriculum: Schedule | None = None,
        track: bool = False,
    ) -> None:
        self.algo = algo
        self.folder = RunFolder(folder)
        self._channel = channel
        self.checkpoint: TrainingState | None = None
        self.model: ForeignModel | None = None
        """A file with initial weights, without the rest of a training state"""
        if resume is not None and resume.is_file():
            self.model = read_foreign_model(resume)
        elif resume is not None:
            self.checkpoint = load_state(resume, algo)
        self._resumed_from = resume
        self.curriculum = curriculum
        self._tracker = WandbTracker() if track else None
        writes_events = os.environ.get(env.TRACK_TENSORBOARD) != "0"
        self.writer = EventWriter(
            (tensorboard or self.folder.tensorboard) if writes_events else None,
            resume_at=self.checkpoint.step if self.checkpoint is not None else -1,
            mirrors=[EpisodeLines(), *([self._tracker.log] if self._tracker is not None else [])],
        )
        self._checkpoints = Checkpoints(self.folder, algo, channel.send, before=self.writer.flush)
        self._keeps_replay = True
        self.evaluation: Evaluation | None = None
        """The newest one during training"""
        self._evaluated_at = 0
        self._watched_envs: WatchedEnvs | None = None
        self.stopped: Stop | None = None
        self.stopped_early = ""
        """Why training ended before its last step, as a message; empty if it did not"""
        self.never_updated = False
        """Whether the network is still the initial one"""
        self._stop_requested = False
        self._saved_at = -1
        self._due_from = 0
        self._first_step = self._step = self._total = 0
        self._episodic_return: float | None = None
        self._started_at = time.monotonic()
        self._reported_at = -_REPORT_EVERY_S

    # -- around the loop

    def make_envs(self, args: Any) -> VectorEnvs:
        """Return the environments to train in: copies of one, or those of the curriculum, which reports its stages."""
        env_id, num_envs, env_kwargs = args.env_id, getattr(args, "num_envs", 1), read_env_kwargs(args.env_kwargs)
        if self.curriculum is None:
            if self.checkpoint is not None and self.checkpoint.environments().values.get("curriculum"):
                raise BadInput(
                    "the checkpoint is of a curriculum and this run has no curriculum_schedule; give it the same one, "
                    "or begin from the weights alone (the run's .cleanrl_model)"
                )
            backend = backend_of(self.algo, getattr(args, "env_backend", "auto"))
            return self._watched(make_envs(env_id, num_envs, env_kwargs, pipeline=self.pipeline, backend=backend))
        if getattr(args, "env_backend", "auto") not in ("auto", "sync"):
            raise BadInput(f"--env-backend {args.env_backend}: a curriculum's environments are stepped one by one")
        if self.pipeline != "plain":
            raise BadInput(f"{self.algo} has environments of one family, which no curriculum can be made of; use ppo")
        from cleanrl_worker.training.envs.curriculum import CurriculumEnvs  # only this mode needs it

        return self._watched(CurriculumEnvs(self.curriculum, num_envs, env_kwargs, on_stage=self._report_stage))

    def _watched(self, envs: VectorEnvs) -> VectorEnvs:
        drawn = watched(envs)
        self._watched_envs = drawn if isinstance(drawn, WatchedEnvs) else None
        return drawn

    def follow_episodes(self, episodes: EpisodeTracker) -> None:
        """Show viewers the returns of these episodes."""
        if self._watched_envs is not None:
            self._watched_envs.follow(episodes)

    @property
    def pipeline(self) -> str:
        """Return the name of the environment pipeline, see training/envs/construction.py."""
        return pipeline_of(self.algo)

    def weights(self) -> Mapping[str, np.ndarray]:
        """Return the initial weights, of a checkpoint or a file; empty if training begins from scratch."""
        if self.model is not None:
            return self.model.weights_for(self.algo)
        return self.checkpoint.part("agent") if self.checkpoint is not None else {}

    def env_to_evaluate(self, env_id: str) -> str:
        """Return the environment of evaluations: with a curriculum, that of its last stage."""
        return env_id if self.curriculum is None else self.curriculum.stages[-1].env_id

    def _report_stage(self, facts: Mapping[str, Any]) -> None:
        scalars = {f"curriculum/{name}": float(facts[name]) for name in ("stage", "total_episodes")}
        self.writer.add_scalars(scalars, facts["step"])
        self._channel.send("stage_changed", facts)

    def begin(
        self,
        step: int,
        total: int,
        args: Any,
        flags: Mapping[str, Any] | None = None,
        chosen: Mapping[str, Any] | None = None,
    ) -> None:
        """Report the first and the last step of training, and its flags.

        `flags` are given by runs that do not train; `chosen` holds the values chosen for flags set to `auto`.
        """
        self._first_step, self._step, self._total, self._started_at = step, step, total, time.monotonic()
        self._keeps_replay = getattr(args, "checkpoint_replay", "none") == "full"
        self._checkpoints.keep = getattr(args, "keep_checkpoints", self._checkpoints.keep)
        flags = effective_values(args) if flags is None else flags
        if total:
            self._channel.send("parameters", {"values": {**flags, **(chosen or {})}})
        if not self.writer.continues:
            rows = "\n".join(f"|{name}|{value}|" for name, value in flags.items())
            self.writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
            evaluated = flags.get("eval_freq") and flags.get("eval_episodes")
            metrics = ["charts/episodic_return", *(["eval/episodic_return"] if evaluated else [])]
            self.writer.begin_session(flags, metrics)
        if self._tracker is not None:
            self._tracker.start(args)
        self._report_progress()

    def note_flags(self, args: Any) -> None:
        """Report notes on unusual flags."""
        for note in DECLARATIONS[self.algo].notes_on(asdict(args)) if self.algo in DECLARATIONS else ():
            self.note(note)

    def note(self, text: str) -> None:
        """Add a note for the user, which is logged and stored in the manifest."""
        self._channel.send("note", {"note": text})

    def loaded(self, environments: str) -> None:
        """Report that the checkpoint was loaded, and how the environments were restored."""
        assert self.checkpoint is not None
        assert self._resumed_from is not None
        state = self.checkpoint
        self._due_from, self._evaluated_at = state.step, int(state.run.get("evaluated_at", state.step))
        facts: dict[str, Any] = {"step": state.step, "environments": environments, "weights_only": False}
        if state.saved_replay is None and "checkpoint_replay" in state.values.get("args", {}):
            facts["replay"] = "empty: the checkpoint was written without it; it is filled before learning continues"
        if self._resumed_from.resolve().is_relative_to(self.folder.checkpoints.resolve()):
            self._saved_at = state.step  # it is this run's already
            passed_over = self._checkpoints.adopt(state.step, state.saved_replay, state.run.get("best"))
            facts |= {"passed_over": passed_over} if passed_over else {}
        self._channel.send("checkpoint_loaded", {"path": str(self._resumed_from), **facts})

    def loaded_weights(self) -> None:
        """Report that training begins with the weights of a file, without the rest of a training state."""
        assert self.model is not None
        carried = "the weights and the normalizer's statistics" if self.model.statistics else "only the weights"
        note = f"{carried}: optimizer, step count and environments begin anew"
        facts = {"step": 0, "weights_only": True, "note": note, "sha256": self.model.sha256, "shape": self.model.shape}
        self._channel.send("checkpoint_loaded", {"path": str(self.model.path), **facts})

    def steps_per_second(self, step: int) -> float:
        """Return the mean rate since training started or resumed, without pauses and evaluations."""
        return (step - self._first_step) / max(time.monotonic() - self._started_at, 1e-9)

    def report(self, step: int, episodic_return: float | None) -> None:
        """Report progress to the worker, at most twice a second."""
        self._step, self._episodic_return = step, episodic_return
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._report_progress()

    def _report_progress(self) -> None:
        self._reported_at = time.monotonic()
        sps = self.steps_per_second(self._step) if self._step > self._first_step else None
        message = {"step": self._step, "total": self._total, "episodic_return": self._episodic_return, "sps": sps}
        self._channel.send("progress", message, must_arrive=False)
        self._report_tracking()

    def _report_tracking(self) -> None:
        if self._tracker is not None and (facts := self._tracker.unreported()):
            self._channel.send("wandb", facts)

    # -- control

    def request_stop(self) -> None:
        """Request a stop at the next safe point; safe to call from a signal handler."""
        self._stop_requested = True

    def should_stop(self, step: int, snapshot: Snapshot) -> bool:
        """Handle commands at a safe point, waiting while paused; return whether to stop."""
        self._checkpoints.check()
        return self._handle_commands(lambda: self.save_last(step, snapshot))

    def stop_requested(self, save: Callable[[], None] = lambda: None) -> bool:
        """Handle commands during an evaluation; `save` is called before a pause."""
        self.report_alive()
        return self._handle_commands(save)

    def report_alive(self) -> None:
        """Report a heartbeat while the step does not advance, at most twice a second."""
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = time.monotonic()
            self._channel.send("alive", {}, must_arrive=False)

    def _handle_commands(self, save: Callable[[], None]) -> bool:
        commands = self._channel.poll()
        while commands and not self._stop_requested and self.stopped is None:
            command = commands.pop(0)
            if command is Command.STOP:
                self._stop_requested = True
            elif command is Command.RELEASE:
                self.stopped = Stop.RELEASED
            elif command is Command.PAUSE:
                save()
                commands = self._wait_while_paused(commands)
        if self._stop_requested and self.stopped is None:
            self.stopped = Stop.CANCELLED
        return self.stopped is not None

    def _wait_while_paused(self, commands: list[Command]) -> list[Command]:
        """Wait for a command other than pause; return the commands to handle next."""
        self.writer.flush()
        self._channel.send("paused", {"step": self._step})
        paused_at = time.monotonic()
        while not self._stop_requested:
            while commands:
                command = commands.pop(0)
                if command is Command.RESUME:
                    self._started_at += time.monotonic() - paused_at  # not counted in steps per second
                    self._channel.send("resumed", {"step": self._step})
                    return commands
                if command is not Command.PAUSE:
                    return [command, *commands]
            commands = self._channel.poll(_POLL_PAUSED_S)
        return []

    # -- checkpoints, evaluations, videos

    def save_if_due(
        self,
        step: int,
        every: int,
        snapshot: Snapshot,
        *,
        score: float | None = None,
        model: Callable[[], bytes] | None = None,
    ) -> None:
        """Save a checkpoint if a multiple of `every` steps was passed since the last; it is written in the background.

        It becomes the best one if its `score` is the highest (the mean training return, in a run without evaluations);
        `model` then gives the content of `best.cleanrl_model`.
        """
        if every and step // every > self._due_from // every:
            self._due_from = step
            best = Best(step, score, "training") if score is not None and self._checkpoints.is_better(score) else None
            self._save(step, snapshot, "best" if best is not None else "periodic", best, model)

    def save_last(
        self, step: int, snapshot: Snapshot, *, score: float | None = None, model: Callable[[], bytes] | None = None
    ) -> None:
        """Save the checkpoint that a resumed or extended run continues from, and wait for it."""
        best = None
        if score is not None and self._checkpoints.best is not None and self._checkpoints.is_better(score):
            best = Best(step, score, "training")
        self._save(step, snapshot, "last", best, model)
        self._checkpoints.wait()

    def _save(
        self,
        step: int,
        snapshot: Snapshot,
        kind: str,
        best: Best | None = None,
        model: Callable[[], bytes] | None = None,
    ) -> None:
        policy = model() if best is not None and model is not None else None
        if step == self._saved_at:
            if best is not None:
                self._checkpoints.wait()
                self._checkpoints.name_best(best, policy)
            return
        self._checkpoints.wait()
        state = snapshot()
        run = {"evaluated_at": self._evaluated_at}
        replay = ReplayPart.of(state) if self._keeps_replay else None
        request = SaveRequest(detached(state, run), kind, replay, best, policy)
        if self.stopped is None:
            self._checkpoints.save(request)
        else:
            self._checkpoints.save_quickly(request)
        self._saved_at = step

    def evaluate_if_due(
        self,
        step: int,
        every: int,
        evaluate: Callable[[Callable[[], bool]], Evaluation | None],
        snapshot: Snapshot,
        model: Callable[[], bytes] | None = None,
    ) -> None:
        """Evaluate if a multiple of `every` steps was passed since the last time, and save the best checkpoint."""
        if not every or step // every <= self._evaluated_at // every:
            return
        started_at = time.monotonic()
        evaluation = evaluate(lambda: self.stop_requested(lambda: self.save_last(step, snapshot)))
        self._started_at += time.monotonic() - started_at  # not counted in steps per second
        if evaluation is None:
            return  # stopped; a resumed run begins with this evaluation
        self.evaluation, self._evaluated_at = evaluation, step
        returns = {"eval/episodic_return": evaluation.mean_return, "eval/episodic_return_std": evaluation.std_return}
        self.writer.add_scalars(returns, step)
        if self._checkpoints.is_better(evaluation.mean_return):
            self._save(step, snapshot, "best", Best(step, evaluation.mean_return, "evaluation"), model)

    def evaluation_at(self, step: int) -> Evaluation | None:
        """Return the evaluation at this step, if there was one."""
        return self.evaluation if step == self._evaluated_at else None

    def record(self, step: int, record: Callable[[Callable[[], bool]], Path | None], snapshot: Snapshot) -> None:
        """Record a video with `record`, and report its path."""
        started_at = time.monotonic()
        video = record(lambda: self.stop_requested(lambda: self.save_last(step, snapshot)))
        self._started_at += time.monotonic() - started_at  # not counted in steps per second
        if video is not None:
            self._channel.send("video", {"path": str(video.relative_to(self.folder.root)), "step": step})

    def save_policy(self, content: bytes, name: str) -> None:
        """Write the policy as CleanRL does, a state dict or several, to be loaded elsewhere."""
        write_policy(self.folder, name, content)
        self._channel.send("policy", {"path": name})

    def finish_saving(self) -> None:
        """Wait for the checkpoint being written; raise its error if it failed."""
        self._checkpoints.wait()

    def finish_tracking(self, *, failed: bool) -> None:
        """Send the rest to W&B within a time limit; does nothing if not tracked or finished."""
        if self._tracker is not None:
            quickly = failed or self.stopped is not None
            self._tracker.finish(QUICK_FINISH_S if quickly else FINISH_S, exit_code=int(failed))
            self._report_tracking()

    def end(self, result: Mapping[str, Any]) -> None:
        """Report how training ended, then finish W&B."""
        self.writer.end_session(completed=self.stopped is None)
        self.writer.close()
        self._report_progress()
        early: dict[str, Any] = {"stopped_early": self.stopped_early} if self.stopped_early else {}
        early |= {"never_updated": True} if self.never_updated else {}
        ended = {"outcome": str(self.stopped or "completed"), "step": self._step, **early, **result}
        self._channel.send("ended", ended)
        self.finish_tracking(failed=False)


def detached(state: TrainingState, run: Mapping[str, Any]) -> TrainingState:
    """Return a snapshot that shares no memory with training, with the values `run` of the run."""
    # A view that a learner did not copy would change with the next update.
    arrays = {name: array if array.flags.owndata else array.copy() for name, array in state.arrays.items()}
    return replace(state, arrays=arrays, values=copy.deepcopy(dict(state.values)), replay=None, run=run)


def policy_bytes(model: Any, statistics: Mapping[str, np.ndarray]) -> bytes:
    """Return a state dict, or a tuple of them, serialized by torch.

    A normalizer's statistics are stored as metadata of the state dict, so that CleanRL's code can still load the file.
    """
    content, buffer = _on_the_cpu(model), io.BytesIO()
    if statistics:
        content = OrderedDict(content)
        tensors = {name: torch.from_numpy(array) for name, array in statistics.items()}
        vars(content)["_metadata"] = OrderedDict({STATISTICS_KEY: tensors})
    torch.save(content, buffer)
    return buffer.getvalue()


def _on_the_cpu(model: Any) -> Any:
    """Return copies of a state dict's tensors (or a tuple of them): torch would save the whole storage of a view."""
    if isinstance(model, tuple):
        return tuple(_on_the_cpu(part) for part in model)
    if isinstance(model, Mapping):
        return {key: _on_the_cpu(value) for key, value in model.items()}
    return model.detach().cpu().clone() if isinstance(model, torch.Tensor) else model


class Learner:
    """The state of an algorithm's training, and how it acts, learns and is restored.

    An algorithm overrides `act` and `learn`; the defaults of the other methods are for one network in `agent`.
    """

    args: Any
    envs: VectorEnvs
    agent: Any
    parameters: FlatParameters
    episodes: EpisodeTracker
    rng: np.random.Generator
    next_obs: np.ndarray
    step: int
    """Steps taken so far, over all environments"""
    total: int
    """Steps to train for"""
    remedy = "lower --learning-rate"
    """Advice in the error message for losses that are not finite"""

    def __init__(self, args: Any, envs: VectorEnvs, device: torch.device) -> None:
        self.args, self.envs, self.device = args, envs, device
        self.num_envs = self.count_envs()
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)  # the networks are made after this
        self.episodes = EpisodeTracker(self.num_envs)
        self.step = 0

    def count_envs(self) -> int:
        """Return the number of environments, over all processes."""
        return self.envs.num_envs

    def begin_episodes(self) -> None:
        """Reset the environments and begin new episodes."""
        obs = self.envs.reset(self.args.seed + self.step)
        self.next_obs = obs.astype(self.next_obs.dtype) if self.next_obs.size else obs

    def learn(self, run: RunContext) -> None:
        """Train until the next safe point (an iteration, or some hundred steps) and write charts.

        Safe points and charts must depend on the step alone, so that a resumed run does the same.
        """
        raise NotImplementedError

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return actions for a batch of observations as the environments give them: the best, or sampled with `rng`."""
        raise NotImplementedError

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {}

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """Return copies of what a checkpoint needs besides the network, by prefix."""
        return {name: optimizer.arrays() for name, optimizer in self.optimizers.items()}

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, in copied arrays: training continues while they are written.

        A replay buffer (made by `make_replay`) is not copied: `TrainingState(step, arrays, values,
        replay=self.buffer)`. Its segments are written in the background, each once; the buffer waits before it
        overwrites one that is not on disk yet.
        """
        return snapshot_of(self, self.own_arrays())

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored.

        `state.restore_replay(self.buffer)` fills the buffer as it was. It returns False where the checkpoint holds none
        (`--checkpoint-replay none`): the learner then collects `learning_starts` steps, counted from `state.step`,
        before it learns again. The run reports that.
        """
        exact = restore_into(self, state)
        for name, optimizer in self.optimizers.items():
            if moments := state.part(name):
                optimizer.restore(moments)
        return "exact" if exact else NEW_EPISODES

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the network's weights; `what` names their source in errors."""
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()

    def model(self) -> Any:
        """Return the content of CleanRL's `.cleanrl_model` for this algorithm: a state dict, or a tuple of them."""
        return self.agent.state_dict()

    def learning_rate(self) -> float:
        """Return the learning rate of this iteration; with --anneal-lr it falls linearly to zero."""
        fraction = 1 - self.step / self.total if self.args.anneal_lr else 1.0
        return float(self.args.learning_rate * fraction)

    def chart_episodes(self, step: Step, run: Any) -> list[tuple[float, int]]:
        """Write and return the returns and lengths of the episodes that ended in this step."""
        finished = self.episodes.add(step)
        for episode_return, length in finished:
            charts = {"charts/episodic_return": episode_return, "charts/episodic_length": length}
            run.writer.add_scalars(charts, self.step)
        return finished

    def replay_charts(self, buffer: Any, run: RunContext) -> dict[str, float]:
        """Return the charts of a replay buffer, and the steps per second."""
        charts = {"charts/replay_size": len(buffer), "charts/replay_bytes": buffer.nbytes}
        return {**charts, "charts/SPS": run.steps_per_second(self.step)}

    def stop_unless_finite(
        self, loss: float, *given: Any, blame: str = "the environment gave rewards that are not finite"
    ) -> None:
        """Stop before anything is saved: a checkpoint of such weights would be useless.

        `given` is the environment's data; if that is not finite, the message is `blame` instead of `remedy`.
        """
        if not (math.isfinite(loss) and math.isfinite(float(self.parameters.block.data.sum()))):
            cause = self.remedy if all(np.isfinite(array).all() for array in given) else blame
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")


class RecurrentLearner(Learner):
    """A learner whose network has an LSTM: its state goes from step to step and is reset where an episode starts."""

    play: RecurrentPlay
    lstm_state: tuple[torch.Tensor, torch.Tensor]
    next_starts: np.ndarray
    """Whether the next observation of each environment begins an episode"""

    def begin_episodes(self) -> None:
        """Reset the environments and the LSTM state."""
        super().begin_episodes()
        self.next_starts[:] = True

    def set_episodes(self, episodes: Sequence[int]) -> None:
        """Set the episodes that the rows of the next `act` belong to."""
        self.play.set_episodes(episodes)

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """Return copies of what a checkpoint needs besides the network, by prefix."""
        hidden, cell = (part.cpu().numpy().copy() for part in self.lstm_state)
        return {**super().own_arrays(), "memory": {"hidden": hidden, "cell": cell, "starts": self.next_starts.copy()}}

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        environments = super().restore(state)
        if environments != NEW_EPISODES:
            saved = state.part("memory")
            hidden, cell = (torch.from_numpy(saved[name].copy()).to(self.device) for name in ("hidden", "cell"))
            self.lstm_state, self.next_starts = (hidden, cell), saved["starts"].copy()
        return environments


def whole_iterations(args: Any, num_envs: int | None = None) -> int:
    """Return the steps to train for: whole iterations only; `num_envs` counts those of all processes."""
    batch_size = (num_envs or args.num_envs) * args.num_steps
    return int(args.total_timesteps // batch_size * batch_size)


def device_for(args: Any) -> torch.device:
    """Return the GPU if there is one and --cuda is set; raise BadInput if one was reserved and is missing."""
    torch.backends.cudnn.deterministic = args.torch_deterministic
    if not args.cuda:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get(env.MOSAIC_GPUS_MANDATORY) not in (None, "", "0"):
        if torch.version.cuda is None:
            reason = "the torch that is installed is built for processors only"
        elif os.environ.get(env.CUDA_VISIBLE_DEVICES) == "":
            reason = "none is reserved for this run (resources.gpus)"
        else:
            reason = "torch finds no NVIDIA driver or device"
        raise BadInput(f"a GPU was requested and there is none to use: {reason}; leave --cuda out to train without one")
    return torch.device("cpu")


def run_training_loop(learner: Learner, run: RunContext, *, total: int) -> TrainResult:
    """Train until `total` steps, the target return, or a stop is requested; then evaluate. Closes the environments."""
    args = learner.args
    evaluator = Evaluator.of(args, run.env_to_evaluate(args.env_id), run.pipeline) if args.eval_episodes else None
    recorder = None
    try:
        recorder = Recorder.of(args, run) if args.capture_video else None
        _begin(learner, run, total)
        while True:
            _checkpoint_if_due(learner, run, evaluator, total)
            if recorder is not None:
                recorder.record_if_due(learner, run)
            if learner.step >= total or run.should_stop(learner.step, learner.snapshot):
                break
            if learner.episodes.has_reached(args.stop_at_return):
                run.stopped_early = f"100 episodes averaged a return of {args.stop_at_return:g} (--stop-at-return)"
                break
            learner.learn(run)
            run.report(learner.step, learner.episodes.mean_return)
        if run.model is None and not getattr(args, "offline_steps", 0):
            run.never_updated = learner.step <= getattr(args, "learning_starts", -1)
        run.save_last(learner.step, learner.snapshot, score=_training_score(learner), model=lambda: _policy_of(learner))
        run.save_policy(_policy_of(learner), f"{args.exp_name}.cleanrl_model")
        if evaluator is None or run.stopped:
            return None
        return run.evaluation_at(learner.step) or evaluator.evaluate(learner, run.stop_requested)
    finally:
        learner.envs.close()
        if evaluator is not None:
            evaluator.close()
        if recorder is not None:
            recorder.close()


def _begin(learner: Learner, run: RunContext, total: int) -> None:
    if run.checkpoint is not None:
        run.loaded(learner.restore(run.checkpoint))
    else:
        if run.model is not None and isinstance(learner.envs, NormalizedEnvs):
            learner.envs.load_norm(run.model.part("obs_norm"), run.model.part("return_norm"))
        learner.begin_episodes()
        if weights := run.weights():
            learner.load_agent(weights, "the model")
            run.loaded_weights()
    run.note_flags(learner.args)
    chosen = {"gradient": learner.engine.name} if isinstance(learner, HasEngine) else {}
    if isinstance(learner, HasEngine) and learner.engine.note:
        run.note(learner.engine.note)
    run.follow_episodes(learner.episodes)
    run.begin(learner.step, total, learner.args, chosen=chosen)


def _checkpoint_if_due(learner: Learner, run: RunContext, evaluator: Evaluator | None, total: int) -> None:
    args, step, snapshot = learner.args, learner.step, learner.snapshot

    def policy() -> bytes:
        return _policy_of(learner)

    if evaluator is not None:
        run.evaluate_if_due(step, args.eval_freq, lambda stop: evaluator.evaluate(learner, stop), snapshot, policy)
    if step < total:  # at the end the last one is saved
        run.save_if_due(step, args.checkpoint_freq, snapshot, score=_training_score(learner), model=policy)


def _policy_of(learner: Learner) -> bytes:
    """Return the `.cleanrl_model` of this learner: weights, and the normalizer's statistics."""
    statistics = learner.envs.statistics() if isinstance(learner.envs, NormalizedEnvs) else {}
    return policy_bytes(learner.model(), statistics)


def _training_score(learner: Learner) -> float | None:
    """Return the score of checkpoints in runs without evaluations: the mean return of the last 100 episodes."""
    has_hundred = learner.episodes.has_reached(-math.inf)
    return learner.episodes.mean_return if has_hundred and not learner.args.eval_freq else None
