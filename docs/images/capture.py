"""Make the README's screenshots from the real program: `.venv/bin/python docs/images/capture.py`.

Runs the command of `make train` in a pseudo-terminal, then draws one moment of its live display and its last screen.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 24
FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
TRAIN = ("mosaic", "train", "ppo", "CartPole-v1", "--eval-episodes", "20", "--expect-return", "475")

# How rich goes back over a live display of two lines before it draws the next one.
REDRAW = "\r\x1b[2K\x1b[1A\x1b[2K"


def run_in_terminal(argv: tuple[str, ...]) -> str:
    """Run a command with a terminal of its own; return everything it wrote, control sequences included."""
    pid, terminal = pty.fork()
    if pid == 0:
        variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execve(Path(sys.executable).parent / argv[0], argv, variables)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    pieces = []
    try:
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    except OSError:  # the terminal closed with the last process that had it
        pass
    os.waitpid(pid, 0)
    return b"".join(pieces).decode()


def draw(name: str, title: str, text: str) -> None:
    """Write a screen as SVG, without the fonts that rich would fetch from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    shown = text.replace("\r", "").replace("\x1b[?25h", "").replace("\x1b[?25l", "").replace(f"{ROOT}/", "")
    console.print(Text.from_ansi(shown.strip("\n")))
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title, unique_id=name), flags=re.DOTALL)
    (FOLDER / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def main() -> None:
    screens = run_in_terminal(TRAIN).split(REDRAW)
    # What stands above the live display, whose first line names the columns.
    head = "\n".join(line for line in screens[0].splitlines() if line.startswith(("started", "queued")))
    running = [screen for screen in screens if "running" in screen and re.search(r"2\d\d,\d{3}/", screen)]
    draw("train-running", "make train", f"{head}\n{running[-1]}")
    draw("train-done", "make train", f"{head}\n{screens[-1]}")


if __name__ == "__main__":
    main()
