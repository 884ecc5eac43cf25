"""HTML that is made, not pasted together: what is only text is escaped, whatever names people gave their runs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from gym_gui.services.analytics.palette import DARK, LIGHT, Scheme
from gym_gui.wording.plain_text import printable

_VOID = frozenset({"br", "hr", "img", "meta"})


class Html(str):
    """Markup. A plain `str` is text and becomes markup only by being escaped."""

    __slots__ = ()


def escape(text: str) -> Html:
    return text if isinstance(text, Html) else Html(html.escape(printable(text), quote=True))


def element(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """`<name attributes>children</name>`; `class_` is class, an attribute that is None or False is left out."""
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            words.append(attribute if value is True else f'{attribute}="{escape(value)}"')
    if name in _VOID:
        return Html(f"<{' '.join(words)}>")
    return Html(f"<{' '.join(words)}>{together(*children)}</{name}>")


def together(*children: str) -> Html:
    return Html("".join(escape(child) for child in children))


def section(title: str, *children: str, anchor: str) -> Html:
    """A part of the page with a heading; nothing when there is nothing in it."""
    content = together(*children)
    return element("section", element("h2", title), content, id=anchor) if content else Html("")


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    row_headers: bool = False,
    marked: Sequence[int] = (),
) -> Html:
    """Cells are text or markup; `numbers` are columns to the right, `marked` rows that stand out."""

    def cells(row: Sequence[str], name: str) -> Html:
        made = []
        for index, cell in enumerate(row):
            tag = "th" if row_headers and index == 0 else name
            scope = "col" if name == "th" else "row" if tag == "th" else None
            made.append(element(tag, cell, scope=scope, class_="number" if index in numbers else None))
        return together(*made)

    body = [
        element("tr", cells(row, "td"), class_="marked" if index in marked else None) for index, row in enumerate(rows)
    ]
    if not body:
        return Html("")
    head = element("thead", element("tr", cells(headers, "th"))) if any(headers) else Html("")
    return element("div", element("table", head, element("tbody", *body)), class_="wide")


def pairs(rows: Iterable[tuple[str, str]]) -> Html:
    """`label value` lines; empty values are left out."""
    made = [together(element("dt", label), element("dd", value)) for label, value in rows if value]
    return element("dl", *made) if made else Html("")


def folded(title: str, *children: str) -> Html:
    """Opened by whoever wants to see it; without a script."""
    return element("details", element("summary", title), *children)


def preformatted(lines: str) -> Html:
    return element("pre", element("code", lines))


# ---------------------------------------------------------------- figures


def inline_svg(svg: str, *, name: str, label: str) -> Html:
    """A drawing within the page: its colours follow the page's, its ids cannot meet those of another."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    for variable, colour in _variables(LIGHT):
        # In a style only: a presentation attribute would not be asked again when the page's colours change.
        body = re.sub(rf"(:\s*){re.escape(colour)}\b", rf"\1var(--{variable}, {colour})", body, flags=re.IGNORECASE)
    opening, rest = body.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    return Html(f'{opening} role="img" aria-label="{escape(label)}">{rest}')


def _variables(scheme: Scheme) -> list[tuple[str, str]]:
    named = [("paper", scheme.background), ("ink", scheme.text), ("muted", scheme.muted), ("rule", scheme.grid)]
    return [*((f"series-{index}", colour) for index, colour in enumerate(scheme.series)), *named]


def page(title: str, *children: str) -> str:
    """The whole document. It loads nothing: no script, no font, no picture from elsewhere."""
    # A page made of other people's names says itself what it may do, should an escape ever fail.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data: 'self' file:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(_style())),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *children), lang='en')}\n"


def _style() -> str:
    def scheme(colours: Scheme, more: str) -> str:
        return "".join(f"--{name}:{colour};" for name, colour in _variables(colours)) + more

    light = scheme(LIGHT, "--page:#f4f5f7;--raised:#e9ebef;--mark:#fff2cc;--good:#00795a;--bad:#b83a00;--link:#0067a3;")
    dark = scheme(DARK, "--page:#171b22;--raised:#29313c;--mark:#4a3d12;--good:#35c496;--bad:#ff8a57;--link:#4fb0ea;")
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{_RULES}"


_RULES = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:74rem;padding:1.5rem 1.25rem 4rem;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.2rem;margin:2.2rem 0 .8rem;padding-bottom:.3rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:1.4rem 0 .5rem}
p{margin:.5rem 0}
.caption,dt,figcaption{color:var(--muted)}
a{color:var(--link)}
nav a{margin-right:1rem;white-space:nowrap}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.4rem,1fr));gap:.75rem;margin:1rem 0}
.card{background:var(--paper);border:1px solid var(--rule);border-radius:8px;padding:.7rem .9rem}
.card b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;background:var(--paper);font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{border:1px solid var(--rule);padding:.35rem .6rem;text-align:left;vertical-align:top}
thead th{background:var(--raised);white-space:nowrap}
tbody th{font-weight:600;min-width:12.5rem}
td,th{overflow-wrap:break-word;max-width:30rem}
td code{white-space:nowrap}
.name{display:block;overflow-wrap:anywhere;font-size:.9em}
.number{text-align:right;white-space:nowrap}
.marked td,.marked th{background:var(--mark);font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;margin:.6rem 0}
dd{margin:0}
figure{margin:0;background:var(--paper);border:1px solid var(--rule);border-radius:8px;padding:.5rem}
figure svg{display:block;width:100%;height:auto}
figcaption{font-size:.85rem;padding:.2rem .4rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;margin:1rem 0}
.figures .first{grid-column:1/-1}
pre{background:var(--paper);border:1px solid var(--rule);border-radius:8px;padding:.7rem .9rem;overflow-x:auto;
font:.85rem/1.45 ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;overflow-wrap:normal}
code{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:.92em}
details{margin:.5rem 0}
summary{cursor:pointer;padding:.2rem 0}
.good{color:var(--good);font-weight:600}
.bad{color:var(--bad);font-weight:600}
.timeline{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1rem;align-items:center;font-size:.9rem}
.track{position:relative;height:1rem;background:var(--raised);border-radius:4px;overflow:hidden}
.track .phase{position:absolute;top:0;bottom:0}
.sign{margin-right:1rem}
.sign .phase{display:inline-block;width:1.6rem;height:.8rem;vertical-align:-.05rem}
.phase{background:var(--muted)}
.phase.queued{background:repeating-linear-gradient(135deg,var(--muted) 0 2px,transparent 2px 7px)}
.phase.running{background:var(--series-0)}
.phase.paused{background:var(--series-4)}
.phase.faulted{background:var(--bad)}
video{max-width:100%;border-radius:8px}
@media print{body{max-width:none;background:#fff}figure,section{break-inside:avoid-page}}
"""
