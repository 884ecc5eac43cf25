"""The real window on a real screen (Xvfb) against a real daemon: a first hour, with pictures.

MOSAIC_WINDOW_PICTURES names a folder that keeps them; without it they go with the test's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from gym_gui.services.trainer.local_daemon import running_record, stop_process
from mosaic_extras.testing import lend_sets
from mosaic_wire.paths import Home
from PIL import Image

JOURNEY = Path(__file__).with_name("window_journey.py")
PICTURES = "MOSAIC_WINDOW_PICTURES"
KEPT = Path(os.environ[PICTURES]) if os.environ.get(PICTURES) else None  # the tests' guard forgets MOSAIC_… variables


@pytest.fixture
def display() -> Iterator[str]:
    """An X server without a screen; `make test` installs it."""
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1920x1080x24", "-nolisten", "tcp", "-noreset"]
    with subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL) as server:
        os.close(write)
        try:
            with os.fdopen(read) as reported:
                number = reported.readline().strip()
            assert number, "Xvfb did not start"
            yield f":{number}"
        finally:
            server.terminate()


@pytest.mark.timeout(1500)  # an idle machine needs two minutes
def test_a_first_hour_with_the_window(home: Home, tmp_path: Path, display: str) -> None:
    images = KEPT or tmp_path / "pictures"
    images.mkdir(parents=True, exist_ok=True)
    lend_sets(home, "video")
    (tmp_path / "config" / "settings.toml").write_text("port = 0\nmin_free_disk_mb = 0\n")
    own = {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "XDG_CONFIG_HOME": str(tmp_path / "qt")}
    command = [sys.executable, str(JOURNEY), str(home.root), str(images), *([] if KEPT else ["--hasty"])]
    try:
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, timeout=1400, check=False
        )
    finally:
        with suppress(AttributeError):
            stop_process(running_record(home), timeout_s=60)  # when the journey broke off
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    steps = [line.removeprefix("ok: ") for line in done.stdout.splitlines()]
    for step in (
        "the run appears",
        "the live curve moves",
        "it is paused",
        "it goes on",
        "it finished",
        "five episodes were played",
        "it plays",
        "the clone is queued",
        "it is archived and gone from the list",
        "it is back without a click",
    ):
        assert step in steps
    assert "Traceback" not in done.stderr
    shots = sorted(images.glob("*.png"))
    assert len(shots) > 20
    for path in shots:
        with Image.open(path) as shot:
            assert len(shot.convert("RGB").getcolors(1 << 24) or ()) > 50, f"{path.name} shows nothing"
