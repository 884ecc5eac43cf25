"""A study of 10,000 trials: opened read-only and shown as a table; against Optuna's own `load_study(...).trials`.

Both formats, the same file for both. A trial has six parameters, ten reports and two attributes, written as Optuna
writes them: in a journal each of those is a line. Every measurement is a process of its own; counted is the CPU time
of the opening, not that of starting Python and importing. Our time ends when every column is there for sorting and
plots; the table's ends when it is painted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import Sample, alternate, print_table

STARTED, ENDED = "2026-11-15T10:00:00.000000", "2026-11-15T10:05:00.000000"
FLOAT = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 1e-05, "high": 0.01, "log": true}}'
INT = '{"name": "IntDistribution", "attributes": {"log": false, "step": 32, "low": 32, "high": 256}}'
CHOICE = '{"name": "CategoricalDistribution", "attributes": {"choices": ["tanh", "relu", "gelu"]}}'
PARAMETERS: dict[str, tuple[str, Callable[[random.Random], float]]] = {
    "learning_rate": (FLOAT, lambda rng: 10 ** rng.uniform(-5, -2)),
    "ent_coef": (FLOAT, lambda rng: 10 ** rng.uniform(-5, -2)),
    "num_steps": (INT, lambda rng: float(rng.randrange(1, 9) * 32)),
    "num_envs": (INT, lambda rng: float(rng.randrange(1, 9) * 32)),
    "activation": (CHOICE, lambda rng: float(rng.randrange(3))),
    "optimizer": (CHOICE, lambda rng: float(rng.randrange(3))),
}
REPORTS = 10


def write_journal(path: Path, trials: int) -> None:
    """A journal as JournalStorage writes it, without the fsync after each line."""
    rng = random.Random(1)
    lines = [{"op_code": 0, "worker_id": "w", "study_name": "bench", "directions": [2]}]
    for number in range(trials):
        base = {"worker_id": "0d8f8f8e-5b1e-4a53-9d41-2f0f5c5d7c11-140735", "trial_id": number}
        lines.append(
            {"op_code": 4, "worker_id": base["worker_id"], "study_id": 0, "datetime_start": f"{STARTED}+00:00"}
        )
        for name, (distribution, draw) in PARAMETERS.items():
            lines.append(
                {
                    "op_code": 5,
                    **base,
                    "param_name": name,
                    "param_value_internal": draw(rng),
                    "distribution": distribution,
                }
            )
        lines += [{"op_code": 8, **base, "user_attr": attribute} for attribute in attributes(number)]
        lines += [
            {"op_code": 7, **base, "step": step, "intermediate_value": rng.uniform(0, 500)} for step in range(REPORTS)
        ]
        lines.append(
            {
                "op_code": 6,
                **base,
                "state": state(number),
                "values": [rng.uniform(0, 500)],
                "datetime_complete": f"{ENDED}+00:00",
            }
        )
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def attributes(number: int) -> tuple[dict[str, object], ...]:
    return {"mosaic_runs": [f"01HZZZZZZZZZZZZZZZZZZZ{number:05d}"]}, {"mosaic_config": {"num_steps": 128, "lr": 0.001}}


def state(number: int) -> int:
    return 2 if number % 5 == 4 else 1


def write_sqlite(path: Path, trials: int) -> None:
    """Optuna makes the tables; the rows are put in at once."""
    make = "import optuna, sys; optuna.create_study(study_name='bench', storage=sys.argv[1], direction='maximize')"
    subprocess.run([sys.executable, "-c", make, f"sqlite:///{path}"], check=True, capture_output=True)
    rng = random.Random(1)
    database = sqlite3.connect(path)
    for number in range(trials):
        trial_id = number + 1
        database.execute(
            "INSERT INTO trials (trial_id, number, study_id, state, datetime_start, datetime_complete) "
            "VALUES (?, ?, 1, ?, ?, ?)",
            (
                trial_id,
                number,
                ("", "COMPLETE", "PRUNED")[state(number)],
                STARTED.replace("T", " "),
                ENDED.replace("T", " "),
            ),
        )
        database.executemany(
            "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) VALUES (?, ?, ?, ?)",
            [(trial_id, name, draw(rng), text) for name, (text, draw) in PARAMETERS.items()],
        )
        database.executemany(
            "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (?, ?, ?)",
            [(trial_id, key, json.dumps(value)) for each in attributes(number) for key, value in each.items()],
        )
        database.executemany(
            "INSERT INTO trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type) "
            "VALUES (?, ?, ?, 'FINITE')",
            [(trial_id, step, rng.uniform(0, 500)) for step in range(REPORTS)],
        )
        database.execute(
            "INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (?, 0, ?, 'FINITE')",
            (trial_id, rng.uniform(0, 500)),
        )
    database.commit()
    database.close()


# ---------------------------------------------------------------- in a process of their own

OURS = """
import sys, time
from gym_gui.services.analytics.studies.readers import open_study
before = time.process_time()
study = open_study(sys.argv[1])
columns = study.numbers, study.states, study.values, study.durations, study.parameters, study.best_so_far()
print(time.process_time() - before, len(study))
"""
TABLE = """
import sys, time
from PySide6.QtWidgets import QApplication
from gym_gui.services.analytics.studies.readers import open_study
from gym_gui.ui import theme
from gym_gui.ui.studies.rows import StudyRows
from gym_gui.ui.studies.view import StudyTable
application = QApplication([])
theme.apply(application, theme.ThemeChoice.LIGHT)
before = time.process_time()
rows = StudyRows(open_study(sys.argv[1]))
table = StudyTable()
table.resize(1200, 700)
table.trials.show_rows(rows)
table.show()
application.processEvents()
print(time.process_time() - before, table.trials.rowCount())
"""
JOURNAL_PEER = """
import sys, time, optuna
from optuna.storages.journal import JournalFileBackend
before = time.process_time()
storage = optuna.storages.JournalStorage(JournalFileBackend(sys.argv[1]))
trials = optuna.load_study(study_name="bench", storage=storage).trials
print(time.process_time() - before, len(trials))
"""
SQLITE_PEER = """
import sys, time, optuna
before = time.process_time()
trials = optuna.load_study(study_name="bench", storage=f"sqlite:///{sys.argv[1]}").trials
print(time.process_time() - before, len(trials))
"""


def cpu_of_opening(code: str, path: Path, trials: int) -> float:
    answer = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
    )
    if answer.returncode:
        raise SystemExit(answer.stderr[-2000:])
    seconds, count = answer.stdout.split()
    assert int(count) == trials, f"{count} trials were read"
    return float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trials", type=int, default=10_000)
    arguments = parser.parse_args()
    trials, rows = arguments.trials, []
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
        for name, write, peer in (("journal", write_journal, JOURNAL_PEER), ("sqlite3", write_sqlite, SQLITE_PEER)):
            path = Path(folder) / f"study.{name}"
            write(path, trials)
            began = time.monotonic()
            ours, theirs = alternate(
                lambda path=path: cpu_of_opening(OURS, path, trials),
                lambda path=path, peer=peer: cpu_of_opening(peer, path, trials),
                pairs=arguments.pairs,
            )
            table = Sample(tuple(cpu_of_opening(TABLE, path, trials) for _ in range(arguments.pairs)))
            rows += [
                (f"{name} ({path.stat().st_size / 1e6:.0f} MB): opened", str(ours)),
                (f"{name}: opened and shown as a table", f"{table}   (to reach: 1.000)"),
                (f"{name}: Optuna's load_study(...).trials", f"{theirs}   {ours.median / theirs.median:.3f} ×"),
            ]
            print(f"  {name}: {time.monotonic() - began:.0f} s")
    print_table(f"a study of {trials:,} trials (CPU seconds)", rows)


if __name__ == "__main__":
    main()
