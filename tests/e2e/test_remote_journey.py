"""The remote journey: daemon and client in two network namespaces, as two users, without a common file.

A short form of it, over TLS on loopback, is `test_remote_files.py`, which runs in every CI.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from gym_gui.testing import certificate
from gym_gui.testing_machines import NOBODY, SERVER, Machines, two_machines

PORT = 50055

pytestmark = pytest.mark.slow  # real trainings, and a window; `test_remote_files.py` runs in every CI


def start_daemon(sides: Machines) -> None:
    files = ("--tls-cert", str(sides.server / "box.crt"), "--tls-key", str(sides.server / "box.key"))
    sides.start_daemon("--listen", SERVER, "--port", str(PORT), *files)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """A daemon on one side, and on the other a user who was given its certificate and its token."""
    with ExitStack() as stack:
        sides = two_machines(stack)
        cert, _ = certificate(sides.server, "box", address=SERVER, days=30)
        (sides.server / "config").mkdir(mode=0o700)
        (sides.server / "config" / "settings.toml").write_text("heartbeat_s = 0.5\nmin_free_disk_mb = 0\n")
        start_daemon(sides)
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
    expect("frames one --out one.png", "has finished and draws nothing any more", code=1)
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
    machines.set_link("down")
    machines.end_daemon(signal.SIGKILL)
    start_daemon(machines)
    machines.set_link("up")
    rest, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, err
    assert "waiting for it" in err
    assert "the daemon answers again" in err
    assert "charts/episodic_return" in rest
    machines.end_daemon(signal.SIGTERM)  # the guard of the tests takes it for a leak otherwise: this is the last test
