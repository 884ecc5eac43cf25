"""Files that an algorithm cannot do without, and flags it does not offer: what an algorithm file declares as text.

NEEDS_FILES = ((("teacher_checkpoint", "teacher_trajectories"), "what to say when neither is given"),)
REFUSED = {"teacher_policy_hf_repo": "what to say when it is given"}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.checkpoints import damage_of, find_checkpoint


def file_problems(
    declared: Mapping[str, Any], values: Mapping[str, Any], *, from_anywhere: bool = False
) -> Iterator[tuple[str, str]]:
    """(field, sentence) of everything that is wrong; a field whose name ends in `_checkpoint` may also name a run.

    `from_anywhere`: the training process will not start in this folder, so a path must not depend on it.
    """
    for name, sentence in (declared.get("REFUSED") or {}).items():
        if values.get(name):
            yield name, sentence
    for names, sentence in declared.get("NEEDS_FILES") or ():
        given = [name for name in names if values.get(name)]
        if not given:
            yield names[0], sentence
        for name in given:
            if problem := _problem(name, values[name], from_anywhere):
                yield name, f"--{name.replace('_', '-')} {problem}"


def _problem(name: str, value: Any, from_anywhere: bool) -> str:
    if not isinstance(value, str):
        return "must be a path"
    path = Path(value).expanduser()
    if name.endswith("_checkpoint"):
        try:
            found = find_checkpoint({"checkpoint_path": value})
        except BadInput as error:
            return f"cannot be used: {error}"
        assert found is not None
        if found.weights_only and (damage := damage_of(found.path)):
            return f"cannot be used: {found.path}: {damage}"
        is_path = found.path.exists() and path.exists()
    elif not path.is_file():
        return f"names no file: there is no {path.absolute()}"
    else:
        is_path = True
    if from_anywhere and is_path and not path.is_absolute():
        return f"must be the whole path: {path.absolute()}"
    return ""
