"""Playing, apart from widgets: key maps, controls, spaces, lists, and what is read back of a game."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from gym_gui.ui.play.actions import (
    NOTHING,
    REPEAT,
    WAIT,
    ActionSpace,
    Binding,
    Controls,
    KeyMap,
    default_key_map,
    is_turn_based,
    read_space,
)
from gym_gui.ui.play.catalog import CannotAsk, Playable, matching, worker_argv
from gym_gui.ui.play.policies import thoughts
from gym_gui.ui.play.recorded import RecordedEpisode, add_end, add_step, export_npz, read_frame_bytes
from gym_gui.wording.actions import named_action, stem_of
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import encode

ATARI = [
    "NOOP",
    "FIRE",
    "UP",
    "RIGHT",
    "LEFT",
    "DOWN",
    "UPRIGHT",
    "UPLEFT",
    "DOWNRIGHT",
    "DOWNLEFT",
    "UPFIRE",
    "RIGHTFIRE",
    "LEFTFIRE",
    "DOWNFIRE",
    "UPRIGHTFIRE",
    "UPLEFTFIRE",
    "DOWNRIGHTFIRE",
    "DOWNLEFTFIRE",
]
MINIGRID = ["left", "right", "forward", "pickup", "drop", "toggle", "done"]


def test_actions_are_shown_with_their_names() -> None:
    assert named_action("FrozenLake-v1", "1") == "down (1)"
    assert named_action("MiniGrid-Empty-5x5-v0", "2") == "forward (2)"
    for env_id, action in (("FrozenLake-v1", "4"), ("FrozenLake-v1", "[0.1, 0.2]"), ("Unknown-v0", "1")):
        assert named_action(env_id, action) == action


def discrete(env_id: str, count: int, meanings: list[str] | None = None, start: int = 0) -> ActionSpace:
    reported = {
        "action_space": {"type": "Discrete", "shape": [], "n": count, "start": start},
        "action_meanings": meanings,
    }
    return read_space(reported, env_id)


def box(env_id: str, low: list[float], high: list[float]) -> ActionSpace:
    return read_space({"action_space": {"type": "Box", "shape": [len(low)], "low": low, "high": high}}, env_id)


# -- spaces


def test_the_name_of_a_game_without_where_it_comes_from_and_its_version() -> None:
    names = ("CartPole-v1", "gymnasium:CartPole-v1", "ALE/Breakout-v5", "Odd-very")
    assert [stem_of(name) for name in names] == ["CartPole", "CartPole", "Breakout", "Odd-very"]


def test_actions_have_names() -> None:
    assert discrete("CartPole-v1", 2).names == ("push left", "push right")
    assert discrete("ALE/Pong-v5", 6, ATARI[:6]).names[1] == "fire"
    assert discrete("Nobody-v0", 3, start=-1).names == ("action -1", "action 0", "action 1")
    assert discrete("Nobody-v0", 3, start=-1).name_of(-1) == "action -1"
    assert box("CarRacing-v3", [-1, 0, 0], [1, 1, 1]).components[1].name == "gas"


def test_spaces_that_cannot_be_played_by_hand_say_so() -> None:
    assert not read_space({"action_space": {"type": "Dict", "shape": None}}, "X-v0").is_playable
    many = box("Humanoid-v5", [-1.0] * 64, [1.0] * 64)
    assert not many.is_playable
    endless = read_space({"action_space": {"type": "Box", "shape": [1], "low": [None], "high": [None]}}, "X-v0")
    assert (endless.components[0].low, endless.components[0].high) == (-1.0, 1.0)


def test_several_switches_are_whole_numbers() -> None:
    space = read_space({"action_space": {"type": "MultiDiscrete", "shape": [2], "nvec": [3, 2]}}, "X-v0")
    assert space.as_action([2.0, 5.0]) == [2, 1]
    assert space.is_playable


# -- key maps


@pytest.mark.parametrize(
    ("env_id", "count", "expected"),
    [
        ("CartPole-v1", 2, {"Left": 0, "Right": 1}),
        ("MountainCar-v0", 3, {"Left": 0, "Right": 2}),
        ("Acrobot-v1", 3, {"Left": 0, "Right": 2}),
        ("LunarLander-v3", 4, {"Left": 1, "Up": 2, "Right": 3}),
        ("Taxi-v4", 6, {"Down": 0, "Up": 1, "Right": 2, "Left": 3, "P": 4, "D": 5}),
        ("FrozenLake-v1", 4, {"Left": 0, "Down": 1, "Right": 2, "Up": 3}),
        ("CliffWalking-v1", 4, {"Up": 0, "Right": 1, "Down": 2, "Left": 3}),
    ],
)
def test_known_games_have_the_keys_one_expects(env_id: str, count: int, expected: dict[str, int]) -> None:
    space = discrete(env_id, count)
    keys = default_key_map(space)
    assert {key: keys.action_for([key], space) for key in expected} == expected


def test_minigrid_and_atari_take_their_keys_from_the_names_of_their_actions() -> None:
    grid = discrete("MiniGrid-DoorKey-5x5-v0", 7, MINIGRID)
    keys = default_key_map(grid)
    in_order = ("Left", "Right", "Up", "P", "D", "Space", "Return")
    assert [keys.action_for([key], grid) for key in in_order] == list(range(7))
    assert keys.idle == WAIT
    game = discrete("ALE/Seaquest-v5", 18, ATARI)
    keys = default_key_map(game)
    assert keys.action_for(["Up"], game) == ATARI.index("UP")
    assert keys.action_for(["Space", "Right", "Up"], game) == ATARI.index("UPRIGHTFIRE")  # in whatever order
    assert keys.idle_action(game) == ATARI.index("NOOP")
    pong = discrete("ALE/Pong-v5", 6, ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"])
    assert default_key_map(pong).action_for(["Left", "Space"], pong) == 5
    assert default_key_map(pong).action_for(["Up"], pong) is None


def test_unknown_games_get_digits_and_other_versions_of_known_ones_too() -> None:
    space = discrete("Nobody-v0", 4, start=10)
    keys = default_key_map(space)
    assert [keys.action_for([key], space) for key in "1234"] == [10, 11, 12, 13]
    odd = discrete("Taxi-v9", 4)  # not the actions we know
    assert default_key_map(odd).action_for(["1"], odd) == 0


def test_vectors_are_moved_by_held_keys() -> None:
    car = box("CarRacing-v3", [-1, 0, 0], [1, 1, 1])
    keys = default_key_map(car)
    assert keys.action_for(["Left", "Up"], car) == [-1.0, 1.0, 0.0]
    assert keys.action_for([], car) == [0.0, 0.0, 0.0]
    joints = box("BipedalWalker-v3", [-1] * 4, [1] * 4)
    assert default_key_map(joints).action_for(["Right", "S"], joints) == [1.0, 0.0, 0.0, -1.0]


def test_of_two_held_keys_the_later_counts() -> None:
    space = discrete("CartPole-v1", 2)
    keys = default_key_map(space)
    assert keys.action_for(["Left", "Right"], space) == 1
    assert keys.action_for(["Right", "Left"], space) == 0


def test_a_key_map_is_stored_and_one_that_does_not_fit_any_more_is_not_used() -> None:
    space = discrete("CartPole-v1", 2)
    own = default_key_map(space).with_binding(None, Binding(("J", "K"), 1))
    assert KeyMap.from_json(own.to_json(), space) == own
    assert KeyMap.from_json(own.to_json(), discrete("CartPole-v1", 1)) is None
    for text in ("", "[]", "{}", '{"bindings": [{"keys": []}], "idle": "wait"}', '{"bindings": [], "idle": "x"}'):
        assert KeyMap.from_json(text, space) is None
    vector = box("Pendulum-v1", [-2], [2])
    assert KeyMap.from_json(default_key_map(vector).to_json(), vector) == default_key_map(vector)


def test_giving_a_key_to_an_action_takes_it_from_another() -> None:
    space = discrete("CartPole-v1", 2)
    changed = default_key_map(space).with_binding(None, Binding(("Left",), 1))
    assert changed.action_for(["Left"], space) == 1
    assert changed.text_for(0) == "A"


# -- controls


def test_in_real_time_nothing_held_is_what_the_game_says() -> None:
    pole = discrete("CartPole-v1", 2)
    controls = Controls(pole, default_key_map(pole))
    assert default_key_map(pole).idle == REPEAT
    assert controls.current() is None  # nothing was done yet
    assert controls.press("Right") == 1
    controls.last = 1
    controls.release("Right")
    assert controls.current() == 1
    lander = discrete("LunarLander-v3", 4)
    assert default_key_map(lander).idle == NOTHING
    assert Controls(lander, default_key_map(lander)).current() == 0
    lake = discrete("FrozenLake-v1", 4)
    assert Controls(lake, default_key_map(lake)).current() is None
    assert is_turn_based("FrozenLake-v1")
    assert is_turn_based("MiniGrid-Empty-5x5-v0")
    assert not is_turn_based("CartPole-v1")


def test_keys_that_mean_nothing_do_nothing_and_losing_the_keyboard_lets_go() -> None:
    pole = discrete("CartPole-v1", 2)
    controls = Controls(pole, default_key_map(pole))
    assert controls.press("Z") is None
    controls.press("Left")
    controls.hold_button(1)
    assert controls.current() == 1
    controls.release_all()
    assert controls.held == ()
    assert controls.current() is None


def test_sliders_and_keys_together() -> None:
    car = box("CarRacing-v3", [-1, 0, 0], [1, 1, 1])
    controls = Controls(car, default_key_map(car))
    controls.vector = [0.25, 0.5, 0.0]
    assert controls.current() == [0.25, 0.5, 0.0]
    assert controls.press("Left") == [-1.0, 0.5, 0.0]
    assert controls.chosen() == [-1.0, 0.5, 0.0]


# -- lists, words


def test_environments_are_found_by_words_and_old_versions_only_when_asked_for() -> None:
    known = [
        Playable("CartPole-v0", "Classic control", is_newest=False),
        Playable("CartPole-v1", "Classic control"),
        Playable("ALE/Pong-v5", "Atari"),
    ]

    def names(text: str, family: str = "", with_older: bool = False) -> list[str]:
        return [found.env_id for found in matching(known, text, family, with_older=with_older)]

    assert names("") == ["CartPole-v1", "ALE/Pong-v5"]
    assert names("pole cart") == ["CartPole-v1"]
    assert names("cartpole-v0") == ["CartPole-v0"]
    assert names("cart", with_older=True) == ["CartPole-v0", "CartPole-v1"]
    assert names("", "Atari") == ["ALE/Pong-v5"]


def test_a_worker_that_is_missing_or_broken_is_named() -> None:
    with pytest.raises(CannotAsk, match="pip install"):
        worker_argv([])
    with pytest.raises(CannotAsk, match="no gymnasium"):
        worker_argv([pb.Worker(name="human", problem="no gymnasium")])


def test_what_a_policy_thinks() -> None:
    assert thoughts({"action_probabilities": [0.25, 0.75], "value": 3}) == ([0.25, 0.75], True, 3.0)
    assert thoughts({"action_values": [1, 2]}) == ([1.0, 2.0], False, None)
    assert thoughts({"action_probabilities": ["x"], "value": None}) == ([], True, None)


# -- what was played


def _step(episode: int, observation: object, action: object, **rest: object) -> pb.RunStep:
    return pb.RunStep(episode=episode, observation=encode(observation), action=encode(action), reward=1.5, **rest)


def _end(episode: int, last: object, **facts: object) -> pb.RunEpisode:
    payload = encode(last)
    reported = {"encoding": payload.encoding, "data": base64.b64encode(payload.data).decode()}
    info = json.dumps({"final_observation": reported, "seed": 7, "ended_by": "player", **facts})
    return pb.RunEpisode(episode=episode, truncated=True, info_json=info)


def test_episodes_are_put_together_and_written_as_a_dataset(tmp_path: Path) -> None:
    found: dict[int, RecordedEpisode] = {}
    add_step(found, _step(0, np.array([0.0, 1.0]), 1, info_json='{"picture": [0, 3]}'))
    add_step(found, _step(0, np.array([2.0, 3.0]), 0, info_json='{"picture": "nonsense"}'))
    add_end(found, _end(0, np.array([4.0, 5.0]), picture=[3, 4]))
    add_step(found, _step(1, {"image": np.ones((2, 2, 3), np.uint8), "mission": "go"}, np.array([0.5])))
    add_end(found, _end(5, 0))  # of an episode without steps
    first, second = found[0], found[1]
    assert (first.length, first.total, first.seed, first.ended_by, first.is_whole) == (2, 3.0, 7, "player", True)
    assert first.frames == [(0, 3), None, (3, 4)]
    assert first.truncations == [False, True]
    assert not second.is_whole
    path = tmp_path / "played.npz"
    assert export_npz(path, [first, second], {"env_id": "X-v0"}) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["played.npz"]
    with np.load(path, allow_pickle=False) as data:
        np.testing.assert_array_equal(data["episode_0/observations"], [[0, 1], [2, 3], [4, 5]])
        np.testing.assert_array_equal(data["episode_0/actions"], [1, 0])
        np.testing.assert_array_equal(data["episode_0/rewards"], [1.5, 1.5])
        np.testing.assert_array_equal(data["episode_0/truncations"], [False, True])
        assert data["episode_1/observations/image"].shape == (1, 2, 2, 3)
        assert data["episode_1/observations/mission"].tolist() == ["go"]
        metadata = json.loads(str(data["metadata"]))
    assert (metadata["total_episodes"], metadata["total_steps"], metadata["env_id"]) == (2, 3, "X-v0")
    assert [entry["has_final_observation"] for entry in metadata["episodes"]] == [True, False]


def test_frames_are_cut_out_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "play").mkdir()
    (tmp_path / "play" / "pictures.bin").write_bytes(b"abcdefg")
    assert read_frame_bytes(tmp_path, (3, 4)) == b"defg"
    assert read_frame_bytes(tmp_path, None) == b""
    assert read_frame_bytes(tmp_path / "elsewhere", (0, 1)) == b""
