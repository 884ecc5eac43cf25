"""The interactive protocol: a client steps an environment with one JSON object per line, in and out.

In    {"cmd": "reset", "seed"?, "frames"?: "png" | "shm" | "none"}, {"cmd": "step", "action"?}, {"cmd": "end"},
      {"cmd": "ping" | "stop"}
Out   init, ready, step, episode_done, pong, stopped, error: the key `type`

For a step without an action, the worker chooses one (of its policy, or at random). `episode_done` follows the last step
of an episode, or `end`, which ends it early; a step after it without a reset is an error.

A run that the daemon started listens on the unix socket that its `run_started` names (`socket_of`).
Spaces are recognized by their class names, because this package does not import gymnasium.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import selectors
import socket
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from mosaic_wire.frames import interactive_frame_path
from mosaic_wire.paths import RunFolder, make_private_folder, short_folder
from mosaic_wire.worker_spec import nearest

COMMANDS = ("reset", "step", "end", "ping", "stop")
KINDS = ("png", "shm", "none")
"""How frames are sent: in the line, in a shared-memory file named in the line, or not at all"""
LONGEST_LINE = 1 << 20
_LARGEST_SEED = 2**31 - 1

Send = Callable[[Mapping[str, Any]], None]


class BadCommand(Exception):
    """A line that is not a valid command."""


class InteractiveSession:
    """Answers command lines; only `reset` and `step` advance the environment.

    Workers override `choose` (the action of a step without one), `facts` (further keys of the greeting) and the
    callbacks (`on_reset`, `on_step`, `on_episode_end`, `on_render`).
    """

    def __init__(self, env: Any, env_id: str, frames: FrameSink, send: Send, *, run_id: str = "") -> None:
        self.env, self._env_id, self._frames, self._send, self._run_id = env, env_id, frames, send, run_id
        self.obs: Any = None
        self._playing = False
        self._frame_kind = "png"
        self.steps = 0
        """Steps in all episodes"""
        self.last_return: float | None = None
        self.episode, self._step_index, self._episode_reward = -1, 0, 0.0

    # -- overridden by workers

    has_policy = False

    def facts(self) -> dict[str, Any]:
        """Return keys of the greeting besides spaces and commands."""
        return {}

    def choose(self) -> tuple[Any, str, Mapping[str, Any]]:
        """Return an action, its source, and further keys of the answer, for a step without an action."""
        return self.env.action_space.sample(), "random", {}

    def on_reset(self, seed: int | None) -> None:
        """Called after a reset; `obs` is the first observation."""

    def on_step(self, seen: Any, action: Any, reward: float, terminated: bool, truncated: bool, info: Any) -> None:
        """Called after a step; `seen` is the observation before it and `obs` the one after it."""

    def on_episode_end(self, by: str, terminated: bool, truncated: bool, episode_return: float, length: int) -> None:
        """Called after an episode that the environment or the player ended (`by`)."""

    def on_render(self, image: Any) -> None:
        """Called after a frame was rendered for the client."""

    # -- the protocol

    @property
    def episodes(self) -> int:
        """Return the number of episodes begun."""
        return self.episode + 1

    @property
    def is_playing(self) -> bool:
        """Return whether an episode is active."""
        return self._playing

    def greet(self) -> None:
        """Send the greeting, which describes the environment."""
        self._send(
            {
                "type": "init",
                "run_id": self._run_id,
                "env_id": self._env_id,
                "policy": self.has_policy,
                "action_space": describe_space(self.env.action_space),
                "observation_space": describe_space(self.env.observation_space),
                "commands": list(COMMANDS),
                "frames": list(KINDS) if self.env.render_mode == "rgb_array" else ["none"],
                **self.facts(),
            }
        )

    def answer(self, line: bytes) -> bool:
        """Execute one command line; return False after the last one."""
        if not line.strip():
            return True
        try:
            command = parse(line)
            match command["cmd"]:
                case "ping":
                    self._send({"type": "pong"})
                case "stop":
                    self.leave_episode()
                    self.send_goodbye()
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

    def send_goodbye(self) -> None:
        """Send `stopped`: the run ends."""
        self._send({"type": "stopped", "steps": self.steps, "episodes": self.episodes})

    def leave_episode(self) -> bool:
        """End the active episode early; return False when there is none."""
        if not self._playing:
            return False
        self._playing = False
        if self._step_index:
            self.last_return = self._episode_reward
            self.on_episode_end("player", False, True, self._episode_reward, self._step_index)
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
            self._send_failure(error)
            raise
        if seed is not None:
            self.env.action_space.seed(seed)
        self._playing = True
        self.episode, self._step_index, self._episode_reward = self.episode + 1, 0, 0.0
        self.on_reset(seed)
        self._send(
            {
                "type": "ready",
                "seed": seed,
                "episode_index": self.episode,
                "observation": plain(self.obs),
                "render_payload": self._frame(),
            }
        )

    def _step(self, command: Mapping[str, Any]) -> None:
        if not self._playing:
            state = "the episode is over" if self.episode >= 0 else "no episode has begun"
            raise BadCommand(f'{state}; send {{"cmd": "reset"}} first')
        facts: Mapping[str, Any] = {}
        if command.get("action") is not None:
            action, source = to_action(self.env.action_space, command["action"]), "client"
        else:
            action, source, facts = self.choose()
        seen = self.obs
        try:
            self.obs, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:  # report any error to the client before the run fails
            self._send_failure(error)
            raise
        reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        self._episode_reward += reward
        frame = self._frame()
        self.on_step(seen, action, reward, terminated, truncated, info)
        self._send(
            {
                "type": "step",
                "step_index": self._step_index,
                "episode_index": self.episode,
                "action": plain(action),
                "action_source": source,
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                "episode_reward": self._episode_reward,
                "observation": plain(self.obs),
                "render_payload": frame,
                **facts,
            }
        )
        self._step_index += 1
        self.steps += 1
        if terminated or truncated:
            self._playing, self.last_return = False, self._episode_reward
            self.on_episode_end("environment", terminated, truncated, self._episode_reward, self._step_index)
            self._send_episode_done(terminated, truncated, "environment")

    def _end(self) -> None:
        if not self.leave_episode():
            raise BadCommand("there is no episode to end")
        self._send_episode_done(False, True, "player")

    def _send_episode_done(self, terminated: bool, truncated: bool, by: str) -> None:
        self._send(
            {
                "type": "episode_done",
                "episode_index": self.episode,
                "episode_reward": self._episode_reward,
                "episode_length": self._step_index,
                "terminated": terminated,
                "truncated": truncated,
                "ended_by": by,
            }
        )

    def _send_failure(self, error: Exception) -> None:
        message = f"the environment failed: {type(error).__name__}: {error}"
        self._send({"type": "error", "message": message[:2000], "fatal": True})

    def _frame(self) -> dict[str, Any] | None:
        if self._frame_kind == "none" or self.env.render_mode != "rgb_array":
            return None
        image = self.env.render()
        self.on_render(image)
        return self._frames.payload(image, self._frame_kind)


def parse(line: bytes) -> dict[str, Any]:
    """Return the command in a line; raise BadCommand with the problem."""
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
    """Return the type of a space (Discrete, Box …); for a custom space, that of its base class."""
    known = ("Discrete", "MultiDiscrete", "MultiBinary", "Box", "Dict", "Tuple", "Text")
    return next((base.__name__ for base in type(space).__mro__ if base.__name__ in known), type(space).__name__)


def to_action(space: Any, value: Any) -> Any:
    """Return a JSON value as an action of this space; raise BadCommand if it is not one."""
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
    """Return what a client needs to draw buttons or sliders."""
    facts: dict[str, Any] = {
        "type": type(space).__name__,
        "shape": list(space.shape) if space.shape is not None else None,
    }
    kind = kind_of(space)
    if kind == "Discrete":
        facts |= {"n": int(space.n), "start": int(space.start)}
    elif kind == "MultiDiscrete":
        facts["nvec"] = space.nvec.tolist()
    elif kind == "Box" and math.prod(space.shape) <= 64:
        facts |= {"low": plain(space.low), "high": plain(space.high)}
    return facts


def facts_about(env: Any) -> dict[str, Any]:
    """Return an environment's action names, frame rate and episode limit."""
    base, facts = env.unwrapped, dict[str, Any]()
    if callable(getattr(base, "get_action_meanings", None)):  # the Atari games
        facts["action_meanings"] = [str(name) for name in base.get_action_meanings()]
    elif isinstance(getattr(base, "actions", None), type) and hasattr(base.actions, "__members__"):  # MiniGrid
        facts["action_meanings"] = list(base.actions.__members__)
    facts["render_fps"] = plain((getattr(env, "metadata", None) or {}).get("render_fps"))
    facts["max_episode_steps"] = plain(getattr(getattr(env, "spec", None), "max_episode_steps", None))
    return facts


def plain(value: Any) -> Any:
    """Return a value as JSON: NaN and infinities become null, and so do frames."""
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


# -- frames


def png(image: Any) -> bytes:
    """Return an RGB frame (an array of height, width and 3) as a PNG file."""
    import numpy as np

    height, width, _ = image.shape
    rows = np.zeros((height, width * 3 + 1), dtype=np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def as_frame(image: Any) -> Any:
    """Return a rendered image as a uint8 array, or None if it is not an RGB frame."""
    import numpy as np

    if not isinstance(image, np.ndarray) or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        return None
    return np.ascontiguousarray(image, dtype=np.uint8)


class FrameSink:
    """Turns frames into `render_payload`s; the shared-memory file is created on first use."""

    def __init__(self, name: str) -> None:
        self._path = interactive_frame_path(name)
        self._file: int | None = None

    def payload(self, image: Any, kind: str) -> dict[str, Any] | None:
        """Return the payload of a message for this frame, or None without a frame."""
        if kind == "none" or (frame := as_frame(image)) is None:
            return None
        height, width, _ = frame.shape
        size = {"mode": "rgb_array", "width": width, "height": height}
        if kind == "shm":
            with suppress(OSError):  # full or read-only shared memory: the frame travels in the message
                return {**size, "encoding": "raw", "path": self._write(frame)}
        return {**size, "encoding": "png", "data": base64.b64encode(png(frame)).decode()}

    def _write(self, frame: Any) -> str:
        if self._file is None:
            self._path.unlink(missing_ok=True)  # of a process that was killed
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, frame.tobytes(), 0)
        return str(self._path)

    def close(self) -> None:
        """Remove the file of frames."""
        if self._file is not None:
            os.close(self._file)
            self._path.unlink(missing_ok=True)
            self._file = None


# ---------------------------------------------------------------- lines between a player and the worker


_READ_BYTES = 65536
_LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes"""


def socket_of(folder: RunFolder) -> Path:
    """Return the path of the run's socket, short enough for the kernel even if the run folder is not."""
    inside = folder.root / "interactive.sock"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
        return inside

    private = short_folder()
    make_private_folder(private)
    return private / f"{hashlib.sha256(os.fsencode(folder.root)).hexdigest()[:16]}.sock"


class LineEnd(Protocol):
    """The other end."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message as one line."""

    def lines(self, timeout_s: float, longest: int) -> Iterator[bytes | None]:
        """Whole lines that came within this time; None: a new player has connected and waits for the greeting.

        A line that is too long comes cut, one byte longer than allowed; the rest of it is dropped.
        """

    @property
    def is_over(self) -> bool:
        """Whether no line can arrive any more."""

    def close(self) -> None:
        """Close the connection."""


class _Lines:
    """Splits bytes into lines with bounded memory."""

    def __init__(self) -> None:
        self._unread = b""
        self._skipping = False

    def feed(self, data: bytes, longest: int) -> Iterator[bytes]:
        *whole, rest = (self._unread + data).split(b"\n")
        self._unread = rest
        for line in whole:
            if self._skipping:
                self._skipping = False  # the end of a line that was yielded already
                continue
            yield line[: longest + 1]
        if len(self._unread) > longest:
            if not self._skipping:
                yield self._unread[: longest + 1]
            self._skipping, self._unread = True, b""


class Descriptors:
    """A client at standard input and output."""

    def __init__(self, input_fd: int, output_fd: int) -> None:
        self._input, self._output = input_fd, output_fd
        self._lines = _Lines()
        self._greeted = self._ended = False
        self._selector = selectors.DefaultSelector()
        try:
            self._selector.register(input_fd, selectors.EVENT_READ)
        except PermissionError:  # a plain file is always ready
            self._selector.close()
            self._selector = None  # type: ignore[assignment]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message as one line."""
        data = _encode(message)
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except BrokenPipeError:
            self._ended = True

    def lines(self, timeout_s: float, longest: int) -> Iterator[bytes | None]:
        """Yield the lines that have arrived."""
        if not self._greeted:
            self._greeted = True
            yield None
        if self._selector is not None and not self._selector.select(timeout_s):
            return
        data = os.read(self._input, _READ_BYTES)
        if not data:
            self._ended = True
            yield from self._lines.feed(b"\n", longest)  # a last line without its end
            return
        yield from self._lines.feed(data, longest)

    @property
    def is_over(self) -> bool:
        """Return whether the client has closed its end."""
        return self._ended

    def close(self) -> None:
        """Close both descriptors."""
        if self._selector is not None:
            self._selector.close()


class SocketServer:
    """A unix socket for one client at a time; the next client continues with the environment as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        earlier = os.umask(0o177)  # the file is private from its creation
        try:
            self._server.bind(str(path))
        finally:
            os.umask(earlier)
        self._server.listen(1)
        self._client: socket.socket | None = None
        self._lines = _Lines()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the player, if one is connected."""
        if self._client is not None:
            try:
                self._client.sendall(_encode(message))
            except OSError:
                self._disconnect()

    def lines(self, timeout_s: float, longest: int) -> Iterator[bytes | None]:
        """Yield the lines that have arrived; None for a player who has just connected."""
        if self._client is None:
            self._server.settimeout(timeout_s)
            try:
                self._client, _ = self._server.accept()
            except TimeoutError:
                return
            self._lines = _Lines()
            yield None
            return
        self._client.settimeout(timeout_s)
        try:
            data = self._client.recv(_READ_BYTES)
        except TimeoutError:
            return
        except OSError:
            data = b""
        finally:
            if self._client is not None:
                self._client.settimeout(None)
        if not data:
            self._disconnect()
            return
        yield from self._lines.feed(data, longest)

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def has_client(self) -> bool:
        """Return whether a player is connected."""
        return self._client is not None

    @property
    def is_over(self) -> bool:
        """Return False: another player can always connect."""
        return False

    def close(self) -> None:
        """Close the socket and remove its file."""
        self._disconnect()
        self._server.close()
        self._path.unlink(missing_ok=True)


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
