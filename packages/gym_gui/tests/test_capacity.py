"""Room for a run: what is free, and the sentence that says what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from gym_gui.services.trainer.capacity import CapacityGuard, MachineProbe
from gym_gui.services.trainer.cgroups import Cgroups, cpu_quota, own_folders
from gym_gui.services.trainer.resources import ResourceRequest
from mosaic_wire.paths import Home


@dataclass
class FakeProbe:
    memory_mb: int = 4000
    disk_mb: int = 4000

    def free_memory_mb(self) -> int:
        return self.memory_mb

    def free_disk_mb(self, folder: Path) -> int:
        return self.disk_mb


def shortage(tmp_path: Path, probe: FakeProbe, *, memory_mb: int | None = None, estimate: int = 512) -> str | None:
    guard = CapacityGuard(Home(tmp_path), min_free_disk_mb=512, min_free_memory_mb=256, probe=probe)
    return guard.shortage(ResourceRequest(memory_mb=memory_mb), estimate)


def test_with_room_enough_nothing_is_short(tmp_path: Path) -> None:
    assert shortage(tmp_path, FakeProbe()) is None


def test_too_little_memory_is_reported_with_the_numbers(tmp_path: Path) -> None:
    reported = shortage(tmp_path, FakeProbe(memory_mb=300))
    assert reported == "waiting for memory: needs about 512 MB, 300 MB free (256 MB stay in reserve)"


@pytest.mark.parametrize(("free_mb", "short"), [(767, True), (768, False)])
def test_the_reserve_is_not_given_away(tmp_path: Path, free_mb: int, short: bool) -> None:
    assert (shortage(tmp_path, FakeProbe(memory_mb=free_mb)) is not None) == short


def test_what_a_run_asked_for_counts_instead_of_the_estimate(tmp_path: Path) -> None:
    assert shortage(tmp_path, FakeProbe(memory_mb=1000), memory_mb=100, estimate=5000) is None
    assert "about 3000 MB" in (shortage(tmp_path, FakeProbe(memory_mb=1000), memory_mb=3000) or "")


def test_memory_promised_to_runs_that_just_started_is_not_promised_again(tmp_path: Path) -> None:
    guard = CapacityGuard(Home(tmp_path), probe=FakeProbe(memory_mb=2000))
    assert guard.shortage(ResourceRequest(), 1000) is None
    assert "500 MB free" in (guard.shortage(ResourceRequest(), 1000, promised_memory_mb=1500) or "")
    assert "0 MB free" in (guard.shortage(ResourceRequest(), 1000, promised_memory_mb=9999) or "")


def test_a_full_disk_is_reported_with_the_folder(tmp_path: Path) -> None:
    reported = shortage(tmp_path, FakeProbe(disk_mb=100))
    assert reported is not None
    assert "disk space: 100 MB free" in reported
    assert str(tmp_path) in reported


def test_the_real_machine_answers(tmp_path: Path) -> None:
    probe = MachineProbe()
    assert 0 < probe.free_memory_mb() <= psutil.virtual_memory().total >> 20
    assert probe.free_disk_mb(tmp_path) == probe.free_disk_mb(tmp_path / "not" / "yet" / "there")


def test_the_limit_of_the_container_counts() -> None:
    cgroups = Cgroups.detect()
    if cgroups is None or "memory" not in own_folders() or os.geteuid() != 0:
        pytest.skip("needs a writable version 1 memory group")
    group = cgroups.create(f"ceiling-{os.getpid()}", memory_mb=300)
    # A process inside a limited group, as in a container; it looks at itself.
    code = (
        "import sys; sys.stdin.read()\n"
        "from gym_gui.services.trainer.cgroups import memory_ceiling\n"
        "found = memory_ceiling(); print(found.total_bytes >> 20, 0 < found.free_bytes < found.total_bytes)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert group.add(process.pid)
    out, _ = process.communicate("go")
    assert out.split() == ["300", "True"]
    assert group.remove()


def test_a_cpu_quota_is_a_positive_number_or_nothing() -> None:
    quota = cpu_quota()
    assert quota is None or quota > 0
