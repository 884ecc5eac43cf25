"""Inside the training process: install the hooks, then be the script. Imports as little as a bare `python script.py`.

python -u -m cleanrl_worker.launcher --script FILE SHA256 SETTINGS [--add-path FOLDER] -- ARGUMENTS
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_wire import env

from cleanrl_worker import sitecustomize

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
_MOST_CHARACTERS = 4000

_REPORTED_PACKAGES = (
    "torch", "numpy", "gymnasium", "gym", "tensorboard", "tyro", "wandb", "stable-baselines3", "ale-py", "mujoco",
    "envpool", "procgen2", "pettingzoo", "supersuit", "jax", "flax", "optax",
)  # fmt: skip


def launch_words(
    file: str, sha256: str, settings: sitecustomize.HookSettings, arguments: Sequence[str], *, add_path: str = ""
) -> list[str]:
    """What follows `-m cleanrl_worker.launcher` to run a script; the other end is `main`."""
    extra = ["--add-path", add_path] if add_path else []
    return ["--script", file, sha256, json.dumps(settings.__dict__), *extra, "--", *arguments]


def main(words: Sequence[str]) -> int:
    """Run the script that the words after `--script` name; what it raises is reported as Python would."""
    file, sha256, settings, *rest = words
    add_path = ""
    if rest[0] == "--add-path":
        add_path, rest = rest[1], rest[2:]
    arguments = list(rest[1:])  # after the "--"
    tell = _reporter()
    try:
        with open(file, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        tell("failed", {"error": f"the script {file} cannot be read: {error.strerror}", "error_type": "BadInput"})
        return EXIT_BAD_INPUT
    if found != sha256:
        tell("failed", {"error": f"{file} was changed while the run was starting", "error_type": "BadInput"})
        return EXIT_BAD_INPUT
    tell("versions", {"versions": _versions()})
    sitecustomize.install(sitecustomize.HookSettings(**json.loads(settings)))
    # As `python script.py` has it: the script's folder comes first, not the current one.
    sys.path[0] = os.path.dirname(os.path.abspath(file))
    if add_path:
        sys.path.insert(1, add_path)
    sys.argv = [file, *arguments]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return _run(file, tell)


def _run(file: str, tell: Any) -> int:
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as leaving:
        return _exit_code(leaving, tell)
    except BaseException as error:  # noqa: BLE001 - the boundary of the process: the script may raise whatever it likes
        traceback.print_exception(type(error), error, _own_part(error))
        tell("failed", {"error": str(error) or type(error).__name__, "error_type": type(error).__name__})
        return EXIT_FAILED
    finally:
        sitecustomize.flush_writers()
    return 0


def _exit_code(leaving: SystemExit, tell: Any) -> int:
    """What `sys.exit(x)` means as an exit code; a text is an error message, as in Python itself."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    sys.stderr.write(f"{leaving.code}\n")
    tell("failed", {"error": str(leaving.code), "error_type": "SystemExit"})
    return EXIT_FAILED


def _own_part(error: BaseException) -> Any:
    """The traceback from the script on: how it was started is of no interest to its author."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        trace = trace.tb_next
    return trace or error.__traceback__


def _reporter() -> Any:
    """Tells the worker something over the progress pipe, which the script and its children do not get to see."""
    for name in (env.CLEANRL_CONTROL_FD, env.CLEANRL_PROGRESS_FD):
        if name in os.environ:
            os.set_inheritable(int(os.environ[name]), False)
    os.environ.pop(env.CLEANRL_CONTROL_FD, None)
    descriptor = os.environ.pop(env.CLEANRL_PROGRESS_FD, None)

    def tell(kind: str, message: Mapping[str, Any]) -> None:
        if descriptor is None:
            return
        short = {key: value[:_MOST_CHARACTERS] if isinstance(value, str) else value for key, value in message.items()}
        line = json.dumps({"kind": kind, **short}).encode() + b"\n"
        try:
            os.write(int(descriptor), line)
        except OSError:
            return  # the worker is gone: nobody is left to be told

    return tell


def _versions() -> dict[str, str]:
    """What this interpreter has; the worker's own may be another one."""
    from importlib import metadata

    found = {"python": sys.version.partition(" ")[0]}
    for name in _REPORTED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
