"""Makes the tables in ../../coverage.md and the page learning.md; what they say comes from files that runs left.

    python docs/workers/cleanrl/make_matrix.py RESULT.json …    adds learning results to learning.json, writes both anew
    python docs/workers/cleanrl/make_matrix.py --random ENV …   measures a random policy, for expected_returns.json

Without arguments both pages are written from learning.json, coverage.json (see make_coverage.py),
expected_returns.json and the returns that others published, which `mosaic bench` has. Learning results come from
`python -m cleanrl_worker.tools.learning_results`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, NON_LEARNING
from cleanrl_worker.tools.learning_results import EPISODES
from gym_gui.services.analytics.published import published_return

HERE = Path(__file__).resolve().parent
RAN, LEARNED, EXPECTED = HERE / "coverage.json", HERE / "learning.json", HERE / "expected_returns.json"
PAGE, MATRIX = HERE / "learning.md", HERE.parents[1] / "coverage.md"
BEGIN, END = "<!-- made by workers/cleanrl/make_matrix.py -->", "<!-- until here -->"

Result = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--random"]:
        expected = json.loads(EXPECTED.read_text())
        expected["random"] |= {env_id: random_return(env_id) for env_id in arguments[1:]}
        _write_json(EXPECTED, {**expected, "random": dict(sorted(expected["random"].items()))})
    elif arguments:
        texts = {path: Path(path).read_text() for path in arguments}
        for path in (path for path, text in texts.items() if not text.strip()):
            sys.stderr.write(f"{path} is empty: its training has not ended, or failed\n")
        added = [json.loads(text) for text in texts.values() if text.strip()]
        known = {_key(result): result for result in [*json.loads(LEARNED.read_text()), *added]}
        _write_json(LEARNED, [known[key] for key in sorted(known)])
    learned, expected = json.loads(LEARNED.read_text()), json.loads(EXPECTED.read_text())
    PAGE.write_text(render_page(learned, expected))
    MATRIX.write_text(with_matrix(MATRIX.read_text(), render_matrix(learned, json.loads(RAN.read_text()), expected)))


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def _key(result: Result) -> tuple[Any, ...]:
    """A training done again replaces the earlier one; other flags are another training."""
    return (*_group(result), result["seed"])


def _group(result: Result) -> tuple[Any, ...]:
    flags = {k: v for k, v in result["flags"].items() if k not in MEASURING_ONLY}
    return result["algo"], result["env_id"], result["total_timesteps"], json.dumps(flags, sort_keys=True)


MEASURING_ONLY = frozenset({*NON_LEARNING, "cuda", "cudagraphs"})
"""Flags that do not change what is learned; on a GPU at most the rounding"""


# ---------------------------------------------------------------- thresholds


def least_return(result: Result, expected: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return what this training is to reach, and where that comes from; None when nothing can be said."""
    for entry in expected["asked"]:
        named = entry.get("env_kwargs") in (None, result["flags"].get("env_kwargs"))
        if named and result["algo"] in entry["algos"] and result["env_id"] == entry["env_id"]:
            return entry["at_least"], f"target {entry['at_least']:g}"
    published = published_return(result["algo"], result["env_id"])
    taken = result["total_timesteps"] if not was_stopped(result) else result["steps"]
    if published is None or taken < published.steps:
        return None
    elsewhere = f" for {published.env_id}" if published.env_id != result["env_id"] else ""
    least = published.least(expected["random"].get(result["env_id"]))
    return least, f"published {published.mean:g} ± {published.std:g}{elsewhere}"


def was_stopped(result: Result) -> bool:
    """Before its end; the last batch does not count, which may not have fitted in."""
    return bool(result["steps"] < 0.95 * result["total_timesteps"])


def random_return(env_id: str, episodes: int = 1000) -> float:
    """Mean return of actions drawn at random."""
    import gymnasium as gym

    env = gym.make(env_id)
    env.action_space.seed(1)
    total = 0.0
    for index in range(episodes):
        env.reset(seed=index)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
            over = terminated or truncated
    env.close()
    return round(total / episodes, 2)


# ---------------------------------------------------------------- the page of all trainings

INTRODUCTION = """# Learning results

Generated by `make_matrix.py` from `learning.json`, which contains every reported training. A return is the mean over
the last 100 training episodes of one seed, with unclipped rewards. The threshold is the return that CleanRL published
for the same number of steps minus two of its standard deviations (or minus 5 % of its distance to a random policy, if
that is more), or a target that was set for the environment; a training that was shorter than the published one is not
compared. If a training had no more than 100 episodes in total, their mean would include the untrained policy, so the
evaluation after training is compared instead.
"""


def render_page(learned: Sequence[Result], expected: Mapping[str, Any]) -> str:
    if not learned:
        return f"{INTRODUCTION}\nNo training was reported yet.\n"
    columns = (
        "algorithm",
        "environment",
        "steps",
        "other flags",
        "return (seed)",
        "threshold",
        "seeds that reached it",
        "evaluation",
        "CPU seconds",
        "load",
        "versions",
        "date",
    )
    lines = [INTRODUCTION, _line(columns), "|" + " --- |" * len(columns)]
    for key, results in groups(learned):
        lines.append(_line(_cells(key, results, expected)))
    machines = dict.fromkeys(result["machine"] for result in learned)
    return "\n".join([*lines, "", f"Machines: {'; '.join(machines)}.", ""])


def groups(learned: Iterable[Result]) -> list[tuple[tuple[Any, ...], list[Result]]]:
    """Return the seeds of one training together."""
    ordered = sorted(learned, key=_key)
    return [(key, list(results)) for key, results in groupby(ordered, key=_group)]


def _cells(key: tuple[Any, ...], results: Sequence[Result], expected: Mapping[str, Any]) -> tuple[str, ...]:
    algo, env_id, total, flags = key
    least = least_return(results[0], expected)
    returns = ", ".join(f"{_number(result['mean_last_100'])} ({result['seed']})" for result in results)
    judged = [r["evaluation"] for r in results if r["evaluation"]]
    shown = ("torch", "gymnasium", "ale-py", "mujoco", "minigrid", "envpool", "procgen", "pettingzoo", "box2d")
    versions = {f"{name} {r['versions'][name]}" for r in results for name in shown if name in r["versions"]}
    named = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sorted(json.loads(flags).items()))
    return (
        f"`{algo}`",
        env_id,
        _steps(total, results),
        f"`{named}`" if named else "none",
        returns,
        f"{_number(least[0])} ({least[1]})" if least else "–",
        f"{_reached(results, least[0])} of {len(results)}{_by_evaluation(results)}" if least else "–",
        ", ".join(f"{_number(e['mean'])} ± {_number(e['std'])}" for e in judged) or "–",
        ", ".join(_seconds(result["cpu_seconds"]) for result in results),
        ", ".join(" to ".join(map(str, r["load"])) for r in results if r["load"]) or "–",
        ", ".join(sorted(versions)),
        ", ".join(sorted({result["date"] for result in results})),
    )


def _reached(results: Sequence[Result], least: float) -> int:
    return sum((got := _attained(result)) is not None and got >= least for result in results)


def _attained(result: Result) -> float | None:
    """Return what is compared; see the introduction."""
    return float(result["evaluation"]["mean"]) if _is_by_evaluation(result) else result["mean_last_100"]


def _is_by_evaluation(result: Result) -> bool:
    return bool(result["episodes"] <= EPISODES and result["evaluation"])


def _by_evaluation(results: Sequence[Result]) -> str:
    return " (evaluation)" if any(map(_is_by_evaluation, results)) else ""


def _steps(total: int, results: Sequence[Result]) -> str:
    stopped = sorted({result["steps"] for result in results if was_stopped(result)})
    return f"{total:,}" + (f" (stopped at {', '.join(f'{steps:,}' for steps in stopped)})" if stopped else "")


def _number(value: float | None) -> str:
    return "no episode ended" if value is None else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---------------------------------------------------------------- the tables of coverage.md


def render_matrix(learned: Sequence[Result], ran: Sequence[Result], expected: Mapping[str, Any]) -> str:
    """One row per training that was reported, then one row per algorithm with the environments it only ran in."""
    here = [entry.name for entry in DEFAULT_ALGO_REGISTRY.values() if entry.module]
    columns = (
        "algorithm",
        "environment",
        "verdict",
        "mean return",
        "range",
        "measured in",
        "threshold",
        "seeds",
        "steps",
    )
    lines = [_line(columns), "|" + " --- |" * len(columns)]
    for algo in here:
        for (_, env_id, total, flags), results in groups(result for result in learned if result["algo"] == algo):
            made = " ".join([env_id, *filter(None, [json.loads(flags).get("env_kwargs")])])
            lines.append(_line((f"`{algo}`", made, *_verdict_cells(results, expected), _steps(total, results))))
    lines += ["", "These completed a short training through the daemon; their returns were not compared:", ""]
    lines += [_line(("algorithm", "environments")), "| --- | --- |"]
    compared = {(result["algo"], result["env_id"]) for result in learned}
    tried = {(r["algo"], r["env_id"]) for r in ran if r["source"] == "mosaic" and r["outcome"] == "completed"}
    for algo in here:
        only_ran = sorted(env_id for name, env_id in tried - compared if name == algo)
        lines.append(_line((f"`{algo}`", ", ".join(only_ran) or "–")))
    missing = [f"`{entry.name}`" for entry in DEFAULT_ALGO_REGISTRY.values() if not entry.module]
    if missing:
        lines += ["", f"Not implemented yet: {', '.join(missing)}."]
    return "\n".join(lines)


def _verdict_cells(results: Sequence[Result], expected: Mapping[str, Any]) -> tuple[str, ...]:
    """verdict, mean, range, what was measured, threshold, seeds"""
    returns = [got for result in results if (got := _attained(result)) is not None]
    mean = fmean(returns) if returns else None
    # One seed that was stopped early makes the mean one of unequal trainings: nothing is claimed of it.
    known = [least_return(result, expected) for result in results]
    least = known[0] if None not in known else None
    verdict = "not shown" if least is None or mean is None else "learned" if mean >= least[0] else "below"
    kinds = {_is_by_evaluation(result) for result in results}
    names = {True: "evaluation after training", False: f"last {EPISODES} training episodes"}
    measured = ", ".join(names[kind] for kind in sorted(kinds))
    seeds = f"{len(results)}"
    if least is not None and (reached := _reached(results, least[0])) < len(results):
        seeds += f", {reached} reached it"
    spread = f"{_number(min(returns))} to {_number(max(returns))}" if len(returns) > 1 else "–"
    to_reach = f"{_number(least[0])} ({least[1]})" if least else "no reference"
    return verdict, _number(mean), spread, measured, to_reach, seeds


def with_matrix(page: str, matrix: str) -> str:
    """Return the page with the tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{MATRIX} lacks the marks {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{matrix}\n\n{END}{after}"


if __name__ == "__main__":
    main(sys.argv[1:])
