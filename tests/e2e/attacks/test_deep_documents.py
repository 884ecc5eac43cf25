"""A lifecycle event, manifest or exit record nested 900 levels deep is damage like any other."""

from __future__ import annotations

import json

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.files import MAX_JSON_DEPTH, parse_json
from mosaic_wire.lifecycle import LifecycleKind, LifecycleReader, LifecycleSpool
from mosaic_wire.testing import wait_until

NESTER = """
root = run_folder_of(config.run_id).root
session = open_session()
session.started({})
while not (root / "go").exists():
    time.sleep(0.02)
deep = '{"a":' * 900 + "1" + "}" * 900
with (root / "lifecycle.jsonl").open("a") as stream:
    for seq, kind in enumerate(("checkpoint_saved", "run_failed", "paused"), 100):
        head = f'"event": "{kind}", "run_id": "{config.run_id}", "timestamp": 1, "seq": {seq}, "attempt": 1'
        stream.write(f'{{{head}, "payload": {deep}}}\\n')
for name in ("analytics.json", "exit.json"):
    (root / name).write_text(f'{{"run_id": "{config.run_id}", "evaluation": {deep}, "reason": {deep}}}')
(root / "planted").touch()
session.stop_requested.wait()
os._exit(3)
"""


@pytest.mark.parametrize("is_watched", [pytest.param(True, marks=pytest.mark.fault), False])
def test_a_deep_document_keeps_no_run_from_its_end(daemon: RunningDaemon, is_watched: bool) -> None:
    install_scripted_worker(daemon.home, "nester", NESTER)
    run_id = daemon.client.submit(scripted_config("nester")).run.run_id
    daemon.wait_for(run_id, "EXEC")
    if not is_watched:
        daemon.stop()
    root = daemon.home.run_folder(run_id).root
    (root / "go").touch()
    assert wait_until((root / "planted").exists)
    if not is_watched:
        daemon.start()
    daemon.client.cancel(run_id)
    run = daemon.wait_for(run_id)
    assert run.outcome == "cancelled"
    assert "recovery_failed" not in daemon.event_kinds(run_id)
    daemon.client.delete(run_id)


def test_documents_are_refused_beyond_a_depth_and_a_number_of_parts() -> None:
    good = "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
    assert parse_json(good) == json.loads(good)
    for bad in (f"[{good}]", "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900):
        with pytest.raises(ValueError, match="nested deeper"):
            parse_json(bad)
    with pytest.raises(ValueError, match="more than 1000000 lists"):
        parse_json("[" + "[]," * 1_000_001 + "1]")


def test_an_event_is_written_so_that_it_can_be_read_however_deep_its_payload_is(tmp_path) -> None:
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"a": deep}
    spool = LifecycleSpool(tmp_path / "lifecycle.jsonl", "run")
    spool.append(LifecycleKind.RUN_FAILED, {"error": "why", "deep": deep})
    spool.close()
    (event,) = LifecycleReader(tmp_path / "lifecycle.jsonl").read()
    assert event.payload["error"] == "why"
