"""What the tests of this worker share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WORLDS = Path(__file__).with_name("worlds")


@pytest.fixture(scope="session", autouse=True)
def _tiny_worlds() -> Iterator[None]:
    """`tiny_worlds:Name-v0` can be made, here and in processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(WORLDS))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(WORLDS), os.environ.get("PYTHONPATH")])))
        yield
    sys.modules.pop("tiny_worlds", None)
