"""The `var/` layout: one place that knows where things lie."""

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
"""sun_path holds 108 bytes; leave room for the temporary names some libraries append."""


@dataclass(frozen=True)
class RunFolder:
    """What a run leaves: `trainer/runs/<ULID>/`. The worker owns it while it runs."""

    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / "analytics.json"

    @property
    def lifecycle(self) -> Path:
        return self.root / "lifecycle.jsonl"

    @property
    def exit_record(self) -> Path:
        return self.root / "exit.json"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def metrics(self) -> Path:
        """What the daemon makes of the event files; it can be made again."""
        return self.root / "metrics"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def videos(self) -> Path:
        return self.root / "videos"

    @property
    def wandb(self) -> Path:
        return self.root / "wandb"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


@dataclass(frozen=True)
class Home:
    """`$MOSAIC_HOME`: everything the daemon keeps. Folders are made by `create`, not by looking."""

    root: Path

    @property
    def trainer(self) -> Path:
        return self.root / "trainer"

    @property
    def database(self) -> Path:
        return self.trainer / "trainer.sqlite"

    @property
    def lock(self) -> Path:
        return self.trainer / "trainer.lock"

    @property
    def token(self) -> Path:
        return self.trainer / "token"

    @property
    def daemon_record(self) -> Path:
        """Who serves this home now: pid, process start time, addresses."""
        return self.trainer / "daemon.json"

    @property
    def identity(self) -> tuple[int, ...]:
        """What tells a home from its copies, by whatever path it is reached; nothing when it cannot be looked at."""
        try:
            status = self.trainer.stat()
        except OSError:
            return ()
        return status.st_dev, status.st_ino

    @property
    def daemon_log(self) -> Path:
        return self.root / "logs" / "daemon.log"

    @property
    def configs(self) -> Path:
        return self.trainer / "configs"

    @property
    def runs(self) -> Path:
        return self.trainer / "runs"

    @property
    def evaluations(self) -> Path:
        return self.trainer / "evals"

    @property
    def custom_scripts(self) -> Path:
        return self.trainer / "custom_scripts"

    @property
    def workers(self) -> Path:
        return self.root / "workers"

    @property
    def telemetry_database(self) -> Path:
        return self.root / "telemetry" / "telemetry.sqlite"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    def config_file(self, run_id: str) -> Path:
        return self.configs / f"config-{check_run_id(run_id)}.json"

    def worker_config_file(self, run_id: str) -> Path:
        return self.configs / f"worker-{check_run_id(run_id)}.json"

    def run_folder(self, run_id: str) -> RunFolder:
        return RunFolder(self.runs / check_run_id(run_id))

    def run_logs(self, run_id: str) -> Path:
        return self.root / "logs" / "trainer" / check_run_id(run_id)

    def evaluation_folder(self, run_id: str) -> Path:
        return self.evaluations / check_run_id(run_id)

    @property
    def socket(self) -> Path:
        """The daemon's unix socket; short enough for the kernel even when the home is not."""
        inside = self.trainer / "socket" / "daemon.sock"
        if len(os.fsencode(inside)) <= _SOCKET_PATH_LIMIT:
            return inside
        import tempfile  # rarely needed, and not cheap

        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"mosaic-{os.getuid()}" / digest / "daemon.sock"

    @property
    def target(self) -> str:
        """What a gRPC channel to the daemon is opened on: an address, in which `%`, `#` and `?` have a meaning."""
        from urllib.parse import quote

        return f"unix:{quote(os.fsencode(self.socket))}"

    def create(self) -> None:
        """Make the folders, for this user alone: who can write into one of them decides what the daemon starts."""
        shown = os.fsencode(self.root).decode(errors="backslashreplace")
        if shown != str(self.root):
            raise WireError(f"the path {shown} is not UTF-8; rename the folder, or set {env.MOSAIC_HOME} to another")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_others_out(self.root)
        make_private_folder(self.trainer)
        for folder in (self.workers, self.cache, self.root / "logs"):
            if not folder.is_symlink():  # a place on another disk is the user's own arrangement
                make_private_folder(folder)
        for folder in (self.configs, self.runs, self.evaluations, self.root / "logs" / "trainer"):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.socket.is_relative_to(self.root):
            make_private_folder(self.socket.parent.parent)
        make_private_folder(self.socket.parent)


def keep_others_out(folder: Path) -> None:
    """Refuse a folder that somebody else could put things into, or swap things of; take that right away in our own."""
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
    """Whether this user, or root, owns it."""
    return status.st_uid in (os.getuid(), 0)


def make_private_folder(folder: Path) -> None:
    """Make a folder 0700 and refuse one that belongs to somebody else (a stranger may have made it in /tmp first)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise WireError(
            f"{folder} must be a folder of this user (uid {os.getuid()}); remove it or set {env.MOSAIC_HOME}"
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)


def person_path(text: str | Path) -> Path:
    """A path as people write it, absolute; `~nobody/x` of somebody this machine does not know stays a name."""
    return Path(os.path.expanduser(text)).absolute()


def find_home() -> Home:
    """`$MOSAIC_HOME`, else `var/` of the checkout this package is installed from, else the user's data folder."""
    if chosen := os.environ.get(env.MOSAIC_HOME):
        return Home(person_path(chosen))
    # packages/mosaic_wire/mosaic_wire/paths.py of an editable install
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "packages" / "mosaic_wire" / "pyproject.toml").is_file():
        return Home(checkout / "var")
    import platformdirs  # only a home that nobody named needs it

    return Home(Path(platformdirs.user_data_dir("mosaic", appauthor=False)))


def config_home() -> Path:
    """The user's settings and, where there is no keyring, the 0600 secret file: never inside `var/`."""
    if chosen := os.environ.get(env.MOSAIC_CONFIG_HOME):
        return person_path(chosen)
    import platformdirs

    return Path(platformdirs.user_config_dir("mosaic", appauthor=False))
