"""The FastLane view at 30 frames per second, against a bare QLabel that is given the same frames; share of a core.

    python benchmarks/gui_frames.py --pairs 5 --seconds 8
    xvfb-run -a python benchmarks/gui_frames.py --platform xcb        on a screen instead of in memory

Each measurement is a process of its own with a window; another process draws, and takes its pace from the viewer as
a training process does. The peer reads the same shared memory: what differs is what the view adds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from measure import alternate, print_table
from mosaic_wire.frames import FrameReader, fastlane_path, remove_frames
from mosaic_wire.ids import new_run_id

WIDTH, HEIGHT, FPS = 600, 400, 30
TO_REACH = 0.10

WRITER = """
import os, sys, time
from mosaic_wire.frames import FrameWriter, fastlane_path
width, height = int(sys.argv[2]), int(sys.argv[3])
writer = FrameWriter(fastlane_path(sys.argv[1]))
frames = [os.urandom(3 * width) * height for _ in range(8)]  # lines: nothing compresses or compares equal
number = 0
while True:
    if writer.is_due():
        writer.publish(frames[number % 8], width, height)
        writer.set_statistics(last_reward=1.0, rolling_return=number % 500, step_rate_hz=10_000.0)
        writer.record_render_time(0.0)
        number += 1
    time.sleep(0.001)
"""


@contextmanager
def drawing(run_id: str) -> Iterator[None]:
    """A process that draws for a viewer."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, run_id, str(WIDTH), str(HEIGHT)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
        remove_frames(run_id)


def measured(viewer: str, seconds: float, platform: str) -> float:
    """Return the share of a core that a viewer takes, measured in a process of its own."""
    run_id = new_run_id()
    command = [sys.executable, __file__, "--as", viewer, "--run", run_id, "--seconds", str(seconds)]
    with drawing(run_id):
        done = subprocess.run(
            command, env={**os.environ, "QT_QPA_PLATFORM": platform}, capture_output=True, text=True, check=True
        )
    share, shown = map(float, done.stdout.split())
    if shown < 0.8 * FPS * seconds:
        print(f"    {viewer}: only {shown / seconds:.1f} frames per second were shown")
    return share


# ---------------------------------------------------------------- inside the measured process


def view_as(kind: str, run_id: str, seconds: float) -> None:
    """Show a window for so long; print the share of a core it took after its first second, and the frames shown."""
    from gym_gui.ui import theme
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    application = QApplication([])
    theme.apply(application, theme.ThemeChoice.DARK)
    viewer = _BareLabel(run_id) if kind == "label" else _View(run_id, fitted=kind == "fitted")
    began: list[float] = []

    def begin() -> None:
        began[:] = [time.process_time(), viewer.shown]

    def end() -> None:
        print((time.process_time() - began[0]) / seconds, viewer.shown - began[1])
        viewer.close()
        application.quit()

    QTimer.singleShot(1_500, begin)
    QTimer.singleShot(1_500 + round(1000 * seconds), end)
    application.exec()


class _BareLabel:
    """The least that shows the frames: read, wrap, set."""

    def __init__(self, run_id: str) -> None:
        from PySide6.QtCore import Qt, QTimer
        from PySide6.QtWidgets import QLabel

        self.shown = 0
        self._label = QLabel()
        self._label.resize(WIDTH, HEIGHT)
        self._label.show()
        self._reader = FrameReader(fastlane_path(run_id), interval_s=1 / FPS)
        self._timer = QTimer()
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._poll)
        self._timer.start(16)

    def _poll(self) -> None:
        from PySide6.QtGui import QImage, QPixmap

        frame = self._reader.read()
        if frame is not None:
            image = QImage(frame.pixels, frame.width, frame.height, 3 * frame.width, QImage.Format.Format_RGB888)
            self._label.setPixmap(QPixmap.fromImage(image))
            self.shown += 1

    def close(self) -> None:
        self._timer.stop()
        self._reader.close()


class _View:
    """The view as the Live tab has it, its frame at 600 × 400, or fitted to half as much again."""

    def __init__(self, run_id: str, *, fitted: bool) -> None:
        from gym_gui.services.trainer.client import TrainerClient
        from gym_gui.ui.background import Background
        from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
        from gym_gui.ui.run_page.fastlane_view import FastLaneView
        from gym_gui.ui.widgets.frame_view import Zoom
        from mosaic_wire.proto import trainer_pb2 as pb

        def never() -> TrainerClient:
            raise AssertionError("no daemon is needed to look at shared memory")

        self._background = Background()
        link = DaemonLink(never, self._background)
        link.state = LinkState(LinkPhase.CONNECTED, target="unix:nowhere")
        self._view = FastLaneView(link)
        share = 1.5 if fitted else 1.0
        self._view.frame_view.setFixedSize(round(share * WIDTH), round(share * HEIGHT))
        self._view.frame_view.set_zoom(Zoom.FIT if fitted else Zoom.ACTUAL)
        self._view.show()
        self._view.show_run(pb.Run(run_id=run_id, status="EXEC", algo="ppo", env_id="CartPole-v1"))
        self._view.set_active(True)

    @property
    def shown(self) -> int:
        return self._view.frames_shown

    def close(self) -> None:
        self._view.set_active(False)
        self._background.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--platform", default="offscreen")
    parser.add_argument("--as", dest="viewer", help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.viewer:
        view_as(arguments.viewer, arguments.run, arguments.seconds)
        return
    rest = arguments.seconds, arguments.platform
    ours, peer = alternate(lambda: measured("view", *rest), lambda: measured("label", *rest), pairs=arguments.pairs)
    fitted = measured("fitted", *rest)
    print_table(
        f"{FPS} frames of {WIDTH} × {HEIGHT} a second on {arguments.platform}: share of a core",
        [
            ("the FastLane view, 1:1", f"{ours}  (to reach: {TO_REACH:.3f})"),
            ("a bare QLabel", str(peer)),
            ("the view above the label", f"{ours.median - peer.median:8.3f}"),
            ("the view fitted to 900 × 600, smooth", f"{fitted:8.3f}"),
        ],
    )


if __name__ == "__main__":
    main()
