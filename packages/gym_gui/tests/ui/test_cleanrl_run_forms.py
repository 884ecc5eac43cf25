"""Forms about what was trained: go on from it, evaluate it; and scripts of one's own. A real run behind them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.checkpoint_table import CheckpointModel
from gym_gui.ui.forms.cleanrl_policy_form import CleanRlPolicyForm
from gym_gui.ui.forms.cleanrl_resume_form import CleanRlResumeForm
from gym_gui.ui.forms.cleanrl_script_form import CleanRlScriptForm
from gym_gui.ui.forms.dialog_factory import open_form
from gym_gui.ui.workers import catalog
from gym_gui.ui.workers.checkpoints import FoundCheckpoint, checkpoint_at, find_checkpoints
from gym_gui.ui.workers.scripts import find_scripts, script_at
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QLineEdit, QWidget

pytestmark = pytest.mark.timeout(900)  # seconds of work, and sometimes a machine with twenty other things to do
TIMEOUT_S = 400

SHELL_SCRIPT = """#!/bin/bash
# @description: two phases that greet
# @env_family: minigrid
# @phases: warm-up, main
# @total_timesteps: 600_000
echo "hello from $MOSAIC_RUN_ID"; python -c "
import json, os
print(json.load(open(os.environ['MOSAIC_CONFIG_FILE']))['extras']['algo_params'])"
"""
PYTHON_SCRIPT = '''
# @description: my own loop
from dataclasses import dataclass
import tyro

@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """where"""
    learning_rate: float = 1e-3
    """step size"""
    total_timesteps: int = 1000
    seed: int = 1

args = tyro.cli(Args)
'''


@pytest.fixture(scope="module")
def trained(window_daemon: RunningDaemon) -> pb.Run:
    """A run with a checkpoint."""
    config = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 3,
        "total_timesteps": 256,
        "extras": {"algo_params": {"num_steps": 32, "num_envs": 2, "learning_rate": 1e-3}},
    }
    document = {"run_name": "trained", "metadata": {"worker": {"type": "cleanrl", "config": config}}}
    return window_daemon.wait_for(window_daemon.client.submit(document).run.run_id, timeout_s=TIMEOUT_S)


@pytest.fixture(scope="module")
def scripts(window_daemon: RunningDaemon) -> Path:
    folder = window_daemon.home.custom_scripts
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "greet.sh").write_text(SHELL_SCRIPT)
    (folder / "mine.py").write_text(PYTHON_SCRIPT)
    return folder


@pytest.fixture
def window(qtbot, themed) -> QWidget:
    window = QWidget()
    qtbot.addWidget(window)
    return window


@pytest.fixture
def opened(link: DaemonLink, background: Background, window_daemon: RunningDaemon, window: QWidget):
    entries = catalog.entries_from(window_daemon.client.workers())
    home: Home | None = window_daemon.home

    def open_it(kind: str, run: pb.Run | None = None, *, home: Home | None = home):
        entry = catalog.find(entries, "cleanrl")
        return open_form(kind, entry, link=link, background=background, home=home, parent=window, run=run)

    return open_it


def write(form: QWidget, name: str, text: str) -> None:
    form.findChild(QLineEdit, name).setText(text)


# ---------------------------------------------------------------- resuming


@pytest.mark.slow  # one is evaluated from its form in every CI
def test_a_run_continues_from_its_checkpoint_with_another_learning_rate(
    qtbot, opened, trained: pb.Run, window_daemon: RunningDaemon
) -> None:
    form = opened("resume", trained)
    assert isinstance(form, CleanRlResumeForm)
    qtbot.waitUntil(lambda: form.table.current is not None and form._base is not None, timeout=60_000)
    found = form.table.current
    assert (found.run_id, found.step, found.kind, found.episodic_return is not None) == (
        trained.run_id,
        256,
        "last",
        True,
    )
    form.submit_button.click()
    assert "choose how many more" in form.findChild(QLabel, "more_problem").text()
    write(form, "more", "128")
    assert form.parameters.row("num_envs") is None
    assert form.parameters.row("learning_rate").value() == 1e-3  # as it was trained
    form.parameters.row("learning_rate").editor.widget.setText("5e-4")
    form.refresh()
    assert "From step 256 to step 384" in form.findChild(QLabel, "resume_plan").text()
    with qtbot.waitSignal(form.submitted, timeout=60_000) as submitted:
        form.submit()
    child = window_daemon.wait_for(submitted.args[0][0], timeout_s=TIMEOUT_S)
    assert (child.outcome, child.step, child.total) == ("completed", 384, 384)
    assert (child.parent.run_id, child.parent.step) == (trained.run_id, 256)
    parameters = json.loads(child.extras_json)["algo_params"]
    assert parameters == {"num_steps": 32, "num_envs": 2, "learning_rate": 5e-4}


def test_a_saved_resume_config_gives_the_same_form(qtbot, opened, trained: pb.Run, tmp_path: Path) -> None:
    form = opened("extend", trained)
    qtbot.waitUntil(lambda: form._base is not None, timeout=60_000)
    write(form, "more", "1000")
    write(form, "run_name", "longer")
    form.parameters.row("gamma").editor.widget.setText("0.9")
    form.save_file(tmp_path / "c.json")
    qtbot.waitUntil(lambda: "Saved" in form.banner.text, timeout=10_000)
    other = opened("resume")
    qtbot.waitUntil(lambda: other.table.current is not None, timeout=60_000)
    other.load_file(tmp_path / "c.json")
    qtbot.waitUntil(lambda: other.fields.values()["run_name"] == "longer" and other._base is not None, timeout=60_000)
    qtbot.waitUntil(lambda: other.table.current == form.table.current, timeout=60_000)
    qtbot.waitUntil(lambda: other._base is not None, timeout=60_000)
    assert other.configs() == form.configs()
    assert other.findChild(QLineEdit, "more").text() == "1000"
    other.load_document({"metadata": {"worker": {"config": {"algo": "ppo"}}}})
    assert "does not continue from a checkpoint" in other.banner.text
    form.close()
    other.close()


def test_without_its_files_a_run_is_continued_by_the_daemon_alone(
    qtbot, opened, trained: pb.Run, window_daemon: RunningDaemon
) -> None:
    form = opened("extend", trained, home=None)
    write(form, "more", "64")
    with qtbot.waitSignal(form.submitted, timeout=60_000) as submitted:
        form.submit()
    run = window_daemon.client.get(submitted.args[0][0])
    assert (run.parent.run_id, run.total) == (trained.run_id, 320)
    window_daemon.client.cancel(run.run_id)


# ---------------------------------------------------------------- evaluating


def test_a_policy_is_evaluated_and_the_form_shows_what_came_of_it(
    qtbot, opened, trained: pb.Run, window_daemon: RunningDaemon
) -> None:
    form = opened("evaluate", trained)
    assert isinstance(form, CleanRlPolicyForm)
    qtbot.waitUntil(lambda: form.table.current is not None, timeout=60_000)
    write(form, "episodes", "0")
    form.submit_button.click()
    assert "at least 1" in form.findChild(QLabel, "episodes_problem").text()
    write(form, "episodes", "4")
    write(form, "repeat", "2")
    write(form, "seed", "11")
    write(form, "gamma", "0.9")
    with qtbot.waitSignal(form.submitted, timeout=60_000) as submitted:
        form.submit_button.click()
    run = window_daemon.wait_for(submitted.args[0][0], timeout_s=TIMEOUT_S)
    assert run.outcome == "completed"
    assert json.loads(run.extras_json)["eval_gamma"] == 0.9
    qtbot.waitUntil(lambda: len(form.results.returns) == 8 and "completed" in form.results.state, timeout=60_000)
    assert form.isVisible()
    shown = [form.results.table.item(row, 1).text() for row in range(form.results.table.rowCount())]
    assert shown == ["8", "4", "4"]
    mean = json.loads(run.result_json)["evaluation"]["mean_return"]
    assert sum(form.results.returns) / 8 == pytest.approx(mean)
    assert form.findChild(QWidget, "evaluation_histogram") is not None
    form.close()

    again = opened("clone", run)
    assert isinstance(again, CleanRlPolicyForm)
    qtbot.waitUntil(lambda: again.fields.values()["repeat"] == 2 and again._awaited is None, timeout=60_000)
    qtbot.waitUntil(lambda: again.table.current is not None, timeout=60_000)
    shown = again.fields.values()
    assert (shown["episodes"], shown["gamma"], shown["seed"], shown["env_id"]) == (4, 0.9, 11, "")
    again.close()


def test_a_saved_evaluation_gives_the_same_form(qtbot, opened, trained: pb.Run, tmp_path: Path) -> None:
    form = opened("evaluate", trained)
    qtbot.waitUntil(lambda: form.table.current is not None, timeout=60_000)
    write(form, "episodes", "5")
    form.fields.set_values({"deterministic": False, "video": True, "max_steps": 100})
    form.save_file(tmp_path / "c.json")
    qtbot.waitUntil(lambda: "Saved" in form.banner.text, timeout=10_000)
    other = opened("evaluate")
    qtbot.waitUntil(lambda: other.table.current is not None, timeout=60_000)
    other.load_file(tmp_path / "c.json")
    qtbot.waitUntil(lambda: other.fields.values()["episodes"] == 5, timeout=60_000)
    qtbot.waitUntil(lambda: other.table.current == form.table.current, timeout=60_000)
    assert other.fields.values() == form.fields.values()
    assert other.configs() == form.configs()
    (config,) = form.configs()
    config["metadata"]["worker"]["config"]["extras"]["checkpoint_path"] = trained.run_id  # as `mosaic eval RUN` says it
    config["run_name"] = "named"
    other.load_document(config)
    qtbot.waitUntil(lambda: other._awaited is None and other.table.current == form.table.current, timeout=60_000)
    assert other.fields.values()["run_name"] == "named"
    form.close()
    other.close()


# ---------------------------------------------------------------- scripts


def test_a_script_is_shown_with_its_metadata_and_runs_with_its_arguments(
    qtbot, opened, scripts: Path, window_daemon: RunningDaemon
) -> None:
    form = opened("script")
    assert isinstance(form, CleanRlScriptForm)
    qtbot.waitUntil(lambda: form.current is not None, timeout=60_000)
    cells = [form.table.view.item(0, column).text() for column in range(4)]
    assert cells == ["greet.sh", "two phases that greet", "warm-up, main", "600,000"]
    assert form.current.sha256[:10] == form.table.view.item(0, 4).text()
    assert "warm-up → main" in form.findChild(QLabel, "script_about").text()
    write(form, "arguments", "[1]")
    form.submit_button.click()
    assert "expected a JSON object" in form.findChild(QLabel, "arguments_problem").text()
    write(form, "arguments", '{"size": 8}')
    with qtbot.waitSignal(form.submitted, timeout=60_000) as submitted:
        form.submit_button.click()
    run = window_daemon.wait_for(submitted.args[0][0], timeout_s=TIMEOUT_S)
    assert (run.outcome, run.name, run.total) == ("completed", "greet.sh", 600_000)
    said = (Path(run.run_dir) / "logs" / "stdout.log").read_text()
    assert f"hello from {run.run_id}" in said
    assert "{'size': 8}" in said
    again = opened("clone", run)
    assert isinstance(again, CleanRlScriptForm)
    qtbot.waitUntil(lambda: again.fields.values()["arguments"] == {"size": 8}, timeout=60_000)
    assert again.current.name == "greet.sh"
    again.close()


def test_a_python_script_trains_with_its_own_flags(qtbot, opened, scripts: Path, tmp_path: Path) -> None:
    form = opened("script")
    qtbot.waitUntil(lambda: form.current is not None, timeout=60_000)
    form.table.view.selectRow(1)
    qtbot.waitUntil(lambda: form.script_spec is not None, timeout=60_000)
    form.as_training.setChecked(True)
    form.parameters.row("learning_rate").editor.widget.setText("fast")
    form.submit_button.click()
    assert "expected float" in form.findChild(QLabel, "learning_rate_problem").text()
    form.parameters.row("learning_rate").editor.widget.setText("0.5")
    (config,) = form.configs()
    worker = config["metadata"]["worker"]["config"]
    assert (worker["algo"], worker["env_id"], worker["total_timesteps"]) == ("mine", "CartPole-v1", 1000)
    assert worker["extras"] == {"script_path": str(scripts / "mine.py"), "algo_params": {"learning_rate": 0.5}}
    assert form.problems() == {}
    form.save_file(tmp_path / "c.json")
    qtbot.waitUntil(lambda: "Saved" in form.banner.text, timeout=10_000)
    other = opened("script")
    qtbot.waitUntil(lambda: other.current is not None, timeout=60_000)
    other.load_file(tmp_path / "c.json")
    qtbot.waitUntil(lambda: other.script_spec is not None and other.parameters.changed_values() != {}, timeout=60_000)
    assert other.configs() == form.configs()
    form.close()
    other.close()


def test_a_script_from_elsewhere_says_what_to_do(qtbot, opened, scripts: Path, tmp_path: Path) -> None:
    stray = tmp_path / "stray.sh"
    stray.write_text("echo hi\n")
    form = opened("script")
    qtbot.waitUntil(lambda: form.current is not None, timeout=60_000)
    form.table.choose_path(stray)
    qtbot.waitUntil(lambda: form.current.path == stray, timeout=10_000)
    assert "settings.toml" in form.banner.text
    form.table.choose_path(tmp_path / "none.txt")
    qtbot.waitUntil(lambda: "not a file that ends in" in form.banner.text, timeout=10_000)
    form.close()


# ---------------------------------------------------------------- finding


def test_what_lies_below_the_runs_folder_is_found(
    trained: pb.Run, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    home = window_daemon.home
    broken = home.runs / "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    broken.mkdir(exist_ok=True)
    (broken / "analytics.json").write_text("{")
    (one,) = [found for found in find_checkpoints(home) if found.run_id == trained.run_id]
    assert (one.algo, one.env_id, one.seed, one.args["num_envs"]) == ("ppo", "CartPole-v1", 3, 2)
    assert checkpoint_at(one.path).step == 256
    assert checkpoint_at(one.path / "state.json").path == one.path
    assert checkpoint_at(Path(trained.run_dir)).path == one.path
    with pytest.raises(ValueError, match="neither a checkpoint folder"):
        checkpoint_at(tmp_path)
    assert find_checkpoints(Home(tmp_path / "nowhere")) == []
    broken.joinpath("analytics.json").unlink()
    broken.rmdir()


def test_scripts_are_found_in_the_configured_folders_only(
    scripts: Path, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    assert [script.name for script in find_scripts(window_daemon.home)] == ["greet.sh", "mine.py"]
    (tmp_path / "other.py").write_text("x = 1\n")
    assert not script_at(tmp_path / "other.py", window_daemon.home).is_allowed


def test_checkpoints_are_sorted_and_filtered_in_the_model(qapp) -> None:
    model = CheckpointModel()
    found = [
        FoundCheckpoint(
            Path(f"/c/{step}"),
            f"RUN{step}",
            "ppo" if step % 2 else "dqn",
            "CartPole-v1",
            step=step,
            when=step,
            episodic_return=None if step == 3 else float(-step),
        )
        for step in range(1, 6)
    ]
    model.set_checkpoints(found)
    assert [model.checkpoint(row).step for row in range(5)] == [5, 4, 3, 2, 1]
    model.sort(5, Qt.SortOrder.DescendingOrder)
    assert [model.checkpoint(row).step for row in range(5)] == [1, 2, 4, 5, 3]
    model.set_filter("dqn 4")
    assert [model.checkpoint(row).step for row in range(model.rowCount())] == [4]
    assert model.checkpoint(7) is None
    assert model.row_of(Path("/c/4")) == 0
