"""`mosaic cancel | pause | resume | extend`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.run_status import RunStatus

from gym_gui.cli.context import Cli, complete_run, find_runs, notify, one_run, pass_cli, some_runs
from gym_gui.cli.flags import Steps
from gym_gui.cli.selection import Selection, runs_to_change, select_to_change
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.wording.run_view import short_id, state_of, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


@click.command()
@runs_to_change
@click.option("--wait", is_flag=True, help="Return when they have ended and their processes have exited.")
@pass_cli
def cancel_command(cli: Cli, /, wait: bool, yes: bool, **options: Any) -> int:
    """End runs. Their processes are asked to stop, and killed when they do not."""
    selection = Selection.pop_from(options)
    with cli.client() as client:
        found = select_to_change(
            client, selection, "cancel", yes=yes, fits=lambda run: run.status != RunStatus.TERM, unfit="ended already"
        )
        refused = client.cancel_many([run.run_id for run in found])
        for run_id, why in refused.items():
            notify(f"mosaic: cannot cancel {short_id(run_id)}: {why}")
        changed, code = [run for run in found if run.run_id not in refused], int(bool(refused))
        for run in changed:
            state = "cancelled" if run.status in (RunStatus.INIT, RunStatus.TERM) else "cancelling"
            click.echo(f"{run.run_id}  {title_of(run)}: {state}")
        if wait and changed:
            from gym_gui.cli.progress import follow

            ended = follow(client, changed)
            return 130 if ended is None else code
    return code


@click.command()
@some_runs
@click.option("--release", is_flag=True, help="Checkpoint, end the process and give its CPUs and GPUs back.")
@pass_cli
def pause_command(cli: Cli, /, runs: tuple[str, ...], release: bool) -> int:
    """Pause runs. They keep their process and their reservation, unless --release."""
    with cli.client() as client:
        return for_each(find_runs(client, runs), lambda run: client.pause(run.run_id, release=release), "pause")[1]


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    help="Of a finished run: start from this checkpoint. Without RUN: a checkpoint folder or a .cleanrl_model file.",
)
@click.option("--timesteps", type=Steps(), help="Without RUN: train this many steps.")
@click.option("--algo", metavar="ALGO", help="Without RUN: the algorithm, for a file that does not name it.")
@click.option("--env-id", metavar="ENV", help="Without RUN: the environment, for a file that does not name it.")
@click.option("--no-statistics", is_flag=True, help="Without RUN: a file without a normalizer's statistics, as it is.")
@click.option("-f/-d", "--follow/--detach", "wants_follow", help="Follow them until they end.")
@pass_cli
def resume_command(
    cli: Cli,
    /,
    runs: tuple[str, ...],
    checkpoint: str,
    timesteps: int | None,
    algo: str | None,
    env_id: str | None,
    no_statistics: bool,
    wants_follow: bool,
) -> int:
    """Continue runs. A finished run is continued by a new one; so is a checkpoint of any origin."""
    if not runs:
        from gym_gui.cli.evaluate import resume_checkpoint

        if not checkpoint:
            raise click.UsageError("which run? Or a checkpoint: mosaic resume --checkpoint PATH")
        return resume_checkpoint(
            cli,
            checkpoint,
            timesteps=timesteps,
            algo=algo,
            env_id=env_id,
            no_statistics=no_statistics,
            follow=wants_follow,
        )
    if timesteps or algo or env_id or no_statistics:
        raise click.UsageError(
            "--timesteps, --algo, --env-id and --no-statistics go with --checkpoint alone; `mosaic extend` trains "
            "longer"
        )
    with cli.client() as client:
        resumed, code = for_each(
            find_runs(client, runs), lambda run: client.resume(run.run_id, checkpoint=checkpoint), "resume", "resumed"
        )
        return _follow(client, resumed) or code if wants_follow and resumed else code


@click.command()
@one_run
@click.option("--timesteps", type=Steps(), required=True, help="Train this many steps more.")
@click.option("--checkpoint", default="", metavar="PATH", help="Start from this checkpoint, not the last.")
@click.option("-f/-d", "--follow/--detach", "wants_follow", help="Follow it until it ends.")
@pass_cli
def extend_command(cli: Cli, /, run: str, timesteps: int, checkpoint: str, wants_follow: bool) -> int:
    """Train a finished run longer; a new run continues it."""
    with cli.client() as client:
        parent = client.find(run)
        extended = client.resume(parent.run_id, additional_timesteps=timesteps, checkpoint=checkpoint)
        _print_result(parent, extended, "extended")
        return _follow(client, [extended]) if wants_follow else 0


def for_each(
    runs: Sequence[pb.Run], action: Callable[[pb.Run], pb.Run], verb: str, done: str = ""
) -> tuple[list[pb.Run], int]:
    """Apply it to every run and print each result (`done`, or its state); continue after a failure."""
    changed: list[pb.Run] = []
    code = 0
    for run in runs:
        try:
            after = action(run)
        except DaemonUnreachable:
            raise
        except TrainerError as error:
            notify(f"mosaic: cannot {verb} {short_id(run.run_id)}: {error}")
            code = 1
            continue
        _print_result(run, after, done)
        changed.append(after)
    return changed, code


def _print_result(before: pb.Run, after: pb.Run, done: str = "") -> None:
    continues = f", continues {short_id(before.run_id)}" if before.run_id != after.run_id else ""
    waits = f" ({after.queue_reason})" if done and after.status == RunStatus.INIT and after.queue_reason else ""
    click.echo(f"{after.run_id}  {title_of(after)}: {done or state_of(after)}{continues}{waits}")


def _follow(client: TrainerClient, runs: Sequence[pb.Run]) -> int:
    from gym_gui.cli.progress import follow_to_end

    return follow_to_end(client, runs)
