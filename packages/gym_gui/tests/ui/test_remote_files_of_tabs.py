"""Tabs of a run whose daemon is on another machine show copies (the journey: tests/e2e/test_remote_journey.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.replay.replay_tab import ReplayTab
from gym_gui.ui.run_page.files_tab import FilesTab
from gym_gui.ui.run_page.overview_tab import OverviewTab
from gym_gui.ui.widgets.run_tab import RunTab
from mosaic_wire import env
from mosaic_wire.proto import trainer_pb2 as pb

WAIT = 30_000


@pytest.fixture
def remote(link: DaemonLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DaemonLink:
    """A link whose daemon counts as one of another machine, and an empty cache."""
    monkeypatch.setenv(env.MOSAIC_CACHE_HOME, str(tmp_path / "cache"))
    client = link.client()
    client.copies = type(client.copies)(client, "another token")
    link.is_home_here = client.copies._is_here = False
    return link


@pytest.fixture
def run(window_daemon: RunningDaemon) -> pb.Run:
    run = window_daemon.wait_for(window_daemon.submit(timesteps=5).run_id)
    videos = Path(run.run_dir) / "videos"
    videos.mkdir(exist_ok=True)
    (videos / "rl-video-step-5.mp4").write_bytes(b"a film")
    return run


def shown(qtbot, tab: RunTab, run: pb.Run) -> RunTab:
    qtbot.addWidget(tab)
    tab.resize(900, 600)
    tab.show()
    tab.set_active(True)
    tab.show_run(run)
    return tab


def test_overview_reads_the_manifest(qtbot, themed, remote: DaemonLink, run: pb.Run) -> None:
    tab = shown(qtbot, OverviewTab(remote), run)
    tab.set_active(True)
    tab._read_changed()
    qtbot.waitUntil(lambda: tab._reading is not None and tab._reading.manifest is not None, timeout=WAIT)
    assert tab._reading.manifest.run_id == run.run_id
    tab.set_active(False)


def test_files_lists_everything_and_fetches_what_is_selected(qtbot, themed, remote: DaemonLink, run: pb.Run) -> None:
    tab = shown(qtbot, FilesTab(remote), run)
    qtbot.waitUntil(lambda: bool(tab.model.roots and tab.model.roots[0].children), timeout=WAIT)
    entries = {node.entry.name: node for node in tab.model.roots[0].children if node.entry is not None}
    assert {"analytics.json", "videos", "lifecycle.jsonl"} <= entries.keys()
    assert run.run_dir in tab.banner.text
    path = entries["lifecycle.jsonl"].path
    assert path.stat().st_mode & 0o777 == 0, "listed, not fetched"
    assert path.stat().st_size == (Path(run.run_dir) / "lifecycle.jsonl").stat().st_size
    tab.tree.setCurrentIndex(tab.model.index_of(entries["lifecycle.jsonl"]))
    qtbot.waitUntil(lambda: "run_completed" in tab.preview.text.toPlainText(), timeout=WAIT)
    tab.set_active(False)


def test_replay_fetches_the_video_that_is_selected(qtbot, themed, remote: DaemonLink, run: pb.Run) -> None:
    tab = shown(qtbot, ReplayTab(remote), run)
    qtbot.waitUntil(lambda: bool(tab._found.videos), timeout=WAIT)
    path = tab._found.videos[0].path
    qtbot.waitUntil(lambda: path.stat().st_mode & 0o777 != 0, timeout=WAIT)
    assert path.read_bytes() == b"a film"
    assert not path.is_relative_to(run.run_dir)
    qtbot.waitUntil(lambda: tab.player.path == path, timeout=WAIT)
    tab.set_active(False)


def test_without_the_daemon_the_copies_are_shown_as_they_are(qtbot, remote: DaemonLink, run: pb.Run) -> None:
    here = remote.local(run, "run/exit.json")
    client, problems = remote.client(), []
    remote.problem.connect(problems.append)
    client.close()  # a job in a thread may hold a client that the link has given up
    assert remote.local(run, "run/*").run_dir == here.run_dir
    remote._client = None
    assert remote.local(run, "run/*").run_dir == here.run_dir
    assert (Path(here.run_dir) / "exit.json").is_file()
    assert problems == []
