"""The Logs tab and a large log: what the first screen costs, against reading the whole file; and what memory it takes.

Runs a real tab offscreen. The peer reads the file into one text, as a plain text field would want it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QT_LOGGING_RULES", "*.debug=false;qt.qpa.*=false")

from measure import Sample, cpu_of, memory_mb_of, print_table

PEER = "import sys; text = open(sys.argv[1], errors='replace').read(); lines = text.splitlines(); print(len(lines))"


def write_log(path: Path, megabytes: int) -> int:
    """Write a log of about this size to the disk; return the number of its lines."""
    piece = "".join(
        f"2026-11-15 16:00:{number % 60:02d} INFO  update {number:07d} loss={number % 97 / 97:.4f}\n"
        for number in range(20_000)
    ).encode()
    count = megabytes * 2**20 // len(piece)
    with path.open("wb") as stream:
        for _ in range(count):
            stream.write(piece)
        stream.write(b"the very last line\n")
    return count * 20_000 + 1


def measure_tab(folder: Path, lines: int) -> dict[str, float]:
    """Open the log in a tab, wait for its first screen, for its last line's number, then jump about in it."""
    from gym_gui.services.trainer.client import TrainerClient
    from gym_gui.services.trainer.errors import DaemonUnreachable
    from gym_gui.ui.background import Background
    from gym_gui.ui.daemon_link import DaemonLink
    from gym_gui.ui.run_page.logs_tab import LogsTab
    from mosaic_wire.proto import trainer_pb2 as pb
    from PySide6.QtCore import QEventLoop, QTimer
    from PySide6.QtWidgets import QApplication

    application = QApplication.instance() or QApplication([])
    assert application is not None
    background = Background()

    def no_daemon() -> TrainerClient:
        raise DaemonUnreachable("none is needed: the files are here")

    tab = LogsTab(DaemonLink(no_daemon, background))
    tab.resize(1200, 800)
    tab.show()
    tab.set_active(True)
    pid = os.getpid()

    def wait_for(condition) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + 600
        while not condition():
            loop = QEventLoop()
            QTimer.singleShot(2, loop.quit)
            loop.exec()
            assert time.monotonic() < deadline

    def last_shown() -> str:
        line = tab.view.line(tab.view.count - 1)
        return line.text if line else ""

    wait_for(lambda: True)
    before, cpu = memory_mb_of(pid), cpu_of(pid)
    run = pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="TERM", run_dir=str(folder), logs_dir=str(folder))
    tab.show_run(run)
    wait_for(lambda: last_shown() == "the very last line")
    first_screen, scanned = cpu_of(pid) - cpu, tab.file.index.scanned
    assert scanned < 64 << 20, "the first screen waited for the whole file"
    wait_for(lambda: tab.view.count == lines)
    counted, highest = cpu_of(pid) - cpu, memory_mb_of(pid)
    for part in range(1, 200):
        row = lines * part // 200
        tab.view.scroll_to(row)
        wait_for(lambda row=row: tab.view.line(row) is not None)
        highest = max(highest, memory_mb_of(pid)) if part % 20 == 0 else highest
    result = {
        "first screen (CPU s)": first_screen,
        "read for it (MB)": scanned / 2**20,
        "every line counted (CPU s)": counted,
        "memory taken, at most (MB)": highest - before,
        "of it the index (MB)": tab.file.index.index_bytes / 2**20,
    }
    tab.set_active(False)
    tab.hide()
    background.close()
    return result


def measure_peer(path: Path) -> tuple[float, float]:
    """CPU seconds and peak memory of reading it whole."""
    with subprocess.Popen([sys.executable, "-c", PEER, str(path)], stdout=subprocess.DEVNULL) as process:
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        lines = write_log(folder / "stdout.log", arguments.megabytes)
        ours: list[dict[str, float]] = []
        peers: list[tuple[float, float]] = []
        for pair in range(arguments.pairs):
            ours.append(measure_tab(folder, lines))
            peers.append(measure_peer(folder / "stdout.log"))
            print(f"  pair {pair + 1}/{arguments.pairs}: first screen {ours[-1]['first screen (CPU s)']:.3f} s")
    rows = [(key, str(Sample(tuple(result[key] for result in ours)))) for key in ours[0]]
    rows += [
        ("peer: the whole file as text (CPU s)", str(Sample(tuple(cpu for cpu, _ in peers)))),
        ("peer: memory (MB)", str(Sample(tuple(memory for _, memory in peers)))),
    ]
    print_table(f"a log of {arguments.megabytes:,} MB, {lines:,} lines (to reach: memory flat, < 30 MB)", rows)


if __name__ == "__main__":
    main()
