"""Sweeps from the window, end to end: the form starts a real one, its tab shows it grow, its best trial is trained."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from click.testing import CliRunner
from gym_gui.cli.app import mosaic
from gym_gui.services.analytics.studies.readers import open_study
from gym_gui.services.analytics.studies.study import TrialState
from gym_gui.services.sweeps import config_of_trial, trial_of
from gym_gui.testing import RunningDaemon, blocking_calls
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.cleanrl_resume_form import CleanRlResumeForm
from gym_gui.ui.forms.cleanrl_train_form import CleanRlTrainForm
from gym_gui.ui.forms.run_form import RunForm
from gym_gui.ui.forms.run_forms import RunForms
from gym_gui.ui.forms.sweep_form import SweepForm
from gym_gui.ui.presenters.workers.registry import PresenterRegistry
from gym_gui.ui.presenters.workers.sweep import (
    CHOICE,
    LOG,
    RangeText,
    SweepPresenter,
    SweepRequest,
    suggested,
    sweep_request_of,
    text_of,
    trial_worker_of,
)
from gym_gui.ui.presenters.workers.train_request import NotAConfig, TrainRequest
from gym_gui.ui.run_page.page import RunPage
from gym_gui.ui.runs.actions import RunActions
from gym_gui.ui.shell.main_window import MainWindow
from gym_gui.ui.studies.panel import OptunaTab, StudyWindow, study_of
from gym_gui.ui.theme import Appearance
from gym_gui.ui.workers import catalog
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import FieldSpec, WorkerSpec
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog, QLabel, QLineEdit, QMainWindow, QTabWidget

pytestmark = pytest.mark.timeout(900)  # seconds of work, and sometimes a machine with twenty other things to do
WAIT, TIMEOUT_S = 60_000, 400


@pytest.fixture(scope="module")
def cleanrl(window_daemon: RunningDaemon) -> WorkerSpec:
    entry = catalog.find(catalog.entries_from(window_daemon.client.workers()), "cleanrl")
    assert entry is not None
    assert entry.spec is not None
    return entry.spec


@pytest.fixture
def window(qtbot, themed) -> QMainWindow:
    window = QMainWindow()
    qtbot.addWidget(window)
    window.resize(1280, 800)
    window.show()
    return window


@pytest.fixture
def forms(link: DaemonLink, background: Background, window_daemon: RunningDaemon, window: QMainWindow) -> RunForms:
    return RunForms(link, background, window_daemon.home, window)


def a_form(qtbot, window: QMainWindow, kind: type[RunForm]) -> Any:
    """The form of this kind that was opened last, filled and shown."""

    def visible() -> list[RunForm]:
        return [form for form in window.findChildren(kind) if form.isVisible() and type(form) is kind]

    qtbot.waitUntil(lambda: bool(visible()), timeout=WAIT)
    return visible()[-1]


# ---------------------------------------------------------------- without a widget


SEARCH = {
    "learning_rate": {"kind": "float", "low": 1e-5, "high": 1e-2, "log": True},
    "num_steps": {"kind": "int", "low": 32, "high": 128, "step": 32},
    "anneal_lr": {"kind": "categorical", "choices": [True, False]},
}
REQUEST = SweepRequest(
    worker_type="cleanrl",
    algo="ppo",
    env_id="CartPole-v1",
    seeds=(1, 2),
    total_timesteps=20_000,
    parameters={"num_envs": 2, "learning_rate": 0.5},
    run_name="search",
    tags=("a",),
    notes="why",
    ranges=SEARCH,
    trials=12,
    settings={"sampler": "random", "parallel": 2, "timeout_minutes": 90.0},
)


@pytest.fixture
def presenter() -> SweepPresenter:
    return SweepPresenter(PresenterRegistry().get("cleanrl"))


def test_an_order_becomes_a_sweeps_config_and_back(presenter: SweepPresenter, cleanrl: WorkerSpec) -> None:
    (config,) = presenter.configs(REQUEST, cleanrl)
    assert presenter.problems(config, cleanrl) == []
    worker = config["metadata"]["worker"]["config"]
    assert (worker["algo"], worker["total_timesteps"], config["resources"]["cpus"]["requested"]) == ("sweep", 12, 0)
    trial = worker["extras"]["algo_params"]["trial"]["metadata"]["worker"]["config"]
    # What is searched is not fixed as well; seed and name are the sweep's to put in.
    assert trial["extras"]["algo_params"] == {"num_envs": 2}
    assert "seed" not in trial
    assert "run_id" not in trial
    again = sweep_request_of(json.loads(json.dumps(config)))
    assert presenter.configs(again, cleanrl) == [config]
    assert trial_worker_of(worker["extras"]) == "cleanrl"
    with pytest.raises(NotAConfig, match="not a config of a sweep"):
        sweep_request_of({"metadata": {"worker": {"type": "cleanrl", "config": {"algo": "ppo"}}}})


def test_the_command_line_makes_the_same_sweep(
    presenter: SweepPresenter, cleanrl: WorkerSpec, window_daemon: RunningDaemon
) -> None:
    command = presenter.command(REQUEST, cleanrl)
    message = shlex.split(command.text.replace("\\\n", " "))
    assert message[:2] == ["mosaic", "sweep"]
    assert command.only_in_json == ("notes",)
    answer = CliRunner().invoke(mosaic, ["--home", str(window_daemon.home.root), *message[1:], "--print"])
    assert answer.exit_code == 0, answer.output
    printed = sweep_request_of(json.loads(answer.stdout))
    (ours,), (theirs,) = presenter.configs(REQUEST, cleanrl), presenter.configs(printed, cleanrl)
    for config in (ours, theirs):
        config["metadata"]["worker"]["config"]["extras"].pop("notes", None)
    assert theirs == ours


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (RangeText(LOG, "1e-5", "1e-2"), ""),
        (RangeText(LOG, "0", "1"), "low must be above 0"),
        (RangeText(LOG, "1e-2", "1e-5"), "low must be below high"),
        (RangeText(LOG, "", "1"), "a number is missing: from"),
        (RangeText(LOG, "x", "1"), "'x' is not a number"),
        (RangeText("float", "-1", "1"), "at least 0"),
        (RangeText(CHOICE, choices="0.1, tiny"), "expected float"),
        (RangeText(CHOICE), "which choices"),
    ],
)
def test_a_range_says_what_is_wrong_with_it(text: RangeText, wrong: str, cleanrl: WorkerSpec) -> None:
    reported = text.problem("learning_rate", cleanrl.algorithm("ppo"))
    assert (wrong in reported) if wrong else reported == ""


def test_ranges_are_suggested_around_the_default() -> None:
    assert suggested(FieldSpec("lr", "float", 2.5e-4)) == RangeText(LOG, "2.5e-05", "0.0025")
    assert suggested(FieldSpec("gamma", "float", 0.99, maximum=1.0)) == RangeText("float", "0.96", "0.9975")
    assert suggested(FieldSpec("anneal", "bool", True)) == RangeText(CHOICE, choices="true, false")
    assert suggested(FieldSpec("envs", "int", 4, minimum=2)) == RangeText("int", "2", "16")
    for name, entry in SEARCH.items():
        assert text_of(entry).document(name) == entry


# ---------------------------------------------------------------- the form


def test_the_form_says_what_is_wrong_beside_each_range(qtbot, forms: RunForms, window: QMainWindow) -> None:
    forms.new_run("sweep")  # as the list of workers does; the first form of a session makes Qt load and lay out much
    a_form(qtbot, window, SweepForm).close()
    with blocking_calls() as calls:
        forms.open("sweep")
        form = a_form(qtbot, window, SweepForm)
        qtbot.wait(300)
    assert not calls
    qtbot.waitUntil(lambda: bool(form.space.rows), timeout=WAIT)
    first = form.space.rows[0]
    assert first.parameter == "learning_rate"
    assert first.text == RangeText(LOG, "2.5e-05", "0.0025")
    second = form.space.add_row()
    second.set_range("gama", RangeText("float", "0.9", "1"))
    first.high.setText("1e-9")
    form.submit()
    assert "low must be below high" in first.problem.text()
    assert "Did you mean gamma?" in second.problem.text()
    assert "learning_rate" in form.banner.text
    first.high.setText("1e-3")
    assert first.problem.text() == ""
    second.set_range("learning_rate", RangeText(LOG, "1e-5", "1e-4"))
    assert not form.check()
    assert "searched twice" in second.problem.text()
    second.remove.click()
    assert form.check()
    form.findChild(QTabWidget, "side_tabs").setCurrentIndex(2)
    assert "--param learning_rate=log:2.5e-05:0.001" in form.side.command_preview.text
    form.side.setCurrentIndex(1)
    assert '"type": "sweep"' in form.side.json_preview.text
    form.search.row("storage").editor.widget.setText("sqlite")
    assert form.request().settings["storage"] == "sqlite"
    form.search.row("reports").editor.widget.setText("0")
    assert not form.check()
    assert "at least 1" in form.findChild(QLabel, "reports_problem").text()
    form.close()


def test_a_training_form_continues_as_a_sweep(qtbot, forms: RunForms, window: QMainWindow) -> None:
    forms.new_run("cleanrl")
    train = a_form(qtbot, window, CleanRlTrainForm)
    request = TrainRequest(
        worker_type="cleanrl",
        algo="dqn",
        env_id="Acrobot-v1",
        seeds=(4, 5),
        total_timesteps=7_000,
        parameters={"gamma": 0.9},
        requirements=("video",),
    )
    train.set_request(request)
    assert train.sweep_button.isVisible()
    train.sweep_button.click()
    sweep = a_form(qtbot, window, SweepForm)
    qtbot.waitUntil(lambda: sweep.request().algo == "dqn", timeout=WAIT)
    qtbot.waitUntil(lambda: bool(sweep.space.rows), timeout=WAIT)
    said = sweep.request()
    assert (said.env_id, said.seeds, said.total_timesteps, said.parameters, said.requirements) == (
        "Acrobot-v1",
        (4, 5),
        7_000,
        {"gamma": 0.9},
        ("video",),
    )
    assert said.ranges["learning_rate"]["kind"] == "float"
    train.close()
    sweep.close()


def test_without_the_sweep_worker_the_cure_is_reported(qtbot, forms: RunForms, window_daemon: RunningDaemon) -> None:
    forms.load()
    qtbot.waitUntil(lambda: bool(forms.entries), timeout=WAIT)
    forms.entries = tuple(entry for entry in forms.entries if entry.name != "sweep")
    with qtbot.waitSignal(forms.problem) as reported:
        forms.open("sweep")
    assert "requirements/sweep_worker.txt" in reported.args[0]


# ---------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def swept(window_daemon: RunningDaemon, cleanrl: WorkerSpec) -> pb.Run:
    """A real sweep of real trainings: two trials of `ppo` on CartPole, as the form would submit it."""
    request = SweepRequest(
        worker_type="cleanrl",
        algo="ppo",
        env_id="CartPole-v1",
        total_timesteps=256,
        seeds=(3,),
        parameters={"num_envs": 2, "num_steps": 32},
        trials=2,
        run_name="real sweep",
        ranges={"learning_rate": {"kind": "float", "low": 1e-4, "high": 1e-2, "log": True}},
        settings={"parallel": 2},
    )
    (config,) = SweepPresenter(PresenterRegistry().get("cleanrl")).configs(request, cleanrl)
    run = window_daemon.wait_for(window_daemon.client.submit(config).run.run_id, timeout_s=TIMEOUT_S)
    assert run.outcome == "completed", run.reason
    return run


@pytest.fixture
def page(window: QMainWindow, link: DaemonLink, background: Background, forms: RunForms) -> Iterator[RunPage]:
    page = RunPage(link, background, RunActions(link, background, window), PresenterRegistry())
    page.form_requested.connect(forms.open)
    page.config_requested.connect(forms.open_config)
    window.setCentralWidget(page)
    yield page
    page.hide()


def open_optuna_tab(qtbot, page: RunPage, run: pb.Run) -> OptunaTab:
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: "optuna" in page.tab_names(), timeout=WAIT)
    page.open_tab("optuna")
    tab = page.tab("optuna")
    assert isinstance(tab, OptunaTab)
    return tab


@pytest.mark.slow  # a study is trained from in every CI
def test_the_best_trial_of_a_real_sweep_is_trained_from_the_window(
    qtbot, page: RunPage, swept: pb.Run, window: QMainWindow, forms: RunForms, window_daemon: RunningDaemon
) -> None:
    tab = open_optuna_tab(qtbot, page, swept)
    assert "live" not in page.tab_names()
    qtbot.waitUntil(lambda: tab.panel.view.study is not None, timeout=WAIT)
    study = tab.panel.view.study
    assert study.count(TrialState.COMPLETE) == 2
    best = study.best
    assert all(window_daemon.client.get(run_id).outcome == "completed" for run_id in best.run_ids)
    # The same as `mosaic train --from-trial`, with a seed and a name.
    tab.panel.view.details.train.click()
    form = a_form(qtbot, window, CleanRlTrainForm)
    qtbot.waitUntil(lambda: form.request().total_timesteps == 256, timeout=WAIT)
    (config,) = form.configs()
    expected = config_of_trial(swept, trial_of(swept))
    ours, theirs = (document["metadata"]["worker"]["config"] for document in (config, expected))
    for key in ("algo", "env_id", "total_timesteps"):
        assert ours[key] == theirs[key]
    assert ours["extras"]["algo_params"] == theirs["extras"]["algo_params"]
    assert ours["extras"]["algo_params"]["learning_rate"] == best.params["learning_rate"]
    assert config["tags"] == expected["tags"]
    with qtbot.waitSignal(forms.submitted, timeout=WAIT) as submitted:
        form.submit()
    trained = window_daemon.wait_for(submitted.args[0][0], timeout_s=TIMEOUT_S)
    assert trained.outcome == "completed", trained.reason
    assert trained.name == f"trial-{best.number}-of-{swept.run_id[-8:]}"
    # A click on a trial leads to its run.
    tab.panel.view.table.trial_opened.emit(best)
    qtbot.waitUntil(lambda: page.run.run_id == best.run_ids[0], timeout=WAIT)


def test_a_sweep_is_started_again_from_its_tab(qtbot, page: RunPage, swept: pb.Run, window: QMainWindow) -> None:
    tab = open_optuna_tab(qtbot, page, swept)
    qtbot.waitUntil(tab.panel.again.isVisible, timeout=WAIT)
    tab.panel.again.click()
    form = a_form(qtbot, window, SweepForm)
    qtbot.waitUntil(lambda: form.request().trials == 2, timeout=WAIT)
    said = form.request()
    assert (said.algo, said.env_id, said.seeds, said.total_timesteps) == ("ppo", "CartPole-v1", (3,), 256)
    assert said.parameters == {"num_envs": 2, "num_steps": 32}
    assert list(said.ranges) == ["learning_rate"]
    assert said.settings["parallel"] == 2
    form.close()


def test_a_sweep_that_runs_is_seen_growing(
    qtbot,
    page: RunPage,
    forms: RunForms,
    window: QMainWindow,
    window_daemon: RunningDaemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Started by the form; rehearsed, so that nothing trains and every trial takes a moment."""
    monkeypatch.setattr("gym_gui.ui.studies.panel.POLL_MS", 100)
    forms.open("sweep")
    form = a_form(qtbot, window, SweepForm)
    form.load_document(rehearsal(trials=12, seconds=0.3))
    with qtbot.waitSignal(forms.submitted, timeout=WAIT) as submitted:
        form.submit()
    run = window_daemon.client.get(submitted.args[0][0])
    tab = open_optuna_tab(qtbot, page, run)
    seen: set[int] = set()

    def grown() -> bool:
        study = tab.panel.view.study
        seen.add(0 if study is None else study.count(TrialState.COMPLETE))
        return study is not None and study.count(TrialState.COMPLETE) == 12

    qtbot.waitUntil(grown, timeout=2 * WAIT)
    assert len(seen) > 2, "it was shown only at its end"
    run = window_daemon.wait_for(run.run_id)
    assert len(open_study(study_of(run, None)[0])) == 12
    # And two trials more, from where it ended.
    forms.open("extend", run)
    longer = a_form(qtbot, window, CleanRlResumeForm)
    qtbot.waitUntil(lambda: longer._base is not None, timeout=WAIT)
    longer.findChild(QLineEdit, "more").setText("2")
    with qtbot.waitSignal(forms.submitted, timeout=WAIT) as submitted:
        longer.submit()
    child = window_daemon.wait_for(submitted.args[0][0])
    assert (child.outcome, child.parent.run_id) == ("completed", run.run_id), child.reason
    assert len(open_study(study_of(child, None)[0])) == 14


def rehearsal(*, trials: int, seconds: float) -> dict[str, Any]:
    (config,) = SweepPresenter(PresenterRegistry().get("cleanrl")).configs(
        SweepRequest(
            worker_type="cleanrl",
            algo="ppo",
            env_id="CartPole-v1",
            total_timesteps=100,
            trials=trials,
            ranges={"learning_rate": SEARCH["learning_rate"]},
            settings={"rehearse_s": seconds},
        ),
        None,
    )
    return config


def test_a_study_in_a_database_server_is_reported_about(qtbot, link: DaemonLink, themed, tmp_path: Path) -> None:
    tab = OptunaTab(link)
    qtbot.addWidget(tab)
    parameters = {"storage": "postgresql://host/optuna", "study_name": "big", "trial": {}}
    run = pb.Run(
        run_id="01HZZZZZZZZZZZZZZZZZZZZZZZ",
        worker_type="sweep",
        status="EXEC",
        run_dir=str(tmp_path / "run"),
        extras_json=json.dumps({"algo_params": parameters}),
    )
    tab.show_run(run)
    tab.set_active(True)
    assert "optuna-dashboard postgresql://host/optuna" in tab.panel.banner.text
    gone = pb.Run(run_id="01HZZZZZZZZZZZZZZZZZZZZZZY", worker_type="sweep", status="TERM", run_dir=run.run_dir)
    tab.show_run(gone)
    qtbot.waitUntil(lambda: "ended before it wrote a study" in tab.panel.banner.text, timeout=WAIT)
    tab.set_active(False)


def test_a_study_of_cleanrls_tuner_is_opened_from_the_menu_and_trained(
    qtbot, themed, link: DaemonLink, background: Background, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = tmp_path / "cleanrl_hpopt.db"
    study = optuna.create_study(study_name="tuner_1700000000", storage=f"sqlite:///{file}", direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("num-minibatches", [1, 2, 4])
        return trial.suggest_float("learning-rate", 3e-4, 3e-3, log=True)

    study.optimize(objective, n_trials=3)
    window = MainWindow(link, background, window_daemon.home, Appearance(themed))
    qtbot.addWidget(window)
    window.show()
    window.findChild(QAction, "open_study").trigger()
    dialog = window.findChild(QFileDialog, "open_study_dialog")
    assert dialog.isVisible()
    dialog.fileSelected.emit(str(file))
    dialog.close()
    shown = window.findChild(StudyWindow)
    qtbot.waitUntil(lambda: shown.panel.view.study is not None, timeout=WAIT)
    assert shown.panel.name.text() == "tuner_1700000000"
    shown.panel.view.details.train.click()
    form = a_form(qtbot, window, CleanRlTrainForm)
    qtbot.waitUntil(lambda: "does not name the algorithm" in form.banner.text, timeout=WAIT)
    best = study.best_params
    assert form.request().parameters == {
        "learning_rate": best["learning-rate"],
        **({"num_minibatches": best["num-minibatches"]} if best["num-minibatches"] != 4 else {}),  # 4 is the default
    }
    form.close()
    shown.close()
    window.close()
