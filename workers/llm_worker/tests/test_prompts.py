"""What a model is told: games in words, and the messages of a conversation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from llm_worker.answers import Constraint
from llm_worker.describers import Game, describe_game
from llm_worker.prompt import Turn, estimated_tokens, instructions, messages, plan_request
from mosaic_extras.env_construction import make_env, read_env_kwargs
from mosaic_extras.testing import importing
from mosaic_wire.errors import ConfigProblems, GivenUp


def game_of(env_id: str, **kwargs: Any) -> tuple[Any, Game, str]:
    """Return an environment, the game in words, and its first observation as text."""
    env = make_env(env_id, kwargs)
    observation, _ = env.reset(seed=0)
    game = describe_game(env)
    return env, game, game.text(observation)


def test_the_frozen_lake_is_a_map_with_the_player_on_it() -> None:
    _, game, text = game_of("FrozenLake-v1", is_slippery=False)
    assert list(game.actions) == ["left", "down", "right", "up"]
    assert text == "You (A) are at row 0, column 0; the goal is at row 3, column 3.\nA F F F\nF H F H\nF F F H\nH F F G"
    assert "slippery" not in game.goal
    assert "slippery" in game_of("FrozenLake-v1")[1].goal
    assert game.success(1.0, True, {}) is True
    assert game.success(0.0, True, {}) is False


@pytest.mark.parametrize(
    ("env_id", "in_text", "actions"),
    [
        ("Taxi-v4", "The passenger is at", ["south", "north", "east", "west", "pickup", "dropoff"]),
        ("CliffWalking-v1", "row 3, column 0", ["up", "right", "down", "left"]),
        ("Blackjack-v1", "the dealer shows", ["stick", "hit"]),
        ("CartPole-v1", "pole angle (rad, positive to the right) -0.046", ["push_left", "push_right"]),
        ("MountainCar-v0", "position (-1.2 to 0.6) -0.4", ["accelerate_left", "coast", "accelerate_right"]),
        ("Acrobot-v1", "cos of angle 1 ", ["torque_minus", "torque_none", "torque_plus"]),
        ("Pendulum-v1", "angular velocity", ["-2.00", "-1.00", "+0.00", "+1.00", "+2.00"]),
        ("MountainCarContinuous-v0", "velocity", ["-1.00", "-0.50", "+0.00", "+0.50", "+1.00"]),
    ],
)
def test_every_family_has_words_and_every_named_action_can_be_taken(
    env_id: str, in_text: str, actions: list[str]
) -> None:
    env, game, text = game_of(env_id)
    assert in_text in text
    assert list(game.actions) == actions
    for action in game.actions.values():
        assert env.action_space.contains(action)
        env.reset(seed=0)
        observation, *_ = env.step(action)
        assert game.text(observation)
    env.close()


def test_a_grid_world_is_described_from_the_players_view() -> None:
    with importing("minigrid"):
        env, game, text = game_of("MiniGrid-DoorKey-5x5-v0")
        assert text.startswith("Mission: use the key to open the door and then get to the goal\nYou (^) look west")
        assert "yellow key 1 to the right" in text
        assert text.endswith("You carry nothing.")
        env.unwrapped.carrying = next(
            cell for cell in env.unwrapped.grid.grid if cell is not None and cell.type == "key"
        )
        observation = env.unwrapped.gen_obs()
        assert game.text(observation).endswith("You carry a yellow key.")
        assert "done" in game.actions
        env.close()


class Odd(gymnasium.Env[Any, Any]):
    """An environment of no family."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space


SPACES = gymnasium.spaces


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (SPACES.Box(-1, 1, (3,)), "0.1, 0.2, 0.3"),
        (SPACES.Dict({"a": SPACES.Discrete(3), "b": SPACES.MultiBinary(2)}), "a: 2\nb: 0, 1"),
        (SPACES.Tuple((SPACES.Discrete(3), SPACES.Text(5))), "2; hi"),
    ],
)
def test_any_space_can_be_written_out(space: Any, text: str) -> None:
    values: dict[str, Any] = {
        "Box": np.array([0.1, 0.2, 0.3], np.float32),
        "Dict": {"a": 2, "b": np.array([0, 1])},
        "Tuple": (2, "hi"),
    }
    game = describe_game(Odd(space, SPACES.Discrete(2, start=5)))
    assert game.text(values[type(space).__name__]) == text
    assert game.actions == {"action_0": 5, "action_1": 6}


def test_an_image_is_averaged_to_a_few_numbers() -> None:
    game = describe_game(Odd(SPACES.Box(0, 255, (80, 80, 3), np.uint8), SPACES.MultiDiscrete([2, 3])))
    image = np.zeros((80, 80, 3), np.uint8)
    image[:40] = 200
    lines = game.text(image).splitlines()
    assert len(lines) == 9
    assert [line.split()[0] for line in lines[1:]] == ["200"] * 4 + ["0"] * 4
    assert len(game.actions) == 6


def test_actions_that_do_not_fit_into_a_list_are_refused() -> None:
    for space in (
        SPACES.Box(-1, 1, (17,)),
        SPACES.Discrete(10_000),
        SPACES.MultiDiscrete([2**40, 2]),
        SPACES.MultiBinary(1000),
        SPACES.Text(3),
        SPACES.Dict({"a": SPACES.Discrete(2)}),
    ):
        with pytest.raises(ConfigProblems, match="cannot be offered as a list of at most 256"):
            describe_game(Odd(SPACES.Discrete(2), space))


def test_each_name_of_an_action_means_another_legal_one() -> None:
    small = SPACES.Box(-0.001, 0.001, (1,))
    shifted = SPACES.MultiDiscrete([2, 2], start=[5, -1])
    for space, count in ((small, 5), (shifted, 4), (SPACES.Discrete(256), 256)):
        actions = describe_game(Odd(SPACES.Discrete(2), space)).actions
        assert len(actions) == count
        assert all(space.contains(action) for action in actions.values())
    assert list(describe_game(Odd(SPACES.Discrete(2), shifted)).actions) == ["5 -1", "5 0", "6 -1", "6 0"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("1 / 0", r"failed: ZeroDivisionError: division by zero \(.*mine\.py:2\)"),
        ("raise SystemExit(3)", r"failed: SystemExit: 3 \(.*mine\.py:2\)"),
        ("return 7", "must return a text, not int"),
    ],
)
def test_a_describer_that_fails_is_named_with_its_line(tmp_path: Path, body: str, why: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def tell(observation, env):\n    {body}\n")
    game = describe_game(make_env("FrozenLake-v1", {}), f"{file}:tell")
    with pytest.raises(GivenUp, match=why):
        game.text(0)


def test_a_describer_of_ones_own_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my_words.py"
    file.write_text("def tell(observation, env):\n    return f'square {observation} of {env.observation_space.n}'\n")
    env = make_env("FrozenLake-v1", {})
    assert describe_game(env, f"{file}:tell").text(7) == "square 7 of 16"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert describe_game(env, "my_words:tell").text(7) == "square 7 of 16"
    sys.modules.pop("my_words")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere", "write package.module:function"),
        ("no_such_module:tell", "No module named 'no_such_module'"),
        ("my_words.py:tell", "must be absolute"),
        ("json:nothing", "no attribute 'nothing'"),
        ("json:__name__", "is no function"),
    ],
)
def test_a_describer_that_cannot_be_used_is_named(name: str, why: str) -> None:
    with pytest.raises(ConfigProblems, match=why):
        describe_game(make_env("FrozenLake-v1", {}), name)


def test_arguments_of_the_environment_are_pairs_or_json() -> None:
    assert read_env_kwargs("is_slippery=false,map_name=8x8") == {"is_slippery": False, "map_name": "8x8"}
    assert read_env_kwargs('{"is_slippery": false}') == read_env_kwargs({"is_slippery": False})
    with pytest.raises(ConfigProblems, match="is not JSON"):
        read_env_kwargs("is_slippery")
    with pytest.raises(ConfigProblems, match="cannot be made with these arguments"):
        make_env("FrozenLake-v1", {"no_such_argument": 1})
    with pytest.raises(ConfigProblems, match="FrozenLake-v1"):
        make_env("FrozenLak-v1", {})


# ---------------------------------------------------------------- messages


def test_a_template_is_filled_once_and_texts_of_the_environment_stay_data() -> None:
    text = instructions(
        "{goal}|{actions}|{format}|{unknown}",
        environment="E",
        goal="{actions} and {0} {{environment}}",
        actions=("a", "b"),
        constraint=Constraint.TEXT,
    )
    assert text.startswith("{actions} and {0} {{environment}}|a, b|Answer with the name")
    assert text.endswith("|{unknown}")


def turns(count: int) -> list[Turn]:
    return [Turn(f"seen {number}", f"act {number}", float(number)) for number in range(count)]


def test_the_window_shows_the_last_turns_with_the_results_before_them() -> None:
    found = messages("S", turns(5), "now", Constraint.TEXT, history=2, plan="P")
    assert [(each["role"], each["content"]) for each in found] == [
        ("system", "S"),
        ("user", "Result of act 2: reward 2.\nseen 3"),
        ("assistant", "act 3"),
        ("user", "Result of act 3: reward 3.\nseen 4"),
        ("assistant", "act 4"),
        ("user", "Result of act 4: reward 4.\nYour plan: P\nnow"),
    ]
    assert [each["content"] for each in messages("S", turns(5), "now", Constraint.TEXT, history=0)] == [
        "S",
        "Result of act 4: reward 4.\nnow",
    ]
    assert len(messages("S", turns(1), "now", Constraint.TEXT, history=8)) == 4


def test_a_plan_is_asked_for_instead_of_an_action() -> None:
    asked = plan_request(messages("S", [], "now", Constraint.TEXT, history=2), "go east")
    assert asked[0]["content"] == "S"
    assert asked[-1]["content"].startswith("now\n\nYour plan so far: go east\nDo not act yet.")
    assert estimated_tokens(asked) > 20
