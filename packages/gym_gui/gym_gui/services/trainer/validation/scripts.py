"""A run that trains with a file of its own (`extras.script_path`): the worker reads it, we ask the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from mosaic_wire.errors import Problem, SpecError
from mosaic_wire.worker_spec import ScriptSpec, WorkerSpec

from gym_gui.services.trainer.validation.worker_part import PATH

_OWN_SOURCES = (None, "", "mosaic")


def means_a_script(extras: Mapping[str, Any]) -> bool:
    """Tell whether this run trains with a script; a custom script is a mode of its own and is not described."""
    if extras.get("mode") == "custom_script":
        return False
    return bool(extras.get("script_path")) or extras.get("source") not in _OWN_SOURCES


def find_script(
    spec: WorkerSpec,
    extras: Mapping[str, Any],
    scripts: Callable[[str, str], ScriptSpec] | None,
    problems: list[Problem],
) -> ScriptSpec | None:
    """What the worker makes of the script; None when that cannot be told, with the reason among the problems."""
    path, place = extras.get("script_path"), f"{PATH}.extras.script_path"
    if not path:
        told = "missing: the file of the CleanRL checkout; `mosaic train --source upstream` finds it (CLEANRL_HOME)"
        problems.append(Problem(place, told))
        return None
    if not isinstance(path, str):
        return None  # its type is told elsewhere
    if not spec.runs_scripts:
        problems.append(Problem(place, f"worker {spec.name!r} runs no scripts"))
        return None
    if not PurePosixPath(path).is_absolute():
        problems.append(Problem(place, f"expected a path from the root on, got {path[:120]!r}"))
        return None
    if scripts is None:
        return None
    try:
        script = scripts(spec.name, path)
    except SpecError as error:
        problems.append(Problem(place, str(error)))
        return None
    mode = extras.get("mode") or "train"
    if mode not in script.algorithm.modes:
        told = "a script cannot be resumed: it writes no checkpoint that MOSAIC could go on from"
        other = f"{mode!r} is not possible with a script"
        problems.append(Problem(f"{PATH}.extras.mode", told if mode == "resume_training" else other))
    given = extras.get("script_sha256")
    if given and given != script.sha256:
        problems.append(Problem(f"{PATH}.extras.script_sha256", f"the content of {path} is another one by now"))
    return script
