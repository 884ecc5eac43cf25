"""The parts of a report's page that say what happened, where and with what. No I/O."""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mosaic_wire.redaction import redact_document
from mosaic_wire.redaction import redact_text as clean

from gym_gui.services.analytics.html_page import Html, element, folded, pairs, preformatted, table, together
from gym_gui.services.analytics.report_facts import RunFacts, Video
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id, state_of, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_MEDIA_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


def failures(facts: Sequence[RunFacts]) -> Html:
    made = []
    for each in facts:
        run = each.run
        if run.status == "TERM" and run.outcome != "completed":
            made.append(element("h3", f"{title_of(run)} {state_of(run)}"))
            made.append(element("p", clean(run.reason) or "No reason was given."))
            if each.last_lines:
                made.append(element("p", f"The end of its {each.last_stream}:", class_="caption"))
                made.append(preformatted(clean("\n".join(each.last_lines))))
    return together(*made)


def stories(facts: Sequence[RunFacts]) -> Html:
    made = []
    for each in facts:
        lines = _story(each.story)
        if lines:
            made.append(lines if len(facts) == 1 else folded(_short_title(each.run), lines))
    return together(*made)


def _short_title(run: pb.Run) -> str:
    return f"{title_of(run)} · {short_id(run.run_id)}"


def _story(events: Sequence[pb.StoryEvent]) -> Html:
    began = events[0].timestamp if events else 0.0
    rows = [
        [
            formats.moment(event.timestamp),
            f"+{formats.duration(event.timestamp - began)}",
            event.kind.replace("_", " "),
            event.to_status
            if event.from_status in ("", event.to_status)
            else f"{event.from_status} → {event.to_status}",
            clean(" ".join(event.reason.split())),
        ]
        for event in events
    ]
    return table(("time", "after", "event", "status", "reason"), rows, numbers=(1,))


def machines(facts: Sequence[RunFacts]) -> Html:
    """Each machine and set of versions once, with the runs made there."""
    seen: dict[str, tuple[list[tuple[str, str]], list[str]]] = {}
    for each in facts:
        if each.manifest is None:
            continue
        lines = [(str(name).replace("_", " "), _said(value)) for name, value in each.manifest.host.items()]
        lines += [(name, str(version)) for name, version in each.manifest.versions.items()]
        if each.manifest.requirements:
            lines.append(("requirement sets", ", ".join(each.manifest.requirements)))
        lines = [line for line in lines if line[1]]
        if lines:
            seen.setdefault(json.dumps(lines), (lines, []))[1].append(short_id(each.run.run_id))
    made = []
    for lines, ids in seen.values():
        if len(seen) > 1:
            made.append(element("h3", f"{formats.plural(len(ids), 'run')}: {', '.join(ids)}"))
        made.append(pairs(lines))
    return together(*made)


def _said(value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    return clean(value if isinstance(value, str) else json.dumps(redact_document(value), ensure_ascii=False))


def files(facts: Sequence[RunFacts], folder: Path) -> Html:
    made = []
    for each in facts:
        manifest = each.manifest
        rows = [
            [entry.path, formats.count(entry.step), entry.kind, element("code", entry.sha256[:12])]
            for entry in (manifest.checkpoints if manifest else ())
        ]
        content = together(
            table(("checkpoint", "step", "kind", "sha256"), rows, numbers=(1,)),
            *(_video(video, folder) for video in each.videos),
        )
        if content:
            content = together(element("p", "in ", element("code", each.run.run_dir), class_="caption"), content)
            made.append(content if len(facts) == 1 else folded(_short_title(each.run), content))
    return together(*made)


def _video(video: Video, folder: Path) -> Html:
    kind = _MEDIA_TYPES.get(video.path.suffix.lower())
    label = f"{video.path.name} ({formats.size(video.size)})"
    if video.data is None or kind is None:
        # Beside the page, as long as both stay where they are.
        place = quote(os.path.relpath(video.path, folder))
        return element("p", element("a", label, href=place if not place.startswith(("/", "javascript:")) else None))
    source = f"data:{kind};base64,{base64.b64encode(video.data).decode()}"
    shown = (
        element("img", src=source, alt=label) if kind.startswith("image/")
        else element("video", src=source, controls=True, preload="metadata", aria_label=label)
    )  # fmt: skip
    return element("figure", shown, element("figcaption", label))


def reproduce(facts: Sequence[RunFacts]) -> Html:
    commands = list(dict.fromkeys(clean(each.command) for each in facts if each.command))
    clones = [f"mosaic clone {each.run.run_id}" for each in facts]
    started = [each.manifest.argv for each in facts if each.manifest and each.manifest.argv]
    argv = dict.fromkeys(clean(shlex.join(words)) for words in started)
    made = [preformatted("\n\n".join(commands))] if commands else []
    made.append(folded("On the machine that has these runs", preformatted("\n".join(clones))))
    if argv:
        made.append(folded("What the training processes were started with", preformatted("\n".join(argv))))
    return together(*made)
