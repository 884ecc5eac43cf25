"""Several processes that learn one policy: the first leads, the others follow its orders.

Who starts them: `torchrun`, or the leader itself (`--world-size 2`), which is how it works through the daemon. Only the
leader has a run: it writes the events and checkpoints and hears the commands; followers learn of a pause or a stop by
there being no next order.

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
"""A paused run holds its followers for as long as it likes; one whose leader is gone is told so by the system"""
_LOOK_S = 0.05
_LEAVE_S = 20.0
"""How long a dismissed follower may take to end"""
RANK, LOCAL_RANK, WORLD_SIZE = "RANK", "LOCAL_RANK", "WORLD_SIZE"
"""torchrun's names for who a process is"""


class Order(IntEnum):
    """What the leader asks the others to do, all at the same point."""

    BEGIN = 1
    LEARN = 2
    SNAPSHOT = 3
    RESTORE = 4
    WEIGHTS = 5
    DISMISS = 6


class LeaderGone(Exception):
    """The leader has ended without a word; nobody would miss what a follower goes on to learn."""


class Team:
    """This process's place among the others, and how it talks with them."""

    def __init__(self, rank: int = 0, size: int = 1, *, backend: str = "gloo", store: str = "") -> None:
        self.rank, self.size = rank, size
        self._followers: list[subprocess.Popen[bytes]] = []
        self._folder: Path | None = None
        self._control: Any = None
        if size > 1:
            self._meet(backend, store)

    # -- coming together

    @classmethod
    def lead(cls, algo: str, args: Any) -> Team:
        """Be the first: of those torchrun started, of those this call starts, or alone."""
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
        """Be one of the others. Signals are for the leader, who decides where to stop."""
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
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all on this machine: nothing is offered to a network
        distributed.init_process_group(backend, rank=self.rank, world_size=self.size, timeout=_PATIENCE, **where)
        if backend != "gloo":  # orders and checkpoints lie in ordinary memory
            self._control = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    # -- learning together

    def average(self, tensor: torch.Tensor) -> None:
        """The mean over all processes, in place and everywhere the same to the bit."""
        if self.size > 1:
            with self._together():
                distributed.all_reduce(tensor)
            tensor.div_(self.size)

    def share(self, tensor: torch.Tensor) -> None:
        """The leader's, in place everywhere."""
        if self.size > 1:
            with self._together():
                distributed.broadcast(tensor, src=0)

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """What each process has, in order; to the leader only, followers get nothing."""
        if self.size == 1:
            return [array]
        mine = torch.from_numpy(np.ascontiguousarray(array))
        places = [torch.empty_like(mine) for _ in range(self.size)] if self.leads else None
        with self._together():
            distributed.gather(mine, places, dst=0, group=self._control)
        return [place.numpy() for place in places or ()]

    # -- orders

    def order(self, order: Order) -> None:
        """Tell everybody what comes next."""
        if self.size > 1:
            with self._together():
                distributed.broadcast(torch.tensor([int(order)]), src=0, group=self._control)

    def next_order(self) -> Order:
        """Wait for the leader."""
        received = torch.zeros(1, dtype=torch.int64)
        with self._together():
            distributed.broadcast(received, src=0, group=self._control)
        return Order(int(received))

    def send(self, rank: int, data: bytes) -> None:
        size = torch.tensor([len(data)])
        with self._together():
            distributed.send(size, dst=rank, group=self._control)
            distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), dst=rank, group=self._control)

    def receive(self, rank: int) -> bytes:
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
                raise LeaderGone(str(error)) from error
            ended = [f"{i + 1} ({p.returncode})" for i, p in enumerate(self._followers) if p.poll() is not None]
            which = f"process {', '.join(ended)} of this run has ended" if ended else "a process cannot be reached"
            raise TrainingStopped(
                f"{which}; what it said last is in stderr. Resume from the last checkpoint"
            ) from error

    # -- parting

    def close(self) -> None:
        """Send everybody home; those the leader has started are ended if they do not go."""
        if self.size == 1:
            return
        if self.leads:
            with suppress(TrainingStopped):  # that somebody has gone already is no reason to stay
                self.order(Order.DISMISS)
        distributed.destroy_process_group()
        _end(self._followers)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def check_backend(backend: str) -> None:
    if not getattr(distributed, f"is_{backend}_available")():
        raise BadInput(f"--backend {backend}: this build of torch does not have it; use --backend gloo")


def _start_follower(algo: str, args: Any, rank: int, store: Path) -> subprocess.Popen[bytes]:
    values = {name: value for name, value in asdict(args).items() if value is not None}
    variables = {RANK: str(rank), LOCAL_RANK: str(rank), WORLD_SIZE: str(args.world_size)}
    # The leader's pipes stay its own: the worker must see their end when the leader has gone.
    inherited = {k: v for k, v in os.environ.items() if k not in (env.CLEANRL_CONTROL_FD, env.CLEANRL_PROGRESS_FD)}
    return subprocess.Popen(
        [sys.executable, "-m", "cleanrl_worker.algorithms", algo, *flags_of(values)],
        env={**inherited, **variables, env.CLEANRL_TEAM_STORE: str(store)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _wait_for(followers: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until each has said that it is there; the meeting itself would wait for one that failed on its way, for ever."""
    for rank, follower in enumerate(followers, start=1):
        while not (folder / str(rank)).exists():
            if follower.poll() is not None:
                raise TrainingStopped(
                    f"process {rank} of this run could not start (exit code {follower.returncode}); stderr says why"
                )
            time.sleep(_LOOK_S)


def _end(followers: Sequence[subprocess.Popen[bytes]]) -> None:
    for follower in followers:
        try:
            follower.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            follower.kill()
            follower.wait()


# ---------------------------------------------------------------- state on its way from one process to another


def pack(arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> bytes:
    """Arrays and JSON values in one piece."""
    document = json.dumps(dict(values)).encode()
    return (
        len(document).to_bytes(8, "little") + document + save({k: np.asarray(v, order="C") for k, v in arrays.items()})
    )


def unpack(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    size = int.from_bytes(data[:8], "little")
    return load(data[8 + size :]), json.loads(data[8 : 8 + size])
