"""Runbooks as sessions: what a block of one says, and a shell to run it in.

A `console` block is a session: lines that begin with `$ ` are commands (one that ends in `\\` goes on in the next
line), the lines below a command are what it prints. Each of them must be a line of its output, in this order; `…`
stands for anything, and blanks count as one. HTML comments before a block, which a reader does not see, say how it is
tested:

    <!-- test: skip because REASON -->     it cannot be run here; the reason is counted
    <!-- test: exit N -->                  its last command leaves with this code; without it, with 0
    <!-- test: interrupt -->               its last command continues; once it has printed all this, Ctrl-C ends it
    <!-- test: first COMMAND -->           something that is so before, on the operator's machine
    <!-- test: wait RUN STATUS … -->       first wait until the run is in one of these states
    <!-- test: where NAME is VALUE -->     from here on, NAME in commands and outputs means VALUE; `run:TEXT` is the
                                           newest run with this text in its name, algorithm or environment
    <!-- test: sets NAME … -->             requirement sets that are installed in the home already

One runbook is one home, `/srv/mosaic`: it begins empty, and what one block changed the next one sees. `$BOX` is the
test's own folder, `$PORT` a port that is free.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.services.trainer.local_daemon import running_record, wait_for_end
from mosaic_extras.testing import lend_sets
from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "runbooks"
QUICK = "port = 0\nheartbeat_s = 0.2\ngrace_s = 2\nmin_free_disk_mb = 0\ncpus = 2\n"
UNFINISHED = ("INIT", "HSHK", "RDY", "EXEC", "PAUSE", "FAULT")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- test: (?P<verb>\w+) ?(?P<rest>.*?) -->")
_COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Step:
    """One command and what it prints."""

    command: str
    printed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    """A fenced block, and the markers before it."""

    line: int
    language: str
    text: str
    markers: tuple[tuple[str, str], ...]

    def all(self, verb: str) -> list[str]:
        return [rest for name, rest in self.markers if name == verb]

    @property
    def reason_to_skip(self) -> str | None:
        return next((rest.removeprefix("because ") for rest in self.all("skip")), None)

    @property
    def steps(self) -> list[Step]:
        found: list[Step] = []
        goes_on = False
        for line in self.text.splitlines():
            if goes_on:
                found[-1].command += "\n" + line
            elif line.startswith("$ "):
                found.append(Step(line[2:]))
            else:
                assert found, f"line {self.line}: a block begins with a command ($ …), not with {line!r}"
                found[-1].printed.append(line)
            goes_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
        return found


def blocks_of(path: Path) -> list[Block]:
    text, found, end = path.read_text(encoding="utf-8"), [], 0
    for fence in _FENCE.finditer(text):
        markers = tuple((marker["verb"], marker["rest"]) for marker in _MARKER.finditer(text, end, fence.start()))
        content = re.sub(rf"^{fence['indent']}", "", fence["text"], flags=re.MULTILINE)
        found.append(Block(text.count("\n", 0, fence.start()) + 1, fence["language"], content, markers))
        end = fence.end()
    return found


# ---------------------------------------------------------------- running them


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Session:
    """An operator's shell: variables and the current folder stay from one command to the next."""

    def __init__(self, box: Path) -> None:
        self.box = box
        self._state = box / ".session"
        self._state.mkdir()
        self._meanings = [("/srv", str(box / "srv"))]
        self.variables = {
            **os.environ,
            "BOX": str(box),
            "HOME": str(box / "user"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "160",
            env.MOSAIC_HOME: str(box / "srv" / "mosaic"),
            env.MOSAIC_CONFIG_HOME: str(box / "user" / ".config" / "mosaic"),
        }
        (box / "srv").mkdir()
        (box / "user" / ".config" / "mosaic").mkdir(mode=0o700, parents=True)
        (box / "user" / ".config" / "mosaic" / "settings.toml").write_text(QUICK)

    def mean(self, name: str, value: str) -> None:
        """From now on this name stands for that value."""
        if value.startswith("run:"):
            with TrainerClient.connect(self.home, timeout_s=30) as client:
                (run,) = client.list(text=value.removeprefix("run:"), limit=1).runs
            value = run.run_id
        # The newest meaning counts.
        self._meanings.insert(0, (name, value.replace("$BOX", str(self.box)).replace("$PORT", str(free_port()))))

    def translated(self, text: str) -> str:
        for name, value in self._meanings:
            before = "/" if name.startswith("/") else ""  # /srv is not the /srv of /data/srv
            text = re.sub(rf"(?<![\w.{before}-]){re.escape(name)}(?![\w-])", lambda _, value=value: value, text)
        return text

    def _started(self, command: str) -> subprocess.Popen[str]:
        """Start it with bash where the last one left off."""
        kept, place = self._state / "variables", self._state / "folder"
        script = "\n".join(
            [
                f"[ ! -e {kept} ] || . {kept}",
                f'cd "$(cat {place} 2>/dev/null || echo "$HOME")"',
                # On every way out, `exit` and a failed command included.
                f"trap 'export -p > {kept}; pwd > {place}' EXIT",
                self.translated(command),
            ]
        )
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", script],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Its exit code and everything it printed."""
        with self._started(command) as process:
            try:
                output, _ = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, _COLOR.sub("", output)

    def run_until(self, command: str, printed: list[str]) -> tuple[int, str]:
        """The same of one that goes on until Ctrl-C, which it gets when it has printed these lines."""
        output = ""
        with self._started(command) as process:
            assert process.stdout is not None
            for line in process.stdout:
                output += _COLOR.sub("", line)
                if missing_line(printed, output) is None:
                    os.killpg(process.pid, signal.SIGINT)
                    break
            output += process.stdout.read()
        return process.returncode, _COLOR.sub("", output)

    def value_of(self, variable: str) -> str:
        return self.run(f'printf %s "${variable}"')[1]

    @property
    def home(self) -> Home:
        return Home(Path(self.value_of(env.MOSAIC_HOME)))

    def wait(self, run: str, statuses: tuple[str, ...]) -> None:
        with TrainerClient.connect(self.home, timeout_s=30) as client:
            assert wait_until(lambda: client.find(self.translated(run)).status in statuses, timeout_s=90, poll_s=0.05)

    def close(self) -> None:
        """End every daemon that was started in the box, and its runs."""
        for record in self.box.rglob("daemon.json"):
            home = Home(record.parents[1])
            if (running := running_record(home)) is None:
                continue
            with TrainerClient.connect(home, timeout_s=30) as client:
                for run in client.list(statuses=list(UNFINISHED)).runs:
                    with suppress(TrainerError):  # it ended just now
                        client.cancel(run.run_id)
                wait_until(lambda client=client: not client.list(statuses=list(UNFINISHED)).runs, timeout_s=60)
                client.shutdown()
            assert wait_for_end(running, 30)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    yield session
    session.close()


def message(line: str) -> str:
    return " ".join(line.split())


def missing_line(expected: list[str], output: str) -> str | None:
    """The first expected line that the output does not have, in this order; None when all are there."""
    rest = iter([message(line) for line in output.splitlines()])
    for line in expected:
        target = message(line)
        if target in ("", "…"):
            continue
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in target.split("…")))
        if not any(pattern.fullmatch(found) for found in rest):
            return line
    return None


def perform(session: Session, block: Block, where: str) -> None:
    for verb, rest in block.markers:  # in the order they are written
        if verb == "where":
            name, _, value = rest.partition(" is ")
            session.mean(name, value)
        elif verb == "sets":
            lend_sets(session.home, *rest.split())
        elif verb == "first":
            code, output = session.run(rest)
            assert code == 0, f"{where}: before the block, `{rest}` left with {code}:\n{output}"
        elif verb == "wait":
            run, *statuses = rest.split()
            session.wait(run, tuple(statuses))
    if block.reason_to_skip is not None:
        return
    steps = block.steps
    for position, step in enumerate(steps, 1):
        target = int(next(iter(block.all("exit")), 0)) if position == len(steps) else 0
        printed = [session.translated(line) for line in step.printed]
        goes_on = position == len(steps) and block.all("interrupt")
        code, output = session.run_until(step.command, printed) if goes_on else session.run(step.command)
        assert code == target, f"{where}: `{step.command}` left with {code}, expected {target}:\n{output}"
        lacking = missing_line(printed, output)
        assert lacking is None, f"{where}: `{step.command}` did not print\n  {lacking}\nbut\n{output}"


@pytest.fixture
def perform_runbook(session: Session) -> Callable[[str], None]:
    """Run every session of a runbook, in order."""

    def perform_all(name: str) -> None:
        for block in blocks_of(FOLDER / f"{name}.md"):
            if block.language == "console":
                perform(session, block, f"{name}.md:{block.line}")

    return perform_all


@pytest.fixture(scope="session")
def runbooks() -> dict[str, list[Block]]:
    """The blocks of every runbook, by its name."""
    return {path.stem: blocks_of(path) for path in sorted(FOLDER.glob("*.md"))}
