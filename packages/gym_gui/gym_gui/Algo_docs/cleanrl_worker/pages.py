"""What a help page is made of, and how it becomes HTML that a Qt text view shows."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gym_gui.Algo_docs.cleanrl_worker.glossary import GLOSSARY


@dataclass(frozen=True)
class Advice:
    """Where to begin in one family of environments."""

    family: str
    examples: str
    timesteps: str
    num_envs: str
    extras: str = ""
    """Requirement set and flags worth setting"""


@dataclass(frozen=True)
class Page:
    """One algorithm."""

    title: str
    what: str
    advice: tuple[Advice, ...]
    remarks: tuple[str, ...] = ()
    """What is easy to get wrong"""


@cache
def parameters() -> dict[str, dict[str, tuple[str, Any]]]:
    """Flags of CleanRL's scripts: name → (type, default)."""
    text = Path(__file__).with_name("parameters.json").read_text(encoding="utf-8")
    return {algo: {name: tuple(entry) for name, entry in flags.items()} for algo, flags in json.loads(text).items()}


def render(algo: str, page: Page, *, is_ours: bool) -> str:
    """The page as an HTML fragment."""
    parts = [f"<h2>{_text(page.title)}</h2>", f"<p>{_text(page.what)}</p>", _state(algo, is_ours=is_ours)]
    parts += ["<h3>Where to begin</h3>", _advice_table(page.advice)]
    if page.remarks:
        parts += ["<h3>Worth knowing</h3>", "<ul>", *(f"<li>{_text(line)}</li>" for line in page.remarks), "</ul>"]
    parts += ["<h3>Parameters</h3>", _parameter_table(algo)]
    return "\n".join(parts) + "\n"


def _state(algo: str, *, is_ours: bool) -> str:
    if is_ours:
        return f"<p>Implemented by MOSAIC: <code>mosaic train {algo} ENV</code>.</p>"
    return (
        "<p><b>Not implemented by MOSAIC yet.</b> CleanRL's own script runs unmodified: "
        f"<code>mosaic train {algo} ENV --source upstream</code>, with a checkout named by CLEANRL_HOME and the "
        "requirement set it needs. Such a run can be watched, cancelled and paused, but not resumed.</p>"
    )


def _advice_table(advice: tuple[Advice, ...]) -> str:
    head = ("environments", "for example", "timesteps", "num_envs", "extras")
    rows = [(item.family, item.examples, item.timesteps, item.num_envs, item.extras or "–") for item in advice]
    return _table(head, rows)


def _parameter_table(algo: str) -> str:
    rows = [
        (f"--{name.replace('_', '-')}", kind, _default(default), GLOSSARY[name])
        for name, (kind, default) in parameters()[algo].items()
    ]
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
