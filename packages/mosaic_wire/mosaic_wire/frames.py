"""FastLane: frames of a training process in a shared-memory file that viewers on the same machine read.

    writer = FrameWriter(fastlane_path(run_id))           the training process
    if writer.is_due():                                   a few hundred nanoseconds if there is no viewer
        writer.publish(frame, width, height)

    reader = FrameReader(fastlane_path(run_id))           a viewer, as often as it paints
    frame = reader.read()                                 None: no new frame

One page of header, then three slots. The writer fills the slot after the newest one, with a counter around it that is
odd while it writes; a reader uses its copy only if that counter was even and unchanged before and after. While no
reader has polled for a moment, the writer renders nothing. A reader checks everything in the file, which may be
damaged or forged.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import stat
import struct
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire import env

logger = logging.getLogger(__name__)

MAGIC = b"MOSAICFL"
VERSION = 1
RGB = 1
"""The only format so far: three bytes a pixel, rows from the top"""
SLOTS = 3
HEADER_BYTES = 4096
SLOT_HEADER_BYTES = 64
LARGEST_SIDE = 8192
NOTICE_BYTES = 1024
_ALIGNMENT = 64
"""Counters must not straddle a cache line"""

VIEWER_TIMEOUT_S = 2.0
"""A viewer that has not polled for this long has left"""
_BEING_MADE_S = 60.0
LARGEST_SHARE = 0.05
"""The largest share of its time that a training process spends on rendering"""
DEFAULT_INTERVAL_S = 1 / 30

_IDENTITY = struct.Struct("<8sIIIIII")  # magic, version, format, slots, slot bytes, writer's pid, length of the notice
_NEWEST, _GENERATION, _CLOSED = 8, 9, 10  # eight-byte numbers, by their place in the header
_LAST_REWARD, _ROLLING_RETURN, _STEP_RATE, _SEEN_AT, _INTERVAL, _DRAWING = 16, 17, 18, 19, 20, 21  # doubles
_NOTICE_AT = 512
_SLOT = struct.Struct("<QIIQd")  # counter, width, height, number, when


class NotAFrameFile(Exception):
    """The file was not made by a FrameWriter."""


@dataclass(frozen=True)
class Frame:
    """One frame and its statistics."""

    number: int
    width: int
    height: int
    pixels: bytes
    drawn_at: float
    """On the monotonic clock of this machine"""
    last_reward: float
    rolling_return: float
    step_rate_hz: float


def fastlane_path(run_id: str) -> Path:
    """Return the path of a run's frames, in shared memory if there is a file system for it."""
    return _frames_folder() / f"mosaic-fastlane-{run_id}"


def interactive_frame_path(run_id: str) -> Path:
    """Return the path of the frame that belongs to the latest message of an interactive run."""
    return _frames_folder() / f"mosaic-{run_id}-frame"


def _frames_folder() -> Path:
    """Return a folder that only this user can write to.

    Run ids are visible in the process list, so in a shared folder another user could create a run's file first. If
    another user has created the folder with the usual name, a different one is used.
    """
    if chosen := os.environ.get(env.MOSAIC_FRAMES_DIR):
        return Path(chosen)
    shared = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    usual = shared / f"mosaic-{os.getuid()}"
    with suppress(OSError):
        usual.mkdir(mode=0o700)
    for folder in (usual, *sorted(shared.glob(f"{usual.name}-*"))):
        with suppress(OSError):
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                return folder
    try:
        return Path(tempfile.mkdtemp(prefix=f"{usual.name}-", dir=shared))
    except OSError:
        return usual  # it cannot be created: the writer logs that, and readers find nothing


class _Mapped:
    """The mapped file as bytes, eight-byte integers and doubles."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(descriptor, size)
        self.bytes = memoryview(self._map)
        # Aligned stores are atomic: a reader sees the old value or the new one.
        self.numbers = self.bytes[:HEADER_BYTES].cast("Q")
        self.doubles = self.bytes[:HEADER_BYTES].cast("d")

    def counters(self, slot_bytes: int) -> list[memoryview]:
        """Return each slot's counter; none while slots have no size."""
        starts = [slot_start(slot, slot_bytes) for slot in range(SLOTS)] if slot_bytes else []
        return [self.bytes[start : start + 8].cast("Q") for start in starts]

    def close(self) -> None:
        self.numbers.release()
        self.doubles.release()
        self.bytes.release()
        self._map.close()


def slot_start(slot: int, slot_bytes: int) -> int:
    """Return the offset of a slot in the file."""
    return HEADER_BYTES + slot * (SLOT_HEADER_BYTES + slot_bytes)


class FrameWriter:
    """Publishes the frames of a run; `close` removes its file.

    If the file cannot be created (shared memory is full or read-only), the writer logs that once and publishes nothing;
    training is not affected.
    """

    def __init__(self, path: Path, *, interval_s: float = DEFAULT_INTERVAL_S) -> None:
        self.path = path
        self._interval_s = interval_s
        self._mapped: _Mapped | None = None
        self._counters: list[memoryview] = []
        self._slot_bytes = 0
        self._number = 0
        self._generation = secrets.randbits(32)
        self._not_before = 0.0
        self._make(0)

    # ------------------------------------------------------------------ when

    @property
    def is_watched(self) -> bool:
        """Return whether a viewer has polled lately."""
        return self._mapped is not None and time.monotonic() - self._mapped.doubles[_SEEN_AT] < VIEWER_TIMEOUT_S

    @property
    def requested_interval_s(self) -> float:
        """Return the interval between frames that the last viewer asked for; 0: as short as possible."""
        requested = self._mapped.doubles[_INTERVAL] if self._mapped is not None else 0.0
        return requested if 0 < requested < 60 else 0.0

    def is_due(self) -> bool:
        """Return whether there is a viewer and the next frame is due; call it before rendering."""
        if self._mapped is None:
            return False
        seen, now = self._mapped.doubles[_SEEN_AT], time.monotonic()
        return now - seen < VIEWER_TIMEOUT_S and now >= self._not_before

    def record_render_time(self, seconds: float) -> None:
        """Record how long rendering took, and delay the next frame to keep its share of the time small."""
        if self._mapped is None:
            return
        self._mapped.doubles[_DRAWING] += seconds
        interval = max(self._interval_s, self.requested_interval_s)
        self._not_before = time.monotonic() + max(interval - seconds, seconds * (1 / LARGEST_SHARE - 1))

    def wait(self, seconds: float) -> None:
        """Make no frame due for this many seconds."""
        self._not_before = time.monotonic() + seconds

    # ------------------------------------------------------------------ what

    def set_statistics(self, *, last_reward: float, rolling_return: float, step_rate_hz: float) -> None:
        """Set the statistics shown beside the frame."""
        if self._mapped is None:
            return
        doubles = self._mapped.doubles
        doubles[_LAST_REWARD], doubles[_ROLLING_RETURN], doubles[_STEP_RATE] = last_reward, rolling_return, step_rate_hz

    def notice(self, text: str) -> None:
        """Show a message instead of a frame, for example why there is none."""
        if self._mapped is None:
            return
        data = text.encode("utf-8", "replace")[:NOTICE_BYTES]
        self._mapped.bytes[_NOTICE_AT : _NOTICE_AT + len(data)] = data
        self._identify(len(data))

    def publish(self, pixels: bytes | bytearray | memoryview, width: int, height: int) -> None:
        """Publish a contiguous RGB frame of three bytes per pixel."""
        view = memoryview(pixels).cast("B")
        if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE) or len(view) != 3 * width * height:
            raise ValueError(f"{len(view)} bytes are not a frame of {width} × {height}")
        if len(view) > self._slot_bytes and self._mapped is not None:
            self._make(len(view))
        if self._mapped is None:
            return
        self._number += 1
        slot = self._number % SLOTS
        counter = self._counters[slot]
        counter[0] += 1  # odd: readers do not use the slot now
        start = slot_start(slot, self._slot_bytes)
        _SLOT.pack_into(self._mapped.bytes, start, counter[0], width, height, self._number, time.monotonic())
        self._mapped.bytes[start + SLOT_HEADER_BYTES : start + SLOT_HEADER_BYTES + len(view)] = view
        counter[0] += 1
        self._mapped.numbers[_NEWEST] = self._number

    # ------------------------------------------------------------------ the file

    def _make(self, slot_bytes: int) -> None:
        """Create the file, or replace it by a larger one, which readers then open."""
        try:
            self._make_file(slot_bytes)
        except OSError as error:
            logger.warning("no live frames: %s cannot be used: %s", self.path.parent, error.strerror or error)
            self.close()

    def _make_file(self, slot_bytes: int) -> None:
        slot_bytes = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        size = slot_start(SLOTS, slot_bytes)
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # the mapping keeps it for as long as the writer lives
            # Allocate now; on a full memory file system the first write would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            mapped = _Mapped(descriptor, size)
            self._generation += 1
            earlier, self._mapped, self._slot_bytes = self._mapped, mapped, slot_bytes
            self._counters = mapped.counters(slot_bytes)
            mapped.numbers[_GENERATION] = self._generation
            if earlier is not None:
                for place in (_LAST_REWARD, _ROLLING_RETURN, _STEP_RATE, _SEEN_AT, _INTERVAL, _DRAWING):
                    mapped.doubles[place] = earlier.doubles[place]
            self._identify(0)
            os.rename(temporary, self.path)
            if earlier is not None:
                earlier.numbers[_CLOSED] = 1
                earlier.close()
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)

    def _identify(self, notice_bytes: int) -> None:
        assert self._mapped is not None
        _IDENTITY.pack_into(
            self._mapped.bytes, 0, MAGIC, VERSION, RGB, SLOTS, self._slot_bytes, os.getpid(), notice_bytes
        )

    def close(self) -> None:
        """Mark the stream as closed and remove the file."""
        if self._mapped is None:
            return
        self._mapped.numbers[_CLOSED] = 1
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        for counter in self._counters:
            counter.release()
        self._counters = []
        self._mapped.close()
        self._mapped = None


FastLaneWriter = FrameWriter
"""The name that older documents use"""


class FrameReader:
    """Reads the frames of a run; polling keeps the writer rendering. The file may appear, grow and vanish."""

    def __init__(self, path: Path, *, interval_s: float = 0.0) -> None:
        """`interval_s`: the shortest useful interval between frames."""
        self.path = path
        self._interval_s = interval_s
        self._mapped: _Mapped | None = None
        self._counters: list[memoryview] = []
        self._slot_bytes = 0
        self._last = 0
        self.skipped = 0
        """Rendered frames that this reader missed"""

    def read(self) -> Frame | None:
        """Return the newest frame, or None when there is no new one or no writer.

        Raises NotAFrameFile for a file that no FrameWriter made.
        """
        if not self._open():
            return None
        mapped = self._mapped
        assert mapped is not None
        mapped.doubles[_SEEN_AT], mapped.doubles[_INTERVAL] = time.monotonic(), self._interval_s
        for _ in range(10):
            number = mapped.numbers[_NEWEST]
            if number == self._last or not self._slot_bytes:
                return None
            frame = self._copy(mapped, number)
            if frame is not None:
                self.skipped += max(0, number - self._last - 1) if self._last else 0
                self._last = number
                return frame
        return None  # overwritten too often; the next call may succeed

    def notice(self) -> str:
        """Return the writer's message, or an empty text."""
        if not self._open():
            return ""
        assert self._mapped is not None
        length = _IDENTITY.unpack_from(self._mapped.bytes, 0)[6]
        data = bytes(self._mapped.bytes[_NOTICE_AT : _NOTICE_AT + min(length, NOTICE_BYTES)])
        return data.decode("utf-8", "replace")

    @property
    def is_open(self) -> bool:
        """Return whether there was a writer at the last poll."""
        return self._mapped is not None

    @property
    def drawing_s(self) -> float:
        """Return the total rendering time of the writer; 0 without a writer."""
        return self._mapped.doubles[_DRAWING] if self._mapped is not None else 0.0

    def _copy(self, mapped: _Mapped, number: int) -> Frame | None:
        """Return a copy of a slot's frame, or None when it was overwritten meanwhile."""
        start, counter = slot_start(number % SLOTS, self._slot_bytes), self._counters[number % SLOTS]
        before = counter[0]  # one aligned load, and again below; struct would read it byte by byte
        _, width, height, found, drawn_at = _SLOT.unpack_from(mapped.bytes, start)
        if before % 2 or found != number:
            return None
        length = 3 * width * height
        if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE and length <= self._slot_bytes):
            if counter[0] != before:
                return None  # mixed from two frames
            raise NotAFrameFile(f"{self.path} claims to hold a frame of {width} × {height}")
        pixels = bytes(mapped.bytes[start + SLOT_HEADER_BYTES : start + SLOT_HEADER_BYTES + length])
        if counter[0] != before:
            return None
        doubles = mapped.doubles
        return Frame(
            number,
            width,
            height,
            pixels,
            drawn_at,
            doubles[_LAST_REWARD],
            doubles[_ROLLING_RETURN],
            doubles[_STEP_RATE],
        )

    def _open(self) -> bool:
        if self._mapped is not None and not self._mapped.numbers[_CLOSED]:
            return True
        self.close()
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            self._mapped, self._slot_bytes = self._checked(descriptor)
        finally:
            os.close(descriptor)
        self._counters = self._mapped.counters(self._slot_bytes)
        self._last = 0
        return True

    def _checked(self, descriptor: int) -> tuple[_Mapped, int]:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid():
            raise NotAFrameFile(f"{self.path} belongs to another user")
        if not HEADER_BYTES <= status.st_size <= slot_start(SLOTS, 3 * LARGEST_SIDE**2):
            raise NotAFrameFile(f"{self.path} has {status.st_size} bytes, which is not the size of a FastLane")
        mapped = _Mapped(descriptor, status.st_size)
        magic, version, kind, slots, slot_bytes, _, _ = _IDENTITY.unpack_from(mapped.bytes, 0)
        problem = ""
        if magic != MAGIC:
            problem = "is not a FastLane"
        elif (version, kind, slots) != (VERSION, RGB, SLOTS):
            problem = f"is version {version}, format {kind}, with {slots} slots; this reader supports version {VERSION}"
        elif slot_start(SLOTS, slot_bytes) != status.st_size:
            problem = f"says its slots have {slot_bytes} bytes, which its size does not fit"
        if problem:
            mapped.close()
            raise NotAFrameFile(f"{self.path} {problem}")
        return mapped, slot_bytes

    def close(self) -> None:
        """Unmap the file."""
        if self._mapped is not None:
            for counter in self._counters:
                counter.release()
            self._counters = []
            self._mapped.close()
            self._mapped = None


def remove_frames(run_id: str) -> None:
    """Remove the files of a killed writer, also temporary ones."""
    path = fastlane_path(run_id)
    for leftover in (path, interactive_frame_path(run_id), *path.parent.glob(f".{path.name}.*")):
        with suppress(OSError):
            leftover.unlink(missing_ok=True)


def remove_dead_frames() -> int:
    """Remove this user's frame files without a live writer; return how many.

    They were left by a worker that was killed without a daemon, or by a home that was removed.
    """
    removed = 0
    lane = fastlane_path("")
    for path in (*lane.parent.glob(f"{lane.name}*"), *lane.parent.glob(f".{lane.name}*")):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and not _has_writer(path):
                path.unlink()
                removed += 1
    return removed


def _has_writer(path: Path) -> bool:
    """Return whether the process that created the file is alive in any PID namespace, by its lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_made = os.read(descriptor, len(MAGIC)) == MAGIC
        return not is_made and time.time() - os.fstat(descriptor).st_mtime < _BEING_MADE_S
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
