"""Configuration, provenance and lineage of a run as names and values. No Qt."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import Mode, algo_params

from gym_gui.wording.run_view import evaluation_of, extras_of, parsed, state_of, title_of

_RUN_ID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")


class Kinship(Enum):
    CONTINUES = "continues"
    EVALUATES = "evaluates"


@dataclass(frozen=True)
class Relative:
    """A run that was derived from another one."""

    run_id: str
    kinship: Kinship
    title: str
    state: str
    step: int
    number: int


def origin_of(run: pb.Run) -> tuple[str, Kinship] | None:
    """Return the run this one was derived from, and how; None for an independent run."""
    if run.HasField("parent"):
        return run.parent.run_id, Kinship.CONTINUES
    if '"checkpoint_path"' not in run.extras_json:  # fast path for most runs
        return None
    extras = extras_of(run)
    named = _RUN_ID.search(str(extras.get("checkpoint_path") or ""))
    if named is None:
        return None
    return named[0], Kinship.EVALUATES if extras.get("mode") == Mode.EVALUATE else Kinship.CONTINUES


class Lineage:
    """Which runs were derived from which."""

    def __init__(self) -> None:
        self._children: defaultdict[str, dict[str, Relative]] = defaultdict(dict)

    @classmethod
    def of(cls, runs: Iterable[pb.Run]) -> Lineage:
        lineage = cls()
        lineage.note(runs)
        return lineage

    def adopt(self, other: Lineage) -> None:
        """Add what another lineage knows, unless this one has a newer record."""
        for parent, family in other._children.items():
            self._children[parent] = family | self._children.get(parent, {})

    def replace(self, runs: Iterable[pb.Run]) -> None:
        """Replace all runs."""
        self._children.clear()
        self.note(runs)

    def note(self, runs: Iterable[pb.Run]) -> set[str]:
        """Add or update runs; return the ids whose related runs changed."""
        changed = set()
        for run in runs:
            if (origin := origin_of(run)) is None:
                continue
            parent, kinship = origin
            relative = Relative(run.run_id, kinship, run.name or title_of(run), state_of(run), run.step, run.number)
            if self._children[parent].get(run.run_id) != relative:
                self._children[parent][run.run_id] = relative
                changed.add(parent)
        return changed

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            for family in self._children.values():
                family.pop(run_id, None)

    def children_of(self, run_id: str) -> list[Relative]:
        """Return the children in the order of submission."""
        return sorted(self._children.get(run_id, {}).values(), key=lambda relative: relative.number)


Pairs = list[tuple[str, str]]

_LONGEST_RETURNS = 200


def parameters_of(run: pb.Run, manifest: AnalyticsManifest | None = None) -> Pairs:
    """Return hyper-parameters (given, then effective ones), then other extras, without secrets."""
    extras = extras_of(run)
    given = dict(sorted(algo_params(extras).items()))
    own = [*{**given, **(manifest.hyperparameters if manifest else {})}.items()]
    others = sorted((key, value) for key, value in extras.items() if key != "algo_params" and value is not None)
    return [(str(key), text_of(value)) for key, value in (*own, *others)]


def files_of(manifest: AnalyticsManifest) -> Pairs:
    """Return checkpoints and videos with their steps."""
    steps = manifest.extra.get("video_steps")
    known = steps if isinstance(steps, dict) else {}
    pairs = [(f"{entry.kind}, step {entry.step:,}", entry.path) for entry in manifest.checkpoints]
    return pairs + [(f"video, step {known[path]}" if path in known else "video", path) for path in manifest.videos]


def versions_of(manifest: AnalyticsManifest) -> Pairs:
    """Return the packages and requirement sets of the run."""
    pairs = [(name, str(version)) for name, version in manifest.versions.items()]
    if manifest.requirements:
        pairs.append(("requirement sets", ", ".join(manifest.requirements)))
    return pairs


def host_of(manifest: AnalyticsManifest) -> Pairs:
    """Return the machine on which it ran."""
    return [
        (str(key).replace("_", " "), text_of(value)) for key, value in manifest.host.items() if value not in (None, "")
    ]


def sources_of(manifest: AnalyticsManifest) -> Pairs:
    """Return code from outside MOSAIC: user scripts and third-party environments."""
    return [
        (key.replace("_", " "), text_of(manifest.extra[key]))
        for key in ("script", "environment_source", "git_commit")
        if manifest.extra.get(key)
    ]


def command_line_of(manifest: AnalyticsManifest) -> str:
    return shlex.join(manifest.argv)


def evaluation_pairs(run: pb.Run, manifest: AnalyticsManifest | None) -> Pairs:
    """Return the results of an evaluation, from the run's result or else its manifest."""
    evaluation: Mapping[str, Any] | None = evaluation_of(run) or (manifest.evaluation if manifest else None)
    if not evaluation:
        result = parsed(run.result_json)  # an evaluation run reports its statistics directly
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
    """Return a value as shown in a table."""
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
