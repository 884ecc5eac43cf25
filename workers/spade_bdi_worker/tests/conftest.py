"""Runs of the worker in this process, which imports the requirement sets of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mosaic_extras.testing import importing
from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home, RunFolder
from spade_bdi_worker.cli import main

LAKE = {"env_kwargs": "is_slippery=false", "eval_episodes": 0}


@dataclass(frozen=True)
class Finished:
    """What a run has left."""

    code: int
    folder: RunFolder
    error: str

    @property
    def manifest(self) -> AnalyticsManifest:
        return AnalyticsManifest.read(self.folder.manifest)

    @property
    def reason(self) -> str:
        return self.manifest.reason

    def checkpoint(self, step: int) -> Path:
        return self.folder.checkpoints / f"step-{step}"

    def state(self, step: int) -> dict[str, Any]:
        return json.loads((self.checkpoint(step) / "state.json").read_text())

    def returns(self) -> list[tuple[int, float]]:
        """Step and return of every episode."""
        reader, points = EventFolderReader(self.folder.tensorboard), []
        while True:
            for batch in reader.read():
                if (column := batch.columns.get("charts/episodic_return")) is not None:
                    points += zip(column.steps, column.values, strict=True)
            if not reader.has_more:
                return points


Train = Callable[..., Finished]


@pytest.fixture(scope="session")
def _sets() -> Iterator[None]:
    with importing("agentspeak", "minigrid"):
        yield


@pytest.fixture
def train(_sets: None, home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    """Run the worker on a config; the keywords are parameters."""

    def train(
        env_id: str = "FrozenLake-v1",
        steps: int = 1000,
        *,
        seed: int = 1,
        extras: Mapping[str, Any] | None = None,
        flags: tuple[str, ...] = (),
        **parameters: Any,
    ) -> Finished:
        run_id = new_run_id()
        config = {"run_id": run_id, "algo": "spade_bdi", "env_id": env_id, "total_timesteps": steps, "seed": seed}
        config["extras"] = {"algo_params": parameters, **(extras or {})}
        file = tmp_path / f"{run_id}.json"
        file.write_text(json.dumps(config))
        code = main(["--config", str(file), *flags])
        captured = capsys.readouterr()
        return Finished(code, home.run_folder(run_id), captured.err if not flags else captured.out + captured.err)

    return train


@pytest.fixture
def behaviour(tmp_path: Path) -> Callable[..., str]:
    """Write .asl files into a folder of the test; return the path of the only one, or of the folder."""

    def write(**texts: str) -> str:
        folder = tmp_path / "behaviour"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / f"{name}.asl").write_text(text)
        return str(folder if len(texts) > 1 else folder / f"{next(iter(texts))}.asl")

    return write
