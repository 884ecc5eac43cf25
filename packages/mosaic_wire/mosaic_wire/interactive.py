"""The interactive protocol: somebody at the other end steps an environment. One JSON object a line, in and out.

In    {"cmd": "reset", "seed"?, "frames"?: "png" | "shm" | "none"}, {"cmd": "step", "action"?}, {"cmd": "end"},
      {"cmd": "ping" | "stop"}
Out   init, ready, step, episode_done, pong, stopped, error; the key `type` says which

A step without an action is the worker's to choose: its policy's, or a random one. `episode_done` follows the last step
of an episode, and `end`, which leaves it; a step after it, without a reset, is an error and steps nothing.

A run that the daemon started listens on the unix socket that its `run_started` names (`interactive_lines.socket_of`).
Spaces are told apart by their names: this package knows gymnasium's words, and does not import it.
"""

from __future__ import annotations

import base64
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from mosaic_wire.frames import interactive_frame_path
from mosaic_wire.worker_spec import nearest

COMMANDS = ("reset", "step", "end", "ping", "stop")
KINDS = ("png", "shm", "none")
"""How pictures come: in the line itself, in a shared-memory file the line names, or not at all"""
LONGEST_LINE = 1 << 20
_LARGEST_SEED = 2**31 - 1

Send = Callable[[Mapping[str, Any]], None]


class BadCommand(Exception):
    """A line that cannot be obeyed, and why; nothing has happened."""


class InteractiveSession:
    """Answers lines; the environment moves only by `reset` and `step`.

    A worker derives from it to say which action is taken when none is given (`choose`), what else is worth telling in
    the greeting (`facts`), and to hear of what happens (`began`, `stepped`, `over`, `drawn`).
    """

    def __init__(self, env: Any, env_id: str, frames: FrameSink, send: Send, *, run_id: str = "") -> None:
        self.env, self._env_id, self._frames, self._send, self._run_id = env, env_id, frames, send, run_id
        self.obs: Any = None
        self._playing = False
        self._frame_kind = "png"
        self.steps = 0
        """over all episodes"""
        self.last_return: float | None = None
        self.episode, self._step_index, self._episode_reward = -1, 0, 0.0

    # -- what a worker may say differently

    has_policy = False

    def facts(self) -> dict[str, Any]:
        """What the greeting says besides spaces and commands."""
        return {}

    def choose(self) -> tuple[Any, str, Mapping[str, Any]]:
        """The action of a step that names none, whose it is, and what is told beside it."""
        return self.env.action_space.sample(), "random", {}

    def began(self, seed: int | None) -> None:
        """An episode has begun; `obs` is what is seen."""

    def stepped(self, seen: Any, action: Any, reward: float, terminated: bool, truncated: bool, info: Any) -> None:
        """A step was taken on what was `seen`; `obs` is what is seen now."""

    def over(self, by: str, terminated: bool, truncated: bool, episode_return: float, length: int) -> None:
        """The episode has ended, `by` the environment or by the player, who left it."""

    def drawn(self, image: Any) -> None:
        """A picture was drawn for the other end."""

    # -- the protocol

    @property
    def episodes(self) -> int:
        """begun so far"""
        return self.episode + 1

    @property
    def is_playing(self) -> bool:
        return self._playing

    def greet(self) -> None:
        """Say what can be played here."""
        self._send({
            "type": "init", "run_id": self._run_id, "env_id": self._env_id, "policy": self.has_policy,
            "action_space": describe_space(self.env.action_space),
            "observation_space": describe_space(self.env.observation_space),
            "commands": list(COMMANDS), "frames": list(KINDS) if self.env.render_mode == "rgb_array" else ["none"],
            **self.facts(),
        })  # fmt: skip

    def answer(self, line: bytes) -> bool:
        """Obey one line; False when it was the last."""
        if not line.strip():
            return True
        try:
            command = parse(line)
            match command["cmd"]:
                case "ping":
                    self._send({"type": "pong"})
                case "stop":
                    self.leave_episode()
                    self.say_goodbye()
                    return False
                case "reset":
                    self._reset(command)
                case "step":
                    self._step(command)
                case "end":
                    self._end()
        except BadCommand as problem:
            self._send({"type": "error", "message": str(problem)})
        return True

    def say_goodbye(self) -> None:
        self._send({"type": "stopped", "steps": self.steps, "episodes": self.episodes})

    def leave_episode(self) -> bool:
        """End the episode before the environment does; False when none is played."""
        if not self._playing:
            return False
        self._playing = False
        if self._step_index:
            self.last_return = self._episode_reward
            self.over("player", False, True, self._episode_reward, self._step_index)
        return True

    def _reset(self, command: Mapping[str, Any]) -> None:
        seed, kind = command.get("seed"), command.get("frames", self._frame_kind)
        if seed is not None and (type(seed) is not int or not 0 <= seed <= _LARGEST_SEED):
            raise BadCommand(f"seed must be a whole number from 0 to {_LARGEST_SEED}, not {seed!r:.60}")
        if kind not in KINDS:
            raise BadCommand(f"frames must be one of {', '.join(KINDS)}, not {kind!r:.60}")
        self._frame_kind = kind
        self.leave_episode()
        try:
            self.obs, _ = self.env.reset(seed=seed)
        except Exception as error:
            self._tell_failure(error)
            raise
        if seed is not None:
            self.env.action_space.seed(seed)
        self._playing = True
        self.episode, self._step_index, self._episode_reward = self.episode + 1, 0, 0.0
        self.began(seed)
        self._send({
            "type": "ready", "seed": seed, "episode_index": self.episode, "observation": plain(self.obs),
            "render_payload": self._picture(),
        })  # fmt: skip

    def _step(self, command: Mapping[str, Any]) -> None:
        if not self._playing:
            over = "the episode is over" if self.episode >= 0 else "no episode has begun"
            raise BadCommand(f'{over}; send {{"cmd": "reset"}} first')
        told: Mapping[str, Any] = {}
        if command.get("action") is not None:
            action, source = to_action(self.env.action_space, command["action"]), "client"
        else:
            action, source, told = self.choose()
        seen = self.obs
        try:
            self.obs, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:  # whatever it raises, the other end hears of it before the run fails
            self._tell_failure(error)
            raise
        reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        self._episode_reward += reward
        picture = self._picture()
        self.stepped(seen, action, reward, terminated, truncated, info)
        self._send({
            "type": "step", "step_index": self._step_index, "episode_index": self.episode, "action": plain(action),
            "action_source": source, "reward": reward, "terminated": terminated, "truncated": truncated,
            "episode_reward": self._episode_reward, "observation": plain(self.obs), "render_payload": picture, **told,
        })  # fmt: skip
        self._step_index += 1
        self.steps += 1
        if terminated or truncated:
            self._playing, self.last_return = False, self._episode_reward
            self.over("environment", terminated, truncated, self._episode_reward, self._step_index)
            self._say_done(terminated, truncated, "environment")

    def _end(self) -> None:
        if not self.leave_episode():
            raise BadCommand("there is no episode to end")
        self._say_done(False, True, "player")

    def _say_done(self, terminated: bool, truncated: bool, by: str) -> None:
        self._send({
            "type": "episode_done", "episode_index": self.episode, "episode_reward": self._episode_reward,
            "episode_length": self._step_index, "terminated": terminated, "truncated": truncated, "ended_by": by,
        })  # fmt: skip

    def _tell_failure(self, error: Exception) -> None:
        words = f"the environment failed: {type(error).__name__}: {error}"
        self._send({"type": "error", "message": words[:2000], "fatal": True})

    def _picture(self) -> dict[str, Any] | None:
        if self._frame_kind == "none" or self.env.render_mode != "rgb_array":
            return None
        image = self.env.render()
        self.drawn(image)
        return self._frames.payload(image, self._frame_kind)


def parse(line: bytes) -> dict[str, Any]:
    """A command; BadCommand says what is wrong with the line."""
    if len(line) > LONGEST_LINE:
        raise BadCommand(f"a line must not be longer than {LONGEST_LINE} bytes")
    try:
        command = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadCommand(f"not JSON: {str(error)[:200]}") from None
    if not isinstance(command, dict):
        raise BadCommand(f'expected an object such as {{"cmd": "step"}}, not {type(command).__name__}')
    name = command.get("cmd")
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS) if isinstance(name, str) else None
        raise BadCommand(f"cmd {name!r:.60} is unknown" + (f"; did you mean {hint!r}?" if hint else ""))
    return command


# -- spaces and values


def kind_of(space: Any) -> str:
    """Discrete, Box, MultiDiscrete …; of somebody's own kind of space, the one it derives from."""
    known = ("Discrete", "MultiDiscrete", "MultiBinary", "Box", "Dict", "Tuple", "Text")
    return next((base.__name__ for base in type(space).__mro__ if base.__name__ in known), type(space).__name__)


def to_action(space: Any, value: Any) -> Any:
    """A JSON value as an action of this space; BadCommand says what the space would take."""
    import numpy as np

    kind = kind_of(space)
    if kind == "Discrete":
        action: Any = int(value) if _is_number(value) and value == int(value) else None
    else:
        try:
            action = np.array(value, dtype=space.dtype)
            if kind == "Box":
                action = action.reshape(space.shape) if action.size == math.prod(space.shape) else None
            elif kind in ("MultiDiscrete", "MultiBinary"):
                action = action if np.array_equal(action, np.array(value, dtype=float)) else None
        except (TypeError, ValueError, OverflowError):
            action = None
    if action is None or not space.contains(action):
        raise BadCommand(f"{json.dumps(value)[:80]} is not an action of {space}")
    return action


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def describe_space(space: Any) -> dict[str, Any]:
    """What a client needs to draw buttons or sliders."""
    told: dict[str, Any] = {
        "type": type(space).__name__,
        "shape": list(space.shape) if space.shape is not None else None,
    }
    kind = kind_of(space)
    if kind == "Discrete":
        told |= {"n": int(space.n), "start": int(space.start)}
    elif kind == "MultiDiscrete":
        told["nvec"] = space.nvec.tolist()
    elif kind == "Box" and math.prod(space.shape) <= 64:
        told |= {"low": plain(space.low), "high": plain(space.high)}
    return told


def facts_about(env: Any) -> dict[str, Any]:
    """What an environment says of itself: names of its actions, pictures a second, where episodes are cut."""
    base, told = env.unwrapped, dict[str, Any]()
    if callable(getattr(base, "get_action_meanings", None)):  # the Atari games
        told["action_meanings"] = [str(name) for name in base.get_action_meanings()]
    elif isinstance(getattr(base, "actions", None), type) and hasattr(base.actions, "__members__"):  # MiniGrid
        told["action_meanings"] = list(base.actions.__members__)
    told["render_fps"] = plain((getattr(env, "metadata", None) or {}).get("render_fps"))
    told["max_episode_steps"] = plain(getattr(getattr(env, "spec", None), "max_episode_steps", None))
    return told


def plain(value: Any) -> Any:
    """A JSON value; numbers JSON does not have become null, and a picture is not repeated as a list."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        if getattr(value, "ndim", 0) == 3 and value.size > 1024:
            return None
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


# -- pictures


def png(image: Any) -> bytes:
    """An RGB picture (an array of height, width and 3) as a PNG file."""
    import numpy as np

    height, width, _ = image.shape
    rows = np.zeros((height, width * 3 + 1), dtype=np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def as_picture(image: Any) -> Any:
    """What an environment drew, as an array of bytes; None when it is no RGB picture."""
    import numpy as np

    if not isinstance(image, np.ndarray) or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        return None
    return np.ascontiguousarray(image, dtype=np.uint8)


class FrameSink:
    """Turns pictures into `render_payload`s; the shared-memory file is made when it is first wanted."""

    def __init__(self, name: str) -> None:
        self._path = interactive_frame_path(name)
        self._file: int | None = None

    def payload(self, image: Any, kind: str) -> dict[str, Any] | None:
        """What a message says about this picture; None without one."""
        if kind == "none" or (picture := as_picture(image)) is None:
            return None
        height, width, _ = picture.shape
        size = {"mode": "rgb_array", "width": width, "height": height}
        if kind == "shm":
            with suppress(OSError):  # full or read-only shared memory: the frame travels in the message
                return {**size, "encoding": "raw", "path": self._write(picture)}
        return {**size, "encoding": "png", "data": base64.b64encode(png(picture)).decode()}

    def _write(self, picture: Any) -> str:
        if self._file is None:
            self._path.unlink(missing_ok=True)  # of a process that was killed
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, picture.tobytes(), 0)
        return str(self._path)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._path.unlink(missing_ok=True)
            self._file = None
