"""`mosaic gui`: open the window."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from gym_gui.cli.context import Cli, options_of, pass_cli

INSTALL = "pip install -r requirements/gui.txt"


@click.command()
@click.option("--theme", type=click.Choice(["light", "dark", "system"]), help="Colors; without it, those of last time.")
@pass_cli
def gui_command(cli: Cli, /, theme: str | None) -> int:
    """Open the window. Starts the trainer daemon when none runs; closing the window stops nothing.

    \b
      mosaic gui
      mosaic gui --connect server:50055 --tls-ca ca.pem --token-file token
    """
    _check_that_qt_can_run()
    if not cli.connect and (cli.token_file or cli.tls_ca):
        raise click.UsageError("--token-file and --tls-ca belong to --connect HOST:PORT")
    # Read when gRPC is loaded. Its handlers of fork() disturb the processes that QtWebEngine starts, and are for
    # programs that fork without exec, which nothing here does.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    token = cli.remote_token() if cli.connect else ""
    if cli.connect:
        cli.client().close()  # a wrong address or certificate is reported here, not in an empty window
    try:
        from gym_gui import app
        from gym_gui.ui.theme import ThemeChoice
    except ImportError as error:
        raise click.ClickException(_explain(error)) from error
    remote = app.Remote(cli.connect, token, cli.tls_ca, cli.profile, options_of(cli)) if cli.connect else None
    return app.main(cli.home, remote, ThemeChoice(theme) if theme else None)


def _check_that_qt_can_run() -> None:
    """Refuse to start without a screen, because Qt would abort the process."""
    missing = [name for name in ("PySide6", "pyqtgraph", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the window needs {', '.join(missing)}, not installed here: {INSTALL}")
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"))
    if sys.platform == "linux" and not named:
        raise click.ClickException(
            "there is no screen here (neither DISPLAY nor WAYLAND_DISPLAY is set). On your desktop, "
            "`mosaic gui --connect HOST:PORT` shows this machine's runs; here, every `mosaic` command works"
        )


def _explain(error: ImportError) -> str:
    if ".so" in str(error):
        return f"Qt lacks a system library: {error}. `make gui` installs it; docs/gui/installation.md names them all"
    return f"the window cannot be loaded: {error}; install with: {INSTALL}"
