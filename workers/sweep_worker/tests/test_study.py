"""The study: written whole or not at all, mended after a torn write, taken along by the next sweep."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.sweep_settings import SweepSettings, read_settings
from optuna.storages import JournalStorage
from optuna.trial import TrialState
from sweep_worker.study import AGAIN, INTERRUPTED, DamagedJournal, Study, StudyJournal, StudyPlace, bring_along, repair

X = {"kind": "float", "low": 0.0, "high": 1.0}
MIXED = {
    "x": X,
    "lr": {"kind": "float", "low": 1e-5, "high": 1e-1, "log": True},
    "n": {"kind": "int", "low": 8, "high": 64, "step": 8},
    "flag": {"kind": "categorical", "choices": [True, False, None]},
}


def settings(parameters: dict[str, Any] | None = None, **others: Any) -> SweepSettings:
    found, problems = read_settings({"parameters": parameters or MIXED, "rehearse_s": 1.0, **others})
    assert found is not None, problems
    return found


def opened(folder: Path, chosen: SweepSettings, *, seed: int = 1, storage: str = "journal") -> Study:
    return Study.open(
        StudyPlace(storage, "study", folder),
        chosen,
        seed=seed,
        total_timesteps=1000,
        report_problem=lambda text: None,
        is_stopping=lambda: True,
    )


def values_of(study: Study, chosen: SweepSettings, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(count):
        trial = study.ask()
        found.append(trial.values(chosen))
        trial.complete(found[-1]["x"], [found[-1]["x"]])
    return found


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random", "grid", "gp"])
def test_every_sampler_chooses_values_in_their_ranges(tmp_path: Path, sampler: str) -> None:
    parameters = {"x": {**X, "step": 1.0}, "flag": MIXED["flag"]} if sampler == "grid" else MIXED
    chosen = settings(parameters, sampler=sampler, startup_trials=3)
    found = values_of(opened(tmp_path, chosen), chosen, 6)
    for values in found:
        assert set(values) == set(parameters)
        assert 0 <= values["x"] <= 1
        assert values["flag"] in (True, False, None)
        if "n" in values:
            assert values["n"] in range(8, 65, 8)
            assert type(values["n"]) is int
            assert 1e-5 <= values["lr"] <= 1e-1
    if sampler == "grid":
        assert len({json.dumps(values) for values in found}) == 6 == chosen.grid_size(), "each combination once"


def test_an_interrupted_sweep_chooses_as_if_it_had_not_been(tmp_path: Path) -> None:
    chosen = settings(sampler="tpe", startup_trials=2)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = values_of(opened(tmp_path / "whole", chosen), chosen, 5)
    cut = values_of(opened(tmp_path / "cut", chosen), chosen, 2)
    cut += values_of(opened(tmp_path / "cut", chosen), chosen, 3)
    assert cut == whole


def test_a_trial_whose_values_were_half_chosen_keeps_those_it_has(tmp_path: Path) -> None:
    chosen = settings(sampler="random")
    first = opened(tmp_path, chosen).ask()
    half = first.values(settings({"x": X}))
    study = opened(tmp_path, chosen)
    (known,) = study.trials()
    again = study.recover(known).values(chosen)
    assert again["x"] == half["x"]
    assert set(again) == set(MIXED)


def test_interrupted_trials_are_tried_again_once(tmp_path: Path) -> None:
    chosen = settings(sampler="random")
    study = opened(tmp_path, chosen)
    trial = study.ask()
    values = trial.values(chosen)
    trial.interrupt("its sweep was cancelled")
    for _ in range(2):
        opened(tmp_path, chosen).requeue_interrupted()
    study = opened(tmp_path, chosen)
    assert [known.state for known in study.trials()] == [TrialState.FAIL, TrialState.WAITING]
    assert study.trials()[0].user_attrs[INTERRUPTED] is True
    assert study.trials()[1].user_attrs[AGAIN] == 0
    assert study.ask().values(chosen) == values


@pytest.mark.parametrize("storage", ["journal", "sqlite"])
def test_the_next_sweep_takes_the_study_along(tmp_path: Path, storage: str) -> None:
    chosen = settings(sampler="random", storage=storage)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    values_of(opened(old, chosen, storage=storage), chosen, 2)
    bring_along(StudyPlace(storage, "study", new), old)
    study = opened(new, chosen, storage=storage)
    assert len(study.trials()) == 2
    values_of(study, chosen, 1)
    bring_along(StudyPlace(storage, "study", new), old)  # a retry finds its own
    assert len(opened(new, chosen, storage=storage).trials()) == 3
    assert len(opened(old, chosen, storage=storage).trials()) == 2


def test_a_study_may_lie_in_any_database_that_has_an_address(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'shared.db'}"
    chosen = settings(sampler="random", storage=address)
    values_of(opened(tmp_path, chosen, storage=address), chosen, 2)
    place = StudyPlace(address, "study", tmp_path / "another")
    assert place.is_shared
    assert place.shown == address
    bring_along(place, tmp_path)  # nothing to bring: it is where it is
    assert len(opened(tmp_path / "another", chosen, storage=address).trials()) == 2


def test_a_study_of_the_other_direction_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, settings(direction="minimize"))
    with pytest.raises(ConfigProblems, match="choose another study_name"):
        opened(tmp_path, settings(direction="maximize"))


def test_a_database_that_is_not_there_is_reported_without_its_password(tmp_path: Path) -> None:
    address = "postgresql://me:hunter2@nowhere.invalid/studies"
    with pytest.raises(ConfigProblems) as refused:
        opened(tmp_path, settings(storage=address), storage=address)
    assert "storage" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert StudyPlace(address, "study", tmp_path).shown == "postgresql://•••@nowhere.invalid/studies"


# ---------------------------------------------------------------- the journal file


def journal_of(folder: Path, complaints: list[str] | None = None, *, stopping: bool = True) -> StudyJournal:
    reported = complaints if complaints is not None else []
    return StudyJournal(folder / "study.journal", report_problem=reported.append, is_stopping=lambda: stopping)


def test_half_an_entry_at_the_end_is_cut_off_and_kept(tmp_path: Path) -> None:
    chosen = settings(sampler="random")
    values_of(opened(tmp_path, chosen), chosen, 1)
    file = tmp_path / "study.journal"
    whole = file.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for kept in range(len(last)):
        file.write_bytes(whole[: len(whole) - len(last) + kept])
        complaints: list[str] = []
        repair(file, complaints.append)
        assert file.read_bytes() == whole[: len(whole) - len(last)]
        assert len(complaints) == bool(kept)
    assert [known.state for known in opened(tmp_path, chosen).trials()] == [TrialState.RUNNING]


def test_zeros_of_a_power_cut_are_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    file.write_bytes(b'{"op_code":0}\n' + b"\0" * 100 + b"\n\0\0")
    repair(file, lambda text: None)
    assert file.read_bytes() == b'{"op_code":0}\n'


def test_damage_in_the_middle_is_not_mended_in_silence(tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    file.write_bytes(b'{"op_code":0}\nnot an entry\n{"op_code":4}\n')
    with pytest.raises(DamagedJournal, match="at byte 14"):
        repair(file, lambda text: None)


def test_a_full_disk_is_waited_for_and_leaves_no_half_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[str] = []
    journal = journal_of(tmp_path, complaints, stopping=False)
    journal.append_logs([{"entry": 1}])
    full = 2
    real = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal full
        if full:
            full -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr("sweep_worker.study._ROOM_CHECK_S", 0.0)
    monkeypatch.setattr(os, "fsync", fsync)
    journal.append_logs([{"entry": 2}])
    assert list(journal.read_logs(0)) == [{"entry": 1}, {"entry": 2}]
    assert len(complaints) == 1
    full = 1
    stopping = StudyJournal(tmp_path / "study.journal", report_problem=complaints.append, is_stopping=lambda: True)
    with pytest.raises(OSError, match="No space left"):
        stopping.append_logs([{"entry": 3}])
    assert list(journal.read_logs(0)) == [{"entry": 1}, {"entry": 2}]


def test_optuna_itself_reads_what_was_written(tmp_path: Path) -> None:
    chosen = settings(sampler="random")
    values_of(opened(tmp_path, chosen), chosen, 2)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
    study = optuna.load_study(study_name="study", storage=JournalStorage(backend))
    assert [known.state for known in study.trials] == [TrialState.COMPLETE] * 2


def test_sqlite_holds_what_was_reported(tmp_path: Path) -> None:
    chosen = settings(sampler="random", storage="sqlite")
    values_of(opened(tmp_path, chosen, storage="sqlite"), chosen, 2)
    with closing(sqlite3.connect(tmp_path / "study.sqlite3")) as database:
        assert database.execute("SELECT COUNT(*) FROM trials WHERE state = 'COMPLETE'").fetchone() == (2,)
