"""What the human worker does beyond the contract: serves a player, records every step, survives what players do."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from human_worker.environments import list_environments, set_of
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.session import CommandKind
from mosaic_wire.telemetry import decode
from mosaic_wire.testing import PlayDaemon, WorkerProcess, wait_until

ARGV = [sys.executable, "-m", "human_worker.cli"]
WORLDS = Path(__file__).parent / "worlds"
TEST_SETS = Path(sys.prefix) / "test-sets" / "trainer" / "venvs"
PATIENCE_S = 60
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[WorkerProcess] = []

    def start(env_id: str = "CartPole-v1", *, options: Any = None, home: Path | None = None, **extras: Any):
        config = {"algo": "human", "env_id": env_id, "total_timesteps": 1, "seed": 1}
        config["extras"] = {"mode": "interactive", **extras}
        started.append(WorkerProcess(ARGV, config, Home(home or tmp_path / "home"), **(options or {})))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def daemon() -> Iterator[PlayDaemon]:
    with PlayDaemon() as daemon:
        yield daemon


class Player:
    """A client at the other end."""

    def __init__(self, worker: WorkerProcess) -> None:
        def place() -> str:
            found = [event.payload for event in worker.events() if event.event == "run_started"]
            return found[0]["interactive"]["socket"] if found else ""

        gone = lambda: worker.process.poll() is not None  # noqa: E731
        assert wait_until(lambda: place() or gone(), timeout_s=PATIENCE_S), worker.stderr()
        assert place(), worker.stderr()
        self.place = place()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(self.place)
        self._lines = self._socket.makefile("rw")
        self.init = self.hear()

    def hear(self) -> dict[str, Any]:
        return json.loads(self._lines.readline())

    def ask(self, cmd: str, **rest: Any) -> dict[str, Any]:
        self._lines.write(json.dumps({"cmd": cmd, **rest}) + "\n")
        self._lines.flush()
        return self.hear()

    def leave(self) -> None:
        self._lines.close()
        self._socket.close()


def test_a_game_is_played_recorded_and_ended(start: Start, daemon: PlayDaemon) -> None:
    worker = start(options={"daemon": daemon})
    player = Player(worker)
    assert player.init["action_space"] == {"type": "Discrete", "shape": [], "n": 2, "start": 0}
    assert player.init["render_fps"] == 50
    assert Path(player.place).stat().st_mode & 0o777 == 0o600
    first = player.ask("reset", seed=3, frames="shm")
    image = Path(first["render_payload"]["path"])
    assert image.stat().st_size == 3 * first["render_payload"]["width"] * first["render_payload"]["height"]
    seen, answers = [first["observation"]], []
    while True:
        answers.append(player.ask("step", action=1))
        seen.append(answers[-1]["observation"])
        if answers[-1]["terminated"]:
            break
    done = player.hear()
    assert (done["type"], done["ended_by"], done["episode_length"]) == ("episode_done", "environment", len(answers))
    player.ask("reset", seed=4)
    player.ask("step", action=0)
    left = player.ask("end")
    assert (left["ended_by"], left["episode_length"], left["truncated"]) == ("player", 1, True)
    assert player.ask("stop")["type"] == "stopped"
    assert worker.wait() == 0, worker.stderr()
    player.leave()
    assert not image.exists()
    assert not Path(player.place).exists()

    steps, episodes = daemon.steps, daemon.episodes
    assert [(step.episode, step.index) for step in steps] == [(0, i) for i in range(len(answers))] + [(1, 0)]
    # A step is recorded with what was seen before it, the episode with what was seen last.
    np.testing.assert_allclose(decode(steps[1].observation), seen[1], rtol=1e-6)
    assert [int(decode(step.action)) for step in steps] == [1] * len(answers) + [0]
    facts = [json.loads(episode.info_json) for episode in episodes]
    assert [(fact["seed"], fact["ended_by"]) for fact in facts] == [(3, "environment"), (4, "player")]
    last = facts[0]["final_observation"]
    payload = pb.Payload(encoding=last["encoding"], data=base64.b64decode(last["data"]))
    np.testing.assert_allclose(decode(payload), seen[-1], rtol=1e-6)
    assert [(episode.episode, episode.length) for episode in episodes] == [(0, len(answers)), (1, 1)]
    # Every step knows its picture, which is the one the player had before it.
    places = [json.loads(step.info_json)["picture"] for step in steps]
    images = (worker.folder.root / "play" / "pictures.bin").read_bytes()
    assert [images[offset : offset + 8] for offset, _ in places] == [b"\x89PNG\r\n\x1a\n"] * len(steps)
    assert places[0][0] == 0
    assert len({offset for offset, _ in places}) == len(steps)


def test_a_reset_in_the_middle_leaves_the_episode(start: Start, daemon: PlayDaemon) -> None:
    worker = start("FrozenLake-v1", env_kwargs={"is_slippery": False}, options={"daemon": daemon})
    player = Player(worker)
    player.ask("reset", seed=0)
    assert player.ask("step", action=2)["observation"] == 1
    player.ask("reset", seed=0)
    assert player.ask("step", action=1)["observation"] == 4
    assert "there is no episode" not in str(player.ask("end"))
    assert "there is no episode to end" in player.ask("end")["message"]
    player.ask("stop")
    assert worker.wait() == 0
    player.leave()
    assert [(step.episode, step.index) for step in daemon.steps] == [(0, 0), (1, 0)]
    assert [json.loads(episode.info_json)["ended_by"] for episode in daemon.episodes] == ["player", "player"]


def test_a_player_may_come_back_and_without_one_the_run_ends(start: Start) -> None:
    worker = start(idle_s=2)
    player = Player(worker)
    player.ask("reset", seed=0)
    player.ask("step", action=1)
    player.leave()
    again = Player(worker)
    assert again.ask("step", action=1)["step_index"] == 1  # the game stands where it was left
    again.leave()
    assert worker.wait() == 0
    assert "no player was connected" in worker.events()[-1].payload["reason"]


def test_pause_holds_the_game(start: Start, daemon: PlayDaemon) -> None:
    worker = start(options={"daemon": daemon})
    player = Player(worker)
    player.ask("reset", seed=0)
    assert wait_until(daemon.is_listened_to, timeout_s=PATIENCE_S)
    daemon.send(CommandKind.PAUSE)
    assert wait_until(lambda: "paused" in worker.event_names(), timeout_s=PATIENCE_S)
    daemon.send(CommandKind.RESUME)
    assert player.ask("step", action=1)["step_index"] == 0
    worker.process.send_signal(signal.SIGTERM)
    assert player.hear()["type"] == "stopped"
    assert worker.wait() == 130
    player.leave()


def test_an_environment_that_raises_reports_the_player_and_fails_the_run(start: Start, daemon: PlayDaemon) -> None:
    worker = start("bad_worlds:Breaking-v0", options={"daemon": daemon, "environment": {"PYTHONPATH": str(WORLDS)}})
    player = Player(worker)
    player.ask("reset")
    player.ask("step", action=1)
    player.ask("step", action=1)
    said = player.ask("step", action=1)
    assert (said["type"], said["fatal"]) == ("error", True)
    assert "the floor gave way" in said["message"]
    assert worker.wait() == 1
    player.leave()
    assert "the floor gave way" in worker.events()[-1].payload["error"]
    assert len(daemon.steps) == 2  # what was played before is recorded


def test_an_environment_that_kills_its_process_loses_nothing_that_was_played(start: Start, daemon: PlayDaemon) -> None:
    worker = start(
        "bad_worlds:Breaking-v0",
        env_kwargs={"how": "kill"},
        options={"daemon": daemon, "environment": {"PYTHONPATH": str(WORLDS)}},
    )
    player = Player(worker)
    player.ask("reset", frames="none")
    player.ask("step", action=1)
    assert player.ask("step", action=1)["type"] == "step"
    assert wait_until(lambda: len(daemon.steps) == 2, timeout_s=PATIENCE_S)
    with pytest.raises((ValueError, ConnectionError)):
        player.ask("step", action=1)
    assert worker.wait() == -signal.SIGSEGV
    player.leave()
    for left in Path("/dev/shm").rglob(f"mosaic-*{worker.run_id}*"):
        left.unlink()  # the daemon would


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "message"),
    [
        ("CartPol-v1", {}, "Did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"color": "red"}, "color"),
        ("no_such_module:Env-v0", {}, "no_such_module"),
        ("CartPole-v1", [1], "must be a JSON object"),
    ],
)
def test_what_cannot_be_played_is_reported(start: Start, env_id: str, env_kwargs: Any, message: str) -> None:
    worker = start(env_id, env_kwargs=env_kwargs)
    assert worker.wait() == 2
    assert message in worker.stderr()
    assert "Traceback" not in worker.stderr()


# -- what can be played


def _asked(*message: str, home: Path | None = None) -> Any:
    import os

    variables = {**os.environ, **({"MOSAIC_HOME": str(home)} if home else {})}
    done = subprocess.run([*ARGV, *message], capture_output=True, text=True, env=variables, timeout=120, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_the_list_says_what_is_missing(tmp_path: Path) -> None:
    found = {playable.env_id: playable for playable in list_environments(Home(tmp_path))}
    assert found["CartPole-v1"].family == "Classic control"
    assert (found["CartPole-v1"].is_newest, found["CartPole-v0"].is_newest) == (True, False)
    assert found["CartPole-v1"].needs == ""
    assert found["FrozenLake-v1"].family == "Toy text"
    assert not [env_id for env_id in found if env_id.startswith(("phys2d/", "GymV"))]
    assert {set_of(env_id) for env_id in ("CartPole-v1", "ALE/Pong-v5", "Ant-v5", "procgen-coinrun-v0")} == {
        "",
        "atari",
        "mujoco",
    }
    # Asked of a process, because this one may have a set of other tests on its path.
    needs = {entry["env_id"]: entry["needs"] for entry in _asked("--list-environments", home=tmp_path)}
    assert (needs["Ant-v5"], needs["CartPole-v1"]) == ("mujoco", "")


def test_an_environment_reports_what_it_can_be_made_with() -> None:
    reported = _asked("--describe-environment", "FrozenLake-v1")
    arguments = {entry["name"]: entry for entry in reported["arguments"]}
    assert arguments["is_slippery"] == {"name": "is_slippery", "kind": "bool", "default": True, "choices": []}
    assert (arguments["map_name"]["default"], arguments["map_name"]["choices"]) == ("4x4", ["4x4", "8x8"])
    assert "render_mode" not in arguments
    assert reported["action_space"]["n"] == 4
    assert "there is no environment" in _asked("--describe-environment", "FrozenLak-v1")


needs_minigrid = pytest.mark.skipif(
    not list(TEST_SETS.glob("minigrid/*/ready.json")), reason="the set is not installed"
)


@needs_minigrid
def test_games_of_a_requirement_set_are_listed_and_played(start: Start, daemon: PlayDaemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "trainer").mkdir(parents=True)
    (home / "trainer" / "venvs").symlink_to(TEST_SETS)
    listed = _asked("--list-environments", home=home)
    families = {entry["env_id"]: (entry["family"], entry["needs"]) for entry in listed}
    assert families["MiniGrid-Empty-5x5-v0"] == ("MiniGrid", "")
    assert families["BabyAI-GoToRedBall-v0"] == ("BabyAI", "")
    worker = start("MiniGrid-Empty-5x5-v0", home=home, options={"daemon": daemon})
    player = Player(worker)
    assert player.init["action_meanings"][:3] == ["left", "right", "forward"]
    player.ask("reset", seed=1)
    for action in (2, 2, 1, 2, 2):
        last = player.ask("step", action=action)
    assert last["terminated"]
    assert last["reward"] > 0
    player.hear()
    player.ask("stop")
    assert worker.wait() == 0, worker.stderr()
    player.leave()
    observation = decode(daemon.steps[0].observation)
    assert set(observation) == {"image", "direction", "mission"}
