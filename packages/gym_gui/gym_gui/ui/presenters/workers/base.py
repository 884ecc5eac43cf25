"""What every presenter is: the policy of one kind of worker, without a widget.

A presenter names the tabs of a run, says where its figures are when a view has none, chooses what a form asks for and
checks the answer. Texts are English and marked; the widget that shows one translates it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.capabilities import Lane
from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home
from mosaic_wire.run_config import TrainRunConfig
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec
from pydantic import ValidationError

from gym_gui.services.trainer.validation.schema_problems import problems_of
from gym_gui.services.trainer.validation.worker_part import check_placeholders, check_worker_config
from gym_gui.ui.presenters.workers.command_line import CommandLine, command_of
from gym_gui.ui.presenters.workers.order import TrainOrder, configs_of
from gym_gui.ui.presenters.workers.parameter_groups import MAY_CHANGE_ON_RESUME, grouped
from gym_gui.ui.workers.environment_families import fits

TAB_ORDER = ("overview", "live", "charts", "tensorboard", "wandb", "optuna", "story", "logs", "replay", "files")
"""Names of the run page's tabs, in the order they stand; a presenter names those that its runs have"""

_LIVE_TABS = ("overview", "live", "story", "logs", "replay", "files")
_ANALYTICS_TABS = TAB_ORDER
"""Those that a run may have; which of charts, TensorBoard, W&B and Optuna it has now, its files say
(`ui/panels/analytics_tabs.py`)"""


class WorkerPresenter:
    """The policy of a worker nobody wrote a presenter for; others change what is theirs."""

    name = "worker"
    lane = Lane.ANALYTICS
    has_dry_run = False
    """Whether `dry_run` can check a config as the worker would"""
    train_mode = "train"

    def __init__(self, lane: Lane | None = None) -> None:
        if lane is not None:
            self.lane = lane

    # ------------------------------------------------------------------ the run page

    def bootstrap_live_tabs(self) -> tuple[str, ...]:
        """Tabs of a run that sends its steps: the live tab shows them."""
        return _LIVE_TABS

    def bootstrap_analytics_tabs(self) -> tuple[str, ...]:
        """Tabs of a run that leaves curves and files."""
        return _ANALYTICS_TABS

    def tabs(self) -> tuple[str, ...]:
        """The tabs of this worker's runs, by its lane; a hybrid one has both kinds."""
        named: set[str] = set()
        if self.lane is not Lane.ANALYTICS:
            named |= set(self.bootstrap_live_tabs())
        if self.lane is not Lane.TELEMETRY:
            named |= set(self.bootstrap_analytics_tabs())
        return tuple(tab for tab in TAB_ORDER if tab in named)

    # ------------------------------------------------------------------ forms

    def algorithms(self, spec: WorkerSpec) -> tuple[AlgorithmSpec, ...]:
        """Those a training form offers, also the ones that cannot run now (they say why)."""
        return tuple(known for known in spec.algorithms if self.train_mode in known.modes or known.unavailable)

    def fitting(self, spec: WorkerSpec, actions: str, observations: str) -> tuple[AlgorithmSpec, ...]:
        """Those that can learn in an environment with these spaces, where they are known."""
        return tuple(known for known in self.algorithms(spec) if fits(known, actions, observations))

    def hyper_parameters(self, algorithm: AlgorithmSpec) -> tuple[FieldSpec, ...]:
        """The fields a form shows, under headings."""
        return grouped(algorithm.fields)

    def changeable_on_resume(self, algorithm: AlgorithmSpec) -> tuple[FieldSpec, ...]:
        """Those a continued run may have otherwise than the one it continues."""
        return tuple(field for field in grouped(algorithm.fields) if field.name in MAY_CHANGE_ON_RESUME)

    def configs(self, order: TrainOrder, spec: WorkerSpec | None) -> list[dict[str, Any]]:
        """A run config for each seed."""
        return configs_of(order, spec)

    def problems(self, config: Mapping[str, Any], spec: WorkerSpec | None) -> list[Problem]:
        """Everything that is wrong with a run config, as the daemon would say it."""
        worker = config["metadata"]["worker"]["config"]
        return [*shape_problems(config), *check_placeholders(config), *check_worker_config(worker, spec)]

    def command(self, order: TrainOrder, spec: WorkerSpec | None) -> CommandLine:
        """The same on the command line."""
        return command_of(order, spec.algorithm(order.algo) if spec is not None else None)

    def help_page(self, algorithm: AlgorithmSpec) -> str:
        """What people should know about an algorithm, as HTML; from its description alone."""
        from html import escape

        rows = "".join(
            f"<tr><td><code>{escape(field.flag)}</code></td><td>{escape(field.help)}</td></tr>"
            for field in algorithm.fields
        )
        return f"<h2>{escape(algorithm.name)}</h2><p>{escape(algorithm.help)}</p><table>{rows}</table>"

    def dry_run(self, config: Mapping[str, Any], home: Home) -> tuple[bool, str]:
        """Check a config as the worker would, off the window's thread: whether it would run, and its words."""
        raise NotImplementedError(f"{self.name} has no dry run")

    def presets(self) -> dict[str, TrainOrder]:
        """Ready-made orders, by a title people understand."""
        return {}

    def extras_program(self, spec: WorkerSpec) -> tuple[str, ...]:
        """The command that lists and installs requirement sets; empty: the worker has none."""
        return ()

    def requirement_sets(self, algorithm: AlgorithmSpec | None, env_id: str, order: TrainOrder) -> tuple[str, ...]:
        """The sets a run needs, as far as that can be told without asking the worker."""
        return ()

    def interpreter(self, spec: WorkerSpec) -> str:
        """The Python that the worker runs in; empty: it is no Python program."""
        first = spec.argv[0] if spec.argv else ""
        return first if Path(first).name.startswith("python") else ""


def shape_problems(config: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a run config whatever its worker is."""
    try:
        TrainRunConfig.model_validate_json(json.dumps(config), strict=True)
    except ValidationError as error:
        return problems_of(error)
    return []


def place_of(problem: Problem, names: Sequence[str]) -> str:
    """The form's field that a problem of a config belongs to; empty when none of them is meant."""
    path = problem.path
    for prefix, field in _PLACES.items():
        if path == prefix or path.startswith(f"{prefix}."):
            return field if field in names else ""
    last = path.rpartition(".")[2]
    return last if last in names else ""


_PLACES = {
    "resources.cpus": "cpus", "resources.gpus": "gpus", "resources.memory_mb": "memory_mb",
    "resources.max_wallclock_minutes": "max_wallclock", "scheduling.priority": "priority",
    "scheduling.retries": "retries", "run_name": "run_name", "tags": "tags", "artifacts.wandb": "track_wandb",
    "metadata.worker.worker_id": "worker_id", "metadata.worker.config.seed": "seeds",
}  # fmt: skip
