"""A name, tag or filter that means another run, or every run, is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, random_config

from tests.e2e.conftest import Mosaic


@pytest.fixture(scope="module")
def runs(shared_daemon: RunningDaemon) -> list[str]:
    made = [shared_daemon.submit(timesteps=20).run_id for _ in range(2)]
    for run_id in made:
        shared_daemon.wait_for(run_id, "TERM")
    return made


def test_a_run_is_not_named_like_another_one(mosaic: Mosaic, runs: list[str], tmp_path: Path) -> None:
    first, second = runs
    refused = {" ": "visible character", "last": "the last run you started", first: first, first[-8:].lower(): first}
    for name, said in refused.items():
        for message in (["rename", second, name], ["tag", second, "--add", name]):
            code, _, text = mosaic(*message)
            assert (code, said in text) == (2, True), text
        config = {**random_config(), "run_name": name, "tags": [name]}
        (tmp_path / "named.json").write_text(json.dumps(config))
        code, _, text = mosaic("submit", str(tmp_path / "named.json"))
        assert (code, said in text) == (2, True), text
    assert mosaic("tag", second, " ")[0] == 2
    assert mosaic("rename", second, "test")[0] == 0


def test_a_filter_without_conditions_is_neither_saved_nor_used_to_delete(
    shared_daemon: RunningDaemon, mosaic: Mosaic, runs: list[str]
) -> None:
    code, _, text = mosaic("runs", "--archived", "--save-filter", "all")
    assert (code, "a filter needs conditions" in text) == (2, True), text
    shared_daemon.client.save_filter("old", {})  # one of an earlier version
    code, _, text = mosaic("delete", "--filter", "old", "--yes")
    assert (code, "it means every run" in text) == (2, True), text
    assert shared_daemon.client.list().matching == len(runs)
