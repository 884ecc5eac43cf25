"""FastLane: the picture a training process draws, in a shared-memory file that viewers on the same machine read.

    writer = FrameWriter(fastlane_path(run_id))           the training process
    if writer.is_due():                                   nobody watches, or it is too early: a few hundred nanoseconds
        writer.publish(picture, width, height)

    reader = FrameReader(fastlane_path(run_id))           a viewer, as often as it draws
    frame = reader.read()                                 None: nothing new

One page of header, then three slots. The writer fills the slot after the newest one, with a counter around it that is
odd while it writes; a reader believes what it copied only when that counter was even and the same before and after.
While no reader has looked for a moment the writer draws nothing. Everything a reader finds in the file is checked
before it is used: the file may be damaged, or somebody's trick.
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

VIEWER_GONE_S = 2.0
"""A viewer that has not looked for so long is gone"""
_BEING_MADE_S = 60.0
LARGEST_SHARE = 0.05
"""Of its time a training process spends at most this much drawing, whatever a viewer asks for"""
DEFAULT_INTERVAL_S = 1 / 30

_IDENTITY = struct.Struct("<8sIIIIII")  # magic, version, format, slots, slot bytes, writer's pid, length of the notice
_NEWEST, _GENERATION, _CLOSED = 8, 9, 10  # eight-byte numbers, by their place in the header
_LAST_REWARD, _ROLLING_RETURN, _STEP_RATE, _SEEN_AT, _INTERVAL, _DRAWING = 16, 17, 18, 19, 20, 21  # doubles
_NOTICE_AT = 512
_SLOT = struct.Struct("<QIIQd")  # counter, width, height, number, when


class NotAFrameFile(Exception):
    """The file is not what a FrameWriter makes; says why."""


@dataclass(frozen=True)
class Frame:
    """One picture and the figures beside it."""

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
    """Where the frames of a run are: in memory where there is a file system for it."""
    return _frames_folder() / f"mosaic-fastlane-{run_id}"


def interactive_frame_path(run_id: str) -> Path:
    """Where an interactive run puts the frame that goes with its latest answer."""
    return _frames_folder() / f"mosaic-{run_id}-frame"


def _frames_folder() -> Path:
    """Return a folder of this user alone.

    Run ids show in the process list: in a folder that everybody may write to, another user could create a run's file
    first. One who takes the usual name of the folder only makes us use another.
    """
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
        return usual  # nothing can be written there: the writer says so, and readers find nothing


class _Mapped:
    """The file in memory, as bytes, as eight-byte numbers and as doubles."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(descriptor, size)
        self.bytes = memoryview(self._map)
        # One aligned store each: a reader sees the old value or the new one, never a half of each.
        self.numbers = self.bytes[:HEADER_BYTES].cast("Q")
        self.doubles = self.bytes[:HEADER_BYTES].cast("d")

    def counters(self, slot_bytes: int) -> list[memoryview]:
        """Each slot's own counter; none while there is no room for a picture."""
        starts = [slot_start(slot, slot_bytes) for slot in range(SLOTS)] if slot_bytes else []
        return [self.bytes[start : start + 8].cast("Q") for start in starts]

    def close(self) -> None:
        self.numbers.release()
        self.doubles.release()
        self.bytes.release()
        self._map.close()


def slot_start(slot: int, slot_bytes: int) -> int:
    """Where a slot begins in the file."""
    return HEADER_BYTES + slot * (SLOT_HEADER_BYTES + slot_bytes)


class FrameWriter:
    """The one writer of a run. Its file is removed by `close`.

    Frames are a luxury: when the file cannot be made (shared memory is full or read-only) the writer logs that once
    and publishes nothing more; whoever trains never notices.
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
        """Whether a viewer has looked in the last moment."""
        return self._mapped is not None and time.monotonic() - self._mapped.doubles[_SEEN_AT] < VIEWER_GONE_S

    def is_due(self) -> bool:
        """Whether somebody watches and the next picture's time has come; ask before drawing it."""
        if self._mapped is None:
            return False
        seen, now = self._mapped.doubles[_SEEN_AT], time.monotonic()
        return now - seen < VIEWER_GONE_S and now >= self._not_before

    def drawn(self, seconds: float) -> None:
        """Say how long drawing took; the next picture waits so that this stays a small share of the time."""
        if self._mapped is None:
            return
        self._mapped.doubles[_DRAWING] += seconds
        wanted = self._mapped.doubles[_INTERVAL]
        interval = max(self._interval_s, wanted if 0 < wanted < 60 else 0.0)
        self._not_before = time.monotonic() + max(interval - seconds, seconds * (1 / LARGEST_SHARE - 1))

    def wait(self, seconds: float) -> None:
        """Let no picture be due for so long."""
        self._not_before = time.monotonic() + seconds

    # ------------------------------------------------------------------ what

    def tell(self, *, last_reward: float, rolling_return: float, step_rate_hz: float) -> None:
        """The figures beside the picture."""
        if self._mapped is None:
            return
        doubles = self._mapped.doubles
        doubles[_LAST_REWARD], doubles[_ROLLING_RETURN], doubles[_STEP_RATE] = last_reward, rolling_return, step_rate_hz

    def notice(self, text: str) -> None:
        """Words instead of a picture: why there is none."""
        if self._mapped is None:
            return
        data = text.encode("utf-8", "replace")[:NOTICE_BYTES]
        self._mapped.bytes[_NOTICE_AT : _NOTICE_AT + len(data)] = data
        self._identify(len(data))

    def publish(self, pixels: bytes | bytearray | memoryview, width: int, height: int) -> None:
        """Show a picture: rows of three bytes a pixel, in one piece of memory."""
        view = memoryview(pixels).cast("B")
        if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE) or len(view) != 3 * width * height:
            raise ValueError(f"{len(view)} bytes are no picture of {width} × {height}")
        if len(view) > self._slot_bytes and self._mapped is not None:
            self._make(len(view))
        if self._mapped is None:
            return
        self._number += 1
        slot = self._number % SLOTS
        counter = self._counters[slot]
        counter[0] += 1  # odd: nobody believes it now
        start = slot_start(slot, self._slot_bytes)
        _SLOT.pack_into(self._mapped.bytes, start, counter[0], width, height, self._number, time.monotonic())
        self._mapped.bytes[start + SLOT_HEADER_BYTES : start + SLOT_HEADER_BYTES + len(view)] = view
        counter[0] += 1
        self._mapped.numbers[_NEWEST] = self._number

    # ------------------------------------------------------------------ the file

    def _make(self, slot_bytes: int) -> None:
        """Make the file, or a larger one in its place; readers notice and open the new one."""
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
            # Claimed now: a full memory file system would otherwise end the process at the first write.
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
        """Tell readers that it is over and remove the file."""
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


class FrameReader:
    """A viewer. Looking is what keeps the writer drawing; the file may come, grow and go at any time."""

    def __init__(self, path: Path, *, interval_s: float = 0.0) -> None:
        """`interval_s`: more often than this no picture is wanted."""
        self.path = path
        self._interval_s = interval_s
        self._mapped: _Mapped | None = None
        self._counters: list[memoryview] = []
        self._slot_bytes = 0
        self._last = 0
        self.skipped = 0
        """Pictures that were drawn and never seen here"""

    def read(self) -> Frame | None:
        """The newest picture if it was not given before; None when there is none, or no writer.

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
        return None  # a writer that laps us again and again: there will be another moment

    def notice(self) -> str:
        """What the writer says instead of showing a picture; empty: nothing."""
        if not self._open():
            return ""
        assert self._mapped is not None
        length = _IDENTITY.unpack_from(self._mapped.bytes, 0)[6]
        data = bytes(self._mapped.bytes[_NOTICE_AT : _NOTICE_AT + min(length, NOTICE_BYTES)])
        return data.decode("utf-8", "replace")

    @property
    def is_open(self) -> bool:
        """Whether a writer was there at the last look."""
        return self._mapped is not None

    @property
    def drawing_s(self) -> float:
        """How long the writer has been drawing, all pictures together; 0 without a writer."""
        return self._mapped.doubles[_DRAWING] if self._mapped is not None else 0.0

    def _copy(self, mapped: _Mapped, number: int) -> Frame | None:
        """A slot's picture; None when it was written meanwhile."""
        start, counter = slot_start(number % SLOTS, self._slot_bytes), self._counters[number % SLOTS]
        before = counter[0]  # one aligned load, and again below; struct would read it byte by byte
        _, width, height, found, drawn_at = _SLOT.unpack_from(mapped.bytes, start)
        if before % 2 or found != number:
            return None
        length = 3 * width * height
        if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE and length <= self._slot_bytes):
            if counter[0] != before:
                return None  # the size of one picture and the rest of another
            raise NotAFrameFile(f"{self.path} says it holds a picture of {width} × {height}")
        pixels = bytes(mapped.bytes[start + SLOT_HEADER_BYTES : start + SLOT_HEADER_BYTES + length])
        if counter[0] != before:
            return None
        doubles = mapped.doubles
        return Frame(
            number, width, height, pixels, drawn_at, doubles[_LAST_REWARD], doubles[_ROLLING_RETURN],
            doubles[_STEP_RATE],
        )  # fmt: skip

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
            raise NotAFrameFile(f"{self.path} belongs to somebody else")
        if not HEADER_BYTES <= status.st_size <= slot_start(SLOTS, 3 * LARGEST_SIDE**2):
            raise NotAFrameFile(f"{self.path} has {status.st_size} bytes, which is no size of a FastLane")
        mapped = _Mapped(descriptor, status.st_size)
        magic, version, kind, slots, slot_bytes, _, _ = _IDENTITY.unpack_from(mapped.bytes, 0)
        problem = ""
        if magic != MAGIC:
            problem = "is not a FastLane"
        elif (version, kind, slots) != (VERSION, RGB, SLOTS):
            problem = f"is version {version}, format {kind}, with {slots} slots; this reader knows version {VERSION}"
        elif slot_start(SLOTS, slot_bytes) != status.st_size:
            problem = f"says its slots have {slot_bytes} bytes, which its size does not fit"
        if problem:
            mapped.close()
            raise NotAFrameFile(f"{self.path} {problem}")
        return mapped, slot_bytes

    def close(self) -> None:
        if self._mapped is not None:
            for counter in self._counters:
                counter.release()
            self._counters = []
            self._mapped.close()
            self._mapped = None


def remove_frames(run_id: str) -> None:
    """Remove what a killed writer left, also what it had not finished."""
    path = fastlane_path(run_id)
    for left in (path, interactive_frame_path(run_id), *path.parent.glob(f".{path.name}.*")):
        with suppress(OSError):
            left.unlink(missing_ok=True)


def sweep_frames() -> int:
    """Remove this user's pictures whose writer is gone, of whatever run; return how many files that were.

    What nobody else removes: of a worker without a daemon that was killed, or of a home that is no more.
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
    """Whether the process that made the file lives, in whatever PID namespace: then it holds a lock on it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_made = os.read(descriptor, len(MAGIC)) == MAGIC
        return not is_made and time.time() - os.fstat(descriptor).st_mtime < _BEING_MADE_S
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
