"""The Replay tab on real runs: videos appear as their files do; recorded episodes go step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.replay.episode_player import EpisodesModel
from gym_gui.ui.replay.reasoning_view import ReasoningView
from gym_gui.ui.replay.replay_tab import ReplayTab
from gym_gui.ui.widgets.parts import AdaptiveSplitter
from mosaic_wire.capabilities import Lane
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.reasoning import Part
from PySide6.QtCore import QModelIndex, Qt

MakeVideo = Callable[..., Path]

PLAYER = """
import numpy as np
from mosaic_wire.reasoning import Part, reasoning_info
session = open_session(lane="telemetry")
session.started({})
telemetry = session.telemetry()
for episode in range(4):
    for step in range(episode + 3):
        last = step == episode + 2
        telemetry.step(
            np.full((32, 32, 3), 10 * step + episode, np.uint8), step % 2, float(step), terminated=last,
            truncated=False, info={"lives": 3 - episode, **reasoning_info([Part("Answer", f"step {step}")])},
        )
    telemetry.episode(float(sum(range(episode + 3))), episode + 3)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> ReplayTab:
    tab = ReplayTab(link)
    qtbot.addWidget(tab)
    tab.resize(1000, 600)
    tab.show()
    return tab


def video_titles(tab: ReplayTab) -> list[tuple[str, list[str]]]:
    """The groups of the list with what is in them."""
    groups = [tab.list.topLevelItem(place) for place in range(tab.list.topLevelItemCount())]
    return [(group.text(0), [group.child(place).text(0) for place in range(group.childCount())]) for group in groups]


def test_videos_appear_as_their_files_do(
    qtbot, tab: ReplayTab, window_daemon: RunningDaemon, make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = window_daemon.submit(timesteps=1_000_000, steps_per_second=100)
    run = window_daemon.wait_for(run.run_id, "EXEC")
    monkeypatch.setattr("gym_gui.ui.replay.replay_tab.REFRESH_MS", 100)
    tab._timer.setInterval(100)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: video_titles(tab) == [("No videos", [])], timeout=20_000)
    assert "--capture-video" in tab.player.view.notice
    videos = Path(run.run_dir) / "videos"
    make_video(videos / "rl-video-episode-0.mp4", frames=5)
    qtbot.waitUntil(lambda: video_titles(tab) == [("Unknown step", ["After episode 0"])], timeout=20_000)
    qtbot.waitUntil(lambda: tab.player.count == 5, timeout=20_000)
    make_video(videos / "rl-video-episode-8.mp4", frames=7)
    qtbot.waitUntil(
        lambda: video_titles(tab) == [("Unknown step", ["After episode 8", "After episode 0"])], timeout=20_000
    )
    assert tab.player.path == videos / "rl-video-episode-0.mp4"  # what is watched stays
    tab.list.setCurrentItem(tab.list.topLevelItem(0).child(0))
    qtbot.waitUntil(lambda: tab.player.count == 7, timeout=20_000)
    assert tab.pages.tabText(0) == "&Videos (2)"
    window_daemon.client.cancel(run.run_id)
    tab.refresh(window_daemon.wait_for(run.run_id))
    qtbot.waitUntil(lambda: not tab._timer.isActive(), timeout=20_000)


def test_a_video_that_is_still_being_written_plays_once_it_is_whole(
    qtbot, tab: ReplayTab, window_daemon: RunningDaemon, make_video: MakeVideo, tmp_path: Path
) -> None:
    run = window_daemon.submit(timesteps=1_000_000, steps_per_second=100)
    run = window_daemon.wait_for(run.run_id, "EXEC")
    whole = make_video(tmp_path / "whole.mp4", frames=9, fast_start=False).read_bytes()
    video = Path(run.run_dir) / "videos" / "a.mp4"
    video.parent.mkdir()
    video.write_bytes(whole[:-600])
    tab._timer.setInterval(100)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: "cannot be played" in tab.player.banner.text, timeout=20_000)
    video.write_bytes(whole)
    qtbot.waitUntil(lambda: tab.player.count == 9, timeout=20_000)
    assert not tab.player.banner.text
    window_daemon.client.cancel(run.run_id)
    window_daemon.wait_for(run.run_id)


def test_a_run_without_videos_or_folder_reports_it(qtbot, tab: ReplayTab, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=5)
    run = window_daemon.wait_for(run.run_id)
    tab.set_active(True)
    tab.show_run(run)
    qtbot.waitUntil(lambda: "has no videos" in tab.player.view.notice, timeout=20_000)
    assert not tab.banner.text
    gone = pb.Run()
    gone.CopyFrom(run)
    gone.run_dir = str(Path(run.run_dir).with_name("01ARZ3NDEKTSV4RRFFQ69G5FAV"))
    tab.show_run(gone)
    qtbot.waitUntil(lambda: "does not exist" in tab.banner.text, timeout=20_000)


def test_a_damaged_manifest_is_reported(qtbot, tab: ReplayTab, window_daemon: RunningDaemon, make_video) -> None:
    run = window_daemon.wait_for(window_daemon.submit(timesteps=5).run_id)
    make_video(Path(run.run_dir) / "videos" / "a.mp4", frames=3)
    (Path(run.run_dir) / "analytics.json").write_text("{")
    tab.set_active(True)
    tab.show_run(run)
    qtbot.waitUntil(lambda: "cannot be read" in tab.banner.text and tab.player.count == 3, timeout=20_000)


@pytest.fixture
def player_run(window_daemon: RunningDaemon) -> pb.Run:
    """A run that plays four episodes."""
    install_scripted_worker(window_daemon.home, "player", PLAYER, lane=Lane.TELEMETRY)
    window_daemon.client.workers(refresh=True)
    return window_daemon.client.submit(scripted_config("player", timesteps=10)).run


def test_recorded_episodes_go_step_by_step(
    qtbot, tab: ReplayTab, window_daemon: RunningDaemon, player_run: pb.Run
) -> None:
    run = window_daemon.wait_for(player_run.run_id)
    tab.set_active(True)
    tab.show_run(run)
    player = tab.episodes
    qtbot.waitUntil(lambda: player.model.recorded == 4, timeout=20_000)
    assert tab.pages.currentIndex() == 1  # it has no videos
    assert [player.model.index(row, 0).data() for row in range(4)] == ["3", "2", "1", "0"]
    assert player.model.index(0, 1).data() == "15.0"  # 0 + 1 + 2 + 3 + 4 + 5
    qtbot.waitUntil(lambda: player.count == 6, timeout=20_000)  # the newest is chosen
    qtbot.waitUntil(lambda: bool(player.view.reward.text()), timeout=20_000)
    assert player.view.frame_view.image.pixelColor(1, 1).red() == 3
    player.table.setFocus()  # up and down choose an episode, left and right a step
    for _ in range(2):
        qtbot.keyClick(player.table, Qt.Key.Key_Right)
    qtbot.waitUntil(lambda: player.view.reward.text() == "2", timeout=20_000)
    assert player.view.frame_view.image.pixelColor(1, 1).red() == 23
    assert (player.view.action.text(), player.view.total.text(), player.view.ending.text()) == ("0", "3", "continues")
    assert player.view.info.pairs() == [("lives", "0")]
    assert player.view.reasoning.text.toPlainText().splitlines() == ["Answer", "step 2"]
    qtbot.keyClick(player.table, Qt.Key.Key_End)
    qtbot.waitUntil(lambda: player.view.ending.text() == "ends here", timeout=20_000)
    player.table.selectRow(3)
    qtbot.waitUntil(lambda: player.count == 3, timeout=20_000)
    player.play()
    qtbot.waitUntil(lambda: player.position == 2 and player.view.reward.text() == "2", timeout=20_000)
    qtbot.waitUntil(lambda: not player._timer.isActive(), timeout=20_000)


LIVE = """
session = open_session(lane="telemetry")
session.started({})
telemetry = session.telemetry()
gate = Path(os.environ["MOSAIC_RUN_DIR"])

def wait_for(name):
    while not (gate / name).exists():
        time.sleep(0.02)

telemetry.step([1.0], 0, 1.0, terminated=True, truncated=False)
telemetry.episode(1.0, 1)
for step in range(3):
    telemetry.step([float(step)], 0, 1.0, terminated=False, truncated=False)
wait_for("one_more")
telemetry.step([3.0], 1, 1.0, terminated=True, truncated=False)
telemetry.episode(4.0, 4)
wait_for("end")
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


def test_the_episode_that_is_being_played_grows(qtbot, tab: ReplayTab, window_daemon: RunningDaemon) -> None:
    install_scripted_worker(window_daemon.home, "liveplayer", LIVE, lane=Lane.TELEMETRY)
    window_daemon.client.workers(refresh=True)
    submitted = window_daemon.client.submit(scripted_config("liveplayer", timesteps=10)).run
    run = window_daemon.wait_for(submitted.run_id, "EXEC")
    tab.set_active(True)
    tab.show_run(run)
    player = tab.episodes
    qtbot.waitUntil(lambda: player.model.recorded == 1, timeout=20_000)
    assert [player.model.index(0, column).data() for column in (0, 3)] == ["1", "now"]
    player.table.selectRow(0)
    qtbot.waitUntil(lambda: player.count == 3, timeout=20_000)
    assert "being played" in player.title.text()
    (Path(run.run_dir) / "one_more").touch()
    qtbot.waitUntil(lambda: player.count == 4 and player.model.recorded == 2, timeout=20_000)
    # It is over now, and stays in view; `now` is the next one.
    qtbot.waitUntil(lambda: player.table.currentIndex().row() == 1, timeout=20_000)
    assert player.count == 4
    assert player.model.index(0, 0).data() == "2"
    tab.set_active(False)
    (Path(run.run_dir) / "end").touch()
    tab.refresh(window_daemon.wait_for(run.run_id))
    assert player.model.rowCount() == 2
    tab.set_active(True)  # what is there is shown once, however often one comes back
    qtbot.wait(300)
    assert player.model.recorded == 2
    assert player.count == 4


def test_ten_thousand_episodes_are_quick_to_show() -> None:
    model = EpisodesModel()
    model.set_live(True)
    model.add([pb.RunEpisode(seq=seq, episode=seq - 1, episodic_return=seq, length=5) for seq in range(1, 10_001)])
    model.add([pb.RunEpisode(seq=10_000, episode=9_999)])  # known already
    assert model.rowCount(QModelIndex()) == 10_001
    assert model.index(0, 0).data() == "10000"
    assert model.index(1, 0).data() == "9999"
    assert model.row_of(9_999) == 1
    assert model.episode_at(10_000) == (0, False)
    assert model.episode_at(10_001) is None


def test_of_many_episodes_the_newest_is_shown(qtbot, tab: ReplayTab) -> None:
    player = tab.episodes
    for first, skipped in ((1, 0), (1_001, 1)):  # pages of the stream, one with an unreadable episode
        episodes = [pb.RunEpisode(seq=seq, episode=seq - 1) for seq in range(first, first + 1_000 - skipped)]
        player._add_episodes([pb.RunEpisodes(episodes=episodes, skipped=skipped, total=2_000)])
    assert player.model.episode_at(player.table.currentIndex().row()) == (1_998, False)


def test_a_narrow_page_shows_one_above_the_other(qtbot, tab: ReplayTab) -> None:
    splitter = tab.player.parentWidget()
    assert isinstance(splitter, AdaptiveSplitter)
    tab.resize(1200, 700)
    qtbot.waitUntil(lambda: splitter.orientation() is Qt.Orientation.Horizontal, timeout=5_000)
    wide = tab.player.x()
    tab.resize(420, 700)
    qtbot.waitUntil(lambda: splitter.orientation() is Qt.Orientation.Vertical, timeout=5_000)
    qtbot.waitUntil(lambda: tab.player.y() > 0, timeout=5_000)
    assert wide > 0
    assert tab.width() == 420  # nothing in it needs more room
    assert tab.player.height() > tab.list.height()


def test_what_a_model_says_is_shown_as_text(qtbot, themed) -> None:
    view = ReasoningView()
    qtbot.addWidget(view)
    hostile = "\x1b[2J<b>bold</b>\x00 \u202eturned \ud800"
    view.show_parts([Part("Answer", hostile), Part("Beliefs", items=(hostile,))])
    told = view.text.toPlainText().splitlines()
    assert told == ["Answer", "�[2J<b>bold</b>� �turned �", "Beliefs", "�[2J<b>bold</b>� �turned �"]
