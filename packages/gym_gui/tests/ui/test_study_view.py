"""A study in the window: rows, filters, plots, what a click does; studies made by the real Optuna, and large ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import optuna
import pytest
from gym_gui.services.analytics.studies.readers import open_study
from gym_gui.services.analytics.studies.study import TrialState
from gym_gui.testing import blocking_calls
from gym_gui.ui.background import Background
from gym_gui.ui.studies.panel import StudyPanel, StudyWindow
from gym_gui.ui.studies.rows import StudyRows, TrialFilter, number_text, parallel_of, parameter_text
from gym_gui.ui.studies.view import HISTORY, IMPORTANCES, PARALLEL, SLICE
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractButton, QComboBox, QLineEdit, QMenu, QPushButton, QTableView, QWidget

optuna.logging.set_verbosity(optuna.logging.ERROR)
WAIT = 30_000


def make_study(path: Path, *, trials: int = 20, name: str = "tuned") -> optuna.Study:
    """Trials in every state; every seventh is pruned, every ninth fails, the last one runs."""
    storage = JournalStorage(JournalFileBackend(str(path)))
    sampler = optuna.samplers.RandomSampler(seed=3)
    study = optuna.create_study(study_name=name, storage=storage, direction="maximize", sampler=sampler)
    for number in range(trials):
        trial = study.ask()
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
        steps = trial.suggest_int("num_steps", 32, 256, step=32)
        trial.suggest_categorical("activation", ["tanh", "relu"])
        trial.set_user_attr("mosaic_runs", [f"01HRUN{number:02d}A", f"01HRUN{number:02d}B"])
        trial.report(float(number), 1)
        if number == trials - 1:
            break
        if number % 7 == 6:
            trial.set_user_attr("mosaic_reason", "pruned at step 1")
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif number % 9 == 8:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, 500 - 100 * abs(math.log10(rate) + 3) + steps / 100)
    return study


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "study.journal"
    make_study(path)
    return path


@pytest.fixture
def panel(qtbot, themed, background: Background) -> StudyPanel:
    panel = StudyPanel(background)
    qtbot.addWidget(panel)
    panel.resize(1200, 600)
    panel.show()
    return panel


def opened(qtbot, panel: StudyPanel, path: Path) -> StudyPanel:
    panel.open(path)
    qtbot.waitUntil(lambda: panel.view.study is not None, timeout=WAIT)
    return panel


def titles_of(table: QTableView) -> list[str]:
    model = table.model()
    role = Qt.ItemDataRole.ToolTipRole  # the title itself, without the mark of the order
    return [model.headerData(place, Qt.Orientation.Horizontal, role) for place in range(model.columnCount())]


def column_texts(table: QTableView, title: str) -> list[str]:
    model = table.model()
    place = titles_of(table).index(title)
    return [model.index(row, place).data() for row in range(model.rowCount())]


# ---------------------------------------------------------------- rows


def test_the_best_trials_come_first_and_pruned_ones_after_all_completed(journal: Path) -> None:
    rows = StudyRows(open_study(journal))
    shown = rows.arranged(TrialFilter(), *rows.best_first()[:1], descending=rows.best_first()[1])
    states = [rows.study.trials[row].state for row in shown]
    values = [rows.study.values[row, 0] for row in shown if rows.study.trials[row].state is TrialState.COMPLETE]
    assert values == sorted(values, reverse=True)
    assert states == sorted(
        states,
        key=[TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.FAIL, TrialState.WAITING].index,
    )
    assert rows.text(int(shown[0]), "number") == f"★ {rows.study.best.number}"


def test_columns_sort_by_what_they_mean(journal: Path) -> None:
    rows = StudyRows(open_study(journal))
    by_rate = rows.arranged(TrialFilter(), "param:learning_rate", descending=False)
    rates = [rows.study.trials[row].params["learning_rate"] for row in by_rate]
    assert rates == sorted(rates)
    by_activation = rows.arranged(TrialFilter(), "param:activation", descending=False)
    acts = [rows.study.trials[row].params["activation"] for row in by_activation]
    assert acts == sorted(acts)
    backwards = rows.arranged(TrialFilter(), "duration", descending=True)
    assert rows.study.trials[backwards[-1]].state is TrialState.RUNNING  # it has no duration


@pytest.mark.parametrize(
    ("expected", "fits"),
    [
        (TrialFilter(states=frozenset({TrialState.PRUNED})), lambda trial: trial.state is TrialState.PRUNED),
        (
            TrialFilter(text="relu complete"),
            lambda trial: trial.params["activation"] == "relu" and trial.state is TrialState.COMPLETE,
        ),
        (TrialFilter(text="activation=tanh"), lambda trial: trial.params["activation"] == "tanh"),
        (
            TrialFilter(ranges={"param:learning_rate": (1e-4, 1e-2)}),
            lambda trial: 1e-4 <= trial.params["learning_rate"] <= 1e-2,
        ),
        (TrialFilter(ranges={"value:0": (350.0, None)}), lambda trial: bool(trial.values) and trial.values[0] >= 350),
        (TrialFilter(text="01hrun03b"), lambda trial: trial.number == 3),
        (TrialFilter(ranges={"param:of another study": (0, 1)}), lambda trial: True),
    ],
)
def test_filters(journal: Path, expected: TrialFilter, fits) -> None:
    rows = StudyRows(open_study(journal))
    found = [rows.study.trials[row].number for row in np.flatnonzero(rows.fitting(expected))]
    assert found == [trial.number for trial in rows.study.trials if fits(trial)]
    assert found


def test_numbers_are_written_as_people_read_them() -> None:
    assert [number_text(value) for value in (0.00025, 437.9123, 12.0, 1e-12, 3e7, math.inf, math.nan)] == [
        "0.00025",
        "437.9",
        "12",
        "1e-12",
        "30000000",
        "∞",
        "",
    ]
    assert [parameter_text(value) for value in (True, None, "tanh", 3, 0.5)] == ["true", "none", "tanh", "3", "0.5"]


def test_parallel_coordinates_stand_between_the_ends_of_each_range(journal: Path) -> None:
    study = open_study(journal)
    shown = parallel_of(study, 0, "Objective", {"num_steps": 0.9, "learning_rate": 0.1})
    assert [axis.title for axis in shown.axes] == ["Objective", "num_steps", "learning_rate", "activation"]
    assert [mark.text for mark in shown.axes[2].marks] == ["1e-05", "0.1"]
    row = study.best_rows[0]
    _, ys = shown.line(row)
    assert ys[0] == 1.0  # the best stands at the top
    assert ys[2] == pytest.approx((math.log10(study.trials[row].params["learning_rate"]) + 5) / 4)
    assert shown.shades[-1][-1] == row
    assert sum(map(len, shown.shades)) == study.count(TrialState.COMPLETE)


# ---------------------------------------------------------------- the panel


def test_a_study_is_shown_with_its_best_configuration(qtbot, panel: StudyPanel, journal: Path) -> None:
    opened(qtbot, panel, journal)
    study = panel.view.study
    assert panel.name.text() == "tuned"
    assert panel.summary.text() == "20 trials: 15 complete, 2 pruned, 2 failed, 1 running"
    assert f"trial {study.best.number}" in panel.findChild(QWidget, "trial_caption").text()
    shown = dict(panel.view.details.parameters.pairs())
    assert shown["num_steps"].startswith(str(study.best.params["num_steps"]))
    assert "32 … 256, step 32" in shown["num_steps"]
    assert column_texts(panel.view.table, "Trial")[0] == f"★ {study.best.number}"
    assert column_texts(panel.view.table, "State")[-1] == "✗ failed"
    assert panel.view.filters.shown.text() == "20 of 20"


def test_a_click_on_a_trial_opens_its_runs(qtbot, panel: StudyPanel, journal: Path) -> None:
    opened(qtbot, panel, journal)
    table = panel.view.table
    position = table.trials.position_of(5)
    table.selectRow(position)
    assert "Selected: trial 5" in panel.findChild(QWidget, "trial_caption").text()
    place = table.visualRect(table.trials.index(position, 1)).center()
    with qtbot.waitSignal(panel.run_requested) as asked:
        qtbot.mouseClick(table.viewport(), Qt.MouseButton.LeftButton, pos=place)
        qtbot.mouseDClick(table.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert asked.args == ["01HRUN05A"]
    with qtbot.waitSignal(panel.run_requested) as asked:
        panel.findChild(QPushButton, "open_run_01HRUN05B").click()
    assert asked.args == ["01HRUN05B"]
    table.customContextMenuRequested.emit(place)
    menu = panel.view.findChild(QMenu, "trial_menu")
    assert [action.text() for action in menu.actions() if action.text()] == [
        "Open run 1HRUN05A",
        "Open run 1HRUN05B",
        "&Train this configuration…",
        "Cop&y parameters",
    ]
    menu.close()


def test_parameters_are_copied_and_a_configuration_is_trained(qtbot, panel: StudyPanel, journal: Path) -> None:
    opened(qtbot, panel, journal)
    panel.view.table.select(2)
    panel.view.details.copy.click()
    assert json.loads(QGuiApplication.clipboard().text()) == panel.view.study.trials[2].params
    with qtbot.waitSignal(panel.train_requested) as asked:
        panel.view.details.train.click()
    assert asked.args[0].number == 2


def test_filters_are_typed_and_clicked(qtbot, panel: StudyPanel, journal: Path) -> None:
    opened(qtbot, panel, journal)
    filters, table = panel.view.filters, panel.view.table
    filters.findChild(QLineEdit, "study_filter_text").setText("tanh")
    study = panel.view.study
    tanh = [trial for trial in study.trials if trial.params["activation"] == "tanh"]
    qtbot.waitUntil(lambda: table.trials.rowCount() == len(tanh), timeout=WAIT)
    filters.low.setText("400")
    filters.high.setText("nonsense")
    good = [trial for trial in tanh if trial.values and trial.values[0] >= 400]
    qtbot.waitUntil(lambda: table.trials.rowCount() == len(good), timeout=WAIT)
    assert filters.problem.text() == "not a number: nonsense"
    filters.clear()
    assert table.trials.rowCount() == 20
    filters._actions[TrialState.PRUNED].trigger()
    assert {text.strip() for text in column_texts(table, "State")} == {"✂ pruned"}
    assert filters.states.text() == "pruned"
    assert "pruned at step 1" in table.model().index(0, 1).data(Qt.ItemDataRole.ToolTipRole)


def test_a_header_sorts_and_the_chosen_trial_stays_chosen(qtbot, panel: StudyPanel, journal: Path) -> None:
    opened(qtbot, panel, journal)
    table = panel.view.table
    table.select(4)
    titles = titles_of(table)
    assert table.model().headerData(2, Qt.Orientation.Horizontal) == "Objective ▼"
    table.horizontalHeader().sectionClicked.emit(titles.index("learning_rate"))
    rates = [float(text) for text in column_texts(table, "learning_rate")]
    assert rates == sorted(rates)
    assert table.selected.number == 4
    assert table.trials.trial_at(table.currentIndex().row()).number == 4
    table.horizontalHeader().sectionClicked.emit(titles.index("learning_rate"))
    assert [float(text) for text in column_texts(table, "learning_rate")] == rates[::-1]


def test_plots_follow_the_study_and_a_click_chooses(qtbot, panel: StudyPanel, journal: Path) -> None:
    opened(qtbot, panel, journal)
    view, study = panel.view, panel.view.study
    view.side.setCurrentIndex(HISTORY)
    complete = view.history._complete
    qtbot.waitUntil(lambda: len(complete.points()) == 15, timeout=WAIT)
    assert view.history._best.yData[-1] == study.best.values[0]
    complete.sigClicked.emit(complete, [complete.points()[3]], None)
    assert view.table.selected.number == complete.points()[3].data()
    assert view.history._ring.points()[0].pos() == QPointF(complete.points()[3].pos())
    view.side.setCurrentIndex(IMPORTANCES)
    assert next(iter(view.bars.shares)) == "learning_rate"
    assert sum(view.bars.shares.values()) == pytest.approx(1.0)
    assert "PED-ANOVA" in view.importance_caption.text()
    view.side.setCurrentIndex(PARALLEL)
    qtbot.waitUntil(lambda: len(view.parallel._lines) == 5, timeout=WAIT)
    assert len(view.parallel._chosen.xData) == 4
    view.side.setCurrentIndex(SLICE)
    qtbot.waitUntil(lambda: SLICE not in view._outdated, timeout=WAIT)
    assert view.parameter.currentText() == "learning_rate"  # the most important one
    points = view.slice._complete.getData()[0]
    assert points.min() >= -5  # a logarithmic axis
    assert points.max() <= -1
    view.parameter.setCurrentText("activation")
    assert set(view.slice._complete.getData()[0]) <= {0.0, 1.0}


def test_a_growing_study_is_followed_and_keeps_what_one_does(
    qtbot, panel: StudyPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_gui.ui.studies.panel.POLL_MS", 50)
    study = make_study(tmp_path / "live.journal", trials=26)
    opened(qtbot, panel, tmp_path / "live.journal")
    panel.view.table.select(1)
    panel.view.filters.text.setText("learning_rate")
    panel.view.table.setColumnWidth(2, 177)
    panel.resize(900, 300)
    bar = panel.view.table.verticalScrollBar()
    qtbot.waitUntil(lambda: panel.view.filters.shown.text() == "26 of 26" and bar.maximum() > 200, timeout=WAIT)
    place = bar.maximum() // 2
    bar.setValue(place)
    panel.feed.set_live(True)
    trial = study.ask()
    trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
    study.tell(trial, 9999.0)
    qtbot.waitUntil(lambda: panel.view.study.best.number == 26, timeout=WAIT)
    assert panel.view.table.selected.number == 1
    assert (panel.view.table.columnWidth(2), bar.value()) == (177, place)  # and one looks where one looked
    qtbot.waitUntil(lambda: panel.view.filters.shown.text() == "27 of 27", timeout=WAIT)
    panel.feed.set_live(False)


def test_several_studies_of_a_file_are_offered(qtbot, panel: StudyPanel, tmp_path: Path) -> None:
    path = tmp_path / "two.journal"
    make_study(path, trials=3, name="first")
    make_study(path, trials=5, name="second")
    opened(qtbot, panel, path)
    assert panel.view.study.name == "second"
    combo = panel.findChild(QComboBox, "study_choice")
    assert [combo.itemText(place) for place in range(combo.count())] == ["first (3)", "second (5)"]
    combo.setCurrentIndex(0)
    combo.activated.emit(0)
    qtbot.waitUntil(lambda: panel.view.study.name == "first", timeout=WAIT)
    assert panel.view.table.trials.rowCount() == 3


def test_what_cannot_be_shown_is_reported_and_looked_at_again(qtbot, panel: StudyPanel, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_bytes(b"not a study")
    panel.open(path)
    qtbot.waitUntil(lambda: "neither an SQLite database nor a journal" in panel.banner.text, timeout=WAIT)
    assert panel.banner.tone == "bad"
    assert not panel.view.isEnabled()
    path.unlink()
    make_study(path, trials=3)
    panel.banner.findChild(QPushButton, "banner_action").click()
    qtbot.waitUntil(lambda: panel.view.study is not None, timeout=WAIT)
    assert panel.banner.text == ""
    assert panel.view.isEnabled()
    panel.open(tmp_path / "later.journal", not_yet="not available yet")
    qtbot.waitUntil(lambda: panel.banner.text == "not available yet", timeout=WAIT)
    assert panel.view.study is None


def test_without_the_dashboard_the_command_that_installs_it_is_reported(
    qtbot, panel: StudyPanel, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("gym_gui.services.analytics.web_servers.sys.executable", "/nowhere/python")
    opened(qtbot, panel, journal)
    panel.dashboard.click()
    qtbot.waitUntil(lambda: "-m pip install optuna-dashboard" in panel.banner.text, timeout=WAIT)
    assert panel.dashboard.isEnabled()


def test_a_study_window_trains_what_cleanrls_tuner_found(qtbot, themed, background: Background, tmp_path: Path) -> None:
    """CleanRL's tuner names parameters as flags and writes SQLite."""
    study = optuna.create_study(
        study_name="tuner_17", storage=f"sqlite:///{tmp_path / 'cleanrl_hpopt.db'}", direction="maximize"
    )
    study.optimize(lambda trial: trial.suggest_float("learning-rate", 1e-4, 1e-2, log=True), n_trials=3)
    window = StudyWindow(background)
    qtbot.addWidget(window)
    window.open_file(str(tmp_path / "cleanrl_hpopt.db"))
    qtbot.waitUntil(lambda: window.panel.view.study is not None, timeout=WAIT)
    assert "cleanrl_hpopt.db" in window.windowTitle()
    with qtbot.waitSignal(window.config_requested) as asked:
        window.panel.view.details.train.click()
    expected = asked.args[0]
    config = expected.document["metadata"]["worker"]["config"]
    assert config["extras"]["algo_params"] == {"learning_rate": study.best_params["learning-rate"]}
    assert expected.worker == "cleanrl"
    assert "does not name the algorithm" in expected.notice
    window.close()


def test_everything_one_can_act_on_has_a_name(qtbot, panel: StudyPanel, journal: Path) -> None:
    opened(qtbot, panel, journal)
    for page in (HISTORY, IMPORTANCES, PARALLEL, SLICE):
        panel.view.side.setCurrentIndex(page)
    nameless = [
        f"{type(widget).__name__} {widget.objectName()!r}"
        for kind in (QAbstractButton, QLineEdit, QComboBox, QTableView)
        for widget in panel.findChildren(kind)
        if not widget.objectName().startswith(("qt_", "banner_action"))
        and not isinstance(widget.parent(), QComboBox | QLineEdit | QTableView)
        and widget.parent().objectName() != "qt_tabwidget_tabbar"
        and not widget.inherits("QTabBar")
        and not (widget.objectName() and widget.accessibleName())
        and type(widget).__name__ not in ("QToolButton",)
    ]
    assert nameless == []


# ---------------------------------------------------------------- much


def large_journal(path: Path, trials: int) -> Path:
    """As Optuna writes it, without waiting for its fsync."""
    rate = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 1e-05, "high": 0.01, "log": true}}'
    act = '{"name": "CategoricalDistribution", "attributes": {"choices": ["tanh", "relu"]}}'
    lines: list[dict[str, object]] = [{"op_code": 0, "worker_id": "w", "study_name": "large", "directions": [2]}]
    for number in range(trials):
        own = {"worker_id": "w", "trial_id": number}
        lines += [
            {"op_code": 4, "worker_id": "w", "study_id": 0, "datetime_start": "2026-01-01T00:00:00+00:00"},
            {
                "op_code": 5,
                **own,
                "param_name": "learning_rate",
                "param_value_internal": 1e-5 * (1 + number % 900),
                "distribution": rate,
            },
            {
                "op_code": 5,
                **own,
                "param_name": "activation",
                "param_value_internal": float(number % 2),
                "distribution": act,
            },
            {
                "op_code": 6,
                **own,
                "state": 1,
                "values": [float(number * 7919 % trials)],
                "datetime_complete": "2026-01-01T00:05:00+00:00",
            },
        ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_ten_thousand_trials_hold_nothing_up(qtbot, panel: StudyPanel, tmp_path: Path) -> None:
    path = large_journal(tmp_path / "large.journal", 10_000)
    view = panel.view
    with blocking_calls() as calls:
        opened(qtbot, panel, path)
        qtbot.wait(50)
        for page in (HISTORY, IMPORTANCES, PARALLEL, SLICE):
            view.side.setCurrentIndex(page)
            qtbot.waitUntil(lambda page=page: page not in view._outdated, timeout=WAIT)
            qtbot.wait(50)
        view.table.horizontalHeader().sectionClicked.emit(3)
        qtbot.wait(30)
        view.filters.text.setText("relu")
        qtbot.waitUntil(lambda: view.table.trials.rowCount() == 5_000, timeout=WAIT)
        view.table.select(9_999)
        view.table.scrollToBottom()
        qtbot.wait(30)
    assert not calls
    assert "best 400 trials" in view.parallel_caption.text()
