"""What Slurm prints, read; and the order in which a launch changes hands. No cluster is needed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gym_gui.config.settings import SlurmSettings
from gym_gui.services.trainer.errors import EngineUnavailable
from gym_gui.services.trainer.executors.guard import environment_on_node
from gym_gui.services.trainer.executors.handover import NodeReport, offer, take, withdraw
from gym_gui.services.trainer.executors.slurm import Job, SlurmExecutor, _count_of, _seconds
from gym_gui.services.trainer.launch import Launch
from mosaic_wire import env


def make_launch(folder: Path, **changes: object) -> Launch:
    values = {"run_id": "R", "attempt": 1, "argv": ("a", "b"), "env": {"X": "1", env.CUDA_VISIBLE_DEVICES: ""}}
    paths = {"cwd": folder, "stdout": folder / "out", "stderr": folder / "err", "mark": "R.1.abc"}
    return Launch(**{**values, **paths, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:04", 4), ("1:02:03", 3723), ("2-00:00:01", 172_801), ("INVALID", 0), ("", 0)]
)
def test_the_time_of_a_job_is_read(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:1", 1), ("gpu:a100:4(S:0-1)", 4), ("gpu:a100:2(IDX:0-1),shard:8", 2), ("(null)", 0), ("gpu:0", 0)],
)
def test_the_gpus_of_a_node_are_counted(gres: str, count: int) -> None:
    assert _count_of("gpu", gres) == count


def test_a_line_of_squeue_is_a_job_and_anything_else_is_none() -> None:
    line = "mosaic-R.1.abc|12|PENDING|Nodes required for job are DOWN, DRAINED|  |0:00|"
    assert Job.of_line(line) == Job(
        "mosaic-R.1.abc", "12", "PENDING", "Nodes required for job are DOWN, DRAINED", "", 0
    )
    assert Job.of_line("slurm_load_jobs error: Unexpected message received") is None


def test_a_launch_is_taken_or_withdrawn_by_exactly_one(tmp_path: Path) -> None:
    for number in range(50):
        file = tmp_path / "config" / f"{number}.json"
        offer(file, make_launch(tmp_path))
        assert file.stat().st_mode & 0o777 == 0o600
        with ThreadPoolExecutor(4) as threads:
            taken = [threads.submit(take, file) for _ in range(2)]
            withdrawn = [threads.submit(withdraw, file) for _ in range(2)]
        winners = [each.result() is not None for each in taken] + [each.result() for each in withdrawn]
        assert winners.count(True) == 1
        assert list(file.parent.iterdir()) == []


def test_a_launch_arrives_as_it_was_offered(tmp_path: Path) -> None:
    launch = make_launch(tmp_path, gpus=2, memory_mb=100, max_wallclock_minutes=1.5)
    offer(tmp_path / "config" / "it.json", launch)
    assert take(tmp_path / "config" / "it.json") == launch


def test_a_report_of_another_attempt_or_a_forged_one_is_none(tmp_path: Path) -> None:
    NodeReport("R.1.abc", "n1", exit_code=3).write(tmp_path)
    assert NodeReport.read(tmp_path, "R.1.abc") == NodeReport("R.1.abc", "n1", exit_code=3)
    assert NodeReport.read(tmp_path, "R.2.def") is None
    for text in ("", "[]", '{"mark": "R.1.abc"}', '{"mark": "R.1.abc", "node": "n", "exit_code": "0"}'):
        (tmp_path / "node.json").write_text(text)
        assert NodeReport.read(tmp_path, "R.1.abc") is None


def test_the_gpus_of_the_job_replace_those_of_the_daemon_and_a_run_without_sees_none(tmp_path: Path) -> None:
    job = {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_ID": "7", "HOME": "/root"}
    assert environment_on_node(make_launch(tmp_path, gpus=2), job) == {
        "X": "1",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "SLURM_JOB_ID": "7",
    }
    assert environment_on_node(make_launch(tmp_path), job)["CUDA_VISIBLE_DEVICES"] == ""


async def test_a_machine_without_slurm_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = SlurmExecutor("cluster", SlurmSettings(), tmp_path / "config")
    assert "cannot be started" in (await executor.machines()).problem
    with pytest.raises(EngineUnavailable, match=r"sbatch cannot be started .*: install Slurm's client programs here"):
        await executor.submit(make_launch(tmp_path))
    assert "sbatch cannot be started" in executor.trouble()
    assert list((tmp_path / "config" / "launches").iterdir()) == []
    executor.close()
