"""What commands say of runs is so: continued runs, counts, values that are no numbers, files that are no scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, curve_config, install_curve_writer, install_scripted_worker
from mosaic_wire.proto import trainer_pb2 as pb

from tests.e2e.conftest import Mosaic

SCATTERED = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

folder = run_folder_of(config.run_id)
session = open_session()
session.started({})
session.follow_metrics(folder.tensorboard)
writer = EventFileWriter(str(folder.tensorboard), max_queue_size=10, flush_secs=0.1)
for step, value in enumerate([1.0, float("nan"), 3.0, float("inf"), 5.0]):
    summary = Summary(value=[Summary.Value(tag="charts/episodic_return", simple_value=value)])
    writer.add_event(Event(wall_time=1000.0 + step, step=step, summary=summary))
writer.close()
session.progress(50, 50)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


@pytest.fixture(scope="module")
def lineage(shared_daemon: RunningDaemon) -> tuple[pb.Run, pb.Run]:
    """A cancelled run, and the run that continues it as it was when it was queued."""
    run_id = shared_daemon.submit(timesteps=200, steps_per_second=100, checkpoint_every=10).run_id
    shared_daemon.wait_for_run(run_id, lambda run: run.step > 20)
    shared_daemon.client.update(run_id, name="walk")
    shared_daemon.client.cancel(run_id)
    shared_daemon.wait_for(run_id)
    queued = shared_daemon.client.resume(run_id)
    shared_daemon.client.update(queued.run_id, name="walk")
    shared_daemon.wait_for(queued.run_id)
    return shared_daemon.client.get(run_id), queued


def test_a_resumed_run_begins_with_the_steps_it_continues_from(lineage: tuple[pb.Run, pb.Run]) -> None:
    _, queued = lineage
    assert (queued.status, queued.step) == ("INIT", queued.parent.step)
    assert queued.step >= 20


def test_a_name_means_the_newest_run_of_a_lineage(shared_daemon: RunningDaemon, lineage: tuple[pb.Run, pb.Run]) -> None:
    assert shared_daemon.client.find("walk").run_id == lineage[1].run_id


def test_a_cancelled_run_that_another_one_continues_is_not_called_left_out(
    mosaic: Mosaic, lineage: tuple[pb.Run, pb.Run]
) -> None:
    code, out, err = mosaic("compare", "--algo", "random", "--no-baseline")
    assert (code, "left out" in err) == (0, False), err
    assert lineage[1].run_id in out


def test_returns_that_are_no_numbers_are_counted(shared_daemon: RunningDaemon, mosaic: Mosaic) -> None:
    install_scripted_worker(shared_daemon.home, "scattered", SCATTERED)
    config = curve_config()
    config["metadata"]["worker"] |= {"type": "scattered"}
    config["metadata"]["worker"].pop("module", None)
    shared_daemon.client.workers(refresh=True)
    run = shared_daemon.wait_for(shared_daemon.client.submit(config).run.run_id)
    assert run.outcome == "completed", run.reason
    _, out, err = mosaic("compare", run.run_id, "--no-baseline")
    assert f"NaN or infinite, and left out: 2 returns of {run.run_id[-8:]}" in err
    _, out, _ = mosaic("show", run.run_id)
    assert "return 3, NaN or infinite: 2 returns of the last hundred" in out
    shared_daemon.client.delete(run.run_id)


def test_arguments_tell_runs_of_a_shell_script_apart(shared_daemon: RunningDaemon, mosaic: Mosaic, tmp_path) -> None:
    script = tmp_path / "walk.sh"
    script.write_text("#!/bin/sh\necho $1\n")
    for level in ("1", "2"):
        code, _, err = mosaic("train", str(script), "--detach", "--", "--level", level)
        assert code == 0, err
    for run in shared_daemon.client.list(text="walk.sh").runs:
        shared_daemon.wait_for(run.run_id)
    ids = [run.run_id for run in shared_daemon.client.list(text="walk.sh").runs]
    _, out, err = mosaic("compare", *ids, "--json")
    assert len(json.loads(out)["groups"]) == 2, out
    assert "no baseline: walk.sh was run without naming its environment" in err


def test_an_abbreviation_is_reported_how_many_runs_it_fits(shared_daemon: RunningDaemon, mosaic: Mosaic) -> None:
    for _ in range(8 - shared_daemon.client.list(include_archived=True).matching):
        shared_daemon.submit(timesteps=1)
    count = shared_daemon.client.list(include_archived=True, run_id_prefix="01").matching
    assert count > 7
    assert f"'01' matches {count} runs" in mosaic("show", "01")[2]


@pytest.mark.parametrize("name", ["x.py", "x.sh"])
def test_a_folder_or_a_pipe_is_no_script(mosaic: Mosaic, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert f"{name} is a folder, not a script" in mosaic("train", str(tmp_path / name))[2]
    (tmp_path / name).rmdir()
    os.mkfifo(tmp_path / name)
    assert f"{name} is no regular file, not a script" in mosaic("train", str(tmp_path / name))[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [("[" * 100_000, "nested deeper than"), (f'{{"a": {"9" * 5000}}}', "too many digits"), ("{a}", "line 1, column 2")],
)
def test_a_config_that_is_no_json_is_refused_in_the_words_of_a_person(
    mosaic: Mosaic, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    code, _, err = mosaic("submit", str(tmp_path / "config.json"))
    assert (code, said in err) == (2, True), err


def test_a_file_that_exists_is_replaced_only_when_that_was_asked_for(
    shared_daemon: RunningDaemon, mosaic: Mosaic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install_curve_writer(shared_daemon.home)
    run_id = shared_daemon.wait_for(shared_daemon.client.submit(curve_config()).run.run_id).run_id
    for command, file in (("plot", "a.png"), ("plot", "a.csv"), ("report", "a.html"), ("export", "a.tar.gz")):
        message = [command, run_id, "--out", file, *(["--no-baseline"] if command == "report" else [])]
        Path(file).write_text("mine")
        code, _, err = mosaic(*message)
        assert (code, f"{file} exists; --force replaces it" in err, Path(file).read_text()) == (2, True, "mine"), err
        assert mosaic(*message, "--force")[0] == 0
        assert Path(file).read_bytes() != b"mine"
    code, _, err = mosaic("frames", run_id, "--out", "a.png")
    assert (code, "exists" in err) == (2, True)
    os.mkfifo("pipe.png")
    for command in ("plot", "report", "export"):
        code, _, err = mosaic(command, run_id, "--out", "pipe.png", "--force")
        assert (code, "pipe.png is a folder, pipe or device, not a file" in err) == (2, True), err
    assert Path("pipe.png").is_fifo()


def test_a_report_goes_to_standard_output(
    shared_daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_id = shared_daemon.wait_for(shared_daemon.submit(timesteps=5).run_id).run_id
    command = [sys.executable, "-m", "gym_gui", "report", run_id, "-o", "-", "--no-baseline"]
    done = subprocess.run(command, env=shared_daemon.variables, capture_output=True, text=True, check=True)
    page = done.stdout.strip()
    assert (page[:9].lower(), page[-7:], list(tmp_path.iterdir())) == ("<!doctype", "</html>", [])


def test_a_file_that_cannot_be_read_to_its_end_is_no_traceback_of_an_import(mosaic: Mosaic) -> None:
    code, _, err = mosaic("import", "/proc/self/mem")
    assert (code, err) == (1, "mosaic: /proc/self/mem cannot be read: Input/output error\n")


def test_an_archive_of_a_continued_run_says_what_is_not_in_it_and_is_never_the_last_run(
    shared_daemon: RunningDaemon, mosaic: Mosaic, lineage: tuple[pb.Run, pb.Run], tmp_path: Path
) -> None:
    parent, child = (run.run_id for run in lineage)
    started = shared_daemon.wait_for(shared_daemon.submit(timesteps=3).run_id).run_id
    archives = {run_id: str(tmp_path / f"{run_id}.tar.gz") for run_id in (parent, child)}
    reported = [mosaic("export", run_id, "-o", file)[2] for run_id, file in archives.items()]
    assert (reported[0], f"the beginning of its curves is not in it: export run {parent}" in reported[1]) == ("", True)
    both = mosaic("export", child, "-o", archives[child], "--with-earlier", "--force")
    assert (both[0], both[2], (tmp_path / f"mosaic-{parent}.tar.gz").is_file()) == (0, "", True)
    for run_id in archives:
        shared_daemon.client.delete(run_id)
    assert mosaic("import", archives[child], str(tmp_path / f"mosaic-{parent}.tar.gz"))[2] == ""
    for run_id in archives:
        shared_daemon.client.delete(run_id)
    assert (
        "is missing: the run it continues is not here; import its archive, too" in mosaic("import", archives[child])[2]
    )
    assert mosaic("import", archives[parent])[2] == ""
    assert shared_daemon.client.list(limit=1).runs[0].run_id == parent
    assert shared_daemon.client.find("last").run_id == started
