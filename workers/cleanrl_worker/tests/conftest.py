"""What the tests of this worker share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cleanrl_worker.threads import set_numpy_threads
from mosaic_extras.testing import importing

WORLDS = Path(__file__).with_name("worlds")


@pytest.fixture(scope="session", autouse=True)
def _tiny_worlds() -> Iterator[None]:
    """`tiny_worlds:Name-v0` can be made, here and in processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(WORLDS))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(WORLDS), os.environ.get("PYTHONPATH")])))
        yield
    sys.modules.pop("tiny_worlds", None)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """As in a run; numpy's threads would fight those of the other tests."""
    import numpy  # noqa: F401 - only loaded modules can be reported

    set_numpy_threads(1)


@pytest.fixture(scope="module")
def atari() -> Iterator[None]:
    """Atari games can be made in this process."""
    with importing("atari"):
        yield


@pytest.fixture(scope="module")
def minigrid() -> Iterator[None]:
    """Grid worlds can be made in this process."""
    with importing("minigrid"):
        yield


@pytest.fixture(scope="module")
def mujoco() -> Iterator[None]:
    """MuJoCo's robots can be made in this process."""
    with importing("mujoco"):
        yield
