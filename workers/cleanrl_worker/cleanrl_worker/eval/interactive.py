"""The interactive protocol: one JSON object a line, a command in, its answer out.

In    {"cmd": "reset", "seed"?, "frames"?: "png" | "shm" | "none"}, {"cmd": "step", "action"?}, {"cmd": "ping" | "stop"}
Out   init, ready, step, episode_done, pong, stopped, error; the key `type` says which

A step without an action is the policy's, or a random one without a policy. `episode_done` follows the last step of an
episode; a step after it, without a reset, is an error and steps nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from mosaic_wire.worker_spec import nearest

from cleanrl_worker.eval.frames import KINDS, FrameSink
from cleanrl_worker.training.acting import Policy
from cleanrl_worker.training.remembering import tell_episodes

COMMANDS = ("reset", "step", "ping", "stop")
LONGEST_LINE = 1 << 20
_LARGEST_SEED = 2**31 - 1

Send = Callable[[Mapping[str, Any]], None]


class BadCommand(Exception):
    """A line that cannot be obeyed, and why; nothing has happened."""


class InteractiveSession:
    """Answers lines; the environment moves only by `reset` and `step`."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        env_id: str,
        policy: Policy | None,
        frames: FrameSink,
        send: Send,
        *,
        run_id: str = "",
    ) -> None:
        self._env, self._env_id, self._policy, self._frames, self._send = env, env_id, policy, frames, send
        self._run_id = run_id
        self._obs: Any = None
        self._playing = False
        self._frame_kind = "png"
        self.steps = 0
        """over all episodes"""
        self.last_return: float | None = None
        self._episode, self._step_index, self._episode_reward = -1, 0, 0.0

    @property
    def episodes(self) -> int:
        """begun so far"""
        return self._episode + 1

    def greet(self) -> None:
        """Say what can be played here."""
        self._send({
            "type": "init", "run_id": self._run_id, "env_id": self._env_id, "policy": self._policy is not None,
            "action_space": describe_space(self._env.action_space),
            "observation_space": describe_space(self._env.observation_space),
            "commands": list(COMMANDS), "frames": list(KINDS) if self._env.render_mode == "rgb_array" else ["none"],
        })  # fmt: skip

    def answer(self, line: bytes) -> bool:
        """Obey one line; False when it was the last."""
        if not line.strip():
            return True
        try:
            command = _parse(line)
            match command["cmd"]:
                case "ping":
                    self._send({"type": "pong"})
                case "stop":
                    self.say_goodbye()
                    return False
                case "reset":
                    self._reset(command)
                case "step":
                    self._step(command)
        except BadCommand as problem:
            self._send({"type": "error", "message": str(problem)})
        return True

    def say_goodbye(self) -> None:
        self._send({"type": "stopped", "steps": self.steps, "episodes": self._episode + 1})

    def _reset(self, command: Mapping[str, Any]) -> None:
        seed, kind = command.get("seed"), command.get("frames", self._frame_kind)
        if seed is not None and (type(seed) is not int or not 0 <= seed <= _LARGEST_SEED):
            raise BadCommand(f"seed must be a whole number from 0 to {_LARGEST_SEED}, not {seed!r:.60}")
        if kind not in KINDS:
            raise BadCommand(f"frames must be one of {', '.join(KINDS)}, not {kind!r:.60}")
        self._frame_kind = kind
        self._obs, _ = self._env.reset(seed=seed)
        if seed is not None:
            self._env.action_space.seed(seed)
        self._playing = True
        self._episode, self._step_index, self._episode_reward = self._episode + 1, 0, 0.0
        self._send({
            "type": "ready", "seed": seed, "episode_index": self._episode, "observation": _plain(self._obs),
            "render_payload": self._picture(),
        })  # fmt: skip

    def _step(self, command: Mapping[str, Any]) -> None:
        if not self._playing:
            over = "the episode is over" if self._episode >= 0 else "no episode has begun"
            raise BadCommand(f'{over}; send {{"cmd": "reset"}} first')
        action, source = self._action(command)
        try:
            self._obs, reward, terminated, truncated, _ = self._env.step(action)
        except Exception as error:  # whatever it raises, the other end hears of it before the run fails
            self._send({"type": "error", "message": f"the environment failed: {type(error).__name__}: {error}"})
            raise
        self._episode_reward += float(reward)
        self._send({
            "type": "step", "step_index": self._step_index, "episode_index": self._episode, "action": _plain(action),
            "action_source": source, "reward": float(reward), "terminated": bool(terminated),
            "truncated": bool(truncated), "episode_reward": self._episode_reward, "observation": _plain(self._obs),
            "render_payload": self._picture(),
        })  # fmt: skip
        self._step_index += 1
        self.steps += 1
        if terminated or truncated:
            self._playing, self.last_return = False, self._episode_reward
            self._send({
                "type": "episode_done", "episode_index": self._episode, "episode_reward": self._episode_reward,
                "episode_length": self._step_index, "terminated": bool(terminated), "truncated": bool(truncated),
            })  # fmt: skip

    def _action(self, command: Mapping[str, Any]) -> tuple[Any, str]:
        space = self._env.action_space
        if command.get("action") is not None:
            return to_action(space, command["action"]), "client"
        if self._policy is None:
            return space.sample(), "random"
        tell_episodes(self._policy, [self._episode])
        chosen = self._policy.act(np.asarray(self._obs)[None], None)[0]
        if isinstance(space, gym.spaces.Discrete):
            return int(chosen) + int(space.start), "policy"
        if isinstance(space, gym.spaces.Box):
            chosen = np.clip(chosen, space.low, space.high).astype(space.dtype)
        return chosen, "policy"

    def _picture(self) -> dict[str, Any] | None:
        if self._frame_kind == "none" or self._env.render_mode != "rgb_array":
            return None
        return self._frames.payload(self._env.render(), self._frame_kind)


def _parse(line: bytes) -> dict[str, Any]:
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


def to_action(space: gym.Space[Any], value: Any) -> Any:
    """A JSON value as an action of this space; BadCommand says what the space would take."""
    wanted = f"an action of {space}"
    if isinstance(space, gym.spaces.Discrete):
        action: Any = int(value) if _is_number(value) and value == int(value) else None
    else:
        try:
            action = np.array(value, dtype=space.dtype)
            if isinstance(space, gym.spaces.Box):
                action = action.reshape(space.shape) if action.size == math.prod(space.shape) else None
            elif isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
                action = action if np.array_equal(action, np.array(value, dtype=float)) else None
        except (TypeError, ValueError, OverflowError):
            action = None
    if action is None or not space.contains(action):
        raise BadCommand(f"{json.dumps(value)[:80]} is not {wanted}")
    return action


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def describe_space(space: gym.Space[Any]) -> dict[str, Any]:
    """What a client needs to draw buttons or sliders."""
    told: dict[str, Any] = {
        "type": type(space).__name__,
        "shape": list(space.shape) if space.shape is not None else None,
    }
    if isinstance(space, gym.spaces.Discrete):
        told |= {"n": int(space.n), "start": int(space.start)}
    elif isinstance(space, gym.spaces.MultiDiscrete):
        told["nvec"] = space.nvec.tolist()
    elif isinstance(space, gym.spaces.Box) and math.prod(space.shape) <= 64:
        told |= {"low": _plain(space.low), "high": _plain(space.high)}
    return told


def _plain(value: Any) -> Any:
    """A JSON value; numbers JSON does not have become null, and a picture is not repeated as a list."""
    if isinstance(value, np.ndarray):
        if value.ndim == 3 and value.size > 1024:
            return None
        return [_plain(item) for item in value.tolist()] if value.ndim else _plain(value.item())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
