"""Curricula on the real grid worlds; installs requirement sets, so it takes a while and a registry that answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mosaic_extras.testing import lend_sets
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home
from mosaic_wire.testing import WorkerProcess

ARGV = [sys.executable, "-m", "cleanrl_worker.cli"]
PATIENCE_S = 300
DOORKEY = [
    {"env_id": "MiniGrid-DoorKey-5x5-v0", "steps": 512},
    {"env_id": "MiniGrid-DoorKey-6x6-v0", "condition": "steps>=512|episode_return>=0.9"},
    {"env_id": "MiniGrid-DoorKey-8x8-v0"},
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the sets that these runs need."""
    home = Home(tmp_path_factory.mktemp("minigrid"))
    lend_sets(home, "minigrid", "curriculum")
    return home


def run(home: Home, schedule, *, total: int = 2048, **extras) -> WorkerProcess:
    config = {
        "algo": "ppo",
        "env_id": "MiniGrid-DoorKey-5x5-v0",
        "total_timesteps": total,
        "seed": 1,
        "extras": {"curriculum_schedule": schedule, **extras},
    }
    return WorkerProcess(ARGV, config, home)


def stages_of(worker: WorkerProcess) -> list[str]:
    return [event.payload["env_id"] for event in worker.events() if str(event.event) == "stage_changed"]


def test_a_curriculum_on_minigrid_is_trained_and_continues(home: Home) -> None:
    with run(home, DOORKEY, total=1536) as first:
        assert first.wait(PATIENCE_S) == 0, first.stderr()
    assert stages_of(first) == ["MiniGrid-DoorKey-6x6-v0", "MiniGrid-DoorKey-8x8-v0"]
    manifest = AnalyticsManifest.read(first.folder.manifest)
    assert (manifest.outcome, manifest.requirements) == ("completed", ("minigrid",))
    with run(home, DOORKEY, mode="resume_training", checkpoint_path=first.run_id) as second:
        assert second.wait(PATIENCE_S) == 0, second.stderr()
    loaded = next(event.payload for event in second.events() if str(event.event) == "checkpoint_loaded")
    assert (loaded["step"], loaded["environments"]) == (1536, "exact")


@pytest.mark.parametrize("method", ["learning_progress", "domain_randomization"])
def test_syllabus_chooses_among_babyai_s_environments(home: Home, method: str) -> None:
    schedule = {"method": method, "stages": "BABYAI_GOTO_CURRICULUM"}
    with run(home, schedule, total=1024) as worker:
        assert worker.wait(PATIENCE_S) == 0, worker.stderr()
    manifest = AnalyticsManifest.read(worker.folder.manifest)
    assert manifest.requirements == ("curriculum", "minigrid")
    assert Path(worker.folder.root / manifest.checkpoints[-1].path).is_dir()
