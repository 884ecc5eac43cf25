"""A name with bytes that are no text is reported in a sentence and affects nothing else."""

from __future__ import annotations

import json
import os

from gym_gui.testing import RunningDaemon

from tests.e2e.conftest import Mosaic


def test_a_worker_in_such_a_folder_has_a_problem_and_the_others_are_usable(
    shared_daemon: RunningDaemon, mosaic: Mosaic
) -> None:
    odd = json.dumps({"name": "odd", "argv": ["/bin/false", "\ud800"], "version": "\ud800"})
    for name, text in {b"old\xff": "{}", b"odd": odd}.items():
        folder = os.path.join(os.fsencode(shared_daemon.home.workers), name)
        os.makedirs(folder, mode=0o700)
        with open(os.path.join(folder, b"worker.json"), "w") as stream:
            stream.write(text)
    code, out, err = mosaic("workers", "--refresh", "--json")
    assert code == 0, err
    workers = {worker["name"]: worker for worker in json.loads(out)}
    assert "the name of its folder is not UTF-8; repair or remove" in workers["old_"]["problem"]
    assert workers["odd"]["problem"]
    assert not workers["human"]["problem"]


def test_arguments_that_are_no_text_are_reported_in_a_sentence(shared_daemon: RunningDaemon, mosaic: Mosaic) -> None:
    run_id = shared_daemon.submit(timesteps=20).run_id
    shared_daemon.wait_for(run_id, "TERM")
    changes = ["rename", run_id], ["tag", run_id, "--add"], ["note", run_id]
    for message in (*changes, ["show"], ["logs"], ["runs", "--with-tag"]):
        code, _, err = mosaic(*message, "a\udcff")
        assert (code, err) == (2, "mosaic: the argument 'a\ufffd' is not UTF-8 text; type it anew\n"), message
