"""`mosaic tensorboard`: TensorBoard for some runs, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, notify, pass_cli
from gym_gui.cli.selection import Selection, notify_left_out, run_selection, select_runs
from gym_gui.wording import formats

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.web_servers import Linked

_LOOK_EVERY_S = 0.5


@click.command()
@run_selection
@click.option("--open", "in_browser", is_flag=True, help="Open the browser, too.")
@pass_cli
def tensorboard_command(cli: Cli, /, in_browser: bool, **options: Any) -> int:
    """Serve TensorBoard for these runs on this machine and print its address; Ctrl-C ends it."""
    from gym_gui.services.analytics.web_servers import has_event_files, interpreters_of, linked

    if cli.connect:
        raise click.UsageError("event files lie on the daemon's machine: run `mosaic tensorboard` there")
    with cli.client() as client:
        runs = select_runs(client, Selection.pop_from(options), with_failed=True)
        pythons = interpreters_of(client)
    written: list[Linked] = []
    missing: list[pb.Run] = []
    for run in runs:
        one = linked(run)
        if has_event_files(one.folder):
            written.append(one)
        else:
            missing.append(run)
    if not written:
        notify("none of these runs has written event files yet")
        return 1
    notify_left_out(missing, "event files")
    return _serve(cli, written, pythons, in_browser=in_browser)


def _serve(cli: Cli, runs: Sequence[Linked], pythons: Sequence[str], *, in_browser: bool) -> int:
    from gym_gui.services.analytics.web_servers import (
        LinkFolder,
        ServerProblem,
        TensorBoardServer,
        find_interpreter,
        log_for,
    )

    links = LinkFolder.make(cli.home)
    server: TensorBoardServer | None = None
    try:
        for one in runs:
            links.add(one.name, one.folder)
        notify(f"starting TensorBoard for {formats.plural(len(runs), 'run')} …")
        server = TensorBoardServer.start(links, find_interpreter(pythons), log_for(cli.home))
        click.echo(server.address)
        notify("Ctrl-C ends it")
        if in_browser:
            click.launch(server.address)
        while server.is_running:
            time.sleep(_LOOK_EVERY_S)
        notify(f"TensorBoard has ended. {server.last_output()}")
    except ServerProblem as problem:
        notify(str(problem))
    except KeyboardInterrupt:
        notify("ended")
        return 0
    finally:
        if server is not None:
            server.stop()
        links.remove()
    return 1
