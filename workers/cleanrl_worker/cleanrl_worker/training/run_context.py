"""The `run` an algorithm is given: event files, progress, checkpoints, and whether to go on."""

from __future__ import annotations

import copy
import io
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mosaic_wire import env
from mosaic_wire.paths import RunFolder

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.checkpoints import STATISTICS_KEY
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, backend_of, pipeline_of
from cleanrl_worker.rules import notes_on
from cleanrl_worker.training.arguments import effective_values
from cleanrl_worker.training.channel import Channel, Command
from cleanrl_worker.training.checkpoint import ReplayPart, load_state
from cleanrl_worker.training.envs import EpisodeLines, EpisodeTracker, VectorEnvs, make_envs
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.events import EventWriter
from cleanrl_worker.training.foreign_model import ForeignModel, read_foreign_model
from cleanrl_worker.training.saving import Best, Checkpoints, Order, write_policy
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.tracking import FINISH_S, HURRIED_FINISH_S, WandbTracker
from cleanrl_worker.training.watching import WatchedEnvs, watched
from cleanrl_worker.wrappers.schedule import Schedule

_REPORT_EVERY_S = 0.5
_POLL_PAUSED_S = 0.5

Snapshot = Callable[[], TrainingState]


class Stop(StrEnum):
    """Why training ended before its steps were used up."""

    CANCELLED = "cancelled"
    RELEASED = "released"


class RunContext:
    """What surrounds an algorithm. Control is obeyed in `should_stop`, the algorithm's one safe point."""

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
        """A file with weights to begin from; nothing else of that training is known"""
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
        self._checkpoints = Checkpoints(self.folder, algo, channel.tell, before=self.writer.flush)
        self._keeps_replay = True
        self.evaluation: Evaluation | None = None
        """The newest one during training"""
        self._evaluated_at = 0
        self._watched_envs: WatchedEnvs | None = None
        self.stopped: Stop | None = None
        self.stopped_early = ""
        """Why training ended before its last step, for people; empty: it did not"""
        self._asked_to_stop = False
        self._saved_at = -1
        self._due_from = 0
        self._first_step = self._step = self._total = 0
        self._episodic_return: float | None = None
        self._started_at = time.monotonic()
        self._reported_at = -_REPORT_EVERY_S

    # -- around the loop

    def make_envs(self, args: Any) -> VectorEnvs:
        """The environments to train in: copies of one, or those of the curriculum; its stages are told as they come."""
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
        from cleanrl_worker.wrappers.curriculum import CurriculumEnvs  # only this mode needs it

        return self._watched(CurriculumEnvs(self.curriculum, num_envs, env_kwargs, on_stage=self._tell_stage))

    def _watched(self, envs: VectorEnvs) -> VectorEnvs:
        seen = watched(envs)
        self._watched_envs = seen if isinstance(seen, WatchedEnvs) else None
        return seen

    def follow_episodes(self, episodes: EpisodeTracker) -> None:
        """Whose returns viewers are shown."""
        if self._watched_envs is not None:
            self._watched_envs.follow(episodes)

    @property
    def pipeline(self) -> str:
        """What lies between the environment and this algorithm, see training/envs/pipelines.py."""
        return pipeline_of(self.algo)

    def weights(self) -> Mapping[str, np.ndarray]:
        """The network's weights to begin from, of a checkpoint or a file; empty: training begins from scratch."""
        if self.model is not None:
            return self.model.weights_for(self.algo)
        return self.checkpoint.part("agent") if self.checkpoint is not None else {}

    def env_to_evaluate(self, env_id: str) -> str:
        """Where the trained policy is judged: of a curriculum, its last environment."""
        return env_id if self.curriculum is None else self.curriculum.stages[-1].env_id

    def _tell_stage(self, facts: Mapping[str, Any]) -> None:
        figures = {f"curriculum/{name}": float(facts[name]) for name in ("stage", "total_episodes")}
        self.writer.add_scalars(figures, facts["step"])
        self._channel.tell("stage_changed", facts)

    def begin(self, step: int, total: int, args: Any) -> None:
        """Say where training starts and where it is to end."""
        self._first_step, self._step, self._total, self._started_at = step, step, total, time.monotonic()
        self._keeps_replay = getattr(args, "checkpoint_replay", "none") == "full"
        self._checkpoints.keep = getattr(args, "keep_checkpoints", self._checkpoints.keep)
        flags = effective_values(args)
        if total:
            self._channel.tell("parameters", {"values": flags})
        if not self.writer.goes_on:
            rows = "\n".join(f"|{name}|{value}|" for name, value in flags.items())
            self.writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
            evaluated = flags.get("eval_freq") and flags.get("eval_episodes")
            metrics = ["charts/episodic_return", *(["eval/episodic_return"] if evaluated else [])]
            self.writer.begin_session(flags, metrics)
        if self._tracker is not None:
            self._tracker.start(args)
        self._tell_progress()

    def note_flags(self, args: Any) -> None:
        """Tell what is unusual about the flags of a training (`NOTES`)."""
        entry = DEFAULT_ALGO_REGISTRY.get(self.algo)
        for note in notes_on(entry.declarations(), asdict(args)) if entry is not None else ():
            self.note(note)

    def note(self, text: str) -> None:
        """Tell the user something about this run that is no error; it is logged and stays in the manifest."""
        self._channel.tell("note", {"note": text})

    def loaded(self, environments: str) -> None:
        """Say that the checkpoint was taken over, and how exactly the environments go on."""
        assert self.checkpoint is not None
        assert self._resumed_from is not None
        state = self.checkpoint
        self._due_from, self._evaluated_at = state.step, int(state.run.get("evaluated_at", state.step))
        facts: dict[str, Any] = {"step": state.step, "environments": environments, "weights_only": False}
        if state.saved_replay is None and "checkpoint_replay" in state.values.get("args", {}):
            facts["replay"] = "empty: the checkpoint was written without it; it fills anew before learning goes on"
        if self._resumed_from.resolve().is_relative_to(self.folder.checkpoints.resolve()):
            self._saved_at = state.step  # it is this run's already
            passed_over = self._checkpoints.take_over(state.step, state.saved_replay, state.run.get("best"))
            facts |= {"passed_over": passed_over} if passed_over else {}
        self._channel.tell("checkpoint_loaded", {"path": str(self._resumed_from), **facts})

    def loaded_weights(self) -> None:
        """Say that training begins from the weights of a file, and with nothing else of theirs."""
        assert self.model is not None
        carried = "the weights and the normaliser's statistics" if self.model.statistics else "only the weights"
        note = f"{carried}: optimiser, step count and environments begin anew"
        facts = {"step": 0, "weights_only": True, "note": note, "sha256": self.model.sha256, "shape": self.model.shape}
        self._channel.tell("checkpoint_loaded", {"path": str(self.model.path), **facts})

    def steps_per_second(self, step: int) -> float:
        return (step - self._first_step) / max(time.monotonic() - self._started_at, 1e-9)

    def report(self, step: int, episodic_return: float | None) -> None:
        """Tell the worker how far training is; cheap enough for every iteration."""
        self._step, self._episodic_return = step, episodic_return
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._tell_progress()

    def _tell_progress(self) -> None:
        self._reported_at = time.monotonic()
        sps = self.steps_per_second(self._step) if self._step > self._first_step else None
        message = {"step": self._step, "total": self._total, "episodic_return": self._episodic_return, "sps": sps}
        self._channel.tell("progress", message, must_arrive=False)
        self._tell_tracking()

    def _tell_tracking(self) -> None:
        if self._tracker is not None and (facts := self._tracker.news()):
            self._channel.tell("wandb", facts)

    # -- control

    def request_stop(self) -> None:
        """Ask for a stop at the next safe point; safe to call from a signal handler."""
        self._asked_to_stop = True

    def should_stop(self, step: int, snapshot: Snapshot) -> bool:
        """The safe point: obey what was asked for; holds here while paused."""
        self._checkpoints.check()
        return self._obey(lambda: self.save_last(step, snapshot))

    def stop_requested(self, save: Callable[[], None] = lambda: None) -> bool:
        """The same in an evaluation; `save` is called before a pause, where not everything has been saved yet."""
        self.say_alive()
        return self._obey(save)

    def say_alive(self) -> None:
        """Tell that something goes on which the step does not show; cheap enough to be called often."""
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = time.monotonic()
            self._channel.tell("alive", {}, must_arrive=False)

    def _obey(self, save: Callable[[], None]) -> bool:
        commands = self._channel.poll()
        while commands and not self._asked_to_stop and self.stopped is None:
            command = commands.pop(0)
            if command is Command.STOP:
                self._asked_to_stop = True
            elif command is Command.RELEASE:
                self.stopped = Stop.RELEASED
            elif command is Command.PAUSE:
                save()
                commands = self._hold(commands)
        if self._asked_to_stop and self.stopped is None:
            self.stopped = Stop.CANCELLED
        return self.stopped is not None

    def _hold(self, commands: list[Command]) -> list[Command]:
        """Wait until told otherwise; return the commands to go on with."""
        self.writer.flush()
        self._channel.tell("paused", {"step": self._step})
        paused_at = time.monotonic()
        while not self._asked_to_stop:
            while commands:
                command = commands.pop(0)
                if command is Command.RESUME:
                    self._started_at += time.monotonic() - paused_at  # a pause is not slow training
                    self._channel.tell("resumed", {"step": self._step})
                    return commands
                if command is not Command.PAUSE:
                    return [command, *commands]
            commands = self._channel.poll(_POLL_PAUSED_S)
        return []

    # -- what stays

    def save_if_due(
        self,
        step: int,
        every: int,
        snapshot: Snapshot,
        *,
        score: float | None = None,
        model: Callable[[], bytes] | None = None,
    ) -> None:
        """Save a checkpoint when a multiple of `every` steps was passed since the last.

        It is the best one when its `score` is (the mean training return, in a run without evaluations); `model` gives
        the content that `best.cleanrl_model` then has. Returns before everything is on disk.
        """
        if every and step // every > self._due_from // every:
            self._due_from = step
            best = Best(step, score, "training") if score is not None and self._checkpoints.is_better(score) else None
            self._save(step, snapshot, "best" if best is not None else "periodic", best, model)

    def save_last(
        self, step: int, snapshot: Snapshot, *, score: float | None = None, model: Callable[[], bytes] | None = None
    ) -> None:
        """Save the checkpoint that a resumed or extended run goes on from, and wait for it."""
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
        order = Order(on_its_own(state, run), kind, replay, best, policy)
        if self.stopped is None:
            self._checkpoints.save(order)
        else:
            self._checkpoints.save_in_a_hurry(order)
        self._saved_at = step

    def evaluate_if_due(
        self,
        step: int,
        every: int,
        judge: Callable[[Callable[[], bool]], Evaluation | None],
        snapshot: Snapshot,
        model: Callable[[], bytes] | None = None,
    ) -> None:
        """Evaluate when a multiple of `every` steps was passed since the last time, and save the best so far."""
        if not every or step // every <= self._evaluated_at // every:
            return
        began_at = time.monotonic()
        evaluation = judge(lambda: self.stop_requested(lambda: self.save_last(step, snapshot)))
        self._started_at += time.monotonic() - began_at  # an evaluation is not slow training
        if evaluation is None:
            return  # somebody asked to stop; whoever goes on from here begins with it
        self.evaluation, self._evaluated_at = evaluation, step
        figures = {"": evaluation.mean_return, "_std": evaluation.std_return}
        self.writer.add_scalars({f"eval/episodic_return{end}": figure for end, figure in figures.items()}, step)
        if self._checkpoints.is_better(evaluation.mean_return):
            self._save(step, snapshot, "best", Best(step, evaluation.mean_return, "evaluation"), model)

    def evaluation_at(self, step: int) -> Evaluation | None:
        """What an evaluation at this step has found, if there was one."""
        return self.evaluation if step == self._evaluated_at else None

    def record(self, step: int, film: Callable[[Callable[[], bool]], Path | None], snapshot: Snapshot) -> None:
        """Have a video made, and list it."""
        began_at = time.monotonic()
        video = film(lambda: self.stop_requested(lambda: self.save_last(step, snapshot)))
        self._started_at += time.monotonic() - began_at  # nor is this slow training
        if video is not None:
            self._channel.tell("video", {"path": str(video.relative_to(self.folder.root)), "step": step})

    def save_policy(self, content: bytes, name: str) -> None:
        """Write the policy for people who load it elsewhere, as CleanRL does: a state dict or several."""
        write_policy(self.folder, name, content)
        self._channel.tell("policy", {"path": name})

    def finish_saving(self) -> None:
        """Wait for what is being saved, however training ended; raise what went wrong with it."""
        self._checkpoints.wait()

    def finish_tracking(self, *, failed: bool) -> None:
        """Let W&B have the rest, within bounds; harmless when nothing is tracked or it is done already."""
        if self._tracker is not None:
            in_a_hurry = failed or self.stopped is not None
            self._tracker.finish(HURRIED_FINISH_S if in_a_hurry else FINISH_S, exit_code=int(failed))
            self._tell_tracking()

    def end(self, result: Mapping[str, Any]) -> None:
        """Say how it ended; the training process has nothing to do after this but to let W&B finish."""
        self.writer.end_session(completed=self.stopped is None)
        self.writer.close()
        self._tell_progress()
        early = {"stopped_early": self.stopped_early} if self.stopped_early else {}
        ended = {"outcome": str(self.stopped or "completed"), "step": self._step, **early, **result}
        self._channel.tell("ended", ended)
        self.finish_tracking(failed=False)


def on_its_own(state: TrainingState, run: Mapping[str, Any]) -> TrainingState:
    """A snapshot that nothing training does can change, with what the run adds to it."""
    # Views are what learners forget to copy: they show the weights of the next update.
    arrays = {name: array if array.flags.owndata else array.copy() for name, array in state.arrays.items()}
    return replace(state, arrays=arrays, values=copy.deepcopy(dict(state.values)), replay=None, run=run)


def policy_bytes(model: Any, statistics: Mapping[str, np.ndarray]) -> bytes:
    """Return a state dict, or a tuple of them, as torch writes it.

    A normaliser's statistics go where torch keeps a state dict's metadata: CleanRL's code loads the file as before.
    """
    content, buffer = _on_the_cpu(model), io.BytesIO()
    if statistics:
        content = OrderedDict(content)
        tensors = {name: torch.from_numpy(array) for name, array in statistics.items()}
        vars(content)["_metadata"] = OrderedDict({STATISTICS_KEY: tensors})
    torch.save(content, buffer)
    return buffer.getvalue()


def _on_the_cpu(model: Any) -> Any:
    """Tensors of a state dict (or of a tuple of them) in memory of their own: views would drag their block along."""
    if isinstance(model, tuple):
        return tuple(_on_the_cpu(part) for part in model)
    if isinstance(model, Mapping):
        return {key: _on_the_cpu(value) for key, value in model.items()}
    return model.detach().cpu().clone() if isinstance(model, torch.Tensor) else model
