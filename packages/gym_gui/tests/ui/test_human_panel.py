"""The Human-Only mode against a real daemon: games are played with keys, recorded, exported, and may die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, random_config, scripted_config
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play.human_panel import HumanPanel
from gym_gui.ui.play.recorded import read_episodes, read_frame_bytes
from gym_gui.ui.play.session import PlaySession, PlayState, read_frame
from gym_gui.ui.replay.episode_player import preview_of_played_step
from gym_gui.ui.replay.video_player import to_image
from gym_gui.ui.shell.main_window import MainWindow
from gym_gui.ui.shell.workspaces import PLAY
from gym_gui.ui.theme import Appearance
from mosaic_wire.frames import FrameReader, fastlane_path
from mosaic_wire.paths import Home
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QCheckBox, QFileDialog

PATIENCE = 90_000
Key = Qt.Key


@pytest.fixture
def panel(
    qtbot, themed, link: DaemonLink, background: Background, window_daemon: RunningDaemon
) -> Iterator[HumanPanel]:
    # Not handed to qtbot: that deletes widgets before a fixture gets the chance to end their games.
    panel = HumanPanel(link, background, window_daemon.home)
    panel.resize(1100, 760)
    panel.show()
    qtbot.waitUntil(lambda: panel.controls.space.env_id == "CartPole-v1", timeout=PATIENCE)
    yield panel
    panel.shut_down()
    qtbot.waitUntil(lambda: not panel.session.is_active, timeout=PATIENCE)
    panel.close()
    panel.deleteLater()


def begin(qtbot, panel: HumanPanel, env_id: str = "CartPole-v1", *, real_time: bool = False) -> str:
    panel.setup.picker.choose(env_id)
    qtbot.waitUntil(lambda: panel.controls.space.env_id == env_id, timeout=PATIENCE)
    (panel.setup.real_time if real_time else panel.setup.turns).setChecked(True)
    panel.setup.start.click()
    qtbot.waitUntil(lambda: panel.end_episode.isEnabled(), timeout=PATIENCE)
    assert panel.session.state is PlayState.PLAYING
    panel.activateWindow()
    panel.view.setFocus()
    return panel.session.run_id


def press(qtbot, panel: HumanPanel, *keys: Key) -> None:
    for key in keys:
        before = panel.hud.value("step")
        qtbot.keyClick(panel.view, key)
        qtbot.waitUntil(lambda: panel.hud.value("step") != before, timeout=PATIENCE)  # noqa: B023 - used at once


def test_a_game_is_played_with_keys_recorded_read_back_and_exported(
    qtbot, panel: HumanPanel, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    panel.setup.seed.setValue(5)
    run_id = begin(qtbot, panel)
    images: list[QImage] = []
    panel.session.frame_received.connect(images.append)
    press(qtbot, panel, Key.Key_Right, Key.Key_Left, Key.Key_D)
    assert panel.hud.value("action") == "push right"
    assert panel.hud.value("return") == "3"
    assert len(images) == 3
    assert images[-1].size().toTuple() == (600, 400)
    assert panel.view.frame_view.image.size().toTuple() == (600, 400)
    qtbot.keyClick(panel.view, Key.Key_Z)  # means nothing here
    panel.end_episode.click()
    qtbot.waitUntil(lambda: panel.episodes.rowCount() == 1, timeout=PATIENCE)
    cells = [panel.episodes.item(0, column).text() for column in range(5)]
    assert cells == ["1", "5", "3", "3", "you"]
    assert "Episode over" in panel.view.message
    qtbot.keyClick(panel.view, Key.Key_Return)  # the next one
    qtbot.waitUntil(lambda: panel.hud.value("episode") == "2", timeout=PATIENCE)
    while panel.end_episode.isEnabled():
        qtbot.keyClick(panel.view, Key.Key_Right)
        qtbot.wait(5)
    qtbot.waitUntil(lambda: panel.episodes.rowCount() == 2, timeout=PATIENCE)
    assert panel.episodes.item(1, 4).text() == "the game"
    assert panel.episodes.item(1, 1).text() == "6"
    panel.setup.stop.click()
    qtbot.waitUntil(lambda: not panel.session.is_active, timeout=PATIENCE)
    assert panel.banner.text == ""

    run = window_daemon.wait_for(run_id)
    assert (run.outcome, run.worker_type, run.env_id) == ("completed", "human", "CartPole-v1")
    episodes = read_episodes(window_daemon.client, run_id)
    assert [int(action) for action in episodes[0].actions] == [1, 0, 1]
    assert [(episode.seed, episode.ended_by, episode.is_whole) for episode in episodes] == [
        (5, "player", True),
        (6, "environment", True),
    ]
    first = QImage.fromData(read_frame_bytes(Path(run.run_dir), episodes[0].frames[1]))
    # What the player saw before the second step is the picture that came after the first.
    assert first.convertToFormat(QImage.Format.Format_RGB888) == images[0]

    step = next(batch.steps[1] for batch in window_daemon.client.steps(run_id, episode=0))
    replayed = preview_of_played_step(step, run.run_dir)  # what the Replay tab shows of it
    assert replayed.observation.image is not None
    assert to_image(replayed.observation.image) == images[0]
    assert [name for name, _ in replayed.info] == ["source"]
    assert preview_of_played_step(step, "").observation.image is None

    path = tmp_path / "played.npz"
    panel.export_to(path)
    qtbot.waitUntil(lambda: "2 episodes" in panel.banner.text, timeout=PATIENCE)
    with np.load(path, allow_pickle=False) as data:
        assert data["episode_0/observations"].shape == (4, 4)
        np.testing.assert_array_equal(data["episode_0/actions"], [1, 0, 1])
        assert data["episode_1/terminations"][-1]
        assert json.loads(str(data["metadata"]))["run_id"] == run_id


def test_a_killed_environment_is_a_banner_and_the_window_continues(
    qtbot, panel: HumanPanel, window_daemon: RunningDaemon
) -> None:
    run_id = begin(qtbot, panel)
    press(qtbot, panel, Key.Key_Right)
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: panel.session.state is PlayState.ENDED, timeout=PATIENCE)
    assert panel.banner.isVisible()
    assert panel.banner.tone == "bad"
    assert "SIGKILL" in panel.banner.text
    assert window_daemon.client.get(run_id).outcome == "failed"
    assert panel.setup.start.isEnabled()
    assert not panel.step.isEnabled()
    again = begin(qtbot, panel)  # and the next game can be played
    assert again != run_id
    assert panel.banner.text == ""
    press(qtbot, panel, Key.Key_Left)
    assert not list(Path("/dev/shm").rglob(f"mosaic-*{run_id}*"))


def test_real_time_continues_by_itself_at_the_chosen_pace_and_shows_on_fastlane(qtbot, panel: HumanPanel) -> None:
    panel.setup.pace.set_rate(40)
    run_id = begin(qtbot, panel, "MountainCar-v0", real_time=True)
    reader = FrameReader(fastlane_path(run_id))
    qtbot.waitUntil(lambda: int(panel.hud.value("step")) > 5, timeout=PATIENCE)  # no key was pressed
    assert panel.hud.value("action") == "coast"
    qtbot.keyPress(panel.view, Key.Key_Right)
    qtbot.waitUntil(lambda: panel.hud.value("action") == "right", timeout=PATIENCE)
    qtbot.keyRelease(panel.view, Key.Key_Right)
    qtbot.waitUntil(lambda: panel.hud.value("action") == "coast", timeout=PATIENCE)
    frames = []

    def seen() -> bool:
        if (frame := reader.read()) is not None:
            frames.append(frame)
        return bool(frames)

    qtbot.waitUntil(seen, timeout=PATIENCE)
    assert (frames[0].width, frames[0].height) == (600, 400)
    reader.close()
    panel.setup.turns.setChecked(True)
    steps = panel.hud.value("step")
    qtbot.wait(150)
    assert int(panel.hud.value("step")) - int(steps) <= 1  # one may have been under way


def test_a_continuous_game_is_played_with_sliders_and_keys(qtbot, panel: HumanPanel) -> None:
    begin(qtbot, panel, "Pendulum-v1")
    panel.keypad.sliders[0].setValue(150)
    panel.step.click()
    qtbot.waitUntil(lambda: panel.hud.value("action") == "1", timeout=PATIENCE)
    press(qtbot, panel, Key.Key_Left)
    assert panel.hud.value("action") == "2"


def test_the_configuration_reaches_the_game_and_is_remembered(
    qtbot, panel: HumanPanel, window_daemon: RunningDaemon
) -> None:
    panel.setup.picker.choose("FrozenLake-v1")
    qtbot.waitUntil(lambda: panel.controls.space.env_id == "FrozenLake-v1", timeout=PATIENCE)
    panel.setup.config.widget().findChild(QCheckBox, "argument_is_slippery").setChecked(False)
    run_id = begin(qtbot, panel, "FrozenLake-v1")
    assert not panel.setup.is_real_time
    answers = []
    panel.session.stepped.connect(answers.append)
    press(qtbot, panel, Key.Key_Right, Key.Key_Right, Key.Key_Down)
    assert [answer["observation"] for answer in answers] == [1, 2, 6]  # never slipped
    assert window_daemon.manifest(run_id).extra["env_kwargs"] == {"is_slippery": False}
    panel.setup.stop.click()
    qtbot.waitUntil(lambda: not panel.session.is_active, timeout=PATIENCE)
    panel.setup.picker.choose("CartPole-v1")
    qtbot.waitUntil(lambda: panel.controls.space.env_id == "CartPole-v1", timeout=PATIENCE)
    panel.setup.picker.choose("FrozenLake-v1")
    qtbot.waitUntil(lambda: panel.setup.config.values() == {"is_slippery": False}, timeout=PATIENCE)


def test_an_environment_that_does_not_exist_is_a_banner(qtbot, panel: HumanPanel) -> None:
    panel.setup.picker.choose("nowhere_to_be_found:Env-v0")
    panel.setup.start.click()
    qtbot.waitUntil(lambda: panel.banner.isVisible(), timeout=PATIENCE)
    assert "nowhere_to_be_found" in panel.banner.text
    assert "Traceback" not in panel.banner.text
    assert panel.setup.start.isEnabled()


def test_a_paused_run_holds_the_game(qtbot, panel: HumanPanel, window_daemon: RunningDaemon) -> None:
    run_id = begin(qtbot, panel)
    window_daemon.client.pause(run_id)
    qtbot.waitUntil(lambda: panel.session.state is PlayState.PAUSED, timeout=PATIENCE)
    assert "paused" in panel.view.message
    assert not panel.step.isEnabled()
    window_daemon.client.resume(run_id)
    qtbot.waitUntil(lambda: panel.session.state is PlayState.PLAYING, timeout=PATIENCE)
    assert panel.view.message == ""
    press(qtbot, panel, Key.Key_Right)


def test_exporting_before_an_episode_is_over_says_what_to_do(qtbot, panel: HumanPanel, tmp_path: Path) -> None:
    begin(qtbot, panel)
    panel.export.click()
    dialog = panel.findChild(QFileDialog, "export_dialog")
    assert dialog is not None
    dialog.reject()
    panel.export_to(tmp_path / "nothing.npz")
    qtbot.waitUntil(lambda: "no episode has finished" in panel.banner.text, timeout=PATIENCE)
    assert not list(tmp_path.glob("*.npz"))


def test_a_broken_frame_file_is_no_frame(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"123")
    reported = {"encoding": "raw", "width": 2, "height": 2, "path": str(short)}
    assert read_frame(reported) is None
    assert read_frame({**reported, "width": -1}) is None
    assert read_frame({**reported, "path": str(tmp_path)}) is None
    assert read_frame({**reported, "path": str(tmp_path / "gone")}) is None
    assert read_frame(None) is None
    short.write_bytes(bytes(12))
    image = read_frame(reported)
    assert image is not None
    assert image.size().toTuple() == (2, 2)


def test_a_run_that_cannot_be_played_is_reported_and_cancelled(
    qtbot, link: DaemonLink, window_daemon: RunningDaemon
) -> None:
    session = PlaySession(link)
    ends: list[tuple[str, bool]] = []
    session.ended.connect(lambda arguments, failed: ends.append((arguments, failed)))
    session.start(random_config(timesteps=10**9, steps_per_second=20.0))
    qtbot.waitUntil(lambda: bool(ends), timeout=PATIENCE)
    assert ends[0][1]
    assert "does not name its socket" in ends[0][0]
    assert window_daemon.wait_for(session.run_id).outcome == "cancelled"


GAME = """
from mosaic_wire.interactive import SocketServer, socket_of

session = open_session()
server = SocketServer(socket_of(session.run_folder))
session.started({"interactive": {"socket": str(socket_of(session.run_folder))}})
while not session.stop_requested.is_set():
    for line in server.lines(0.1, 1000):
        if line is None:
            server._client.sendall(b"not JSON\\n[]\\n")
            server.send({"type": "init", "env_id": "Odd-v0", "frames": []})
        elif config.parameters.get("hangs"):
            pass
        else:
            server.send({"type": "error", "fatal": True, "message": "the environment failed: the floor gave way"})
            session.finish(ExitOutcome.FAILED, reason="RuntimeError", exit_code=1)
            sys.exit(1)
session.finish(ExitOutcome.CANCELLED, exit_code=130)
"""


def _played(qtbot, link: DaemonLink, daemon: RunningDaemon, **parameters: object) -> tuple[PlaySession, list]:
    install_scripted_worker(daemon.home, "odd_game", GAME)
    session = PlaySession(link)
    ends: list[tuple[str, bool]] = []
    session.ended.connect(lambda arguments, failed: ends.append((arguments, failed)))
    with qtbot.waitSignal(session.initialized, timeout=PATIENCE):  # what is no message before it was passed over
        session.start(scripted_config("odd_game", **parameters))
    return session, ends


def test_what_the_environment_said_before_it_failed_is_what_is_reported(
    qtbot, link: DaemonLink, window_daemon: RunningDaemon
) -> None:
    session, ends = _played(qtbot, link, window_daemon)
    assert session.reset(1)
    assert not session.step(0)  # one command at a time
    qtbot.waitUntil(lambda: bool(ends), timeout=PATIENCE)
    assert ends == [("the environment failed: the floor gave way", True)]


def test_a_game_that_hangs_can_be_stopped(qtbot, link: DaemonLink, window_daemon: RunningDaemon) -> None:
    session, ends = _played(qtbot, link, window_daemon, hangs=True)
    session.reset(1)
    session._cancel_timer.setInterval(100)
    session.stop()
    qtbot.waitUntil(lambda: bool(ends), timeout=PATIENCE)
    assert ends == [("", False)]
    assert window_daemon.wait_for(session.run_id).outcome == "cancelled"


def test_without_a_daemon_on_this_machine_it_reports_it(qtbot, themed, background: Background, tmp_path: Path) -> None:
    def unreachable():
        raise DaemonUnreachable("no daemon is there")

    link = DaemonLink(unreachable, background)
    panel = HumanPanel(link, background, Home(tmp_path))
    qtbot.addWidget(panel)
    panel.show()
    panel.setup.picker.choose("CartPole-v1")
    panel.setup.start.click()
    qtbot.waitUntil(lambda: panel.banner.isVisible(), timeout=PATIENCE)
    assert "not connected" in panel.banner.text


def test_closing_the_window_ends_the_game(
    qtbot, themed, link: DaemonLink, background: Background, window_daemon: RunningDaemon
) -> None:
    window = MainWindow(link, background, window_daemon.home, Appearance(themed))
    qtbot.addWidget(window)
    window.show()
    window.show_workspace(PLAY)
    panel = window.findChild(HumanPanel)
    qtbot.waitUntil(lambda: panel.controls.space.env_id == "CartPole-v1", timeout=PATIENCE)
    run_id = begin(qtbot, panel)
    press(qtbot, panel, Key.Key_Right)
    window.close()
    assert window_daemon.wait_for(run_id).outcome == "completed"
    assert [episode.length for episode in read_episodes(window_daemon.client, run_id)] == [1]


def test_a_game_outlives_the_daemon_and_is_recorded_all_the_same(
    qtbot, themed, background: Background, tmp_path: Path
) -> None:
    with RunningDaemon(Home(tmp_path / "home"), tmp_path / "config", settings={"heartbeat_s": 0.2}) as daemon:
        link = DaemonLink(lambda: TrainerClient.connect(daemon.home), background)
        link.start()
        panel = HumanPanel(link, background, daemon.home)
        panel.show()
        qtbot.waitUntil(lambda: panel.controls.space.env_id == "CartPole-v1", timeout=PATIENCE)
        run_id = begin(qtbot, panel)
        press(qtbot, panel, Key.Key_Right)
        daemon.kill()
        press(qtbot, panel, Key.Key_Left)  # the game does not need the daemon to go on
        daemon.start()
        press(qtbot, panel, Key.Key_Right)
        panel.setup.stop.click()
        qtbot.waitUntil(lambda: not panel.session.is_active, timeout=PATIENCE)
        assert panel.banner.text == ""
        assert daemon.wait_for(run_id).outcome == "completed"
        (episode,) = read_episodes(daemon.client, run_id)
        assert [int(action) for action in episode.actions] == [1, 0, 1]
        panel.close()
        panel.deleteLater()
        link.stop()
