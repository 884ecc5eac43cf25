"""`settings.toml` in the user's config folder: read once at start, every problem reported at once.

Flat keys, all optional:

    heartbeat_s = 5
    silence_s = 120
    on_end_command = ["notify-send", "a run ended"]
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.files import open_chosen
from mosaic_wire.paths import config_home
from mosaic_wire.worker_spec import nearest

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What a person may change about the daemon."""

    heartbeat_s: float = 5.0
    """how often workers say that they live"""
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
    """size of one output file of a worker; older output is dropped"""
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


def settings_file() -> Path:
    """Where the settings lie."""
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
    """What is wrong between settings that are each right."""
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


def _number(minimum: float, maximum: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a number, got {value!r}")
        if not minimum <= value <= maximum:  # NaN is not, either
            raise ValueError(f"must lie between {minimum:g} and {maximum:g}, got {value!r}")
        return float(value)

    return check


def _whole(minimum: int, maximum: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"expected a whole number, got {value!r}")
        if not minimum <= value <= maximum:
            raise ValueError(f"must lie between {minimum} and {maximum}, got {value}")
        return value

    return check


def _address(value: Any) -> str:
    if value in ("", "localhost"):
        return str(value)
    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    except ValueError:
        raise ValueError(f'expected an IP address such as "127.0.0.1", or "localhost", got {value!r}') from None


def _file(value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"expected the path of a file, got {value!r}")
    path = _absolute(value)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _folder(value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"expected the path of a folder, got {value!r}")
    return _absolute(value)


def _absolute(value: str | Path) -> Path:
    path = Path(os.path.expanduser(value))  # Path.expanduser raises for somebody whom this machine does not know
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


_DAY_S = 86_400
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "heartbeat_s": _number(0.05, 3600),
    "silence_s": _number(0.1, _DAY_S),
    "handshake_s": _number(0.1, _DAY_S),
    "grace_s": _number(0, _DAY_S),
    "cpus": lambda value: None if value is None else _number(0.1, 4096)(value),
    "memory_mb": lambda value: None if value is None else _whole(16, 2**30)(value),
    "max_processes": _whole(1, 2**22),
    "log_cap_mb": _whole(1, 2**20),
    "min_free_disk_mb": _whole(0, 2**30),
    "min_free_memory_mb": _whole(0, 2**30),
    "listen": _address,
    "port": _whole(0, 65_535),
    "tls_cert": _file,
    "tls_key": _file,
    "on_end_command": _command,
    "on_end_webhook": _webhook,
    "custom_scripts": _folders,
    "cleanrl_home": _folder,
}
