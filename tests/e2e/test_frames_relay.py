"""Pictures of a run over the wire, and a clip of them."""

from __future__ import annotations

import io
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import av
import pytest
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_extras.testing import lend_sets
from mosaic_wire.frames import FrameReader, fastlane_path
from mosaic_wire.testing import wait_until
from PIL import Image

from tests.e2e.conftest import MakeDaemon, fault_runs

PAINTER = """
from mosaic_wire.frames import FrameWriter, fastlane_path

session = open_session()
writer = FrameWriter(fastlane_path(config.run_id), interval_s=0.01)
session.started({})
drawn = 0
writer.notice(config.extras["algo_params"].get("notice", ""))
while not session.stop_requested.is_set():
    if writer.is_due() and not config.extras["algo_params"].get("notice"):
        drawn += 1
        writer.publish(bytes([drawn % 200, 10, 20]) * (160 * 120), 160, 120)
        writer.set_statistics(last_reward=1.0, rolling_return=50.0, step_rate_hz=1000.0)
        writer.record_render_time(0.0)
    session.progress(drawn, 100)
    time.sleep(0.005)
if not config.extras["algo_params"].get("untidy"):
    writer.close()
session.finish(ExitOutcome.CANCELLED, exit_code=130)
"""


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> RunningDaemon:
    daemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "painter", PAINTER)
    daemon.start()
    return daemon


def paint(daemon: RunningDaemon, **parameters: object) -> str:
    (run_id,) = paint_some(daemon, 1, **parameters)
    return run_id


def paint_some(daemon: RunningDaemon, count: int, **parameters: object) -> list[str]:
    run_ids = [daemon.client.submit(scripted_config("painter", **parameters)).run.run_id for _ in range(count)]
    for run_id in run_ids:
        daemon.wait_for(run_id, "EXEC")
    return run_ids


def test_a_client_elsewhere_sees_the_frame_in_the_size_it_asked_for(daemon: RunningDaemon) -> None:
    run_id = paint(daemon)
    assert daemon.client.get(run_id).step == 0  # without a viewer nothing is drawn
    for encoding, size in (("jpeg", (160, 120)), ("png", (80, 60)), ("rgb", (40, 30))):
        with daemon.client.frames(run_id, max_fps=50, max_side=size[0], encoding=encoding) as stream:
            images = [frame for frame, _ in zip((f for f in stream if f.data), range(3), strict=False)]
        for frame in images:
            assert (frame.width, frame.height, frame.encoding) == (*size, encoding)
            assert (frame.last_reward, frame.rolling_return, frame.step_rate_hz) == (1.0, 50.0, 1000.0)
        if encoding == "rgb":
            assert len(images[0].data) == 3 * size[0] * size[1]
        else:
            assert Image.open(io.BytesIO(images[0].data)).size == size
        numbers = [frame.number for frame in images]
        assert numbers == sorted(set(numbers))


def test_a_run_that_cannot_draw_says_why(daemon: RunningDaemon) -> None:
    run_id = paint(daemon, notice="Blackjack cannot be drawn here: pygame is not installed")
    with daemon.client.frames(run_id) as stream:
        assert next(frame.notice for frame in stream if frame.notice.startswith("Blackjack"))


def test_odd_wishes_are_refused(daemon: RunningDaemon) -> None:
    run_id = paint(daemon)
    for wish in ({"encoding": "bmp"}, {"max_fps": 1000.0}, {"max_side": -1}):
        with pytest.raises(NotPossibleNow), daemon.client.frames(run_id, **wish) as stream:  # type: ignore[arg-type]
            next(iter(stream))


def test_the_shared_memory_is_missing_when_the_run_is_even_if_its_worker_left_it(daemon: RunningDaemon) -> None:
    for untidy in (False, True):
        run_id = paint(daemon, untidy=untidy)
        assert fastlane_path(run_id).exists()
        daemon.client.cancel(run_id)
        daemon.wait_for(run_id)
        daemon.wait_for_run(run_id, lambda run: run.size_bytes)
        assert not fastlane_path(run_id).exists()


def check_that_killed_runs_leave_no_pictures(daemon: RunningDaemon, runs: int, at_once: int) -> None:
    """Fault 13: writers killed in the middle of a picture, viewers that are left behind, and nothing stays."""
    before = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    lane = fastlane_path("")
    painted: list[str] = []
    for first in range(0, runs, at_once):
        run_ids = paint_some(daemon, min(at_once, runs - first), untidy=True)
        for number, run_id in enumerate(run_ids):
            reader = FrameReader(fastlane_path(run_id))
            assert wait_until(lambda reader=reader: reader.read() is not None)
            if number % 2:
                daemon.client.cancel(run_id)
            else:
                os.kill(daemon.client.get(run_id).pid, signal.SIGKILL)
            while daemon.client.get(run_id).status != "TERM":  # it looks on, and may see the last one
                frame = reader.read()
                assert frame is None or frame.pixels == frame.pixels[:3] * (160 * 120)
            reader.close()
        for run_id in run_ids:
            daemon.wait_for_run(run_id, lambda run: run.size_bytes)
        painted += run_ids
    # Of these runs: tests beside this one have pictures, too.
    assert [path for path in lane.parent.glob(f"*{lane.name}*") if any(run_id in path.name for run_id in painted)] == []
    assert len(os.listdir(f"/proc/{daemon.pid}/fd")) <= before + 8


def test_killed_runs_leave_no_frames(daemon: RunningDaemon) -> None:
    check_that_killed_runs_leave_no_pictures(daemon, runs=4, at_once=4)


@pytest.mark.fault
@pytest.mark.timeout(3600)
def test_a_thousand_killed_runs_leave_no_frames(daemon: RunningDaemon) -> None:
    check_that_killed_runs_leave_no_pictures(daemon, runs=fault_runs(1_000), at_once=10)


def test_what_was_left_while_no_daemon_looked_is_swept_at_its_start(daemon: RunningDaemon) -> None:
    run_id = paint(daemon, untidy=True)
    pid = daemon.client.get(run_id).pid
    path, stray = fastlane_path(run_id), fastlane_path("stray-of-a-home-that-is-gone")
    stray.write_bytes(path.read_bytes())
    # Mapped here, so that the guard of a test that runs beside this one sees whose it is; readers do not keep a file.
    with stray.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ):
        daemon.kill()
        os.kill(pid, signal.SIGKILL)
        daemon.start()
        daemon.wait_for(run_id)
        assert wait_until(lambda: not path.exists() and not stray.exists())


def record(daemon: RunningDaemon, run_id: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`mosaic frames RUN --out FILE`"""
    command = [str(Path(sys.executable).with_name("mosaic")), "frames", run_id, "--out", str(out), *options]
    return subprocess.run(command, env=daemon.variables, capture_output=True, text=True, timeout=120, check=False)


def test_a_clip_is_recorded(daemon: RunningDaemon, tmp_path: Path) -> None:
    run_id = paint(daemon)
    done = record(daemon, run_id, tmp_path / "clip.gif", "--seconds", "0.5", "--fps", "20")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "clip.gif") as clip:
        assert clip.n_frames > 3  # type: ignore[attr-defined]
        assert clip.size == (160, 120)
    assert record(daemon, run_id, tmp_path / "one.png").returncode == 0
    with Image.open(tmp_path / "one.png") as image:
        assert image.size == (160, 120)
    odd = record(daemon, run_id, tmp_path / "clip.txt")
    assert odd.returncode != 0
    assert "a clip is an .mp4" in odd.stderr
    assert not (tmp_path / "clip.txt").exists()


@pytest.mark.slow  # a picture of one is relayed in every CI
def test_a_clip_of_a_training_that_continues_can_be_played(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    lend_sets(daemon.home, "video")  # has an ffmpeg; a system's own is taken first
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 10**8}
    worker = {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": config}
    run_id = daemon.client.submit({"resources": {"cpus": {"requested": 0}}, "metadata": {"worker": worker}}).run.run_id
    daemon.wait_for(run_id, "EXEC")
    clip = tmp_path / "clip.mp4"
    done = record(daemon, run_id, clip, "--seconds", "1", "--fps", "15")
    assert done.returncode == 0, done.stderr
    assert clip.name in done.stderr
    reported = int(done.stderr.split(": ")[-1].split()[0])  # clip.mp4: 15 frames
    with av.open(str(clip)) as film:
        stream = film.streams.video[0]
        images = [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]
        assert float(stream.average_rate) == 15
    assert len(images) == reported > 1
    assert images[0].shape == (400, 600, 3)  # what CartPole draws
    assert all(image.std() > 1 for image in images), "an empty picture"
    assert any((image != images[0]).any() for image in images[1:]), "nothing moves"
    assert daemon.client.get(run_id).status == "EXEC"  # watching it did it no harm
