"""Which runs come from which: continuations of a run, and evaluations of its policy.

Kept from what the link tells about all runs, so that no tab has to ask the daemon for ten thousand of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.wording.run_view import parsed, state_of, title_of

_RUN_ID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")


class Kinship(Enum):
    CONTINUES = "continues"
    EVALUATES = "evaluates"


@dataclass(frozen=True)
class Relative:
    """A run that came from another one."""

    run_id: str
    kinship: Kinship
    title: str
    state: str
    step: int
    number: int


def origin_of(run: pb.Run) -> tuple[str, Kinship] | None:
    """The run this one came from, and how; None when it stands alone."""
    if run.HasField("parent"):
        return run.parent.run_id, Kinship.CONTINUES
    if '"checkpoint_path"' not in run.extras_json:  # most runs, and there are many
        return None
    extras = parsed(run.extras_json)
    if not isinstance(extras, dict):
        return None
    named = _RUN_ID.search(str(extras.get("checkpoint_path") or ""))
    if named is None:
        return None
    return named[0], Kinship.EVALUATES if extras.get("mode") == "policy_eval" else Kinship.CONTINUES


class Lineage:
    """What came from each run, as far as runs were told of."""

    def __init__(self) -> None:
        self._children: defaultdict[str, dict[str, Relative]] = defaultdict(dict)

    @classmethod
    def of(cls, runs: Iterable[pb.Run]) -> Lineage:
        lineage = cls()
        lineage.note(runs)
        return lineage

    def take_over(self, other: Lineage) -> None:
        """What another one learnt, as far as it is not known here (and newer) already."""
        for parent, family in other._children.items():
            self._children[parent] = family | self._children.get(parent, {})

    def replace(self, runs: Iterable[pb.Run]) -> None:
        """Everything there is."""
        self._children.clear()
        self.note(runs)

    def note(self, runs: Iterable[pb.Run]) -> set[str]:
        """New or changed runs; return those whose families changed."""
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
        """In the order they were submitted."""
        return sorted(self._children.get(run_id, {}).values(), key=lambda relative: relative.number)
