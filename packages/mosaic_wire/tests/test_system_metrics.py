"""What a run takes of its machine: true figures, in event files that TensorBoard reads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mosaic_wire.event_files import EventFolderReader, ScalarEventWriter
from mosaic_wire.system_metrics import SystemSampler, measure_tree
from mosaic_wire.testing import wait_until

BUSY = "import sys, time\nblock = bytearray(b'x') * (64 << 20)\nprint('ready', flush=True)\nwhile True: pass"


def test_events_are_those_tensorboard_reads(tmp_path: Path) -> None:
    writer = ScalarEventWriter(tmp_path)
    for step in (0, 1, 300, 2**40):
        writer.add_scalars({"cpu_percent": step + 0.5, "ü": -1.0}, step)
    writer.close()
    (batch,) = EventFolderReader(tmp_path).read()
    assert list(batch.columns["cpu_percent"].steps) == [0, 1, 300, 2**40]
    assert list(batch.columns["ü"].values) == [-1.0] * 4
    assert not batch.problems
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = event_accumulator.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("cpu_percent")] == [0, 1, 300, 2**40]
    assert [event.value for event in accumulator.Scalars("cpu_percent")][:3] == [0.5, 1.5, 300.5]


def test_children_and_grandchildren_count(tmp_path: Path) -> None:
    wrapper = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    process = subprocess.Popen([sys.executable, "-c", wrapper], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        sampler = SystemSampler(tmp_path, tmp_path, lambda: 7)
        (tmp_path / "file").write_bytes(b"x" * (3 << 20))
        assert sampler.sample() == {}
        before = measure_tree(os.getpid()).cpu_s
        assert wait_until(lambda: measure_tree(os.getpid()).cpu_s - before > 0.2)
        figures = sampler.sample()
        assert figures["processes"] >= 3
        assert figures["memory_mb"] > 64
        assert figures["cpu_percent"] > 1
    finally:
        for pid in list(measure_tree(process.pid).by_process):
            os.kill(pid[0], 9)
        process.communicate()


def test_the_sampler_writes_until_it_is_stopped(tmp_path: Path) -> None:
    sampler = SystemSampler(tmp_path, tmp_path / "events", lambda: 42, interval_s=0.02)
    sampler.start()
    reader = EventFolderReader(tmp_path / "events")
    seen: list[int] = []

    def look() -> bool:
        for batch in reader.read():
            assert batch.folder == "system"
            seen.extend(batch.columns["cpu_percent"].steps)
        return len(seen) >= 3

    assert wait_until(look)
    sampler.stop()
    look()
    assert set(seen) == {42}
    written = len(seen)
    time.sleep(0.1)
    look()
    assert len(seen) == written


def test_a_sampler_that_cannot_write_continues_when_it_can(tmp_path: Path) -> None:
    obstacle = tmp_path / "events" / "system"
    obstacle.parent.mkdir()
    obstacle.touch()  # a file where its folder should be: nothing can be written
    sampler = SystemSampler(tmp_path, tmp_path / "events", lambda: 42, interval_s=0.02)
    sampler.start()
    try:
        assert wait_until(lambda: sampler._count > 3)
        obstacle.unlink()
        assert wait_until(lambda: any(obstacle.glob("*")))
    finally:
        sampler.stop()
    (batch,) = EventFolderReader(tmp_path / "events").read()
    assert not batch.problems
    assert set(batch.columns["cpu_percent"].steps) == {42}
