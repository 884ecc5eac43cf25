"""Presenters of workers, and the choice of the presenter for a run. No Qt.

presenters = PresenterRegistry()
presenters.for_entry(entry)          of the catalog
presenters.for_run(run)              by its worker type; without a presenter by the worker's description
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mosaic_wire.capabilities import Lane
from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import worker_part
from mosaic_wire.sweep_settings import WORKER_TYPE
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

from gym_gui.services.trainer.validation.worker_part import check_placeholders, check_worker_config
from gym_gui.ui.presenters.workers.train_request import CommandLine, TrainRequest, command_of, configs_of
from gym_gui.ui.workers.catalog import BUILTIN, WorkerEntry, find
from gym_gui.ui.workers.environments import family_of, fits
from gym_gui.ui.workers.translation import marked
from gym_gui.validations.worker_questions import ask_worker

__all__ = [
    "CleanRlWorkerPresenter",
    "HumanWorkerPresenter",
    "LlmWorkerPresenter",
    "PresenterRegistry",
    "SpadeBdiWorkerPresenter",
    "SweepRunPresenter",
    "WorkerPresenter",
]

LEARNING = marked("Learning")
BATCHES = marked("Rollouts and batches")
EXPLORATION = marked("Exploration")
REPLAY = marked("Replay buffer")
VALUES = marked("Values and targets")
NETWORK = marked("Environment and network")
CHECKPOINTING = marked("Evaluation, checkpoints, video")
MACHINE = marked("Machine")
OTHER = marked("More")

GROUPS = (LEARNING, BATCHES, EXPLORATION, REPLAY, VALUES, NETWORK, CHECKPOINTING, MACHINE, OTHER)

_MEMBERS = {
    LEARNING: "learning_rate policy_lr q_lr anneal_lr gamma gae_lambda ent_coef vf_coef clip_coef clip_vloss norm_adv "
    "adv_norm_fullbatch max_grad_norm target_kl update_epochs update_proportion int_coef ext_coef int_gamma q_lambda "
    "alpha autotune target_entropy_scale temperature beta_clone rpo_alpha e_policy e_auxiliary",
    BATCHES: "num_envs num_steps num_minibatches batch_size train_frequency update_frequency policy_frequency "
    "learning_starts local_num_envs n_iteration num_iterations_obs_norm_init aux_batch_rollouts num_aux_rollouts "
    "n_aux_grad_accum offline_steps teacher_steps",
    EXPLORATION: "start_e end_e exploration_fraction exploration_noise policy_noise noise_clip",
    REPLAY: "buffer_size checkpoint_replay replay_storage prioritized_replay_alpha prioritized_replay_beta "
    "prioritized_replay_eps n_step",
    VALUES: "tau target_network_frequency n_atoms v_min v_max v_value",
    NETWORK: "agent env_kwargs env_backend",
    CHECKPOINTING: "eval_episodes eval_freq eval_deterministic stop_at_return checkpoint_freq keep_checkpoints "
    "capture_video save_model",
    MACHINE: "cuda torch_deterministic torch_threads compile cudagraphs bf16 backend device_ids world_size",
}
_GROUP_OF = {name: group for group, names in _MEMBERS.items() for name in names.split()}
_RANK = {name: rank for names in _MEMBERS.values() for rank, name in enumerate(names.split())}

NOT_IN_SCHEMA_FORM = frozenset(
    {"env_id", "seed", "total_timesteps", "track", "wandb_project_name", "wandb_entity", "upload_model", "hf_entity"}
)
"""Fields that the form shows elsewhere, or that have no effect"""

_CHANGEABLE = """
    learning_rate policy_lr q_lr anneal_lr gamma gae_lambda ent_coef vf_coef clip_coef clip_vloss norm_adv
    adv_norm_fullbatch max_grad_norm target_kl update_epochs update_proportion int_coef ext_coef q_lambda temperature
    beta_clone rpo_alpha tau target_network_frequency train_frequency policy_frequency start_e end_e
    exploration_fraction exploration_noise policy_noise noise_clip eval_episodes eval_freq eval_deterministic
    stop_at_return checkpoint_freq keep_checkpoints capture_video checkpoint_replay cuda torch_threads compile
    """
MAY_CHANGE_ON_RESUME = frozenset(_CHANGEABLE.split())
"""Flags that a checkpoint does not depend on; others determine restored networks, buffers and environments"""


def grouped(fields: Iterable[FieldSpec]) -> tuple[FieldSpec, ...]:
    """Return the fields of a form in order, each with its heading."""
    shown = [field for field in fields if field.name not in NOT_IN_SCHEMA_FORM and not is_computed(field)]
    named = [replace(field, group=field.group or _GROUP_OF.get(field.name, OTHER)) for field in shown]
    places = {group: place for place, group in enumerate(GROUPS)}
    own = {field.group: place for place, field in enumerate(named) if field.group not in places}

    def place(field: FieldSpec) -> tuple[int, int]:
        # Headings of the worker itself come first, in its own order.
        rank = own[field.group] - len(named) if field.group in own else places[field.group]
        return rank, _RANK.get(field.name, 0)

    return tuple(sorted(named, key=place))


def is_computed(field: FieldSpec) -> bool:
    """Return whether CleanRL computes the flag itself, so that users cannot set it."""
    return field.help.startswith("computed:")


TAB_ORDER = ("overview", "live", "charts", "tensorboard", "wandb", "optuna", "story", "logs", "replay", "files")
"""Names of the run page's tabs, in order; a presenter names those of its runs"""

_LIVE_TABS = ("overview", "live", "charts", "story", "logs", "replay", "files")
_ANALYTICS_TABS = TAB_ORDER
"""Tabs that a run may have; `ui/run_page/page.py` shows charts, TensorBoard, W&B and Optuna by its files"""


class WorkerPresenter:
    """The default presenter; workers with a presenter of their own override parts of it."""

    name = "worker"
    lane = Lane.ANALYTICS
    train_mode = "train"

    def __init__(self, lane: Lane | None = None) -> None:
        if lane is not None:
            self.lane = lane

    # ------------------------------------------------------------------ the run page

    def bootstrap_live_tabs(self) -> tuple[str, ...]:
        """Return the tabs of a run that sends its steps."""
        return _LIVE_TABS

    def bootstrap_analytics_tabs(self) -> tuple[str, ...]:
        """Return the tabs of a run that leaves curves and files."""
        return _ANALYTICS_TABS

    def tabs(self) -> tuple[str, ...]:
        """Return the tabs of this worker's runs, by its lane; a hybrid one has both kinds."""
        named: set[str] = set()
        if self.lane is not Lane.ANALYTICS:
            named |= set(self.bootstrap_live_tabs())
        if self.lane is not Lane.TELEMETRY:
            named |= set(self.bootstrap_analytics_tabs())
        return tuple(tab for tab in TAB_ORDER if tab in named)

    # ------------------------------------------------------------------ forms

    def algorithms(self, spec: WorkerSpec) -> tuple[AlgorithmSpec, ...]:
        """Return the algorithms of a training form, including unavailable ones with the reason."""
        return tuple(known for known in spec.algorithms if self.train_mode in known.modes or known.unavailable)

    def fitting(self, spec: WorkerSpec, actions: str, observations: str) -> tuple[AlgorithmSpec, ...]:
        """Return the algorithms that support these spaces, as far as known."""
        return tuple(known for known in self.algorithms(spec) if fits(known, actions, observations))

    def hyper_parameters(self, algorithm: AlgorithmSpec) -> tuple[FieldSpec, ...]:
        """Return the fields of a form with their headings."""
        return grouped(algorithm.fields)

    def changeable_on_resume(self, algorithm: AlgorithmSpec) -> tuple[FieldSpec, ...]:
        """Return the fields that may change when training continues."""
        return tuple(field for field in grouped(algorithm.fields) if field.name in MAY_CHANGE_ON_RESUME)

    def configs(self, request: TrainRequest, spec: WorkerSpec | None) -> list[dict[str, Any]]:
        """Return a run config for each seed."""
        return configs_of(request, spec)

    def problems(self, config: Mapping[str, Any], spec: WorkerSpec | None) -> list[Problem]:
        """Return all problems of a run config, as the daemon reports them."""
        worker = worker_part(config)
        return [*shape_problems(config), *check_placeholders(config), *check_worker_config(worker, spec)]

    def command(self, request: TrainRequest, spec: WorkerSpec | None) -> CommandLine:
        """Return the equivalent command line."""
        return command_of(request, spec.algorithm(request.algo) if spec is not None else None)

    def help_page(self, algorithm: AlgorithmSpec) -> str:
        """Return HTML about an algorithm, made from its description."""
        from html import escape

        rows = "".join(
            f"<tr><td><code>{escape(field.flag)}</code></td><td>{escape(field.help)}</td></tr>"
            for field in algorithm.fields
        )
        return f"<h2>{escape(algorithm.name)}</h2><p>{escape(algorithm.help)}</p><table>{rows}</table>"

    def dry_run(self, spec: WorkerSpec, config: Mapping[str, Any], home: Home) -> tuple[bool, str]:
        """Check a config as the worker does; blocks. Return whether it can run, and a message."""
        return ask_worker(spec, config, "--dry-run", home=home)

    def presets(self) -> dict[str, TrainRequest]:
        """Return ready-made requests by title."""
        return {}

    def requirement_sets(self, algorithm: AlgorithmSpec | None, env_id: str, request: TrainRequest) -> tuple[str, ...]:
        """Return the requirement sets of a run, as far as known without asking the worker."""
        return ()

    def interpreter(self, spec: WorkerSpec) -> str:
        """Return the worker's Python interpreter; empty if it is not a Python program."""
        first = spec.argv[0] if spec.argv else ""
        return first if Path(first).name.startswith("python") else ""


def shape_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a run config that do not depend on its worker."""
    # pydantic is slow to load, and the window needs it only to check a form.
    from mosaic_wire.run_config import TrainRunConfig
    from pydantic import ValidationError

    from gym_gui.services.trainer.validation.train_config import problems_of

    try:
        TrainRunConfig.from_json(config, strict=True)
    except ValidationError as error:
        return problems_of(error)
    return []


def place_of(problem: Problem, names: Sequence[str]) -> str:
    """Return the form's field for a problem of a config; empty if there is none."""
    path = problem.path
    for prefix, field in _PLACES.items():
        if path == prefix or path.startswith(f"{prefix}."):
            return field if field in names else ""
    last = path.rpartition(".")[2]
    return last if last in names else ""


_PLACES = {
    "resources.cpus": "cpus",
    "resources.gpus": "gpus",
    "resources.memory_mb": "memory_mb",
    "resources.max_wallclock_minutes": "max_wallclock",
    "scheduling.priority": "priority",
    "scheduling.retries": "retries",
    "run_name": "run_name",
    "tags": "tags",
    "artifacts.wandb": "track_wandb",
    "metadata.worker.worker_id": "worker_id",
    "metadata.worker.config.seed": "seeds",
}


_BRING_ENVIRONMENTS = frozenset({"envpool", "procgen", "pettingzoo"})
"""Algorithms on one of these backends use the environments of the backend"""


PRESETS = {
    marked("CartPole with PPO (a minute)"): TrainRequest(algo="ppo", env_id="CartPole-v1", total_timesteps=100_000),
    marked("CartPole with PPO, five seeds"): TrainRequest(
        algo="ppo", env_id="CartPole-v1", total_timesteps=100_000, seeds=(1, 2, 3, 4, 5)
    ),
    marked("CartPole with DQN"): TrainRequest(algo="dqn", env_id="CartPole-v1", total_timesteps=500_000),
    marked("Pendulum with SAC"): TrainRequest(
        algo="sac_continuous_action", env_id="Pendulum-v1", total_timesteps=30_000
    ),
    marked("LunarLander with PPO"): TrainRequest(
        algo="ppo",
        env_id="LunarLander-v3",
        total_timesteps=2_000_000,
        parameters={
            "num_envs": 16,
            "num_steps": 256,
            "num_minibatches": 16,
            "update_epochs": 10,
            "learning_rate": 0.001,
        },
    ),
    marked("HalfCheetah with TD3 (MuJoCo)"): TrainRequest(
        algo="td3_continuous_action", env_id="HalfCheetah-v5", total_timesteps=1_000_000
    ),
    marked("Breakout with PPO (Atari)"): TrainRequest(
        algo="ppo_atari", env_id="BreakoutNoFrameskip-v4", total_timesteps=10_000_000, cpus=2
    ),
}
"""Presets for beginners; the form shows the requirement sets they need"""


class CleanRlWorkerPresenter(WorkerPresenter):
    name = "cleanrl"
    lane = Lane.ANALYTICS

    def help_page(self, algorithm: AlgorithmSpec) -> str:
        from gym_gui.Algo_docs.cleanrl_worker import PAGES, help_for

        return help_for(algorithm) if algorithm.name in PAGES else super().help_page(algorithm)

    def presets(self) -> dict[str, TrainRequest]:
        return PRESETS

    def requirement_sets(self, algorithm: AlgorithmSpec | None, env_id: str, request: TrainRequest) -> tuple[str, ...]:
        needed = {name for name in (algorithm.requirement_sets if algorithm is not None else ()) if name != "base"}
        brought = family_of(env_id).requirement_set
        if brought and not needed & _BRING_ENVIRONMENTS:
            needed.add(brought)
        if request.wandb.enabled:
            needed.add("wandb")
        if request.parameters.get("capture_video") is True:
            needed.add("video")
        return tuple(sorted(needed))


class HumanWorkerPresenter(WorkerPresenter):
    name = "human"
    lane = Lane.TELEMETRY


class LlmWorkerPresenter(WorkerPresenter):
    name = "llm"
    lane = Lane.HYBRID

    def presets(self) -> dict[str, TrainRequest]:
        return {
            marked("FrozenLake with SmolLM2, offline"): TrainRequest(
                algo="llm", env_id="FrozenLake-v1", total_timesteps=50, parameters={"model": "smollm2"}
            ),
            marked("A MiniGrid maze with Ollama"): TrainRequest(
                algo="llm",
                env_id="MiniGrid-Empty-5x5-v0",
                total_timesteps=100,
                parameters={"base_url": "http://127.0.0.1:11434/v1", "model": "llama3.2", "plan_every": 10},
            ),
        }


class SpadeBdiWorkerPresenter(WorkerPresenter):
    name = "spade_bdi"
    lane = Lane.TELEMETRY

    def presets(self) -> dict[str, TrainRequest]:
        lake = {"env_kwargs": "is_slippery=false"}
        return {
            marked("FrozenLake with Q-learning"): TrainRequest(
                algo="spade_bdi", env_id="FrozenLake-v1", total_timesteps=20_000, parameters=lake
            ),
            marked("FrozenLake with teacher and pupil"): TrainRequest(
                algo="spade_bdi",
                env_id="FrozenLake-v1",
                total_timesteps=5_000,
                parameters={**lake, "behaviour": "teacher_pupil"},
            ),
            marked("Key and door with a planner (MiniGrid)"): TrainRequest(
                algo="spade_bdi",
                env_id="MiniGrid-DoorKey-5x5-v0",
                total_timesteps=2_000,
                parameters={"behaviour": "planner", "record_frames": True},
            ),
        }


class SweepRunPresenter(WorkerPresenter):
    """Runs of the sweep worker: curves over trials and the study, but no live view."""

    name = WORKER_TYPE
    lane = Lane.ANALYTICS

    def bootstrap_analytics_tabs(self) -> tuple[str, ...]:
        return tuple(tab for tab in super().bootstrap_analytics_tabs() if tab not in ("live", "replay"))


Make = Callable[[Lane | None], WorkerPresenter]


class PresenterRegistry:
    """Presenters by name; each is created when it is first requested."""

    def __init__(self) -> None:
        self._makers: dict[str, Make] = {}
        self._made: dict[tuple[str, Lane | None], WorkerPresenter] = {}
        for kind in (
            HumanWorkerPresenter,
            SpadeBdiWorkerPresenter,
            LlmWorkerPresenter,
            CleanRlWorkerPresenter,
            SweepRunPresenter,
        ):
            self.register(kind.name, kind)

    def register(self, name: str, make: Make) -> None:
        """Register a presenter under the name that catalog entries use."""
        self._makers[name] = make

    def names(self) -> tuple[str, ...]:
        return tuple(self._makers)

    def get(self, name: str, lane: Lane | None = None) -> WorkerPresenter:
        """Return the presenter of this name; for an unknown name, a default one for the lane."""
        key = name, lane
        if key not in self._made:
            self._made[key] = self._makers.get(name, WorkerPresenter)(lane)
        return self._made[key]

    def for_entry(self, entry: WorkerEntry) -> WorkerPresenter:
        return self.get(entry.presenter, entry.lane)

    def for_run(self, run: pb.Run) -> WorkerPresenter:
        """Choose by the lane from the worker's registration, before that by its catalog entry."""
        builtin = find(BUILTIN, run.worker_type)
        return self.get(builtin.presenter if builtin is not None else run.worker_type, _lane_of(run))


def _lane_of(run: pb.Run) -> Lane | None:
    try:
        reported = json.loads(run.capabilities_json or "{}")
        return Lane(reported["lane"]) if isinstance(reported, dict) and "lane" in reported else None
    except ValueError:
        return None
