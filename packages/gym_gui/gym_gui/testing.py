"""A real daemon for tests and benchmarks: started, killed and restarted as an operator (or fate) would."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
import traceback
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.files import write_bytes_atomically, write_json_atomically
from mosaic_wire.lifecycle import LifecycleReader, RunLifecycleEvent
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import run_request, worker_part
from mosaic_wire.run_status import UNFINISHED, RunStatus
from mosaic_wire.testing import wait_until
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

from gym_gui.config.settings import to_toml
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.services.trainer.process_tree import read_mark, read_process_table

WARM_CACHE = "MOSAIC_TEST_CACHE"
"""Names a folder for what daemons of many homes found out about workers and environments, so that it is asked once"""
_NORMAL = ("-m", "gym_gui.services.trainer.daemon", "run")


class RunningDaemon:
    """A daemon process of this home. Leaves nothing behind: `close` ends its runs too."""

    def __init__(
        self,
        home: Home,
        config_home: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        script: str = "",
    ) -> None:
        self.home = home
        self.config_home = config_home
        self.environment = dict(environment or {})
        self.script = script
        """Python code to run as the daemon (with parts a test replaced); empty: the daemon as users start it"""
        config_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = [f"{key} = {to_toml(value)}" for key, value in {"port": 0, **(settings or {})}.items()]
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
        own = {env.MOSAIC_HOME: str(self.home.root), env.MOSAIC_CONFIG_HOME: str(self.config_home)}
        return {**os.environ, **own, **self.environment}

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start its process and do not wait: it may be meant to fail."""
        self.home.daemon_log.parent.mkdir(parents=True, exist_ok=True)
        program = ("-c", self.script) if self.script else _NORMAL
        with self.home.daemon_log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *program],
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._process

    def attempt(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Start a daemon that should refuse to serve; its exit code and, in `stderr`, its message."""
        return subprocess.run(
            [sys.executable, *_NORMAL, *arguments],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *, timeout_s: float = 60) -> None:
        """Start it and wait until it answers."""
        if warm := os.environ.get(WARM_CACHE):
            with suppress(OSError):  # a test may expect the daemon's message about its home
                self.home.create()
                _copy_cache(Path(warm), self.home.cache)
        process = self.spawn()

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

    def stop(self) -> int:
        """An orderly end, and its exit code; the runs continue."""
        self._disconnect()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def wait_for_exit(self, *, timeout_s: float = 60) -> int:
        """Return the exit code of a daemon that ends by itself."""
        self._disconnect()
        assert self._process is not None
        return self._process.wait(timeout_s)

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: alive, and deaf."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Cancel what still runs, then end the daemon."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self.script = ""
            self.start()
        self.end_runs()
        self.stop()
        self._process = None
        if warm := os.environ.get(WARM_CACHE):
            _copy_cache(self.home.cache, Path(warm))

    def end_runs(self) -> None:
        for run in self.unfinished():
            with suppress(TrainerError):  # it ended just now
                self.client.cancel(run.run_id)
        wait_until(lambda: not self.unfinished(), timeout_s=60)

    def unfinished(self) -> list[pb.Run]:
        return list(self.client.list(statuses=UNFINISHED).runs)

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
        """Wait until a run has one of these statuses (TERM by default); on a timeout raise with its history."""
        expected = statuses or (RunStatus.TERM,)
        run = self.client.get(run_id)

        def arrived() -> bool:
            nonlocal run
            run = self.client.get(run_id)
            return run.status in expected

        if not wait_until(arrived, timeout_s=timeout_s, poll_s=0.05):
            history = "\n".join(f"  {event.kind} {event.reason}" for event in self.client.history(run_id))
            raise AssertionError(
                f"run {run_id} is {run.status} ({run.reason}), not {' or '.join(expected)}; its history:\n{history}\n"
                f"daemon log:\n{self.log()[-4000:]}"
            )
        return run

    def wait_for_run(self, run_id: str, holds: Callable[[pb.Run], object], *, timeout_s: float = 60) -> pb.Run:
        """Wait until something holds for a run; on a timeout raise with the run and the daemon's log."""
        run = self.client.get(run_id)

        def arrived() -> object:
            nonlocal run
            run = self.client.get(run_id)
            return holds(run)

        if not wait_until(arrived, timeout_s=timeout_s, poll_s=0.05):
            raise AssertionError(f"the condition did not become true:\n{run}\ndaemon log:\n{self.log()[-4000:]}")
        return run

    def event_kinds(self, run_id: str) -> list[str]:
        return [event.kind for event in self.client.history(run_id)]

    # ------------------------------------------------------------------ what lies on disk, and what runs

    def lifecycle(self, run_id: str) -> list[RunLifecycleEvent]:
        """Return what the worker itself wrote about its run."""
        return LifecycleReader(self.home.run_folder(run_id).lifecycle).read()

    def manifest(self, run_id: str) -> AnalyticsManifest:
        return AnalyticsManifest.read(self.home.run_folder(run_id).manifest)

    def output(self, run_id: str, stream: str = "stdout") -> str:
        return (self.home.run_logs(run_id) / f"{stream}.log").read_text(errors="replace")


class WindowProcess:
    """`python -m gym_gui` in a process of its own, without a screen; `folder` keeps its layout and its message."""

    def __init__(self, folder: Path, *options: str, variables: Mapping[str, str], script: str = "") -> None:
        self.folder = folder
        self._options = options
        self._program = ("-c", script) if script else ("-m", "gym_gui")
        """Python code to run as the window, as with a daemon's; it finds the options in `sys.argv`"""
        self._variables = {**variables, "QT_QPA_PLATFORM": "offscreen", "XDG_CONFIG_HOME": str(folder)}
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "stderr.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._program, *self._options],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def is_open(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """Send this signal; return the exit code."""
        assert self._process is not None
        self._process.send_signal(sign)
        return self._process.wait(60)

    def stderr(self) -> str:
        """Return what all windows of this folder wrote to stderr."""
        return (self.folder / "stderr.log").read_text(errors="replace")


_BLOCKING = {"open", "os.listdir", "os.scandir", "subprocess.Popen", "os.posix_spawn", "sqlite3.connect", "import"}


@cache
def _audits() -> list[Callable[[str, Any], None]]:
    """Return the listeners of Python's audit events; one hook for all, because Python cannot remove a hook."""
    audits: list[Callable[[str, Any], None]] = []

    def notify(event: str, arguments: tuple[Any, ...]) -> None:
        for audit in audits:
            audit(event, arguments[:1])

    sys.addaudithook(notify)
    return audits


@contextmanager
def blocking_calls() -> Iterator[list[str]]:
    """Record what this thread waits for meanwhile: files, folders, processes, imports, the daemon; each with its place.

    None of these belongs in a slot of the window. What is recorded does not depend on the speed of the machine.
    """
    calls: list[str] = []
    thread = threading.get_ident()

    def note(event: str, what: Any) -> None:
        if event in _BLOCKING and threading.get_ident() == thread:
            callers = traceback.walk_stack(sys._getframe(2))
            places = [f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in islice(callers, 12)]
            if not any(place.startswith("feature.py:") for place in places):  # PySide's own, once per module
                calls.append(f"{event} {what}: {' < '.join(places)}")

    def noted(ask: Callable[..., Any]) -> Callable[..., Any]:
        def call(client: TrainerClient, method: Any, *arguments: Any, **options: Any) -> Any:
            note("open", "a call to the daemon")
            return ask(client, method, *arguments, **options)

        return call

    _audits().append(note)
    kept = TrainerClient._call, TrainerClient._stream
    TrainerClient._call, TrainerClient._stream = map(noted, kept)  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        _audits().remove(note)
        TrainerClient._call, TrainerClient._stream = kept  # type: ignore[method-assign]


def _copy_cache(source: Path, target: Path) -> None:
    for path in source.glob("*/*.json"):
        copy = target / path.relative_to(source)
        if not copy.exists():
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes_atomically(copy, path.read_bytes())


def processes_of(run_id: str) -> list[int]:
    """Return every living process of this machine that carries a mark of the run, whichever attempt."""
    alive = [stat.pid for stat in read_process_table().values() if not stat.has_exited]
    return [pid for pid in alive if (read_mark(pid) or "").startswith(f"{run_id}.")]


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
    """Return a run config for the reference worker."""
    request = run_request(
        "random",
        module="random_worker.cli",
        algo="random",
        env_id="none",
        seed=seed,
        total_timesteps=timesteps,
        extras={**(extras or {}), "algo_params": parameters},  # type: ignore[arg-type]  # wrong ones, too
        run_id=None,
        run_name="random walk",
        resources={"cpus": {"requested": 0}, **(resources or {})},
        scheduling=scheduling,
        tags=tags,
    )
    return {"scheduling": {}, "tags": [], **request}  # for tests that change them


_PRELUDE = """
import json, os, signal, sys, time
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.session import WorkerSession
from mosaic_wire.worker_config import WorkerConfig, run_folder_of
from pathlib import Path

config = WorkerConfig.load(Path(os.environ["MOSAIC_CONFIG_FILE"]))
target = os.environ["MOSAIC_GRPC_TARGET"]

def open_session(**capabilities):
    session = WorkerSession.from_environment(
        config.run_id, run_folder_of(config.run_id).root, algo=config.algo, env_id=config.env_id,
        extras=config.extras, capabilities=WorkerCapabilities(SCRIPT_NAME, **capabilities), target=target,
    )
    session.install_signal_handlers()
    session.open()
    return session
"""


def install_scripted_worker(home: Home, name: str, source: str, **capabilities: Any) -> None:
    """Offer a worker of a few lines under a name; `config`, `target` and `open_session()` are there for it to use."""
    folder = home.workers / name
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "worker.py"
    script.write_text(f"SCRIPT_NAME = {name!r}\n{_PRELUDE}\n{textwrap.dedent(source)}")
    spec = WorkerSpec(
        name=name,
        display_name=name,
        version="1",
        capabilities=WorkerCapabilities(name, **capabilities),
        module=f"{name}.cli",
        argv=(sys.executable, str(script)),
        algorithms=(AlgorithmSpec("script", open_flags=True, modes=("train", "resume_training")),),
    )
    write_json_atomically(folder / "worker.json", spec.to_json())


def scripted_config(name: str, *, timesteps: int = 100, **parameters: Any) -> dict[str, Any]:
    """Return a run config for a worker of `install_scripted_worker`."""
    config = random_config(timesteps=timesteps, **parameters)
    config["metadata"]["worker"].update(type=name, module=f"{name}.cli")
    worker_part(config)["algo"] = "script"
    return config


def make_overlay_with(project: Path, folder: Path) -> Path:
    """Make a fresh environment that sees this one's packages, install a project into it; return its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    ours = sysconfig.get_path("purelib")
    # Both lines: the path for packages, the import for our own editable ones.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "_base.pth").write_text(f"{ours}\nimport site; site.addsitedir({ours!r})\n")
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        str(project),
    ]
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    answer = subprocess.run(install, capture_output=True, text=True, env=quiet, cwd=folder, check=False)
    assert answer.returncode == 0, answer.stderr
    return python


_CURVE_WRITER = """
import math, random
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

parameters = config.extras["algo_params"]
folder = run_folder_of(config.run_id)
session = open_session()
session.started({})
session.follow_metrics(folder.tensorboard)
writer = EventFileWriter(str(folder.tensorboard), max_queue_size=10, flush_secs=0.1)
rng, step, began = random.Random(config.seed), 0, time.time()
while not session.stop_requested.is_set() and (step < 10 * parameters["points"] or parameters.get("endless")):
    step += 10
    reached = parameters["level"] * (1 - math.exp(-step / (2 * parameters["points"]))) + rng.uniform(-1, 1)
    values = {"charts/episodic_return": reached, "losses/value_loss": 1.0 / step, "charts/SPS": 1000.0}
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    writer.add_event(Event(wall_time=began + step / 100, step=step, summary=summary))
    session.progress(step, 10 * parameters["points"])
    time.sleep(parameters.get("pause_s", 0))
writer.close()
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


def install_curve_writer(home: Home) -> None:
    """Offer a worker that learns nothing but writes curves like one that does; see `curve_config`."""
    install_scripted_worker(home, "curves", _CURVE_WRITER)


def curve_config(
    *, points: int = 300, level: float = 100.0, seed: int = 1, env_id: str = "none", **parameters: Any
) -> dict[str, Any]:
    """Return a run whose return rises to `level`: a point every ten steps, each 0.1 s apart by its own clock.

    `endless` continues until it is cancelled, `pause_s` waits after each point; others distinguish runs.
    """
    config = scripted_config("curves", timesteps=10 * points, seed=seed, points=points, level=level, **parameters)
    config["run_name"] = f"curves-to-{level:g}-s{seed}"
    worker_part(config)["env_id"] = env_id
    return config


_ON_NODE = """
import json, os, signal, sys, time
from pathlib import Path
from gym_gui.services.trainer.certificates import NodeCertificates
from gym_gui.services.trainer.local_daemon import running_record
from mosaic_wire.files import write_json_atomically
from mosaic_wire.node import Bootstrap
from mosaic_wire.paths import find_home

jobs, address = Path(sys.argv[1]), sys.argv[3]
authority = NodeCertificates.below(Path(sys.argv[2])).authority.read_text()
record = running_record(find_home())
bootstrap = Bootstrap.of(os.environ, address or record.nodes, authority)
job = jobs / f"{bootstrap.run_id}-{bootstrap.attempt}"
signal.signal(signal.SIGTERM, lambda *_: job.with_suffix(".cancel").touch())
write_json_atomically(job.with_suffix(".job"), bootstrap.to_json(), mode=0o600)
while not job.with_suffix(".exit").exists():
    time.sleep(0.05)
sys.exit(int(job.with_suffix(".exit").read_text()))
"""


class NodeEngine:
    """An engine of a test: takes runs of the worker `name` from a daemon, and starts each on a "node".

    The daemon's process for such a run stands for the job: it hands the bootstrap over and ends when the job has ended.
    """

    def __init__(
        self,
        home: Home,
        config_home: Path,
        folder: Path,
        *,
        module: str,
        name: str,
        start: Callable[[Path], subprocess.Popen[bytes]],
        address: str = "",
    ) -> None:
        """`start` starts the node process of a bootstrap file; `address`: where nodes reach the daemon."""
        self.jobs = folder / "jobs"
        self.jobs.mkdir(parents=True)
        self._start = start
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        """Node processes by `<run id>-<attempt>`"""
        self._closing = threading.Event()
        described = subprocess.run([sys.executable, "-m", module, "--describe"], capture_output=True, check=True)
        spec = {**json.loads(described.stdout), "name": name, "checks": False, "prepares": False, "hidden": True}
        spec["argv"] = [sys.executable, "-c", _ON_NODE, str(self.jobs), str(config_home), address]
        (home.workers / name).mkdir(parents=True)
        write_json_atomically(home.workers / name / "worker.json", spec)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all nodes."""
        self._closing.set()
        self._thread.join()
        for node in self.nodes.values():
            if node.poll() is None:
                node.terminate()
            node.wait(60)

    def node(self, run_id: str, attempt: int = 1) -> subprocess.Popen[bytes]:
        """Return the node process of a run, once it was started."""
        assert wait_until(lambda: f"{run_id}-{attempt}" in self.nodes), "no job arrived"
        return self.nodes[f"{run_id}-{attempt}"]

    def _run(self) -> None:
        while not self._closing.wait(0.05):
            for job in self.jobs.glob("*.job"):
                if job.stem not in self.nodes:
                    self.nodes[job.stem] = self._start(job)
            for name, node in self.nodes.items():
                job = self.jobs / name
                if node.poll() is None and job.with_suffix(".cancel").exists():
                    job.with_suffix(".cancel").unlink()
                    node.terminate()
                if node.poll() is not None and not job.with_suffix(".exit").exists():
                    code = node.returncode if node.returncode >= 0 else 128 - node.returncode
                    write_bytes_atomically(job.with_suffix(".exit"), str(code).encode())


def certificate(folder: Path, name: str, *, address: str = "127.0.0.1", days: float = 1) -> tuple[Path, Path]:
    """Return a self-signed certificate for an address, valid for so many days (negative: expired), and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=abs(days) + 1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.crt", folder / f"{name}.key"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files[0].write_bytes(made.public_bytes(encoding))
    files[1].write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    files[1].chmod(0o600)
    return files
