"""One parameter of a foreign script: what people may say about it, and how the script wants it written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from mosaic_wire.worker_spec import FieldSpec

from cleanrl_worker.scripts.values import OPEN


class Writing(StrEnum):
    """How a value becomes words of the command line."""

    VALUE = "value"
    """--x 3, --x True, --x 1 2 3"""
    SWITCH = "switch"
    """--x or --no-x"""
    ON = "on"
    """--x says True, leaving it out says False"""
    OFF = "off"
    """--x says False, leaving it out says True"""
    TRUTHY = "truthy"
    """`type=bool` of argparse, for which any text but the empty one is True"""
    POSITIONAL = "positional"
    """the value alone, after all flags"""


@dataclass(frozen=True)
class ScriptParameter:
    """A field for forms and checks, with the spelling the script understands."""

    field: FieldSpec
    flag: str
    """as the script declares it, e.g. --capture_video"""
    writing: Writing = Writing.VALUE
    is_required: bool = False

    def words(self, value: Any) -> list[str]:
        """The words that say this value."""
        if value is None:
            # What the script takes for nothing at all is what it does when it is not told.
            return [] if self.field.default is None else [self.flag, "None"]
        match self.writing:
            case Writing.SWITCH:
                return [self.flag if value else "--no-" + self.flag.removeprefix("--")]
            case Writing.ON:
                return [self.flag] if value else []
            case Writing.OFF:
                return [] if value else [self.flag]
            case Writing.TRUTHY:
                return [self.flag, "True" if value else ""]
            case Writing.POSITIONAL:
                return as_words(value)
            case _:
                return [self.flag, *as_words(value)]


def as_words(value: Any) -> list[str]:
    """A value as a shell would hand it over; a list becomes several words."""
    if isinstance(value, list | tuple):
        return [word for item in value for word in as_words(item)]
    if isinstance(value, dict):
        return [json.dumps(value)]
    return [str(value)]


def make_field(
    name: str, kind: str, default: Any, source: str, *, help: str = "", nullable: bool = False,
    choices: tuple[Any, ...] = (),
) -> FieldSpec:  # fmt: skip
    """A field whose default may be known only to the script; then its source text is shown."""
    if isinstance(default, PurePath):
        default = str(default)
    if default is OPEN:
        help = f"{help} (by default {source})".strip()
        default = None
        nullable = True
    usable = choices if all(isinstance(choice, str | int | float) for choice in choices) else ()
    return FieldSpec(name, kind, default, help, usable, nullable or default is None)
