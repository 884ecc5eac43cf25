"""The batch step of a run in Slurm: starts the worker on its node and ends the whole process tree with it.

    python -m gym_gui.services.trainer.executors.guard LAUNCH_FILE

It is the local executor on another machine. SIGTERM ends the tree, SIGUSR1 stops it, SIGUSR2 continues it. Slurm tracks
processes by their parents or not at all where it has no cgroups, so a second process ends the tree when this one dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from mosaic_wire import env
from mosaic_wire.errors import SessionError
from mosaic_wire.files import read_json_object
from mosaic_wire.node import Bootstrap
from mosaic_wire.node.relay import TlsRelay
from mosaic_wire.paths import Home

from gym_gui.services.trainer.certificates import NodeCertificates
from gym_gui.services.trainer.errors import SpawnFailed
from gym_gui.services.trainer.executors.handover import NodeReport, take
from gym_gui.services.trainer.executors.local import LocalExecutor, is_held
from gym_gui.services.trainer.launch import Launch
from gym_gui.services.trainer.process_tree import signal_all, tree_of

_LIMIT_POLL_S = 2.0
_LEFTOVER_GRACE_S = 2.0
_WAIT_POLL_S = 0.5
_DAEMON_S = 600.0
"""How long a node is held while no daemon answers; a worker itself waits for a minute"""
_EARLIER_ATTEMPT_S = 120.0
_GPU_VARIABLES = (env.CUDA_VISIBLE_DEVICES, "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
_OF_THE_JOB = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CLUSTER_NAME")


def main(arguments: list[str]) -> int:
    """Run the launch that waits in this file."""
    file = Path(arguments[0])
    launch = take(file)
    if launch is None:
        _print("this run was withdrawn before the job started: nothing to do")
        return 0
    launch = replace(launch, env=environment_on_node(launch, os.environ))
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    start_sentinel(launch.mark)
    with ExitStack() as opened:
        authority = NodeCertificates.below(file.parent.parent).authority
        report = asyncio.run(_run(launch, NodeReport(launch.mark, node), authority, opened))
    if report.problem:
        _print(report.problem)
    report.write(launch.stdout.parent)
    code = report.exit_code
    return 1 if code is None else code if code >= 0 else 128 - code


def environment_on_node(launch: Launch, job: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment: the daemon's, with the GPUs that Slurm has chosen on this node.

    A run without GPUs keeps the empty list of the launch: without device cgroups it would see all of them.
    """
    environment = dict(launch.env)
    if launch.gpus:
        environment.pop(env.CUDA_VISIBLE_DEVICES, None)
        environment |= {name: job[name] for name in _GPU_VARIABLES if name in job}
    return environment | {name: job[name] for name in _OF_THE_JOB if name in job}


def start_sentinel(mark: str) -> None:
    """Start a process that kills every process with this mark as soon as this one is dead, however it died."""
    reading, writing = os.pipe()  # no child inherits the writing end, so it closes with this process
    if (child := os.fork()) == 0:
        os.close(writing)
        os.setsid()
        if os.fork() == 0:
            _keep_watch(reading, mark)
        os._exit(0)
    os.close(reading)
    os.waitpid(child, 0)


def _keep_watch(reading: int, mark: str) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        os.read(reading, 1)
        find_tree = partial(tree_of, None, mark)
        while signal_all(find_tree, signal.SIGKILL):
            time.sleep(0.05)
    finally:
        os._exit(0)


async def _run(launch: Launch, report: NodeReport, authority: Path, opened: ExitStack) -> NodeReport:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    if problem := await _wait_until_ready(launch, stopping):
        return replace(report, problem=problem, is_interruption=True)
    try:
        launch = through_the_door_for_nodes(launch, authority, opened)
    except (SessionError, OSError) as error:
        return replace(report, problem=f"{report.node} has no way to the daemon: {error}")
    executor = LocalExecutor(use_cgroups=False)  # the node's groups are Slurm's
    try:
        worker = await executor.submit(launch)
    except SpawnFailed as error:
        return replace(report, problem=f"it could not be started on {report.node}: {error}")
    finally:
        executor.close()
    for number, sent in ((signal.SIGUSR1, signal.SIGSTOP), (signal.SIGUSR2, signal.SIGCONT)):
        loop.add_signal_handler(number, worker.signal_tree, sent)
    exited, stopped = asyncio.create_task(worker.wait()), asyncio.create_task(stopping.wait())
    limit = None
    while not (exited.done() or stopped.done() or limit):
        await asyncio.wait({exited, stopped}, timeout=_LIMIT_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        limit = None if exited.done() else await asyncio.to_thread(worker.limit_hit)
    await worker.stop_tree(_LEFTOVER_GRACE_S if exited.done() else launch.grace_s)
    stopped.cancel()
    return replace(report, exit_code=await exited, problem=limit or "", was_told_to_end=stopping.is_set())


async def _wait_until_ready(launch: Launch, stopping: asyncio.Event) -> str:
    """Wait for the end of an earlier attempt and for the daemon; return what is in the way after all."""
    waits = (
        (_EARLIER_ATTEMPT_S, lambda: not is_held(launch.stdout), "an earlier attempt of this run is still running"),
        (_DAEMON_S, lambda: not (at := _target(launch)) or _answers(at), "{target} does not answer from this node"),
    )
    for limit_s, holds, problem in waits:
        deadline = time.monotonic() + limit_s
        while not await asyncio.to_thread(holds):
            if stopping.is_set() or time.monotonic() > deadline:
                target = _target(launch)
                hint = "; other machines need `listen` in [nodes] of the daemon's settings"
                return problem.format(target=f"the daemon at {target}") + (hint if target.startswith("unix:") else "")
            await asyncio.sleep(_WAIT_POLL_S)
    return ""


def _door(launch: Launch) -> str:
    """Return the address at which the daemon now listens for nodes, or an empty text."""
    with suppress(OSError, ValueError, KeyError):
        record = read_json_object(Home(Path(launch.env[env.MOSAIC_HOME])).daemon_record)
        return str(record.get("nodes") or "")
    return ""


def _target(launch: Launch) -> str:
    return _door(launch) or launch.env.get(env.MOSAIC_GRPC_TARGET, "")


def through_the_door_for_nodes(launch: Launch, authority: Path, opened: ExitStack) -> Launch:
    """Return a launch whose worker reaches a daemon that listens for nodes, by a socket here that is relayed over TLS.

    A unix socket on a shared disk leads to the machine of the daemon only.
    """
    if not (address := _door(launch)):
        return launch
    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="mosaic-door-"))
    relay = TlsRelay(Bootstrap.of(launch.env, address, authority.read_text("ascii")), Path(folder) / "socket")
    relay.start()
    opened.callback(relay.close)
    there, here = launch.env[env.MOSAIC_GRPC_TARGET], f"unix:{folder}/socket"
    argv = tuple(here if word == there else word for word in launch.argv)
    return replace(launch, argv=argv, env={**launch.env, env.MOSAIC_GRPC_TARGET: here})


def _answers(target: str) -> bool:
    """Return whether a process listens at this gRPC target: unix:PATH or HOST:PORT."""
    scheme, _, path = target.partition(":")
    with suppress(OSError, ValueError):
        if scheme == "unix":
            with closing(socket.socket(socket.AF_UNIX)) as connection:
                connection.connect(unquote(path.removeprefix("//")))
        else:
            socket.create_connection((scheme, int(path)), timeout=5).close()
        return True
    return False


def _print(text: str) -> None:
    print(f"mosaic: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the output of the batch step


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
