"""The trainer daemon: one per home. `python -m gym_gui.services.trainer.daemon run`, or `mosaic daemon start`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

# Read when grpc is imported. Otherwise grpc stops and restarts its threads around each fork, which aborts the daemon at
# the user's process limit.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc
from mosaic_wire.errors import WireError
from mosaic_wire.files import plain_file, write_json_atomically
from mosaic_wire.frames import remove_dead_frames
from mosaic_wire.paths import Home, config_home, find_home, user_path
from mosaic_wire.proto import trainer_pb2_grpc

from gym_gui import __version__
from gym_gui.config.settings import Settings, load_settings
from gym_gui.services.trainer import archives
from gym_gui.services.trainer.auth import RunTokenInterceptor, TokenInterceptor
from gym_gui.services.trainer.capacity import CapacityGuard
from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.certificates import NodeCertificates
from gym_gui.services.trainer.checking import CheckProcesses, ConfigChecks
from gym_gui.services.trainer.dispatcher import TrainerDispatcher
from gym_gui.services.trainer.errors import HomeInUse, ListenFailed, RegistryUnwritable, TrainerError
from gym_gui.services.trainer.executors.contract import Executor
from gym_gui.services.trainer.executors.local import LocalExecutor
from gym_gui.services.trainer.executors.slurm import SlurmExecutor
from gym_gui.services.trainer.journal import Journal
from gym_gui.services.trainer.limits import StartedThreads, raise_descriptor_limit
from gym_gui.services.trainer.metrics.hub import MetricHub
from gym_gui.services.trainer.process_tree import ProcessIdentity, read_stat
from gym_gui.services.trainer.records import LOCAL
from gym_gui.services.trainer.registry import RunRegistry
from gym_gui.services.trainer.resources import Inventory, ResourceLedger, detect_inventory
from gym_gui.services.trainer.secrets import SecretStore
from gym_gui.services.trainer.service import TrainerService
from gym_gui.services.trainer.streams import TelemetryAsyncHub, TelemetryStore
from gym_gui.services.trainer.tcp_door import DEFAULT_PORT, LOOPBACK, Listening, TcpRelay
from gym_gui.services.trainer.tokens import load_or_create_token
from gym_gui.services.trainer.trainer import Trainer
from gym_gui.services.user_secrets import UserSecrets

logger = logging.getLogger(__name__)
del os.environ["GRPC_ENABLE_FORK_SUPPORT"]  # not for workers

_MAX_PER_PEER = 256
_HOME_POLL_S = 2.0
_STARTING_S = 10.0
_LOCK_POLL_S = 0.05
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # otherwise a second daemon binds a busy port without an error
    ("grpc.max_receive_message_length", 16 * 2**20),
    # Limits what a peer can send before its token is checked; a growing window would allow megabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 128 * 1024),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # workers ping every 30 s
)


@contextlib.contextmanager
def only_daemon_of(home: Home) -> Iterator[None]:
    """Hold the home's lock, which the kernel releases with the process, so that no stale lock remains."""
    descriptor = plain_file(str(home.lock), os.O_RDWR | os.O_CREAT)
    try:
        _take(descriptor, home)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(lock: int, home: Home) -> None:
    """Take the home's lock; raise HomeInUse.

    A process that the last daemon was starting when it was killed holds the lock until it executes its program.
    """
    give_up_at = time.monotonic() + _STARTING_S
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        stat = read_stat(int(holder)) if holder.isdecimal() else None
        if time.monotonic() > give_up_at or (stat is not None and not stat.has_exited):
            raise HomeInUse(
                f"a daemon (pid {holder or 'unknown'}) already serves {home.root}; `mosaic daemon status` shows it, "
                "`mosaic daemon stop` stops it (runs keep running)"
            )
        time.sleep(_LOCK_POLL_S)


def run_daemon(
    home: Home,
    settings: Settings,
    *,
    port: int | None = None,
    listen: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    inventory: Inventory | None = None,
) -> int:
    """Serve a home until SIGTERM, SIGINT or Shutdown; return the exit code. Errors are logged in one line."""
    # Signals that the parent blocked would not reach workers, and one that ignored SIGCHLD would hide how they end.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A port or a certificate implies TCP.
    needs_tcp = port is not None or tls_cert is not None or tls_key is not None
    host = listen or settings.listen or (LOOPBACK if needs_tcp else "")
    listening = (
        Listening(host, _requested_port(port, settings), tls_cert or settings.tls_cert, tls_key or settings.tls_key)
        if host
        else None
    )
    try:
        for each in (listening, nodes := listening_for_nodes(settings)):
            if each is not None:
                each.check()
        _create(home)
        faulthandler.enable()  # a crash in a library leaves its stack in the log
        if sys.version_info < (3, 12):  # as later versions do: no thread for each process
            asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
        with only_daemon_of(home):
            asyncio.run(_serve(home, settings, (listening, nodes), inventory))
    except (TrainerError, WireError) as error:
        logger.error("%s", error)
        return 1
    except OSError as error:
        logger.error("the home %s cannot be used: %s; make room, or make it writable", home.root, error)
        return 1
    return 0


def listening_for_nodes(settings: Settings) -> Listening | None:
    """Return where the daemon listens for nodes; raise ListenFailed when its certificate was not made."""
    nodes, files = settings.nodes, NodeCertificates.below(config_home())
    if not nodes.listen:
        return None
    if not files.certificate.exists():
        raise ListenFailed(
            f"the daemon is to listen for nodes on {nodes.listen}, but there is no certificate {files.certificate}; "
            "`mosaic daemon certs` makes it"
        )
    return Listening(
        nodes.listen, nodes.port, files.certificate, files.key, files.authority, "port in [nodes]", nodes.address
    )


def _requested_port(port: int | None, settings: Settings) -> int | None:
    """Return the port to bind, or None if the default was not chosen explicitly and another one will do."""
    if port is not None:
        return port
    return None if settings.port == DEFAULT_PORT else settings.port


def _create(home: Home) -> None:
    try:
        home.create()
    except OSError as error:
        raise RegistryUnwritable(
            f"the home {home.root} cannot be used: {error.strerror} ({error.filename}); "
            "make it writable, make room, or set MOSAIC_HOME to another folder"
        ) from error
    if home.daemon_record.is_dir():
        raise RegistryUnwritable(f"{home.daemon_record} is a folder; move it away")


_Doors = tuple[Listening | None, Listening | None]
"""Where the daemon listens for clients, and for nodes"""


async def _serve(home: Home, settings: Settings, doors: _Doors, inventory: Inventory | None) -> None:
    asyncio.get_running_loop().set_default_executor(StartedThreads(min(32, (os.cpu_count() or 1) + 4), "daemon"))
    token = load_or_create_token(home.token)
    archives.remove_leftovers(home)
    journal = Journal(RunRegistry(home.database))
    try:
        await _serve_journal(home, settings, doors, inventory or detect_inventory(settings), token, journal)
    finally:
        journal.close()


async def _serve_journal(
    home: Home, settings: Settings, doors: _Doors, inventory: Inventory, token: str, journal: Journal
) -> None:
    served, executors = home.identity, _executors(settings)
    catalog, secret_store = WorkerCatalog(home), SecretStore(config_home(), home=home)
    ledger = ResourceLedger(inventory)
    stopping, metrics = asyncio.Event(), MetricHub(home)

    def grant(run_id: str, credits: int) -> None:
        if (supervisor := dispatcher.supervisors.get(run_id)) is not None:
            supervisor.grant(credits)

    telemetry = TelemetryAsyncHub(TelemetryStore(home.telemetry_database), grant)
    dispatcher = TrainerDispatcher(
        home,
        journal=journal,
        catalog=catalog,
        executors=executors,
        ledger=ledger,
        guard=CapacityGuard(
            home, min_free_disk_mb=settings.min_free_disk_mb, min_free_memory_mb=settings.min_free_memory_mb
        ),
        secret_store=secret_store,
        metrics=metrics,
        telemetry=telemetry,
        settings=settings,
        grpc_target=home.target,
    )
    processes = CheckProcesses(home)
    trainer = Trainer(
        home,
        journal=journal,
        dispatcher=dispatcher,
        catalog=catalog,
        checks=ConfigChecks(home, catalog=catalog, ledger=ledger, settings=settings, processes=processes),
        metrics=metrics,
        telemetry=telemetry,
        secret_store=secret_store,
        user_secrets=UserSecrets(config_home()),
        settings=settings,
    )
    service = TrainerService(trainer, ledger, stopping.set)
    servers = _Servers(home, service, token, dispatcher.has_token, doors)
    service.addresses = await servers.bind()
    await dispatcher.start()  # before the server: no call may meet an unrecovered run
    await asyncio.to_thread(remove_dead_frames)  # of workers that were killed while no daemon was running
    await servers.start()
    logger.info("MOSAIC %s serves %s on %s", __version__, home.root, ", ".join(service.addresses))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    watching = asyncio.create_task(_stop_without_home(home, served, dispatcher, ledger, stopping))
    try:
        await stopping.wait()
    finally:
        watching.cancel()
        await dispatcher.finish_cancels()
        logger.info("stopping; %d runs keep running without a daemon", len(dispatcher.supervisors))
        if dispatcher.is_halted:
            servers.close()
            logging.shutdown()
            # Exit at once: a normal shutdown removes the socket, which may belong to a new daemon in the same place.
            os._exit(1)
        home.daemon_record.unlink(missing_ok=True)
        await servers.stop()
        await processes.close()
        await dispatcher.stop()
        await metrics.close()
        telemetry.close()
        for executor in executors.values():
            executor.close()


def _executors(settings: Settings) -> dict[str, Executor]:
    engines = {name: SlurmExecutor(name, each, config_home()) for name, each in settings.executors.items()}
    return {LOCAL: LocalExecutor(), **engines}


class _Servers:
    """The gRPC servers on the daemon's sockets, and the relays from TCP to them.

    Nodes have a server of their own, because a relay cannot tell what its connections call.
    """

    def __init__(
        self,
        home: Home,
        service: TrainerService,
        token: str,
        is_run_token: Callable[[str], Awaitable[bool]],
        doors: _Doors,
    ) -> None:
        self._home, self._doors = home, doors
        descriptors = raise_descriptor_limit()
        # Half of the descriptors are reserved, so that connections never keep the daemon from its files and workers.
        share = descriptors // 2 if doors[1] is None else descriptors // 4
        options = (*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", share))
        self._places = [(home.socket, home.target), (home.node_socket, home.node_target)][: 2 if doors[1] else 1]
        interceptors = TokenInterceptor(token, is_run_token), RunTokenInterceptor(is_run_token)
        limits = {"limit": descriptors // 8, "limit_per_peer": min(_MAX_PER_PEER, descriptors // 16)}
        self._relays = [TcpRelay(socket, **limits) for socket, _ in self._places]
        self._servers = []
        for interceptor, _ in zip(interceptors, self._places, strict=False):
            server = grpc.aio.server(interceptors=[interceptor], options=options)
            trainer_pb2_grpc.add_TrainerServiceServicer_to_server(service, server)
            self._servers.append(server)
        self._tcp = ["", ""]

    async def bind(self) -> tuple[str, ...]:
        """Bind every socket and port; return the addresses, for people."""
        for number, (server, relay, (socket, target)) in enumerate(
            zip(self._servers, self._relays, self._places, strict=True)
        ):
            try:
                server.add_insecure_port(target)
            except RuntimeError as error:
                raise ListenFailed(f"the unix socket {socket} cannot be used: {error}") from error
            if (door := self._doors[number]) is not None:
                self._tcp[number] = await relay.bind(door)
        if (door := self._doors[1]) is not None:
            self._tcp[1] = door.known_as(self._tcp[1])
        tcp, nodes = self._tcp
        return tuple(filter(None, (self._home.target, tcp, f"{nodes} (nodes)" if nodes else "")))

    async def start(self) -> None:
        """Answer calls, and write the addresses to `daemon.json`."""
        for server, relay, (socket, _) in zip(self._servers, self._relays, self._places, strict=True):
            await server.start()
            socket.chmod(0o600)
            await relay.open()
        self._write_record()

    def close(self) -> None:
        """Accept no more TCP connections and end those that are open."""
        for relay in self._relays:
            relay.close()

    async def stop(self) -> None:
        """Stop the servers; calls in progress get a second."""
        self.close()
        await asyncio.gather(*(server.stop(grace=1) for server in self._servers))

    def _write_record(self) -> None:
        identity = ProcessIdentity.of(os.getpid())
        assert identity is not None, "the process itself is alive"
        tcp, nodes = self._tcp
        tls, node_tls = (
            [str(file) for file in (door.tls_cert, door.tls_key) if file] if door else [] for door in self._doors
        )
        write_json_atomically(
            self._home.daemon_record,
            {
                "pid": identity.pid,
                "start_ticks": identity.start_ticks,
                "boot_id": identity.boot_id,
                "pid_namespace": identity.namespace,
                "version": __version__,
                "addresses": [address for address in (self._home.target, tcp) if address],
                "unix": self._home.target,
                "tcp": tcp,
                "tls": tls,
                "nodes": nodes,
                "node_tls": node_tls,
                "started_at": time.time(),
                "folder": list(self._home.identity),
            },
            mode=0o600,
            sealed=True,
        )


async def _stop_without_home(
    home: Home, served: tuple[int, ...], dispatcher: TrainerDispatcher, ledger: ResourceLedger, stopping: asyncio.Event
) -> None:
    """Halt the queue while the home is missing from its place, and stop once no run has a process."""
    while True:
        await asyncio.sleep(_HOME_POLL_S)
        is_there = await asyncio.to_thread(lambda: home.identity == served)
        if dispatcher.is_halted and not is_there and ledger.is_idle:
            stopping.set()
        elif is_there is dispatcher.is_halted:
            dispatcher.halt(not is_there)
            warning = (
                "was moved, removed or replaced while this daemon served it: no run is started any more, and it "
                "ends when its last run has ended"
            )
            logger.error("the home %s %s", home.root, "is back in its place" if is_there else warning)


def main(argv: list[str] | None = None) -> int:
    """Entry point of `python -m gym_gui.services.trainer.daemon`."""
    parser = argparse.ArgumentParser(prog="python -m gym_gui.services.trainer.daemon", description=__doc__)
    parser.add_argument("command", choices=["run"], nargs="?", default="run", help="serve in the foreground (default)")
    parser.add_argument("--home", type=Path, help="folder to serve; default: $MOSAIC_HOME or the checkout's var/")
    parser.add_argument("--port", type=int, help=f"TCP port; default: {DEFAULT_PORT}, or a free one if that is busy")
    parser.add_argument(
        "--listen", nargs="?", const=LOOPBACK, metavar="ADDRESS", help=f"listen on TCP, too; default: {LOOPBACK}"
    )
    parser.add_argument("--tls-cert", type=Path, help="certificate chain; required off loopback")
    parser.add_argument("--tls-key", type=Path, help="private key; required off loopback")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s | %(message)s",
        stream=sys.stderr,
    )
    try:
        settings = load_settings()
    except (TrainerError, WireError) as error:
        logger.error("%s", error)
        return 2
    home = Home(user_path(args.home)) if args.home else find_home()
    return run_daemon(home, settings, port=args.port, listen=args.listen, tls_cert=args.tls_cert, tls_key=args.tls_key)


if __name__ == "__main__":
    sys.exit(main())
