"""The command line that does again what a run did. Reads the run's config, so it belongs into a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mosaic_wire.files import read_json_object
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.trainer.launch import NOT_TRAINING
from gym_gui.ui.presenters.workers.command_line import command_of
from gym_gui.ui.presenters.workers.order import order_of, without_secrets

_OF_THE_RUN = frozenset({"tensorboard_dir", "mode", "checkpoint_path", "script_path", "script_sha256", "source"})
"""Extras that the daemon or the worker filled in, or that the command says in its own way"""


@dataclass(frozen=True)
class CommandText:
    text: str
    left_out: tuple[str, ...] = ()
    """Settings that only the config can say"""


def command_of_run(run: pb.Run) -> CommandText:
    """`mosaic train …`; for what that cannot say (an evaluation, a continued run) `mosaic clone …`.

    Raises OSError or ValueError when the config cannot be read here.
    """
    order = order_of(without_secrets(read_json_object(config_file(run))))
    extras = order.other_extras
    if extras.get("mode") in (*NOT_TRAINING, "resume_training") or extras.get("source"):
        return CommandText(f"mosaic clone {run.run_id}")
    if script := extras.get("script_path"):
        order = replace(order, algo=str(script))
    order = replace(order, other_extras={key: value for key, value in extras.items() if key not in _OF_THE_RUN})
    command = command_of(order, None)
    return CommandText(command.text, command.only_in_json)


def config_file(run: pb.Run) -> Path:
    # <home>/trainer/runs/<id> and <home>/trainer/configs: where the daemon keeps them.
    return Path(run.run_dir).parent.parent / "configs" / f"config-{run.run_id}.json"
