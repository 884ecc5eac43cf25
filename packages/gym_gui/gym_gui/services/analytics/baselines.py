"""Returns of a random policy in an environment, measured once by the daemon and stored as an archived run.

The run is the cache: it is found again by its tag, its environment and what that was made with. It is an evaluation
like any other, so a daemon on another machine measures it there, with the requirement sets it has, and the returns are
those of whole episodes, unclipped, as a training's curve shows them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic_wire.errors import SpecError
from mosaic_wire.run_status import RunOutcome, RunStatus
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.services.analytics.configurations import environment_kwargs_of, environment_of
from gym_gui.services.analytics.curves import load_curves
from gym_gui.services.analytics.statistics import Interval, bootstrap_interval
from gym_gui.services.run_configs import evaluation_config
from gym_gui.services.trainer.errors import InvalidConfig, RunNotFound, UnknownWorker
from gym_gui.wording.run_view import algo_of, extras_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

BASELINE_TAG = "baseline"
EPISODES = 100
_CURVE = "eval/episode_return"
_WORKER = "cleanrl"
_LONGEST_MINUTES = 20

OnProgress = Callable[[str], object]
"""Called with one line on the progress of a measurement"""
_NO_ENVIRONMENT = ("custom", "none")
"""The environment id of a script that names none"""


@dataclass(frozen=True)
class Baseline:
    """Returns of a random policy."""

    env_id: str
    mean: float
    std: float
    episodes: int
    run_id: str
    """The run that measured it"""
    interval: Interval | None
    """95 % bootstrap interval of the mean"""
    returns: tuple[float, ...]


def baselines_for(
    client: TrainerClient, runs: Sequence[pb.Run], *, measure: bool = True, on_progress: OnProgress = lambda line: None
) -> dict[str, Baseline | None]:
    """Return the baseline of every environment of these runs, by `configurations.environment_of`."""
    found: dict[str, Baseline | None] = {}
    for run in runs:
        if run.env_id and (key := environment_of(run)) not in found:
            if run.env_id in _NO_ENVIRONMENT and algo_of(run) != run.algo:
                found[key] = None
                if measure:
                    on_progress(
                        f"no baseline: {algo_of(run)} was run without naming its environment (mosaic train FILE ENV)"
                    )
                continue
            algo = run.algo if run.worker_type == _WORKER else ""
            kwargs = environment_kwargs_of(run)
            found[key] = baseline_of(
                client, run.env_id, measure=measure, kwargs=kwargs, algo=algo, on_progress=on_progress
            )
    return found


def baseline_of(
    client: TrainerClient,
    env_id: str,
    *,
    measure: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    algo: str = "",
    episodes: int = EPISODES,
    on_progress: OnProgress = lambda line: None,
) -> Baseline | None:
    """Return the baseline of an environment; measure and store it if there is none, unless `measure` is False.

    None when it cannot be measured: the environment is unknown here or does not run; `on_progress` gets the reason.
    `kwargs` is what the environment is made with, `algo` an algorithm that was trained in it.
    """
    under_way = None
    for run in _kept(client, env_id, dict(kwargs or {})):
        if run.outcome == RunOutcome.COMPLETED and (baseline := _read(client, run)) is not None:
            if not run.archived:  # its client exited before it was done
                client.archive(run.run_id)
            return baseline
        if run.status != RunStatus.TERM:
            under_way = run
    if not measure:
        return None
    if under_way is not None:
        return _finished(client, under_way, on_progress)
    return _measure(client, env_id, dict(kwargs or {}), algo, episodes, on_progress)


def is_baseline(run: pb.Run) -> bool:
    """Return whether this run is a baseline measurement; users may tag their own runs `baseline`, too."""
    return BASELINE_TAG in run.tags and extras_of(run).get("eval_policy") == "random"


def _kept(client: TrainerClient, env_id: str, kwargs: dict[str, Any]) -> Iterator[pb.Run]:
    for run in client.list(tags=[BASELINE_TAG], text=env_id, include_archived=True).runs:
        if run.env_id == env_id and is_baseline(run) and environment_kwargs_of(run) == kwargs:
            yield run


def _measure(
    client: TrainerClient, env_id: str, kwargs: dict[str, Any], algo: str, episodes: int, on_progress: OnProgress
) -> Baseline | None:
    spec = _worker(client)
    if spec is None:
        on_progress(f"{env_id}: no baseline, the worker {_WORKER!r} is not installed")
        return None
    config = evaluation_config(
        worker_type=spec.name,
        module=spec.module,
        algo=_algorithm(spec, algo, env_id),
        env_id=env_id,
        checkpoint=None,
        episodes=episodes,
        name=f"random policy in {env_id}"[:120],
        tags=[BASELINE_TAG],
        settings={"env_kwargs": kwargs or None},
    )
    # It takes a minute at most and a client waits for it, so it must not queue behind trainings.
    config["resources"] = {"cpus": {"requested": 0}, "max_wallclock_minutes": _LONGEST_MINUTES}
    try:
        run = client.submit(config, idempotency_key=secrets.token_hex(16)).run
    except (InvalidConfig, UnknownWorker) as error:
        on_progress(f"{env_id}: no baseline, {_in_one_line(str(error))}")
        return None
    return _finished(client, run, on_progress)


def _algorithm(spec: WorkerSpec, trained: str, env_id: str) -> str:
    """Return the algorithm whose environment construction is used: of the runs, else one for the family."""
    known = spec.algorithm(trained)
    if known is not None and "policy_eval" in known.modes and not known.unavailable:
        return trained
    return "ppo_atari" if env_id.startswith("ALE/") or "NoFrameskip" in env_id else "ppo"


def _finished(client: TrainerClient, run: pb.Run, on_progress: OnProgress) -> Baseline | None:
    """Wait for a measurement and return its baseline; a failed one is deleted."""
    with client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
        for update in updates:
            run = update.run
            if run.status == RunStatus.TERM:
                break
            on_progress(f"measuring a random policy in {run.env_id}: {_progress(run)}")
    if run.outcome == RunOutcome.COMPLETED and (baseline := _read(client, run)) is not None:
        client.archive(run.run_id)
        return baseline
    on_progress(f"{run.env_id}: no baseline, {_in_one_line(run.reason) or 'the measurement did not end well'}")
    if run.outcome == RunOutcome.FAILED:
        client.delete(run.run_id)
    return None


def _progress(run: pb.Run) -> str:
    if run.status == RunStatus.INIT:
        return run.queue_reason or "queued"
    return f"{run.step} of {run.total} episodes" if run.step else "starting"


def _read(client: TrainerClient, run: pb.Run) -> Baseline | None:
    try:
        curve = load_curves(client, [run], _CURVE, max_points=None)[run.run_id].get(_CURVE)
    except RunNotFound:
        return None  # deleted meanwhile
    if curve is None or len(curve) < 2:
        return None
    values = curve.values
    mean, std, returns = float(values.mean()), float(values.std(ddof=1)), tuple(values.tolist())
    return Baseline(run.env_id, mean, std, len(values), run.run_id, bootstrap_interval(values), returns)


def _worker(client: TrainerClient) -> WorkerSpec | None:
    for entry in client.workers(name=_WORKER):
        try:
            return WorkerSpec.from_json(json.loads(entry.spec_json)) if entry.spec_json else None
        except (SpecError, ValueError):
            return None
    return None


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:300]
