"""Watching a policy against a real daemon: a checkpoint is loaded, plays, is held, stepped, and may die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, processes_of
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play.policy_panel import PolicyPanel
from gym_gui.ui.play.session import PlayState

PATIENCE = 90_000


@pytest.fixture(scope="module")
def trained(window_daemon: RunningDaemon) -> str:
    """A run that has trained a little."""
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 2048}
    run = window_daemon.client.submit(
        {
            "run_name": "a little ppo",
            "resources": {"cpus": {"requested": 0}},
            "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": config}},
        }
    ).run
    assert window_daemon.wait_for(run.run_id, timeout_s=150).outcome == "completed"
    return run.run_id


@pytest.fixture
def panel(
    qtbot, themed, link: DaemonLink, background: Background, window_daemon: RunningDaemon
) -> Iterator[PolicyPanel]:
    # Not handed to qtbot: that deletes widgets before a fixture gets the chance to end their runs.
    panel = PolicyPanel(link, background, window_daemon.home)
    panel.resize(900, 760)
    panel.show()
    yield panel
    panel.shut_down()
    qtbot.waitUntil(lambda: not panel.session.is_active, timeout=PATIENCE)
    panel.close()
    panel.deleteLater()


def load(qtbot, panel: PolicyPanel) -> str:
    qtbot.waitUntil(panel.load.isEnabled, timeout=PATIENCE)
    panel.load.click()
    qtbot.waitUntil(lambda: panel.session.state is PlayState.PLAYING, timeout=PATIENCE)
    return panel.session.run_id


def test_without_a_policy_it_says_what_to_do(qtbot, panel: PolicyPanel) -> None:
    qtbot.waitUntil(lambda: panel.source.algo.count() > 0, timeout=PATIENCE)
    assert "No run has trained a policy yet" in panel.view.frame_view.notice
    assert not panel.load.isEnabled()
    assert not panel.play.isEnabled()


def test_a_policy_plays_by_itself_is_held_and_stepped(
    qtbot, trained: str, panel: PolicyPanel, window_daemon: RunningDaemon
) -> None:
    qtbot.waitUntil(panel.load.isEnabled, timeout=PATIENCE)
    assert panel.source.chosen_run_id() == trained
    checkpoints = [panel.source.checkpoints.itemText(row) for row in range(panel.source.checkpoints.count())]
    assert checkpoints[0] == "the newest valid one"
    assert checkpoints[1].startswith("step 2")
    steps = []
    panel.session.stepped.connect(steps.append)
    panel.pace.set_rate(60)
    run_id = load(qtbot, panel)
    qtbot.waitUntil(lambda: len(steps) > 5, timeout=PATIENCE)
    assert panel.is_playing
    assert {step["action_source"] for step in steps} == {"policy"}
    for step in steps:
        assert sum(step["action_probabilities"]) == pytest.approx(1, abs=1e-5)
        # The likeliest action is taken.
        assert step["action_probabilities"][step["action"]] == max(step["action_probabilities"])
    assert panel.bars.isVisible()
    assert panel.bars.values == pytest.approx(steps[-1]["action_probabilities"])
    assert float(panel.hud.value("value")) == pytest.approx(steps[-1]["value"], rel=1e-3)
    assert panel.view.frame_view.image.width() == 600

    panel.play.click()
    assert panel.play.accessibleName() == "Play"
    qtbot.waitUntil(lambda: not panel.session.is_busy, timeout=PATIENCE)
    held = len(steps)
    qtbot.wait(100)
    assert len(steps) == held
    panel.again.click()  # from a known beginning
    qtbot.waitUntil(lambda: panel.hud.value("step") == "0", timeout=PATIENCE)
    panel.step.click()
    qtbot.waitUntil(lambda: panel.hud.value("step") == "1", timeout=PATIENCE)
    assert len(steps) == held + 1
    panel.unload.click()
    qtbot.waitUntil(lambda: panel.session.state is PlayState.ENDED, timeout=PATIENCE)
    assert panel.banner.text == ""
    assert window_daemon.wait_for(run_id).outcome == "completed"
    with qtbot.waitSignal(panel.run_opened) as expected:
        panel.open_run.click()
    assert expected.args == [run_id]
    assert panel.source.algo.currentText() == "ppo"


@pytest.mark.slow  # a policy is watched in every CI
def test_the_next_episode_follows_with_the_next_seed(qtbot, trained: str, panel: PolicyPanel) -> None:
    begun = []
    panel.session.ready.connect(lambda message: begun.append(message["seed"]))
    panel.pace.set_rate(60)
    panel.source.seed.setValue(11)
    load(qtbot, panel)
    qtbot.waitUntil(lambda: len(begun) >= 2, timeout=PATIENCE)
    assert begun[:2] == [11, 12]


@pytest.mark.slow  # a policy of a run plays in every CI
def test_a_file_with_weights_is_watched_and_a_wrong_one_is_named(
    qtbot, trained: str, panel: PolicyPanel, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    qtbot.waitUntil(panel.load.isEnabled, timeout=PATIENCE)
    wrong = tmp_path / "checkpoint"
    wrong.mkdir()
    panel.source.choose_file(wrong)
    qtbot.waitUntil(lambda: "is no checkpoint" in panel.banner.text, timeout=PATIENCE)
    model = window_daemon.home.run_folder(trained).root / "ppo.cleanrl_model"
    panel.source.choose_file(model)
    qtbot.waitUntil(lambda: panel.source.runs.currentText() == "File ppo.cleanrl_model", timeout=PATIENCE)
    assert (panel.source.algo.currentText(), panel.source.env_id.text()) == ("ppo", "CartPole-v1")
    load(qtbot, panel)
    qtbot.waitUntil(lambda: panel.bars.values != (), timeout=PATIENCE)
    assert panel.banner.text == ""


@pytest.mark.slow  # a policy is watched in every CI
def test_a_killed_policy_is_a_banner_and_can_be_loaded_again(qtbot, trained: str, panel: PolicyPanel) -> None:
    run_id = load(qtbot, panel)
    qtbot.waitUntil(lambda: panel.bars.values != (), timeout=PATIENCE)
    for pid in processes_of(run_id):
        if b"cleanrl_worker.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: panel.session.state is PlayState.ENDED, timeout=PATIENCE)
    assert panel.banner.tone == "bad"
    assert "SIGKILL" in panel.banner.text
    assert panel.load.isEnabled()
    panel.watch_run(trained)
    assert panel.source.chosen_run_id() == trained
