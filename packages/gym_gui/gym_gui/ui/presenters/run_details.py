"""What a run was asked to do and what it was made with, as names and values. No Qt."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.wording.run_view import evaluation_of, parsed

Pairs = list[tuple[str, str]]

_LONGEST_RETURNS = 200


def parameters_of(run: pb.Run, manifest: AnalyticsManifest | None = None) -> Pairs:
    """Hyper-parameters first: those given, then all that training uses; then the other extras, without secrets."""
    extras = parsed(run.extras_json)
    extras = extras if isinstance(extras, dict) else {}
    parameters = extras.get("algo_params")
    given = dict(sorted(parameters.items())) if isinstance(parameters, dict) else {}
    own = [*{**given, **(manifest.hyperparameters if manifest else {})}.items()]
    others = sorted((key, value) for key, value in extras.items() if key != "algo_params" and value is not None)
    return [(str(key), text_of(value)) for key, value in (*own, *others)]


def files_of(manifest: AnalyticsManifest) -> Pairs:
    """Its checkpoints and videos, and at which step each was made."""
    steps = manifest.extra.get("video_steps")
    known = steps if isinstance(steps, dict) else {}
    pairs = [(f"{entry.kind}, step {entry.step:,}", entry.path) for entry in manifest.checkpoints]
    return pairs + [(f"video, step {known[path]}" if path in known else "video", path) for path in manifest.videos]


def versions_of(manifest: AnalyticsManifest) -> Pairs:
    """Packages and requirement sets the run was made with."""
    pairs = [(name, str(version)) for name, version in manifest.versions.items()]
    if manifest.requirements:
        pairs.append(("requirement sets", ", ".join(manifest.requirements)))
    return pairs


def host_of(manifest: AnalyticsManifest) -> Pairs:
    """The machine it ran on."""
    return [
        (str(key).replace("_", " "), text_of(value)) for key, value in manifest.host.items() if value not in (None, "")
    ]


def sources_of(manifest: AnalyticsManifest) -> Pairs:
    """Code that is not ours: a script of the user's, an environment from elsewhere."""
    return [
        (key.replace("_", " "), text_of(manifest.extra[key]))
        for key in ("script", "environment_source", "git_commit")
        if manifest.extra.get(key)
    ]


def command_line_of(manifest: AnalyticsManifest) -> str:
    return shlex.join(manifest.argv)


def evaluation_pairs(run: pb.Run, manifest: AnalyticsManifest | None) -> Pairs:
    """What an evaluation found: from the run's result, else from its manifest."""
    evaluation: Mapping[str, Any] | None = evaluation_of(run) or (manifest.evaluation if manifest else None)
    if not evaluation:
        result = parsed(run.result_json)  # an evaluation run reports its figures directly
        evaluation = result if isinstance(result, dict) and "mean_return" in result else None
    return [(str(key).replace("_", " "), text_of(value)) for key, value in _figures(evaluation or {})]


def _figures(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    order = ("mean_return", "std_return", "min_return", "max_return", "median_return", "episodes")
    for key in (*order, *sorted(set(evaluation) - set(order))):
        value = evaluation.get(key)
        if isinstance(value, list):
            value = len(value) if key == "episodes" else None
        if isinstance(value, str | int | float):
            yield key, value


def text_of(value: Any) -> str:
    """A value as it is shown in a table."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_RETURNS else f"{text[: _LONGEST_RETURNS - 1]}…"
