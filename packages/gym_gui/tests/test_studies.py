"""Studies are read without Optuna, and as Optuna itself reads them: SQLite of every layout, journals, live and torn."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import optuna
import pytest
from gym_gui.services.analytics.studies.importances import importances
from gym_gui.services.analytics.studies.readers import SeveralStudies, open_file, open_study, path_of
from gym_gui.services.analytics.studies.study import (
    Direction,
    Kind,
    NoStudyYet,
    Study,
    StudyError,
    TrialState,
    distribution_of,
)
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

optuna.logging.set_verbosity(optuna.logging.ERROR)

Storage = JournalStorage | RDBStorage
MakeStorage = Callable[[Path], Storage]


def journal(folder: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(folder / "study.journal")))


def sqlite(folder: Path) -> RDBStorage:
    return RDBStorage(f"sqlite:///{folder / 'study.sqlite3'}")


FILES = {journal: "study.journal", sqlite: "study.sqlite3"}
both = pytest.mark.parametrize("make", [journal, sqlite])


def tune(study: optuna.Study, trials: int) -> None:
    """Completed, pruned and failed trials, parameters of every kind, one of them in some trials only."""
    study.sampler = optuna.samplers.RandomSampler(seed=trials)
    for number in range(trials):
        trial = study.ask()
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
        steps = trial.suggest_int("num_steps", 32, 256, step=32)
        act = trial.suggest_categorical("activation", ["tanh", "relu", None, True, 3])
        if act == "tanh":
            trial.suggest_float("gain", 0.0, 2.0, step=0.5)
        trial.set_user_attr("mosaic_runs", [f"run-{number}-a", f"run-{number}-b"])
        for step in range(3):
            trial.report(steps * step, step)
        if number % 7 == 3:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif number % 7 == 5:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, -abs(math.log10(rate) + 3) * 100 + steps / 100)


def assert_same(ours: Study, theirs: optuna.Study) -> None:
    assert ours.name == theirs.study_name
    assert [direction.name for direction in ours.directions] == [direction.name for direction in theirs.directions]
    assert ours.user_attrs == theirs.user_attrs
    trials = theirs.get_trials(deepcopy=False)
    assert len(ours) == len(trials)
    for mine, other in zip(ours.trials, trials, strict=True):
        assert (mine.number, mine.state.name) == (other.number, other.state.name)
        assert mine.params == other.params
        assert list(mine.values) == list(other.values or ())
        assert mine.user_attrs == other.user_attrs
        np.testing.assert_equal(mine.intermediate, other.intermediate_values)
        for ended, reported in (mine.started_at, other.datetime_start), (mine.ended_at, other.datetime_complete):
            assert math.isnan(ended) if reported is None else ended == pytest.approx(reported.timestamp(), abs=1e-5)
        for name, distribution in other.distributions.items():
            read = mine.distributions[name]
            if read.kind is Kind.CATEGORICAL:
                assert read.choices == distribution.choices
            else:
                expected = distribution.low, distribution.high, distribution.log, distribution.step
                assert (read.low, read.high, read.log, read.step) == expected


# ---------------------------------------------------------------- the same as Optuna


@both
def test_a_study_is_read_as_optuna_reads_it(tmp_path: Path, make: MakeStorage) -> None:
    study = optuna.create_study(study_name="first", storage=make(tmp_path), direction="maximize")
    study.set_user_attr("sweep", {"of": "ppo"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls it experimental
        study.set_metric_names(["return"])
    tune(study, 15)
    running = study.ask()
    running.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
    study.enqueue_trial({"learning_rate": 1e-3})
    ours = open_study(tmp_path / FILES[make])
    assert_same(ours, study)
    assert ours.metric_names == ("return",)
    assert {state.name: ours.count(state) for state in TrialState} == {
        "RUNNING": 1,
        "COMPLETE": 11,
        "PRUNED": 2,
        "FAIL": 2,
        "WAITING": 1,
    }
    assert ours.trials[-2].state is TrialState.RUNNING
    assert ours.best.number == study.best_trial.number
    assert ours.best.run_ids == (f"run-{ours.best.number}-a", f"run-{ours.best.number}-b")
    best = ours.best_so_far()
    assert best[-1] == study.best_value
    assert (np.diff(best) >= 0).all()
    assert list(ours.parameters) == ["learning_rate", "num_steps", "activation", "gain"]
    assert ours.parameters["learning_rate"].internal[0] == ours.trials[0].params["learning_rate"]
    assert math.isnan(ours.parameters["gain"].internal[-1])


@both
def test_only_what_is_new_is_read_again(tmp_path: Path, make: MakeStorage) -> None:
    study = optuna.create_study(study_name="live", storage=make(tmp_path), direction="minimize")
    tune(study, 8)
    waits = study.ask()
    file = open_file(tmp_path / FILES[make])
    before = file.read("live")
    assert before.trials[8].state is TrialState.RUNNING
    tune(study, 8)
    waits.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
    waits.set_user_attr("mosaic_runs", ["one"])
    middle = file.read("live")
    assert_same(middle, study)
    waits.set_user_attr("mosaic_runs", ["one", "two"])
    waits.report(4.5, 1)
    study.tell(waits, 1.5)
    after = file.read("live")
    assert_same(after, study)
    assert after.trials[8].run_ids == ("one", "two")
    # What a caller holds does not change, and what was finished is the same object.
    assert before.trials[8].state is TrialState.RUNNING
    assert middle.trials[8].run_ids == ("one",)
    assert after.trials[0] is before.trials[0]


@both
def test_several_studies_of_a_file_are_listed(tmp_path: Path, make: MakeStorage) -> None:
    storage = make(tmp_path)
    for name, trials in (("a", 3), ("gone", 2), ("b", 4)):
        tune(optuna.create_study(study_name=name, storage=storage, direction="maximize"), trials)
    optuna.delete_study(study_name="gone", storage=storage)
    path = tmp_path / FILES[make]
    listed = open_file(path).summaries()
    assert [(one.name, one.trials, one.directions) for one in listed] == [
        ("a", 3, (Direction.MAXIMIZE,)),
        ("b", 4, (Direction.MAXIMIZE,)),
    ]
    with pytest.raises(SeveralStudies, match="2 studies, name one of them: a, b") as raised:
        open_study(path)
    assert raised.value.names == ("a", "b")
    assert_same(open_study(path, "b"), optuna.load_study(study_name="b", storage=storage))
    with pytest.raises(StudyError, match="no study named 'gone'"):
        open_study(path, "gone")


@both
def test_the_best_of_several_objectives_are_those_that_none_beats(tmp_path: Path, make: MakeStorage) -> None:
    study = optuna.create_study(study_name="two", storage=make(tmp_path), directions=["maximize", "minimize"])
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), trial.suggest_int("y", 0, 9)), n_trials=40)
    ours = open_study(tmp_path / FILES[make])
    assert_same(ours, study)
    assert [ours.trials[row].number for row in ours.best_rows] == sorted(trial.number for trial in study.best_trials)


@both
def test_infinite_values_and_nothing_at_all(tmp_path: Path, make: MakeStorage) -> None:
    study = optuna.create_study(study_name="odd", storage=make(tmp_path), direction="minimize")
    for value in (math.inf, -math.inf, 1.0):
        trial = study.ask()
        trial.report(value, 0)
        trial.report(math.nan, 1)
        study.tell(trial, value)
    ours = open_study(tmp_path / FILES[make])
    assert_same(ours, study)
    assert ours.values[:, 0].tolist() == [math.inf, -math.inf, 1.0]
    assert ours.parameters == {}
    assert importances(ours).shares == {}
    empty = optuna.create_study(study_name="empty", storage=study._storage)
    nothing = open_study(tmp_path / FILES[make], "empty")
    assert (len(nothing), nothing.best, nothing.best_rows) == (0, None, ())
    assert nothing.best_so_far().tolist() == []
    assert_same(nothing, empty)


def test_importances_are_those_of_optunas_ped_anova(tmp_path: Path) -> None:
    study = optuna.create_study(
        study_name="which",
        storage=journal(tmp_path),
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=1),
    )

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
        trial.suggest_int("unimportant", 1, 20)
        epochs = trial.suggest_int("epochs", 1, 1000, log=True)
        gain = trial.suggest_float("gain", 0.0, 2.0, step=0.25)
        act = trial.suggest_categorical("activation", ["tanh", "relu", "gelu"])
        trial.suggest_categorical("only", ["one"])
        if act == "tanh":
            trial.suggest_float("slope", 0.0, 1.0)
        return -abs(math.log10(rate) + 3) + (act == "relu") + 0.1 * gain + 0.01 * math.log(epochs)

    study.optimize(objective, n_trials=120)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    ours = importances(open_study(tmp_path / "study.journal"))
    assert (ours.trials, ours.best) == (120, 12)
    assert ours.shares == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert next(iter(ours.shares)) in ("learning_rate", "activation")


# ---------------------------------------------------------------- files as they really are


def test_a_half_written_line_is_left_for_the_next_look(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="torn", storage=journal(tmp_path), direction="maximize")
    tune(study, 4)
    whole = (tmp_path / "study.journal").read_bytes()
    copy = tmp_path / "copy.journal"
    cut = whole.rindex(b'"values":[')
    copy.write_bytes(whole[:cut])
    file = open_file(copy)
    assert file.read("torn").trials[3].state is TrialState.RUNNING
    with copy.open("ab") as stream:
        stream.write(whole[cut:])
    read = file.read("torn")
    assert_same(read, study)
    assert read.notices == ()


def test_a_line_of_a_writer_that_was_killed_is_passed_over_and_reported(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="torn", storage=journal(tmp_path), direction="maximize")
    tune(study, 4)
    path = tmp_path / "cut.journal"
    lines = (tmp_path / "study.journal").read_bytes().splitlines(keepends=True)
    lines.insert(len(lines) // 2, b'{"op_code":8,"worker_id":"x","tri' + b'{"op_code":2}\n')
    lines.append(b"[1, 2]\n")
    path.write_bytes(b"".join(lines))
    read = open_study(path)
    assert_same(read, study)
    assert "2 lines of cut.journal cannot be read" in read.notices[0]


def test_a_journal_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        tune(optuna.create_study(study_name="same", storage=journal(tmp_path / name)), 3 if name == "old" else 5)
    path = tmp_path / "old" / "study.journal"
    file = open_file(path)
    assert len(file.read("same")) == 3
    os.replace(tmp_path / "new" / "study.journal", path)
    assert len(file.read("same")) == 5


def test_a_database_is_read_while_another_process_writes_into_its_log(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="wal", storage=sqlite(tmp_path), direction="maximize")
    tune(study, 5)
    path = tmp_path / "study.sqlite3"
    study._storage.remove_session()
    study._storage._backend.engine.dispose()  # lets go of the file
    with sqlite3.connect(path) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
    writer.close()
    # No process has it open: nothing is created beside it.
    assert len(open_study(path)) == 5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["study.sqlite3"]
    tune(study, 5)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE trials SET state = 'FAIL'")
    try:
        file = open_file(path)
        read = file.read("wal")
        assert len(read) == 10
        assert read.count(TrialState.COMPLETE) == 8  # not what is not committed yet
        writer.execute("COMMIT")  # and the reader holds nothing that a writer waits for
    finally:
        writer.close()


def test_a_reader_holds_up_no_writer(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="plain", storage=sqlite(tmp_path), direction="maximize")
    tune(study, 3)
    path = tmp_path / "study.sqlite3"
    file = open_file(path)
    file.read("plain")
    with sqlite3.connect(path, timeout=0) as writer:
        writer.execute("BEGIN EXCLUSIVE")
    writer.close()
    assert {entry.name for entry in tmp_path.iterdir()} == {"study.sqlite3"}


def test_a_database_whose_writer_died_is_read_from_a_copy(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="cut", storage=sqlite(tmp_path), direction="maximize")
    tune(study, 3)
    path, dead = tmp_path / "study.sqlite3", tmp_path / "dead" / "study.sqlite3"
    dead.parent.mkdir()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE large (text)")
    writer.executemany("INSERT INTO large VALUES (?)", [("x" * 3000,) for _ in range(200)])
    # As a power cut leaves it: pages and journal on the disk, and no process that holds a lock.
    for suffix in ("", "-journal"):
        shutil.copyfile(f"{path}{suffix}", f"{dead}{suffix}")
    writer.execute("ROLLBACK")
    writer.close()
    before = {entry.name: entry.read_bytes() for entry in dead.parent.iterdir()}
    assert "study.sqlite3-journal" in before
    assert_same(open_study(dead), study)
    assert {entry.name: entry.read_bytes() for entry in dead.parent.iterdir()} == before


def test_files_that_hold_no_study_say_so(tmp_path: Path) -> None:
    def message(path: Path, kind: type[StudyError] = StudyError) -> str:
        with pytest.raises(kind) as raised:
            open_study(path)
        return str(raised.value)

    def put(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    assert "is not there" in message(tmp_path / "missing", NoStudyYet)
    assert "no study was written" in message(put("empty", b""), NoStudyYet)
    assert "cannot be read: it is a folder" in message(tmp_path)
    assert "neither an SQLite database nor a journal" in message(put("picture.png", b"\x89PNG\r\n"))
    assert "is not a journal of Optuna" in message(put("other.json", b'{"a": 1}\n{"b": 2}\n'))
    assert "is not a journal of Optuna" in message(put("config.json", b'{\n  "a": 1\n}\n'))
    assert "cannot be read" in message(put("cut.db", b"SQLite format 3\0" + b"\0" * 200))
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE runs (id)")
    other.commit()
    other.close()
    assert "Optuna did not write it" in message(tmp_path / "other.db")


def test_a_damaged_row_is_reported(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="damaged", storage=sqlite(tmp_path), direction="maximize")
    tune(study, 3)
    path = tmp_path / "study.sqlite3"
    with sqlite3.connect(path) as writer:
        writer.execute("UPDATE trial_params SET param_value = 99 WHERE param_name = 'activation' AND trial_id = 2")
    writer.close()
    with pytest.raises(StudyError, match="damaged: parameter activation of trial 1 is 99"):
        open_study(path)


def test_addresses() -> None:
    assert path_of("sqlite:///cleanrl_hpopt.db") == Path("cleanrl_hpopt.db")
    assert path_of("sqlite:////tmp/a%20b.db") == Path("/tmp/a b.db")
    assert path_of("some/study.journal") == Path("some/study.journal")
    with pytest.raises(StudyError, match="mysql is a database server"):
        path_of("mysql://me:secret@host/db")


# ---------------------------------------------------------------- older layouts

_OLD_SCHEMA = """
CREATE TABLE studies (study_id INTEGER PRIMARY KEY, study_name VARCHAR(512) NOT NULL {direction});
CREATE TABLE version_info (version_info_id INTEGER PRIMARY KEY, schema_version INTEGER, library_version VARCHAR(256));
CREATE TABLE study_user_attributes (study_user_attribute_id INTEGER PRIMARY KEY, study_id INTEGER, key VARCHAR(512), value_json {text});
CREATE TABLE study_system_attributes (study_system_attribute_id INTEGER PRIMARY KEY, study_id INTEGER, key VARCHAR(512), value_json {text});
CREATE TABLE trials (trial_id INTEGER PRIMARY KEY, {number} study_id INTEGER, state VARCHAR(8) NOT NULL, {value} datetime_start DATETIME, datetime_complete DATETIME);
CREATE TABLE trial_params (param_id INTEGER PRIMARY KEY, trial_id INTEGER, param_name VARCHAR(512), param_value FLOAT, distribution_json {text}, UNIQUE (trial_id, param_name));
CREATE TABLE trial_user_attributes (trial_user_attribute_id INTEGER PRIMARY KEY, trial_id INTEGER, key VARCHAR(512), value_json {text});
CREATE TABLE trial_system_attributes (trial_system_attribute_id INTEGER PRIMARY KEY, trial_id INTEGER, key VARCHAR(512), value_json {text});
"""  # noqa: E501
_UNTIL_2_3 = """
CREATE TABLE trial_values (trial_value_id INTEGER PRIMARY KEY, trial_id INTEGER, step INTEGER, value FLOAT, UNIQUE (trial_id, step));
"""  # noqa: E501
_UNTIL_2_10 = """
CREATE TABLE study_directions (study_direction_id INTEGER PRIMARY KEY, direction VARCHAR(8) NOT NULL, study_id INTEGER NOT NULL, objective INTEGER NOT NULL);
CREATE TABLE trial_values (trial_value_id INTEGER PRIMARY KEY, trial_id INTEGER NOT NULL, objective INTEGER NOT NULL, value FLOAT NOT NULL);
CREATE TABLE trial_intermediate_values (trial_intermediate_value_id INTEGER PRIMARY KEY, trial_id INTEGER NOT NULL, step INTEGER NOT NULL, intermediate_value FLOAT NOT NULL);
"""  # noqa: E501
_DISTRIBUTIONS = {
    "learning-rate": {"name": "LogUniformDistribution", "attributes": {"low": 1e-4, "high": 1e-2}},
    "gamma": {"name": "UniformDistribution", "attributes": {"low": 0.9, "high": 1.0}},
    "ent-coef": {"name": "DiscreteUniformDistribution", "attributes": {"low": 0.0, "high": 0.1, "q": 0.01}},
    "num-steps": {"name": "IntUniformDistribution", "attributes": {"low": 32, "high": 256, "step": 32}},
    "epochs": {"name": "IntLogUniformDistribution", "attributes": {"low": 1, "high": 64, "step": 1}},
    "num-minibatches": {"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4]}},
}
_VALUES = (0.001, 0.99, 0.05, 128.0, 8.0, 2.0)
_LARGEST_FLOAT32 = 3.4028234663852886e38


def old_database(path: Path, version: str) -> Path:
    """What CleanRL's tuner left with the Optuna of its time; tables as Optuna's migrations describe them."""
    is_2_10, has_number = version >= "2.4", version >= "1.3"
    schema = _OLD_SCHEMA.format(
        text="TEXT" if version >= "2.6" else "VARCHAR(2048)",
        direction="" if is_2_10 else ", direction VARCHAR(8) NOT NULL",
        number="number INTEGER," if has_number else "",
        value="" if is_2_10 else "value FLOAT,",
    )
    database = sqlite3.connect(path)
    database.executescript(schema + (_UNTIL_2_10 if is_2_10 else _UNTIL_2_3))
    database.execute("INSERT INTO version_info VALUES (1, 12, ?)", (version,))
    if is_2_10:
        database.execute("INSERT INTO studies VALUES (1, 'tuner_1640000000')")
        database.execute("INSERT INTO study_directions VALUES (1, 'MAXIMIZE', 1, 0)")
    else:
        database.execute("INSERT INTO studies VALUES (1, 'tuner_1640000000', 'MAXIMIZE')")
    times = "2021-12-20 12:00:00.000000", "2021-12-20 12:01:30.500000"
    for number, (state, value) in enumerate(
        (("COMPLETE", 410.5), ("PRUNED", 20.0), ("COMPLETE", _LARGEST_FLOAT32), ("RUNNING", None))
    ):
        trial_id, ended = number + 1, times[1] if state != "RUNNING" else None
        own_number = (number,) if has_number else ()
        row = (trial_id, *own_number, 1, state, *(() if is_2_10 else (value,)), times[0], ended)
        database.execute(f"INSERT INTO trials VALUES ({','.join('?' * len(row))})", row)
        if is_2_10 and value is not None:
            database.execute("INSERT INTO trial_values VALUES (?, ?, 0, ?)", (trial_id, trial_id, value))
        table = "trial_intermediate_values" if is_2_10 else "trial_values"
        for step in range(2):
            database.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", (None, trial_id, step, 100.0 * step))
        for (name, distribution), stored in zip(_DISTRIBUTIONS.items(), _VALUES, strict=True):
            text = json.dumps(distribution)
            database.execute("INSERT INTO trial_params VALUES (?, ?, ?, ?, ?)", (None, trial_id, name, stored, text))
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize("version", ["1.2.0", "2.3.0", "2.10.0"])
def test_studies_of_older_versions_open(tmp_path: Path, version: str) -> None:
    study = open_study(old_database(tmp_path / "cleanrl_hpopt.db", version))
    assert (study.name, study.directions) == ("tuner_1640000000", (Direction.MAXIMIZE,))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "COMPLETE", "RUNNING"]
    assert study.numbers.tolist() == [0, 1, 2, 3]
    np.testing.assert_equal(study.values[:, 0], [410.5, 20.0, math.inf, math.nan])
    trial = study.trials[0]
    assert trial.params == {
        "learning-rate": 0.001,
        "gamma": 0.99,
        "ent-coef": 0.05,
        "num-steps": 128,
        "epochs": 8,
        "num-minibatches": 4,
    }
    assert type(trial.params["num-steps"]) is int
    assert (trial.distributions["ent-coef"].step, trial.distributions["epochs"].log) == (0.01, True)
    assert trial.intermediate == {0: 0.0, 1: 100.0}
    assert trial.duration_s == pytest.approx(90.5)
    assert study.best.number == 2


def test_times_before_optuna_5_are_those_of_the_writers_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna 5 stores UTC in the same columns."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    study = optuna.create_study(study_name="times", storage=sqlite(tmp_path))
    study.tell(study.ask(), 1.0)
    path = tmp_path / "study.sqlite3"
    assert open_study(path).trials[0].started_at == pytest.approx(time.time(), abs=600)
    with sqlite3.connect(path) as writer:
        writer.execute("UPDATE version_info SET library_version = '3.6.1'")
        writer.execute("UPDATE trials SET datetime_start = '2024-07-01 12:00:00.000000'")
    writer.close()
    try:
        assert open_study(path).trials[0].started_at == datetime(2024, 7, 1, 3, tzinfo=UTC).timestamp()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_short_and_unknown_distributions() -> None:
    assert distribution_of('{"type": "float", "low": 0, "high": 1, "log": false}').kind is Kind.FLOAT
    assert distribution_of('{"type": "categorical", "choices": [1, 2]}').choices == (1, 2)
    for text in ('{"name": "Gaussian", "attributes": {}}', "[]", '{"type": "int"}', "{"):
        with pytest.raises(ValueError):  # noqa: PT011  # each says it in its own words
            distribution_of(text)


def test_nothing_of_optuna_is_imported() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import gym_gui.services.analytics.studies.importances, gym_gui.services.analytics.studies;"
        "print([name for name in sys.modules if name.split('.')[0] in ('optuna', 'sqlalchemy', 'PySide6')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
