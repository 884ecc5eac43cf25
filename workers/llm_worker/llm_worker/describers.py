"""Observations as text: what a game is about, what is seen, and the names of its actions.

    game = describe_game(env)
    game.goal · game.text(observation) · game.actions["left"]

There is a describer for each family that people play with language models, and one for any other space. A user's own
is named as `package.module:function` or `/path/to/file.py:function` and called as `function(observation, env) -> str`.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mosaic_wire.errors import ConfigProblems, GivenUp, Problem
from mosaic_wire.interactive import kind_of

MOST_ACTIONS = 256
"""More do not fit into a prompt that names them all"""
_MOST_NUMBERS = 64
"""Numbers of an observation that are written out; larger arrays are averaged over blocks"""
_MOST_CHARACTERS = 6_000

Text = Callable[[Any], str]
Success = Callable[[float, bool, Mapping[str, Any]], bool | None]


def reported_success(reward: float, terminated: bool, info: Mapping[str, Any]) -> bool | None:
    """Return the success that an environment reports with its last step; None when it reports none."""
    reported = info.get("is_success", info.get("success"))
    return None if reported is None else bool(reported)


def rewarded_at_the_end(reward: float, terminated: bool, info: Mapping[str, Any]) -> bool | None:
    """Return whether an episode ended at its goal, in games that give a reward for that alone."""
    return terminated and reward > 0


@dataclass(frozen=True)
class Game:
    """An environment in words."""

    goal: str
    actions: Mapping[str, Any]
    """Name → action"""
    text: Text
    success: Success = reported_success


def describe_game(env: Any, describer: str = "") -> Game:
    """Return an environment in words; `describer` names a user's own function. Raise ConfigProblems."""
    inner = env.unwrapped
    family = _FAMILIES.get(type(inner).__name__)
    if family is None and hasattr(inner, "mission") and kind_of(env.observation_space) == "Dict":
        family = _minigrid
    game = family(env) if family is not None else _any_game(env)
    if describer:
        function = _load(describer)
        game = replace(game, text=lambda observation: _bounded(_called(function, observation, env, describer)))
    return game


# ---------------------------------------------------------------- toy text


def _grid_place(width: int) -> Callable[[int], tuple[int, int]]:
    return lambda observation: divmod(int(observation), width)


def _with_agent(rows: Sequence[str], row: int, column: int) -> str:
    drawn = [list(line) for line in rows]
    drawn[row][column] = "A"
    return "\n".join(" ".join(line) for line in drawn)


def _frozen_lake(env: Any) -> Game:
    inner = env.unwrapped
    rows = ["".join(cell.decode() for cell in line) for line in inner.desc]
    place = _grid_place(len(rows[0]))
    goals = ", ".join(f"row {r}, column {line.index('G')}" for r, line in enumerate(rows) if "G" in line)
    is_slippery = len(inner.P[0][0]) > 1
    slips = " The ice is slippery: you often slide to the side of where you wanted to go." if is_slippery else ""

    def text(observation: Any) -> str:
        row, column = place(observation)
        return f"You (A) are at row {row}, column {column}; the goal is at {goals}.\n{_with_agent(rows, row, column)}"

    return Game(
        "Walk over the frozen lake to the goal (G). F is ice; H is a hole, and stepping into it ends the game without "
        f"a reward. Row 0 is at the top, column 0 at the left.{slips}",
        _numbered(env, ("left", "down", "right", "up")),
        text,
        rewarded_at_the_end,
    )


def _cliff_walking(env: Any) -> Game:
    height, width = env.unwrapped.shape
    rows = ["." * width] * (height - 1) + ["S" + "C" * (width - 2) + "G"]
    place = _grid_place(width)

    def text(observation: Any) -> str:
        row, column = place(observation)
        return f"You (A) are at row {row}, column {column}.\n{_with_agent(rows, row, column)}"

    return Game(
        "Walk from the start (S) to the goal (G) in few steps. C is a cliff: stepping on it costs 100 and puts "
        "you back to the start; every other step costs 1. Row 0 is at the top, column 0 at the left.",
        _numbered(env, ("up", "right", "down", "left")),
        text,
        lambda reward, terminated, info: terminated,
    )


def _taxi(env: Any) -> Game:
    inner = env.unwrapped
    stands = ("Red", "Green", "Yellow", "Blue")
    rows = ["".join(cell.decode() for cell in line) for line in inner.desc]

    def text(observation: Any) -> str:
        row, column, passenger, destination = inner.decode(int(observation))
        where = "in the taxi" if passenger == len(stands) else f"at {stands[passenger]} {inner.locs[passenger]}"
        return (
            f"The taxi is at {(row, column)}. The passenger is {where} and wants to {stands[destination]} "
            f"{inner.locs[destination]}. Places are (row, column)."
        )

    return Game(
        "Drive the taxi to the passenger, pick the passenger up, drive to the destination and drop the passenger off "
        "there. Row 0 is at the top, column 0 at the left. A | between two cells of the map is a wall, a : is open.\n"
        + "\n".join(rows),
        _numbered(env, ("south", "north", "east", "west", "pickup", "dropoff")),
        text,
        rewarded_at_the_end,
    )


def _blackjack(env: Any) -> Game:
    def text(observation: Any) -> str:
        own, dealer, ace = observation
        return f"Your cards sum to {own}{' with a usable ace' if ace else ''}; the dealer shows {dealer}."

    return Game(
        "Play Blackjack: come closer to 21 than the dealer without going over it.",
        _numbered(env, ("stick", "hit")),
        text,
        rewarded_at_the_end,
    )


# ---------------------------------------------------------------- MiniGrid and BabyAI

_DIRECTIONS = ("east", "south", "west", "north")
_SIGNS = {"unseen": "?", "empty": ".", "floor": ".", "wall": "#", "lava": "~", "goal": "G"}


def _minigrid(env: Any) -> Game:
    names = importlib.import_module("minigrid.core.constants")
    states = {number: name for name, number in names.STATE_TO_IDX.items()}

    def title(cell: Any) -> str:
        kind, color = names.IDX_TO_OBJECT[int(cell[0])], names.IDX_TO_COLOR.get(int(cell[1]), "")
        state = f"{states.get(int(cell[2]), '')} " if kind == "door" else ""
        return kind if kind == "lava" else f"{state}{color} {kind}"

    def text(observation: Any) -> str:
        image = observation["image"]
        width, height = image.shape[:2]
        middle, bottom = width // 2, height - 1
        seen, lines = [], []
        for row in range(height):
            signs = []
            for column in range(width):
                cell, is_agent = image[column, row], (column, row) == (middle, bottom)
                kind = names.IDX_TO_OBJECT[int(cell[0])]
                signs.append("^" if is_agent else _SIGNS.get(kind, kind[0].upper()))
                if not is_agent and (kind == "goal" or kind not in _SIGNS or kind == "lava"):
                    seen.append((bottom - row, f"{title(cell)} {_where(bottom - row, column - middle)}"))
            lines.append(" ".join(signs))
        held = image[middle, bottom]
        carried = names.IDX_TO_OBJECT[int(held[0])]
        return (
            f"Mission: {observation['mission']}\n"
            f"You (^) look {_DIRECTIONS[int(observation['direction']) % 4]}, which is up in this view:\n"
            + "\n".join(lines)
            + f"\nYou see: {'; '.join(what for _, what in sorted(seen)) or 'nothing of interest'}."
            f" You carry {'nothing' if carried in ('empty', 'floor', 'unseen') else f'a {title(held)}'}."
        )

    return Game(
        "You walk through rooms of square cells and see only what is in front of you. # is a wall, . is free, ? is not "
        "seen, G is the goal, ~ is lava (deadly); letters are objects. `forward` moves one cell ahead, `left` and "
        "`right` only turn you. `pickup`, `drop` and `toggle` (open a door or box) act on the cell in front of you.",
        _numbered(env, ("left", "right", "forward", "pickup", "drop", "toggle", "done")),
        text,
        rewarded_at_the_end,
    )


def _where(ahead: int, side: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    parts += [f"{abs(side)} to the {'right' if side > 0 else 'left'}"] if side else []
    return " and ".join(parts)


# ---------------------------------------------------------------- classic control


def _control(goal: str, quantities: Sequence[str], actions: Sequence[str] = ()) -> Callable[[Any], Game]:
    def family(env: Any) -> Game:
        def text(observation: Any) -> str:
            return ", ".join(f"{name} {value:.3f}" for name, value in zip(quantities, observation, strict=True))

        return Game(goal, _numbered(env, actions) if actions else _actions_of(env), text)

    return family


_FAMILIES: Mapping[str, Callable[[Any], Game]] = {
    "FrozenLakeEnv": _frozen_lake,
    "CliffWalkingEnv": _cliff_walking,
    "TaxiEnv": _taxi,
    "BlackjackEnv": _blackjack,
    "CartPoleEnv": _control(
        "Balance the pole on the cart: keep its angle below 0.2095 rad and the cart within 2.4 of the middle. Every "
        "step gives 1.",
        ("cart position", "cart velocity", "pole angle (rad, positive to the right)", "pole angular velocity"),
        ("push_left", "push_right"),
    ),
    "MountainCarEnv": _control(
        "Drive the car out of the valley to the flag at position 0.5. The engine is too weak for the hill: swing back "
        "and forth to gain speed. Every step costs 1.",
        ("position (-1.2 to 0.6)", "velocity (-0.07 to 0.07)"),
        ("accelerate_left", "coast", "accelerate_right"),
    ),
    "Continuous_MountainCarEnv": _control(
        "Drive the car out of the valley to the flag at position 0.45, with little force. The engine is too weak for "
        "the hill: swing back and forth to gain speed.",
        ("position (-1.2 to 0.6)", "velocity (-0.07 to 0.07)"),
    ),
    "AcrobotEnv": _control(
        "Swing the lower end of the two-link pendulum above the line, by a torque at the joint between the links. "
        "Every step costs 1.",
        (
            *("cos of angle 1", "sin of angle 1", "cos of angle 2", "sin of angle 2"),
            *("angular velocity 1", "angular velocity 2"),
        ),
        ("torque_minus", "torque_none", "torque_plus"),
    ),
    "PendulumEnv": _control(
        "Swing the pendulum up and hold it upright (cos of the angle 1), with little torque.",
        ("cos of the angle", "sin of the angle", "angular velocity"),
    ),
}


# ---------------------------------------------------------------- any gymnasium space


def _any_game(env: Any) -> Game:
    spec = getattr(env, "spec", None)
    name = spec.id if spec is not None else type(env.unwrapped).__name__
    return Game(
        f"Play {name} and collect as much reward as you can. Observations come as plain values.",
        _actions_of(env),
        lambda observation: _bounded(_value_text(env.observation_space, observation)),
    )


def _numbered(env: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the actions of a Discrete space under these names."""
    start = int(getattr(env.action_space, "start", 0))
    return {name: start + number for number, name in enumerate(names[: int(env.action_space.n)])}


def _actions_of(env: Any) -> dict[str, Any]:
    """Return the actions of any space by name; raise ConfigProblems for one that has too many."""
    space, kind = env.action_space, kind_of(env.action_space)
    if kind == "Discrete" and int(space.n) <= MOST_ACTIONS:
        meanings = getattr(env.unwrapped, "get_action_meanings", None)
        names = [str(name).lower() for name in meanings()] if meanings is not None else []
        if len(set(names)) != int(space.n):
            names = [f"action_{number}" for number in range(int(space.n))]
        return _numbered(env, names)
    choices = _choices_of(space, kind)
    count = math.prod(len(each) for each in choices)
    if not choices or count > MOST_ACTIONS:
        message = (
            f"its actions ({space}) cannot be offered as a list of at most {MOST_ACTIONS}; choose another environment"
        )
        raise ConfigProblems("the worker config", [Problem("env_id", message)])
    import numpy as np

    shape, dtype = getattr(space, "shape", (len(choices),)), getattr(space, "dtype", None)
    return {
        " ".join(name for name, _ in combination): np.array([value for _, value in combination], dtype).reshape(shape)
        for combination in itertools.product(*choices)
    }


def _choices_of(space: Any, kind: str) -> list[list[tuple[str, Any]]]:
    """Return for each component its named values: a continuous one is offered in five."""
    if kind == "MultiDiscrete":
        starts_and_counts = zip(space.start.flatten().tolist(), space.nvec.flatten().tolist(), strict=True)
        # One more than can be offered is enough to refuse it.
        return [
            [(str(value), value) for value in range(start, start + min(count, MOST_ACTIONS + 1))]
            for start, count in starts_and_counts
        ]
    if kind == "MultiBinary":
        return [[("off", 0), ("on", 1)] for _ in range(math.prod(space.shape))]
    if kind != "Box" or math.prod(space.shape) > 3:
        return []
    choices = []
    for low, high in zip(space.low.flatten(), space.high.flatten(), strict=True):
        low, high = max(float(low), -1e6), min(float(high), 1e6)
        values = [low + (high - low) * part / 4 for part in range(5)]
        is_coarse = len({f"{value:+.2f}" for value in values}) == len(values)
        choices.append([(f"{value:+.2f}" if is_coarse else f"{value:+.3g}", value) for value in values])
    return choices


def _value_text(space: Any, value: Any) -> str:
    kind = kind_of(space)
    if kind == "Dict":
        return "\n".join(f"{key}: {_value_text(part, value[key])}" for key, part in space.spaces.items())
    if kind == "Tuple":
        return "; ".join(_value_text(part, each) for part, each in zip(space.spaces, value, strict=True))
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        return _array_text(value)
    return str(value)


def _array_text(value: Any) -> str:
    import numpy as np

    array = np.asarray(value, dtype=float)
    note = ""
    if array.size > _MOST_NUMBERS:
        note = f"array of shape {array.shape}, averaged: "
        if array.ndim == 3:  # an image: its brightness
            array = array.mean(axis=2)
        array = array.reshape(array.shape[0], -1)
        blocks = [np.array_split(row_block, min(8, array.shape[1]), axis=1) for row_block in np.array_split(array, 8)]
        array = np.array([[block.mean() for block in row] for row in blocks])
    if array.ndim == 2:
        return note + "\n" + "\n".join(" ".join(f"{number:g}" for number in row) for row in array.round(3))
    return note + ", ".join(f"{number:g}" for number in array.flatten().round(4))


def _bounded(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


# ---------------------------------------------------------------- a user's own describer


def _load(name: str) -> Callable[[Any, Any], object]:
    """Return the function of `module:function` or `/path/to/file.py:function`; raise ConfigProblems."""
    where, _, attribute = name.rpartition(":")
    is_file = where.endswith(".py")
    if not where or not attribute:
        raise _refused(name, "write package.module:function or /path/to/file.py:function")
    if is_file and not Path(where).is_absolute():
        raise _refused(name, "the path of a file must be absolute, because a run has a folder of its own")
    if is_file and not Path(where).is_file():
        raise _refused(name, f"there is no file {where}")
    try:
        if is_file:
            spec = importlib.util.spec_from_file_location("mosaic_user_describer", where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        function = getattr(module, attribute)
    except (Exception, SystemExit) as error:  # the boundary to the user's code
        raise _refused(name, f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise _refused(name, f"{attribute} is no function")
    return function  # type: ignore[no-any-return]  # as far as can be known


def _called(function: Callable[[Any, Any], object], observation: Any, env: Any, name: str) -> str:
    try:
        text = function(observation, env)
    except (Exception, SystemExit) as error:  # the boundary to the user's code
        raise _failed(name, error) from error
    if not isinstance(text, str):
        raise GivenUp(f"the describer {name} must return a text, not {type(text).__name__}")
    return text


def _failed(name: str, error: BaseException) -> GivenUp:
    """Return what went wrong in the user's function, with the line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return GivenUp(f"the describer {name} failed: {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")


def _refused(name: str, message: str) -> ConfigProblems:
    return ConfigProblems("the worker config", [Problem("describer", f"{name}: {message}")])
