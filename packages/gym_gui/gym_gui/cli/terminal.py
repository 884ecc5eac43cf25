"""What the command prints: text without control characters, and no colours but its own."""

from __future__ import annotations

import io
import os
import re
import secrets
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from gym_gui.wording.plain_text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_MARK = f"\x1b{secrets.token_hex(8)}["
"""Begins a colour of `style`. No text of a run can contain it: it is drawn anew in each process."""
_COLOUR = re.compile(re.escape(_MARK) + "([0-9;]*m)")


class TerminalText:
    """A text stream that cleans what is written, and writes `?` for what its encoding does not have."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        if isinstance(stream, io.TextIOWrapper):
            # click would write past this object to an ASCII stream, as UTF-8
            stream.reconfigure(encoding="utf-8" if stream.encoding == "ascii" else None, errors="replace")

    def write(self, text: str) -> int:
        parts = _COLOUR.split(text)  # text, colour, text, …
        self.stream.write("".join(f"\x1b[{part}" if index % 2 else printable(part) for index, part in enumerate(parts)))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def clean_output() -> None:
    """From now on this process prints through `TerminalText`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TerminalText):
            setattr(sys, name, TerminalText(stream))


def as_it_is(stream: TextIO) -> TextIO:
    """The stream below, for a display that moves the cursor; who uses it cleans the text."""
    return cast("TextIO", getattr(stream, "stream", stream))


def use_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def style(text: str, **look: Any) -> str:
    """`click.style` where colours are used; only these get through to the terminal."""
    return coloured(text, **look) if use_colour() else text


def coloured(text: str, **look: Any) -> str:
    """`style` for who asked `use_colour` already."""
    return click.style(printable(text), **look).replace("\x1b[", _MARK)


class Cleaned:
    """Draws a rich renderable with its text cleaned."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._content, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
