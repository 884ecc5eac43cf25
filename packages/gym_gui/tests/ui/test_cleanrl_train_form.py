"""The training form against a real daemon and the real worker: refused inline, checked, submitted, trained."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.cleanrl_train_form import CleanRlTrainForm, RequirementSetsBox
from gym_gui.ui.forms.dialog_factory import NoSuchForm, open_form, register_forms
from gym_gui.ui.forms.train_form import TrainForm
from gym_gui.ui.workers import catalog
from gym_gui.ui.workers.catalog import WorkerEntry
from gym_gui.ui.workers.environments import EnvironmentPreview, inspect_environment
from mosaic_extras.testing import lend_sets
from mosaic_wire.paths import Home
from PySide6.QtWidgets import QLabel, QLineEdit, QPushButton, QWidget


@pytest.fixture(scope="module")
def entries(window_daemon: RunningDaemon) -> tuple[WorkerEntry, ...]:
    return catalog.entries_from(window_daemon.client.workers(), with_hidden=True)


@pytest.fixture
def window(qtbot, themed) -> QWidget:
    window = QWidget()
    qtbot.addWidget(window)
    return window


@pytest.fixture
def opened(link: DaemonLink, background: Background, window_daemon: RunningDaemon, entries, window: QWidget):
    def open_it(kind: str = "train", worker: str = "cleanrl", run=None):
        entry = catalog.find(entries, worker)
        return open_form(kind, entry, link=link, background=background, home=window_daemon.home, parent=window, run=run)

    return open_it


def write(form: TrainForm, name: str, text: str) -> None:
    form.findChild(QLineEdit, name).setText(text)


def run_count(daemon: RunningDaemon) -> int:
    return daemon.client.list(include_archived=True).matching


@pytest.mark.timeout(600)  # five seconds of work, and sometimes a machine with twenty other things to do
def test_a_run_is_submitted_from_the_form_and_trained_to_its_end(qtbot, opened, window_daemon: RunningDaemon) -> None:
    form = opened()
    assert type(form) is CleanRlTrainForm
    write(form, "total_timesteps", "2000")
    write(form, "run_name", "from the form")
    write(form, "agent_id", "agent-7")
    write(form, "worker_id", "worker-7")
    write(form, "tags", "gui, e2e")
    form.notes.set_notes("a note")
    form.parameters.row("learning_rate").editor.widget.setText("1e-3")
    with qtbot.waitSignal(form.submitted, timeout=60_000) as submitted:
        form.submit_button.click()
    (run_id,) = submitted.args[0]
    run = window_daemon.wait_for(run_id, timeout_s=500)
    assert (run.status, run.outcome) == ("TERM", "completed")
    assert (run.algo, run.env_id, run.seed) == ("ppo", "CartPole-v1", 1)
    assert (run.name, run.worker_id, list(run.tags), run.notes) == (
        "from the form",
        "worker-7",
        ["gui", "e2e"],
        "a note",
    )
    extras = json.loads(run.extras_json)
    assert (extras["algo_params"], extras["agent_id"]) == ({"learning_rate": 0.001}, "agent-7")

    again = opened(kind="clone", run=run)
    qtbot.waitUntil(lambda: again.request().total_timesteps == 2000, timeout=10_000)
    assert again.request().parameters == {"learning_rate": 0.001}
    assert again.request().run_name == "from the form"
    assert again.saved_configs.recent()[0].title == "ppo CartPole-v1 seed 1"
    again.close()


def test_a_dry_run_lands_in_the_notes_panel_and_not_in_the_notes(qtbot, opened, window_daemon: RunningDaemon) -> None:
    form = opened()
    before = run_count(window_daemon)
    form.notes.set_notes("mine")
    form.wandb.form.set_values({"track_wandb": True, "wandb_api_key": "k" * 40})
    form.dry_run_button.click()
    assert not form.dry_run_button.isEnabled()
    qtbot.waitUntil(lambda: bool(form.notes.checks), timeout=60_000)
    said = form.notes.checks
    assert said.startswith("[20")
    assert "k" * 40 not in said
    assert "CartPole-v1" in said or "wandb" in said
    assert form.dry_run_button.isEnabled()
    assert form.configs()[0]["metadata"]["worker"]["config"]["extras"]["notes"] == "mine"
    assert run_count(window_daemon) == before
    form.close()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("seeds", "one", "expected seeds"),
        ("total_timesteps", "2000.5", "whole number"),
        ("cpus", "-1", "at least 0"),
        ("max_wallclock", "soon", "expected a time"),
        ("num_envs", "0", "at least 1"),
        ("run_name", "x" * 300, "at most 200"),
    ],
)
def test_a_bad_value_is_refused_beside_its_field(
    qtbot, opened, window_daemon: RunningDaemon, name: str, text: str, message: str
) -> None:
    form = opened()
    sent: list[object] = []
    form.submitted.connect(sent.append)
    if form.findChild(QLineEdit, name) is None:
        form.parameters.row(name)
    write(form, name, text)
    form.submit_button.click()
    assert message in form.findChild(QLabel, f"{name}_problem").text()
    assert form.banner.text
    qtbot.wait(50)
    assert sent == []
    assert form.isVisible()
    form.close()


def test_nothing_is_sent_while_anything_is_wrong(qtbot, opened, window_daemon: RunningDaemon) -> None:
    form = opened()
    before = run_count(window_daemon)
    form.algorithm.combo.setEditText("pppo")
    form.environment.combo.setEditText("CartPole-v9")
    form.submit_button.click()
    assert "Did you mean ppo?" in form.findChild(QLabel, "algo_problem").text()
    assert "Did you mean CartPole-v1?" in form.findChild(QLabel, "env_id_problem").text()
    qtbot.wait(50)
    assert run_count(window_daemon) == before
    form.close()


def test_an_algorithm_that_does_not_fit_the_environment_is_refused(opened) -> None:
    form = opened()
    form.core.set_values({"env_id": "Pendulum-v1"})
    form._show_preview(EnvironmentPreview("Pendulum-v1", "continuous", "vector", "Box(1,)", "Box(3,)"))
    assert "ppo needs discrete actions" in form.findChild(QLabel, "algo_problem").text()
    assert not form.check()
    names = [form.algorithm.combo.itemText(place) for place in range(form.algorithm.combo.count())]
    assert "sac_continuous_action" in names
    assert "dqn" not in names
    form.core.set_values({"algo": "sac_continuous_action"})
    assert form.check()
    form.close()


def test_what_is_saved_and_loaded_is_the_same_form(qtbot, opened, tmp_path: Path) -> None:
    form = opened()
    write(form, "seeds", "1-3,7")
    write(form, "total_timesteps", "20k")
    write(form, "run_name", "several")
    form.resources.set_values({"cpus": 2.5, "memory_mb": 512, "max_wallclock": 90.0, "priority": 5})
    form.parameters.set_values({"anneal_lr": False, "num_envs": 8})
    drawn = {
        "fastlane_video_mode": "grid",
        "fastlane_grid_limit": 9,
        "fastlane_interval_ms": 100,
        "fastlane_max_dim": 320,
    }
    form.watching.set_values({**drawn, "minimal_telemetry": True})
    form.wandb.form.set_values(
        {
            "tensorboard": False,
            "track_wandb": True,
            "wandb_project_name": "p",
            "wandb_api_key": "k" * 40,
            "wandb_use_vpn_proxy": True,
            "wandb_http_proxy": "http://proxy:1",
        }
    )
    form.sets.set_asked(["atari"])
    form.notes.set_notes("why\nnot")
    file = tmp_path / "config.json"
    form.save_file(file)
    qtbot.waitUntil(lambda: "Saved" in form.banner.text, timeout=10_000)
    assert "k" * 40 not in file.read_text()
    other = opened()
    assert other.request() != form.request()
    other.load_file(file)
    qtbot.waitUntil(lambda: other.request().run_name == "several", timeout=10_000)
    form.wandb.form.set_values({"wandb_api_key": ""})
    assert other.request() == form.request()
    assert other.findChild(QLineEdit, "seeds").text() == "1-3,7"
    assert [config["metadata"]["worker"]["config"]["seed"] for config in other.configs()] == [1, 2, 3, 7]
    assert other.configs() == form.configs()
    assert drawn.items() <= other.configs()[0]["metadata"]["worker"]["config"]["extras"].items()
    (tmp_path / "broken.json").write_text("{")
    other.load_file(tmp_path / "broken.json")
    qtbot.waitUntil(lambda: "not valid JSON" in other.banner.text, timeout=10_000)
    form.close()
    other.close()


def test_the_preview_shows_the_config_and_the_command(opened) -> None:
    form = opened()
    write(form, "seeds", "1-5")
    form.wandb.form.set_values({"track_wandb": True, "wandb_api_key": "k" * 40})
    form.parameters.set_values({"anneal_lr": False})
    form.side.setCurrentWidget(form.side.json_preview)
    shown = json.loads(form.side.json_preview.text)
    assert shown["metadata"]["worker"]["config"]["algo"] == "ppo"
    assert "k" * 40 not in form.side.json_preview.text
    assert "4 more" in form.side.json_preview.remark
    form.side.setCurrentWidget(form.side.command_preview)
    message = form.side.command_preview.text.replace("\\\n", " ").split()
    assert message[:4] == ["mosaic", "train", "ppo", "CartPole-v1"]
    assert {"--seeds", "1-5", "--no-anneal-lr", "--track"} <= set(message)
    form.side.setCurrentWidget(form.side.help)
    assert "proximal policy" in form.side.help.toPlainText()
    form.close()


def test_presets_fill_the_form_and_own_ones_are_kept(opened) -> None:
    form = opened()
    presets = form.builtin_presets()
    form.load_document(presets["CartPole with PPO, five seeds"])
    assert form.request().seeds == (1, 2, 3, 4, 5)
    assert all(
        form.presenter.problems(config, form.spec) == [] for documents in presets.values() for config in documents
    )
    write(form, "run_name", "kept")
    form.save_preset("mine")
    other = opened()
    menu = other.preset_button.menu()
    menu.aboutToShow.emit()
    (mine,) = [action for action in menu.actions() if action.text() == "mine"]
    mine.trigger()
    assert other.request() == form.request()
    form.close()
    other.close()


def test_a_proxy_of_the_dotenv_file_is_used_when_its_field_is_empty(
    qtbot, opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("WANDB_VPN_HTTP_PROXY=http://vpn:3128\n")
    monkeypatch.chdir(tmp_path)
    form = opened()
    form.wandb.form.set_values({"track_wandb": True})
    proxy = form.findChild(QLineEdit, "wandb_http_proxy")
    qtbot.waitUntil(lambda: "vpn:3128" in proxy.placeholderText(), timeout=10_000)
    assert "wandb_http_proxy" not in form.configs()[0]["metadata"]["worker"]["config"]["extras"]
    form.wandb.form.set_values({"wandb_use_vpn_proxy": True})
    extras = form.configs()[0]["metadata"]["worker"]["config"]["extras"]
    assert (extras["wandb_use_vpn_proxy"], extras["wandb_http_proxy"]) == (True, "http://vpn:3128")
    proxy.setText("http://mine:1")
    assert form.configs()[0]["metadata"]["worker"]["config"]["extras"]["wandb_http_proxy"] == "http://mine:1"
    form.wandb._address = "http://127.0.0.1:1"
    form.wandb.form.set_values({"wandb_use_vpn_proxy": False})
    form.findChild(QPushButton, "wandb_probe").click()
    answer = form.findChild(QLabel, "wandb_answer")
    qtbot.waitUntil(lambda: "Not reachable" in answer.text(), timeout=30_000)
    form.close()


def test_help_says_that_cleanrl_runs_skip_the_live_lane(opened) -> None:
    form = opened()
    assert "skip the live-telemetry lane" in form.findChild(QLabel, "telemetry_help").text()
    assert form.configs()[0]["metadata"]["worker"]["config"]["extras"] == {}
    form.close()


def test_requirement_sets_are_listed_and_the_needed_one_is_reported(qtbot, opened) -> None:
    form = opened()
    assert not form.sets_section.is_open
    form.core.set_values({"algo": "ppo_atari", "env_id": "BreakoutNoFrameskip-v4"})
    form.refresh()
    assert form.sets_section.is_open
    qtbot.waitUntil(lambda: bool(form.sets._sets), timeout=60_000)
    assert form.presenter.requirement_sets(form.algorithm.algorithm(), "BreakoutNoFrameskip-v4", form.request()) == (
        "atari",
    )
    assert form.sets._ticks["atari"].text() == "atari (needed)"
    form.close()


INSTALLER = """
import json, os, sys, time
state = os.path.join({folder!r}, "installed")
if "--list" in sys.argv:
    ready = os.path.exists(state)
    print(json.dumps([{{"name": "toys", "state": "ready" if ready else "not installed", "purpose": "play",
                       "bytes": 2048, "expected_mb": 3, "in_base": False, "detail": ""}}]))
else:
    for done in (1, 2):
        print(json.dumps({{"event": "progress", "set": "toys", "phase": "fetching", "message": f"package {{done}}",
                          "done": done, "total": 2}}), flush=True)
    if {fails}:
        print(json.dumps({{"event": "result", "ready": False, "sets": [{{"ready": False, "message": "no room"}}]}}))
        sys.exit(1)
    open(state, "w").close()
    print(json.dumps({{"event": "result", "ready": True, "sets": []}}))
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_set_is_installed_with_its_progress(
    qtbot, themed, background: Background, tmp_path: Path, fails: bool
) -> None:
    program = tmp_path / "installer.py"
    program.write_text(INSTALLER.format(folder=str(tmp_path), fails=fails))
    box = RequirementSetsBox(background)
    qtbot.addWidget(box)
    box.show()
    reported: list[str] = []
    set_message = box._set_status
    box._set_status = lambda message, **kind: (reported.append(message), set_message(message, **kind))  # type: ignore[method-assign]
    box.set_program((sys.executable, str(program)), Home(tmp_path / "home"))
    box.set_needed(["toys"])
    qtbot.waitUntil(lambda: box.missing == ("toys",), timeout=30_000)
    assert "cannot start without" in box.findChild(QLabel, "requirement_summary").text()
    button = box.findChild(QPushButton, "install_toys")
    with qtbot.waitSignal(box.installed, timeout=30_000):
        button.click()
        assert not button.isEnabled()
    assert "toys: package 2" in reported
    if fails:
        assert box.findChild(QLabel, "requirement_status").text() == "no room"
        qtbot.waitUntil(lambda: button.isVisible() and button.isEnabled(), timeout=30_000)
    else:
        qtbot.waitUntil(lambda: box.missing == (), timeout=30_000)
        assert not button.isVisible()


def test_an_environment_is_looked_at_in_a_process_of_its_own() -> None:
    look = inspect_environment(sys.executable, "CartPole-v1")
    assert (look.actions, look.observations, look.action_text) == ("discrete", "vector", "Discrete(2)")
    if look.pixels:
        assert len(look.pixels) == look.width * look.height * 3
    assert "NoSuch" in inspect_environment(sys.executable, "NoSuchThing-v0").problem
    assert "cannot be started" in inspect_environment("/nowhere/python", "CartPole-v1").problem


def test_a_worker_without_a_form_of_its_own_gets_one_from_its_description(
    qtbot, opened, entries, window_daemon: RunningDaemon
) -> None:
    form = opened(worker="random")
    assert type(form) is TrainForm
    form.core.set_values({"env_id": "none"})
    write(form, "total_timesteps", "50")
    write(form, "cpus", "0")
    form.dry_run_button.click()
    qtbot.waitUntil(form.dry_run_button.isEnabled, timeout=60_000)
    assert '"would_run": "random"' in form.notes.checks
    with qtbot.waitSignal(form.submitted, timeout=30_000) as submitted:
        form.submit()
    assert window_daemon.wait_for(submitted.args[0][0]).outcome == "completed"


def test_the_factory_goes_by_the_entry_alone(opened, entries, link, background, window_daemon, window) -> None:
    cleanrl = catalog.find(entries, "cleanrl")
    parts = {"link": link, "background": background, "home": window_daemon.home, "parent": window}
    missing = replace(cleanrl, spec=None)
    with pytest.raises(NoSuchForm, match="pip install"):
        open_form("train", missing, **parts)
    with pytest.raises(NoSuchForm, match="evaluate"):
        opened(kind="evaluate", worker="random")

    class Own(CleanRlTrainForm):
        pass

    register_forms("own", {"train": Own})
    form = open_form("train", replace(cleanrl, form="own"), **parts)
    assert type(form) is Own
    form.close()


def test_a_daemon_elsewhere_checks_the_config_and_lists_the_sets(qtbot, link, background, entries, window) -> None:
    form = open_form(
        "train", catalog.find(entries, "cleanrl"), link=link, background=background, home=None, parent=window
    )
    form.dry_run_button.click()
    qtbot.waitUntil(lambda: bool(form.notes.checks), timeout=60_000)
    form.sets.refresh()
    qtbot.waitUntil(lambda: bool(form.sets._sets), timeout=60_000)
    form.close()


def test_every_interactive_widget_of_the_form_has_a_name(opened) -> None:
    from PySide6.QtWidgets import QAbstractButton, QComboBox, QPlainTextEdit

    form = opened()
    for field in form.parameters.fields:
        form.parameters.row(field.name)
    unnamed = [
        (type(widget).__name__, widget.objectName())
        for kind in (QAbstractButton, QComboBox, QLineEdit, QPlainTextEdit)
        for widget in form.findChildren(kind)
        if not widget.objectName().startswith("qt_")
        and widget.parent() is not None
        and not isinstance(widget.parent(), QComboBox | QLineEdit)
        and "QTabBar" not in type(widget.parent()).__name__
        and "Scroll" not in type(widget.parent()).__name__
        and widget.objectName() != "banner_action"  # named when it has something to do
        and not (widget.accessibleName() and widget.objectName())
    ]
    assert unnamed == []
    form.close()


def test_the_key_of_wandb_is_in_the_secret_store_and_nowhere_under_the_home(
    qtbot, opened, window_daemon: RunningDaemon
) -> None:
    key = "s3cr3t" * 7
    form = opened()
    write(form, "total_timesteps", "2000")
    lend_sets(window_daemon.home, "wandb")
    form.wandb.form.set_values({"track_wandb": True, "wandb_api_key": key})
    with qtbot.waitSignal(form.submitted, timeout=30_000) as submitted:
        form.submit()
    run_id = submitted.args[0][0]
    window_daemon.client.cancel(run_id)  # this is about what is stored
    window_daemon.wait_for(run_id)
    found = [
        file
        for file in window_daemon.home.root.rglob("*")
        if file.is_file() and not file.is_socket() and key.encode() in file.read_bytes()
    ]
    assert found == []
    kept = (window_daemon.config_home / "secrets.json").read_text()
    assert key in kept
    assert os.stat(window_daemon.config_home / "secrets.json").st_mode & 0o077 == 0


def test_tab_goes_through_the_fields_first_and_enter_starts_nothing(
    qtbot, opened, window_daemon: RunningDaemon
) -> None:
    from PySide6.QtCore import Qt

    form = opened()
    qtbot.waitUntil(lambda: form.findChild(QLineEdit, "learning_rate") is not None, timeout=10_000)
    chain, widget = [], form.nextInFocusChain()
    while widget is not form:
        if widget.objectName():
            chain.append(widget.objectName())
        widget = widget.nextInFocusChain()
    request = [
        chain.index(name) for name in ("algo_choice", "env_choice", "seeds", "learning_rate", "presets", "submit")
    ]
    assert request == sorted(request)
    before = run_count(window_daemon)
    qtbot.keyClick(form.findChild(QLineEdit, "run_name"), Qt.Key.Key_Return)
    qtbot.wait(100)
    assert form.isVisible()
    assert run_count(window_daemon) == before
    form.close()


def test_an_external_problem_is_cleared_when_it_is_checked_again(opened) -> None:
    form = opened()
    form.show_problem("num_minibatches", "does not divide")
    form.parameters.row("num_minibatches").editor.widget.setText("2")
    form.show_problem("num_minibatches", "does not divide")
    assert form.configs()[0]["metadata"]["worker"]["config"]["extras"]["algo_params"] == {"num_minibatches": 2}
    assert form.check()
    form.close()


def test_a_rule_between_fields_is_refused_beside_its_field(qtbot, opened, window_daemon: RunningDaemon) -> None:
    form = opened()
    before = run_count(window_daemon)
    form.parameters.row("num_minibatches").editor.widget.setText("3")
    form.submit_button.click()
    qtbot.waitUntil(lambda: form.findChild(QLabel, "num_minibatches_problem") is not None, timeout=60_000)
    assert "does not divide the batch" in form.findChild(QLabel, "num_minibatches_problem").text()
    assert "num_minibatches" in form.banner.text
    assert run_count(window_daemon) == before
    form.close()


def test_a_missing_set_is_offered_in_the_form(qtbot, opened, window_daemon: RunningDaemon) -> None:
    form = opened()
    before = run_count(window_daemon)
    form.core.set_values({"env_id": "LunarLander-v3"})
    form.submit_button.click()
    qtbot.waitUntil(lambda: "mosaic extras install box2d (about 50 MB)" in form.banner.text, timeout=60_000)
    assert "metadata" not in form.banner.text
    assert run_count(window_daemon) == before
    offer = form.findChild(QPushButton, "banner_action")
    assert offer.text() == "Install and start"
    with qtbot.waitSignal(form.submitted, timeout=60_000) as submitted:
        offer.click()
    run = window_daemon.client.cancel(submitted.args[0][0])
    assert json.loads(run.extras_json)["install_missing"] is True
    window_daemon.wait_for(run.run_id)
