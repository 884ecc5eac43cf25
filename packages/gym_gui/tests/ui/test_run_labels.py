"""Labels and values of a run page, and families of runs, without a window."""

from __future__ import annotations

import json

import pytest
from gym_gui.ui.run_page.run_details import Kinship, Lineage, evaluation_pairs, origin_of, parameters_of
from gym_gui.ui.run_page.run_labels import advice_for, chip_text, facts_of, headline_of, headlines_of, remark_of
from gym_gui.wording.run_view import last_output
from mosaic_wire.proto import trainer_pb2 as pb

PARENT, CHILD, EVALUATION = (f"01ARZ3NDEKTSV4RRFFQ69G5FA{letter}" for letter in "VWX")
RUNNING = pb.Run(
    run_id=PARENT,
    status="EXEC",
    algo="ppo",
    env_id="CartPole-v1",
    seed=3,
    step=1500,
    total=10_000,
    sps=500.0,
    episodic_return=21.5,
    metrics={"mean_return_100": 20.0},
    eta_s=17.0,
    started_at=1000.0,
    size_bytes=2048,
)


def test_headline_figures_of_a_running_run() -> None:
    shown = {figure.key: (figure.value, figure.note) for figure in headlines_of(RUNNING, now=1075.0)}
    assert shown["step"] == ("1,500", "of 10,000 · 15 %")
    assert shown["mean_return_100"] == ("20.0", "last 21.5")
    assert shown["sps"][0] == "500"
    assert shown["eta"][0] == "0:17"
    assert shown["duration"][0] == "1:15"
    assert shown["size"][0] == "2.0 KiB"
    assert "17 left" in headline_of(RUNNING).replace("0:", "")


def test_a_queued_run_has_dashes_and_says_why_it_waits() -> None:
    run = pb.Run(run_id=PARENT, status="INIT", queue_reason="waiting for a GPU", flags=["throttled"])
    assert {figure.value for figure in headlines_of(run)} == {"–"}
    assert remark_of(run).startswith("waiting for a GPU")
    assert chip_text(run) == "… Queued"


def test_facts_leave_out_what_is_not_known() -> None:
    names = [name for name, _ in facts_of(RUNNING)]
    assert "Seed" in names
    assert "Finished" not in names


@pytest.mark.parametrize(
    ("reason", "lines", "text"),
    [
        ("its process exited with code 1", ["OSError: [Errno 28] No space left on device"], "disk is full"),
        ("its process was killed by SIGKILL (out of memory?)", [], "ran out of memory"),
        ("x", ["torch.OutOfMemoryError: CUDA out of memory. Tried to"], "GPU ran out of memory"),
        ("x", ["ModuleNotFoundError: No module named 'ale_py'"], "requirement set"),
        ("out of wall-clock time: more than 5 minutes", [], "longer one"),
        ("the worker was silent for more than 60 s", [], "hung"),
        ("it refused its config: no such environment", [], "Clone the run"),
        ("nobody knows", [], "Logs tab"),
    ],
)
def test_a_failure_comes_with_something_to_do(reason: str, lines: list[str], text: str) -> None:
    assert text in advice_for(pb.Run(reason=reason), lines)


def test_the_last_output_is_that_of_stderr_or_else_of_stdout() -> None:
    def event(seq: int, **payload: str) -> pb.StoryEvent:
        return pb.StoryEvent(seq=seq, payload_json=json.dumps(payload))

    loud = [event(1), event(2, stderr_tail="old"), event(3, stderr_tail="a\nb\nc\n", stdout_tail="x"), event(4)]
    assert last_output(loud, lines=2) == ("stderr", ["b", "c"])
    assert last_output([event(1, stderr_tail="", stdout_tail="only")]) == ("stdout", ["only"])
    assert last_output([pb.StoryEvent(payload_json="{broken")]) == ("", [])


def test_parameters_and_evaluation_as_pairs() -> None:
    extras = {"algo_params": {"lr": 0.00025, "anneal": False}, "mode": "train", "curriculum": [1, 2]}
    run = pb.Run(
        extras_json=json.dumps(extras), result_json=json.dumps({"evaluation": {"episodes": [1, 2], "mean_return": 9.5}})
    )
    assert parameters_of(run) == [("anneal", "false"), ("lr", "0.00025"), ("curriculum", "[1, 2]"), ("mode", "train")]
    assert evaluation_pairs(run, None) == [("mean return", "9.5"), ("episodes", "2")]
    assert parameters_of(pb.Run(extras_json="{broken")) == []


def child(run_id: str, number: int, **extras: str) -> pb.Run:
    return pb.Run(run_id=run_id, number=number, algo="ppo", status="INIT", extras_json=json.dumps(extras))


def test_families_are_reported_from_records() -> None:
    continued = pb.Run(run_id=CHILD, number=2, status="EXEC", parent=pb.ParentRun(run_id=PARENT, step=500))
    judged = child(EVALUATION, 1, mode="policy_eval", checkpoint_path=f"/home/x/runs/{PARENT}/checkpoints/step-5")
    assert origin_of(judged) == (PARENT, Kinship.EVALUATES)
    assert origin_of(RUNNING) is None
    lineage = Lineage.of([continued, judged, RUNNING])
    assert [(r.run_id, r.kinship) for r in lineage.children_of(PARENT)] == [
        (EVALUATION, Kinship.EVALUATES),
        (CHILD, Kinship.CONTINUES),
    ]
    assert lineage.note([judged]) == set()  # nothing new
    judged.status, judged.outcome = "TERM", "completed"
    assert lineage.note([judged]) == {PARENT}
    lineage.forget([EVALUATION])
    assert [relative.run_id for relative in lineage.children_of(PARENT)] == [CHILD]


def test_what_is_newer_here_wins_over_what_was_asked_for() -> None:
    old, new = (
        child(CHILD, 1, mode="policy_eval", checkpoint_path=PARENT),
        child(CHILD, 1, mode="policy_eval", checkpoint_path=PARENT),
    )
    new.status, new.outcome = "TERM", "failed"
    lineage = Lineage.of([new])
    lineage.adopt(Lineage.of([old]))
    assert lineage.children_of(PARENT)[0].state == "failed"
