"""The AgentSpeak files of a behaviour: one that comes along, a file of the user's, or a folder with one per agent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.errors import ConfigProblems, Problem

BEHAVIOURS = ("q_learning", "planner", "teacher_pupil")
_FOLDER = Path(__file__).with_name("behaviours")
_AGENT_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_MOST_BYTES = 1 << 20
_MOST_AGENTS = 16


@dataclass(frozen=True)
class Source:
    """The AgentSpeak of one agent; its file gives it its name."""

    agent: str
    path: Path
    text: str


def find_sources(behaviour: str, own_path: str) -> tuple[Source, ...]:
    """Return the sources of the agents; raise ConfigProblems."""
    name, place = ("behaviour_path", Path(own_path).expanduser()) if own_path else ("behaviour", _FOLDER / behaviour)
    if own_path and not place.is_absolute():
        raise _refused(name, f"{own_path} must be a whole path: the worker has another working directory")
    if not own_path and not place.is_dir():
        place = place.with_suffix(".asl")
    try:
        files = sorted(place.glob("*.asl")) if place.is_dir() else [place]
        if not files:
            raise _refused(name, f"{place} has no .asl file; give the file of an agent, or a folder with one per agent")
        if len(files) > _MOST_AGENTS:
            raise _refused(name, f"{place} has {len(files)} .asl files; at most {_MOST_AGENTS} agents are possible")
        return tuple(_read(name, file) for file in files)
    except OSError as error:
        raise _refused(name, f"{error.filename or place} cannot be read: {error.strerror or error}") from None


def _read(name: str, file: Path) -> Source:
    if not _AGENT_NAME.fullmatch(file.stem):
        text = "names an agent: use lower-case letters, digits and underscores, a letter first, e.g. pupil.asl"
        raise _refused(name, f"{file.name} {text}")
    with file.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise _refused(name, f"{file} is longer than {_MOST_BYTES >> 20} MiB; is it AgentSpeak?")
    try:
        return Source(file.stem, file, content.decode())
    except UnicodeDecodeError as error:
        raise _refused(name, f"{file} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def _refused(path: str, message: str) -> ConfigProblems:
    return ConfigProblems("the worker config", [Problem(path, message)])
