"""Args as forms and `--describe` see them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, worker_spec
from cleanrl_worker.schema import fields_of
from mosaic_wire.errors import SpecError

UPSTREAM_PPO = {
    "seed": ("int", 1),
    "torch_deterministic": ("bool", True),
    "cuda": ("bool", True),
    "track": ("bool", False),
    "wandb_project_name": ("str", "cleanRL"),
    "wandb_entity": ("str", None),
    "capture_video": ("bool", False),
    "env_id": ("str", "CartPole-v1"),
    "total_timesteps": ("int", 500_000),
    "learning_rate": ("float", 0.00025),
    "num_envs": ("int", 4),
    "num_steps": ("int", 128),
    "anneal_lr": ("bool", True),
    "gamma": ("float", 0.99),
    "gae_lambda": ("float", 0.95),
    "num_minibatches": ("int", 4),
    "update_epochs": ("int", 4),
    "norm_adv": ("bool", True),
    "clip_coef": ("float", 0.2),
    "clip_vloss": ("bool", True),
    "ent_coef": ("float", 0.01),
    "vf_coef": ("float", 0.5),
    "max_grad_norm": ("float", 0.5),
    "target_kl": ("float", None),
    "batch_size": ("int", 0),
    "minibatch_size": ("int", 0),
    "num_iterations": ("int", 0),
}
"""Flags and defaults of CleanRL's ppo.py; its exp_name is the file's name"""


def test_ppo_has_every_flag_and_default_of_cleanrl():
    fields = {field.name: (field.kind, field.default) for field in DEFAULT_ALGO_REGISTRY["ppo"].spec().fields}
    assert UPSTREAM_PPO.items() <= fields.items()
    assert fields["exp_name"] == ("str", "ppo")


def test_every_field_has_help():
    assert [field.name for field in DEFAULT_ALGO_REGISTRY["ppo"].spec().fields if not field.help] == []


def test_the_schema_says_what_the_dataclass_says():
    from dataclasses import fields

    from cleanrl_worker.algorithms.ppo import Args

    read = {field.name: field.default for field in DEFAULT_ALGO_REGISTRY["ppo"].spec().fields}
    assert read == {field.name: field.default for field in fields(Args)}


def write(tmp_path: Path, body: str) -> Path:
    source = tmp_path / "algorithm.py"
    source.write_text("import torch_is_never_imported\nclass Args:\n" + textwrap.indent(textwrap.dedent(body), "    "))
    return source


def test_optional_and_literal_types_are_read(tmp_path):
    source = write(
        tmp_path,
        '''
        kl: float | None = None
        """a
        limit"""
        name: Optional[str] = None
        agent: Literal["mlp", "minigrid"] = "mlp"
        steps: int = 1_000
        ''',
    )
    limit, name, agent, steps = fields_of(source)
    assert (limit.kind, limit.nullable, limit.help) == ("float", True, "a limit")
    assert (name.kind, name.nullable) == ("str", True)
    assert (agent.kind, agent.choices, agent.nullable) == ("str", ("mlp", "minigrid"), False)
    assert (steps.default, steps.help) == (1000, "")


@pytest.mark.parametrize("body", ["steps: int = int(1e6)", "shape: tuple[int, int] = (1, 2)"])
def test_what_cannot_be_read_without_running_is_refused(tmp_path, body):
    with pytest.raises(SpecError, match=r"algorithm\.py:4"):
        fields_of(write(tmp_path, "\n" + body))


def test_the_description_lists_every_name_and_says_what_can_run():
    spec = worker_spec()
    assert len(spec.algorithms) == 33
    missing = [algorithm.name for algorithm in spec.algorithms if algorithm.unavailable]
    assert len(missing) == 9
    assert all("_jax" in name for name in missing)
    assert "not there yet" in spec.algorithm("dqn_jax").unavailable
    json.dumps(spec.to_json())


def test_only_environments_that_can_be_made_are_listed():
    environments = worker_spec().environments
    assert "CartPole-v1" in environments
    assert "Acrobot-v1" in environments
    assert not [name for name in environments if name.startswith(("phys2d/", "tabular/", "GymV"))]


def test_ranges_are_read_from_the_annotation(tmp_path):
    source = write(
        tmp_path,
        """
        envs: Annotated[int, Range(1)] = 4
        gamma: Annotated[float, Range(0, 1)] = 0.99
        kl: Annotated[float | None, Range(maximum=2)] = None
        name: Annotated[str, "anything else"] = ""
        """,
    )
    envs, gamma, limit, name = fields_of(source)
    assert (envs.minimum, envs.maximum) == (1, None)
    assert (gamma.minimum, gamma.maximum) == (0, 1)
    assert (limit.kind, limit.nullable, limit.maximum) == ("float", True, 2)
    assert (name.kind, name.minimum) == ("str", None)
    with pytest.raises(SpecError, match="literal numbers"):
        fields_of(write(tmp_path / "..", "envs: Annotated[int, Range(one)] = 1"))


def test_what_the_form_refuses_the_algorithm_refuses(tmp_path):
    from cleanrl_worker.algorithms.ppo import Args
    from cleanrl_worker.training.args import range_problems

    for field in DEFAULT_ALGO_REGISTRY["ppo"].spec().fields:
        for limit, beyond in ((field.minimum, -1), (field.maximum, 1)):
            if limit is not None:
                value = limit + beyond
                assert field.problem_with(value if field.kind == "float" else int(value))
                assert set(range_problems(Args, {**vars(Args()), field.name: value})) == {field.name}
