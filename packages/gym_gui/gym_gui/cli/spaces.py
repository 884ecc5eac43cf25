"""Which kind of actions and observations an environment has, asked of Gymnasium in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

_QUESTION = """
import json, sys, warnings
warnings.simplefilter("ignore")
import gymnasium
from gymnasium import spaces
def kind(space, box):
    if isinstance(space, spaces.Box):
        return box(space)
    for type_, name in ((spaces.Discrete, "discrete"), (spaces.MultiDiscrete, "multi_discrete"),
                        (spaces.MultiBinary, "multi_binary"), (spaces.Dict, "dict"), (spaces.Tuple, "tuple")):
        if isinstance(space, type_):
            return name
    return type(space).__name__.lower()
env = gymnasium.make(sys.argv[1])
print(json.dumps([kind(env.action_space, lambda _: "continuous"),
                  kind(env.observation_space, lambda space: "image" if len(space.shape) == 3 else "vector")]))
"""


def spaces_of(env_id: str) -> tuple[str, str] | None:
    """(actions, observations) such as ("discrete", "vector"); None when nobody here can tell."""
    if importlib.util.find_spec("gymnasium") is None:
        return None
    try:
        # The environment's code is not ours: it gets no part of this process and no longer than it needs.
        answer = subprocess.run(
            [sys.executable, "-c", _QUESTION, env_id],
            capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        actions, observations = json.loads(answer.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError, OSError):
        return None
    return str(actions), str(observations)
