"""The interactive protocol: what is answered to what, also to invalid lines."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.eval.interactive import PolicySession
from cleanrl_worker.training.envs import make_single
from mosaic_wire.interactive import LONGEST_LINE, BadCommand, FrameSink, describe_space, png, to_action


class Talk:
    """A session and what it answered."""

    def __init__(self, env_id: str, policy=None, **options):
        self.env, self.frames, self.said = make_single(env_id, **options), FrameSink("test"), []
        self.session = PolicySession(self.env, env_id, policy, self.frames, self.said.append)

    def __call__(self, line) -> list[dict]:
        self.said.clear()
        self.continues = self.session.answer(line if isinstance(line, bytes) else json.dumps(line).encode())
        for message in self.said:
            json.dumps(message, allow_nan=False)
        return list(self.said)


@pytest.fixture
def talk():
    found = Talk("tiny_worlds:CorridorShort-v0", render_mode="rgb_array")
    yield found
    found.frames.close()


def test_an_episode_from_reset_to_done(talk):
    (ready,) = talk({"cmd": "reset", "seed": 42})
    assert (ready["type"], ready["seed"], ready["episode_index"]) == ("ready", 42, 0)
    messages = []
    while not any(message["type"] == "episode_done" for message in messages):
        messages += talk({"cmd": "step", "action": 1})
    *steps, done = messages
    assert [step["type"] for step in steps] == ["step"] * len(steps)
    assert [step["step_index"] for step in steps] == list(range(len(steps)))
    keys = "step_index episode_index action reward terminated truncated episode_reward render_payload"
    assert set(keys.split()) <= set(steps[-1])
    assert [step["terminated"] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert done["episode_reward"] == steps[-1]["episode_reward"] == pytest.approx(sum(s["reward"] for s in steps))
    assert done["episode_length"] == len(steps)


def test_there_is_no_phantom_step(talk):
    talk({"cmd": "reset", "seed": 1})
    while talk({"cmd": "step", "action": 1})[-1]["type"] != "episode_done":
        pass
    before = talk.session.steps
    (error,) = talk({"cmd": "step", "action": 1})
    assert (error["type"], "the episode is over" in error["message"]) == ("error", True)
    assert talk.session.steps == before
    (ready,) = talk({"cmd": "reset"})
    assert (ready["episode_index"], talk.session.steps) == (1, before)


def test_the_same_seed_gives_the_same_episode():
    def episode():
        talk = Talk("CartPole-v1")
        talk({"cmd": "reset", "seed": 7})
        return [talk({"cmd": "step"})[0] for _ in range(5)]

    assert episode() == episode()


def test_ping_and_stop(talk):
    assert talk({"cmd": "ping"}) == [{"type": "pong"}]
    assert talk.continues
    assert talk({"cmd": "stop"}) == [{"type": "stopped", "steps": 0, "episodes": 0}]
    assert not talk.continues


HOSTILE = [
    (b"not json", "not JSON"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"[1, 2]", "expected an object"),
    (b"[" * 100_000, "not JSON"),
    (b'{"cmd": "jump"}', "unknown"),
    (b'{"cmd": "rest"}', "did you mean 'reset'"),
    (b'{"cmd": ["step"]}', "unknown"),
    (b"{}", "unknown"),
    (b'{"cmd": "step"}', "no episode has begun"),
    (b'{"cmd": "reset", "seed": -1}', "seed must be"),
    (b'{"cmd": "reset", "seed": "x"}', "seed must be"),
    (b'{"cmd": "reset", "seed": 1e999}', "seed must be"),
    (b'{"cmd": "reset", "frames": "gif"}', "frames must be one of"),
    (b"x" * (LONGEST_LINE + 1), "must not be longer"),
]


@pytest.mark.parametrize(("line", "message"), HOSTILE)
def test_a_hostile_line_is_answered_and_survived(talk, line, message):
    (error,) = talk(line)
    assert error["type"] == "error"
    assert message in error["message"]
    assert len(error["message"]) < 500
    assert talk({"cmd": "reset", "seed": 1})[0]["type"] == "ready"


@pytest.mark.parametrize("action", [2, -1, 0.5, "right", [1], True, None, {"a": 1}, 10**30])
def test_an_action_that_is_none_of_the_space_steps_nothing(talk, action):
    talk({"cmd": "reset", "seed": 1})
    if action is None:
        assert talk({"cmd": "step", "action": None})[0]["action_source"] == "random"
        return
    (error,) = talk({"cmd": "step", "action": action})
    assert error["type"] == "error"
    assert "is not an action of Discrete(2)" in error["message"]
    assert talk.session.steps == 0


def test_continuous_actions():
    talk = Talk("tiny_worlds:Joystick-v0")
    talk({"cmd": "reset", "seed": 3})
    (step,) = talk({"cmd": "step", "action": [0.5, -1]})
    assert step["action"] == [0.5, -1]
    assert talk({"cmd": "step", "action": [0.5, 2.0]})[0]["type"] == "error"
    assert talk({"cmd": "step", "action": [0.5]})[0]["type"] == "error"
    assert talk({"cmd": "step", "action": [0.5, float("nan")]})[0]["type"] == "error"
    assert talk({"cmd": "step"})[0]["action_source"] == "random"
    assert talk({"cmd": "step", "action": [0, 0]})[-1]["type"] == "episode_done"
    assert describe_space(talk.env.action_space) == {
        "type": "Box",
        "shape": [2],
        "low": [-1.0, -1.0],
        "high": [1.0, 1.0],
    }


def test_an_environment_that_raises_reports_the_other_end_first(talk, monkeypatch):
    talk({"cmd": "reset", "seed": 1})
    monkeypatch.setattr(type(talk.env.unwrapped), "step", lambda self, action: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        talk({"cmd": "step", "action": 1})
    assert "the environment failed: ZeroDivisionError" in talk.said[0]["message"]


def test_other_spaces():
    several = gym.spaces.MultiDiscrete([2, 3])
    assert to_action(several, [1, 2]).tolist() == [1, 2]
    with pytest.raises(BadCommand):
        to_action(several, [1, 2.5])
    shifted = gym.spaces.Discrete(3, start=-1)
    assert to_action(shifted, -1) == -1
    assert describe_space(shifted) == {"type": "Discrete", "shape": [], "n": 3, "start": -1}
    one = gym.spaces.Box(-2, 2, (1,))
    assert to_action(one, 1.5).tolist() == [1.5]


def test_a_policy_acts_when_no_action_is_given():
    class Right:
        def act(self, obs, rngs):
            return np.ones(len(obs), dtype=np.int64)

    talk = Talk("tiny_worlds:CorridorLong-v0", Right())
    talk({"cmd": "reset", "seed": 0})
    (step, *_) = talk({"cmd": "step"})
    assert (step["action"], step["action_source"]) == (1, "policy")
    assert talk({"cmd": "step", "action": 0})[0]["action_source"] == "client"


# -- pictures


def unpack(data: bytes) -> np.ndarray:
    """A PNG of ours, read by the book: chunks, checksums, one filter byte a row."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, offset = {}, 8
    while offset < len(data):
        (length,) = struct.unpack(">I", data[offset : offset + 4])
        name, body = data[offset + 4 : offset + 8], data[offset + 8 : offset + 8 + length]
        assert struct.unpack(">I", data[offset + 8 + length : offset + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name], offset = body, offset + 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8).reshape(height, 1 + width * 3)
    return rows[:, 1:].reshape(height, width, 3)


def test_frames_come_as_png(talk):
    image = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(unpack(png(image)), image)
    payload = talk({"cmd": "reset", "seed": 0})[0]["render_payload"]
    assert (payload["encoding"], payload["width"], payload["height"]) == ("png", 6, 4)
    np.testing.assert_array_equal(unpack(base64.b64decode(payload["data"])), talk.env.render())


def test_frames_come_in_shared_memory_that_is_removed(talk):
    payload = talk({"cmd": "reset", "seed": 0, "frames": "shm"})[0]["render_payload"]
    path = Path(payload["path"])
    assert path.stat().st_mode & 0o777 == 0o600
    talk({"cmd": "step", "action": 1})
    frame = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(payload["height"], payload["width"], 3)
    np.testing.assert_array_equal(frame, talk.env.render())
    talk.frames.close()
    assert not path.exists()


def test_no_frames_when_none_are_requested_or_none_can_be_drawn(talk):
    assert talk({"cmd": "reset", "frames": "none"})[0]["render_payload"] is None
    assert Talk("CartPole-v1")({"cmd": "reset"})[0]["render_payload"] is None


# -- what a policy thinks


def test_a_step_of_a_policy_reports_what_it_thought():
    from cleanrl_worker.training.policies import Categorical, DiagonalGaussian, DistributionPolicy, GreedyPolicy

    class Acting:
        def policy(self, obs):
            return np.log(np.tile(np.array([[0.25, 0.75]], dtype=np.float32), (len(obs), 1)))

        def values(self, obs):
            return np.full(len(obs), 2.5, dtype=np.float32)

    talk = Talk("tiny_worlds:CorridorLong-v0", DistributionPolicy(Acting(), Categorical(2), np.dtype(np.float32)))
    talk({"cmd": "reset", "seed": 0})
    (step, *_) = talk({"cmd": "step"})
    assert step["action_probabilities"] == pytest.approx([0.25, 0.75])
    assert (step["action"], step["value"]) == (1, 2.5)
    (step, *_) = talk({"cmd": "step", "action": 0})
    assert "action_probabilities" not in step  # it was not asked

    values = GreedyPolicy(lambda obs: np.tile(np.array([[3.0, -1.0]]), (len(obs), 1)), np.dtype(np.float32))
    talk = Talk("tiny_worlds:CorridorLong-v0", values)
    talk({"cmd": "reset", "seed": 0})
    assert talk({"cmd": "step"})[0]["action_values"] == [3.0, -1.0]

    class Means:
        def policy(self, obs):
            return np.zeros((len(obs), 2), dtype=np.float32)

    gaussian = DistributionPolicy(Means(), DiagonalGaussian(np.zeros(2)), np.dtype(np.float32))
    assert gaussian.action_scores(np.zeros((1, 3), dtype=np.float32)) == {}  # numbers of a vector have no probabilities


def test_an_episode_can_be_left():
    talk = Talk("tiny_worlds:CorridorLong-v0")
    assert "no episode to end" in talk({"cmd": "end"})[0]["message"]
    talk({"cmd": "reset", "seed": 0})
    talk({"cmd": "step", "action": 1})
    (done,) = talk({"cmd": "end"})
    assert (done["type"], done["ended_by"], done["truncated"]) == ("episode_done", "player", True)
    assert talk({"cmd": "step", "action": 1})[0]["type"] == "error"
