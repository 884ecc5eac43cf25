"""Two machines for tests: network namespaces joined by a link, two users, and no common file."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

from gym_gui.services.trainer.local_daemon import running_record

NOBODY = 65534
SERVER, CLIENT = "10.213.7.1", "10.213.7.2"
TOOLS = ("ip", "unshare", "mount", "setpriv")
REPOSITORY = Path(__file__).parents[3]

IN_ITS_PLACE = """
set -e
mount -t tmpfs -o mode=755 none /mnt
mkdir -p "/mnt/$BELOW"
mount --bind "$PYTHON" "/mnt/$BELOW"
mount --move /mnt "$CLOSED"
"""
"""An interpreter below a folder that only root may enter, for another user: the folder with nothing else in it"""

AS_CLIENT = """
set -e
mount -t tmpfs none "$HIDDEN"
cd "$FOLDER"
exec setpriv --reuid {user} --regid {user} --clear-groups env -i "$@"
"""


@dataclass
class Machines:
    """The two sides."""

    server: Path
    client: Path
    spaces: tuple[str, str]
    daemon: subprocess.Popen[str] | None = None

    @property
    def home(self) -> Home:
        """The daemon's home."""
        return Home(self.server / "home")

    def start_daemon(self, *options: str) -> None:
        """Start the daemon and wait until it serves."""
        with (self.server / "log").open("a") as log:
            self.daemon = self.on_server(
                sys.executable, "-m", "gym_gui.services.trainer.daemon", "run", *options, stdout=log, stderr=log
            )
        assert wait_until(lambda: running_record(self.home) is not None), (self.server / "log").read_text()

    def set_link(self, state: str) -> None:
        """Take the link between them `down` or bring it `up`."""
        subprocess.run(["ip", "-n", self.spaces[1], "link", "set", "veth0", state], check=True)

    def end_daemon(self, number: signal.Signals) -> None:
        """Signal the daemon, which `ip netns exec` became."""
        if self.daemon is not None:
            self.daemon.send_signal(number)
            self.daemon.wait(60)
            self.daemon = None

    def restart_daemon(self) -> None:
        """Kill the daemon as a power cut does, and start another one."""
        self.end_daemon(signal.SIGKILL)
        self.start_daemon()

    def on_server(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program on the daemon's side."""
        variables = {
            env.MOSAIC_HOME: str(self.server / "home"),
            env.MOSAIC_CONFIG_HOME: str(self.server / "config"),
            "PATH": os.environ["PATH"],
            "HOME": str(self.server),
        }
        command = ["ip", "netns", "exec", self.spaces[0], *argv]
        return subprocess.Popen(command, env=variables, text=True, **options)

    def on_client(self, *argv: str, output: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a program as the other user, who sees nothing of the server's files."""
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.client),
            env.MOSAIC_HOME: str(self.client / "home"),
            env.MOSAIC_CONFIG_HOME: str(self.client / "config"),
            "QT_QPA_PLATFORM": "offscreen",
            "XDG_RUNTIME_DIR": str(self.client),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.client),
        }
        python = Path(sys.base_prefix)
        closed = next((folder for folder in python.parents if not folder.stat().st_mode & 0o001), None)
        places = {"HIDDEN": str(self.server), "FOLDER": str(self.client)}
        script = AS_CLIENT.format(user=NOBODY)
        if closed is not None:
            places |= {"CLOSED": str(closed), "BELOW": str(python.relative_to(closed)), "PYTHON": str(python)}
            script = IN_ITS_PLACE + script
        words = [f"{name}={value}" for name, value in own.items()]
        entered = ["ip", "netns", "exec", self.spaces[1], "unshare", "--mount", "--propagation", "private"]
        return subprocess.Popen(
            [*entered, "sh", "-c", script, "sh", *words, *argv],
            env={**os.environ, **places},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
        )

    def mosaic(self, *words: str, stdin: str = "", timeout_s: float = 240) -> tuple[int, str]:
        """Run a command on the client; exit code, and everything it said."""
        process = self.on_client(sys.executable, "-m", "gym_gui", "--connect", "box", *words)
        out, err = process.communicate(stdin, timeout=timeout_s)
        assert "Traceback" not in err, f"{shlex.join(words)}: {err}"
        return process.returncode, out + err


def two_machines(stack: ExitStack) -> Machines:
    """Return two joined machines until the stack is closed; skip the test where none can be made."""
    if os.getuid() != 0:
        pytest.skip("only root can make network namespaces and become another user")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)} (iproute2, util-linux)")
    spaces = tuple(f"mosaic-{os.getpid()}-{secrets.token_hex(2)}-{side}" for side in ("s", "c"))
    for space in spaces:
        made = subprocess.run(["ip", "netns", "add", space], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
        stack.callback(subprocess.run, ["ip", "netns", "del", space], check=False)
    ends = [("netns", space) for space in spaces]
    link = ["ip", "link", "add", "veth0", *ends[0], "type", "veth", "peer", "name", "veth0", *ends[1]]
    subprocess.run(link, check=True)
    for space, address in zip(spaces, (SERVER, CLIENT), strict=True):
        subprocess.run(["ip", "-n", space, "addr", "add", f"{address}/24", "dev", "veth0"], check=True)
        for device in ("lo", "veth0"):
            subprocess.run(["ip", "-n", space, "link", "set", device, "up"], check=True)
    folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"mosaic-{side}-"))) for side in "sc"]
    reach = subprocess.run(
        ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "test", "-r", str(REPOSITORY / "packages")], check=False
    )
    if reach.returncode != 0:
        pytest.skip(f"another user cannot read the code in {REPOSITORY}")
    return Machines(folders[0], folders[1], (spaces[0], spaces[1]))
