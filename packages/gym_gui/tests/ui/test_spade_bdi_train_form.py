"""The Spade BDI worker in the window: its form with the behaviour's source, and why the agent acted, live and replayed.

With MOSAIC_WINDOW_PICTURES the screenshots are saved there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.forms.dialog_factory import open_form
from gym_gui.ui.forms.spade_bdi_train_form import SpadeBdiTrainForm
from gym_gui.ui.replay.replay_tab import ReplayTab
from gym_gui.ui.run_page.live_tab import LiveTab
from gym_gui.ui.workers import catalog
from mosaic_extras.testing import lend_sets
from mosaic_wire.run_request import run_request
from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QWidget

PICTURES = os.environ.get("MOSAIC_WINDOW_PICTURES", "")  # read here: the tests' guard forgets MOSAIC_… variables


def photograph(widget: QWidget, name: str) -> None:
    if PICTURES:
        widget.grab().save(str(Path(PICTURES) / f"{name}.png"))


@pytest.fixture
def window(qtbot, themed) -> QWidget:
    window = QWidget()
    qtbot.addWidget(window)
    return window


@pytest.fixture
def form(qtbot, link, background, window_daemon: RunningDaemon, window) -> SpadeBdiTrainForm:
    lend_sets(window_daemon.home, "agentspeak", "minigrid")
    entry = catalog.find(catalog.entries_from(window_daemon.client.workers()), "spade_bdi")
    assert entry.is_usable, entry.remedy
    form = open_form("train", entry, link=link, background=background, home=window_daemon.home, parent=window)
    assert type(form) is SpadeBdiTrainForm
    form.resize(1100, 900)
    qtbot.waitUntil(lambda: "+!act" in form.behaviour.text.toPlainText())
    return form


def shown_problems(form: SpadeBdiTrainForm) -> list[str]:
    return [form.behaviour.problems.item(row).text() for row in range(form.behaviour.problems.count())]


def test_a_behaviour_is_read_copied_edited_checked_and_run(
    qtbot, form: SpadeBdiTrainForm, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    editor = form.behaviour
    qtbot.waitUntil(lambda: editor.status.text() == "Nothing is wrong with it.")
    assert editor.text.isReadOnly()
    form.parameters.row("behaviour").set_value("teacher_pupil")
    form.parameters.row("behaviour").changed.emit()
    form.refresh()
    qtbot.waitUntil(lambda: editor.agents.count() == 2)
    assert [editor.agents.itemText(row) for row in range(2)] == ["pupil", "teacher"]
    photograph(form, "spade-bdi-form")

    form.parameters.row("behaviour").set_value("q_learning")
    form.parameters.row("behaviour").changed.emit()
    form.refresh()
    qtbot.waitUntil(lambda: editor.agents.count() == 1)
    editor.copy_to(tmp_path)
    form.refresh()
    qtbot.waitUntil(lambda: not editor.text.isReadOnly())
    own = tmp_path / "q_learning.asl"
    editor.text.setPlainText(own.read_text().replace(".choose(S, A);", ".chose(S, A)"))
    editor.check_button.click()
    qtbot.waitUntil(lambda: bool(shown_problems(form)))
    (problem,) = shown_problems(form)
    assert problem.startswith("q_learning.asl:5:6: expected ';' or '.' after formula")
    photograph(form, "spade-bdi-form-error")
    editor.problems.itemClicked.emit(editor.problems.item(0))
    assert editor.text.textCursor().blockNumber() == 4

    editor.text.setPlainText("+!act <- .act(1).")
    editor.check_button.click()
    qtbot.waitUntil(lambda: editor.status.text() == "Nothing is wrong with it.")
    form.core.set_values({"env_id": "FrozenLake-v1"})
    form.findChild(QLineEdit, "total_timesteps").setText("50")
    with qtbot.waitSignal(form.submitted, timeout=60_000) as submitted:
        form.submit()
    run = window_daemon.wait_for(submitted.args[0][0])
    assert (run.outcome, run.step) == ("completed", 50)


def test_what_another_program_writes_is_never_overwritten(qtbot, form: SpadeBdiTrainForm, tmp_path: Path) -> None:
    editor, own = form.behaviour, tmp_path / "walker.asl"
    form.core.set_values({"env_id": "FrozenLake-v1"})
    own.write_text("+!act <- .act(1).")
    form.parameters.row("behaviour_path").set_value(str(own))
    form.parameters.row("behaviour_path").changed.emit()
    form.refresh()
    qtbot.waitUntil(lambda: editor.text.toPlainText() == "+!act <- .act(1).")
    own.write_text("+!act <- .act(2).")
    assert form.check()
    assert own.read_text() == "+!act <- .act(2)."
    editor.text.setPlainText("+!act <- .act(3).")
    assert not form.check()
    assert own.read_text() == "+!act <- .act(2)."
    assert "walker.asl changed on disk since it was read" in editor.status.text()
    editor.reload_button.click()
    qtbot.waitUntil(lambda: editor.text.toPlainText() == "+!act <- .act(2).")
    assert editor.reload_button.isHidden()
    # A file that cannot be read leaves nothing of the last one to be edited or saved.
    other = tmp_path / "picture.asl"
    other.write_bytes(b"\x89PNG\xff")
    form.parameters.row("behaviour_path").set_value(str(other))
    form.parameters.row("behaviour_path").changed.emit()
    form.refresh()
    qtbot.waitUntil(lambda: editor.status.text().startswith(f"behaviour_path: {other} is not UTF-8 text"))
    assert (editor.text.toPlainText(), editor.text.isReadOnly(), editor.is_changed) == ("", True, False)


def test_the_password_is_shown_nowhere(form: SpadeBdiTrainForm) -> None:
    values = {"engine": "spade", "jid": "anna@here", "password": "canary-1f7a", "server": "xmpp.here"}
    for name, value in values.items():
        form.parameters.row(name).set_value(value)
        form.parameters.row(name).changed.emit()
    assert form.findChild(QLineEdit, "password").echoMode() == QLineEdit.EchoMode.Password
    form.refresh()
    assert not [each for each in form.findChildren(QPlainTextEdit) if "canary-1f7a" in each.toPlainText()]


@pytest.fixture
def planned(window_daemon: RunningDaemon):
    """A run of the planner through the key and the door."""
    lend_sets(window_daemon.home, "agentspeak", "minigrid")
    extras = {"algo_params": {"behaviour": "planner", "record_frames": True, "eval_episodes": 0}}
    config = run_request(
        "spade_bdi",
        algo="spade_bdi",
        env_id="MiniGrid-DoorKey-5x5-v0",
        module="spade_bdi_worker.cli",
        total_timesteps=60,
        seed=1,
        extras=extras,
    )
    return window_daemon.wait_for(window_daemon.client.submit(config).run.run_id)


def test_why_the_agent_acted_is_shown_step_by_step(qtbot, themed, link, planned) -> None:
    assert planned.outcome == "completed", planned.reason
    tab = ReplayTab(link)
    qtbot.addWidget(tab)
    tab.resize(1300, 800)
    tab.show()
    tab.set_active(True)
    tab.show_run(planned)
    player = tab.episodes
    qtbot.waitUntil(lambda: player.count > 3)
    reasoning = player.view.reasoning
    qtbot.waitUntil(lambda: "Intentions" in reasoning.text.toPlainText())
    text = reasoning.text.toPlainText()
    assert "!turn_or(" in text
    assert "(planner.asl:" in text
    assert not player.view.frame_view.image.isNull()
    photograph(tab, "spade-bdi-replay")
    tab.set_active(False)


def test_why_the_agent_acts_is_shown_live(qtbot, themed, link, window_daemon: RunningDaemon) -> None:
    lend_sets(window_daemon.home, "agentspeak")
    config = run_request(
        "spade_bdi",
        algo="spade_bdi",
        env_id="FrozenLake-v1",
        module="spade_bdi_worker.cli",
        total_timesteps=10**9,
        seed=1,
        extras={"algo_params": {"behaviour": "teacher_pupil"}},
    )
    run_id = window_daemon.client.submit(config).run.run_id
    run = window_daemon.wait_for_run(run_id, lambda run: run.step > 0)
    tab = LiveTab(link)
    qtbot.addWidget(tab)
    tab.resize(1300, 800)
    tab.show()
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: tab.fastlane.frames_shown > 2)
    qtbot.waitUntil(lambda: "+!try(S, A)" in _live_text(tab))
    assert "Percepts" in _live_text(tab)
    photograph(tab, "spade-bdi-live")
    tab.set_active(False)
    window_daemon.client.cancel(run_id)
    window_daemon.wait_for(run_id)


def _live_text(tab: LiveTab) -> str:
    from gym_gui.ui.replay.reasoning_view import ReasoningView

    return "\n".join(view.text.toPlainText() for view in tab.findChildren(ReasoningView))
