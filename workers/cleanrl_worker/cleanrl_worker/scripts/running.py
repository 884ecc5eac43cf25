"""Run a script inside the training process, with the hooks installed. Imports as little as a bare `python script.py`.

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
_MAX_CHARACTERS = 4000

_REPORTED_PACKAGES = (
    *("torch", "numpy", "gymnasium", "gym", "tensorboard", "tyro", "wandb", "stable-baselines3"),
    *("ale-py", "mujoco", "envpool", "procgen2", "pettingzoo", "supersuit", "jax", "flax", "optax"),
)


def launch_arguments(
    file: str, sha256: str, settings: sitecustomize.HookSettings, arguments: Sequence[str], *, add_path: str = ""
) -> list[str]:
    """Return what follows `-m cleanrl_worker.launcher` to run a script; `main` reads it."""
    extra = ["--add-path", add_path] if add_path else []
    return ["--script", file, sha256, json.dumps(settings.__dict__), *extra, "--", *arguments]


def main(argv: Sequence[str]) -> int:
    """Run the script named after `--script`; what it raises is reported as Python would."""
    file, sha256, settings, *rest = argv
    add_path = ""
    if rest[0] == "--add-path":
        add_path, rest = rest[1], rest[2:]
    arguments = list(rest[1:])  # after the "--"
    report = _reporter()
    try:
        with open(file, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        report("failed", {"error": f"the script {file} cannot be read: {error.strerror}", "error_type": "BadInput"})
        return EXIT_BAD_INPUT
    if found != sha256:
        report("failed", {"error": f"{file} was changed while the run was starting", "error_type": "BadInput"})
        return EXIT_BAD_INPUT
    report("versions", {"versions": _versions()})
    sitecustomize.install(sitecustomize.HookSettings(**json.loads(settings)))
    # As `python script.py` has it: the script's folder comes first, not the current one.
    sys.path[0] = os.path.dirname(os.path.abspath(file))
    if add_path:
        sys.path.insert(1, add_path)
    sys.argv = [file, *arguments]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return _run(file, report)


def _run(file: str, report: Any) -> int:
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as leaving:
        return _exit_code(leaving, report)
    except BaseException as error:  # noqa: BLE001 - the boundary of the process: the script may raise whatever it likes
        traceback.print_exception(type(error), error, _own_part(error))
        report("failed", {"error": str(error) or type(error).__name__, "error_type": type(error).__name__})
        return EXIT_FAILED
    finally:
        sitecustomize.flush_writers()
    return 0


def _exit_code(leaving: SystemExit, report: Any) -> int:
    """Return the exit code of `sys.exit(x)`; a text is an error message, as in Python itself."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    sys.stderr.write(f"{leaving.code}\n")
    report("failed", {"error": str(leaving.code), "error_type": "SystemExit"})
    return EXIT_FAILED


def _own_part(error: BaseException) -> Any:
    """Return the traceback without the frames that started the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        trace = trace.tb_next
    return trace or error.__traceback__


def _reporter() -> Any:
    """Return a function that reports over the progress pipe, which is hidden from the script and its children."""
    for name in (env.CLEANRL_CONTROL_FD, env.CLEANRL_PROGRESS_FD):
        if name in os.environ:
            os.set_inheritable(int(os.environ[name]), False)
    os.environ.pop(env.CLEANRL_CONTROL_FD, None)
    descriptor = os.environ.pop(env.CLEANRL_PROGRESS_FD, None)

    def report(kind: str, message: Mapping[str, Any]) -> None:
        if descriptor is None:
            return
        short = {key: value[:_MAX_CHARACTERS] if isinstance(value, str) else value for key, value in message.items()}
        line = json.dumps({"kind": kind, **short}).encode() + b"\n"
        try:
            os.write(int(descriptor), line)
        except OSError:
            return  # the worker has exited

    return report


def _versions() -> dict[str, str]:
    """Return the versions of this interpreter; the worker's own may be another one."""
    from importlib import metadata

    found = {"python": sys.version.partition(" ")[0]}
    for name in _REPORTED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
