"""Several processes that train one policy: the first is the leader, the rest follow its instructions.

They are started by `torchrun`, or by the leader (`--world-size 2`), as in runs of the daemon. Only the leader has a
run: it writes events and checkpoints and receives commands; while it is paused, followers wait for the next
instruction.

    team = Team.lead(algo, args)            in `train`; a team of one needs no other process and no network
    team = Team.join(args)                  in `follow`, in every other process
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mosaic_wire import env
from safetensors.numpy import load, save
from torch import distributed

from cleanrl_worker.config import flags_of
from cleanrl_worker.errors import BadInput, TrainingStopped

_PATIENCE = timedelta(days=365)
"""Followers of a paused run wait without a limit; the operating system reports a leader that exited"""
_POLL_S = 0.05
_LEAVE_S = 20.0
"""How long a dismissed follower may take to exit"""
RANK, LOCAL_RANK, WORLD_SIZE = "RANK", "LOCAL_RANK", "WORLD_SIZE"
"""torchrun's environment variables of a process"""


class Instruction(IntEnum):
    """What all processes do next."""

    BEGIN = 1
    LEARN = 2
    SNAPSHOT = 3
    RESTORE = 4
    WEIGHTS = 5
    DISMISS = 6


class LeaderLost(Exception):
    """The leader exited without dismissing this follower, which therefore exits, too."""


class Team:
    """This process's rank, and its communication with the other processes."""

    def __init__(self, rank: int = 0, size: int = 1, *, backend: str = "gloo", store: str = "") -> None:
        self.rank, self.size = rank, size
        self._followers: list[subprocess.Popen[bytes]] = []
        self._folder: Path | None = None
        self._control: Any = None
        if size > 1:
            self._meet(backend, store)

    # -- setup

    @classmethod
    def lead(cls, algo: str, args: Any) -> Team:
        """Return the leader's team: with processes of torchrun, with processes started here, or alone."""
        started = int(os.environ.get(WORLD_SIZE, "1"))
        if started > 1:
            if args.world_size not in (0, started):
                raise BadInput(f"--world-size {args.world_size}: torchrun started {started} processes; leave it out")
            return cls(0, started, backend=args.backend)
        if args.world_size <= 1:
            return cls()
        check_backend(args.backend)
        folder = Path(tempfile.mkdtemp(prefix="mosaic-team-"))
        followers: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(1, args.world_size):
                followers.append(_start_follower(algo, args, rank, folder / "store"))
            _wait_for(followers, folder)
            team = cls(0, args.world_size, backend=args.backend, store=str(folder / "store"))
        except BaseException:
            _end(followers)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        team._followers, team._folder = followers, folder
        return team

    @classmethod
    def join(cls, args: Any) -> Team:
        """Return a follower's team. Signals are ignored: the leader decides where to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        store = os.environ.get(env.CLEANRL_TEAM_STORE, "")
        if store:
            Path(store).with_name(os.environ[RANK]).touch()
        return cls(int(os.environ[RANK]), int(os.environ[WORLD_SIZE]), backend=args.backend, store=store)

    def _meet(self, backend: str, store: str) -> None:
        check_backend(backend)
        where: dict[str, Any] = {"init_method": f"file://{store}"} if store else {"init_method": "env://"}
        if store:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all on this machine: no open port on the network
        distributed.init_process_group(backend, rank=self.rank, world_size=self.size, timeout=_PATIENCE, **where)
        if backend != "gloo":  # instructions and checkpoints are in CPU memory
            self._control = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def leads(self) -> bool:
        """Return whether this process is the leader."""
        return self.rank == 0

    # -- collective operations

    def average(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its mean over all processes, the same everywhere to the bit."""
        if self.size > 1:
            with self._together():
                distributed.all_reduce(tensor)
            tensor.div_(self.size)

    def share(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by the leader's in all processes."""
        if self.size > 1:
            with self._together():
                distributed.broadcast(tensor, src=0)

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all processes in the leader, an empty list in followers."""
        if self.size == 1:
            return [array]
        own = torch.from_numpy(np.ascontiguousarray(array))
        gathered = [torch.empty_like(own) for _ in range(self.size)] if self.leads else None
        with self._together():
            distributed.gather(own, gathered, dst=0, group=self._control)
        return [tensor.numpy() for tensor in gathered or ()]

    # -- instructions

    def order(self, order: Instruction) -> None:
        """Broadcast the next instruction to all followers."""
        if self.size > 1:
            with self._together():
                distributed.broadcast(torch.tensor([int(order)]), src=0, group=self._control)

    def next_order(self) -> Instruction:
        """Wait for the leader's next instruction."""
        received = torch.zeros(1, dtype=torch.int64)
        with self._together():
            distributed.broadcast(received, src=0, group=self._control)
        return Instruction(int(received))

    def send(self, rank: int, data: bytes) -> None:
        """Send bytes to one process."""
        size = torch.tensor([len(data)])
        with self._together():
            distributed.send(size, dst=rank, group=self._control)
            distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), dst=rank, group=self._control)

    def receive(self, rank: int) -> bytes:
        """Receive bytes from one process."""
        size = torch.zeros(1, dtype=torch.int64)
        with self._together():
            distributed.recv(size, src=rank, group=self._control)
            data = torch.empty(int(size), dtype=torch.uint8)
            distributed.recv(data, src=rank, group=self._control)
        return data.numpy().tobytes()

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo and nccl have no other class for a lost connection
            if not self.leads:
                raise LeaderLost(str(error)) from error
            ended = [f"{i + 1} ({p.returncode})" for i, p in enumerate(self._followers) if p.poll() is not None]
            which = f"process {', '.join(ended)} of this run has ended" if ended else "a process cannot be reached"
            raise TrainingStopped(f"{which}; its last output is in stderr. Resume from the last checkpoint") from error

    # -- teardown

    def close(self) -> None:
        """Dismiss the followers; those started by the leader are killed if they do not exit."""
        if self.size == 1:
            return
        if self.leads:
            with suppress(TrainingStopped):  # a follower may have exited already
                self.order(Instruction.DISMISS)
        distributed.destroy_process_group()
        _end(self._followers)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def check_backend(backend: str) -> None:
    """Raise BadInput if this build of torch lacks the backend."""
    if not getattr(distributed, f"is_{backend}_available")():
        raise BadInput(f"--backend {backend}: this build of torch does not have it; use --backend gloo")


def _start_follower(algo: str, args: Any, rank: int, store: Path) -> subprocess.Popen[bytes]:
    values = {name: value for name, value in asdict(args).items() if value is not None}
    variables = {RANK: str(rank), LOCAL_RANK: str(rank), WORLD_SIZE: str(args.world_size)}
    # Followers do not inherit the leader's pipes: the worker must see them closed when the leader exits.
    inherited = {k: v for k, v in os.environ.items() if k not in (env.CLEANRL_CONTROL_FD, env.CLEANRL_PROGRESS_FD)}
    return subprocess.Popen(
        [sys.executable, "-m", "cleanrl_worker.algorithms", algo, *flags_of(values)],
        env={**inherited, **variables, env.CLEANRL_TEAM_STORE: str(store)},
        stdin=subprocess.DEVNULL,
    )


def _wait_for(followers: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until each follower has started; the process group itself would wait for a failed one without a limit."""
    for rank, follower in enumerate(followers, start=1):
        while not (folder / str(rank)).exists():
            if follower.poll() is not None:
                raise TrainingStopped(
                    f"process {rank} of this run could not start (exit code {follower.returncode}), see stderr"
                )
            time.sleep(_POLL_S)


def _end(followers: Sequence[subprocess.Popen[bytes]]) -> None:
    for follower in followers:
        try:
            follower.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            follower.kill()
            follower.wait()


# ---------------------------------------------------------------- state sent between processes


def pack(arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> bytes:
    """Return arrays and JSON values as bytes."""
    document = json.dumps(dict(values)).encode()
    return (
        len(document).to_bytes(8, "little") + document + save({k: np.asarray(v, order="C") for k, v in arrays.items()})
    )


def unpack(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and values that `pack` was given."""
    size = int.from_bytes(data[:8], "little")
    return load(data[8 + size :]), json.loads(data[8 : 8 + size])
