"""`mosaic completion | version`."""

from __future__ import annotations

import platform
import sys

import click

from gym_gui import __version__
from gym_gui.cli.context import json_option
from gym_gui.cli.listing import write_json_object

_INSTALL = {
    "bash": 'eval "$(mosaic completion bash)"            in ~/.bashrc',
    "zsh": 'eval "$(mosaic completion zsh)"             in ~/.zshrc',
    "fish": "mosaic completion fish | source              in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(_INSTALL.values()))
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def completion_command(shell: str) -> int:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from gym_gui.cli.app import mosaic

    kind = get_completion_class(shell)
    assert kind is not None, shell
    # Not kind(...).source(): for bash that asks an installed bash for its version, and not every container has one.
    completer = kind(mosaic, {}, "mosaic", "_MOSAIC_COMPLETE")
    click.echo(completer.source_template % completer.source_vars())
    return 0


@click.command()
@json_option
def version_command(as_json: bool) -> int:
    """Print the version of MOSAIC, its worker protocol and Python."""
    from mosaic_wire import PROTOCOL_VERSION

    if as_json:
        write_json_object(
            {"version": __version__, "protocol_version": PROTOCOL_VERSION, "python": platform.python_version()}
        )
    else:
        python = f"Python {platform.python_version()}, {sys.executable}"
        click.echo(f"mosaic {__version__} (worker protocol {PROTOCOL_VERSION}, {python})")
    return 0
