"""FastLane's frame path, writer → reader, against a plain copy of the same bytes; and a search for torn frames.

python benchmarks/frame_path.py --torn 1000000        reads under load until so many frames were checked
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import alternate, print_table
from mosaic_wire.frames import FrameReader, FrameWriter, fastlane_path

WIDTH, HEIGHT = 600, 400
FRAMES = 2_000

TEARER = """
import sys
from pathlib import Path
from mosaic_wire.frames import FrameWriter
writer = FrameWriter(Path(sys.argv[1]))
frames = [bytes([value]) * (3 * 64 * 64) for value in range(251)]
number = 0
while True:
    writer.publish(frames[number % 251], 64, 64)
    number += 1
"""


def through_the_lane(path: Path) -> float:
    """CPU seconds to write and read frames."""
    writer, reader = FrameWriter(path), FrameReader(path)
    pixels = bytearray(3 * WIDTH * HEIGHT)
    writer.publish(pixels, WIDTH, HEIGHT)
    began = time.process_time()
    for number in range(FRAMES):
        pixels[0] = number % 256
        writer.publish(pixels, WIDTH, HEIGHT)
        frame = reader.read()
        if frame is None or frame.pixels[0] != pixels[0]:
            raise SystemExit("a frame got lost")
    took = time.process_time() - began
    writer.close()
    reader.close()
    return took


def plain_copies() -> float:
    """Return the same bytes copied twice: into a buffer, and out of it."""
    pixels, shared = bytearray(3 * WIDTH * HEIGHT), memoryview(bytearray(3 * WIDTH * HEIGHT))
    began = time.process_time()
    for number in range(FRAMES):
        pixels[0] = number % 256
        shared[:] = pixels
        copy = bytes(shared)
    if copy[0] != pixels[0]:
        raise SystemExit("the copy is wrong")
    return time.process_time() - began


def search_torn(path: Path, frames: int) -> tuple[int, int, float]:
    """Read as fast as another process writes; return torn frames, frames skipped, seconds."""
    writers = [subprocess.Popen([sys.executable, "-c", TEARER, str(path)])]
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    reader, seen, torn, began = FrameReader(path), 0, 0, time.monotonic()
    try:
        while seen < frames:
            frame = reader.read()
            if frame is not None:
                seen += 1
                torn += frame.pixels.count(frame.pixels[0]) != len(frame.pixels)
    finally:
        for process in (*writers, *load):
            process.kill()
            process.wait()
        path.unlink(missing_ok=True)
    return torn, reader.skipped, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--torn", type=int, default=20_000, help="frames to check while others keep the cores busy")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=fastlane_path("x").parent, prefix="mosaic-bench-") as folder:
        ours, peer = alternate(lambda: through_the_lane(Path(folder) / "lane"), plain_copies, pairs=arguments.pairs)
        torn, skipped, took = search_torn(Path(folder) / "torn", arguments.torn)
    size = 3 * WIDTH * HEIGHT * FRAMES / 1e9
    print_table(
        f"{FRAMES} frames of {WIDTH} × {HEIGHT}, written and read (CPU seconds; {arguments.pairs} alternating pairs)",
        [
            ("FastLane", f"{ours}  {size / ours.median:.2f} GB/s"),
            ("plain copies", f"{peer}  {size / peer.median:.2f} GB/s"),
            ("share of a plain copy's speed", f"{peer.median / ours.median:8.3f}  (to reach: 0.600)"),
            ("frames checked under load", f"{arguments.torn:8,} in {took:.0f} s, {skipped:,} skipped"),
            ("torn", f"{torn:8}  (to reach: 0)"),
        ],
    )


if __name__ == "__main__":
    main()
