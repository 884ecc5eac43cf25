"""What `mosaic compare` prints: on narrow terminals, of many runs, and while it measures a baseline."""

from __future__ import annotations

import json
import sys

import click
import numpy as np
import pytest
from gym_gui.cli import compare, listing
from gym_gui.cli.selection import Selection, select_runs
from gym_gui.services.analytics.baselines import Baseline
from gym_gui.services.analytics.comparison import compare_curves
from gym_gui.services.analytics.curves import Curve
from gym_gui.services.trainer.client import TrainerClient
from mosaic_wire.proto import trainer_pb2 as pb

RETURN = "charts/episodic_return"


class Terminal:
    def __init__(self, stream) -> None:
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return True


def compared(groups: int, seeds: int = 2):
    runs = [
        pb.Run(
            run_id=f"RUN{group:03}{seed:020}",
            algo="ppo_continuous_action",
            env_id="HalfCheetah-v5",
            seed=seed,
            total=100,
            worker_type="cleanrl",
            sps=1234.5,
            started_at=1.0,
            finished_at=4000.0,
            extras_json=json.dumps({"algo_params": {"learning_rate": 10.0**-group, "gae_lambda": 0.9}}),
        )
        for group in range(groups)
        for seed in range(seeds)
    ]
    curves = {}
    for number, run in enumerate(runs):
        values = np.random.default_rng(number).normal(5000 - 100 * (number // seeds), 30, 200)
        curves[run.run_id] = {RETURN: Curve(run.run_id, RETURN, np.arange(200.0), np.arange(200.0), values, 200)}
    random = Baseline("HalfCheetah-v5", -280.0, 60.0, 100, "B", None, tuple(np.linspace(-400, -160, 100)))
    return runs, compare_curves(runs, curves, baselines={"HalfCheetah-v5": random})


def tables(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("GROUP", "BETTER", "RUN", "ppo", "0"))]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_tables_fit_the_terminal_and_say_the_most_important_things(monkeypatch, capsys, width):
    runs, found = compared(3, seeds=3)
    monkeypatch.setattr(listing, "terminal_width", lambda: width)
    monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout))
    monkeypatch.setenv("NO_COLOR", "1")
    compare._write(found, runs, show_runs=True)
    out = click.unstyle(capsys.readouterr().out)
    assert out.startswith("HalfCheetah-v5: 9 runs · random policy -280.0 ± 60.0 over 100 episodes\n")
    assert max(map(len, tables(out))) <= width
    heading = next(line for line in out.splitlines() if line.startswith("GROUP"))
    assert "FINAL" in heading
    assert "LEARNED" in heading
    assert "LEARNING_RATE" in out  # parameters have a table of their own
    assert "1.00 [1.00, 1.00]" in out
    if width >= 120:
        assert all(word in heading for word in ("± STD", "BEST", "AUC", "SPS", "TIME"))


def test_of_many_groups_the_best_are_compared_and_the_rest_is_counted(capsys):
    runs, found = compared(30)
    compare._write(found, runs, show_runs=False)
    captured = capsys.readouterr()
    assert captured.out.count("\nppo_continuous_action · lr") == 30 + 30 + 12  # figures, parameters, pairs
    assert "… and 178 more pairs; --json has them all" in captured.err


def test_one_run_each_has_no_interval(capsys):
    runs, found = compared(2, seeds=1)
    compare._write(found, runs, show_runs=False)
    assert "1.00 (fewer than 3 seeds: no interval)" in capsys.readouterr().out


def test_progress_is_one_line_on_a_terminal_and_reported_once_elsewhere(monkeypatch, capsys):
    reported = compare._Progress()
    for number in (1, 2, 3):
        reported(f"measuring a random policy in X: {number} of 3 episodes")
    reported("X: no baseline, it cannot be made")
    reported.end()
    assert capsys.readouterr().err == "measuring a random policy in X\nX: no baseline, it cannot be made\n"

    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    live = compare._Progress()
    live("measuring: 1 of 3 episodes")
    live("measuring: starting")
    live.end()
    err = capsys.readouterr().err
    assert err.count("\n") == 0
    assert err.endswith(f"\r{' ' * len('measuring: starting')}\r")


def test_conditions_mean_trainings_and_the_others_are_counted(fake_trainer, home, capsys):
    training, running = fake_trainer.add(), fake_trainer.add(status="EXEC", outcome="")
    trial = fake_trainer.add(submitted_by=training.run_id, tags=["sweep:x"])
    sweep = fake_trainer.add(capabilities_json='{"submits_runs": true}')
    for mode in ("policy_eval", "policy_eval", "interactive"):
        fake_trainer.add(extras_json=json.dumps({"mode": mode}))
    failed, cancelled = fake_trainer.add(outcome="failed"), fake_trainer.add(outcome="cancelled")

    def chosen(*, with_failed=False, **conditions):
        usual = dict.fromkeys(("runs", "algos", "env_ids", "run_tags", "states", "outcomes"), ())
        options = {**usual, "text": "", "filter_name": None, "archived": False, "limit": None, "with_trials": False}
        with TrainerClient.connect(home) as client:
            return select_runs(client, Selection(**{**options, **conditions}), with_failed=with_failed)

    assert chosen(env_ids=("CartPole-v1",)) == [training, running]
    assert capsys.readouterr().err == (
        "left out: 1 cancelled run, 1 failed run, 1 watched run, 2 evaluations, 1 sweep, 1 trial "
        "(name them, or --with-trials, --outcome failed …, to see them)\n"
    )
    assert chosen(env_ids=("CartPole-v1",), with_trials=True) == [training, running, trial]
    assert trial in chosen(env_ids=("CartPole-v1",), run_tags=("sweep:x",))
    assert chosen(env_ids=("CartPole-v1",), with_failed=True) == [training, running, failed, cancelled]
    assert chosen(outcomes=("failed",))[-2:] == [failed, cancelled]
    assert chosen(runs=(sweep.run_id,)) == [sweep]
