"""The `mosaic` command, one module per noun. Start-up is kept light: a command's module is imported when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `mosaic`: runs a command and exits with its code, with one message for whatever went wrong."""
    # gRPC's C library logs lost connections to stderr; our own messages replace its log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gym_gui.cli.context import clean_output

    _replace_closed_streams()
    clean_output()
    code = _run(list(sys.argv[1:] if argv is None else argv))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    sys.exit(code)


def _run(argv: list[str]) -> int:
    from gym_gui.cli.app import mosaic

    try:
        result = mosaic.main(args=argv, prog_name="mosaic", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.UsageError as error:
        return _complain(error.format_message(), 2, error.ctx.command_path if error.ctx else "mosaic")
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("stopped", 130)
    except Exception as error:  # the process boundary: known errors become one message, others are bugs and shown whole
        if isinstance(error, UnicodeEncodeError) and (odd := _not_utf8(argv)):
            return _complain(f"the argument '{odd}' is not UTF-8 text; type it anew", 2)
        if (code := _exit_code(error)) is None:
            raise
        return _complain(str(error), code)


def _not_utf8(argv: Sequence[str]) -> str:
    from gym_gui.wording.formats import is_utf8

    return next((argument for argument in argv if not is_utf8(argument)), "")


def _exit_code(error: Exception) -> int | None:
    from mosaic_wire.errors import ConfigProblems, InvalidRunId, WireError

    from gym_gui.services.trainer.errors import AmbiguousRunId, InvalidConfig, RunNotFound, TrainerError

    if isinstance(error, InvalidConfig | AmbiguousRunId | RunNotFound | ConfigProblems | InvalidRunId):
        return 2
    return 1 if isinstance(error, TrainerError | WireError | OSError) else None


def _complain(message: str, code: int, help_of: str = "") -> int:
    from gym_gui.cli.context import hint

    print(f"mosaic: {hint(message)}", file=sys.stderr)
    if help_of:
        print(f"`{help_of} --help` says how it is used.", file=sys.stderr)
    return code


def _replace_closed_streams() -> None:
    """Let a stream that was closed by the shell (`>&-`) read or write nothing, as a pipe without another end does."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _forget_stdout() -> None:
    # The reader (`| head`) has seen enough; Python would complain once more when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
