"""What can be done with a run in each state, and what is said when it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gym_gui.ui.runs.allowed_actions import RunAction, possible, why_not
from mosaic_wire.proto import trainer_pb2 as pb

ABLE = json.dumps({"supports_pause": True, "supports_checkpointing": True})


def a_run(status: str = "EXEC", **fields: Any) -> pb.Run:
    usual = {"run_id": "r", "capabilities_json": ABLE, "started_at": 1.0, "total": 100, "step": 10}
    return pb.Run(status=status, **{**usual, **fields})


STATES = {
    "queued": a_run("INIT", started_at=0, step=0, capabilities_json=""),
    "running": a_run("EXEC"),
    "pausing": a_run("EXEC", flags=["pausing"]),
    "cancelling": a_run("EXEC", flags=["cancelling"]),
    "paused": a_run("PAUSE"),
    "released": a_run("PAUSE", flags=["released"]),
    "completed": a_run("TERM", outcome="completed", step=100),
    "failed": a_run("TERM", outcome="failed"),
    "archived": a_run("TERM", outcome="completed", step=100, archived=True),
    "never began": a_run("TERM", outcome="cancelled", started_at=0, step=0, capabilities_json=""),
    "evaluation": a_run("TERM", outcome="completed", step=100, extras_json='{"mode": "policy_eval"}'),
}
POSSIBLE = {
    RunAction.PAUSE: {"running"},
    RunAction.RELEASE: {"running", "pausing", "paused"},
    RunAction.RESUME: {"paused", "released", "failed"},
    RunAction.CANCEL: {"queued", "running", "pausing", "paused", "released"},
    RunAction.EXTEND: {"completed", "failed", "archived"},
    RunAction.EVALUATE: {"running", "pausing", "cancelling", "paused", "released", "completed", "failed", "archived"},
    RunAction.ARCHIVE: {"completed", "failed", "never began", "evaluation"},
    RunAction.UNARCHIVE: {"archived"},
    RunAction.EXPORT: {"completed", "failed", "archived", "never began", "evaluation"},
    RunAction.DELETE: {"completed", "failed", "archived", "never began", "evaluation"},
    RunAction.CLONE: set(STATES),
    RunAction.EDIT: set(STATES),
}


@pytest.mark.parametrize("kind", POSSIBLE)
def test_a_deed_is_possible_in_these_states_and_refused_with_words_in_all_others(kind: RunAction) -> None:
    reasons = {name: why_not(kind, run) for name, run in STATES.items()}
    assert {name for name, reason in reasons.items() if not reason} == POSSIBLE[kind]
    assert all(
        reason.endswith((".", ":")) or ":" in reason for name, reason in reasons.items() if name not in POSSIBLE[kind]
    )


def test_several_runs_are_served_as_far_as_they_can_be() -> None:
    able, reason = possible(RunAction.PAUSE, [STATES["running"], STATES["paused"], STATES["completed"]])
    assert able == [STATES["running"]]
    assert reason.startswith("Not with 2 of them")
    assert possible(RunAction.DELETE, [STATES["running"], STATES["queued"]])[0] == []


def test_what_opens_a_form_needs_a_single_run() -> None:
    both = [STATES["completed"], STATES["failed"]]
    assert possible(RunAction.EXTEND, both)[0] == []
    assert possible(RunAction.COMPARE, both) == (both, "")
    assert possible(RunAction.COMPARE, both[:1])[0] == []
    assert possible(RunAction.OPEN, []) == ([], "No run is selected.")


def test_a_folder_on_another_machine_is_not_offered(tmp_path: Path) -> None:
    assert why_not(RunAction.FOLDER, a_run(run_dir=str(tmp_path))) == ""
    assert "not on this machine" in why_not(RunAction.FOLDER, a_run(run_dir=str(tmp_path / "elsewhere")))
    assert why_not(RunAction.WATCH, a_run(run_dir=str(tmp_path))) == ""
    assert "not on this machine" in why_not(RunAction.WATCH, a_run(run_dir=str(tmp_path / "elsewhere")))
    assert "not trained anything" in why_not(RunAction.WATCH, a_run("INIT", run_dir=str(tmp_path)))
    assert "restore it first" in why_not(RunAction.WATCH, a_run("TERM", archived=True, run_dir=str(tmp_path)))


def test_a_worker_without_checkpoints_cannot_be_released_or_extended() -> None:
    plain = json.dumps({"supports_pause": True})
    assert why_not(RunAction.RELEASE, a_run("EXEC", capabilities_json=plain))
    assert why_not(RunAction.EXTEND, a_run("TERM", outcome="completed", capabilities_json=plain))
    assert not why_not(RunAction.PAUSE, a_run("EXEC", capabilities_json=""))


def test_a_sweep_can_be_extended_and_has_no_policy_to_evaluate_or_watch() -> None:
    sweep = a_run(
        "TERM",
        outcome="completed",
        step=100,
        capabilities_json=json.dumps({"submits_runs": True, "supports_checkpointing": True}),
    )
    assert why_not(RunAction.EXTEND, sweep) == ""
    assert "its child runs" in why_not(RunAction.EVALUATE, sweep)
    assert "its child runs" in why_not(RunAction.WATCH, sweep)
