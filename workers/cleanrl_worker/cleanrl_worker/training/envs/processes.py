"""Single environments stepped in separate processes: the same transitions, on several cores.

Each process has a `SyncEnvs` with some of the environments, so seeds, resets and snapshots are the same as in one
process, and a checkpoint can be resumed with either. The processes are started as new programs (`child`): a fork of a
process with torch's threads may hang.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.envs.sync import SyncEnvs, join_states, split_states
from cleanrl_worker.training.envs.vector import EnvState, Step

CHILD = "cleanrl_worker.training.envs.child"
_END_S = 5.0


class AsyncEnvs:
    """Environments in processes; `step_async` and `step_wait` let the caller do something else in between."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        pipeline: str = "plain",
        processes: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        count = min(num_envs, processes or len(os.sched_getaffinity(0)))
        bounds = [round(index * num_envs / count) for index in range(count + 1)]
        self._rows = [slice(start, end) for start, end in pairwise(bounds)]
        self._children: list[_Child] = []
        try:
            for rows in self._rows:
                child = _Child(env_id, rows.stop - rows.start, dict(env_kwargs or {}), pipeline)
                self._children.append(child)
            spaces: list[tuple[gym.Space, gym.Space]] = [child.answer() for child in self._children]
        except BaseException:
            self.close()
            raise
        self.observation_space, self.action_space = spaces[0]
        self._is_stepping = False

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""
        for child, rows in zip(self._children, self._rows, strict=True):
            child.ask("reset", seed + rows.start)
        return np.concatenate([child.answer() for child in self._children])

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: np.ndarray) -> None:
        """Begin a step; nothing but `step_wait` may follow."""
        assert not self._is_stepping
        for child, rows in zip(self._children, self._rows, strict=True):
            child.ask("step", actions[rows])
        self._is_stepping = True

    def step_wait(self) -> Step:
        """Return the result of the step begun with `step_async`."""
        assert self._is_stepping
        steps: list[Step] = [child.answer() for child in self._children]
        self._is_stepping = False
        joined = [np.concatenate(parts) if parts[0] is not None else None for parts in zip(*steps, strict=True)]
        return Step(*joined)  # type: ignore[arg-type]

    def snapshot(self) -> EnvState:
        """Return the state for a checkpoint, the same as of `SyncEnvs`."""
        for child in self._children:
            child.ask("snapshot")
        states: list[EnvState] = [child.answer() for child in self._children]
        obs = np.concatenate([state.arrays["obs"] for state in states])
        return join_states(obs, [single for state in states for single in split_states(state)])

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore a snapshot and return its observations; None if that is not possible."""
        if state.values.get("backend") != SyncEnvs.backend or len(state.values["states"]) != self.num_envs:
            return None
        singles = split_states(state)
        for child, rows in zip(self._children, self._rows, strict=True):
            child.ask("restore", join_states(state.arrays["obs"][rows], singles[rows]))
        answers: list[np.ndarray | None] = [child.answer() for child in self._children]
        return np.concatenate(answers) if all(answer is not None for answer in answers) else None  # type: ignore[arg-type]

    def draw(self, indices: Sequence[int]) -> list[np.ndarray] | str:
        """Return frames of some of the environments, rendered in their processes, or why there are none."""
        assert not self._is_stepping
        frames = []
        for child, rows in zip(self._children, self._rows, strict=True):
            if own := [index - rows.start for index in indices if rows.start <= index < rows.stop]:
                child.ask("draw", own)
                answer: list[np.ndarray] | str = child.answer()
                if isinstance(answer, str):
                    return answer
                frames += answer
        return frames

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.disconnect()
        for child in self._children:
            child.end()
        self._children = []


class _Child:
    """One process and the connection to it."""

    def __init__(self, env_id: str, num_envs: int, env_kwargs: Mapping[str, Any], pipeline: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-m", CHILD, str(theirs.fileno())]
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._line = Connection(ours.detach())
        self._env_id = env_id
        # With this process's sys.path, so that it finds the same environments.
        self.ask("make", (list(sys.path), env_id, num_envs, dict(env_kwargs), pipeline))

    def ask(self, command: str, argument: Any = None) -> None:
        try:
            self._line.send((command, argument))
        except OSError as error:
            raise self._exited() from error

    def answer(self) -> Any:
        try:
            kind, answer = self._line.recv()
        except (EOFError, OSError) as error:
            raise self._exited() from error
        if kind == "refused":
            raise BadInput(answer)
        if kind == "failed":
            raise TrainingStopped(f"{self._env_id} failed in its process: {answer}")
        return answer

    def _exited(self) -> TrainingStopped:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return TrainingStopped(
            f"a process of {self._env_id} ended by itself (exit code {self._process.returncode}); "
            "with --env-backend sync the environments run in the training process"
        )

    def disconnect(self) -> None:
        self._line.close()

    def end(self) -> None:
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
