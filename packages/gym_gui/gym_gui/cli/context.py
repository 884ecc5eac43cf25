"""What every command needs: where the home is and a client of its daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from mosaic_wire.paths import Home
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


@dataclass(frozen=True)
class Cli:
    """The options in front of the command."""

    home_option: Path | None = None
    connect: str | None = None
    token_file: Path | None = None
    tls_ca: Path | None = None

    @property
    def home(self) -> Home:
        from mosaic_wire.paths import Home, find_home, person_path

        return find_home() if self.home_option is None else Home(person_path(self.home_option))

    def client(self, *, start: bool | None = None, timeout_s: float = 10) -> TrainerClient:
        """A client of the daemon. When none runs one is started, and that is said; not after a user stopped it.

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
                say(f"started the trainer daemon (pid {started.pid}, home {self.home.root})")
        return TrainerClient.connect(self.home, timeout_s=timeout_s)

    def _may_start(self) -> bool:
        """Whether a command that only reads starts a daemon; a mistyped --home is not made into one."""
        from gym_gui.services.trainer.local_daemon import was_stopped

        return not was_stopped(self.home) and (self.home_option is None or self.home.root.is_dir())

    def is_daemon_there(self) -> bool:
        """Whether a daemon can be asked without starting one."""
        from gym_gui.services.trainer.local_daemon import running_record

        return bool(self.connect) or running_record(self.home) is not None

    def remote_token(self) -> str:
        """The token that --connect needs; raise UsageError when nobody gave one."""
        from mosaic_wire import env

        from gym_gui.services.trainer.errors import DaemonUnreachable
        from gym_gui.services.trainer.local_daemon import read_token

        if self.token_file is not None:
            from mosaic_wire.files import chosen_file, read_plain_file
            from mosaic_wire.paths import person_path

            try:
                return read_plain_file(person_path(self.token_file), opener=chosen_file).decode("ascii").strip()
            except (OSError, ValueError) as error:
                raise click.UsageError(f"cannot read the token file {self.token_file}: {error}") from error
        if token := os.environ.get(env.MOSAIC_DAEMON_TOKEN):
            return token
        try:
            return read_token(self.home)
        except DaemonUnreachable:
            raise click.UsageError(
                f"which token? Copy <home>/trainer/token of {self.connect} and give --token-file FILE, "
                f"or set {env.MOSAIC_DAEMON_TOKEN}"
            ) from None


pass_cli = click.make_pass_decorator(Cli)


def say(message: str) -> None:
    """Tell the person something that is not the command's output."""
    print(message, file=sys.stderr, flush=True)


def find_runs(client: TrainerClient, words: Sequence[str]) -> list[pb.Run]:
    """The runs these words mean, each once; nothing is done when one of them is wrong."""
    return list({run.run_id: run for run in (client.find(word) for word in words)}.values())


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completion of RUN: the newest runs, by the short id that listings show."""
    from click.shell_completion import CompletionItem

    from gym_gui.services.trainer.errors import TrainerError
    from gym_gui.wording.run_view import short_id

    cli = ctx.find_object(Cli) or Cli()
    try:
        with cli.client(start=False, timeout_s=1) as client:
            runs = client.list(limit=50).runs
    except (TrainerError, click.UsageError):
        return []
    wanted = incomplete.upper()
    return [
        CompletionItem(run_id, help=f"{run.algo} {run.env_id} {run.name}".strip())
        for run in runs
        for run_id in (short_id(run.run_id), run.run_id, run.name)
        if run_id.upper().startswith(wanted) and (wanted or run_id == short_id(run.run_id))
    ]


one_run = click.argument("run", metavar="RUN", shell_complete=complete_run)
some_runs = click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
