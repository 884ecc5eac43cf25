"""Markdown that says what was meant, whatever names people gave their runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gym_gui.wording.plain_text import printable

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&])")
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f\u2028\u2029]+")


def text(words: str) -> str:
    """Plain words: nothing in them is markup, HTML or a new line."""
    return _SPECIAL.sub(r"\\\1", _flat(words))


def code(words: str) -> str:
    """Words as they are typed; also in a table."""
    flat = _flat(words)
    fence = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    pad = " " if "`" in flat else ""
    return f"{fence}{pad}{flat.replace('|', chr(92) + '|')}{pad}{fence}" if flat else ""


def code_block(lines: str, language: str = "") -> str:
    """Several lines as they are; a fence longer than any in them."""
    fence = "`" * max(3, max((len(run) for run in re.findall(r"`+", lines)), default=0) + 1)
    return f"{fence}{language}\n{printable(lines.rstrip())}\n{fence}"


def _flat(words: str) -> str:
    return printable(_BREAKS.sub(" ", words).strip())


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """A table of cells that are Markdown already; `right` are the columns of numbers."""
    marks = ["---:" if index in right else "---" for index in range(len(headers))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headers, marks, *rows))
