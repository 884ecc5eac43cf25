"""A run that the daemon fails to watch, to recover or to finalize, again and again, is closed and can be deleted."""

from __future__ import annotations

import pytest

DAEMON = """
import sys
from gym_gui.services.trainer import dispatcher, finalize, run_supervisor
dispatcher._RETRY_S = finalize._RETRY_S = 0.05

def fail(*args, **kwargs):
    raise RecursionError("nested too deep for anything")

async def fail_later(*args, **kwargs):
    fail()

{}
from gym_gui.services.trainer.daemon import main
sys.exit(main(["run"]))
"""
BROKEN = {
    "watch": "run_supervisor.RunSupervisor._poll_files = fail",
    "end": "run_supervisor.RunSupervisor._read_last_events = fail",
    "recover": "run_supervisor.RunSupervisor.restore_history = fail_later",
    "finalize": "finalize.artifacts_of = fail",
}


@pytest.mark.parametrize(
    ("part", "is_cancelled"), [("watch", False), ("end", True), ("recover", False), ("finalize", True)]
)
def test_a_run_is_closed_after_a_number_of_failures(make_daemon, part: str, is_cancelled: bool) -> None:
    daemon = make_daemon(script="" if part == "recover" else DAEMON.format(BROKEN[part]))
    run_id = daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id
    if part == "recover":
        daemon.wait_for(run_id, "EXEC")
        daemon.stop()
        daemon.script = DAEMON.format(BROKEN[part])
        daemon.start()
    if is_cancelled:
        daemon.wait_for(run_id, "EXEC", "RDY", "HSHK")
        daemon.client.cancel(run_id)
    run = daemon.wait_for(run_id)
    assert run.outcome == ("cancelled" if is_cancelled else "failed")
    if not is_cancelled:
        assert "nested too deep for anything" in run.reason
    assert not run.pid
    daemon.client.delete(run_id)
