"""The layout of a MOSAIC home (`var/`)."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire import env
from mosaic_wire.errors import WireError
from mosaic_wire.ids import check_run_id

_SOCKET_PATH_LIMIT = 100
"""sun_path has 108 bytes; some libraries append temporary names"""


class _Below:
    """A path below the `root` of its owner."""

    def __init__(self, *parts: str) -> None:
        self._below = Path(*parts)

    def __get__(self, owner: RunFolder | Home, kind: type | None = None) -> Path:
        return owner.root / self._below


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, `trainer/runs/<ULID>/`, written by its worker."""

    root: Path

    manifest = _Below("analytics.json")
    lifecycle = _Below("lifecycle.jsonl")
    exit_record = _Below("exit.json")
    tensorboard = _Below("tensorboard")
    metrics = _Below("metrics")
    """Curves that the daemon derived from the event files"""
    checkpoints = _Below("checkpoints")
    videos = _Below("videos")
    wandb = _Below("wandb")
    logs = _Below("logs")

    @property
    def home(self) -> Home:
        """Return the home whose daemon made this folder."""
        return Home(self.root.parent.parent.parent)


@dataclass(frozen=True)
class Home:
    """`$MOSAIC_HOME`, all data of a daemon; only `create` creates folders."""

    root: Path

    trainer = _Below("trainer")
    database = _Below("trainer", "trainer.sqlite")
    lock = _Below("trainer", "trainer.lock")
    token = _Below("trainer", "token")
    daemon_record = _Below("trainer", "daemon.json")
    """The daemon that serves this home: pid, process start time, addresses"""
    daemon_log = _Below("logs", "daemon.log")
    configs = _Below("trainer", "configs")
    runs = _Below("trainer", "runs")
    evaluations = _Below("trainer", "evals")
    custom_scripts = _Below("trainer", "custom_scripts")
    workers = _Below("workers")
    telemetry_database = _Below("telemetry", "telemetry.sqlite")
    cache = _Below("cache")
    archive = _Below("archive")

    def config_file(self, run_id: str) -> Path:
        """Return the path of the canonical run config."""
        return self.configs / f"config-{check_run_id(run_id)}.json"

    def worker_config_file(self, run_id: str) -> Path:
        """Return the path of the worker config."""
        return self.configs / f"worker-{check_run_id(run_id)}.json"

    def run_folder(self, run_id: str) -> RunFolder:
        """Return the folder of a run; raise InvalidRunId for an id that is not a ULID."""
        return RunFolder(self.runs / check_run_id(run_id))

    def run_logs(self, run_id: str) -> Path:
        """Return the folder of a worker's output."""
        return self.root / "logs" / "trainer" / check_run_id(run_id)

    def evaluation_folder(self, run_id: str) -> Path:
        """Return the folder of an evaluation's summary."""
        return self.evaluations / check_run_id(run_id)

    def places_of_run(self, run_id: str) -> dict[str, Path]:
        """Return the folders and files of a run by their names in archives and on the wire."""
        return {
            "run": self.run_folder(run_id).root,
            "logs": self.run_logs(run_id),
            "evals": self.evaluation_folder(run_id),
            "scripts": self.custom_scripts / run_id,
            "config/config.json": self.config_file(run_id),
            "config/worker.json": self.worker_config_file(run_id),
        }

    @property
    def identity(self) -> tuple[int, ...]:
        """Return an identity that differs for copies but not for other paths; empty when the home is unreadable."""
        try:
            status = self.trainer.stat()
        except OSError:
            return ()
        return status.st_dev, status.st_ino

    @property
    def socket(self) -> Path:
        """Return the path of the daemon's unix socket, short enough for the kernel even if the home is not."""
        inside = self.trainer / "socket" / "daemon.sock"
        if len(os.fsencode(inside)) <= _SOCKET_PATH_LIMIT:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return short_folder() / digest / "daemon.sock"

    @property
    def node_socket(self) -> Path:
        """Return the path of the socket behind the address for nodes."""
        return self.socket.with_name("nodes.sock")

    @property
    def target(self) -> str:
        """Return the target of a gRPC channel to the daemon."""
        return unix_target(self.socket)

    @property
    def node_target(self) -> str:
        """Return the target of a gRPC channel to the server for nodes."""
        return unix_target(self.node_socket)

    def create(self) -> None:
        """Create the folders, private to this user, because write access would allow running code as this user."""
        shown = os.fsencode(self.root).decode(errors="backslashreplace")
        if shown != str(self.root):
            raise WireError(f"the path {shown} is not UTF-8; rename the folder, or set {env.MOSAIC_HOME} to another")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_others_out(self.root)
        make_private_folder(self.trainer)
        for folder in (self.workers, self.cache, self.root / "logs"):
            if not folder.is_symlink():  # a link to another disk was made by the user
                make_private_folder(folder)
        for folder in (self.configs, self.runs, self.evaluations, self.root / "logs" / "trainer"):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.socket.is_relative_to(self.root):
            make_private_folder(self.socket.parent.parent)
        make_private_folder(self.socket.parent)


def unix_target(socket: Path) -> str:
    """Return the target of a gRPC channel to a unix socket, with `%`, `#` and `?` escaped."""
    from urllib.parse import quote

    return f"unix:{quote(os.fsencode(socket))}"


def short_folder() -> Path:
    """Return a private folder with a short path for sockets; another one if a different user owns the usual one."""
    import tempfile  # rarely needed, and not cheap

    usual = Path(tempfile.gettempdir()) / f"mosaic-{os.getuid()}"
    if not os.path.lexists(usual) or usual.lstat().st_uid == os.getuid():
        return usual
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    is_ours = os.path.isdir(runtime) and os.stat(runtime).st_uid == os.getuid()
    return (Path(runtime) if is_ours else Path.home() / ".cache") / "mosaic"


def keep_others_out(folder: Path) -> None:
    """Refuse a folder that another user owns and can write to; remove write access of others from own folders."""
    status = folder.stat()
    if not is_ours(status):
        raise WireError(
            f"{folder} belongs to another user (uid {status.st_uid}), who decides what lies in it; "
            f"use a folder of your own, or set {env.MOSAIC_HOME}"
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        if status.st_uid != os.getuid():
            raise WireError(f"other users may write to {folder}; run `chmod go-w` on it, or set {env.MOSAIC_HOME}")
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)


def is_ours(status: os.stat_result) -> bool:
    """Return whether this user or root owns it."""
    return status.st_uid in (os.getuid(), 0)


def make_private_folder(folder: Path) -> None:
    """Create a folder with mode 0700; refuse an existing one of another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise WireError(
            f"{folder} must be a folder of this user (uid {os.getuid()}); remove it or set {env.MOSAIC_HOME}"
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)


def user_path(text: str | Path) -> Path:
    """Return a path typed by a user as an absolute one; `~x/y` stays a name if there is no user x."""
    return Path(os.path.expanduser(text)).absolute()


def find_home() -> Home:
    """Return `$MOSAIC_HOME`, else `var/` of the checkout of an editable install, else the user's data folder."""
    if chosen := os.environ.get(env.MOSAIC_HOME):
        return Home(user_path(chosen))
    # packages/mosaic_wire/mosaic_wire/paths.py of an editable install
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "packages" / "mosaic_wire" / "pyproject.toml").is_file():
        return Home(checkout / "var")
    import platformdirs  # only needed when no home is given

    return Home(Path(platformdirs.user_data_dir("mosaic", appauthor=False)))


def config_home() -> Path:
    """Return the folder of the user's settings and, without a keyring, the secret file; never inside the home."""
    if chosen := os.environ.get(env.MOSAIC_CONFIG_HOME):
        return user_path(chosen)
    import platformdirs

    return Path(platformdirs.user_config_dir("mosaic", appauthor=False))


def cache_home() -> Path:
    """Return the folder of what can be fetched again."""
    if chosen := os.environ.get(env.MOSAIC_CACHE_HOME):
        return user_path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("mosaic", appauthor=False))
