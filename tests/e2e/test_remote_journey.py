"""The remote journey: daemon and client in two network namespaces, as two users, without a common file.

A short form of it, over TLS on loopback, is `test_remote_files.py`, which runs in every CI.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import certificate
from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

NOBODY = 65534
SERVER, CLIENT, PORT = "10.213.7.1", "10.213.7.2", 50055
TOOLS = ("ip", "unshare", "mount", "setpriv")
REPOSITORY = Path(__file__).parents[2]

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

pytestmark = pytest.mark.slow  # real trainings, and a window; `test_remote_files.py` runs in every CI


@dataclass
class Machines:
    """The two sides."""

    server: Path
    client: Path
    spaces: tuple[str, str]
    daemon: subprocess.Popen[str] | None = None

    @property
    def home(self) -> Home:
        return Home(self.server / "home")

    def start_daemon(self) -> None:
        files = ("--tls-cert", str(self.server / "box.crt"), "--tls-key", str(self.server / "box.key"))
        options = ("--listen", SERVER, "--port", str(PORT), *files)
        with (self.server / "log").open("a") as log:
            self.daemon = self.on_server(
                sys.executable, "-m", "gym_gui.services.trainer.daemon", "run", *options, stdout=log, stderr=log
            )
        assert wait_until(lambda: running_record(self.home) is not None), (self.server / "log").read_text()

    def end_daemon(self, number: signal.Signals) -> None:
        """Signal the daemon, which `ip netns exec` became."""
        if self.daemon is not None:
            self.daemon.send_signal(number)
            self.daemon.wait(60)
            self.daemon = None

    def on_server(self, *argv: str, **options: object) -> subprocess.Popen[str]:
        variables = {
            env.MOSAIC_HOME: str(self.server / "home"),
            env.MOSAIC_CONFIG_HOME: str(self.server / "config"),
            "PATH": os.environ["PATH"],
            "HOME": str(self.server),
        }
        command = ["ip", "netns", "exec", self.spaces[0], *argv]
        return subprocess.Popen(command, env=variables, text=True, **options)  # type: ignore[call-overload]

    def on_client(self, *argv: str) -> subprocess.Popen[str]:
        """Start a program as the other user, who sees nothing of the server's files."""
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.client),
            env.MOSAIC_HOME: str(self.client / "home"),
            env.MOSAIC_CONFIG_HOME: str(self.client / "config"),
            "QT_QPA_PLATFORM": "offscreen",
            "XDG_RUNTIME_DIR": str(self.client),
            "PYTHONDONTWRITEBYTECODE": "1",
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
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def mosaic(self, *words: str, stdin: str = "", timeout_s: float = 240) -> tuple[int, str]:
        """Run a command on the client; exit code, and everything it said."""
        process = self.on_client(sys.executable, "-m", "gym_gui", "--connect", "box", *words)
        out, err = process.communicate(stdin, timeout=timeout_s)
        assert "Traceback" not in err, f"{shlex.join(words)}: {err}"
        return process.returncode, out + err


def _two_machines(stack: ExitStack) -> Machines:
    if os.getuid() != 0:
        pytest.skip("only root can make network namespaces and become another user")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)} (iproute2, util-linux)")
    spaces = tuple(f"mosaic-{os.getpid()}-{side}" for side in ("s", "c"))
    for space in spaces:
        made = subprocess.run(["ip", "netns", "add", space], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
        stack.callback(subprocess.run, ["ip", "netns", "del", space], check=False)
    link = [
        "ip",
        "link",
        "add",
        "veth0",
        "netns",
        spaces[0],
        "type",
        "veth",
        "peer",
        "name",
        "veth0",
        "netns",
        spaces[1],
    ]
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


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """A daemon on one side, and on the other a user who was given its certificate and its token."""
    with ExitStack() as stack:
        sides = _two_machines(stack)
        cert, _ = certificate(sides.server, "box", address=SERVER, days=30)
        (sides.server / "config").mkdir(mode=0o700)
        (sides.server / "config" / "settings.toml").write_text("heartbeat_s = 0.5\nmin_free_disk_mb = 0\n")
        sides.start_daemon()
        stack.callback(sides.end_daemon, signal.SIGTERM)
        for name, content in (("token", sides.home.token.read_text()), ("cert.pem", cert.read_text())):
            (sides.client / name).write_text(content)
        (sides.client / "config").mkdir(mode=0o700)
        (sides.client / "config" / "settings.toml").write_text(
            f'[daemons.box]\nconnect = "{SERVER}:{PORT}"\n'
            f'token_file = "{sides.client}/token"\ntls_ca = "{sides.client}/cert.pem"\n'
        )
        for path in (sides.client, *sides.client.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        yield sides


@pytest.fixture(scope="module")
def runs(machines: Machines) -> dict[str, str]:
    """A trained run with a video, and a sweep of two trials, both started from the client."""
    code, said = machines.mosaic("train", "ppo", "CartPole-v1", "--total-timesteps", "2048", "--name", "one")
    assert code == 0, said
    code, said = machines.mosaic(
        *("sweep", "start", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "1024", "--trials", "2"),
        *("--name", "tune", "--param", "learning_rate=log:1e-4:1e-2"),
    )
    assert code == 0, said
    found = {}
    for name in ("one", "tune"):
        code, said = machines.mosaic("show", name, "--json")
        assert code == 0, said
        found[name] = json.loads(said)[0]["run_id"]
    videos = machines.home.run_folder(found["one"]).videos
    videos.mkdir(exist_ok=True)
    (videos / "rl-video-step-1024.mp4").write_text("a film")
    return found


def test_every_command_works_or_says_in_one_sentence_why_not(machines: Machines, runs: dict[str, str]) -> None:
    def expect(command: str, text: str, code: int = 0, stdin: str = "") -> str:
        found, said = machines.mosaic(*shlex.split(command), stdin=stdin)
        assert (found, text in said) == (code, True), f"{command}: exit {found}, said\n{said}"
        return said

    home = str(machines.server / "home")
    expect("runs", "tune")
    expect("show one", "hyper-parameters")
    expect("logs one", "run_completed")
    expect("history one", "completed")
    expect("metrics one", "charts/episodic_return")
    expect("watch one", "completed")
    expect("clone one --print", '"total_timesteps": 2048')
    expect("sweep show tune", "learning_rate")
    assert "mosaic --connect box train --from-trial" in expect("sweep best tune", "learning_rate")
    expect("train --from-trial tune --detach", "`mosaic --connect box watch")
    report = expect("report one --out report.html --no-baseline", "report.html")
    assert "cannot be read" not in report
    expect("smoke ppo CartPole-v1 --total-timesteps 512", "its smoke.json is on this machine")
    expect("plot one --out plot.png", "plot.png")
    expect("compare one", "CartPole-v1")
    expect("eval one --episodes 2", "completed")
    expect("eval token", "is on this machine, and the daemon at", code=2)
    expect("extend one --timesteps 512 --follow", "completed")
    expect("tag one +good", "good")
    expect("note one hello", "")
    expect("export one -o one.tar.gz", "one.tar.gz")
    expect("tensorboard one", "event files lie on the daemon's machine", code=2)
    expect("frames one --out one.png", "is over and draws nothing any more", code=1)
    expect("extras", "atari")
    expect("envs", "CartPole-v1")
    expect("algos --env CartPole-v1", "ppo")
    expect("workers", "cleanrl")
    assert home in expect("doctor", "this is its machine")
    expect("daemon status", home)
    expect("daemon start", "names a daemon that runs already", code=2)
    expect("daemon stop", "nothing can start this daemon from here", code=130, stdin="n\n")
    expect("delete one --yes", "")
    assert not (machines.client / "home").exists(), "the client made no home of its own"


def test_every_tab_and_form_works_or_says_in_one_sentence_why_not(machines: Machines, runs: dict[str, str]) -> None:
    pytest.importorskip("PySide6")
    script = Path(__file__).with_name("remote_window.py")
    folder = machines.client
    words = [f"{SERVER}:{PORT}", f"{folder}/token", f"{folder}/cert.pem", runs["one"], runs["tune"]]
    window = machines.on_client(sys.executable, str(script), *words)
    out, err = window.communicate(timeout=400)
    assert window.returncode == 0, err
    seen = json.loads(out.splitlines()[-1])
    assert seen["title"] == f"MOSAIC – {SERVER}:{PORT}"
    assert "CartPole-v1" in seen["overview"]
    assert "charts/" in seen["logs"] or "step" in seen["logs"]
    assert "gone" not in seen["empty log"]
    assert "missing" not in seen["empty log"]
    assert {"analytics.json", "checkpoints", "videos"} <= set(seen["files"])
    assert "on the daemon's machine" in seen["files banner"]
    assert seen["video"] == "a film"
    assert "mosaic tensorboard" in seen["tensorboard"]
    assert "2" in seen["optuna"]
    assert seen["clone"] == 2048
    assert seen["command"].startswith(f"mosaic --connect {SERVER}:{PORT} --tls-ca {folder}/cert.pem")
    assert seen["dry run"][0] is True, seen["dry run"]
    assert "atari" in seen["sets"]
    assert "atari" in seen["managed sets"]
    for workspace in ("play", "policy"):
        assert "on another machine" in seen[workspace]


def test_a_curve_that_is_followed_continues_after_the_daemon_and_the_link_were_gone(
    machines: Machines, runs: dict[str, str]
) -> None:
    code, said = machines.mosaic(
        *("train", "ppo", "CartPole-v1", "--total-timesteps", "60000", "--name", "long", "--detach")
    )
    assert code == 0, said
    follower = machines.on_client(sys.executable, "-m", "gym_gui", "--connect", "box", "metrics", "long", "-f")
    assert follower.stdout is not None
    while "charts/episodic_return" not in follower.stdout.readline():
        assert follower.poll() is None
    subprocess.run(["ip", "-n", machines.spaces[1], "link", "set", "veth0", "down"], check=True)
    machines.end_daemon(signal.SIGKILL)
    machines.start_daemon()
    subprocess.run(["ip", "-n", machines.spaces[1], "link", "set", "veth0", "up"], check=True)
    rest, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, err
    assert "waiting for it" in err
    assert "the daemon answers again" in err
    assert "charts/episodic_return" in rest
    machines.end_daemon(signal.SIGTERM)  # the guard of the tests takes it for a leak otherwise: this is the last test
