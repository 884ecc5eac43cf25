"""Hyper-parameters under headings, for algorithms whose description has none: people look for a learning rate among
learning rates, not between the seed and a W&B project."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mosaic_wire.worker_spec import FieldSpec

from gym_gui.ui.workers.words import PRESENTERS, QT_TRANSLATE_NOOP

LEARNING = QT_TRANSLATE_NOOP(PRESENTERS, "Learning")
BATCHES = QT_TRANSLATE_NOOP(PRESENTERS, "Rollouts and batches")
EXPLORATION = QT_TRANSLATE_NOOP(PRESENTERS, "Exploration")
REPLAY = QT_TRANSLATE_NOOP(PRESENTERS, "Replay buffer")
VALUES = QT_TRANSLATE_NOOP(PRESENTERS, "Values and targets")
NETWORK = QT_TRANSLATE_NOOP(PRESENTERS, "Environment and network")
KEEPING = QT_TRANSLATE_NOOP(PRESENTERS, "Evaluation, checkpoints, video")
MACHINE = QT_TRANSLATE_NOOP(PRESENTERS, "Machine")
OTHER = QT_TRANSLATE_NOOP(PRESENTERS, "More")

GROUPS = (LEARNING, BATCHES, EXPLORATION, REPLAY, VALUES, NETWORK, KEEPING, MACHINE, OTHER)

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
    KEEPING: "eval_episodes eval_freq eval_deterministic stop_at_return checkpoint_freq keep_checkpoints capture_video "
    "save_model",
    MACHINE: "cuda torch_deterministic torch_threads compile cudagraphs bf16 backend device_ids world_size",
}
_GROUP_OF = {name: group for group, names in _MEMBERS.items() for name in names.split()}
_RANK = {name: rank for names in _MEMBERS.values() for rank, name in enumerate(names.split())}

SAID_ELSEWHERE = frozenset(
    {"env_id", "seed", "total_timesteps", "track", "wandb_project_name", "wandb_entity", "upload_model", "hf_entity"}
)
"""Fields of algorithms that the form asks for in a place of their own, or that do nothing"""

_CHANGEABLE = """
    learning_rate policy_lr q_lr anneal_lr gamma gae_lambda ent_coef vf_coef clip_coef clip_vloss norm_adv
    adv_norm_fullbatch max_grad_norm target_kl update_epochs update_proportion int_coef ext_coef q_lambda temperature
    beta_clone rpo_alpha tau target_network_frequency train_frequency policy_frequency start_e end_e
    exploration_fraction exploration_noise policy_noise noise_clip eval_episodes eval_freq eval_deterministic
    stop_at_return checkpoint_freq keep_checkpoints capture_video checkpoint_replay cuda torch_threads compile
    """
MAY_CHANGE_ON_RESUME = frozenset(_CHANGEABLE.split())
"""What a checkpoint does not depend on. The rest has the shape of what is restored: networks, buffers, environments"""


def grouped(fields: Iterable[FieldSpec]) -> tuple[FieldSpec, ...]:
    """The fields a form shows, each with its heading, in the order they are shown."""
    shown = [field for field in fields if field.name not in SAID_ELSEWHERE and not is_computed(field)]
    named = [replace(field, group=field.group or _GROUP_OF.get(field.name, OTHER)) for field in shown]
    places = {group: place for place, group in enumerate(GROUPS)}
    own = {field.group: place for place, field in enumerate(named) if field.group not in places}

    def place(field: FieldSpec) -> tuple[int, int]:
        # A worker that has headings of its own keeps them, in its own order, in front of ours.
        rank = own[field.group] - len(named) if field.group in own else places[field.group]
        return rank, _RANK.get(field.name, 0)

    return tuple(sorted(named, key=place))


def is_computed(field: FieldSpec) -> bool:
    """CleanRL has flags that it computes itself; nobody can set them."""
    return field.help.startswith("computed:")
