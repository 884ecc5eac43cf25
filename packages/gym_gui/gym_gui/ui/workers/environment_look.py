"""What an environment looks like: its spaces in words and one picture of it, asked in a process of its own. No Qt.

Making an environment runs other people's code, which may be slow, print or crash; it gets the worker's interpreter, a
time limit and no part of this process. Call it off the window's thread.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import dataclass

TIMEOUT_S = 60.0
_MOST_PIXELS = 240

_QUESTION = """
import base64, json, os, sys, warnings
warnings.simplefilter("ignore")
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # some environments print while they are made
import logging
logging.disable(logging.WARNING)
import gymnasium
from gymnasium import spaces
def kind(space):
    if isinstance(space, spaces.Box):
        return {1: "vector", 3: "image"}.get(len(space.shape), "other")
    names = ((spaces.Discrete, "discrete"), (spaces.MultiDiscrete, "multi_discrete"), (spaces.Dict, "dict"))
    return next((name for type_, name in names if isinstance(space, type_)), type(space).__name__.lower())
def text(space):
    if isinstance(space, spaces.Box):
        return f"Box{tuple(int(side) for side in space.shape)}"
    return str(space)[:80]
env_id, most = sys.argv[1], int(sys.argv[2])
told = {}
def look(render_mode):
    env = gymnasium.make(env_id, render_mode=render_mode)
    action = "continuous" if isinstance(env.action_space, spaces.Box) else kind(env.action_space)
    told.update(actions=action, observations=kind(env.observation_space), action_text=text(env.action_space),
                observation_text=text(env.observation_space))
    return env
try:
    env = look("rgb_array")
    env.reset(seed=1)
    frame = env.render()
    stride = max(1, -(-max(frame.shape[:2]) // most))
    frame = frame[::stride, ::stride, :3].astype("uint8")
    told.update(height=frame.shape[0], width=frame.shape[1], picture=base64.b64encode(frame.tobytes()).decode())
except Exception as error:
    try:
        if not told:
            look(None)
    except Exception as error:
        told["problem"] = f"{type(error).__name__}: {error}"
with answer:
    answer.write(json.dumps(told))
os._exit(0)  # what a renderer leaves behind must not hang the end
"""


@dataclass(frozen=True)
class EnvironmentLook:
    """What could be found out."""

    env_id: str
    actions: str = ""
    """discrete, continuous …; empty: not known"""
    observations: str = ""
    action_text: str = ""
    observation_text: str = ""
    picture: bytes = b""
    """RGB, `width` × `height`; empty: there is none"""
    width: int = 0
    height: int = 0
    problem: str = ""


def look_at(python: str, env_id: str, *, timeout_s: float = TIMEOUT_S) -> EnvironmentLook:
    """Make the environment with this interpreter and look at it once."""
    quiet = {"SDL_VIDEODRIVER": "dummy", "CUDA_VISIBLE_DEVICES": "", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    variables = {**os.environ, **quiet}
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, env_id, str(_MOST_PIXELS)],
            capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL, env=variables, cwd="/",
        )  # fmt: skip
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return EnvironmentLook(env_id, problem=f"it could not be made within {timeout_s:g} s")
    except OSError as error:
        return EnvironmentLook(env_id, problem=f"{python} cannot be started: {error.strerror or error}")
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        return EnvironmentLook(env_id, problem=f"making it ended with exit code {done.returncode}: {last[0][:300]}")
    picture = base64.b64decode(told.pop("picture", ""))
    problem = " ".join(str(told.pop("problem", "")).split())[:300]
    return EnvironmentLook(env_id, picture=picture, problem=problem, **told)
