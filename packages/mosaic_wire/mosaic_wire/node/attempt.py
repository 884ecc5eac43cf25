"""One attempt of a run on a node: accepted by the daemon, its worker runs in a home of its own."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import SessionError
from mosaic_wire.exit_record import BAD_INPUT
from mosaic_wire.files import write_json_atomically
from mosaic_wire.node import INSTANCE_PREFIX, Bootstrap, process_tree
from mosaic_wire.node.calls import DaemonAway, DaemonCalls
from mosaic_wire.node.frames import FrameUploads
from mosaic_wire.node.relay import TlsRelay
from mosaic_wire.node.uploads import FileUploads, print_message
from mosaic_wire.paths import Home, unix_target
from mosaic_wire.proto import trainer_pb2 as messages
from mosaic_wire.redaction import is_secret_key

_OPEN_S = 600.0
"""How long to wait for the daemon before anything was started"""
_POLL_S = 0.2
_LEFTOVER_GRACE_S = 2.0
_NOT_PASSED = ("MOSAIC_", "CLEANRL_")


class Node:
    """One attempt of a run on this machine."""

    def __init__(self, bootstrap: Bootstrap, root: Path, shared: Path) -> None:
        """`root`: for the run's files; `shared`: for sockets and frames, in memory and with a short path."""
        self._bootstrap, self._root = bootstrap, root
        self._home = Home(root / "home")
        self._instance = f"{INSTANCE_PREFIX}{secrets.token_hex(16)}"
        self._shared, self._socket = shared, shared / "daemon.sock"
        self._relay = TlsRelay(bootstrap, self._socket)
        self._calls = DaemonCalls(unix_target(self._socket), bootstrap, self._instance)
        self._stopping = threading.Event()

    def request_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: end the worker, then send what it has written."""
        self._stopping.set()

    def run(self) -> int:
        """Return the worker's exit code, once the daemon has everything."""
        self._relay.start()
        try:
            opened = self._open()
            uploads = self._prepare(opened)
            try:
                self._install_missing(opened)
                uploads.is_preparing = False
                code = self._run_worker(opened, uploads)
            except (
                SessionError
            ) as error:  # sent as what the worker printed, so that the run has the reason of its failure
                with open(self._home.run_logs(self._bootstrap.run_id) / "stderr.log", "a") as log:
                    log.write(f"{error}\n")
                code = BAD_INPUT
            if not uploads.finish(self._give_up_after(opened.grace_s)):
                reason = uploads.refusal or "it was stopped before the daemon had everything"
                raise SessionError(f"{reason}; what the worker wrote stays in {self._home.root}")
            if uploads.refused:
                print_message(f"the files that were refused stay in {self._home.root}")
            else:
                shutil.rmtree(self._root, ignore_errors=True)
            return code
        finally:
            self._calls.close()
            self._relay.close()

    # -- before the worker

    def _open(self) -> messages.OpenNodeResponse:
        """Ask the daemon for everything that the worker needs, until it answers."""
        deadline = time.monotonic() + _OPEN_S
        while True:
            try:
                return self._calls.open()
            except DaemonAway as error:
                problem = self._relay.problem or str(error)
            if self._relay.is_distrusted or self._stopping.wait(1) or time.monotonic() > deadline:
                raise SessionError(f"the daemon at {self._bootstrap.address} cannot be reached: {problem}")

    def _prepare(self, opened: messages.OpenNodeResponse) -> FileUploads:
        """Make the home of this attempt, with the files that the run starts from."""
        run_id, home = self._bootstrap.run_id, self._home
        folder = home.run_folder(run_id)
        for path in (folder.root, home.run_logs(run_id), home.configs):
            path.mkdir(parents=True, exist_ok=True)
        uploads = FileUploads(self._calls, home, run_id)
        self._fetch(opened)
        for file in opened.inputs:
            owner, _, name = file.path.partition("/")
            if owner == run_id and not name.startswith("scripts/"):
                uploads.know(name, file.size)
        config = _moved(json.loads(opened.worker_config_json), f"{opened.home}/", f"{home.root}/")
        write_json_atomically(home.worker_config_file(run_id), config, mode=0o600, sealed=True)
        uploads.start()
        return uploads

    def _fetch(self, opened: messages.OpenNodeResponse) -> None:
        """Bring the inputs; of logs only their size, because later output is appended to them."""
        missing = {}
        for file in opened.inputs:
            owner, place, rest = file.path.split("/", 2)
            path = self._home.places_of_run(owner)[place] / rest
            if not path.is_relative_to(self._home.root) or ".." in path.parts:
                raise SessionError(f"the daemon named a file outside of the run: {file.path!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".log":
                with path.open("wb") as stream:
                    stream.truncate(file.size)
            else:
                missing[file.path] = path
        deadline = time.monotonic() + _OPEN_S
        while missing:
            try:
                self._fetch_some(missing)
            except DaemonAway as error:
                if self._stopping.wait(1) or time.monotonic() > deadline:
                    raise SessionError(
                        f"what run {self._bootstrap.run_id} starts from did not arrive: {error}"
                    ) from None

    def _fetch_some(self, missing: dict[str, Path]) -> None:
        """Fetch until the link breaks; what is complete and right is no longer missing."""
        parts = {path: target.with_name(f"{target.name}.part") for path, target in missing.items()}
        offsets = {path: part.stat().st_size if part.exists() else 0 for path, part in parts.items()}
        for piece in self._calls.read_inputs(offsets):
            part = parts[piece.path]
            with open(part, "r+b" if part.exists() else "x+b") as stream:
                stream.truncate(piece.offset)
                stream.seek(piece.offset)
                stream.write(piece.data)
                if piece.sha256:
                    stream.seek(0)
                    if hashlib.file_digest(stream, "sha256").hexdigest() == piece.sha256:
                        os.replace(part, missing.pop(piece.path))
                    else:
                        part.unlink()
        if missing:
            raise DaemonAway("files change while they are read")

    def _install_missing(self, opened: messages.OpenNodeResponse) -> None:
        """Let the worker install the requirement sets that the run lacks here, if its config allows that."""
        extras = json.loads(opened.worker_config_json).get("extras") or {}
        if not (opened.prepares and extras.get("install_missing")):
            return
        log = self._home.run_logs(self._bootstrap.run_id) / "prepare.log"
        with log.open("ab") as output:
            code = subprocess.call(
                [*self._command(opened), "--prepare"],
                env=self._variables(opened),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        if code != 0:
            raise SessionError(f"what the run needs could not be installed on {os.uname().nodename}: {_tail(log)}")

    # -- the worker

    def _command(self, opened: messages.OpenNodeResponse) -> list[str]:
        run_id = self._bootstrap.run_id
        config = str(self._home.worker_config_file(run_id))
        return [sys.executable, "-P", "-m", opened.module, "--config", config, "--run-id", run_id]

    def _variables(self, opened: messages.OpenNodeResponse) -> dict[str, str]:
        """Return the worker's environment: this machine's, the run's secrets, and where things lie here."""
        bootstrap, folder = self._bootstrap, self._home.run_folder(self._bootstrap.run_id)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_NOT_PASSED) and not is_secret_key(name)
        }
        threads = dict.fromkeys(env.THREAD_COUNTS, str(max(1, int(opened.cpus))))
        return {
            **threads,
            # Without a reservation a worker must see no GPU; with one, the engine sets them.
            env.CUDA_VISIBLE_DEVICES: "",
            **inherited,
            **opened.secrets,
            env.MOSAIC_HOME: str(self._home.root),
            env.MOSAIC_FRAMES_DIR: str(self._shared),
            env.MOSAIC_NODE_INSTANCE: self._instance,
            env.MOSAIC_RUN_ID: bootstrap.run_id,
            env.MOSAIC_RUN_DIR: str(folder.root),
            env.MOSAIC_RUN_ATTEMPT: str(bootstrap.attempt),
            env.MOSAIC_RUN_TOKEN: bootstrap.run_token,
            env.MOSAIC_RUN_MARK: bootstrap.mark,
            env.MOSAIC_CONFIG_FILE: str(self._home.worker_config_file(bootstrap.run_id)),
            env.MOSAIC_CHECKPOINT_DIR: str(folder.checkpoints),
            env.MOSAIC_GRPC_TARGET: unix_target(self._socket),
            env.MOSAIC_GRACE_S: f"{opened.grace_s:g}",
            env.MOSAIC_GPUS_MANDATORY: str(opened.gpus_mandatory),
        }

    def _run_worker(self, opened: messages.OpenNodeResponse, uploads: FileUploads) -> int:
        """Run the worker until it has ended with all its processes; return its exit code."""
        logs = self._home.run_logs(self._bootstrap.run_id)
        frames = FrameUploads(self._calls, self._bootstrap.run_id, uploads)
        with open(logs / "stdout.log", "ab") as stdout, open(logs / "stderr.log", "ab") as stderr:
            worker = subprocess.Popen(
                [*self._command(opened), "--grpc", "--grpc-target", unix_target(self._socket)],
                env=self._variables(opened),
                cwd=self._home.run_folder(self._bootstrap.run_id).root,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        frames.start()
        try:
            while worker.poll() is None and not (self._stopping.is_set() or uploads.stop_requested.is_set()):
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(_POLL_S)
                process_tree.reap(worker.pid)
            self._end_tree(worker, _LEFTOVER_GRACE_S if worker.returncode is not None else opened.grace_s)
            code = worker.wait()
            return code if code >= 0 else 128 - code
        finally:
            frames.close()

    def _end_tree(self, worker: subprocess.Popen[bytes], grace_s: float) -> None:
        """End every process below this one, and those with the mark."""

        def tree() -> list[int]:
            worker.poll()
            process_tree.reap(worker.pid)
            found = process_tree.descendants(os.getpid())
            return [*found, *(pid for pid in process_tree.marked(self._bootstrap.mark) if pid not in found)]

        process_tree.end_all(tree, grace_s)

    def _give_up_after(self, grace_s: float) -> threading.Event:
        """Return an event that is set this long after SIGTERM."""
        giving_up = threading.Event()

        def wait() -> None:
            self._stopping.wait()
            time.sleep(grace_s)
            giving_up.set()

        threading.Thread(target=wait, name="mosaic-give-up", daemon=True).start()
        return giving_up


def _moved(value: Any, old: str, new: str) -> Any:
    """Return a config with the paths that lie in one folder in another."""
    if isinstance(value, str):
        return new + value.removeprefix(old) if value.startswith(old) else value
    if isinstance(value, dict):
        return {key: _moved(item, old, new) for key, item in value.items()}
    return [_moved(item, old, new) for item in value] if isinstance(value, list) else value


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " ".join(lines[-3:])[-500:] or "it printed nothing"
