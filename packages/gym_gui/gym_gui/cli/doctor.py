"""`mosaic doctor`: check this machine, and whether Weights & Biases can be reached; suggest remedies."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
from mosaic_wire.paths import Home, config_home

from gym_gui.cli.context import Cli, json_option, notify, pass_cli, style
from gym_gui.cli.listing import write_json
from gym_gui.wording import formats

if TYPE_CHECKING:
    from gym_gui.cli.context import Cli
    from gym_gui.services.analytics.wandb_access import Key, Proxies


@dataclass(frozen=True)
class Finding:
    """One line of the report: fine, worth knowing, or broken with its cure."""

    name: str
    state: str
    """ok | note | broken"""
    text: str
    cure: str = ""


MIN_PYTHON = (3, 11)
PACKAGES = ("mosaic-wire", "gym-gui", "click", "rich", "grpcio", "protobuf", "pydantic", "psutil", "platformdirs")
LITTLE_DISK_MB = 2048
OLDEST_SANE_CLOCK = 1_735_689_600
"""2025-01-01: a clock before it was never set, and run ids and certificates would be wrong"""


@click.command()
@click.option("--wandb", "only_wandb", is_flag=True, help="Whether Weights & Biases can be reached from here, only.")
@click.option("--executor", metavar="NAME", help="Test an executor with a run of ten seconds, only.")
@json_option
@pass_cli
def doctor_command(cli: Cli, /, as_json: bool, only_wandb: bool, executor: str | None) -> int:
    """Check this machine, its packages, the home and the daemon; suggest remedies. Exit 1 if something is broken."""
    if cli.connect and not executor:  # a run on an executor tests the daemon's machine from anywhere
        from gym_gui.cli.daemon import relay_program

        with cli.client() as client:
            if not client.copies.is_here:
                notify(f"the daemon at {cli.connect} answers; this is its machine:")
                options = {"--json": as_json, "--wandb": only_wandb}
                return relay_program(client, "", "doctor", [name for name, is_given in options.items() if is_given])
    if executor:
        from gym_gui.cli.executor_check import executor_findings

        findings = list(executor_findings(cli, executor))
    else:
        findings = list(wandb_findings(cli) if only_wandb else (each for check in _checks(cli) for each in check()))
    if as_json:
        write_json(asdict(finding) for finding in findings)
    else:
        wide = max(len(finding.name) for finding in findings)
        for finding in findings:
            mark, color = {"ok": ("✓", "green"), "note": ("·", "yellow"), "broken": ("✗", "red")}[finding.state]
            click.echo(f"{style(mark, fg=color)} {finding.name.ljust(wide)}  {finding.text}")
            if finding.cure:
                click.echo(f"  {' ' * wide}  → {finding.cure}")
        broken = sum(finding.state == "broken" for finding in findings)
        click.echo(f"\n{formats.plural(broken, 'thing')} to repair" if broken else "\nall well")
    return 1 if any(finding.state == "broken" for finding in findings) else 0


def _checks(cli: Cli) -> list[Callable[[], Iterator[Finding]]]:
    home = cli.home
    return [
        _python,
        _packages,
        lambda: _home(home),
        lambda: _disk(home),
        lambda: _permissions(home),
        _settings,
        _gpu,
        lambda: _daemon(home),
        lambda: _port(home),
        lambda: _tls(home),
        lambda: _workers(cli),
        _clock,
    ]


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < MIN_PYTHON:
        yield Finding("python", "broken", text, f"MOSAIC needs Python {'.'.join(map(str, MIN_PYTHON))} or newer")
    else:
        yield Finding("python", "ok", text)


def _packages() -> Iterator[Finding]:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("packages", "broken", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield Finding("packages", "ok", f"{len(found)} installed ({', '.join(found[2:5])} …)")


def _home(home: Home) -> Iterator[Finding]:
    place = next(folder for folder in (home.root, *home.root.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"x" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        cure = f"make {place} writable, make room, or choose another home: --home DIR or $MOSAIC_HOME"
        yield Finding("home", "broken", f"{home.root} cannot be written: {error.strerror}", cure)
    else:
        yield Finding("home", "ok", f"{home.root}" + ("" if home.root.exists() else " (made at the first start)"))


def _disk(home: Home) -> Iterator[Finding]:
    place = next(folder for folder in (home.runs, *home.runs.parents) if folder.exists())
    usage = shutil.disk_usage(place)
    text = f"{formats.size(usage.free)} of {formats.size(usage.total)} free"
    if usage.free < LITTLE_DISK_MB << 20:
        cure = "checkpoints and logs need room: `mosaic runs --all`, then `mosaic delete` what is not needed"
        yield Finding("disk", "broken" if usage.free < 512 << 20 else "note", text, cure)
    else:
        yield Finding("disk", "ok", text)


def _permissions(home: Home) -> Iterator[Finding]:
    wrong = [
        f"{path} ({problem})" for path, expected in _private_paths(home) if (problem := _problem_with(path, expected))
    ]
    if wrong:
        cure = f"chmod -R go-rwx {home.trainer}; a folder of another user: choose another home"
        yield Finding("permissions", "broken", "; ".join(wrong), cure)
    else:
        yield Finding("permissions", "ok", "the token, the socket and the trainer folder are this user's alone")


def _private_paths(home: Home) -> list[tuple[Path, int]]:
    return [(home.trainer, 0o700), (home.token, 0o600), (home.socket.parent, 0o700), (home.socket, 0o600)]


def _problem_with(path: Path, expected: int) -> str:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    if status.st_uid != os.getuid():
        return f"belongs to uid {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    return f"mode {mode:04o}, expected {expected:04o}" if mode & ~expected & 0o777 else ""


def _settings() -> Iterator[Finding]:
    from mosaic_wire.errors import WireError

    from gym_gui.config.settings import load_settings
    from gym_gui.services.trainer.errors import TrainerError

    path = config_home() / "settings.toml"
    try:
        load_settings()
    except (TrainerError, WireError, ValueError, OSError) as error:
        yield Finding("settings", "broken", " ".join(str(error).split()), f"correct {path}")
    else:
        yield Finding("settings", "ok", str(path) if path.exists() else f"defaults (no {path})")


def _gpu() -> Iterator[Finding]:
    from gym_gui.services.trainer.gpu import detect_gpus

    gpus = detect_gpus()
    names = ", ".join(f"{gpu.name} ({formats.size(gpu.memory_mb * 2**20)})" for gpu in gpus)
    if gpus:
        yield Finding("gpu", "ok", names)
    elif Path("/dev/nvidiactl").exists():
        yield Finding("gpu", "broken", "there is an NVIDIA device, but its driver does not answer", "try `nvidia-smi`")
    else:
        yield Finding("gpu", "note", "none found; runs use the CPU")


def _daemon(home: Home) -> Iterator[Finding]:
    from gym_gui.services.trainer.client import TrainerClient
    from gym_gui.services.trainer.errors import TrainerError
    from gym_gui.services.trainer.local_daemon import DaemonRecord, running_record

    record = running_record(home)
    if record is None:
        # The kernel drops the lock with its process; files that a killed daemon left are replaced by the next one.
        left = [path.name for path in (home.daemon_record, home.socket) if path.exists()]
        rest = f"; a daemon was killed and left {' and '.join(left)}, the next one replaces them" if left else ""
        yield Finding("daemon", "note", f"not running{rest}", "`mosaic daemon start`, or `mosaic train` starts one")
        if home.daemon_record.exists() and DaemonRecord.read(home) is None:
            yield Finding("daemon", "broken", f"{home.daemon_record} is damaged", f"rm {home.daemon_record}")
        return
    try:
        with TrainerClient.connect(home, timeout_s=5) as client:
            health = client.health()
    except TrainerError as error:
        yield Finding("daemon", "broken", str(error), "if it stays so: `mosaic daemon stop --force`, runs continue")
        return
    text = f"pid {health.pid}, {health.running} running, {health.queued} queued, up {formats.duration(health.uptime_s)}"
    if health.trouble:
        yield Finding("daemon", "broken", f"{text}; {health.trouble}", f"look into {home.daemon_log}")
    else:
        yield Finding("daemon", "ok", text)


def _port(home: Home) -> Iterator[Finding]:
    from gym_gui.services.trainer.local_daemon import running_record

    record = running_record(home)
    if record is not None:
        yield Finding("port", "ok", f"the daemon listens on {record.tcp or 'its socket only'}")


def _tls(home: Home) -> Iterator[Finding]:
    """The certificates of the running daemon, else those of the settings."""
    from mosaic_wire.errors import WireError
    from mosaic_wire.paths import config_home

    from gym_gui.config.settings import load_settings
    from gym_gui.services.trainer.certificates import NodeCertificates
    from gym_gui.services.trainer.errors import TrainerError
    from gym_gui.services.trainer.local_daemon import running_record

    files = NodeCertificates.below(config_home())
    record = running_record(home)
    if record is not None:
        tls, node_tls = [*map(Path, record.tls)], [*map(Path, record.node_tls)]
    else:
        try:
            settings = load_settings()
        except (TrainerError, WireError, ValueError, OSError):
            return  # reported above
        tls = [file for file in (settings.tls_cert, settings.tls_key) if file is not None]
        node_tls = [files.certificate, files.key] if settings.nodes.listen else []
    yield from _certificate(
        "tls",
        *tls,
        broken="docs/runbooks/security.md, “From another machine”",
        soon="create a new one, copy it to the clients, then restart the daemon",
    )
    renewal = "`mosaic daemon certs` makes a new one, then restart the daemon"
    yield from _certificate("nodes", *node_tls, authority=files.authority, broken=renewal, soon=renewal)


def _certificate(name: str, *files: Path, broken: str, soon: str, authority: Path | None = None) -> Iterator[Finding]:
    from gym_gui.services.trainer.errors import ListenFailed
    from gym_gui.services.trainer.tcp_door import SOON_DAYS, load_tls

    if len(files) != 2:
        return
    try:
        _, expires_at = load_tls(*files, authority)
    except ListenFailed as error:
        yield Finding(name, "broken", str(error), broken)
        return
    days = (expires_at - time.time()) / 86_400
    text = f"{files[0]} is valid until {formats.moment(expires_at)}"
    yield Finding(name, "note", text, soon) if days < SOON_DAYS else Finding(name, "ok", text)


def _workers(cli: Cli) -> Iterator[Finding]:
    from gym_gui.cli.algorithms import installed_workers
    from gym_gui.services.trainer.errors import TrainerError

    try:
        workers = installed_workers(cli)
    except (TrainerError, OSError) as error:
        yield Finding("workers", "note", f"cannot be listed now: {error}")
        return
    usable = [worker for worker in workers if worker.spec is not None]
    for worker in workers:
        if worker.spec is None:
            yield Finding(
                "workers", "broken", f"{worker.name}: {' '.join(worker.problem.split())}", "repair or remove it"
            )
    if not any(worker.spec is not None and not worker.spec.hidden for worker in usable):
        yield Finding(
            "workers", "broken", "no worker is installed that can train", "pip install -e workers/cleanrl_worker"
        )
    else:
        yield Finding("workers", "ok", ", ".join(f"{worker.name} {worker.version}" for worker in usable))


def _clock() -> Iterator[Finding]:
    now = time.time()
    if now < OLDEST_SANE_CLOCK:
        yield Finding("clock", "broken", f"says {formats.moment(now)}", "set the machine's clock (timedatectl)")
    else:
        yield Finding("clock", "ok", f"{formats.moment(now)} {time.strftime('%Z')}")


# ---------------------------------------------------------------- Weights & Biases


_AUTHORIZE = "https://wandb.ai/authorize"


def wandb_findings(cli: Cli) -> Iterator[Finding]:
    """Yield the address, the way to it, the key, and the answer of W&B."""
    from gym_gui.services.analytics.wandb_access import address, find_proxies

    api = address()
    folders = dict.fromkeys((Path.cwd(), cli.home.root, cli.home.root.parent))
    proxies = find_proxies({"wandb_use_vpn_proxy": True}, folders)
    yield _address(api)
    yield _proxy(proxies)
    way = list(_way(api, proxies))
    yield from way
    key, finding = _key()
    yield finding
    is_reachable = all(finding.state != "broken" for finding in way)
    if is_reachable and key is not None:
        yield _api(api, key, proxies)
    yield _package(cli)


def _address(api: str) -> Finding:
    origin = " (WANDB_BASE_URL)" if os.environ.get("WANDB_BASE_URL") else ""
    if not urlsplit(api).hostname:
        return Finding("W&B address", "broken", f"{api!r} is no address", "unset WANDB_BASE_URL, or write https://host")
    return Finding("W&B address", "ok", f"{api}{origin}")


def _proxy(proxies: Proxies) -> Finding:
    if not proxies.first.value:
        return Finding("W&B proxy", "ok", "none; straight (WANDB_VPN_HTTPS_PROXY, HTTPS_PROXY … would name one)")
    return Finding("W&B proxy", "ok", f"{proxies.first.shown}; loopback is not proxied")


def _way(api: str, proxies: Proxies) -> Iterator[Finding]:
    """DNS of the first hop, then the connection (TLS, or the proxy's tunnel)."""
    from gym_gui.services.analytics.wandb_access import probe, way_to

    proxy = way_to(api, proxies)
    hop = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else urlsplit(api)
    host = hop.hostname or ""
    try:
        found = sorted({entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        cure = "is this machine online? Behind a firewall: set WANDB_VPN_HTTPS_PROXY, or train with WANDB_MODE=offline"
        yield Finding("W&B DNS", "broken", f"{host} has no address ({error.strerror or error})", cure)
        return
    yield Finding("W&B DNS", "ok", f"{host} is {', '.join(map(str, found[:2]))}{' …' if len(found) > 2 else ''}")
    if trouble := probe(api, proxy=proxy):
        cure = "a proxy or firewall is in the way; until then WANDB_MODE=offline keeps everything, `Sync now` sends it"
        yield Finding("W&B connection", "broken", trouble, cure)
    else:
        how = "through the proxy" if proxy else "TLS" if urlsplit(api).scheme == "https" else "without TLS"
        yield Finding("W&B connection", "ok", f"established ({how})")


def _key() -> tuple[Key | None, Finding]:
    from gym_gui.services.analytics.wandb_access import find_key
    from gym_gui.services.trainer.errors import SecretStoreError
    from gym_gui.services.user_secrets import UserSecrets

    try:
        key = find_key(UserSecrets())
    except SecretStoreError as error:
        return None, Finding("W&B key", "broken", str(error), "unlock the keyring, or set WANDB_API_KEY")
    if not key.is_there:
        cure = f"get one at {_AUTHORIZE}, then: the W&B tab's “Enter a key”, WANDB_API_KEY, or `wandb login`"
        return None, Finding("W&B key", "broken", "none; runs that log to W&B stay offline", cure)
    return key, Finding("W&B key", "ok", f"found in {key.place}")


def _api(api: str, key: Key, proxies: Proxies) -> Finding:
    from gym_gui.services.analytics.wandb_access import who_am_i

    name, trouble = who_am_i(key, proxies, api=api)
    if trouble:
        return Finding("W&B API", "broken", trouble, f"check the key at {_AUTHORIZE}")
    return Finding("W&B API", "ok", f"the key is that of {name}")


def _package(cli: Cli) -> Finding:
    from gym_gui.services.analytics.wandb_access import SyncFailed, find_interpreter

    try:
        python = find_interpreter(cli.home)
    except SyncFailed:
        return Finding(
            "W&B package", "note", "not installed; offline runs are shown without it", "mosaic extras install wandb"
        )
    return Finding("W&B package", "ok", f"in {python}")
