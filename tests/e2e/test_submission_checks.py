"""Nothing known to fail is queued: what a dry run finds is found at submission, by every client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cleanrl_worker.cli
import psutil
import pytest
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from gym_gui.cli import main
from gym_gui.services.trainer.checking import CheckProcesses
from gym_gui.services.trainer.errors import InvalidConfig, NotPossibleNow
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_extras.testing import lend_sets
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until
from mosaic_wire.worker_spec import WorkerSpec

from tests.e2e.conftest import Mosaic


def config(algo: str = "ppo", env_id: str = "CartPole-v1", *, extras: Any = None, **parameters: Any) -> dict[str, Any]:
    worker = {"algo": algo, "env_id": env_id, "extras": {"algo_params": parameters, **(extras or {})}}
    return {"metadata": {"worker": {"type": "cleanrl", "config": worker}}}


def sweep(trial: dict[str, Any], ranges: dict[str, Any]) -> dict[str, Any]:
    trial["metadata"]["worker"]["config"]["total_timesteps"] = 50_000
    settings = {"parameters": ranges, "trial": trial}
    worker = {"algo": "sweep", "env_id": "CartPole-v1", "total_timesteps": 2, "extras": {"algo_params": settings}}
    return {"metadata": {"worker": {"type": "sweep", "config": worker}}}


def refusal(daemon: RunningDaemon, document: dict[str, Any]) -> InvalidConfig:
    """Submit what must be refused; nothing of it is kept."""
    before = daemon.client.list(include_archived=True).matching, set(daemon.home.configs.glob("*"))
    with pytest.raises(InvalidConfig) as refused:
        daemon.client.submit(document)
    assert (daemon.client.list(include_archived=True).matching, set(daemon.home.configs.glob("*"))) == before
    return refused.value


def checker_of(daemon: RunningDaemon) -> psutil.Process:
    children = psutil.Process(daemon.pid).children()
    (found,) = (child for child in children if child.cmdline()[-2:] == ["cleanrl_worker.cli", "--check"])
    return found


ENDPOINT = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")

WRONG: list[tuple[dict[str, Any], str, str]] = [
    (config(num_minibatches=3), ".algo_params.num_minibatches", "--num-minibatches 3 does not divide the batch"),
    (config("dqn", "Pendulum-v1"), ".config.env_id", "dqn needs discrete actions; those of Pendulum-v1 are Box"),
    (config(env_kwargs="slippery"), ".algo_params.env_kwargs", "--env-kwargs is not JSON"),
    (config(extras={"env_kwargs": {"no_such": 1}}), ".config.env_id", "no_such"),
    (
        config("ppo_atari", "ALE/Pong-v5"),
        ".extras.install_missing",
        "Install: mosaic extras install atari (about 165 MB), or add --install-missing",
    ),
    (config(capture_video=True), ".extras.install_missing", "mosaic extras install video (about 135 MB)"),
    (config("dqn", buffer_size=10**12), "memory", "is all that this machine has; lower --buffer-size"),
]


@pytest.mark.parametrize(("document", "path", "sentence"), WRONG, ids=[path for _, path, _ in WRONG])
def test_what_a_dry_run_finds_is_refused_at_submission(
    shared_daemon: RunningDaemon, document: dict[str, Any], path: str, sentence: str
) -> None:
    (problem,) = refusal(shared_daemon, document).problems
    assert problem.path.endswith(path)
    assert sentence in problem.message


def test_everything_that_is_wrong_is_reported_at_once(shared_daemon: RunningDaemon) -> None:
    document = config("dqn", "Pendulum-v1", eval_freq=10) | {
        "resources": {"cpus": 4096, "gpus": 64, "memory_mb": 2**30}
    }
    paths = [problem.path.rpartition(".")[2] for problem in refusal(shared_daemon, document).problems]
    assert sorted(paths) == ["cpus", "env_id", "eval_freq", "gpus", "memory_mb"]


def test_the_command_prints_the_sentence_once_and_ends_with_2(mosaic: Mosaic) -> None:
    code, out, err = mosaic("train", "ppo", "CartPole-v1", "--num-minibatches", "3")
    assert (code, out) == (2, "")
    assert err.count("--num-minibatches 3 does not divide the batch") == 1
    code, _, err = mosaic("train", "ppo", "CartPole-v1", "--cpus", "4096", "--seeds", "1-3")
    assert code == 2
    assert err.count("needs 4096 CPUs, this machine has") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("llm", "--describer", "/no/such.py:see", *ENDPOINT),
            "--describer: /no/such.py:see: there is no file /no/such.py",
        ),
        (("llm", "--base-url", "host:1/v1", "--model", "m"), "--base-url: must begin with http:// or https://"),
        (("llm", "--model", "good"), "--model: 'good' is served by an endpoint: name it with --base-url"),
        (("llm", "--max-cost", "1", *ENDPOINT), "--max-cost: needs the prices of tokens"),
        (("llm", "--api-key", "short", *ENDPOINT), "--api-key: too ordinary for a secret"),
        (("spade_bdi", "--env-kwargs", "foo=3"), "--env-kwargs: FrozenLake-v1 cannot be made with these arguments"),
        (("spade_bdi", "--env-kwargs", "is_slippery=nein"), "--env-kwargs: is_slippery is true or false, not 'nein'"),
        (("ppo", "--env-kwargs", "is_slippery=nein"), "--env-kwargs of FrozenLake-v1: is_slippery is true or false"),
        (("spade_bdi", "--behaviour-path", "{folder}/idle.asl"), "--behaviour-path: idle.asl: no plan for +!act"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_would_fail_at_its_start_is_refused_with_the_name_of_its_flag(
    mosaic: Mosaic, shared_daemon: RunningDaemon, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    lend_sets(shared_daemon.home, "agentspeak")
    (tmp_path / "idle.asl").write_text("+!rest <- .act(1).")
    algo, *flags = (argument.format(folder=tmp_path) for argument in arguments)
    queued = shared_daemon.client.list(include_archived=True).matching
    code, out, err = mosaic("train", algo, "FrozenLake-v1", *flags)
    assert (code, out) == (2, "")
    assert err.count(sentence) == 1
    assert "mosaic extras install" not in err
    assert shared_daemon.client.list(include_archived=True).matching == queued


def test_a_training_that_will_learn_nothing_is_queued_with_a_note_and_reports_it_in_the_end(
    shared_daemon: RunningDaemon, mosaic: Mosaic
) -> None:
    code, out, err = mosaic("train", "dqn", "CartPole-v1", "--total-timesteps", "200", "--detach")
    assert code == 0
    assert err.count("note: --learning-starts 10000 is not reached in 200 steps: nothing will be learned") == 1
    ended = shared_daemon.wait_for(out.strip(), timeout_s=120)
    assert json.loads(ended.result_json)["never_updated"] is True


def test_an_evaluation_with_a_video_is_refused_without_its_set(mosaic: Mosaic) -> None:
    code, _, err = mosaic("eval", "--random", "CartPole-v1", "--video", "-d")
    assert code == 2
    assert "mosaic extras install video" in err


def test_environment_keywords_may_be_written_as_pairs(shared_daemon: RunningDaemon) -> None:
    document = config(env_id="FrozenLake-v1", env_kwargs="is_slippery=False, map_name=8x8")
    run = shared_daemon.client.submit(document).run
    assert shared_daemon.client.cancel(run.run_id).algo == "ppo"
    shared_daemon.wait_for(run.run_id)
    (problem,) = refusal(shared_daemon, config(env_id="FrozenLake-v1", env_kwargs="slippery=false")).problems
    assert "slippery" in problem.message


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("typed", "env_id", "meant"),
    [
        ("ppo", "Pendulum-v1", "ppo_continuous_action"),
        ("sac", "Pendulum-v1", "sac_continuous_action"),
        ("ppo", "CartPole-v1", "ppo"),
    ],
)
def test_a_name_means_the_algorithm_that_fits(
    mosaic: Mosaic, shared_daemon: RunningDaemon, typed, env_id, meant
) -> None:
    code, out, err = mosaic("train", typed, env_id, "-d")
    assert code == 0
    run = shared_daemon.client.cancel(out.strip())
    assert run.algo == meant
    assert (f"{typed} in {env_id} means {meant}" in err) is (typed != meant)
    default = next(f.default for f in DEFAULT_ALGO_REGISTRY[meant].spec().fields if f.name == "total_timesteps")
    assert run.total == default


def test_a_short_name_that_fits_nothing_says_why(mosaic: Mosaic) -> None:
    code, _, err = mosaic("train", "sac", "CartPole-v1")
    assert code == 2
    assert "sac_continuous_action needs continuous actions; those of CartPole-v1 are Discrete(2)" in err
    code, _, err = mosaic("train", "rainbow", "ALE/Pong-v5")
    assert code == 2
    assert "mosaic extras install atari" in err


def test_a_name_is_clear_before_its_set_is_installed(mosaic: Mosaic) -> None:
    code, _, err = mosaic("train", "ppo", "HalfCheetah-v5")
    assert code == 2
    assert "mosaic extras install mujoco" in err
    assert "needs discrete" not in err
    answer = cleanrl_worker.cli.check_document(
        {"algo": "ppo", "env_id": "HalfCheetah-v5", "total_timesteps": 10**6, "extras": {"install_missing": True}}
    )
    assert answer.fits is False
    assert "ppo needs discrete actions; those of HalfCheetah-v5 are continuous" in answer.problems[0].message


def test_commands_have_the_names_people_try(mosaic: Mosaic, shared_daemon: RunningDaemon) -> None:
    for word in ("ls", "list"):
        assert mosaic(word, "--quiet")[:2] == mosaic("runs", "--quiet")[:2]
    for word in ("stop", "kill"):
        run = shared_daemon.submit(timesteps=10**6)
        assert mosaic(word, run.run_id)[0] == 0
        assert shared_daemon.wait_for(run.run_id).outcome == "cancelled"
    assert "kill" not in mosaic("--help")[1]


# ---------------------------------------------------------------- algos --env


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "ALE/Pong-v5", "HalfCheetah-v5"])
def test_the_list_of_algorithms_is_what_dry_runs_accept(mosaic: Mosaic, capsys: Any, env_id: str) -> None:
    accepted = set()
    for entry in DEFAULT_ALGO_REGISTRY.values():
        total = next((str(f.default) for f in entry.spec().fields if f.name == "total_timesteps"), "1")
        text = ["--algo", entry.name, "--env-id", env_id, "--total-timesteps", total, "--dry-run"]
        if cleanrl_worker.cli.main(text) == 0:
            accepted.add(entry.name)
    capsys.readouterr()
    code, out, err = mosaic("algos", "--env", env_id, "--worker", "cleanrl")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == accepted
    if not accepted:
        assert "mosaic extras install" in err


INSTALLED_HERE = [("atari", "ALE/Pong-v5", "ppo_atari"), ("minigrid", "MiniGrid-Empty-5x5-v0", "ppo")]
INSTALLED_FIRST = [
    ("minigrid", "BabyAI-GoToRedBallGrey-v0", "ppo"),
    ("mujoco", "HalfCheetah-v5", "td3_continuous_action"),
    ("box2d", "LunarLander-v3", "dqn"),
    ("envpool", "Breakout-v5", "ppo_atari_envpool"),
    ("procgen", "starpilot", "ppo_procgen"),
    ("pettingzoo", "pong_v3", "ppo_pettingzoo_ma_atari"),
    ("dm_control", "dm_control/cartpole-balance-v0", "sac_continuous_action"),
]


@pytest.mark.parametrize(
    ("requirement_set", "env_id", "some"),
    [*INSTALLED_HERE, *(pytest.param(*each, marks=pytest.mark.slow) for each in INSTALLED_FIRST)],
)
def test_the_list_is_exact_where_a_set_is_installed(
    home: Home, capsys: Any, requirement_set: str, env_id: str, some: str
) -> None:
    home.create()
    lend_sets(home, requirement_set)
    accepted = set()
    for entry in DEFAULT_ALGO_REGISTRY.values():
        total = next((f.default for f in entry.spec().fields if f.name == "total_timesteps"), 1)
        document = {"algo": entry.name, "env_id": env_id, "total_timesteps": total}
        if not cleanrl_worker.cli.check_document(document).problems:
            accepted.add(entry.name)
    assert some in accepted
    with pytest.raises(SystemExit):
        main(["algos", "--env", env_id, "--worker", "cleanrl"])
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == accepted


def test_ppo_on_an_atari_game_is_ppo_atari(daemon: RunningDaemon) -> None:
    lend_sets(daemon.home, "atari")
    run = daemon.client.submit(config("ppo", "ALE/Pong-v5")).run
    daemon.client.cancel(run.run_id)
    assert run.algo == "ppo_atari"
    assert daemon.wait_for(run.run_id).outcome == "cancelled"


# ---------------------------------------------------------------- sweeps


def test_a_sweep_whose_trials_cannot_run_is_refused(shared_daemon: RunningDaemon) -> None:
    ranges = {"learning_rate": {"kind": "float", "low": 1e-5, "high": 1e-2, "log": True}}
    (problem,) = refusal(shared_daemon, sweep(config("dqn", "Pendulum-v1"), ranges)).problems
    assert problem.path.endswith(".trial.metadata.worker.config.env_id")
    assert "dqn needs discrete actions" in problem.message


def test_a_rule_about_a_parameter_that_varies_does_not_refuse_a_sweep(shared_daemon: RunningDaemon) -> None:
    ranges = {"num_minibatches": {"kind": "categorical", "choices": [3, 4]}}
    run = shared_daemon.client.submit(sweep(config(), ranges)).run
    shared_daemon.client.cancel(run.run_id)
    shared_daemon.wait_for(run.run_id)


# ---------------------------------------------------------------- resuming


def test_a_completed_run_is_extended_and_not_resumed(shared_daemon: RunningDaemon) -> None:
    """Whole batches end short of the total: a resumed run would train nothing."""
    document = config(num_envs=1, num_steps=64, num_minibatches=1, update_epochs=1)
    document["metadata"]["worker"]["config"]["total_timesteps"] = 100
    run = shared_daemon.wait_for(shared_daemon.client.submit(document).run.run_id, timeout_s=180)
    assert (run.outcome, run.step) == ("completed", 64)
    with pytest.raises(NotPossibleNow, match=f"`mosaic extend {run.run_id} --timesteps N`"):
        shared_daemon.client.resume(run.run_id)
    (checkpoint,) = shared_daemon.manifest(run.run_id).checkpoints
    path = shared_daemon.home.run_folder(run.run_id).root / checkpoint.path
    document["metadata"]["worker"]["config"]["extras"] |= {"mode": "resume_training", "checkpoint_path": str(path)}
    with pytest.raises(NotPossibleNow, match="add more with `mosaic extend"):  # as the window's form would
        shared_daemon.client.submit(document)


# ---------------------------------------------------------------- the process


def test_one_process_checks_many_configs_and_is_replaced_when_it_dies(shared_daemon: RunningDaemon) -> None:
    refusal(shared_daemon, config(num_minibatches=3))
    checker = checker_of(shared_daemon)
    refusal(shared_daemon, config(num_minibatches=5))
    assert checker_of(shared_daemon) == checker
    checker.kill()
    refusal(shared_daemon, config(num_minibatches=3))
    assert checker_of(shared_daemon) != checker


def test_a_check_that_fails_or_hangs_refuses_nothing(shared_daemon: RunningDaemon) -> None:
    """It says so in the daemon's log and in a note."""
    install_scripted_worker(shared_daemon.home, "wild", "open_session().finish('completed')")
    file = shared_daemon.home.workers / "wild" / "worker.json"
    write_json_atomically(file, {**read_json_object(file), "argv": ["/bin/false"], "checks": True})
    answer = shared_daemon.client.submit(scripted_config("wild"))
    run = answer.run
    assert run.status == "INIT"
    assert "could not check this run" in answer.notes[0]
    shared_daemon.wait_for(run.run_id)
    assert "worker 'wild' could not check a config before it was queued" in shared_daemon.home.daemon_log.read_text()


ECHO = """
import json, os, sys, time
for line in sys.stdin:
    config = json.loads(line)
    time.sleep(config.get("sleep", 0))
    problems = [{"path": "pid", "message": str(os.getpid()), "suggestion": None}]
    print(json.dumps({"problems": problems, "fits": None, "missing_sets": [], "runs": [], "varied": []}), flush=True)
"""


@pytest.mark.expects_log("could not check a config before it was queued: no answer within")
async def test_the_process_is_bounded_idle_for_a_while_and_replaced_with_its_worker(tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    spec = WorkerSpec(
        "echo", "Echo", "1", WorkerCapabilities("echo"), "echo.cli", argv=(sys.executable, str(script)), checks=True
    )

    async def pid(processes: CheckProcesses, spec: WorkerSpec, **asked: Any) -> str:
        return "".join(problem.message for problem in (await processes.ask(spec, asked)).problems)

    hasty = CheckProcesses(Home(tmp_path), answer_s=2.0)
    assert await pid(hasty, spec, sleep=60) == ""
    first = await pid(hasty, spec)
    both = await asyncio.gather(pid(hasty, spec), pid(hasty, spec))
    assert both == [first, first]
    second = await pid(hasty, replace(spec))  # described anew: installed again
    assert second != first
    os.kill(int(second), signal.SIGKILL)
    third = await pid(hasty, spec)
    assert third not in ("", second)
    await hasty.close()
    assert not psutil.pid_exists(int(third))

    brief = CheckProcesses(Home(tmp_path), idle_s=0.01)
    last = await pid(brief, spec)
    assert await asyncio.to_thread(wait_until, lambda: not psutil.pid_exists(int(last)), timeout_s=20)
