"""`mosaic daemon start | stop | status | run | certs`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gym_gui.cli.context import Cli, as_it_is, json_option, notify, pass_cli, style
from gym_gui.cli.listing import write_json_object, write_pairs
from gym_gui.wording import formats

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)


def _listening_options(function: F) -> F:
    for option in (
        click.option("--tls-key", type=_FILE, metavar="FILE", help="Its private key."),
        click.option("--tls-cert", type=_FILE, metavar="FILE", help="Certificate; required beyond this machine."),
        click.option(
            "--listen",
            is_flag=False,
            flag_value="127.0.0.1",
            metavar="[ADDRESS]",
            help="Listen on TCP, too; without an address: on 127.0.0.1.",
        ),
        click.option("--port", type=click.IntRange(0, 65535), help="TCP port.  [default: 50055, or a free one]"),
    ):
        function = option(function)
    return function


@click.group("daemon")
def daemon_command() -> None:
    """The trainer daemon owns the runs of a home. Stopping it does not stop its runs."""


@daemon_command.command()
@_listening_options
@click.option("--timeout", type=click.FloatRange(min=1), default=30, metavar="S", help="Seconds to wait for it.")
@pass_cli
def start(cli: Cli, /, timeout: float, **listening: Any) -> int:
    """Start the daemon in the background, unless one runs."""
    from gym_gui.services.trainer.local_daemon import running_record, start_daemon

    _refuse_connect(cli)
    options = [
        argument
        for name, value in listening.items()
        if value is not None
        for argument in ("--" + name.replace("_", "-"), str(value))
    ]
    started = start_daemon(cli.home, timeout, options=options)
    state = "runs already" if started.already_running else "started"
    record = running_record(cli.home)
    address = f", TCP {record.tcp}" if record is not None and record.tcp else ""
    click.echo(f"the trainer daemon {state} (pid {started.pid}, home {cli.home.root}{address})")
    if started.already_running and options:
        notify("mosaic: the options were not used; `mosaic daemon stop` first (runs continue)")
        return 1
    return 0


@daemon_command.command()
@click.option("--force", is_flag=True, help="End its process even when it does not answer.")
@click.option("--timeout", type=click.FloatRange(min=1), default=20, metavar="S", help="Seconds to wait for its end.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before stopping a daemon on another machine.")
@pass_cli
def stop(cli: Cli, /, force: bool, timeout: float, yes: bool) -> int:
    """Stop the daemon. Its runs continue; the next daemon recovers them."""
    from gym_gui.services.trainer.errors import DaemonUnreachable
    from gym_gui.services.trainer.local_daemon import running_record, silence_message, stop_process, wait_for_end

    if cli.connect:
        with cli.client(start=False) as client:
            if not (yes or client.copies.is_here):
                health = client.health()
                notify(
                    f"{formats.plural(health.running, 'run')} would continue; nothing can start this daemon from here"
                )
                click.confirm(f"stop the daemon of {health.home} at {cli.connect}?", abort=True, err=True)
            _print_stopped(client.shutdown())
        return 0
    record = running_record(cli.home)
    if record is None:
        click.echo(f"no trainer daemon runs for {cli.home.root}")
        return 0
    running = 0
    try:
        if record.is_stopped():  # it could not answer, however long we waited
            raise DaemonUnreachable(silence_message(cli.home, timeout))
        with cli.client(start=False) as client:
            running = client.shutdown()
    except DaemonUnreachable as error:
        if not force:
            raise DaemonUnreachable(f"{error}; --force ends its process") from error
    patience_s = 0 if record.is_stopped() else timeout
    if not wait_for_end(record, patience_s) and not (force and stop_process(record, timeout_s=timeout)):
        notify(f"mosaic: the daemon (pid {record.pid}) is still there after {timeout:g} s; --force ends its process")
        return 1
    _print_stopped(running)
    return 0


@daemon_command.command()
@json_option
@pass_cli
def status(cli: Cli, /, as_json: bool) -> int:
    """Show whether the daemon runs, and the free resources of the machine. Exit 1 if it does not run."""
    from gym_gui.services.trainer.errors import DaemonUnreachable
    from gym_gui.services.trainer.local_daemon import running_record

    try:
        with cli.client(start=False) as client:
            health = client.health()
    except DaemonUnreachable as error:
        if not as_json:
            click.echo(str(error))
            return 1
        record = None if cli.connect else running_record(cli.home)
        document = {
            "running": False,
            "pid": record.pid if record else None,
            "home": str(cli.home.root),
            "problem": str(error),
        }
        write_json_object(document)
        return 1
    if as_json:
        write_json_object(_document(health))
    else:
        write_pairs(_pairs(health, None if cli.connect else cli.home.daemon_log))
    return 0


@daemon_command.command()
@_listening_options
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@pass_cli
def run(cli: Cli, /, verbose: bool, **listening: Any) -> int:
    """Run the daemon in the foreground, for a service manager or to look at it."""
    import logging

    from gym_gui.config.settings import load_settings
    from gym_gui.services.trainer.daemon import run_daemon

    _refuse_connect(cli)
    settings = load_settings()
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s | %(message)s",
        stream=sys.stderr,
    )
    return run_daemon(cli.home, settings, **listening)


@daemon_command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--new-ca", is_flag=True, help="Make a new authority, too: nodes of active runs can no longer connect.")
@pass_cli
def certs(cli: Cli, /, names: tuple[str, ...], new_ca: bool) -> int:
    """Make the certificate of the address that nodes connect to, for these names of this machine."""
    from mosaic_wire.paths import config_home

    from gym_gui.config.settings import load_settings
    from gym_gui.services.trainer.certificates import NodeCertificates, default_names, make_certificates
    from gym_gui.services.trainer.local_daemon import running_record
    from gym_gui.services.trainer.tcp_door import load_tls

    _refuse_connect(cli)
    nodes, files = load_settings().nodes, NodeCertificates.below(config_home())
    chosen = [*names] or default_names(nodes.address, nodes.listen)
    is_new = make_certificates(files, chosen, new_authority=new_ca)
    _, expires_at = load_tls(files.certificate, files.key, files.authority)
    click.echo(f"{files.certificate} is valid for {', '.join(chosen)} until {formats.moment(expires_at)}")
    if is_new:
        click.echo(f"nodes trust {files.authority}, which is new")
    if not nodes.listen:
        click.echo('to listen for nodes: [nodes] with listen = "ADDRESS" in settings.toml')
    elif running_record(cli.home) is not None:
        click.echo("the daemon uses it after a restart: `mosaic daemon stop`, `mosaic daemon start` (runs continue)")
    return 0


@daemon_command.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("worker")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_cli
def relay(cli: Cli, /, worker: str, program: str, arguments: tuple[str, ...]) -> int:
    """Run a program of a worker on the daemon's machine, as if it ran here."""
    from mosaic_wire.files import chosen_file, read_json_object

    passed, config = list(arguments), None
    if "--config" in passed:
        place = passed.index("--config")
        config = read_json_object(Path(passed[place + 1]), opener=chosen_file)
        del passed[place : place + 2]
    with cli.client(start=False) as client:
        return relay_program(client, worker, program, passed, config)


def relay_program(
    client: TrainerClient, worker: str, program: str, arguments: Sequence[str], config: dict[str, Any] | None = None
) -> int:
    """Print what a program on the daemon's machine prints; return its exit code."""
    outputs = {"stdout": as_it_is(sys.stdout), "stderr": as_it_is(sys.stderr)}
    code = 1
    with client.run_program(worker, program, arguments, config) as pieces:
        for piece in pieces:
            for name, output in outputs.items():
                if data := getattr(piece, name):
                    output.write(data.decode("utf-8", "replace"))
                    output.flush()
            if piece.HasField("exit_code"):
                code = piece.exit_code
    return code


def _refuse_connect(cli: Cli) -> None:
    if cli.connect:
        raise click.UsageError("--connect names a daemon that runs already; use --home to start one here")


def _print_stopped(running: int) -> None:
    rest = f"; {formats.plural(running, 'run')} continue, the next daemon recovers them" if running > 1 else ""
    rest = "; 1 run continues, the next daemon recovers it" if running == 1 else rest
    click.echo(f"the trainer daemon stopped{rest}")


def _document(health: pb.Health) -> dict[str, Any]:
    return {
        "running": True,
        "pid": health.pid,
        "version": health.version,
        "protocol_version": health.protocol_version,
        "home": health.home,
        "addresses": list(health.addresses),
        "uptime_s": health.uptime_s,
        "runs": {"queued": health.queued, "running": health.running},
        "cpus": {"total": health.cpus_total, "free": health.cpus_free},
        "memory_mb": {"total": health.memory_mb_total, "available": health.memory_mb_available},
        "disk_mb_free": health.disk_mb_free,
        "gpus": [
            {"id": gpu.id, "name": gpu.name, "memory_mb": gpu.memory_mb, "reserved_by": gpu.reserved_by or None}
            for gpu in health.gpus
        ],
        "trouble": health.trouble or None,
        "last_seq": health.last_seq,
    }


def _pairs(health: pb.Health, log: Path | None) -> list[tuple[str, str]]:
    gpus = "\n".join(
        f"{gpu.id}  {gpu.name}, {formats.size(gpu.memory_mb * 2**20)}"
        + (f", reserved by {gpu.reserved_by}" if gpu.reserved_by else ", free")
        for gpu in health.gpus
    )
    available, total = (formats.size(mb * 2**20) for mb in (health.memory_mb_available, health.memory_mb_total))
    return [
        ("daemon", f"pid {health.pid}, version {health.version}, up {formats.duration(health.uptime_s)}"),
        ("trouble", style(health.trouble, fg="red") if health.trouble else ""),
        ("home", health.home),
        ("listens on", "\n".join(health.addresses)),
        ("runs", f"{health.running} running, {health.queued} queued"),
        ("CPUs", f"{health.cpus_free:g} of {health.cpus_total:g} free"),
        ("memory", f"{available} of {total} available"),
        ("GPUs", gpus or "none"),
        ("disk", f"{formats.size(health.disk_mb_free * 2**20)} free"),
        ("log", str(log) if log else ""),
    ]
