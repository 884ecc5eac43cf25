"""A real daemon for tests and benchmarks: started, killed and restarted as an operator (or fate) would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.local_daemon import running_record


class RunningDaemon:
    """A daemon process of this home. Leaves nothing behind: `close` ends its runs too."""

    def __init__(
        self,
        home: Home,
        config_home: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self._config_home = config_home
        self._environment = dict(environment or {})
        config_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = [f"{key} = {_toml(value)}" for key, value in {"port": 0, **(settings or {})}.items()]
        (config_home / "settings.toml").write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self._client: TrainerClient | None = None

    def __enter__(self) -> RunningDaemon:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon was not started"
        return self._process.pid

    @property
    def client(self) -> TrainerClient:
        if self._client is None:
            self._client = TrainerClient.connect(self.home, timeout_s=30)
        return self._client

    @property
    def variables(self) -> dict[str, str]:
        """The environment that points at this home."""
        own = {env.MOSAIC_HOME: str(self.home.root), env.MOSAIC_CONFIG_HOME: str(self._config_home)}
        return {**os.environ, **own, **self._environment}

    def start(self, *, timeout_s: float = 60) -> None:
        """Start it and wait until it answers."""
        self.home.daemon_log.parent.mkdir(parents=True, exist_ok=True)
        with self.home.daemon_log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gym_gui.services.trainer.daemon", "run"],
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = self._process

        def serves_or_died() -> bool:
            record = running_record(self.home)
            return process.poll() is not None or (record is not None and record.pid == process.pid)

        ready = wait_until(serves_or_died, timeout_s=timeout_s)
        if not ready or process.poll() is not None:
            raise RuntimeError(f"the daemon did not start:\n{self.log()}")

    def log(self) -> str:
        return self.home.daemon_log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9: what a power cut or the OOM killer does."""
        self._disconnect()
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """An orderly end; the runs go on."""
        self._disconnect()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        """Cancel what still runs, then end the daemon."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self.start()
        for run in self.client.list().runs:
            if run.status != "TERM":
                self.client.cancel(run.run_id)
        wait_until(lambda: all(run.status == "TERM" for run in self.client.list().runs), timeout_s=60)
        self.stop()

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # ------------------------------------------------------------------ runs of the reference worker

    def submit(self, *, timesteps: int = 100, resources: Mapping[str, Any] | None = None, **parameters: Any) -> pb.Run:
        """Queue a run of the reference worker; other keyword arguments are its parameters or `scheduling`."""
        config = random_config(timesteps=timesteps, resources=resources, **parameters)
        return self.client.submit(config).run

    def wait_for(self, run_id: str, *statuses: str, timeout_s: float = 60) -> pb.Run:
        """Wait until a run has one of these statuses (TERM by default); say how it is when it does not get there."""
        wanted = statuses or ("TERM",)
        run = self.client.get(run_id)

        def arrived() -> bool:
            nonlocal run
            run = self.client.get(run_id)
            return run.status in wanted

        if not wait_until(arrived, timeout_s=timeout_s):
            story = "\n".join(f"  {event.kind} {event.reason}" for event in self.client.story(run_id))
            raise AssertionError(
                f"run {run_id} is {run.status} ({run.reason}), not {' or '.join(wanted)}; its story:\n{story}\n"
                f"daemon log:\n{self.log()[-4000:]}"
            )
        return run

    def story_kinds(self, run_id: str) -> list[str]:
        return [event.kind for event in self.client.story(run_id)]


def random_config(
    *,
    timesteps: int = 100,
    resources: Mapping[str, Any] | None = None,
    scheduling: Mapping[str, Any] | None = None,
    tags: tuple[str, ...] = (),
    seed: int = 1,
    extras: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """A run config for the reference worker."""
    config = {
        "algo": "random",
        "env_id": "none",
        "seed": seed,
        "total_timesteps": timesteps,
        "extras": {**(extras or {}), "algo_params": parameters},
    }
    return {
        "run_name": "random walk",
        "resources": {"cpus": {"requested": 0}, **(resources or {})},
        "scheduling": dict(scheduling or {}),
        "tags": list(tags),
        "metadata": {"worker": {"type": "random", "module": "random_worker.cli", "config": config}},
    }


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value) if isinstance(value, int | float) else f'"{value}"'
