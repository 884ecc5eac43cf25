"""FastLane: no torn picture, no drawing without a viewer, no belief in a file that lies, nothing left behind."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mosaic_wire import frames
from mosaic_wire.frames import (
    HEADER_BYTES,
    SLOT_HEADER_BYTES,
    FrameReader,
    FrameWriter,
    NotAFrameFile,
    remove_dead_frames,
    remove_frames,
    slot_start,
)
from mosaic_wire.testing import wait_until

WRITER = """
import sys, time
from pathlib import Path
from mosaic_wire.frames import FrameWriter
writer = FrameWriter(Path(sys.argv[1]))
sizes = [tuple(map(int, text.split("x"))) for text in sys.argv[2].split(",")]
number = 0
print("ready", flush=True)
while True:
    width, height = sizes[number // 500 % len(sizes)]
    writer.publish(bytes([number % 251]) * (3 * width * height), width, height)
    writer.set_statistics(last_reward=1.0, rolling_return=float(number), step_rate_hz=50.0)
    number += 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lane"


@pytest.fixture
def lane(path: Path) -> Iterator[FrameWriter]:
    writer = FrameWriter(path, interval_s=0)
    yield writer
    writer.close()
    assert not path.exists()


def image(value: int, width: int = 4, height: int = 3) -> bytes:
    return bytes([value]) * (3 * width * height)


def start_writer(path: Path, sizes: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), sizes], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_viewer_sees_each_frame_once_and_the_figures_beside_it(lane: FrameWriter, path: Path) -> None:
    reader = FrameReader(path)
    assert reader.read() is None
    lane.publish(image(7), 4, 3)
    lane.set_statistics(last_reward=0.5, rolling_return=12.0, step_rate_hz=60.0)
    frame = reader.read()
    assert frame is not None
    assert (frame.width, frame.height, frame.pixels) == (4, 3, image(7))
    assert (frame.last_reward, frame.rolling_return, frame.step_rate_hz) == (0.5, 12.0, 60.0)
    assert reader.read() is None
    for value in range(5):
        lane.publish(image(value), 4, 3)
    newest = reader.read()
    assert newest is not None
    assert (newest.pixels, reader.skipped) == (image(4), 4)


def test_the_file_is_private(lane: FrameWriter, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    lane.publish(image(1, 640, 480), 640, 480)
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_drawn_without_a_viewer(lane: FrameWriter, path: Path) -> None:
    assert not lane.is_due()
    reader = FrameReader(path)
    reader.read()
    assert lane.is_watched
    assert lane.is_due()


def test_drawing_takes_a_small_share_of_the_time_whatever_a_viewer_wants(path: Path) -> None:
    writer = FrameWriter(path, interval_s=0.001)
    FrameReader(path).read()
    assert writer.is_due()
    writer.record_render_time(10.0)  # a picture that took ten seconds: the next may come in some three minutes
    assert not writer.is_due()
    reader = FrameReader(path)
    reader.read()
    assert reader.drawing_s == 10.0
    writer.record_render_time(0.0)
    assert wait_until(writer.is_due)
    slow = FrameReader(path, interval_s=30)
    slow.read()
    writer.record_render_time(0.0)
    assert not writer.is_due()
    writer.close()


def test_a_larger_frame_moves_to_a_larger_file_and_viewers_follow(lane: FrameWriter, path: Path) -> None:
    reader, other = FrameReader(path), FrameReader(path)
    for width, height in ((4, 3), (400, 300), (10, 10), (1001, 7)):
        lane.publish(image(9, width, height), width, height)
        for viewer in (reader, other):
            frame = viewer.read()
            assert frame is not None
            assert (frame.width, frame.height) == (width, height)
            assert frame.pixels == image(9, width, height)
    assert lane.is_watched


def test_a_notice_stands_where_no_frame_can(lane: FrameWriter, path: Path) -> None:
    reader = FrameReader(path)
    assert reader.notice() == ""
    lane.notice("CliffWalking cannot be drawn: pygame is not installed ✗")
    assert reader.notice() == "CliffWalking cannot be drawn: pygame is not installed ✗"
    assert reader.read() is None


def test_viewers_notice_the_end_and_a_new_beginning(path: Path) -> None:
    reader = FrameReader(path)
    for value in (1, 2):
        writer = FrameWriter(path)
        writer.publish(image(value), 4, 3)
        frame = reader.read()
        assert frame is not None
        assert frame.pixels == image(value)
        writer.close()
        assert reader.read() is None
        assert not reader.is_open


@pytest.mark.parametrize("sizes", ["64x64", "64x64,90x90,30x30,300x200"], ids=["one size", "sizes that change"])
def test_no_frame_is_torn(path: Path, sizes: str) -> None:
    process = start_writer(path, sizes)
    try:
        reader, seen = FrameReader(path), 0
        deadline = time.monotonic() + 30
        while seen < 500 and time.monotonic() < deadline:
            frame = reader.read()
            if frame is not None:
                seen += 1
                assert len(set(frame.pixels)) == 1, "pixels of two pictures in one"
        assert seen == 500
    finally:
        process.kill()
        process.communicate()


READER = """
import sys
from pathlib import Path
from mosaic_wire.frames import FrameReader
reader, seen, last = FrameReader(Path(sys.argv[1])), 0, 0
while True:
    frame = reader.read()
    if frame is not None:
        assert len(set(frame.pixels)) == 1, "pixels of two pictures in one"
        assert frame.number > last, "an older picture after a newer one"
        seen, last = seen + 1, frame.number
        if seen == 20:
            print("seen", flush=True)
"""


def test_viewers_that_are_killed_disturb_neither_the_writer_nor_each_other(path: Path) -> None:
    """Fault 13: readers die in the middle of a picture; the others go on, none sees a torn one."""
    writer = start_writer(path, "64x64,200x100")
    viewers: list[subprocess.Popen[bytes]] = []
    try:
        for round_ in range(4):
            while len(viewers) < 2:
                command = [sys.executable, "-c", READER, str(path)]
                viewers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            for viewer in viewers[round_ > 0 :]:
                assert viewer.stdout is not None
                assert viewer.stdout.readline() == b"seen\n", viewer.communicate()[1].decode()
            killed = viewers.pop()
            killed.kill()
            assert killed.communicate()[1] == b""
            assert writer.poll() is None
        assert viewers[0].poll() is None, viewers[0].communicate()[1].decode()
        assert FrameReader(path).read() is not None
    finally:
        for process in (writer, *viewers):
            process.kill()
            process.communicate()


def test_the_writer_stops_drawing_when_its_last_viewer_was_killed(lane: FrameWriter, path: Path, monkeypatch) -> None:
    monkeypatch.setattr(frames, "VIEWER_TIMEOUT_S", 0.3)
    lane.publish(image(1), 4, 3)
    process = subprocess.Popen([sys.executable, "-c", READER, str(path)], stdout=subprocess.PIPE)
    assert wait_until(lambda: lane.is_watched)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not lane.is_watched)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the machine's shared memory."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(frames, "fastlane_path", lambda run_id: folder / f"mosaic-fastlane-{run_id}")
    return folder


def check_that_killed_writers_leave_nothing(memory: Path, runs: int) -> None:
    """Each is killed at another moment: while it makes its file, while it draws, while it makes a larger one."""
    living = start_writer(memory / "mosaic-fastlane-living", "64x64,90x90")
    try:
        for number in range(runs):
            path = memory / f"mosaic-fastlane-{number}"
            pid = os.fork()
            if pid == 0:  # a child that only draws: a new interpreter for each would take a minute
                try:
                    writer, side = FrameWriter(path), 8
                    while True:
                        side = side % 200 + 8
                        writer.publish(bytes(3 * side * side), side, side)
                finally:
                    os._exit(1)
            time.sleep(number % 20 / 4000)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            frame = FrameReader(path).read()
            assert frame is None or len(frame.pixels) == 3 * frame.width * frame.height
            if number % 2:
                remove_frames(str(number))
        for path in memory.iterdir():
            if "living" not in path.name:
                os.utime(path, (0, 0))  # killed before it had said who it is: then its age decides
        remove_dead_frames()
        assert {path.name for path in memory.iterdir() if "living" not in path.name} == set()
        assert FrameReader(memory / "mosaic-fastlane-living").read() is not None
    finally:
        living.kill()
        living.communicate()


def test_killed_writers_leave_nothing(memory: Path) -> None:
    check_that_killed_writers_leave_nothing(memory, runs=40)


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_thousand_killed_writers_leave_nothing(memory: Path) -> None:
    check_that_killed_writers_leave_nothing(memory, runs=1_000)


def test_a_writer_killed_in_mid_frame_leaves_the_last_whole_one_or_none(path: Path) -> None:
    for _ in range(10):
        process = start_writer(path, "600x400")
        time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        frame = FrameReader(path).read()
        if frame is not None:
            assert len(set(frame.pixels)) == 1


def header(path: Path) -> bytearray:
    return bytearray(path.read_bytes())


@pytest.mark.parametrize(
    ("offset", "data", "problem"),
    [
        (0, b"NOTMOSAI", "is not a FastLane"),
        (8, struct.pack("<I", 99), "is version 99"),
        (12, struct.pack("<I", 7), "format 7"),
        (16, struct.pack("<I", 1_000_000), "with 1000000 slots"),
        (20, struct.pack("<I", 0xFFFFFFFF), "which its size does not fit"),
    ],
)
def test_a_header_that_lies_is_refused(lane: FrameWriter, path: Path, offset: int, data: bytes, problem: str) -> None:
    lane.publish(image(3), 4, 3)
    forged = header(path)
    forged[offset : offset + len(data)] = data
    other = path.with_name("forged")
    other.write_bytes(forged)
    with pytest.raises(NotAFrameFile, match=problem):
        FrameReader(other).read()


@pytest.mark.parametrize("size", [(0, 3), (70_000, 1), (5_000, 5_000)])
def test_a_slot_that_lies_about_its_size_is_refused(lane: FrameWriter, path: Path, size: tuple[int, int]) -> None:
    lane.publish(image(3), 4, 3)
    forged = header(path)
    slot_bytes = struct.unpack_from("<I", forged, 20)[0]
    struct.pack_into("<II", forged, slot_start(1, slot_bytes) + 8, *size)
    other = path.with_name("forged")
    other.write_bytes(forged)
    with pytest.raises(NotAFrameFile, match="claims to hold a frame"):
        FrameReader(other).read()


def test_a_file_of_an_odd_size_a_link_and_a_folder_are_no_lanes(tmp_path: Path, lane: FrameWriter, path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"MOSAICFL")
    with pytest.raises(NotAFrameFile, match="has 8 bytes"):
        FrameReader(short).read()
    link = tmp_path / "link"
    link.symlink_to(path)
    assert FrameReader(link).read() is None
    assert FrameReader(tmp_path).read() is None


def test_what_is_no_frame_is_not_published(lane: FrameWriter) -> None:
    for width, height in ((4, 4), (0, 0), (-4, -3)):
        with pytest.raises(ValueError, match="are not a frame of"):
            lane.publish(image(1), width, height)


def test_slots_begin_at_cache_lines(lane: FrameWriter, path: Path) -> None:
    lane.publish(image(1, 7, 5), 7, 5)
    slot_bytes = struct.unpack_from("<I", header(path), 20)[0]
    assert all(slot_start(slot, slot_bytes) % 64 == 0 for slot in range(3))
    assert path.stat().st_size == HEADER_BYTES + 3 * (SLOT_HEADER_BYTES + slot_bytes)


def test_a_killed_writer_without_a_request_counts_as_exited(path: Path) -> None:
    """Whoever inherits a worker whose daemon was killed too may be slow to collect it."""
    with subprocess.Popen([sys.executable, "-c", WRITER, path, "4x3"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert frames._has_writer(path)
        process.kill()
        assert wait_until(lambda: not frames._has_writer(path))
        os.kill(process.pid, 0)  # it is still in the table
