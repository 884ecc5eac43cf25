"""The worker's own switches: --cuda/--cpu, --track/--no-track, --tensorboard/--no-tensorboard; they win over the file.

`extras.track_wandb` and `extras.tensorboard_dir` (empty: no event files) say the same in a config, and so does
`artifacts` of a whole run config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_wire.worker_spec import AlgorithmSpec

HELP = """\
--cuda, --cpu                     train on the GPU that is reserved for the run, or on the processor
--track, --no-track               log to Weights & Biases, or not
--tensorboard, --no-tensorboard   write event files, or not (MOSAIC's own algorithms)"""

_TRUTH = {"true": True, "false": False}


def from_artifacts(document: Mapping[str, Any], extras: Mapping[str, Any]) -> dict[str, Any]:
    """The extras with what `artifacts` of a whole run config says; what the extras say themselves is kept."""
    said = {name: _enabled(document.get("artifacts"), name) for name in ("wandb", "tensorboard")}
    chosen = dict(extras)
    if said["wandb"] is not None:
        chosen.setdefault("track_wandb", said["wandb"])
    return without_events(chosen) if said["tensorboard"] is False else chosen


def take_switches(
    words: Sequence[str], extras: Mapping[str, Any], algorithm: AlgorithmSpec | None, *, is_script: bool
) -> tuple[list[str], dict[str, Any]]:
    """The words that are left for the algorithm, and the extras as the switches change them.

    A script keeps its words, because its flags of these names may mean something else.
    """
    left: list[str] = []
    changed = dict(extras)
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--cpu" and _has(algorithm, "cuda") and not _has(algorithm, "cpu"):
            left.append("--no-cuda")
            continue
        name, value, taken = _read(word, queue)
        if name == "track" and value is not None:
            changed = {**_without(changed, "track"), "track_wandb": value}
        elif name == "tensorboard" and value is not None and not is_script:
            changed = without_events(changed) if not value else with_events(changed)
        else:
            left.append(word)
            continue
        if is_script and _has(algorithm, name):
            left += [word, *taken]
        del queue[: len(taken)]
    return left, changed


def writes_events(extras: Mapping[str, Any]) -> bool:
    """Event files are written unless `tensorboard_dir` is there and empty."""
    return extras.get("tensorboard_dir", "tensorboard") not in (None, "")


def without_events(extras: Mapping[str, Any]) -> dict[str, Any]:
    return {**extras, "tensorboard_dir": ""}


def with_events(extras: Mapping[str, Any]) -> dict[str, Any]:
    return dict(extras) if writes_events(extras) else {k: v for k, v in extras.items() if k != "tensorboard_dir"}


def _read(word: str, following: Sequence[str]) -> tuple[str, bool | None, list[str]]:
    """A switch's name, its value, and the words after it that belong to it; None: it is no switch."""
    flag, has_value, text = word.partition("=")
    name = flag.removeprefix("--")
    if not word.startswith("--") or name.removeprefix("no-") not in ("track", "tensorboard"):
        return "", None, []
    if name.startswith("no-"):
        return name.removeprefix("no-"), None if has_value else False, []
    if has_value:
        return name, _TRUTH.get(text.lower()), []
    if following and following[0].lower() in _TRUTH:
        return name, _TRUTH[following[0].lower()], [following[0]]
    return name, True, []


def _has(algorithm: AlgorithmSpec | None, name: str) -> bool:
    known = algorithm.field(name) if algorithm is not None else None
    return known is not None and known.kind == "bool"


def _without(extras: Mapping[str, Any], name: str) -> dict[str, Any]:
    kept = {key: value for key, value in extras.items() if key != name}
    if isinstance(parameters := kept.get("algo_params"), Mapping):
        kept["algo_params"] = {key: value for key, value in parameters.items() if key != name}
    return kept


def _enabled(artifacts: Any, name: str) -> bool | None:
    part = artifacts.get(name) if isinstance(artifacts, Mapping) else None
    value = part.get("enabled") if isinstance(part, Mapping) else None
    return value if isinstance(value, bool) else None
