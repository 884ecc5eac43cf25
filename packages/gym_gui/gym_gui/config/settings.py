"""`settings.toml` in the user's config folder: read once at start, every problem reported at once.

Flat keys, all optional:

    heartbeat_s = 5
    silence_s = 120
    on_end_command = ["notify-send", "a run ended"]
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.files import chosen_file, open_chosen, read_plain_file
from mosaic_wire.paths import config_home, make_private_folder
from mosaic_wire.worker_spec import nearest

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Profile:
    """How a daemon on another machine is reached."""

    connect: str
    token_file: Path | None = None
    tls_ca: Path | None = None


@dataclass(frozen=True)
class SlurmSettings:
    """A Slurm cluster whose nodes share the daemon's disk: `[executors.NAME]` with type = "slurm"."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    gres: str = "gpu"
    """what a GPU is called in --gres: "gpu", or with its model, "gpu:a100\""""
    options: tuple[str, ...] = ()
    """more options of sbatch, such as "--constraint=avx512\""""
    python: Path | None = None
    """interpreter on the nodes that has gym_gui; None: the daemon's"""
    max_submitted: int = 200
    """runs in Slurm at a time; later ones wait in the daemon's queue"""
    poll_s: float = 2.0
    """seconds between two calls of squeue, one for all runs"""


@dataclass(frozen=True)
class NodeSettings:
    """How workers on machines without the home's disk reach the daemon, and what they may send."""

    listen: str = ""
    """address to listen on for them; empty: none. Its certificate is made by `mosaic daemon certs`"""
    port: int = 50056
    """its port; 0: any free one"""
    address: str = ""
    """the name or address that they connect to; empty: `listen`, or the machine's name if that is every address"""
    silence_s: float = 600.0
    """a run whose node cannot be reached is faulted after this long, if that is longer than its own limit"""
    mb_per_s: float = 50.0
    """as fast as one node may send files and frames; 0: as fast as it can"""
    run_gb: float = 64.0
    """size of all files that the nodes of one run may send"""


@dataclass(frozen=True)
class Settings:
    """The daemon's settings that a user may change."""

    heartbeat_s: float = 5.0
    """interval of the workers' heartbeats"""
    silence_s: float = 120.0
    """a running worker that is silent for longer is faulted"""
    handshake_s: float = 120.0
    """a started worker that has not registered after this long is faulted"""
    grace_s: float = 30.0
    """between SIGTERM and SIGKILL"""
    cpus: float | None = None
    """CPUs to give away; None: as the machine has them"""
    memory_mb: int | None = None
    """memory to give away; None: as the machine has it"""
    max_processes: int = 4096
    """processes and threads of one run"""
    log_cap_mb: int = 256
    """size of all logs of a run together; older output is dropped"""
    min_free_disk_mb: int = 512
    """less free disk: runs wait"""
    min_free_memory_mb: int = 256
    """less free memory: runs wait"""
    listen: str = ""
    """TCP address; empty: only the unix socket; anything but loopback needs `tls_cert` and `tls_key`"""
    port: int = 50055
    """TCP port; 0: any free one"""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    on_end_command: tuple[str, ...] = ()
    """program and arguments to start when a run ends; never a shell line"""
    on_end_webhook: str = ""
    """http(s) address that gets a POST when a run ends"""
    custom_scripts: tuple[Path, ...] = ()
    """folders that custom scripts may be run from, besides `trainer/custom_scripts` of the home"""
    cleanrl_home: Path | None = None
    """a CleanRL checkout, for `mosaic train --source upstream`; CLEANRL_HOME wins over it"""
    daemons: Mapping[str, Profile] = field(default_factory=dict)
    """daemons on other machines by name, for --connect NAME"""
    executors: Mapping[str, SlurmSettings] = field(default_factory=dict)
    """clusters that runs can be handed over to by name, for --on NAME"""
    nodes: NodeSettings = field(default_factory=NodeSettings)
    """workers on machines without the home's disk"""


def settings_file() -> Path:
    """Return where the settings lie."""
    return config_home() / "settings.toml"


def load_settings(path: Path | None = None, *, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; a missing file means the defaults, anything wrong raises ConfigProblems with all of it.

    `overrides` (command-line flags, tests) win over the file and are checked like it.
    """
    file = settings_file() if path is None else path
    found = {**_read(file), **(overrides or {})}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in found.items():
        check = _CHECKS.get(name)
        if check is None:
            problems.append(Problem(name, f"unknown setting {name!r}", nearest(name, _CHECKS)))
            continue
        try:
            values[name] = check(value)
        except ValueError as error:
            problems.append(Problem(name, str(error)))
    problems += _problems_together(values, {problem.path for problem in problems})
    if problems:
        raise ConfigProblems(f"the settings file {file}", problems)
    return Settings(**values)


def _read(file: Path) -> dict[str, Any]:
    try:
        with open_chosen(file) as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigProblems(f"the settings file {file}", [Problem("", f"cannot be read: {error.strerror}")]) from error
    if len(data) > _MAX_BYTES:
        raise ConfigProblems(f"the settings file {file}", [Problem("", f"is larger than {_MAX_BYTES} bytes")])
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigProblems(f"the settings file {file}", [Problem("", f"is not valid TOML: {error}")]) from error


def _problems_together(values: Mapping[str, Any], broken: set[str]) -> list[Problem]:
    """Return what is wrong between settings that are each right."""
    problems = []
    certificate, key = values.get("tls_cert"), values.get("tls_key")
    if (certificate is None) != (key is None) and not broken & {"tls_cert", "tls_key"}:
        missing = "tls_key" if key is None else "tls_cert"
        problems.append(Problem(missing, "missing: a certificate and its key belong together"))
    listen = values.get("listen", "")
    if listen and not _is_loopback(listen) and certificate is None and "tls_cert" not in broken:
        problems.append(
            Problem("listen", f"{listen!r} is not loopback: set tls_cert and tls_key, or listen on 127.0.0.1")
        )
    heartbeat, silence = values.get("heartbeat_s", 5.0), values.get("silence_s", 120.0)
    if silence < 2 * heartbeat:
        problems.append(
            Problem(
                "silence_s", f"must be at least twice heartbeat_s ({heartbeat:g}), got {silence:g}: a beat may be late"
            )
        )
    return problems


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _between(
    low: float, high: float, kind: type[int] | type[float] = float, *, optional: bool = False
) -> Callable[[Any], Any]:
    """Return the check of a number; NaN is refused as well."""

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int | kind):
            raise ValueError(f"expected a {'whole ' if kind is int else ''}number, got {value!r}")
        if not low <= value <= high:
            raise ValueError(f"must lie between {low} and {high}, got {value!r}")
        return kind(value)

    return check


def _address(value: Any) -> str:
    if value in ("", "localhost"):
        return str(value)
    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    except ValueError:
        raise ValueError(f'expected an IP address such as "127.0.0.1", or "localhost", got {value!r}') from None


def _file(value: Any) -> Path | None:
    path = _path(value, "file")
    if path is not None and not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _folder(value: Any) -> Path | None:
    return _path(value, "folder")


def _path(value: Any, what: str) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"expected the path of a {what}, got {value!r}")
    path = Path(os.path.expanduser(value))  # Path.expanduser raises for a user whom this machine does not know
    if not path.is_absolute():
        raise ValueError(f"expected an absolute path, got {str(value)!r}")
    return path


def _folders(value: Any) -> tuple[Path, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of folders, got {value!r}")
    folders = [_folder(entry) for entry in value]
    if any(folder is None or os.pathsep in str(folder) for folder in folders):
        raise ValueError(f"expected paths of folders without {os.pathsep!r} in them, got {value!r}")
    return tuple(folder for folder in folders if folder is not None)


def _command(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError(f"expected a list: the program and each argument as its own string, got {value!r}")
    if value and not value[0]:
        raise ValueError("the first string must be the program")
    if any("\0" in part for part in value):
        raise ValueError("an argument must not contain a NUL character")
    return tuple(value)


def _webhook(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f'expected an address such as "https://…", got {value!r}')
    if not value:
        return ""
    try:
        address = urlsplit(value)
        usable = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("expected an address that begins with http:// or https:// and names a host")
    return value


def _nodes(value: Any) -> NodeSettings:
    if isinstance(value, NodeSettings):
        return value
    if not isinstance(value, Mapping) or (unknown := value.keys() - _NODE_CHECKS.keys()):
        what = f"unknown: {', '.join(map(repr, sorted(unknown)))}" if isinstance(value, Mapping) else f"got {value!r}"
        raise ValueError(f"expected a table [nodes] with any of {', '.join(_NODE_CHECKS)}; {what}")
    found = {}
    for name, entry in value.items():
        try:
            found[name] = _NODE_CHECKS[name](entry)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return NodeSettings(**found)


def _host(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9.:_-]{0,253}", value):
        raise ValueError(f'expected a name or an address without a port, such as "trainer.lab", got {value!r}')
    return value


def _profiles(value: Any) -> dict[str, Profile]:
    if not isinstance(value, Mapping):
        raise ValueError(f'expected tables such as [daemons.gpu] with connect = "server:50055", got {value!r}')
    found = {}
    for name, entry in value.items():
        if not isinstance(entry, Mapping) or not {"connect"} <= {*entry} <= {"connect", "token_file", "tls_ca"}:
            raise ValueError(
                f'[daemons.{name}] needs connect = "HOST:PORT"; token_file and tls_ca are optional; got {entry!r}'
            )
        if ":" in name or not re.fullmatch(r"\S+:\d+", str(entry["connect"])):
            raise ValueError(f'[daemons.{name}] needs a name without a colon and connect = "HOST:PORT"')
        found[name] = Profile(entry["connect"], _file(entry.get("token_file")), _file(entry.get("tls_ca")))
    return found


_EXECUTOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SLURM_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:,@+-]*|")
_OWN_OPTIONS = (
    *("--job-name", "--output", "--error", "--input", "--open-mode", "--export", "--export-file", "--wrap", "--array"),
    *("--requeue", "--no-requeue", "--parsable", "--chdir", "--nodes", "--ntasks", "--signal", "--wait", "--test-only"),
)
"""Options of sbatch that MOSAIC sets itself, or that would break its view of the job"""


def _word(value: Any) -> str:
    if not isinstance(value, str) or not _SLURM_WORD.fullmatch(value):
        raise ValueError(f"expected a name as Slurm knows it, got {value!r}")
    return value


def _slurm_options(value: Any) -> tuple[str, ...]:
    options = _command(value)
    for option in options:
        name = option.partition("=")[0]
        if not re.fullmatch(r"--[a-z][a-z0-9-]+", name):
            raise ValueError(
                f'expected long options of sbatch in one piece, such as "--constraint=avx512", got {option!r}'
            )
        if any(own.startswith(name) for own in _OWN_OPTIONS):  # getopt accepts abbreviations
            raise ValueError(f"{name} cannot be given here: MOSAIC sets it itself")
    return options


def _executors(value: Any) -> dict[str, SlurmSettings]:
    if not isinstance(value, Mapping):
        raise ValueError(f'expected tables such as [executors.cluster] with type = "slurm", got {value!r}')
    return {name: _executor(name, entry) for name, entry in value.items()}


def _executor(name: str, entry: Any) -> SlurmSettings:
    where = f"[executors.{name}]"
    if not _EXECUTOR_NAME.fullmatch(name) or name == "local":
        raise ValueError(f"{where} needs another name: letters, digits, - and _; local is the daemon's own machine")
    if not isinstance(entry, Mapping) or entry.get("type") != "slurm":
        raise ValueError(f'{where} needs type = "slurm" (there is no other type yet), got {entry!r}')
    values = {}
    for key, given in entry.items():
        if key == "type":
            continue
        if (check := _SLURM_CHECKS.get(key)) is None:
            close = nearest(key, _SLURM_CHECKS)
            raise ValueError(f"{where} has no setting {key!r}" + (f"; did you mean {close!r}?" if close else ""))
        try:
            values[key] = check(given)
        except ValueError as error:
            raise ValueError(f"{where} {key}: {error}") from None
    return SlurmSettings(**values)


_SLURM_CHECKS: dict[str, Callable[[Any], Any]] = {
    "partition": _word,
    "account": _word,
    "qos": _word,
    "gres": _word,
    "options": _slurm_options,
    "python": _file,
    "max_submitted": _between(1, 100_000, int),
    "poll_s": _between(0.1, 600),
}

_DAY_S = 86_400
_NODE_CHECKS: dict[str, Callable[[Any], Any]] = {
    "listen": _address,
    "port": _between(0, 65_535, int),
    "address": _host,
    "silence_s": _between(1, 30 * _DAY_S),
    "mb_per_s": _between(0, 1e6),
    "run_gb": _between(0.001, 1e6),
}
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "heartbeat_s": _between(0.05, 3600),
    "silence_s": _between(0.1, _DAY_S),
    "handshake_s": _between(0.1, _DAY_S),
    "grace_s": _between(0, _DAY_S),
    "cpus": _between(0.1, 4096, optional=True),
    "memory_mb": _between(16, 2**30, int, optional=True),
    "max_processes": _between(1, 2**22, int),
    "log_cap_mb": _between(1, 2**20, int),
    "min_free_disk_mb": _between(0, 2**30, int),
    "min_free_memory_mb": _between(0, 2**30, int),
    "listen": _address,
    "port": _between(0, 65_535, int),
    "tls_cert": _file,
    "tls_key": _file,
    "on_end_command": _command,
    "on_end_webhook": _webhook,
    "custom_scripts": _folders,
    "cleanrl_home": _folder,
    "daemons": _profiles,
    "executors": _executors,
    "nodes": _nodes,
}

# ---------------------------------------------------------------- writing


def change_settings(changes: Mapping[str, Any], path: Path | None = None) -> Settings:
    """Write these (None: back to the default) and return all settings; ConfigProblems when they are not right.

    Nothing is written unless every setting of the result is right.
    """
    file = settings_file() if path is None else path
    try:
        before = read_plain_file(file, opener=chosen_file).decode()
    except FileNotFoundError:
        before = ""
    text = changed_text(before, changes)
    make_private_folder(file.parent)
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(6)}.tmp")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        settings = load_settings(unfinished)
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    return settings


def changed_text(text: str, changes: Mapping[str, Any]) -> str:
    """Return the file with these settings changed: each on its old line, new ones at the end."""
    try:
        target = {**tomllib.loads(text), **changes}
    except tomllib.TOMLDecodeError:
        target = dict(changes)
        text = ""  # it cannot be parsed; keep only what was typed in the form
    target = {key: value for key, value in target.items() if value is not None}
    lines, done = [], set()
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
        if match is None or match[1] not in changes:
            lines.append(line)
        elif match[1] not in done:
            done.add(match[1])
            if changes[match[1]] is not None:
                lines.append(f"{match[1]} = {to_toml(changes[match[1]])}")
    for key, value in changes.items():
        if key not in done and value is not None:
            lines.append(f"{key} = {to_toml(value)}")
    result = "\n".join(lines) + "\n" if lines else ""
    try:
        if tomllib.loads(result) == _plain(target):
            return result
    except tomllib.TOMLDecodeError:
        pass
    # A value over several lines, or a table: written anew as a whole, without its comments.
    return "".join(f"{key} = {to_toml(value)}\n" for key, value in target.items())


def to_toml(value: Any) -> str:
    """Return a value of a flat setting."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {to_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_toml(entry) for entry in value) + "]"
    # A basic string of TOML escapes as JSON does, but for DEL, which it does not allow as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tomllib.loads(f"value = {to_toml(value)}")["value"] for key, value in values.items()}
