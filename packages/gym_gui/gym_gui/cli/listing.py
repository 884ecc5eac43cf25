"""Tables, fast: ten thousand rows are laid out and written in a few tens of milliseconds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gym_gui.cli.context import colored, style, use_color
from gym_gui.wording.formats import json_escaped, one_line

_GAP = "  "


@dataclass
class Column:
    """One column: its cells, and what may happen to it on a narrow terminal."""

    header: str
    cells: list[str]
    right: bool = False
    shrink_to: int = 0
    """May be cut to this width; 0: never cut"""
    optional: int = 0
    """Dropped when the terminal is too narrow, the highest number first; 0: never dropped"""
    colors: Sequence[str | None] | None = None


def terminal_width() -> int | None:
    """Columns of the terminal; None when the output goes elsewhere and nothing needs to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def write_table(columns: Sequence[Column]) -> None:
    """Print a table; on a terminal, cut to its width."""
    sys.stdout.write(layout(columns, width=terminal_width(), color=use_color()))


def layout(columns: Sequence[Column], *, width: int | None, color: bool = False) -> str:
    """Return the table as text, a header line first; columns without any content are left out."""
    shown = [column for column in columns if any(column.cells)]
    if not shown:
        return ""
    cells = {id(column): _one_line_each([column.header, *column.cells]) for column in shown}
    widths = {key: max(map(_cells_wide, texts)) for key, texts in cells.items()}
    if width is not None:
        shown = _fit(shown, widths, width)
    laid_out = [_lay_out(column, cells[id(column)], widths[id(column)], column is shown[-1], color) for column in shown]
    return "".join([_GAP.join(row).rstrip() + "\n" for row in zip(*laid_out, strict=True)])


def write_json(documents: Iterable[Any]) -> None:
    """Print a JSON array, one element a line (the indenting encoder of Python is many times slower)."""
    body = ",\n".join([_as_json(document) for document in documents])
    sys.stdout.write(f"[\n{body}\n]\n" if body else "[]\n")


def write_json_object(document: Any) -> None:
    sys.stdout.write(_as_json(document, indent=2) + "\n")


def _as_json(document: Any, indent: int | None = None) -> str:
    is_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    return json_escaped(json.dumps(document, indent=indent, ensure_ascii=not is_unicode))


def write_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print `label  value` lines, labels aligned; empty values are left out, long ones keep their own lines."""
    present = [(label, value) for label, value in pairs if value]
    wide = max((len(label) for label, _ in present), default=0)
    for label, value in present:
        first, *more = value.splitlines() or [""]
        click.echo(style(label.ljust(wide), dim=True) + _GAP + first)
        for line in more:
            click.echo(" " * (wide + len(_GAP)) + line)


def _one_line_each(cells: list[str]) -> list[str]:
    return cells if "".join(cells).isprintable() else [one_line(cell) for cell in cells]


def _fit(columns: list[Column], widths: dict[int, int], width: int) -> list[Column]:
    def excess() -> int:
        return sum(widths[id(column)] for column in columns) + len(_GAP) * (len(columns) - 1) - width

    def shrink_total() -> int:
        return sum(max(0, widths[id(column)] - column.shrink_to) for column in columns if column.shrink_to)

    while excess() > shrink_total() and any(column.optional for column in columns):
        victim = max(columns, key=lambda column: column.optional)
        columns = [column for column in columns if column is not victim]
    while (too_wide := excess()) > 0:
        # Cut the widest first: it loses the least.
        cuttable = [column for column in columns if column.shrink_to and widths[id(column)] > column.shrink_to]
        if not cuttable:
            break
        widest = max(cuttable, key=lambda column: widths[id(column)])
        others = [widths[id(column)] for column in cuttable if column is not widest]
        step = max(1, min(too_wide, widths[id(widest)] - max(others, default=0)))
        widths[id(widest)] = max(widest.shrink_to, widths[id(widest)] - step)
    return columns


def _lay_out(column: Column, cells: list[str], width: int, is_last: bool, color: bool) -> list[str]:
    plain = all(map(str.isascii, cells))
    if plain and max(map(len, cells)) <= width:
        laid_out = [cell.rjust(width) for cell in cells] if column.right else [cell.ljust(width) for cell in cells]
    else:
        laid_out = [_pad(_cut(cell, width), width, column.right) for cell in cells]
    if is_last and not column.right:
        laid_out = [cell.rstrip() for cell in laid_out]
    if not color:
        return laid_out
    laid_out[0] = colored(laid_out[0], bold=True)
    if column.colors is not None:
        for position, name in enumerate(column.colors, start=1):
            if name:
                laid_out[position] = colored(laid_out[position], fg=name)
    return laid_out


def _cells_wide(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    if _cells_wide(text) <= width:
        return text
    if text.isascii():
        return text[: max(0, width - 1)] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 1)) + "…"


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * max(0, width - _cells_wide(text))
    return space + text if right else text + space


force_option = click.option("--force", is_flag=True, help="Replace a file that exists.")


def check_target(target: Path, *, force: bool) -> None:
    """Refuse to write over what exists, or into a folder that does not; `-` is standard output."""
    if str(target) != "-" and os.path.lexists(target) and not force:
        raise click.UsageError(f"{target} exists; --force replaces it")
    if target.exists() and not target.is_file():  # what is written is renamed: that would replace a device, too
        raise click.UsageError(f"{target} is a folder, pipe or device, not a file")
    if not target.absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder {target.absolute().parent}")
