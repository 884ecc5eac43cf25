"""Deletes what a person confirmed, and finds the environments nobody uses. No widgets; for background threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mosaic_wire.paths import Home
from PySide6.QtCore import QCoreApplication

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, RunNotFound, TrainerError
from gym_gui.services.trainer.run_files import delete_run_files
from gym_gui.ui.management.disk_survey import DiskSurvey, Kind, Suggestion
from gym_gui.ui.management.sets_program import SetsProblem, SetsProgram
from gym_gui.ui.management.spare_checkpoints import CannotPrune, remove_spare_checkpoints

_WORTH_PRUNING = 16 << 20
"""Bytes of environments that are not in force; less than that is rounding"""


def with_environments(found: DiskSurvey, client: TrainerClient, home: Home) -> DiskSurvey:
    """Add the environments of requirement sets that are not in force, when they are worth it."""
    venvs = home.trainer / "venvs"
    taken = next((share.bytes for share in found.shares if share.path == str(venvs)), 0)
    if taken < _WORTH_PRUNING:
        return found
    try:
        sets = SetsProgram.of(client.workers(), home).list_sets()
    except (SetsProblem, TrainerError):
        return found
    spare = taken - sum(entry.bytes for entry in sets)
    if spare < max(_WORTH_PRUNING, taken // 20):
        return found
    suggestion = Suggestion(
        Kind.ENVIRONMENTS, QCoreApplication.translate("DiskUse", "Environments that are not in use"),
        QCoreApplication.translate(
            "DiskUse", "of requirement sets: superseded, half made or joined from others; those that runs use stay"
        ),
        spare, path=str(venvs),
    )  # fmt: skip
    suggestions = sorted((*found.suggestions, suggestion), key=lambda entry: entry.bytes, reverse=True)
    return replace(found, suggestions=tuple(suggestions), suggestions_in_all=found.suggestions_in_all + 1)


def delete_all(client: TrainerClient, home: Home | None, chosen: Sequence[Suggestion]) -> tuple[int, list[str]]:
    """In the background: freed bytes, and what did not work. One failure does not stop the rest."""
    freed, problems = 0, []
    for suggestion in chosen:
        try:
            freed += _ACTIONS[suggestion.kind](client, home, suggestion)
        except DaemonUnreachable:
            raise
        except (TrainerError, CannotPrune, SetsProblem, OSError) as error:
            problems.append(f"{suggestion.title}: {error}")
    return freed, problems


def _delete_run(client: TrainerClient, _home: Home | None, suggestion: Suggestion) -> int:
    return client.delete(suggestion.run_id)


def _delete_checkpoints(client: TrainerClient, _home: Home | None, suggestion: Suggestion) -> int:
    if client.get(suggestion.run_id).status != "TERM":
        raise CannotPrune("it is not over")
    freed = remove_spare_checkpoints(Path(suggestion.path))
    client.update(suggestion.run_id)  # nothing but its size has changed
    return freed


def _delete_orphan(client: TrainerClient, home: Home | None, suggestion: Suggestion) -> int:
    if home is None:
        return 0
    try:
        client.get(suggestion.run_id)
    except RunNotFound:
        return delete_run_files(home, suggestion.run_id)
    raise CannotPrune("a run has this id after all")


def _prune_environments(client: TrainerClient, home: Home | None, _suggestion: Suggestion) -> int:
    if home is None:
        return 0
    result = SetsProgram.of(client.workers(), home).prune().run(lambda _progress: None)
    if not result.succeeded and not result.freed_bytes:
        raise SetsProblem(result.message)
    return result.freed_bytes


_ACTIONS: dict[Kind, Callable[[TrainerClient, Home | None, Suggestion], int]] = {
    Kind.RUN: _delete_run,
    Kind.CHECKPOINTS: _delete_checkpoints,
    Kind.ORPHAN: _delete_orphan,
    Kind.ENVIRONMENTS: _prune_environments,
}
