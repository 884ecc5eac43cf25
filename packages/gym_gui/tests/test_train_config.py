"""`validate_train_run_config`: what people write is accepted, all problems are reported at once."""

from __future__ import annotations

import copy
import json
import logging
import time
from pathlib import PurePosixPath

import pytest
from gym_gui.services.trainer.errors import InvalidConfig, UnknownWorker
from gym_gui.services.trainer.validation.json_document import MAX_BYTES
from gym_gui.services.trainer.validation.train_config import (
    expand,
    identity_of,
    read_config_text,
    validate_train_run_config,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.errors import SpecError
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

# As the requirements write it, byte for byte.
EXAMPLE = """{
   "run_name": "cleanrl-ppo-cartpole",
   "resources": {
      "gpus": { "requested": 0, "mandatory": 0 },
      "cpus": { "requested": 2 }
   },
   "metadata": {
      "worker": {
         "type": "cleanrl",
         "module": "cleanrl_worker.cli",
         "config": {
            "run_id": "${RUN_ID}",
            "algo": "ppo",
            "env_id": "CartPole-v1",
            "seed": 42,
            "total_timesteps": 50000,
            "extras": {
               "track_wandb": false,
               "tensorboard_dir": "${VAR_TENSORBOARD_DIR}/${RUN_ID}",
               "requirements": ["base"],
               "notes": "Day20 smoke test"
            }
         }
      }
   }
}
"""
CONFIG = "metadata.worker.config"

SPEC = WorkerSpec(
    name="cleanrl",
    display_name="CleanRL Worker",
    version="1",
    capabilities=WorkerCapabilities("cleanrl"),
    module="cleanrl_worker.cli",
    algorithms=(
        AlgorithmSpec(
            "ppo",
            fields=(
                FieldSpec("learning_rate", "float", 2.5e-4, minimum=0),
                FieldSpec("num_envs", "int", 4, minimum=1),
                FieldSpec("anneal_lr", "bool", True),
                FieldSpec("track", "bool", False),
                FieldSpec("api_key", "str", ""),
                FieldSpec("seed", "int", 1),
                FieldSpec("total_timesteps", "int", 500_000),
            ),
        ),
        AlgorithmSpec("dqn", unavailable="install it first"),
        AlgorithmSpec("script", open_flags=True),
    ),
    environments=("CartPole-v1", "Acrobot-v1"),
)


def workers(name):
    if name == "broken":
        raise SpecError("it prints garbage")
    if name != "cleanrl":
        raise UnknownWorker(name, "cleanrl")
    return SPEC


def example(**changes):
    """The example with values at dotted paths changed; `...` removes one."""
    document = json.loads(EXAMPLE)
    for path, value in changes.items():
        node = document
        *parents, last = path.split("__")
        for key in parents:
            node = node.setdefault(key, {})
        if value is ...:
            node.pop(last, None)
        else:
            node[last] = value
    return document


def worker(**changes):
    return example(**{f"metadata__worker__config__{path}": value for path, value in changes.items()})


def problems(document, **kwargs):
    with pytest.raises(InvalidConfig) as caught:
        validate_train_run_config(document, **{"workers": workers, **kwargs})
    return {problem.path: problem for problem in caught.value.problems}


def validated(document):
    return validate_train_run_config(document, workers=workers)


# ---------------------------------------------------------------- what is accepted


@pytest.mark.parametrize("catalog", [None, workers])
def test_the_example_of_the_requirements_is_accepted_as_it_is_written(catalog):
    config = validate_train_run_config(EXAMPLE, workers=catalog)
    assert config.run_name == "cleanrl-ppo-cartpole"
    assert config.resources.cpus.requested == 2
    assert config.to_json()["artifacts"] == {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}}
    assert validated(config.to_json()) == config  # the canonical form is accepted, and is its own canonical form


def test_older_flat_numbers_of_cpus_and_gpus_are_accepted():
    config = validated(example(resources={"cpus": 3, "gpus": 1}))
    assert config.resources.cpus.requested == 3
    assert (config.resources.gpus.requested, config.resources.gpus.mandatory) == (1, 1)


def test_placeholders_become_the_run_and_its_folder(tmp_path):
    run_id, home = new_run_id(), Home(tmp_path)
    config = expand(validated(EXAMPLE), run_id, home)
    identity = identity_of(config)
    assert config.metadata.worker.config["run_id"] == run_id
    assert identity.extras["tensorboard_dir"] == f"tensorboard/{run_id}"
    folder = home.run_folder(run_id).root
    assert (folder / identity.extras["tensorboard_dir"]).is_relative_to(home.run_folder(run_id).tensorboard)
    assert "${" not in json.dumps(config.to_json())


def test_the_identity_of_a_run_is_read_from_its_config():
    identity = identity_of(validated(worker(worker_id="w7")))
    assert (identity.algo, identity.env_id, identity.seed) == ("ppo", "CartPole-v1", 42)
    assert (identity.total_timesteps, identity.worker_id, identity.name) == (50000, "w7", "cleanrl-ppo-cartpole")


@pytest.mark.parametrize(
    ("extras", "tensorboard", "wandb"),
    [
        ({}, True, False),
        ({"track_wandb": True}, True, True),
        ({"algo_params": {"track": True}}, True, True),
        ({"tensorboard": False}, False, False),
        ({"tensorboard_dir": None}, False, False),
        ({"tensorboard": True, "wandb": True}, True, True),
    ],
)
def test_missing_artifacts_are_derived_from_the_extras(extras, tensorboard, wandb):
    config = validated(worker(extras=extras))
    assert (config.artifacts.tensorboard.enabled, config.artifacts.wandb.enabled) == (tensorboard, wandb)
    left = config.metadata.worker.config["extras"]
    assert "tensorboard" not in left
    assert left.get("track_wandb", False) is wandb  # the worker sees only its own part
    assert (left.get("tensorboard_dir", "tensorboard") != "") is tensorboard


def test_given_artifacts_reach_the_worker():
    config = validated(
        example(artifacts={"wandb": {"enabled": True}}, metadata__worker__config__extras__track_wandb=...)
    )
    assert config.artifacts.tensorboard.enabled
    assert config.metadata.worker.config["extras"]["track_wandb"] is True


@pytest.mark.parametrize("said", ["", "tb", ...])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_switch_for_event_files_reaches_the_worker(said, enabled):
    artifacts = {"tensorboard": {"enabled": enabled}}
    config = validated(example(artifacts=artifacts, metadata__worker__config__extras__tensorboard_dir=said))
    left = config.metadata.worker.config["extras"].get("tensorboard_dir", "its own")
    assert left == ("" if not enabled else "tb" if said == "tb" else "its own")


def test_a_run_without_a_name_gets_one_with_the_time():
    config = validate_train_run_config(example(run_name=...), workers=workers, clock=lambda: 1_700_000_000)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(1_700_000_000))
    assert config.run_name == f"cleanrl-ppo-{stamp}"


def test_missing_steps_and_seed_are_those_of_the_algorithm():
    config = validated(worker(total_timesteps=..., seed=...))
    assert identity_of(config).total_timesteps == 500_000
    assert identity_of(config).seed == 1
    assert identity_of(validated(worker(seed=None))).seed is None
    assert f"{CONFIG}.total_timesteps" in problems(worker(algo="script", total_timesteps=...))


def test_the_module_is_filled_in_and_tags_are_reported_once():
    config = validated(example(metadata__worker__module=..., tags=["a", "b", "a"]))
    assert config.metadata.worker.module == "cleanrl_worker.cli"
    assert config.tags == ("a", "b")


def test_parameters_are_accepted_among_the_extras_and_in_algo_params():
    validated(worker(extras={"learning_rate": 1e-3, "anneal_lr": False, "algo_params": {"num_envs": 8, "num-envs": 8}}))
    validated(worker(algo="script", extras={"whatever": [1, 2]}))
    validated(worker(extras={"api_key": {"secret_ref": "api_key"}, "wandb_api_key": {"secret_ref": "x"}}))
    validated(worker(env_id="my_package:My-v0"))


def test_a_mapping_and_its_text_give_the_same_config():
    assert validated(EXAMPLE) == validated(json.loads(EXAMPLE)) == validated(read_config_text(EXAMPLE))


# ---------------------------------------------------------------- what is refused


def test_everything_wrong_is_reported_at_once_with_path_and_nearest_name():
    document = example(
        resource={},
        run_name="",
        resources={"cpus": -1, "gpu": 1, "gpus": {"requested": 1, "mandatory": 2}, "memory_mb": 1.5},
        scheduling={"priority": "high", "retrys": 1},
        tags=[3],
        metadata__worker__modul="x",
        metadata__worker__module="os.system",
        metadata__worker__config__algo="pppo",
        metadata__worker__config__env_id="CartPol-v1",
        metadata__worker__config__sed=3,
        metadata__worker__config__extras__tensorboard_dir="/etc",
    )
    found = problems(document)
    assert {path: problem.suggestion for path, problem in found.items()} == {
        "resource": "resources",
        "run_name": None,
        "resources.cpus.requested": None,
        "resources.gpu": "gpus",
        "resources.gpus": None,
        "resources.memory_mb": None,
        "scheduling.priority": None,
        "scheduling.retrys": "retries",
        "tags[0]": None,
        "metadata.worker.modul": "module",
        "metadata.worker.module": "cleanrl_worker.cli",
        f"{CONFIG}.algo": "ppo",
        f"{CONFIG}.env_id": "CartPole-v1",
        f"{CONFIG}.sed": "seed",
        f"{CONFIG}.extras.tensorboard_dir": None,
    }


@pytest.mark.parametrize("key", ["notes", "tensorboard_dir", "wandb_project"])
def test_strays_under_artifacts_are_refused_with_log705(key, caplog):
    with caplog.at_level(logging.INFO):
        found = problems(example(artifacts={"tensorboard": {"enabled": True}, key: "x"}))
    assert found[f"artifacts.{key}"].message.startswith("LOG705: ")
    assert any(record.log_code == 705 for record in caplog.records)
    if key == "notes":
        assert found["artifacts.notes"].suggestion == f"{CONFIG}.extras.notes"


def test_artifacts_that_contradict_the_extras_are_refused():
    assert "LOG705" in problems(example(artifacts={"wandb": {"enabled": True}}))["artifacts.wandb.enabled"].message


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"resources__cpus": 1e9}, "resources.cpus.requested"),
        ({"resources__cpus": "2"}, "resources.cpus"),
        ({"resources__cpus": True}, "resources.cpus"),
        ({"resources__cpus__requested": "2"}, "resources.cpus.requested"),
        ({"resources__gpus": 2.5}, "resources.gpus"),
        ({"resources__gpus": -1}, "resources.gpus.requested"),
        ({"resources__memory_mb": 0}, "resources.memory_mb"),
        ({"resources__memory_mb": 10**12}, "resources.memory_mb"),
        ({"resources__max_wallclock_minutes": 0}, "resources.max_wallclock_minutes"),
        ({"resources__max_wallclock_minutes": "5"}, "resources.max_wallclock_minutes"),
        ({"resources": None}, "resources"),
        ({"scheduling__silence_s": 0}, "scheduling.silence_s"),
        ({"artifacts__wandb": True}, "artifacts.wandb"),
        ({"artifacts__wandb__enabled": 1}, "artifacts.wandb.enabled"),
        ({"tags": "fast"}, "tags"),
        ({"tags": ["a\x1b[31m"]}, "tags[0]"),
        ({"run_name": "two\nlines"}, "run_name"),
        ({"metadata": ...}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"metadata__worker__type": 3}, "metadata.worker.type"),
        ({"metadata__worker__config": ...}, "metadata.worker.config"),
        ({"metadata__worker__config": []}, "metadata.worker.config"),
    ],
)
def test_a_wrong_value_is_refused_where_it_stands(changes, path):
    assert path in problems(example(**changes))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"algo": ...}, "algo"),
        ({"algo": "dqn"}, "algo"),
        ({"algo": ["ppo"]}, "algo"),
        ({"env_id": ""}, "env_id"),
        ({"env_id": "x" * 300}, "env_id"),
        ({"total_timesteps": 0}, "total_timesteps"),
        ({"total_timesteps": 1e5}, "total_timesteps"),
        ({"total_timesteps": True}, "total_timesteps"),
        ({"total_timesteps": None}, "total_timesteps"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"run_id": "../../etc"}, "run_id"),
        ({"run_id": 5}, "run_id"),
        ({"worker_id": 5}, "worker_id"),
        ({"extras": []}, "extras"),
        ({"learning_rate": 1e-3}, "learning_rate"),
        ({"extras__num_env": 4}, "extras.num_env"),
        ({"extras__num_envs": 0}, "extras.num_envs"),
        ({"extras__num_envs": 2.5}, "extras.num_envs"),
        ({"extras__algo_params": {"learning_rte": 1}}, "extras.algo_params.learning_rte"),
        ({"extras__algo_params": {"seed": 7}}, "extras.algo_params.seed"),
        ({"extras__algo_params": 3}, "extras.algo_params"),
        ({"extras__track_wandb": "no"}, "extras.track_wandb"),
        ({"extras__requirements": "base"}, "extras.requirements"),
        ({"extras__eval_episodes": -3}, "extras.eval_episodes"),
        ({"extras__checkpoint_dir": "elsewhere"}, "extras.checkpoint_dir"),
        ({"extras__fastlane_slot": -1}, "extras.fastlane_slot"),
        ({"extras__fastlane_interval_ms": 0}, "extras.fastlane_interval_ms"),
        ({"extras__fastlane_max_dim": "320"}, "extras.fastlane_max_dim"),
        ({"extras__fastlane_enabled": 1}, "extras.fastlane_enabled"),
        ({"extras__tensorboard_dir": "${VAR_TENSORBOARD_DIR}/../../x"}, "extras.tensorboard_dir"),
        ({"extras__tensorboard_dir": "~/tb"}, "extras.tensorboard_dir"),
        ({"extras__notes": "${HOME}"}, "extras.notes"),
        ({"extras__notes": "${RUN_ID"}, "extras.notes"),
        ({"extras__env_kwargs": {"path": "${RUNID}"}}, "extras.env_kwargs.path"),
        ({"extras__notes": "a\0b"}, "extras.notes"),
        ({"extras__notes": "\ud800"}, "extras.notes"),
    ],
)
def test_a_wrong_worker_config_is_refused_where_it_stands(changes, key):
    assert f"{CONFIG}.{key}" in problems(worker(**changes))


def test_suggestions_name_the_right_place_of_a_parameter():
    drawn = {"extras__fastlane_video_mode": "gird", "extras__fastlane_max_dims": 320}
    found = problems(worker(num_envs=4, track_wandb=True, extras__num_env=4, extras__notes="${RUNID}", **drawn))
    assert found[f"{CONFIG}.extras.fastlane_video_mode"].suggestion == "grid"
    assert found[f"{CONFIG}.extras.fastlane_max_dims"].suggestion == "fastlane_max_dim"
    assert found[f"{CONFIG}.num_envs"].suggestion == "extras.algo_params.num_envs"
    assert found[f"{CONFIG}.track_wandb"].suggestion == "extras.track_wandb"
    assert found[f"{CONFIG}.extras.num_env"].suggestion == "num_envs"
    assert found[f"{CONFIG}.extras.notes"].suggestion == "${RUN_ID}"


@pytest.mark.parametrize("name", ["cleanlr", "broken"])
def test_an_unknown_or_broken_worker_is_refused(name):
    found = problems(example(metadata__worker__type=name), worker_names=["cleanrl", "random"])
    assert found["metadata.worker.type"].suggestion == ("cleanrl" if name == "cleanlr" else None)


def test_without_a_catalog_the_names_of_workers_are_enough():
    found = problems(example(metadata__worker__type="randm"), workers=None, worker_names=["cleanrl", "random"])
    assert found["metadata.worker.type"].suggestion == "random"


def test_another_runs_id_is_refused_when_the_id_is_known(tmp_path):
    mine, other = new_run_id(), new_run_id()
    config = validated(worker(run_id=mine))
    assert expand(config, mine, Home(tmp_path)).metadata.worker.config["run_id"] == mine
    with pytest.raises(InvalidConfig, match="run_id"):
        expand(config, other, Home(tmp_path))


def test_a_problem_never_reports_a_secret():
    canary = "canary-0123456789"
    document = worker(extras={"wandb_api_key": canary, "api_key": 5, "num_envs": f"x{canary}"}, seed=canary)
    with pytest.raises(InvalidConfig) as caught:
        validated(document)
    assert canary not in str(caught.value)


# ---------------------------------------------------------------- text that is no config


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "{",
        "null",
        "[]",
        "5",
        '"x"',
        "NaN",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        "{} {}",
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        '{"a":' * 40 + "1" + "}" * 40,
        '{"a": ' + "1" * 5_000 + "}",
        '{"a": 99999999999999999999}',
        '{"a": "\\ud800"}',
        '{"\\u0000": 1}',
        json.dumps({"run_name": "x" * MAX_BYTES}),
        json.dumps({f"key{n}": n for n in range(1000)}),
    ],
)
def test_text_that_is_no_config_is_refused(text):
    with pytest.raises(InvalidConfig):
        validated(text)


def test_a_huge_config_is_refused_quickly_and_briefly():
    many = {f"learning_rat{n}": "x" * 1000 for n in range(490)}
    with pytest.raises(InvalidConfig) as caught:
        validated(worker(extras=many))
    assert len(caught.value.problems) == 101
    assert len(str(caught.value)) < 100_000


def test_the_example_cut_at_each_byte_is_never_accepted():
    whole = EXAMPLE.rstrip()
    for cut in range(len(whole)):
        with pytest.raises(InvalidConfig):
            validated(whole[:cut])


def test_a_mapping_with_what_json_cannot_say_is_refused():
    assert f"{CONFIG}.extras.notes" in problems(worker(extras={"notes": {1, 2}}))
    assert "" in problems({1: 2})
    assert f"{CONFIG}.extras.x" in problems(worker(extras={"x": float("nan")}))


# ---------------------------------------------------------------- whatever comes

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
KNOWN_KEYS = [
    "run_name",
    "resources",
    "cpus",
    "gpus",
    "requested",
    "mandatory",
    "memory_mb",
    "scheduling",
    "priority",
    "tags",
    "artifacts",
    "tensorboard",
    "wandb",
    "enabled",
    "metadata",
    "worker",
    "type",
    "module",
    "config",
    "run_id",
    "algo",
    "env_id",
    "seed",
    "total_timesteps",
    "extras",
    "algo_params",
    "notes",
    "tensorboard_dir",
    "track_wandb",
    "learning_rate",
    "num_envs",
    "secret_ref",
    "wandb_api_key",
]
KEYS = st.sampled_from(KNOWN_KEYS) | st.text(max_size=6)
VALUES = st.sampled_from(["cleanrl", "ppo", "CartPole-v1", "${RUN_ID}", "${X}", "../..", "/", 1, -1])
JSON = st.recursive(
    SCALARS | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_whatever_json_is_submitted_nothing_but_problems_is_raised(document):
    for given_document in ({"metadata": document}, json.dumps(document), worker(extras=document)):
        try:
            validated(given_document)
        except InvalidConfig as error:
            assert error.problems  # noqa: PT017 -- right or refused, both are fine here


@st.composite
def changed_examples(draw):
    """The example with one value anywhere replaced, removed or added."""
    document = json.loads(EXAMPLE)
    node = document
    while True:
        key = draw(st.sampled_from(sorted(node)))
        if not isinstance(node[key], dict) or draw(st.booleans()):
            break
        node = node[key]
    action = draw(st.sampled_from(["replace", "remove", "add"]))
    if action == "remove":
        del node[key]
    else:
        node[key if action == "replace" else draw(KEYS)] = draw(JSON)
    return document


@settings(max_examples=200)
@given(changed_examples())
def test_an_example_with_one_change_is_right_or_has_problems_and_stays_in_its_folder(document):
    before = copy.deepcopy(document)
    try:
        config = validated(document)
    except InvalidConfig as error:
        assert error.problems  # noqa: PT017 -- right or refused, both are fine here
        return
    finally:
        assert repr(document) == repr(before)
    home, run_id = Home(PurePosixPath("/home")), "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    try:
        expanded = expand(config, run_id, home)
    except InvalidConfig:
        assert config.metadata.worker.config["run_id"] != "${RUN_ID}"
        return
    assert validated(expanded.to_json()).artifacts is not None
    folder = identity_of(expanded).extras.get("tensorboard_dir")
    if folder:
        assert ".." not in PurePosixPath(folder).parts
        assert not PurePosixPath(folder).is_absolute()


def test_a_worker_that_only_has_others_work_reserves_no_cpu_and_is_started_again():
    spec = WorkerSpec(
        "sweep",
        "Sweep",
        "1",
        WorkerCapabilities("sweep", submits_runs=True),
        "sweep_worker.cli",
        algorithms=(AlgorithmSpec("sweep", open_flags=True),),
    )
    worker = {"type": "sweep", "config": {"algo": "sweep", "env_id": "E", "total_timesteps": 5}}
    config = validate_train_run_config({"metadata": {"worker": worker}}, workers=lambda name: spec)
    assert (config.resources.cpus.requested, config.scheduling.retries) == (0, 20)
    asked = {"metadata": {"worker": worker}, "resources": {"cpus": 1}, "scheduling": {"retries": 0}}
    config = validate_train_run_config(asked, workers=lambda name: spec)
    assert (config.resources.cpus.requested, config.scheduling.retries) == (1, 0), "by default"
