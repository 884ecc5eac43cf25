"""What the end of a worker means: every combination that matters, as a table."""

from __future__ import annotations

import errno
import os

import pytest
from gym_gui.services.trainer import finalize as finalizing
from gym_gui.services.trainer.fsm import TRANSITIONS, RunEvent, RunStatus
from gym_gui.services.trainer.supervision import EndingFacts, conclude, describe_exit
from mosaic_wire.exit_record import ExitOutcome, ExitRecord
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb

EXEC, PAUSE, HSHK, RDY = RunStatus.EXEC, RunStatus.PAUSE, RunStatus.HSHK, RunStatus.RDY
COMPLETED, FAILED, CANCELLED = LifecycleKind.RUN_COMPLETED, LifecycleKind.RUN_FAILED, LifecycleKind.RUN_CANCELLED


def exit_record(outcome: ExitOutcome, code: int) -> ExitRecord:
    return ExitRecord.now("01J0000000000000000000000A", 1, outcome, reason="", exit_code=code, last_seq=3)


ENDINGS = {
    "completed": (EndingFacts(EXEC, 0, COMPLETED), RunEvent.COMPLETED, "completed"),
    "completed, nobody saw the exit code": (
        EndingFacts(EXEC, None, COMPLETED, exit_record=exit_record(ExitOutcome.COMPLETED, 0)),
        RunEvent.COMPLETED,
        "completed",
    ),
    "completed before the cancel reached it": (
        EndingFacts(EXEC, 0, COMPLETED, cancel_requested=True),
        RunEvent.COMPLETED,
        "completed",
    ),
    "reported completed but exited with an error": (EndingFacts(EXEC, 3, COMPLETED), RunEvent.FAULTED, "code 3"),
    "exit 0 without a word": (EndingFacts(EXEC, 0), RunEvent.FAULTED, "without reporting run_completed"),
    "exit 0 before registering": (EndingFacts(HSHK, 0), RunEvent.FAULTED, "without reporting run_completed"),
    "completed without having started": (EndingFacts(RDY, 0, COMPLETED), RunEvent.FAULTED, "before run_started"),
    "completed while it was stopped and cancelled": (
        EndingFacts(PAUSE, 0, COMPLETED, cancel_requested=True),
        RunEvent.CANCELLED,
        "on request",
    ),
    "its own failure": (
        EndingFacts(EXEC, 1, FAILED, failure="ValueError: NaN loss"),
        RunEvent.FAULTED,
        "ValueError: NaN loss",
    ),
    "refused its config": (
        EndingFacts(HSHK, 2, stderr="env_id: unknown environment 'Pongg'"),
        RunEvent.FAULTED,
        "refused its config: env_id: unknown environment",
    ),
    "bad input without a word": (EndingFacts(HSHK, 2), RunEvent.FAULTED, "code 2"),
    "killed": (EndingFacts(EXEC, -9), RunEvent.FAULTED, "SIGKILL"),
    "crashed": (EndingFacts(EXEC, -11), RunEvent.FAULTED, "SIGSEGV"),
    "gone without a trace": (EndingFacts(EXEC, None), RunEvent.FAULTED, "left no exit.json"),
    "preempted, which its SIGTERM shows as well": (
        EndingFacts(EXEC, 130, CANCELLED, engine_reason="preempted by Slurm on n1", interruption="preempted"),
        RunEvent.FAULTED,
        "preempted by Slurm on n1",
    ),
    "preempted after its last step": (
        EndingFacts(EXEC, 0, COMPLETED, engine_reason="preempted by Slurm", interruption="preempted"),
        RunEvent.COMPLETED,
        "completed",
    ),
    "cancelled and preempted": (
        EndingFacts(EXEC, 130, CANCELLED, engine_reason="preempted by Slurm", cancel_requested=True),
        RunEvent.CANCELLED,
        "on request",
    ),
    "released and preempted": (
        EndingFacts(
            PAUSE,
            0,
            release_requested=True,
            engine_reason="preempted by Slurm",
            exit_record=exit_record(ExitOutcome.RELEASED, 0),
        ),
        RunEvent.RELEASED,
        "checkpointed",
    ),
    "never started by its engine": (
        EndingFacts(RunStatus.INIT, None, engine_reason="its job was cancelled in Slurm, not by MOSAIC"),
        RunEvent.FAULTED,
        "not by MOSAIC",
    ),
    "a stranger's SIGTERM": (EndingFacts(EXEC, 130, CANCELLED), RunEvent.FAULTED, "did not come from MOSAIC"),
    "cancelled": (EndingFacts(EXEC, 130, CANCELLED, cancel_requested=True), RunEvent.CANCELLED, "on request"),
    "cancelled by force": (EndingFacts(EXEC, -9, cancel_requested=True), RunEvent.CANCELLED, "on request"),
    "cancelled while paused": (EndingFacts(PAUSE, -15, cancel_requested=True), RunEvent.CANCELLED, "on request"),
    "a limit": (EndingFacts(EXEC, -9, fault="out of memory"), RunEvent.FAULTED, "out of memory"),
    "released": (
        EndingFacts(PAUSE, 0, exit_record=exit_record(ExitOutcome.RELEASED, 0), release_requested=True),
        RunEvent.RELEASED,
        "free again",
    ),
    "died while it was to be released": (
        EndingFacts(PAUSE, -9, release_requested=True),
        RunEvent.FAULTED,
        "to be released, but was killed",
    ),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_the_end_of_a_worker_means_one_event_and_names_the_reason(case):
    facts, event, text = ENDINGS[case]
    ending = conclude(facts)
    assert ending.event is event
    assert text in ending.reason


@pytest.mark.parametrize("case", ENDINGS)
def test_every_ending_is_a_row_of_the_transition_table(case):
    facts, _, _ = ENDINGS[case]
    assert (facts.status, conclude(facts).event) in TRANSITIONS


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "code 0"), (2, "code 2"), (-15, "SIGTERM"), (-64, "SIG"), (-200, "signal 200"), (None, "no exit.json")],
)
def test_an_exit_code_is_reported_clearly(code, text):
    assert text in describe_exit(code)


def test_a_run_that_completes_a_moment_after_its_fault_keeps_the_reason_of_the_fault() -> None:
    ending = conclude(EndingFacts(RunStatus.FAULT, 0, COMPLETED, fault="out of wall-clock time"))
    assert (ending.event, ending.reason) == (RunEvent.FAULTED, "out of wall-clock time")


@pytest.mark.parametrize(
    ("facts", "is_final"),
    [
        (EndingFacts(EXEC, 1, FAILED, failure="10 trials failed", failed_for_good=True), True),
        (EndingFacts(EXEC, 1, FAILED, failure="CUDA is out of memory"), False),
        (EndingFacts(HSHK, 2, stderr="unknown environment"), True),
        (EndingFacts(EXEC, -9), False),
    ],
)
def test_what_would_only_repeat_itself_is_not_retried(facts: EndingFacts, is_final: bool) -> None:
    assert (conclude(facts).event, conclude(facts).is_final) == (RunEvent.FAULTED, is_final)


def test_a_cancelled_run_ends_for_the_reason_it_was_cancelled_for() -> None:
    facts = EndingFacts(EXEC, 130, CANCELLED, cancel_requested=True, cancel_reason="pruned at step 100")
    assert conclude(facts).reason == "pruned at step 100"


async def test_a_manifest_that_finds_no_room_is_one_line_of_the_log_however_long_it_takes(
    tmp_path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    attempts, reported = iter(range(4)), []

    def without_room(*_: object) -> bool:
        if (number := next(attempts)) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f".analytics.json.{number}.tmp")
        return True

    monkeypatch.setattr(finalizing, "finalize_manifest", without_room)
    monkeypatch.setattr(finalizing, "_RETRY_S", 0)
    record = pb.Run(run_id="R")
    await finalizing.finalize(RunFolder(tmp_path), record, "failed", "", lambda *text: reported.append(text))
    line = "run R: its manifest cannot be written; will retry: No space left on device"
    assert (reported, caplog.messages) == ([("manifest", line)] * 3, [line])


def test_only_an_interruption_is_marked_as_one() -> None:
    preempted = conclude(EndingFacts(EXEC, 130, CANCELLED, engine_reason="preempted", interruption="preempted"))
    assert preempted.interruption == "preempted"
    out_of_time = conclude(EndingFacts(EXEC, 130, CANCELLED, engine_reason="out of time"))
    assert out_of_time.interruption == ""
    cancelled = conclude(EndingFacts(EXEC, 130, cancel_requested=True, engine_reason="x", interruption="preempted"))
    assert cancelled.interruption == ""
