"""Content of a help page, and its conversion to HTML for a Qt text view."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire.worker_spec import AlgorithmSpec


@dataclass(frozen=True)
class Advice:
    """Recommended settings for one family of environments."""

    family: str
    examples: str
    timesteps: str
    num_envs: str
    extras: str = ""
    """Requirement set and flags worth setting"""


@dataclass(frozen=True)
class HelpPage:
    """One algorithm."""

    title: str
    what: str
    advice: tuple[Advice, ...]
    remarks: tuple[str, ...] = ()
    """Common mistakes"""


def render(algorithm: AlgorithmSpec, page: HelpPage) -> str:
    """Return the page as an HTML fragment; its flags are those that the worker describes."""
    parts = [f"<h2>{_text(page.title)}</h2>", f"<p>{_text(page.what)}</p>", _state(algorithm)]
    parts += ["<h3>Where to begin</h3>", _advice_table(page.advice)]
    if page.remarks:
        parts += ["<h3>Worth knowing</h3>", "<ul>", *(f"<li>{_text(line)}</li>" for line in page.remarks), "</ul>"]
    if algorithm.fields:
        parts += ["<h3>Parameters</h3>", _parameter_table(algorithm)]
    return "\n".join(parts) + "\n"


def _state(algorithm: AlgorithmSpec) -> str:
    if algorithm.fields:
        return f"<p>Implemented by MOSAIC: <code>mosaic train {algorithm.name} ENV</code>.</p>"
    return (
        "<p><b>Not implemented by MOSAIC yet.</b> CleanRL's own script runs unmodified: "
        f"<code>mosaic train {algorithm.name} ENV --source upstream</code>, with a checkout named by CLEANRL_HOME and "
        "the requirement set it needs. Such a run can be watched, cancelled and paused, but not resumed.</p>"
    )


def _advice_table(advice: tuple[Advice, ...]) -> str:
    head = ("environments", "for example", "timesteps", "num_envs", "extras")
    rows = [(item.family, item.examples, item.timesteps, item.num_envs, item.extras or "–") for item in advice]
    return _table(head, rows)


def _parameter_table(algorithm: AlgorithmSpec) -> str:
    rows = [(field.flag, field.kind, _default(field.default), field.help) for field in algorithm.fields]
    return _table(("flag", "type", "default", "meaning"), rows)


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["<table>", "<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _text(text: str) -> str:
    return html.escape(text, quote=False)
