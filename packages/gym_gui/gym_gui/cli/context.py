"""The context of every command: the home, a client of its daemon, and output without control characters."""

from __future__ import annotations

import io
import os
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click
from mosaic_wire import env

from gym_gui.wording.commands import connect_options, with_options
from gym_gui.wording.formats import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from mosaic_wire.paths import Home
    from mosaic_wire.proto import trainer_pb2 as pb
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from gym_gui.services.trainer.client import TrainerClient

_MARK = f"\x1b{secrets.token_hex(8)}["
"""Begins a color of `style`. No text of a run can contain it: it is drawn anew in each process."""
_COLOR = re.compile(re.escape(_MARK) + "([0-9;]*m)")


class TerminalText:
    """A text stream that cleans what is written, and writes `?` for what its encoding does not have."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        if isinstance(stream, io.TextIOWrapper):
            # click would write past this object to an ASCII stream, as UTF-8
            stream.reconfigure(encoding="utf-8" if stream.encoding == "ascii" else None, errors="replace")

    def write(self, text: str) -> int:
        parts = _COLOR.split(text)  # text, color, text, …
        self.stream.write("".join(f"\x1b[{part}" if index % 2 else printable(part) for index, part in enumerate(parts)))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def clean_output() -> None:
    """From now on this process prints through `TerminalText`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TerminalText):
            setattr(sys, name, TerminalText(stream))


def as_it_is(stream: TextIO) -> TextIO:
    """Return the stream below, for a display that moves the cursor and cleans the text itself."""
    return cast("TextIO", getattr(stream, "stream", stream))


def use_color() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def style(text: str, **attributes: Any) -> str:
    """`click.style` where colors are used; only these get through to the terminal."""
    return colored(text, **attributes) if use_color() else text


def colored(text: str, **attributes: Any) -> str:
    """`style` for callers that have asked `use_color`."""
    return click.style(printable(text), **attributes).replace("\x1b[", _MARK)


class Cleaned:
    """Draws a rich renderable with its text cleaned."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._content, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


@dataclass(frozen=True)
class Cli:
    """The options in front of the command."""

    home_option: Path | None = None
    connect: str | None = None
    token_file: Path | None = None
    tls_ca: Path | None = None
    profile: str = ""
    """The name in the settings that `connect` was given as"""

    @property
    def home(self) -> Home:
        from mosaic_wire.paths import Home, find_home, user_path

        return find_home() if self.home_option is None else Home(user_path(self.home_option))

    def client(self, *, start: bool | None = None, timeout_s: float = 10) -> TrainerClient:
        """Return a client of the daemon. When none runs, start one and report it, unless the user stopped it.

        `start`: True starts one also then, False never.
        """
        from gym_gui.services.trainer.client import TrainerClient, start_daemon
        from gym_gui.services.trainer.local_daemon import running_record

        if self.connect:
            return TrainerClient(self.connect, self.remote_token(), tls_ca=self.tls_ca, timeout_s=timeout_s)
        if self.token_file or self.tls_ca:
            raise click.UsageError("--token-file and --tls-ca belong to --connect HOST:PORT")
        if start is not False and running_record(self.home) is None and (start or self._may_start()):
            started = start_daemon(self.home)
            if not started.already_running:
                notify(f"started the trainer daemon (pid {started.pid}, home {self.home.root})")
        return TrainerClient.connect(self.home, timeout_s=timeout_s)

    def _may_start(self) -> bool:
        """Return whether a command that only reads starts a daemon; a mistyped --home is not made into one."""
        from gym_gui.services.trainer.local_daemon import was_stopped

        return not was_stopped(self.home) and (self.home_option is None or self.home.root.is_dir())

    def is_daemon_there(self) -> bool:
        """Return whether a daemon can be asked without starting one."""
        from gym_gui.services.trainer.local_daemon import running_record

        return bool(self.connect) or running_record(self.home) is not None

    def remote_token(self) -> str:
        """Return the token that --connect needs; raise UsageError when none was given."""
        from gym_gui.services.trainer.errors import DaemonUnreachable
        from gym_gui.services.trainer.local_daemon import read_token

        if self.token_file is not None:
            from mosaic_wire.files import chosen_file, read_plain_file
            from mosaic_wire.paths import user_path

            try:
                return read_plain_file(user_path(self.token_file), opener=chosen_file).decode("ascii").strip()
            except (OSError, ValueError) as error:
                raise click.UsageError(f"cannot read the token file {self.token_file}: {error}") from error
        if token := os.environ.get(env.MOSAIC_DAEMON_TOKEN):
            if not (token.isascii() and token.isprintable()):
                raise click.UsageError(f"{env.MOSAIC_DAEMON_TOKEN} holds no token; one is 64 hexadecimal digits")
            return token
        try:
            return read_token(self.home)
        except DaemonUnreachable:
            raise click.UsageError(
                f"which token? Copy <home>/trainer/token of {self.connect} and give --token-file FILE, "
                f"or set {env.MOSAIC_DAEMON_TOKEN}"
            ) from None


def connection_of(cli: Cli) -> Cli:
    """Replace the name of a profile in the settings by its address, token file and certificate."""
    if not cli.connect or ":" in cli.connect:
        return cli
    from mosaic_wire.worker_spec import nearest

    from gym_gui.config.settings import load_settings, settings_file

    profiles = load_settings().daemons
    if (profile := profiles.get(cli.connect)) is None:
        close = nearest(cli.connect, profiles)
        raise click.UsageError(
            f"{cli.connect!r} is neither HOST:PORT nor one of [daemons.NAME] in {settings_file()}"
            + (f"; did you mean {close!r}?" if close else "")
        )
    return replace(
        cli,
        connect=profile.connect,
        token_file=cli.token_file or profile.token_file,
        tls_ca=cli.tls_ca or profile.tls_ca,
        profile=cli.connect,
    )


_hinted_options = ""


def options_of(cli: Cli) -> str:
    """Return the options that reach the daemon of this command; a profile brings its own."""
    return (
        connect_options(cli.profile) if cli.profile else connect_options(cli.connect or "", cli.tls_ca, cli.token_file)
    )


def keep_in_hints(cli: Cli) -> None:
    """From now on `hint` repeats how the daemon is reached, unless the environment says it anyway."""
    global _hinted_options
    named = cli.profile or cli.connect
    _hinted_options = "" if named == os.environ.get(env.MOSAIC_CONNECT) else options_of(cli)


def hint(text: str) -> str:
    """Return a message whose `mosaic …` commands reach the daemon of this command."""
    return with_options(text, _hinted_options)


pass_cli = click.make_pass_decorator(Cli)


def read_limited(file: str, most_bytes: int) -> bytes:
    """Read a file, or standard input for `-`; one byte more than allowed shows that there is too much."""
    try:
        with click.open_file(file, "rb") as stream:
            return bytes(stream.read(most_bytes + 1))
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from error


def notify(message: str) -> None:
    """Print a message that is not the command's output."""
    print(hint(message), file=sys.stderr, flush=True)


def find_runs(client: TrainerClient, names: Sequence[str]) -> list[pb.Run]:
    """Return the distinct runs with these names or ids; raise if one of them is not found."""
    return list({run.run_id: run for run in (client.find(name) for name in names)}.values())


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete RUN in a shell: the newest runs, by the short id that listings show."""
    from click.shell_completion import CompletionItem

    from gym_gui.services.trainer.errors import TrainerError
    from gym_gui.wording.run_view import short_id

    cli = ctx.find_object(Cli) or Cli()
    try:
        with cli.client(start=False, timeout_s=1) as client:
            runs = client.list(limit=50).runs
    except (TrainerError, click.UsageError):
        return []
    prefix = incomplete.upper()
    return [
        CompletionItem(run_id, help=f"{run.algo} {run.env_id} {run.name}".strip())
        for run in runs
        for run_id in (short_id(run.run_id), run.run_id, run.name)
        if run_id.upper().startswith(prefix) and (prefix or run_id == short_id(run.run_id))
    ]


FOLDER = click.Path(path_type=Path, file_okay=False)
POSITIVE = click.IntRange(min=1)
one_run = click.argument("run", metavar="RUN", shell_complete=complete_run)
some_runs = click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
