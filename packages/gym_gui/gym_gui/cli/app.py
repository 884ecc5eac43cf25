"""The command group: which commands there are, in which module, and the options that all of them share."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from gym_gui.cli.context import Cli

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "train": ("train", "Train an algorithm and follow it."),
        "submit": ("submit", "Queue a run from a config file."),
        "clone": ("clone", "Queue a run once more, as it was."),
        "eval": ("evaluate", "Play a trained policy and see how well it does."),
        "script": ("train", "Run a file of your own: the same as `train FILE`."),
    },
    "Inspect": {
        "gui": ("gui", "Open the window."),
        "runs": ("runs", "List runs."),
        "show": ("show", "Everything about a run."),
        "watch": ("watch", "Follow runs live."),
        "metrics": ("metrics", "The curves of a run: a table, or their points."),
        "frames": ("frames", "Record a clip of what a run draws."),
        "tensorboard": ("tensorboard", "Serve TensorBoard for some runs."),
        "logs": ("logs", "Print what a run wrote."),
        "history": ("history", "What happened to a run, step by step."),
    },
    "Compare": {
        "plot": ("plot", "Draw curves of runs, seeds taken together, into a file or here."),
        "compare": ("compare", "Runs side by side: returns, speed, parameters, and who is better."),
        "bench": ("bench", "Train algorithms with several seeds and write a report."),
        "sweep": ("sweep", "Look for good hyper-parameters."),
        "report": ("report", "Write a report of runs that can be read offline."),
    },
    "Control": {
        "cancel": ("control", "End runs."),
        "pause": ("control", "Hold runs; --release frees their CPUs and GPUs."),
        "resume": ("control", "Let runs go on, also finished ones."),
        "extend": ("control", "Train a finished run longer."),
        "priority": ("labels", "Move queued runs forward or back."),
    },
    "Organize": {
        "tag": ("labels", "Add and remove tags."),
        "note": ("labels", "Write a note on a run."),
        "rename": ("labels", "Give a run a name."),
        "archive": ("keeping", "Hide finished runs from listings."),
        "export": ("keeping", "Write a run into an archive file."),
        "import": ("keeping", "Take a run in from an archive file."),
        "delete": ("keeping", "Remove runs and all their files."),
    },
    "System": {
        "daemon": ("daemon", "Start, stop and inspect the trainer daemon."),
        "workers": ("workers", "List installed workers."),
        "algos": ("workers", "List algorithms."),
        "envs": ("environments", "List environments."),
        "extras": ("extras", "List, install, check and remove requirement sets."),
        "smoke": ("smoke", "Prove that an algorithm runs here; leaves smoke.json."),
        "doctor": ("doctor", "Check this machine and say what to do."),
        "completion": ("about", "Print the shell's completion script."),
        "version": ("about", "Print the version."),
    },
}
ALIASES = {"stop": "cancel", "kill": "cancel", "ls": "runs", "list": "runs", "ps": "runs", "story": "history"}
"""What people type who come from elsewhere or from an earlier version; in no help text"""
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
        command: click.Command = getattr(module, f"{cmd_name}_command")
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
    """`mosaic runs --home X` means `mosaic --home X runs`: people write shared options where they think of them."""
    front: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(args):
        word = args[position]
        if word == "--":
            rest.extend(args[position:])
            break
        if word in _SHARED and position + 1 < len(args):
            front.extend(args[position : position + 2])
            position += 2
            continue
        (front if word.split("=", 1)[0] in _SHARED else rest).append(word)
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
@click.option("--home", type=click.Path(path_type=Path), metavar="DIR", help="MOSAIC's home (else $MOSAIC_HOME).")
@click.option("--connect", metavar="HOST:PORT", help="Use the daemon at this address.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Its token, for --connect.")
@click.option("--tls-ca", type=click.Path(path_type=Path), metavar="FILE", help="Its CA certificate, for --connect.")
@click.option("--version", is_flag=True, help="Print the version.")
@click.pass_context
def mosaic(
    ctx: click.Context,
    home: Path | None,
    connect: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    version: bool,
) -> int:
    """Train, watch, compare and resume reinforcement-learning agents."""
    ctx.obj = Cli(home, connect, token_file, tls_ca)
    if version:
        from gym_gui import __version__

        click.echo(f"mosaic {__version__}")
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0
