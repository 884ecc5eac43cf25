"""A benchmark before it is queued: the grid, what is left out, what is wrong, and what makes two of them the same."""

from __future__ import annotations

import io
import json

import pytest
from gym_gui.cli.bench import headline_of
from gym_gui.cli.progress import live_display
from gym_gui.services.analytics.bench_plan import (
    BenchPlan,
    Setting,
    check_name,
    config_of,
    key_of,
    make_plan,
    parse_setting,
)
from gym_gui.services.analytics.published import published_return, published_scripts
from gym_gui.services.trainer.validation.train_config import validate_train_run_config
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec
from rich.console import Console

STEPS = FieldSpec("total_timesteps", "int", 500_000)
RATE = FieldSpec("learning_rate", "float", 2.5e-4, minimum=0)
PPO = AlgorithmSpec(
    "ppo",
    fields=(STEPS, RATE, FieldSpec("num_envs", "int", 4)),
    action_spaces=("discrete",),
    observation_spaces=("vector", "image"),
)
DQN = AlgorithmSpec("dqn", fields=(STEPS, RATE), action_spaces=("discrete",), observation_spaces=("vector",))
SAC = AlgorithmSpec("sac", fields=(STEPS, RATE), action_spaces=("continuous",), observation_spaces=("vector",))
ENDLESS = AlgorithmSpec("endless", fields=(RATE,))
LLM = AlgorithmSpec("llm", fields=(FieldSpec("model", "str", "smollm2"),))
GONE = AlgorithmSpec("gone", fields=(STEPS,), unavailable="it needs the set atari")
SPEC = WorkerSpec(
    name="cleanrl",
    display_name="CleanRL",
    version="1",
    capabilities=WorkerCapabilities("cleanrl"),
    module="cleanrl_worker.cli",
    algorithms=(PPO, DQN, SAC, ENDLESS, LLM, GONE),
    environments=("CartPole-v1", "Acrobot-v1", "Pendulum-v1"),
)


def plan(*algorithms: AlgorithmSpec, envs=("CartPole-v1",), seeds=(1, 2), **wishes) -> BenchPlan:
    return make_plan([(SPEC, algorithm) for algorithm in algorithms], envs, seeds, **wishes)


# ---------------------------------------------------------------- the grid


def test_every_combination_has_every_seed_and_the_first_seeds_come_first():
    found = plan(PPO, DQN, envs=("CartPole-v1", "Acrobot-v1"), total_timesteps=1000)
    assert [cell.title for cell in found.cells] == [
        f"{algo} {env} seed {seed}"
        for seed in (1, 2)
        for env in ("CartPole-v1", "Acrobot-v1")
        for algo in ("ppo", "dqn")
    ]
    assert {cell.total_timesteps for cell in found.cells} == {1000}
    assert not found.problems


def test_algorithms_that_ask_a_model_play_with_each_of_them():
    found = plan(PPO, LLM, total_timesteps=100, models=("a", "b:8b"))
    assert [cell.title for cell in found.cells[:3]] == [
        "ppo CartPole-v1 seed 1",
        "llm a CartPole-v1 seed 1",
        "llm b:8b CartPole-v1 seed 1",
    ]
    assert [cell.parameters for cell in found.cells[:3]] == [{}, {"model": "a"}, {"model": "b:8b"}]
    assert len({key_of(found.name, cell) for cell in found.cells}) == 6
    assert found.name != plan(PPO, LLM, total_timesteps=100, models=("a",)).name
    assert config_of(found, found.cells[1], cpus=1)["run_name"] == f"{found.name}-llm-a-CartPole-v1-s1"


def test_models_for_algorithms_that_ask_none_are_a_mistake():
    assert plan(PPO, models=("a",)).problems == ("--models: none of the algorithms (ppo) asks a model",)


def test_a_file_of_the_users_own_is_another_run_once_it_has_changed():
    first, second = (plan(PPO, seeds=(1,), scripts={"ppo": ("/my/ppo.py", sha256)}) for sha256 in ("a", "b"))
    config = config_of(first, first.cells[0], cpus=1)
    assert config["metadata"]["worker"]["config"]["extras"]["script_path"] == "/my/ppo.py"
    assert first.cells[0].digest != second.cells[0].digest != plan(PPO, seeds=(1,)).cells[0].digest


def test_without_a_number_of_steps_each_algorithm_trains_as_long_as_it_usually_does():
    assert {cell.total_timesteps for cell in plan(PPO).cells} == {500_000}
    assert plan(ENDLESS).problems == ("how long? endless has no usual number of steps: --total-timesteps N",)


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"envs": ("CartPole-v9",)}, "unknown environment 'CartPole-v9'; did you mean 'CartPole-v1'?"),
        ({"settings": [Setting("learning_rat", "1")]}, "no parameter 'learning_rat'; did you mean 'learning_rate'?"),
        ({"settings": [Setting("learning_rate", "-1")]}, "ppo: --learning-rate: must be at least 0, got -1.0"),
        ({"settings": [Setting("num_envs", "8", "dqn")]}, "'dqn' is none of the algorithms (ppo)"),
        ({"settings": [Setting("seed", "3")]}, "--set seed: write --seeds instead"),
        ({"seeds": range(3000)}, "3,000 runs at once are too many"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_planned(wrong, said):
    found = plan(PPO, **wrong)
    assert len(found.problems) == 1
    assert said in found.problems[0]
    assert not found.cells


def test_an_algorithm_that_cannot_run_now_says_what_it_lacks():
    assert "it needs the set atari" in plan(GONE).problems[0]


def test_a_setting_for_one_algorithm_is_for_it_alone():
    shared, own = parse_setting("learning-rate=1e-3"), parse_setting("ppo.num_envs=8")
    found = plan(PPO, DQN, settings=[shared, own], seeds=(1,))
    assert {cell.algo: cell.parameters for cell in found.cells} == {
        "ppo": {"learning_rate": 1e-3, "num_envs": 8},
        "dqn": {"learning_rate": 1e-3},
    }
    (problem,) = plan(PPO, DQN, settings=[parse_setting("num_envs=8")]).problems
    assert problem == "'dqn' has no parameter 'num_envs'; for one algorithm alone write --set ALGO.num_envs=8"


@pytest.mark.parametrize("text", ["", "learning_rate", "=3", "ppo.=3"])
def test_a_setting_has_a_name_and_a_value(text):
    with pytest.raises(ValueError, match="expected NAME=VALUE"):
        parse_setting(text)


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", "x" * 49, "ä", "a\n"])
def test_a_name_that_is_no_tag_or_folder_is_refused(name):
    with pytest.raises(ValueError, match="a benchmark's name is"):
        check_name(name)


# ---------------------------------------------------------------- the same again


def test_the_same_order_is_the_same_benchmark_and_more_seeds_add_to_it():
    first, again, more = plan(PPO, DQN), plan(PPO, DQN), plan(PPO, DQN, seeds=(1, 2, 3))
    assert first.name == again.name == more.name
    assert [key_of(first.name, cell) for cell in first.cells] == [key_of(again.name, cell) for cell in again.cells]
    assert [key_of(more.name, cell) for cell in more.cells][:4] == [key_of(first.name, cell) for cell in first.cells]
    assert first.name.startswith("ppo-dqn-CartPole-")


@pytest.mark.parametrize(
    "other", [{"total_timesteps": 7}, {"settings": [Setting("learning_rate", "1")]}, {"envs": ("Acrobot-v1",)}]
)
def test_another_order_is_another_benchmark_and_has_other_keys(other):
    first, second = plan(PPO, name="mine"), plan(PPO, name="mine", **other)
    assert not {cell.digest for cell in first.cells} & {cell.digest for cell in second.cells}
    assert plan(PPO).name != plan(PPO, **other).name


def test_a_default_name_is_a_name_whatever_the_environments_are_called():
    odd = WorkerSpec(**{**SPEC.__dict__, "environments": None})
    envs = ("ALE/Pong-v5", "my module:Odd Env/ü-v0", "x" * 256)
    found = make_plan([(odd, PPO)], envs, [1])
    assert check_name(found.name) == found.name
    assert len(found.tag) <= 64
    for cell in found.cells:
        assert len(key_of(found.name, cell)) <= 256
        assert validate_train_run_config(json.dumps(config_of(found, cell, cpus=1)), workers=lambda name: odd)


def test_a_cell_becomes_a_config_with_the_benchmarks_tag():
    found = plan(PPO, settings=[Setting("num_envs", "8")], name="mine", seeds=(3,))
    config = config_of(found, found.cells[0], cpus=2.0, gpus=1, install_missing=True)
    assert config["tags"] == ["bench:mine"]
    assert config["run_name"] == "mine-ppo-CartPole-v1-s3"
    assert config["resources"] == {"cpus": {"requested": 2.0}, "gpus": 1}
    worker = config["metadata"]["worker"]["config"]
    assert (worker["algo"], worker["env_id"], worker["seed"]) == ("ppo", "CartPole-v1", 3)
    assert worker["extras"] == {"algo_params": {"num_envs": 8}, "install_missing": True}


# ---------------------------------------------------------------- what others published


@pytest.mark.parametrize(
    ("algo", "env_id", "name", "same"),
    [
        ("ppo", "CartPole-v1", "CartPole-v1", True),
        ("ppo_atari", "PongNoFrameskip-v4", "Pong", True),
        ("ppo_atari_envpool", "Pong-v5", "Pong", True),
        ("dqn_atari", "ALE/BeamRider-v5", "BeamRider", True),
        ("td3_continuous_action", "HalfCheetah-v5", "HalfCheetah-v4", False),
        ("ppo_procgen", "starpilot", "starpilot", True),
    ],
)
def test_a_published_return_is_found_under_the_names_an_environment_has(algo, env_id, name, same):
    found = published_return(algo, env_id)
    assert (found.env_id, found.is_same_environment) == (name, same)
    assert found.source.startswith("https://docs.cleanrl.dev/")


def test_unpublished_results_are_not_invented():
    assert published_return("ppo", "Pendulum-v1") is None
    assert published_return("my_algorithm", "CartPole-v1") is None


def test_a_shorter_training_or_another_version_is_not_comparable():
    ppo = published_return("ppo", "CartPole-v1")
    assert (ppo.mean, ppo.std, ppo.steps, ppo.seeds) == (490.04, 6.12, 500_000, 3)
    assert ppo.is_comparable(499_712)  # whole batches
    assert not ppo.is_comparable(50_000)
    assert not published_return("td3_continuous_action", "HalfCheetah-v5").is_comparable(10_000_000)


def test_reached_is_two_deviations_below_or_a_twentieth_of_the_way_from_acting_at_random():
    ppo = published_return("ppo", "CartPole-v1")
    assert ppo.least() == pytest.approx(490.04 - 12.24)
    assert ppo.least(21.9) == pytest.approx(490.04 - 0.05 * (490.04 - 21.9))


def test_every_published_figure_has_its_steps_and_its_source():
    scripts = published_scripts()
    assert len(scripts) == 25
    for script in scripts.values():
        assert script["total_timesteps"] >= 500_000
        assert all(each["std"] >= 0 for each in script["returns"].values())


# ---------------------------------------------------------------- while it goes on


def test_a_line_above_the_runs_says_how_far_the_whole_is():
    def run(status: str, outcome: str = "") -> pb.Run:
        return pb.Run(run_id=status + outcome, status=status, outcome=outcome, algo="ppo", env_id="CartPole-v1")

    runs = [run("TERM", "completed"), run("TERM", "failed"), run("EXEC"), run("INIT")]
    said = headline_of("mine", runs)
    assert said == "bench mine: 2 of 4 done, 1 failed, 1 running"
    console = Console(width=100, height=30, file=io.StringIO())
    console.print(live_display(runs, console, headline=said))
    lines = console.file.getvalue().splitlines()
    assert lines[0].rstrip() == said
    assert len(lines) == 2 + len(runs)
