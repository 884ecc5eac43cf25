"""The spaces of environments as an algorithm gets them.

    python -m cleanrl_worker.environment_probe '[["CartPole-v1", {}, "plain", "auto"]]'

Runs in the interpreter of the run's requirement sets, apart from everything else: making an environment executes
foreign code, which may be slow, print or crash. Prints one JSON list on its last line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any


def main() -> int:
    """Make each environment once and print its spaces, or why it cannot be made."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some environments print while they are made
    requests = json.loads(sys.argv[1])
    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with answer:
        answer.write(json.dumps([probe(*request) for request in requests]) + "\n")
    return 0


def probe(env_id: str, env_kwargs: Mapping[str, Any], pipeline: str = "plain", backend: str = "auto") -> dict[str, Any]:
    """Return the spaces as an algorithm with this pipeline gets them; check that this backend can step it."""
    import gymnasium
    from mosaic_wire.env_kwargs import mistyped_switch

    from cleanrl_worker.errors import BadInput
    from cleanrl_worker.training.envs import environment_errors, make_single
    from cleanrl_worker.training.envs.factory import check_backend

    try:
        with environment_errors(env_id):
            env = make_single(env_id, env_kwargs, pipeline=pipeline)
            check_backend(env_id, env_kwargs, pipeline, backend)
    except BadInput as error:
        close = _nearest(env_id, error.__cause__)
        return {"problem": f"unknown environment {env_id!r}" if close else str(error), "suggestion": close}
    except Exception as error:  # noqa: BLE001 - the boundary to foreign code: whatever it raises is the answer
        return {
            "problem": f"environment {env_id!r} cannot be made: {type(error).__name__}: {error}",
            "suggestion": None,
        }
    try:
        registered = gymnasium.registry.get(env.spec.id) if env.spec is not None else None
        if registered is not None and (wrong := mistyped_switch(registered, env_kwargs)):
            return {"problem": f"--env-kwargs of {env_id}: {wrong}", "suggestion": None}
        return {
            "observation": _observation(env.observation_space),
            "action": _action(env.action_space),
            "draws": "rgb_array" in (env.metadata.get("render_modes") or ()),
            "gymnasium": gymnasium.__version__,
        }
    finally:
        env.close()


def _nearest(env_id: str, cause: BaseException | None) -> str | None:
    import gymnasium
    from mosaic_wire.worker_spec import nearest

    unknown = gymnasium.error.NameNotFound | gymnasium.error.VersionNotFound | gymnasium.error.NamespaceNotFound
    module, separator, name = env_id.rpartition(":")
    close = nearest(name, gymnasium.registry) if isinstance(cause, unknown) else None
    return f"{module}{separator}{close}" if close else None


def _observation(space: Any) -> dict[str, Any]:
    import gymnasium
    import numpy

    kind = "other"
    if isinstance(space, gymnasium.spaces.Box):
        kind = {1: "vector", 3: "image"}.get(len(space.shape), "other")
    shape = list(space.shape) if space.shape is not None else None
    size = int(numpy.prod(shape)) if shape is not None else None
    item = numpy.dtype(space.dtype).itemsize if space.dtype is not None else 1
    return {
        "kind": kind,
        "shape": shape,
        "size": size,
        "bytes": None if size is None else size * item,
        "text": str(space),
    }


def _action(space: Any) -> dict[str, Any]:
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return {"kind": "discrete", "count": int(space.n), "text": str(space)}
    if isinstance(space, gymnasium.spaces.Box):
        return {"kind": "continuous", "count": int(space.shape[0]) if space.shape else 1, "text": str(space)}
    return {"kind": "other", "count": None, "text": str(space)}


if __name__ == "__main__":
    sys.exit(main())
