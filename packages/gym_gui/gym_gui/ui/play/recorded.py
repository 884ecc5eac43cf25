"""Read recorded episodes back from telemetry, with their frames; export them as a dataset. No Qt.

The `.npz` has for each episode the arrays that Minari's HDF5 files have under the same names:
`episode_<n>/observations` (one more than steps), `actions`, `rewards`, `terminations`, `truncations`; and `metadata`, a
JSON text. Observations that are no plain array (MiniGrid) are stored as `observations/<key>`.

The `.jsonl` has one conversation with a language model per line, as training programs read it: `{"messages": […]}` and
what came of it.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.files import open_plain
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.reasoning import reasoning_of
from mosaic_wire.telemetry import decode

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient

FRAMES_FILE = Path("play") / "pictures.bin"
"""Path in the run folder, written by `human_worker.play`"""
_MAX_FRAME_BYTES = 64 << 20


@dataclass
class RecordedEpisode:
    """One played episode."""

    index: int
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    truncations: list[bool] = field(default_factory=list)
    frames: list[tuple[int, int] | None] = field(default_factory=list)
    infos: list[Mapping[str, Any]] = field(default_factory=list)
    seed: int | None = None
    ended_by: str = ""
    """environment, player, or empty: not finished, or the run died in it"""

    @property
    def length(self) -> int:
        return len(self.actions)

    @property
    def total(self) -> float:
        return sum(self.rewards)

    @property
    def is_whole(self) -> bool:
        """Return whether the final observation is known."""
        return len(self.observations) == self.length + 1


def read_episodes(client: TrainerClient, run_id: str) -> list[RecordedEpisode]:
    """Return all episodes of a run; an unfinished one has no end."""
    found: dict[int, RecordedEpisode] = {}
    with client.steps(run_id) as stream:
        for batch in stream:
            for step in batch.steps:
                add_step(found, step)
    with client.episodes(run_id) as stream_of_ends:
        for ends in stream_of_ends:
            for end in ends.episodes:
                add_end(found, end)
    return [found[index] for index in sorted(found)]


def add_step(found: dict[int, RecordedEpisode], step: pb.RunStep) -> None:
    episode = found.setdefault(step.episode, RecordedEpisode(step.episode))
    episode.observations.append(decode(step.observation))
    episode.actions.append(decode(step.action))
    episode.rewards.append(step.reward)
    episode.terminations.append(step.terminated)
    episode.truncations.append(step.truncated)
    episode.infos.append(_parsed(step.info_json))
    episode.frames.append(frame_location(step.info_json))


def add_end(found: dict[int, RecordedEpisode], end: pb.RunEpisode) -> None:
    episode = found.get(end.episode)
    if episode is None:
        return
    info = _parsed(end.info_json)
    last = info.get("final_observation")
    if isinstance(last, dict) and len(episode.observations) == episode.length:
        payload = pb.Payload(encoding=str(last.get("encoding")), data=base64.b64decode(str(last.get("data") or "")))
        episode.observations.append(decode(payload))
        episode.frames.append(frame_location(end.info_json))
    episode.seed, episode.ended_by = info.get("seed"), str(info.get("ended_by") or "environment")
    if end.truncated and episode.truncations and not episode.terminations[-1]:
        episode.truncations[-1] = True  # ended by the player: a truncation in the dataset


def frame_location(info_json: str) -> tuple[int, int] | None:
    """Return offset and size of a step's frame in `play/pictures.bin`; None without a frame."""
    place = _parsed(info_json).get("picture")
    if isinstance(place, list) and len(place) == 2 and all(type(number) is int and number >= 0 for number in place):
        return place[0], min(place[1], _MAX_FRAME_BYTES)
    return None


def read_frame_bytes(run_dir: Path, place: tuple[int, int] | None) -> bytes:
    """Return the PNG of a step; empty without one."""
    if place is None:
        return b""
    try:
        with open_plain(run_dir / FRAMES_FILE) as stream:
            stream.seek(place[0])
            return stream.read(place[1])
    except OSError:
        return b""


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------------- dataset


def export_npz(path: Path, episodes: Sequence[RecordedEpisode], about: Mapping[str, Any]) -> int:
    """Write a dataset atomically; return its number of steps."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for number, episode in enumerate(episodes):
        for name, value in _arrays_of(episode):
            arrays[f"episode_{number}/{name}"] = value
    steps = sum(episode.length for episode in episodes)
    metadata = {
        **about,
        "format": "mosaic-npz-1; names as in Minari",
        "total_episodes": len(episodes),
        "total_steps": steps,
        "episodes": [
            {
                "id": number,
                "seed": episode.seed,
                "total_steps": episode.length,
                "return": episode.total,
                "ended_by": episode.ended_by,
                "has_final_observation": episode.is_whole,
            }
            for number, episode in enumerate(episodes)
        ],
    }
    arrays["metadata"] = np.array(json.dumps(metadata))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as stream:
            np.savez_compressed(stream, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return steps


def export_conversations(path: Path, episodes: Sequence[RecordedEpisode], about: Mapping[str, Any]) -> int:
    """Write the conversations of episodes as JSON lines, atomically; return how many there were."""
    found = [(episode, messages) for episode in episodes if (messages := conversation_of(episode))]
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            for episode, messages in found:
                decisions = [info["llm"] for info in episode.infos]
                line = {
                    "messages": messages,
                    **about,
                    "episode": episode.index,
                    "seed": episode.seed,
                    "return": episode.total,
                    "steps": episode.length,
                    "random_actions": sum(bool(each.get("fallback")) for each in decisions),
                }
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(found)


def conversation_of(episode: RecordedEpisode) -> list[dict[str, str]]:
    """Return an episode as chat messages; [] if no model played it from its start.

    The assistant's turns are the actions that were taken, written as correct answers.
    """
    messages: list[dict[str, str]] = []
    for info in episode.infos:
        parts, llm = {part.title: part.text for part in reasoning_of(info)}, info.get("llm")
        if not isinstance(llm, dict) or "Prompt" not in parts or not (messages or "Instructions" in parts):
            return []
        if not messages:
            messages.append({"role": "system", "content": parts["Instructions"]})
        messages.append({"role": "user", "content": parts["Prompt"]})
        messages.append({"role": "assistant", "content": str(llm.get("written", ""))})
    return messages


def _arrays_of(episode: RecordedEpisode) -> Iterator[tuple[str, Any]]:
    import numpy as np

    yield from _named_arrays("observations", episode.observations)
    yield from _named_arrays("actions", episode.actions)
    yield "rewards", np.array(episode.rewards, dtype=np.float64)
    yield "terminations", np.array(episode.terminations, dtype=bool)
    yield "truncations", np.array(episode.truncations, dtype=bool)


def _named_arrays(name: str, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield one array, or one for each key or index of a composite value."""
    import numpy as np

    if values and isinstance(values[0], dict):
        for key in values[0]:
            yield from _named_arrays(f"{name}/{key}", [value[key] for value in values])
    elif values and isinstance(values[0], list) and not _is_regular(values):
        for place in range(len(values[0])):
            yield from _named_arrays(f"{name}/_index_{place}", [value[place] for value in values])
    else:
        yield name, np.array(values)


def _is_regular(values: Iterable[Any]) -> bool:
    import numpy as np

    try:
        return np.array(list(values)).dtype.kind in "bif"
    except ValueError:  # rows of different lengths
        return False
