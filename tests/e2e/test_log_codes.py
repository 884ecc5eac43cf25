"""The daemon's log: every code of the table is written, one line for each change of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from gym_gui.logging_config.log_constants import ALL_CODES, StructuredLine, parse_structured_line
from gym_gui.services.trainer.errors import ArchiveRefused, InvalidConfig
from gym_gui.testing import RunningDaemon


def coded_lines(daemon: RunningDaemon) -> list[StructuredLine]:
    parsed = (parse_structured_line(line.partition(" | ")[2]) for line in daemon.log().splitlines())
    return [line for line in parsed if line is not None]


def test_every_code_of_the_table_is_written_and_only_for_changes(make_daemon, tmp_path: Path) -> None:
    daemon = make_daemon(start=False)
    broken = daemon.home.workers / "broken"
    broken.mkdir(parents=True)
    (broken / "worker.json").write_text("{}")
    daemon.start()
    assert len(list(daemon.client.workers())) > 1
    with pytest.raises(InvalidConfig):
        daemon.client.submit({})
    (tmp_path / "no.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(ArchiveRefused):
        daemon.client.import_archive(tmp_path / "no.tar.gz")

    retried = daemon.submit(timesteps=20, fail_at_step=5, scheduling={"retries": 1}).run_id
    cpus = daemon.client.health().cpus_total
    run_id = daemon.submit(timesteps=10**6, steps_per_second=200, resources={"cpus": {"requested": cpus}}).run_id
    daemon.wait_for(run_id, "EXEC")
    waits = daemon.submit(timesteps=5, resources={"cpus": {"requested": 1}}).run_id
    daemon.client.pause(run_id)
    daemon.wait_for(run_id, "PAUSE")
    daemon.client.resume(run_id)
    daemon.wait_for(run_id, "EXEC")
    daemon.restart()
    daemon.client.cancel(run_id)
    outcomes = {daemon.wait_for(each).outcome for each in (run_id, waits, retried)}

    lines = coded_lines(daemon)
    assert {line.number for line in lines} == {code.number for code in ALL_CODES}
    assert [line.number for line in lines if line.extra.get("run_id") == run_id] == [
        401,
        402,
        403,
        501,
        409,
        410,
        406,
        404,
    ]
    of_waits = [line.number for line in lines if line.extra.get("run_id") == waits]
    assert of_waits == [401, 412, 412, 402, 403, 501, 404]  # each daemon says once that it waits
    ended = [line.message for line in lines if line.number == 404]
    assert outcomes == {"completed", "failed", "cancelled"}
    assert all(any(f"random none {outcome}" in message for message in ended) for outcome in outcomes)


def test_the_runbook_lists_the_codes_of_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs/runbooks/daemon.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("| `LOG")] == [
        f"| `{code.code}` | {code.meaning} |" for code in ALL_CODES
    ]
