"""A process with some of the environments (see `processes`): obeys the line it was given until that is closed."""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection
from typing import Any


def main() -> int:
    """Make the environments, then answer."""
    # A stop is for the training process: it still needs its environments up to the next safe point. When it has exited,
    # the line is closed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line = Connection(int(sys.argv[1]))
    try:
        _, (path, *what) = line.recv()
        sys.path[:] = path
        _serve(line, *what)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    return 0


def _serve(line: Connection, env_id: str, num_envs: int, env_kwargs: dict[str, Any], pipeline: str) -> None:
    from cleanrl_worker.errors import BadInput
    from cleanrl_worker.training.envs.construction import environment_errors
    from cleanrl_worker.training.envs.sync import SyncEnvs

    try:
        with environment_errors(env_id):
            envs = SyncEnvs(env_id, num_envs, env_kwargs, pipeline=pipeline)
        line.send(("made", (envs.observation_space, envs.action_space)))
        while True:
            command, argument = line.recv()
            do = getattr(envs, command)
            line.send(("done", do(argument) if argument is not None else do()))
    except (EOFError, OSError):
        raise
    except BadInput as error:
        line.send(("refused", str(error)))
    except Exception as error:  # noqa: BLE001 - other people's environments: the training process reports any error
        line.send(("failed", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    sys.exit(main())
