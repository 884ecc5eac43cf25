"""A real Slurm cluster for tests and benchmarks: munged, slurmctld and several nodes, on one machine, as root.

It lives in a network namespace that has only `lo`, because Slurm listens on every address. Each node has PID and mount
namespaces of its own: killing its first process is the power cut of a whole machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from mosaic_wire.testing import wait_until

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "sacct", "scontrol")
_SERVERS = ("munged", "slurmctld", "slurmd")
_TOOLS = ("unshare", "nsenter", "ip")
_ADDRESS = "10.255.255.1"
"""Besides loopback, or the resolver would find that this machine has no IPv4 (AI_ADDRCONFIG)"""
_START_S = 60.0
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmctldPort=6817
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=bf_interval=1
ReturnToService=2
SlurmdTimeout=10
KillWait=10
NodeName=DEFAULT CPUs={cpus} RealMemory=8000 Gres=gpu:1
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-{last_port}]
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def why_no_slurm() -> str:
    """Return why no cluster can be started here, or an empty text."""
    if os.geteuid() != 0:
        return "a Slurm cluster of several nodes on one machine needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if missing := [name for name in (*COMMANDS, *_SERVERS, *_TOOLS) if shutil.which(name, path=path) is None]:
        return f"not installed: {', '.join(missing)} (Debian: munge slurmctld slurmd slurm-client iproute2)"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "this machine allows no namespaces (unshare)"


class SlurmCluster:
    """Nodes n1, n2, … with some CPUs and one (fake) GPU each; the partition `urgent` preempts `main`."""

    def __init__(self, *, nodes: int = 3, cpus: int = 4) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short, for the sockets in it
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.commands = self.folder / "bin"
        """Slurm's commands in the cluster's namespace: for the front of the daemon's PATH"""
        self._cpus = cpus
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a daemon finds the cluster."""
        return {"PATH": f"{self.commands}:{os.environ['PATH']}"}

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        for name in ("state", "bin", *self.nodes):
            (self.folder / name).mkdir(mode=0o755)
        self._write_files()
        up = f"ip link set lo up && ip address add {_ADDRESS}/32 dev lo && echo up && exec sleep infinity"
        self._spawn("network", ["unshare", "--net", "sh", "-c", up], inside=False)
        assert wait_until(lambda: "up" in self._log("network"), timeout_s=_START_S), self._log("network")
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        options = [f"--{option}={self.folder / file}" for option, file in files.items()]
        self._spawn("munged", ["munged", "--force", "--foreground", *options])
        assert wait_until((self.folder / "munge.sock").exists, timeout_s=_START_S), self._log("munged")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        idle = len(self.nodes)
        assert wait_until(lambda: self.states().count("idle") == idle, timeout_s=_START_S), self.logs()

    def _write_files(self) -> None:
        host = os.uname().nodename.partition(".")[0]
        values = {"host": host, "folder": self.folder, "nodes": len(self.nodes), "cpus": self._cpus}
        conf = _CONF.format(**values, last_port=17_000 + len(self.nodes))
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for name in COMMANDS:
            program = shutil.which(name)
            wrapper = self.commands / name
            wrapper.write_text(f'#!/bin/sh\n{self._environment_line}exec {self._enter} {program} "$@"\n')
            wrapper.chmod(0o755)

    @property
    def _environment_line(self) -> str:
        return f"export SLURM_CONF={self.folder}/slurm.conf\n"

    @property
    def _enter(self) -> str:
        return f"nsenter --net=/proc/$(cat {self.folder}/network.pid)/ns/net"

    def _spawn(self, name: str, argv: list[str], *, inside: bool = True) -> None:
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        enter = ["nsenter", f"--net=/proc/{self._running['network'].pid}/ns/net"] if inside else []
        with (self.folder / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*enter, *argv],
                env={"PATH": path, "SLURM_CONF": f"{self.folder}/slurm.conf"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.folder / f"{name}.pid").write_text(str(self._running[name].pid))

    # -- control

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._spawn("slurmctld", ["slurmctld", "-D"])

    def kill_controller(self) -> None:
        """kill -9 slurmctld and its helper."""
        self._kill("slurmctld")

    def start_node(self, node: str) -> None:
        """Start a node: its slurmd is the first process of a PID namespace."""
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._spawn(node, [*apart, "slurmd", "-N", node, "-D"])

    def kill_node(self, node: str) -> None:
        """Cut the power of a node: every process on it is gone at once."""
        self._kill(node)

    def _kill(self, name: str) -> None:
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def run(self, *argv: str) -> str:
        """Run a command of Slurm and return its output."""
        done = subprocess.run(
            [self.commands / argv[0], *argv[1:]], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)} failed: {done.stderr.strip()}")
        return done.stdout

    def states(self) -> list[str]:
        """Return the state of each node; empty while slurmctld does not answer."""
        try:
            return self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split()
        except RuntimeError:
            return []

    def jobs(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def _log(self, name: str) -> str:
        log = self.folder / f"{name}.out"
        return log.read_text(errors="replace") if log.exists() else ""

    def logs(self) -> str:
        """Return the end of everything that was logged."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in self.folder.glob("*.out")
        )

    def close(self) -> None:
        """End every process and remove the folder."""
        for name in reversed(list(self._running)):
            self._kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)
