"""What a policy that acts at random reaches in an environment: measured once by the daemon, kept as an archived run.

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
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.services.analytics.comparison import environment_of
from gym_gui.services.analytics.configurations import environment_kwargs_of
from gym_gui.services.analytics.curves import load_curves
from gym_gui.services.analytics.statistics import Interval, bootstrap_interval
from gym_gui.services.run_configs import evaluation_config
from gym_gui.services.trainer.errors import InvalidConfig, RunNotFound, UnknownWorker
from gym_gui.wording.run_view import algo_of, parsed

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

BASELINE_TAG = "baseline"
EPISODES = 100
_CURVE = "eval/episode_return"
_WORKER = "cleanrl"
_LONGEST_MINUTES = 20

Told = Callable[[str], object]
"""Hears how far a measurement is, in one line"""
_NO_ENVIRONMENT = ("custom", "none")
"""What stands for the environment of a script that names none"""


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
    client: TrainerClient, runs: Sequence[pb.Run], *, measure: bool = True, told: Told = lambda line: None
) -> dict[str, Baseline | None]:
    """The baseline of every environment these runs were in, by `comparison.environment_of`."""
    found: dict[str, Baseline | None] = {}
    for run in runs:
        if run.env_id and (key := environment_of(run)) not in found:
            if run.env_id in _NO_ENVIRONMENT and algo_of(run) != run.algo:
                found[key] = None
                if measure:
                    told(f"no baseline: {algo_of(run)} was run without naming its environment (mosaic train FILE ENV)")
                continue
            algo = run.algo if run.worker_type == _WORKER else ""
            kwargs = environment_kwargs_of(run)
            found[key] = baseline_of(client, run.env_id, measure=measure, kwargs=kwargs, algo=algo, told=told)
    return found


def baseline_of(
    client: TrainerClient,
    env_id: str,
    *,
    measure: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    algo: str = "",
    episodes: int = EPISODES,
    told: Told = lambda line: None,
) -> Baseline | None:
    """The baseline of an environment; measured now (and kept) when there is none, unless `measure` is False.

    None when it cannot be measured: the environment is unknown here or does not run; `told` hears why. `kwargs` is what
    the environment is made with, `algo` an algorithm that was trained in it.
    """
    under_way = None
    for run in _kept(client, env_id, dict(kwargs or {})):
        if run.outcome == "completed" and (baseline := _read(client, run)) is not None:
            if not run.archived:  # whoever measured it went away before it was done
                client.archive(run.run_id)
            return baseline
        if run.status != "TERM":
            under_way = run
    if not measure:
        return None
    if under_way is not None:
        return _finished(client, under_way, told)
    return _measure(client, env_id, dict(kwargs or {}), algo, episodes, told)


def is_baseline(run: pb.Run) -> bool:
    """Is this run a measurement of ours? People tag their own runs `baseline`, too."""
    extras = parsed(run.extras_json) if BASELINE_TAG in run.tags else None
    return isinstance(extras, dict) and extras.get("eval_policy") == "random"


def _kept(client: TrainerClient, env_id: str, kwargs: dict[str, Any]) -> Iterator[pb.Run]:
    for run in client.list(tags=[BASELINE_TAG], text=env_id, include_archived=True).runs:
        if run.env_id == env_id and is_baseline(run) and environment_kwargs_of(run) == kwargs:
            yield run


def _measure(
    client: TrainerClient, env_id: str, kwargs: dict[str, Any], algo: str, episodes: int, told: Told
) -> Baseline | None:
    spec = _worker(client)
    if spec is None:
        told(f"{env_id}: no baseline, the worker {_WORKER!r} is not installed")
        return None
    config = evaluation_config(
        worker_type=spec.name, module=spec.module, algo=_algorithm(spec, algo, env_id), env_id=env_id, checkpoint=None,
        episodes=episodes, name=f"random policy in {env_id}"[:120], tags=[BASELINE_TAG],
        settings={"env_kwargs": kwargs or None},
    )  # fmt: skip
    # A minute's work at most, and somebody waits for it: it does not queue behind trainings.
    config["resources"] = {"cpus": {"requested": 0}, "max_wallclock_minutes": _LONGEST_MINUTES}
    try:
        run = client.submit(config, idempotency_key=secrets.token_hex(16)).run
    except (InvalidConfig, UnknownWorker) as error:
        told(f"{env_id}: no baseline, {_in_one_line(str(error))}")
        return None
    return _finished(client, run, told)


def _algorithm(spec: WorkerSpec, trained: str, env_id: str) -> str:
    """Whose way of making environments is taken: that of what was trained in it, else one that fits its family."""
    known = spec.algorithm(trained)
    if known is not None and "policy_eval" in known.modes and not known.unavailable:
        return trained
    return "ppo_atari" if env_id.startswith("ALE/") or "NoFrameskip" in env_id else "ppo"


def _finished(client: TrainerClient, run: pb.Run, told: Told) -> Baseline | None:
    """Wait for a measurement; what failed leaves nothing behind but its reason."""
    with client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
        for update in updates:
            run = update.run
            if run.status == "TERM":
                break
            told(f"measuring a random policy in {run.env_id}: {_progress(run)}")
    if run.outcome == "completed" and (baseline := _read(client, run)) is not None:
        client.archive(run.run_id)
        return baseline
    told(f"{run.env_id}: no baseline, {_in_one_line(run.reason) or 'the measurement did not end well'}")
    if run.outcome == "failed":
        client.delete(run.run_id)
    return None


def _progress(run: pb.Run) -> str:
    if run.status == "INIT":
        return run.queue_reason or "queued"
    return f"{run.step} of {run.total} episodes" if run.step else "starting"


def _read(client: TrainerClient, run: pb.Run) -> Baseline | None:
    try:
        curve = load_curves(client, [run], _CURVE, max_points=None)[run.run_id].get(_CURVE)
    except RunNotFound:
        return None  # deleted in this moment
    if curve is None or len(curve) < 2:
        return None
    values = curve.values
    return Baseline(
        run.env_id, float(values.mean()), float(values.std(ddof=1)), len(values), run.run_id,
        bootstrap_interval(values), tuple(values.tolist()),
    )  # fmt: skip


def _worker(client: TrainerClient) -> WorkerSpec | None:
    for entry in client.workers(name=_WORKER):
        try:
            return WorkerSpec.from_json(json.loads(entry.spec_json)) if entry.spec_json else None
        except (SpecError, ValueError):
            return None
    return None


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:300]
