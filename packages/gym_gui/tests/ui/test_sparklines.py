"""Short curves: of the runs on the screen only, a few at a time, again when they have grown."""

from __future__ import annotations

from typing import Any

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.panel import AT_ONCE, POINTS, REFRESH_S, Sparklines, fetch
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb

TRAINING = {
    "run_name": "curve",
    "metadata": {
        "worker": {
            "type": "cleanrl",
            "module": "cleanrl_worker.cli",
            "config": {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 2000, "extras": {}},
        }
    },
}


@pytest.mark.slow  # the thinning itself is tested in every CI
def test_the_curve_of_a_real_run_arrives_thinned(qtbot, link: DaemonLink, window_daemon: RunningDaemon) -> None:
    run = window_daemon.client.submit(TRAINING).run
    ended = window_daemon.wait_for(run.run_id, timeout_s=120)
    assert ended.outcome == "completed", ended.reason
    sparklines, arrived = Sparklines(link), dict[str, tuple[float, ...]]()
    sparklines.arrived.connect(lambda run_id, curve: arrived.update({run_id: curve}))
    sparklines.request([ended])
    qtbot.waitUntil(lambda: run.run_id in arrived, timeout=30_000)
    assert 5 < len(arrived[run.run_id]) <= POINTS + 2
    assert all(value >= 1 for value in arrived[run.run_id])  # a CartPole episode has at least one step


def test_a_deleted_run_has_no_curve(link: DaemonLink, window_daemon: RunningDaemon) -> None:
    assert fetch(window_daemon.client, new_run_id()) == ()


class _Recorder:
    """Stands in for the link: notes what is asked for, answers on request."""

    def __init__(self) -> None:
        self.is_connected = True
        self.asked: list[dict[str, Any]] = []

    def call(self, function: Any, **answers: Any) -> None:
        self.asked.append(answers)


def live(run_id: str, step: int) -> pb.Run:
    return pb.Run(run_id=run_id, status="EXEC", step=step)


def test_only_a_few_are_asked_for_at_once_and_the_rest_afterwards(qapp: object) -> None:
    recorder, now = _Recorder(), [0.0]
    sparklines = Sparklines(recorder, clock=lambda: now[0])  # type: ignore[arg-type]
    runs = [live(str(number), 10) for number in range(AT_ONCE + 2)]
    sparklines.request(runs)
    sparklines.request(runs)
    assert len(recorder.asked) == 1
    recorder.asked[0]["done"]({run.run_id: (1.0,) for run in runs[:AT_ONCE]})
    assert len(recorder.asked) == 2
    recorder.asked[1]["done"]({run.run_id: (1.0,) for run in runs[AT_ONCE:]})
    assert len(recorder.asked) == 2


def test_a_growing_curve_is_asked_for_again_but_not_too_soon(qapp: object) -> None:
    recorder, now = _Recorder(), [0.0]
    sparklines = Sparklines(recorder, clock=lambda: now[0])  # type: ignore[arg-type]

    def want(run: pb.Run) -> int:
        before = len(recorder.asked)
        sparklines.request([run])
        if len(recorder.asked) > before:
            recorder.asked[-1]["done"]({run.run_id: (1.0, 2.0)})
        return len(recorder.asked)

    assert want(pb.Run(run_id="a", status="INIT")) == 0  # it has done nothing yet
    assert want(live("a", 10)) == 1
    assert want(live("a", 20)) == 1
    now[0] += REFRESH_S
    assert want(live("a", 10)) == 1  # nothing new
    assert want(live("a", 20)) == 2
    ended = pb.Run(run_id="a", status="TERM", step=20)
    assert want(ended) == 3  # once more, complete
    now[0] += 100
    assert want(ended) == 3


def test_a_daemon_that_is_away_is_asked_again_later(qapp: object) -> None:
    recorder = _Recorder()
    sparklines = Sparklines(recorder)  # type: ignore[arg-type]
    recorder.is_connected = False
    sparklines.request([live("a", 1)])
    assert recorder.asked == []
    recorder.is_connected = True
    sparklines.request([live("a", 1)])
    recorder.asked[0]["failed"]("gone")
    sparklines.request([live("a", 1)])
    assert len(recorder.asked) == 2
