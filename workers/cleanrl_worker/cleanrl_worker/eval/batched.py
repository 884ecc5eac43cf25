"""Batched evaluation: many episodes in several environments, for TensorBoard, the manifest and eval_summary.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from mosaic_wire.files import write_json_atomically

from cleanrl_worker.eval.policies import RandomActions, load_policy
from cleanrl_worker.modes import RANDOM, EvaluationSettings
from cleanrl_worker.training.channel import Channel
from cleanrl_worker.training.envs import environment_errors, make_single
from cleanrl_worker.training.evaluation import MAX_STEPS, SEED_OFFSET, Episode, Limits, play_episodes
from cleanrl_worker.training.policies import Policy, set_episodes
from cleanrl_worker.training.rendering import make_recorded_env
from cleanrl_worker.training.run import RunContext
from cleanrl_worker.training.standalone import stopped_by_signals

DEFAULT_GAMMA = 0.99


def _statistics(episodes: Sequence[Episode], mean: str) -> dict[str, Any]:
    """Return what is measured over episodes; means are named after `mean`."""
    returns = np.array([episode.episode_return for episode in episodes])
    return {
        "episodes": len(episodes),
        f"{mean}_return": float(returns.mean()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "median_return": float(np.median(returns)),
        "std_return": float(returns.std()),
        f"{mean}_discounted_return": float(np.mean([episode.discounted_return for episode in episodes])),
        f"{mean}_length": float(np.mean([episode.length for episode in episodes])),
        "cut_episodes": sum(bool(episode.cut) for episode in episodes),
    }


@dataclass(frozen=True)
class BatchResult:
    """One batch of episodes."""

    batch_index: int
    episodes: tuple[Episode, ...]
    duration_s: float
    updated_at: float
    videos: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the keys of eval_summary.json, and a few more."""
        returns = [float(episode.episode_return) for episode in self.episodes]
        when = {"batch_index": self.batch_index, "duration_sec": self.duration_s, "updated_at": self.updated_at}
        return {**when, **_statistics(self.episodes, "avg"), "returns": returns}


@dataclass
class EvaluationReport:
    """All batches so far."""

    settings: EvaluationSettings
    gamma: float
    batches: list[BatchResult] = field(default_factory=list)

    def summary(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return eval_summary.json: the newest batch in front, all of them in `batches`."""
        batches = [batch.to_json() for batch in self.batches]
        return {**batches[-1], "gamma": self.gamma, **facts, "batches": batches}

    def for_manifest(self) -> dict[str, Any]:
        """Return the statistics over all batches."""
        played = [episode for batch in self.batches for episode in batch.episodes]
        settings = {"batches": len(self.batches), "gamma": self.gamma, "deterministic": self.settings.deterministic}
        return {**_statistics(played, "mean"), **settings}


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
    """Play batches of episodes; a batch that was stopped is not in the report.

    Episode i has seed `seed + SEED_OFFSET + i`, whatever the batch size. With `settings.repeat` 0 it continues until
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
        envs: list[gym.Env[Any, Any]] = []
        with environment_errors(env_id):
            if videos is not None:  # the first episode of the first environment is recorded
                recorded_env = make_recorded_env(env_id, env_kwargs, pipeline=pipeline, flag="eval_capture_video")
                recorded_env.record_next(videos / f"eval-{index}" / "eval-episode-0.mp4")
                envs.append(recorded_env)
            others = range(settings.together - len(envs))
            envs += [make_single(env_id, env_kwargs, pipeline=pipeline) for _ in others]
        try:
            policy = policy_for(envs[0])
            played = play_episodes(
                envs,
                lambda obs, rngs, policy=policy: policy.act(obs, None if settings.deterministic else rngs),  # type: ignore[misc]
                episodes=settings.episodes,
                seed=seed + SEED_OFFSET + index * settings.episodes,
                gamma=report.gamma,
                limits=Limits(settings.max_episode_steps or MAX_STEPS, settings.max_episode_seconds),
                should_stop=should_stop,
                on_episode=note,
                set_episodes=partial(set_episodes, policy),
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


def evaluate_run(run: RunContext, channel: Channel, module: ModuleType, args: Any, request: Mapping[str, Any]) -> None:
    """Evaluate in the training process of a policy_eval run; `request` as `modes.launcher_options` writes it."""
    chosen = dict(request)
    source, summary_file = chosen.pop("policy"), Path(chosen.pop("summary"))
    settings = EvaluationSettings(**chosen)
    with stopped_by_signals(run):
        trained, env_kwargs = load_policy(source, run.algo, args, channel, purpose="evaluation")
        facts = {"env_id": args.env_id, "algo": run.algo, "policy": source or RANDOM, "seed": args.seed}
        used = {"env_id": args.env_id, "env_kwargs": env_kwargs, "seed": args.seed, **asdict(settings)}
        used["gamma"] = trained.args.get("gamma") if settings.gamma is None and trained else settings.gamma
        run.begin(0, settings.episodes * settings.repeat, args, used)
        facts |= trained.facts if trained is not None else {}

        returns: list[float] = []

        def note_episode(count: int, episode: Episode) -> None:
            values = {"episode_return": episode.episode_return, "episode_length": float(episode.length)}
            values["discounted_return"] = episode.discounted_return
            run.writer.add_scalars({f"eval/{name}": value for name, value in values.items()}, count)
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
                channel.send("video", {"path": str(video.relative_to(run.folder.root))})

        def policy_for(env: gym.Env[Any, Any]) -> Policy:
            return trained.for_env(module, args.env_id, env) if trained else RandomActions(env.action_space)

        report = run_batched_evaluation(
            policy_for,
            args.env_id,
            settings,
            seed=args.seed,
            gamma=trained.args.get("gamma") if trained else None,
            env_kwargs=env_kwargs,
            pipeline=run.pipeline,
            videos=run.folder.videos if settings.capture_video else None,
            should_stop=run.stop_requested,
            on_episode=note_episode,
            on_batch=note_batch,
        )
        run.end({"evaluation": report.for_manifest()} if report.batches else {})
