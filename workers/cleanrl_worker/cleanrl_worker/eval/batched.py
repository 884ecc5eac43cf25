"""Batched evaluation: many episodes in several environments, for TensorBoard, the manifest and eval_summary.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from mosaic_wire.files import write_json_atomically

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.eval.policies import RandomPolicy, TrainedPolicy
from cleanrl_worker.modes.policy_eval import RANDOM, EvaluationSettings
from cleanrl_worker.training.acting import Policy
from cleanrl_worker.training.channel import Channel
from cleanrl_worker.training.envs import make_single, said_of
from cleanrl_worker.training.evaluation import MOST_STEPS, SEED_OFFSET, Episode, Limits, play_episodes
from cleanrl_worker.training.recording import make_filmed
from cleanrl_worker.training.remembering import tell_episodes
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.standalone import stopped_by_signals

DEFAULT_GAMMA = 0.99


@dataclass(frozen=True)
class BatchResult:
    """One batch of episodes."""

    batch_index: int
    episodes: tuple[Episode, ...]
    duration_s: float
    updated_at: float
    videos: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The keys of eval_summary.json, and a few more."""
        returns = np.array([episode.episode_return for episode in self.episodes])
        discounted = np.array([episode.discounted_return for episode in self.episodes])
        return {
            "batch_index": self.batch_index,
            "episodes": len(self.episodes),
            "avg_return": float(returns.mean()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "median_return": float(np.median(returns)),
            "std_return": float(returns.std()),
            "duration_sec": self.duration_s,
            "updated_at": self.updated_at,
            "avg_discounted_return": float(discounted.mean()),
            "avg_length": float(np.mean([episode.length for episode in self.episodes])),
            "cut_episodes": sum(bool(episode.cut) for episode in self.episodes),
            "returns": returns.tolist(),
        }


@dataclass
class EvaluationReport:
    """All batches so far."""

    settings: EvaluationSettings
    gamma: float
    batches: list[BatchResult] = field(default_factory=list)

    def summary(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What eval_summary.json holds: the newest batch in front, all of them in `batches`."""
        batches = [batch.to_json() for batch in self.batches]
        return {**batches[-1], "gamma": self.gamma, **facts, "batches": batches}

    def for_manifest(self) -> dict[str, Any]:
        """Over all batches."""
        played = [episode for batch in self.batches for episode in batch.episodes]
        returns = np.array([episode.episode_return for episode in played])
        return {
            "episodes": len(played), "mean_return": float(returns.mean()), "std_return": float(returns.std()),
            "min_return": float(returns.min()), "max_return": float(returns.max()),
            "median_return": float(np.median(returns)), "gamma": self.gamma, "batches": len(self.batches),
            "mean_discounted_return": float(np.mean([episode.discounted_return for episode in played])),
            "mean_length": float(np.mean([episode.length for episode in played])),
            "cut_episodes": sum(bool(episode.cut) for episode in played),
            "deterministic": self.settings.deterministic,
        }  # fmt: skip


def run_batched_evaluation(
    policy_for: Callable[[gym.Env[Any, Any]], Policy],
    env_id: str,
    settings: EvaluationSettings,
    *,
    seed: int = 0,
    gamma: float | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    pipeline: str = "plain",
    videos: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_episode: Callable[[int, Episode], None] = lambda count, episode: None,
    on_batch: Callable[[EvaluationReport], None] = lambda report: None,
) -> EvaluationReport:
    """Play batch after batch; a batch that was stopped on the way is not in the report.

    Episode i has seed `seed + SEED_OFFSET + i`, whatever the batch size. With `settings.repeat` 0 it goes on until
    `should_stop`.
    """
    chosen = settings.gamma if settings.gamma is not None else gamma
    report = EvaluationReport(settings, DEFAULT_GAMMA if chosen is None else chosen)
    count = 0

    def note(episode: Episode) -> None:
        nonlocal count
        count += 1
        on_episode(count, episode)

    while settings.repeat == 0 or len(report.batches) < settings.repeat:
        index, started_at = len(report.batches), time.monotonic()
        envs = _make_envs(env_id, settings, env_kwargs, pipeline, videos, index)
        try:
            policy = policy_for(envs[0])
            played = play_episodes(
                envs,
                lambda obs, rngs, policy=policy: policy.act(obs, None if settings.deterministic else rngs),  # type: ignore[misc]
                episodes=settings.episodes,
                seed=seed + SEED_OFFSET + index * settings.episodes,
                gamma=report.gamma,
                limits=Limits(settings.max_episode_steps or MOST_STEPS, settings.max_episode_seconds),
                should_stop=should_stop,
                on_episode=note,
                follow=partial(tell_episodes, policy),
            )
        finally:
            for env in envs:
                env.close()
        if played is None:
            break
        recorded = tuple(sorted(videos.glob(f"eval-{index}/*.mp4"))) if videos is not None else ()
        took_s = time.monotonic() - started_at
        report.batches.append(BatchResult(index, tuple(played), took_s, time.time(), recorded))
        on_batch(report)
    return report


def _make_envs(
    env_id: str, settings: EvaluationSettings, env_kwargs: Mapping[str, Any] | None, pipeline: str,
    videos: Path | None, batch: int,
) -> Sequence[gym.Env[Any, Any]]:  # fmt: skip
    with said_of(env_id):
        filmed = [] if videos is None else [_filmed(env_id, env_kwargs, pipeline, videos, batch)]
        others = range(settings.together - len(filmed))
        return [*filmed, *(make_single(env_id, env_kwargs, pipeline=pipeline) for _ in others)]


def _filmed(
    env_id: str, env_kwargs: Mapping[str, Any] | None, pipeline: str, videos: Path, batch: int
) -> gym.Env[Any, Any]:
    """The environment whose first episode is recorded."""
    env = make_filmed(env_id, env_kwargs, pipeline=pipeline, flag="eval_capture_video")
    env.film(videos / f"eval-{batch}" / "eval-episode-0.mp4")
    return env


def evaluate_run(
    algo: str,
    module: ModuleType,
    args: Any,
    request: Mapping[str, Any],
    folder: Path,
    channel: Channel,
    *,
    tensorboard: Path | None = None,
) -> None:
    """The training process of a policy_eval run; `request` as `modes.policy_eval` writes it."""
    wanted = dict(request)
    source, summary_file = wanted.pop("policy"), Path(wanted.pop("summary"))
    settings = EvaluationSettings(**wanted)
    run = RunContext(algo, folder, channel, tensorboard=tensorboard)
    with stopped_by_signals(run):
        trained = TrainedPolicy.load(Path(source), algo) if source else RandomPolicy()
        if source:
            channel.tell("checkpoint_loaded", {"path": source, "for": "evaluation", **trained.facts})
        env_kwargs = read_env_kwargs(args.env_kwargs) or read_env_kwargs(str(trained.args.get("env_kwargs") or "{}"))
        run.begin(0, settings.episodes * settings.repeat, args)
        facts = {"env_id": args.env_id, "algo": algo, "policy": source or RANDOM, "seed": args.seed, **trained.facts}

        returns: list[float] = []

        def note_episode(count: int, episode: Episode) -> None:
            figures = {"episode_return": episode.episode_return, "episode_length": float(episode.length)}
            figures["discounted_return"] = episode.discounted_return
            run.writer.add_scalars({f"eval/{name}": value for name, value in figures.items()}, count)
            returns.append(episode.episode_return)
            run.report(count, sum(returns) / count)

        def note_batch(report: EvaluationReport) -> None:
            summary_file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomically(summary_file, report.summary(facts))
            newest = report.batches[-1].to_json()
            names = ("avg", "min", "max", "median", "std")
            run.writer.add_scalars(
                {f"eval/{name}_return": newest[f"{name}_return"] for name in names}, newest["batch_index"]
            )
            for video in report.batches[-1].videos:
                channel.tell("video", {"path": str(video.relative_to(folder))})

        report = run_batched_evaluation(
            lambda env: trained.for_env(module, args.env_id, env), args.env_id, settings, seed=args.seed,
            gamma=trained.args.get("gamma"), env_kwargs=env_kwargs, pipeline=run.pipeline,
            videos=run.folder.videos if settings.capture_video else None, should_stop=run.stop_requested,
            on_episode=note_episode, on_batch=note_batch,
        )  # fmt: skip
        run.end({"evaluation": report.for_manifest()} if report.batches else {})
