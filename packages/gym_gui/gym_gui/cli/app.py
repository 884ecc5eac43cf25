"""The command group: which commands there are, in which module, and the options that all of them share."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

import click
from mosaic_wire import env

from gym_gui import __version__
from gym_gui.cli.context import Cli, connection_of, json_option, keep_in_hints
from gym_gui.cli.listing import write_json_object

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "train": ("train", "Train an algorithm and follow it."),
        "submit": ("submit", "Queue a run from a config file."),
        "clone": ("submit", "Queue a run once more, as it was."),
        "eval": ("evaluate", "Play a trained policy and see how well it does."),
        "script": ("train", "Run a file of your own: the same as `train FILE`."),
    },
    "Inspect": {
        "gui": ("gui", "Open the window."),
        "runs": ("runs", "List runs."),
        "show": ("show", "Everything about a run."),
        "watch": ("progress", "Follow runs live."),
        "metrics": ("plot", "The curves of a run: a table, or their points."),
        "frames": ("frames", "Record a clip of what a run draws."),
        "tensorboard": ("tensorboard", "Serve TensorBoard for some runs."),
        "logs": ("show", "Print what a run wrote."),
        "steps": ("steps", "Print what an agent did step by step, and why."),
        "history": ("show", "Show the history of a run."),
    },
    "Compare": {
        "plot": ("plot", "Draw curves of runs, seeds taken together, into a file or here."),
        "compare": ("compare", "Runs side by side: returns, speed, parameters, and which is better."),
        "bench": ("bench", "Train algorithms with several seeds and write a report."),
        "sweep": ("sweep", "Search for good hyper-parameters."),
        "report": ("compare", "Write a report of runs that can be read offline."),
    },
    "Control": {
        "cancel": ("control", "End runs."),
        "pause": ("control", "Pause runs; --release frees their CPUs and GPUs."),
        "resume": ("control", "Continue runs, also finished ones."),
        "extend": ("control", "Train a finished run longer."),
        "priority": ("organize", "Move queued runs forward or back."),
    },
    "Organize": {
        "tag": ("organize", "Add and remove tags."),
        "note": ("organize", "Write a note on a run."),
        "rename": ("organize", "Give a run a name."),
        "archive": ("organize", "Hide finished runs from listings."),
        "export": ("organize", "Write a run into an archive file."),
        "import": ("organize", "Import runs from archive files."),
        "delete": ("organize", "Remove runs and all their files."),
    },
    "System": {
        "daemon": ("daemon", "Start, stop and inspect the trainer daemon."),
        "machines": ("machines", "List where runs can run: this machine, and clusters."),
        "workers": ("workers", "List installed workers."),
        "algos": ("workers", "List algorithms."),
        "envs": ("workers", "List environments."),
        "extras": ("workers", "List, install, check and remove requirement sets."),
        "smoke": ("submit", "Prove that an algorithm runs here; leaves smoke.json."),
        "doctor": ("doctor", "Check this machine and suggest remedies."),
        "completion": ("app", "Print the shell's completion script."),
        "version": ("app", "Print the version."),
    },
}
ALIASES = {"stop": "cancel", "kill": "cancel", "ls": "runs", "list": "runs", "ps": "runs", "story": "history"}
"""Names from other tools and earlier versions; in no help text"""
COMMANDS = {name: entry for commands in SECTIONS.values() for name, entry in commands.items()}

_SHARED = ("--home", "--connect", "--token-file", "--tls-ca")


class LazyGroup(click.Group):
    """Knows its commands by name and imports a command's module when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gym_gui.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in {*COMMANDS, *ALIASES} and not args[0].startswith("-"):
            from mosaic_wire.worker_spec import nearest

            close = nearest(args[0], COMMANDS)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {close!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _shared_options_first(args))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()], col_max=14)


def _shared_options_first(args: list[str]) -> list[str]:
    """`mosaic runs --home X` means `mosaic --home X runs`: shared options may stand anywhere."""
    front: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(args):
        argument = args[position]
        if argument == "--":
            rest.extend(args[position:])
            break
        if argument in _SHARED and position + 1 < len(args):
            front.extend(args[position : position + 2])
            position += 2
            continue
        (front if argument.split("=", 1)[0] in _SHARED else rest).append(argument)
        position += 1
    return front + rest


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda name: name.replace("_", "-"),  # --env_id, as CleanRL's users type it
    },
    no_args_is_help=False,
    invoke_without_command=True,
    epilog="RUN is an id, its beginning, its last four or more characters, a run's name, or `last`: "
    "the last run you started.",
)
@click.option("--home", type=click.Path(), metavar="DIR", help="MOSAIC's home (else $MOSAIC_HOME).")
@click.option(
    "--connect", metavar="HOST:PORT", help="Use the daemon at this address, or of this profile (else $MOSAIC_CONNECT)."
)
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Its token, for --connect.")
@click.option("--tls-ca", type=click.Path(path_type=Path), metavar="FILE", help="Its CA certificate, for --connect.")
@click.option("--version", is_flag=True, help="Print the version.")
@click.pass_context
def mosaic(
    ctx: click.Context,
    home: str | None,
    connect: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    version: bool,
) -> int:
    """Train, watch, compare and resume reinforcement-learning agents."""
    if home == "":
        raise click.UsageError("--home names no folder")
    if connect is None and home is None:
        connect = os.environ.get(env.MOSAIC_CONNECT) or None
    ctx.obj = connection_of(Cli(Path(home) if home else None, connect, token_file, tls_ca))
    keep_in_hints(ctx.obj)
    if version:
        from gym_gui import __version__

        click.echo(f"mosaic {__version__}")
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0


# ---------------------------------------------------------------- completion and version


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
