"""How many runs are live, and which ends are worth a note. No Qt."""

from __future__ import annotations

from gym_gui.ui.shell.announcements import AT_ONCE, Counts, LiveRuns, announce
from mosaic_wire.proto import trainer_pb2 as pb


def run(number: int, status: str, outcome: str = "") -> pb.Run:
    return pb.Run(run_id=f"R{number}", status=status, outcome=outcome)


def test_runs_are_counted_by_what_they_do() -> None:
    live = LiveRuns()
    live.replace([run(1, "INIT"), run(2, "EXEC"), run(3, "RDY"), run(4, "PAUSE"), run(5, "TERM", "completed")])
    assert live.counts == Counts(running=2, queued=1, paused=1)


def test_what_ended_before_the_window_opened_is_not_announced() -> None:
    live = LiveRuns()
    assert live.replace([run(1, "TERM", "failed")]) == []
    assert live.update([run(1, "TERM", "failed")]) == []


def test_an_end_is_reported_once() -> None:
    live = LiveRuns()
    live.update([run(1, "EXEC")])
    assert [ended.run_id for ended in live.update([run(1, "TERM", "completed")])] == ["R1"]
    assert live.update([run(1, "TERM", "completed")]) == []


def test_an_end_while_the_daemon_was_away_is_reported_after_the_reconnection() -> None:
    live = LiveRuns()
    live.replace([run(1, "EXEC"), run(2, "EXEC")])
    assert [ended.run_id for ended in live.replace([run(1, "TERM", "failed"), run(2, "EXEC")])] == ["R1"]
    assert live.counts == Counts(running=1)


def test_a_few_ends_are_reported_one_by_one_and_many_in_one_sentence() -> None:
    few = [run(number, "TERM", "completed") for number in range(AT_ONCE)]
    assert [len(note.runs) for note in announce(few)] == [1] * AT_ONCE
    many = [*few, run(90, "TERM", "failed")]
    assert [(note.kind, len(note.runs)) for note in announce(many)] == [("failed", AT_ONCE + 1)]


def test_a_user_who_cancels_a_run_is_not_notified() -> None:
    assert announce([run(1, "TERM", "cancelled")]) == []
