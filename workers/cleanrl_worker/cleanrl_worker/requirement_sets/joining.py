"""Environments: a bare overlay on the base, and several overlays seen as one."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from mosaic_wire.paths import Home

from cleanrl_worker.requirement_sets.errors import SetNotReady
from cleanrl_worker.requirement_sets.plan import OVERLAY_RECORD, Base, Plan, python_of, site_packages, venvs_of

PTH_NAME = "_mosaic_base.pth"
JOINS = "joined"
"""Folder of the joint environments; no set can have this name, for sets have pin lists"""


def make_environment(prefix: Path, base: Base, *, name: str, generations: Sequence[Path] = ()) -> None:
    """Make an empty virtual environment that sees the packages of `generations` and then those of the base."""
    import venv  # not cheap, and a preflight never needs it

    venv.EnvBuilder(with_pip=False, symlinks=True, clear=False).create(prefix)
    site = site_packages(prefix)
    above = [site_packages(generation) for generation in generations]
    lines = [_plain_line(folder) for folder in (*above, *base.site)]
    # After all plain lines: reading an overlay's own .pth files brings the base, which must come last.
    lines += [f"import site; site.addsitedir({str(folder)!a})" for folder in (*above, *base.site)]
    (site / PTH_NAME).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    record: dict[str, object] = {
        "name": name,
        "base": {"prefix": str(base.prefix), "python": str(base.python), "site": list(map(str, base.site))},
    }
    if generations:
        record["generations"] = list(map(str, generations))
    (prefix / OVERLAY_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _plain_line(folder: Path) -> str:
    """A line that puts a folder on the path and does nothing else.

    addsitedir alone would do, and reads the .pth files in the folder (our own editable installs); but it leaks the base
    into pip's isolated builds unless the plain line stands before it. Python 3.11 dies on a .pth that is not ASCII when
    the locale is not UTF-8, so an odd path is written with escapes.
    """
    path = str(folder)
    return path if path.isascii() else f"import sys; sys.path.append({path!a})"


def join_prefix(home: Home, plans: Sequence[Plan]) -> Path:
    """Where the joint environment of these overlays lies."""
    text = json.dumps([str(plan.generation) for plan in plans])
    return venvs_of(home) / JOINS / hashlib.sha256(text.encode()).hexdigest()[:12]


def join(home: Home, plans: Sequence[Plan]) -> Path:
    """Make the joint environment of several overlays, some 60 kB of it, unless it is there; return its interpreter.

    The pins of the sets agree, so it does not matter which overlay comes first on the path.
    """
    prefix = join_prefix(home, plans)
    if os.path.exists(python_of(prefix)):
        return python_of(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    draft = prefix.parent / f".{prefix.name}.{secrets.token_hex(4)}"
    try:
        name = "+".join(plan.name for plan in plans)
        make_environment(draft, plans[0].base, name=name, generations=[plan.generation for plan in plans])
        if prefix.exists():  # its interpreter is gone
            shutil.rmtree(prefix, ignore_errors=True)
        try:
            os.rename(draft, prefix)
        except OSError:
            if not os.path.exists(python_of(prefix)):  # else somebody was quicker, and made the same
                raise
    except OSError as error:
        raise SetNotReady(f"cannot make the joint environment {prefix}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return python_of(prefix)
