"""The dry run: what it finds, that it finds everything at once, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cleanrl_worker import cli, preflight
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.declarations import DECLARATIONS, UPSTREAM_SCRIPTS, Declaration
from cleanrl_worker.needs import Needs, estimate, free_disk_bytes, free_memory_bytes, total_memory_bytes
from cleanrl_worker.preflight import _agent_problems, _misfits, check_run, facts_about
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.testing import WorkerProcess
from mosaic_wire.worker_spec import AlgorithmSpec

PATIENCE_S = 120
OWN_WORLD = """
import os
import gymnasium as gym
class Lever(gym.Env):
    action_space = gym.spaces.Discrete(2)
    def __init__(self, width=3):
        assert width != 13, "unlucky"
        self.observation_space = gym.spaces.Box(0, 1, (width,))
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 1.0, False, self.np_random.random() < 0.1, {}
class Crash(Lever):
    def __init__(self):
        os._exit(7)
class Parts(Lever):
    def __init__(self, dtype="uint8", **parts):
        boxes = {name: gym.spaces.Box(0, 255, shape, dtype=dtype) for name, shape in parts.items()}
        self.observation_space = gym.spaces.Dict({"speed": gym.spaces.Box(0, 1, (2,)), **boxes})
print("a chatty module")
gym.register("Parts-v0", Parts)
gym.register("Lever-v0", Lever)
gym.register("Crash-v0", Crash)
"""


@pytest.fixture(autouse=True)
def _own_home(home, monkeypatch):
    home.create()
    monkeypatch.delenv("MOSAIC_RUN_DIR", raising=False)


@pytest.fixture
def own_world(tmp_path, monkeypatch):
    (tmp_path / "own_world.py").write_text(OWN_WORLD)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", paths)


def dry_run(*flags: str, env_id: str = "CartPole-v1", steps: int = 4096) -> subprocess.CompletedProcess:
    argv = ["--dry-run", "--algo", "ppo", "--env-id", env_id, "--total-timesteps", str(steps), *flags]
    return subprocess.run(
        [sys.executable, "-m", "cleanrl_worker.cli", *argv], capture_output=True, text=True, check=False
    )


def config(env_id: str = "CartPole-v1", steps: int = 4096, algo: str = "ppo", **extras) -> CleanRLWorkerConfig:
    return CleanRLWorkerConfig(new_run_id(), algo, env_id, steps, 1, extras)


def problems(home, run: CleanRLWorkerConfig) -> list[str]:
    found = check_run(run, home.run_folder(run.run_id), home)
    return [str(problem) for problem in found.problems]


def test_flags_may_be_spelled_with_underscores():
    argv = [sys.executable, "-m", "cleanrl_worker.cli", "--dry_run", "--algo=ppo", "--env_id=CartPole-v1"]
    done = subprocess.run(
        [*argv, "--total_timesteps", "512", "--num_envs", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_all_that_is_wrong_is_reported_at_once():
    done = dry_run(
        "--gamma",
        "2",
        "--lerning-rate",
        "1",
        "--num-minibatches",
        "3",
        "--extras",
        '{"no_progress": "wait"}',
        env_id="Pendulum-v1",
        steps=100,
    )
    assert done.returncode == 2
    for arguments in (
        "--gamma: must be at most 1, got 2.0",
        "Did you mean '--learning-rate'",
        "3 does not divide the batch of 512",
        "extras.no_progress: expected leave or kill",
        "ppo needs discrete actions",
    ):
        assert arguments in done.stderr
    assert "Traceback" not in done.stderr


def test_a_good_config_shows_what_would_run(home):
    done = dry_run("--emit-summary", "--extras", '{"wandb_api_key": "a-secret-of-mine", "notes": "a-secret-of-mine"}')
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["ok"] is True
    assert summary["problems"] == []
    assert summary["argv"][1:4] == ["-m", "cleanrl_worker.launcher", "ppo"]
    assert summary["spaces"]["CartPole-v1"]["action"] == "Discrete(2)"
    assert summary["requirement_sets"] == ["base"]
    assert summary["run_dir"].startswith(str(home.runs))
    assert summary["environment"]["CLEANRL_RUN_DIR"] == summary["run_dir"]
    assert "a-secret-of-mine" not in done.stdout + done.stderr
    assert not Path(summary["run_dir"]).exists()


def test_a_bad_config_is_reported_as_json_too():
    done = dry_run("--emit-summary", env_id="CartPol-v1")
    assert done.returncode == 2
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["path"], problem["suggestion"]) == ("env_id", "CartPole-v1")


def test_it_loads_neither_torch_nor_the_environment(home):
    """What it costs benchmarks/dry_run.py measures."""
    code = (
        "import sys; from cleanrl_worker.cli import main; code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'tensorboard'} & set(sys.modules); assert not heavy, heavy\n"
        "sys.exit(code)"
    )
    argv = ["--dry-run", "--algo", "ppo", "--env-id", "Acrobot-v1", "--total-timesteps", "9999"]
    subprocess.run([sys.executable, "-c", code, *argv], check=True, capture_output=True)
    assert list((home.cache / "environments").glob("*.json"))


# -- environments


def test_the_answer_about_an_environment_is_remembered(home):
    def look(env_id: str, python: str) -> dict:
        return facts_about(
            [(env_id, {}, "plain", "auto")], python=Path(python), versions={}, home=home, environ=os.environ
        )[0]

    first = look("CartPole-v1", sys.executable)
    assert (first["observation"]["size"], first["observation"]["kind"], first["action"]["count"]) == (4, "vector", 2)
    (kept,) = (home.cache / "environments").iterdir()
    kept.write_text(kept.read_text().replace("Discrete(2)", "Discrete(3)"))  # damaged: it is asked again
    assert look("CartPole-v1", sys.executable) == first
    assert "problem" in look("CartPole-v1", "/nowhere/python")  # another interpreter, another answer


@pytest.mark.usefixtures("own_world")
@pytest.mark.parametrize(
    ("env_id", "kwargs", "reported"),
    [
        ("own_world:Lever-v0", {}, None),
        ("own_world:Lever-v0", {"width": 5}, None),
        ("own_world:Lever-v0", {"height": 5}, "unexpected keyword argument 'height'"),
        ("own_world:Lever-v0", {"width": 13}, "AssertionError: unlucky"),
        ("own_world:Lewer-v0", {}, "Did you mean 'own_world:Lever-v0'"),
        ("own_world:Crash-v0", {}, "exit code 7"),
        ("own_world:Parts-v0", {"place": [3]}, None),
        ("own_world:Parts-v0", {"dtype": "float32", "board": [8, 8, 2]}, None),
        ("own_world:Parts-v0", {"dtype": "float32", "camera": [3, 64, 64]}, "hold an image (camera (3, 64, 64))"),
        ("own_world:Parts-v0", {"camera": [64, 64, 3]}, "hold an image (camera (64, 64, 3)) beside other parts"),
        ("own_world:Parts-v0", {"image": [7, 7, 3]}, "hold an image (image (7, 7, 3)) beside other parts"),
        ("no_such_module:Lever-v0", {}, "No module named 'no_such_module'"),
    ],
)
def test_environments_of_ones_own_are_looked_at_too(home, env_id, kwargs, reported):
    found = problems(home, config(env_id, env_kwargs=kwargs))
    if reported is None:
        assert found == []
    else:
        (problem,) = found
        assert problem.startswith("env_id: ")
        assert reported in problem


SLOW_WORLDS = {
    "sleeps": "time.sleep(600)",
    "leaves_a_child": "os.fork() or time.sleep(600)",
    "ends_the_process": "os._exit(0)",
}


@pytest.mark.parametrize("name", SLOW_WORLDS)
def test_an_environment_that_never_answers_is_not_waited_for(home, tmp_path, monkeypatch, name):
    """A child it leaves behind holds nothing up; one that takes too long is a note, because a run may be patient."""
    (tmp_path / f"{name}.py").write_text(
        "import os, time, gymnasium\n"
        "gymnasium.register('Slow-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n" + SLOW_WORLDS[name]
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(preflight, "TIMEOUT_S", 3.0 if name == "sleeps" else 60.0)
    answer = cli.check_document({"algo": "ppo", "env_id": f"{name}:Slow-v0", "total_timesteps": 512})
    if name == "sleeps":
        assert not answer.problems
        assert "could not be made within 3 s" in answer.notes[0]
    elif name == "leaves_a_child":
        assert not answer.problems
        assert answer.fits
    else:
        assert "making it ended with exit code 0: it printed nothing" in answer.problems[0].message


@pytest.mark.usefixtures("own_world")
def test_a_run_in_an_environment_of_ones_own_gets_its_arguments(home):
    run = {"algo": "ppo", "env_id": "own_world:Lever-v0", "total_timesteps": 512, "seed": 1}
    extras = {"env_kwargs": {"width": 5}, "eval_episodes": 1}
    with WorkerProcess([sys.executable, "-m", "cleanrl_worker.cli"], {**run, "extras": extras}, home) as worker:
        assert worker.wait(PATIENCE_S) == 0, worker.stderr()
        entry = AnalyticsManifest.read(worker.folder.manifest).checkpoints[-1]
    resumed = {"mode": "resume_training", "checkpoint_path": str(worker.folder.root / entry.path)}
    found = "\n".join(problems(home, config("own_world:Lever-v0", 1024, **resumed, env_kwargs={"width": 4})))
    assert "was made with env_kwargs='{\"width\": 5}'; this run has '{\"width\": 4}'" in found
    assert "has agent.actor.0.weight of shape [64, 5]; this run's network has [64, 4]" in found
    assert problems(home, config("own_world:Lever-v0", 1024, **resumed, env_kwargs={"width": 5})) == []
    found = "\n".join(
        problems(home, config("own_world:Lever-v0", 1024, **resumed, env_kwargs={"width": 5}, num_envs=8))
    )
    assert "was made with num_envs=4; this run has 8" in found


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_arguments_that_are_no_object_are_refused(home, text):
    (problem,) = problems(home, config(algo_params={"env_kwargs": text}))
    assert "--env-kwargs" in problem


def test_a_set_that_is_not_installed_is_named_with_the_command(home):
    (problem,) = problems(home, config("ALE/Pong-v5"))
    assert problem.startswith("extras.install_missing: requirement set 'atari' is not installed")
    assert "mosaic extras install atari" in problem
    assert "(about 165 MB), or add --install-missing" in problem
    assert problems(home, config("ALE/Pong-v5", install_missing=True)) == []


@pytest.mark.parametrize(
    ("expected", "env_id", "reported"),
    [
        ("continuous", "CartPole-v1", "a needs continuous actions; those of CartPole-v1 are Discrete(2)"),
        ("discrete", "Pendulum-v1", "a needs discrete actions; those of Pendulum-v1 are Box(-2.0, 2.0, (1,), float32)"),
        ("continuous", "Pendulum-v1", None),
        ("discrete", "Blackjack-v1", None),  # observations of several numbers are made one vector
    ],
)
def test_actions_an_algorithm_cannot_take_are_reported(home, expected, env_id, reported):
    algorithm = AlgorithmSpec("a", action_spaces=(expected,), observation_spaces=("vector",))
    (facts,) = facts_about(
        [(env_id, {}, "plain", "auto")], python=Path(sys.executable), versions={}, home=home, environ=os.environ
    )
    found = _misfits(config(env_id), algorithm, {env_id: facts})
    assert [problem.message for problem in found] == ([reported] if reported else [])


@pytest.mark.parametrize(
    ("agent", "kind", "shape", "reported"),
    [
        ("auto", "image", [210, 160, 3], "are frames of shape [210, 160, 3]"),
        ("minigrid", "image", [210, 160, 3], ""),
        ("auto", "image", [7, 7, 3], ""),
        ("auto", "vector", [4], ""),
        ("minigrid", "vector", [4], "--agent minigrid plays images"),
        ("mlp", "image", [7, 7, 3], "--agent mlp plays vectors"),
    ],
)
def test_a_network_that_cannot_play_the_observations_is_reported(agent, kind, shape, reported):
    declared = DECLARATIONS["ppo"]
    facts = {"E-v0": {"observation": {"kind": kind, "shape": shape, "text": "Box"}}}
    found = "\n".join(map(str, _agent_problems({"agent": agent}, declared, facts)))
    assert reported in found
    assert bool(reported) == bool(found)


# -- checkpoints


def checkpoint(home, algo: str = "ppo", env_id: str = "CartPole-v1") -> Path:
    """A checkpoint of another run, as ppo writes them."""
    from safetensors.numpy import save

    folder = home.run_folder(new_run_id())
    arrays = {
        "agent.actor.0.weight": np.zeros((64, 4), np.float32),
        "agent.actor.4.weight": np.zeros((2, 64), np.float32),
    }
    state = {"format": 1, "algo": algo, "values": {"args": {"env_id": env_id, "num_envs": 4}}}
    entry = write_checkpoint(folder, 512, state, {"state.safetensors": save(arrays)})
    return folder.root / entry.path


def resume_problems(home, path: object, **changes) -> str:
    run = config(changes.pop("env_id", "CartPole-v1"), mode="resume_training", checkpoint_path=str(path), **changes)
    return "\n".join(problems(home, run))


def test_a_checkpoint_that_fits_is_accepted_and_one_that_does_not_is_refused(home):
    assert resume_problems(home, checkpoint(home)) == ""
    assert "extras.checkpoint_path" in resume_problems(home, home.runs / "nowhere")
    assert "'dqn'" in resume_problems(home, checkpoint(home, algo="dqn"))
    assert "'Acrobot-v1'" in resume_problems(home, checkpoint(home, env_id="Acrobot-v1"))
    assert "num_envs=4; this run has 8" in resume_problems(home, checkpoint(home), algo_params={"num_envs": 8})
    shapes = resume_problems(home, checkpoint(home, env_id="Acrobot-v1"), env_id="Acrobot-v1")
    assert "agent.actor.0.weight of shape [64, 4]; this run's network has [64, 6]" in shapes


@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_a_damaged_checkpoint_is_refused(home, file, damage):
    path = checkpoint(home)
    data = (path / file).read_bytes()
    if damage == "gone":
        (path / file).unlink()
    else:
        (path / file).write_bytes(data[: len(data) // 2] if damage == "cut" else data.replace(b"4", b"5", 1))
    reported = resume_problems(home, path)
    assert "extras.checkpoint_path" in reported
    assert reported.count("\n") == 0, "one reason is enough"


# -- memory and disk


def test_a_replay_buffer_of_26_gib_is_reported_before_it_is_tried():
    needs = estimate(UPSTREAM_SCRIPTS["dqn_atari"], {"buffer_size": 1_000_000}, None, process_mb=512)
    reported = needs.memory_problem(16 * 2**30)
    assert reported is not None
    assert "26.3 GiB of it for the replay buffer; 16.0 GiB are free; lower --buffer-size" in reported
    assert needs.memory_problem(32 * 2**30) is None
    assert needs.memory_problem(None) is None


def test_every_estimate_is_of_an_algorithm_and_can_be_computed():
    facts = {"observation": {"size": 3, "bytes": 12}, "action": {"count": 1}}
    assert set(UPSTREAM_SCRIPTS) <= set(DEFAULT_ALGO_REGISTRY)
    for declared in UPSTREAM_SCRIPTS.values():
        needs = estimate(declared, {"buffer_size": 1000}, facts, process_mb=0)
        assert needs.memory.keys() == declared.memory.keys()


def test_a_run_that_cannot_fit_is_refused(home):
    (problem,) = problems(home, config(steps=10**15, algo_params={"num_envs": 10**6, "num_steps": 10**4}))
    assert problem.startswith("memory: the run needs about")
    assert "lower --num-envs or --num-steps" in problem


def test_checkpoints_that_do_not_fit_on_the_disk_are_reported(tmp_path):
    needs = Needs(0, checkpoint=2**30, checkpoints=50)
    reported = needs.disk_problem(free=2**30, where=tmp_path)
    assert reported is not None
    assert "50.0 GiB for 50 checkpoints" in reported
    assert "lower --keep-checkpoints" in reported
    assert needs.disk_problem(free=60 * 2**30, where=tmp_path) is None
    assert free_disk_bytes(tmp_path / "not" / "yet" / "there") > 0


OFF_POLICY = {
    "total_timesteps": 10_000,
    "buffer_size": 1000,
    "checkpoint_freq": 0,
    "keep_checkpoints": 3,
    "eval_freq": 0,
    "checkpoint_replay": "full",
    "replay_storage": "memory",
}


def disk_of(**changes: Any) -> dict[str, int]:
    memory = {"replay buffer": lambda f: f.buffer_size * 1000, "other": lambda f: 5}
    declared = Declaration(memory=memory, checkpoint=lambda f: 10)
    return estimate(declared, {**OFF_POLICY, **changes}, None, process_mb=0).disk


@pytest.mark.parametrize(
    ("flags", "checkpoints", "replay"),
    [
        ({}, 1, 1_000_000),
        ({"total_timesteps": 300}, 1, 300_000),  # it will not be full
        # The newest refers to all of it, three older ones and the one being written to what changed since; the best
        # may refer to a buffer of long ago.
        ({"checkpoint_freq": 100}, 1 + 4 + 1, 1_000_000 + 4 * 100_000 + 1_000_000),
        ({"checkpoint_freq": 5000}, 1 + 2 + 1, 1_000_000 + 2 * 1_000_000 + 1_000_000),
        ({"eval_freq": 500}, 1 + 1, 2_000_000),
        ({"checkpoint_freq": 100, "checkpoint_replay": "none"}, 6, None),
    ],
)
def test_the_disk_need_of_checkpoints_and_their_replay_buffer_is_named(flags, checkpoints, replay):
    disk = disk_of(**flags)
    assert disk[f"{checkpoints} checkpoints"] == 10 * checkpoints
    assert disk.get("the replay buffer in checkpoints") == replay


def test_a_replay_buffer_on_disk_takes_disk_instead_of_memory(tmp_path):
    declared = Declaration(memory={"replay buffer": lambda f: f.buffer_size * 1000000, "other": lambda f: 5})
    needs = estimate(declared, {**OFF_POLICY, "replay_storage": "disk"}, None, process_mb=0)
    assert needs.memory == {"other": 5}
    assert needs.disk["the replay buffer"] == 10**9
    reported = needs.disk_problem(10**9, tmp_path)
    assert reported is not None
    assert "for the replay buffer, " in reported
    assert "lower --buffer-size, or leave it out of the checkpoints with --checkpoint-replay none" in reported


def test_an_evaluation_without_an_episode_is_reported(home):
    (problem,) = problems(home, config(algo_params={"eval_freq": 100}))
    assert problem == "eval_freq: --eval-freq 100 asks for evaluations without an episode: give --eval-episodes, too"
    assert problems(home, config(algo_params={"eval_freq": 100, "eval_episodes": 1})) == []


def test_free_memory_is_what_the_control_group_leaves(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (groups / "a" / "b").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:    2048 kB\n")
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    assert free_memory_bytes(proc, groups) == 2048 * 1024
    (groups / "a" / "memory.max").write_text("1000000\n")
    (groups / "a" / "memory.current").write_text("900000\n")
    (groups / "a" / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    assert free_memory_bytes(proc, groups) == 150000
    assert total_memory_bytes(proc, groups) == 1_000_000
    assert free_memory_bytes(tmp_path / "none", tmp_path / "none") is None


# -- at the start of a run


def test_a_run_is_refused_for_the_same_reasons_before_it_registers(capsys):
    flags = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "4096", "--num-minibatches", "3"]
    assert cli.main(flags) == 2
    assert "3 does not divide the batch" in capsys.readouterr().err


def test_a_run_that_never_learns_is_started_with_a_note(home):
    """CleanRL runs `dqn --total-timesteps 10000`, although learning starts at step 10,000."""
    done = dry_run("--algo", "dqn", steps=10_000)
    assert done.returncode == 0, done.stderr
    note = "--learning-starts 10000 is not reached in 10000 steps: nothing will be learned"
    assert [line.split(None, 1) for line in done.stdout.splitlines()][-1] == ["note", note]
    flags = ["--algo", "sac_continuous_action", "--env-id", "Pendulum-v1", "--total-timesteps", "135"]
    flags += ["--run-id", run_id := new_run_id()]
    argv = [sys.executable, "-m", "cleanrl_worker.cli", *flags]
    started = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    note = "--learning-starts 5000 is not reached in 135 steps: nothing will be learned"
    assert note in started.stderr
    manifest = AnalyticsManifest.read(home.run_folder(run_id).manifest)
    assert manifest.extra["training_notes"] == [note]
    assert manifest.outcome == "completed"
