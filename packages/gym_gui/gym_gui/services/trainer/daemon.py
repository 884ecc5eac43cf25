"""The trainer daemon: one per home. `python -m gym_gui.services.trainer.daemon run`, or `mosaic daemon start`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from mosaic_wire.errors import WireError
from mosaic_wire.files import write_json_atomically
from mosaic_wire.frames import sweep_frames
from mosaic_wire.paths import Home, config_home, find_home, person_path
from mosaic_wire.proto import trainer_pb2_grpc

from gym_gui import __version__
from gym_gui.config.settings import Settings, load_settings
from gym_gui.services.telemetry.hub import TelemetryAsyncHub
from gym_gui.services.telemetry.store import TelemetryStore
from gym_gui.services.trainer import archives
from gym_gui.services.trainer.auth import TokenInterceptor
from gym_gui.services.trainer.capacity import CapacityGuard
from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.check_processes import CheckProcesses
from gym_gui.services.trainer.checking import ConfigChecks
from gym_gui.services.trainer.dispatcher import TrainerDispatcher
from gym_gui.services.trainer.errors import HomeInUse, ListenFailed, RegistryUnwritable, TrainerError
from gym_gui.services.trainer.executors.local import LocalExecutor
from gym_gui.services.trainer.inventory import detect_inventory
from gym_gui.services.trainer.journal import Journal
from gym_gui.services.trainer.metrics.hub import MetricHub
from gym_gui.services.trainer.process_tree import ProcessIdentity
from gym_gui.services.trainer.registry import RunRegistry
from gym_gui.services.trainer.resources import Inventory, ResourceLedger
from gym_gui.services.trainer.secrets import SecretStore
from gym_gui.services.trainer.service import TrainerService
from gym_gui.services.trainer.tokens import load_or_create_token
from gym_gui.services.trainer.trainer import Trainer
from gym_gui.services.user_secrets import UserSecrets

logger = logging.getLogger(__name__)

DEFAULT_PORT = 50055

_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # otherwise a second daemon binds a busy port without a word
    ("grpc.max_receive_message_length", 16 * 2**20),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # workers ask every 30 s whether we live
)


@dataclass(frozen=True)
class Listening:
    """Where the daemon is to listen beside its unix socket."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: 50055, or any free port when that one is busy"""
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


@contextlib.contextmanager
def only_daemon_of(home: Home) -> Iterator[None]:
    """Hold the home's lock; the kernel drops it with the process, so a stale file never locks anyone out."""
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise HomeInUse(
                f"a daemon (pid {holder}) serves {home.root} already; `mosaic daemon status` shows it, "
                "`mosaic daemon stop` ends it (runs go on)"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


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
    """Serve a home until SIGTERM, SIGINT or Shutdown; return the exit code. Problems are said in one line."""
    listening = Listening(
        listen or settings.listen,
        _wanted_port(port, settings),
        tls_cert or settings.tls_cert,
        tls_key or settings.tls_key,
    )
    try:
        _check_listening(listening)
        _create(home)
        with only_daemon_of(home):
            asyncio.run(_serve(home, settings, listening, inventory))
    except (TrainerError, WireError) as error:
        logger.error("%s", error)
        return 1
    except OSError as error:
        logger.error("the home %s cannot be used: %s; make room, or make it writable", home.root, error)
        return 1
    return 0


def _wanted_port(port: int | None, settings: Settings) -> int | None:
    """A port somebody chose must be free; the default one is only a habit."""
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


def _check_listening(listening: Listening) -> None:
    if (listening.tls_cert is None) != (listening.tls_key is None):
        raise ListenFailed("TLS needs both a certificate and a key: --tls-cert FILE --tls-key FILE")
    if not listening.is_loopback and listening.tls_cert is None:
        raise ListenFailed(
            f"listening on {listening.host!r} would offer this machine to the network in clear; give --tls-cert and "
            "--tls-key, or listen on 127.0.0.1 and use an SSH tunnel"
        )


async def _serve(home: Home, settings: Settings, listening: Listening, inventory: Inventory | None) -> None:
    token = load_or_create_token(home.token)
    archives.sweep_leftovers(home)
    journal = Journal(RunRegistry(home.database))
    try:
        await _serve_journal(home, settings, listening, inventory or detect_inventory(settings), token, journal)
    finally:
        journal.close()


async def _serve_journal(
    home: Home, settings: Settings, listening: Listening, inventory: Inventory, token: str, journal: Journal
) -> None:
    catalog, secret_store = WorkerCatalog(home), SecretStore(config_home(), home=home)
    ledger = ResourceLedger(inventory)
    stopping, executor, metrics = asyncio.Event(), LocalExecutor(), MetricHub(home)

    def grant(run_id: str, credits: int) -> None:
        if (supervisor := dispatcher.supervisors.get(run_id)) is not None:
            supervisor.grant(credits)

    telemetry = TelemetryAsyncHub(TelemetryStore(home.telemetry_database), grant)
    dispatcher = TrainerDispatcher(
        home,
        journal=journal,
        catalog=catalog,
        executor=executor,
        ledger=ledger,
        guard=CapacityGuard(
            home, min_free_disk_mb=settings.min_free_disk_mb, min_free_memory_mb=settings.min_free_memory_mb
        ),
        secret_store=secret_store,
        metrics=metrics,
        telemetry=telemetry,
        settings=settings,
        grpc_target=f"unix:{home.socket}",
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
    server = grpc.aio.server(interceptors=[TokenInterceptor(token)], options=_SERVER_OPTIONS)
    trainer_pb2_grpc.add_TrainerServiceServicer_to_server(service, server)
    tcp = _bind(server, home, listening)
    service.addresses = (f"unix:{home.socket}", tcp)
    await dispatcher.start()  # before the server: nobody talks about a run that is not taken up yet
    await asyncio.to_thread(sweep_frames)  # of workers that were killed while no daemon looked
    await server.start()
    home.socket.chmod(0o600)
    _write_record(home, service.addresses)
    logger.info("MOSAIC %s serves %s on %s", __version__, home.root, ", ".join(service.addresses))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await stopping.wait()
    finally:
        logger.info("stopping; %d runs go on without a daemon", len(dispatcher.supervisors))
        home.daemon_record.unlink(missing_ok=True)
        await server.stop(grace=1)
        await processes.close()
        await dispatcher.stop()
        await metrics.close()
        telemetry.close()
        executor.close()


def _bind(server: grpc.aio.Server, home: Home, listening: Listening) -> str:
    """Bind both addresses before anything starts; say which one is the trouble."""
    try:
        server.add_insecure_port(f"unix:{home.socket}")
    except RuntimeError as error:
        raise ListenFailed(f"the unix socket {home.socket} cannot be used: {error}") from error
    ports = [listening.port] if listening.port is not None else [DEFAULT_PORT, 0]
    for port in ports:
        if port and _is_busy(listening.host, port):
            continue
        address = f"{listening.host}:{port}"
        try:
            if listening.tls_cert is None or listening.tls_key is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, _credentials(listening.tls_cert, listening.tls_key))
        except RuntimeError:
            continue
        return f"{listening.host}:{bound}"
    raise ListenFailed(
        f"{listening.host}:{listening.port} is busy or not an address of this machine; "
        "choose another with --port, or leave --port out for a free one"
    )


def _is_busy(host: str, port: int) -> bool:
    """Ask the kernel ourselves: gRPC's own failure prints a page of its log first."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            return error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
    return False


def _credentials(cert: Path, key: Path) -> grpc.ServerCredentials:
    try:
        # Tried here first: gRPC says only that it could not listen. The empty password keeps OpenSSL from asking.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
        return grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    except OSError as error:
        told = error.strerror or str(error)
        raise ListenFailed(f"the TLS certificate {cert} and its key {key} cannot be used: {told}") from error


def _write_record(home: Home, addresses: tuple[str, ...]) -> None:
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None, "this very process is alive"
    write_json_atomically(
        home.daemon_record,
        {
            "pid": identity.pid,
            "start_ticks": identity.start_ticks,
            "boot_id": identity.boot_id,
            "version": __version__,
            "addresses": list(addresses),
            "unix": addresses[0],
            "tcp": addresses[1],
            "started_at": time.time(),
            "folder": list(home.identity),
        },
        mode=0o600,
        sealed=True,
    )


def main(argv: list[str] | None = None) -> int:
    """Entry point of `python -m gym_gui.services.trainer.daemon`."""
    parser = argparse.ArgumentParser(prog="python -m gym_gui.services.trainer.daemon", description=__doc__)
    parser.add_argument("command", choices=["run"], nargs="?", default="run", help="serve in the foreground (default)")
    parser.add_argument("--home", type=Path, help="folder to serve; default: $MOSAIC_HOME or the checkout's var/")
    parser.add_argument("--port", type=int, help=f"TCP port; default: {DEFAULT_PORT}, or a free one if that is busy")
    parser.add_argument("--listen", help="address to listen on; default: 127.0.0.1")
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
    home = Home(person_path(args.home)) if args.home else find_home()
    return run_daemon(home, settings, port=args.port, listen=args.listen, tls_cert=args.tls_cert, tls_key=args.tls_key)


if __name__ == "__main__":
    sys.exit(main())
