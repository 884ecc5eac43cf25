"""Makes the matrix in ../../coverage.md and the page learning.md; what they say comes from files that runs left.

    python docs/workers/cleanrl/make_matrix.py RESULT.json …    adds learning results to learning.json, writes both anew
    python docs/workers/cleanrl/make_matrix.py --random ENV …   measures a random policy, for expected_returns.json

Without arguments both pages are written from learning.json, coverage.json (see make_coverage.py),
expected_returns.json and the returns that others published, which `mosaic bench` has. Learning results come from
`python -m cleanrl_worker.tools.learning_results`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, AlgorithmEntry
from cleanrl_worker.requirement_sets import sets_of_environment
from cleanrl_worker.tools.learning_results import EPISODES
from gym_gui.services.analytics.published import published_return

HERE = Path(__file__).resolve().parent
RAN, LEARNED, EXPECTED = HERE / "coverage.json", HERE / "learning.json", HERE / "expected_returns.json"
PAGE, MATRIX = HERE / "learning.md", HERE.parents[1] / "coverage.md"
BEGIN, END = "<!-- made by workers/cleanrl/make_matrix.py -->", "<!-- until here -->"

CLASSIC = ("CartPole", "Acrobot", "MountainCar", "MountainCarContinuous", "Pendulum")
TEXTS = ("FrozenLake", "FrozenLake8x8", "Taxi", "CliffWalking", "CliffWalkingSlippery", "Blackjack")
FAMILIES = {
    "classic": "classic control", "text": "toy text", "box2d": "Box2D", "minigrid": "MiniGrid, BabyAI",
    "mujoco": "MuJoCo", "atari": "Atari", "envpool": "Atari on EnvPool", "procgen": "Procgen",
    "pettingzoo": "PettingZoo Atari",
}  # fmt: skip
OWN_ENVIRONMENTS = ("atari", "envpool", "procgen", "pettingzoo")
"""Sets of algorithms that play these environments and no others"""
NOT_TRIED = "not tried"

Result = Mapping[str, Any]


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--random"]:
        expected = json.loads(EXPECTED.read_text())
        expected["random"] |= {env_id: random_return(env_id) for env_id in words[1:]}
        _write_json(EXPECTED, {**expected, "random": dict(sorted(expected["random"].items()))})
    elif words:
        texts = {word: Path(word).read_text() for word in words}
        for word in (word for word, text in texts.items() if not text.strip()):
            sys.stderr.write(f"{word} is empty: its training has not ended, or failed\n")
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


MEASURING_ONLY = frozenset({"eval_episodes", "eval_freq", "checkpoint_freq", "exp_name", "cuda", "cudagraphs"})
"""Flags that do not change what is learned"""


# ---------------------------------------------------------------- what is to be reached


def family_of(env_id: str, entry: AlgorithmEntry | None) -> str:
    """The column of an environment; an algorithm on EnvPool takes its Pong-v5 from there."""
    if entry is not None and (own := [name for name in entry.requirement_sets if name in OWN_ENVIRONMENTS]):
        return own[0]
    stem = re.sub(r"-v\d+$", "", env_id)
    if stem in CLASSIC:
        return "classic"
    if stem in TEXTS:
        return "text"
    return next(iter(sets_of_environment(env_id)), "other")


def families_for(entry: AlgorithmEntry) -> tuple[str, ...]:
    """What an algorithm can be used on at all."""
    own = [name for name in entry.requirement_sets if name in OWN_ENVIRONMENTS]
    if own:
        return tuple(own[:1])
    discrete, image = "discrete" in entry.action_spaces, "image" in entry.observation_spaces
    fitting = ["classic", "box2d"]
    fitting += ["text"] if discrete else ["mujoco"]
    return (*fitting, *(["minigrid"] if image else []))


def least_return(result: Result, expected: Mapping[str, Any]) -> tuple[float, str] | None:
    """What this training is to reach, and where that comes from; None when nothing can be said."""
    for wish in expected["asked"]:
        if result["algo"] in wish["algos"] and result["env_id"] == wish["env_id"]:
            return wish["at_least"], f"asked for {wish['at_least']:g}"
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

INTRODUCTION = """# What was learned

Made by `make_matrix.py` from `learning.json`: every training that was reported, none left out. A return is the mean
over the last 100 training episodes of one seed, as the environment pays, unclipped. To reach: the return that CleanRL
published for the same steps less two of its standard deviations (or 5 % of the way from a random policy, where that is
more), or what was asked for; where a training was shorter than the published one nothing is compared. Where no more
than 100 episodes were played in all, that mean would reach back to the untrained policy: there the evaluation after
training is what is compared.
"""


def render_page(learned: Sequence[Result], expected: Mapping[str, Any]) -> str:
    if not learned:
        return f"{INTRODUCTION}\nNothing was reported yet.\n"
    columns = ("algorithm", "environment", "steps", "other flags", "return (seed)", "to reach", "reached", "evaluation",
               "CPU seconds", "load", "versions", "when")  # fmt: skip
    lines = [INTRODUCTION, _line(columns), "|" + " --- |" * len(columns)]
    for key, results in groups(learned):
        lines.append(_line(_cells(key, results, expected)))
    machines = dict.fromkeys(result["machine"] for result in learned)
    return "\n".join([*lines, "", f"Machines: {'; '.join(machines)}.", ""])


def groups(learned: Iterable[Result]) -> list[tuple[tuple[Any, ...], list[Result]]]:
    """The seeds of one training together."""
    ordered = sorted(learned, key=_key)
    return [(key, list(results)) for key, results in groupby(ordered, key=_group)]


def _cells(key: tuple[Any, ...], results: Sequence[Result], expected: Mapping[str, Any]) -> tuple[str, ...]:
    algo, env_id, total, flags = key
    least = least_return(results[0], expected)
    returns = ", ".join(f"{_number(result['mean_last_100'])} ({result['seed']})" for result in results)
    judged = [r["evaluation"] for r in results if r["evaluation"]]
    shown = ("torch", "gymnasium", "ale-py", "mujoco", "minigrid", "envpool", "procgen", "pettingzoo")
    versions = {f"{name} {r['versions'][name]}" for r in results for name in shown if name in r["versions"]}
    named = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sorted(json.loads(flags).items()))
    return (
        f"`{algo}`", env_id, _steps(total, results), f"`{named}`" if named else "none", returns,
        f"{_number(least[0])} ({least[1]})" if least else "–",
        f"{_reached(results, least[0])} of {len(results)}" if least else "–",
        ", ".join(f"{_number(e['mean'])} ± {_number(e['std'])}" for e in judged) or "–",
        ", ".join(_seconds(result["cpu_seconds"]) for result in results),
        ", ".join(" to ".join(map(str, r["load"])) for r in results if r["load"]) or "–",
        ", ".join(sorted(versions)), ", ".join(sorted({result["date"] for result in results})),
    )  # fmt: skip


def _reached(results: Sequence[Result], least: float) -> int:
    return sum((got := _attained(result)) is not None and got >= least for result in results)


def _attained(result: Result) -> float | None:
    """What is compared; see the introduction."""
    if result["episodes"] <= EPISODES and result["evaluation"]:
        return float(result["evaluation"]["mean"])
    return result["mean_last_100"]


def _steps(total: int, results: Sequence[Result]) -> str:
    stopped = sorted({result["steps"] for result in results if was_stopped(result)})
    return f"{total:,}" + (f" (stopped at {', '.join(f'{steps:,}' for steps in stopped)})" if stopped else "")


def _number(value: float | None) -> str:
    return "no episode ended" if value is None else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---------------------------------------------------------------- the matrix


def render_matrix(learned: Sequence[Result], ran: Sequence[Result], expected: Mapping[str, Any]) -> str:
    """One row per algorithm, one column per family of environments."""
    tried = [report for report in ran if report["source"] == "mosaic" and report["outcome"] == "completed"]
    lines = [_line(("algorithm", *FAMILIES.values())), "|" + " --- |" * (len(FAMILIES) + 1)]
    for entry in DEFAULT_ALGO_REGISTRY.values():
        if entry.module:
            cells = [_cell(entry, family, learned, tried, expected) for family in FAMILIES]
            lines.append(_line((f"`{entry.name}`", *cells)))
    missing = [f"`{entry.name}`" for entry in DEFAULT_ALGO_REGISTRY.values() if not entry.module]
    if missing:
        lines += ["", f"Not here yet: {', '.join(missing)}."]
    return "\n".join(lines)


def _cell(
    entry: AlgorithmEntry, family: str, learned: Sequence[Result], ran: Sequence[Result], expected: Mapping[str, Any]
) -> str:
    mine = [result for result in learned if result["algo"] == entry.name and _in(result, family, entry)]
    parts = []
    for (_, env_id, total, _), results in groups(mine):
        least = least_return(results[0], expected)
        verdict = f"; reached by {_reached(results, least[0])} of {len(results)}" if least else "; no comparison"
        returns = ", ".join(_number(_attained(result)) for result in results)
        seeds = ", ".join(str(result["seed"]) for result in results)
        taken = min(total, *(result["steps"] for result in results)) if any(map(was_stopped, results)) else total
        parts.append(f"learned: {env_id} {returns} at {_short(taken)} steps (seeds {seeds}{verdict})")
    done = sorted({r["env_id"] for r in ran if r["algo"] == entry.name and _in(r, family, entry)})
    only_ran = [env_id for env_id in done if env_id not in {result["env_id"] for result in mine}]
    if only_ran:
        parts.append(f"ran, not validated: {', '.join(only_ran)}")
    return "<br>".join(parts) or (NOT_TRIED if family in families_for(entry) else "–")


def _in(result: Result, family: str, entry: AlgorithmEntry) -> bool:
    return family_of(result["env_id"], entry) == family


def _short(steps: int) -> str:
    if steps % 1_000_000 == 0:
        return f"{steps // 1_000_000}M"
    return f"{steps // 1000}k" if steps % 1000 == 0 else f"{steps:,}"


def with_matrix(page: str, matrix: str) -> str:
    """The page with the matrix between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{MATRIX} lacks the marks {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{matrix}\n\n{END}{after}"


if __name__ == "__main__":
    main(sys.argv[1:])
