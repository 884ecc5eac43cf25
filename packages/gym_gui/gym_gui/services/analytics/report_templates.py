"""Jinja2 templates of the reports: whatever names people gave their runs, they stay text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from mosaic_wire.redaction import redact_text

from gym_gui.services.analytics.comparison import (
    decided,
    estimate_text,
    name_of,
    number,
    probability_text,
    verdict_text,
)
from gym_gui.services.analytics.configurations import NOT_GIVEN
from gym_gui.wording import formats
from gym_gui.wording.formats import printable
from gym_gui.wording.run_view import SYMBOLS, elapsed_s, progress_of, short_id, state_of, title_of

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&])")
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f\u2028\u2029]+")


@cache
def html_template(name: str) -> Template:
    """Return a template whose expressions are escaped as HTML."""
    return _environment(_html_value).get_template(name)


@cache
def markdown_template(name: str) -> Template:
    """Return a template whose expressions are escaped as Markdown text, unless they are `Markup`."""
    environment = _environment(_markdown_value)
    environment.filters |= {"markdown": Markup, "code": markdown_code, "code_block": markdown_code_block}
    for name_of_filter in ("number", "estimate", "probability"):
        write = environment.filters[name_of_filter]
        environment.filters[name_of_filter] = lambda value, write=write: Markup(write(value))
    return environment.get_template(name)


def _environment(finalize: Callable[[Any], str]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["fact_titles"] = lambda found: tuple(fact.title for fact in found.facts) if found else ()
    environment.filters |= {
        "count": _or_dash(formats.count),
        "decided": lambda pair: decided(pair.probability, pair.seeds),
        "duration": _or_dash(formats.duration),
        "elapsed": elapsed_s,
        "estimate": estimate_text,
        "facts": lambda figures, facts: tuple(fact.text(figures.facts if figures else {}) for fact in facts),
        "field": lambda values, name: None if values is None else getattr(values, name),
        "moment": formats.moment,
        "name": name_of,
        "number": number,
        "plural": formats.plural,
        "probability": probability_text,
        "progress": progress_of,
        "redact": redact_text,
        "short_id": short_id,
        "size": formats.size,
        "state": state_of,
        "symbol": lambda run: SYMBOLS.get(state_of(run), ""),
        "title": title_of,
        "value": lambda estimate: estimate.value if estimate else None,
        "verdict": verdict_text,
    }
    return environment


def _or_dash(write: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: NOT_GIVEN if value is None else write(value)


def _html_value(value: Any) -> str:
    return value if isinstance(value, Markup) else printable(str(value))


def _markdown_value(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(markdown_text(str(value)))


# ---------------------------------------------------------------- Markdown


def markdown_text(text: str) -> str:
    """Return text in which nothing is markup, HTML or a new line."""
    return _SPECIAL.sub(r"\\\1", _flat(text))


def markdown_code(text: str) -> Markup:
    """Return text as it is typed; also in a table."""
    flat = _flat(text)
    fence = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    pad = " " if "`" in flat else ""
    return Markup(f"{fence}{pad}{flat.replace('|', chr(92) + '|')}{pad}{fence}" if flat else "")


def markdown_code_block(lines: str, language: str = "") -> Markup:
    """Return several lines as they are, in a fence longer than any in them."""
    fence = "`" * max(3, max((len(run) for run in re.findall(r"`+", lines)), default=0) + 1)
    return Markup(f"{fence}{language}\n{printable(lines.rstrip())}\n{fence}")


def _flat(text: str) -> str:
    return printable(_BREAKS.sub(" ", text).strip())
