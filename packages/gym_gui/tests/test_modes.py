"""What the daemon and the command line know of a worker's modes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from gym_gui.cli.evaluate import _flags, of_path
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer.launch import is_training
from gym_gui.services.trainer.validation.worker_part import check_worker_config, script_folders, script_problems
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.run_request import with_checkpoint
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

RUN_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
PPO = AlgorithmSpec("ppo", fields=(FieldSpec("gamma", "float", 0.99),), modes=("train", "policy_eval", "interactive"))
SPEC = WorkerSpec("cleanrl", "CleanRL", "1", WorkerCapabilities("cleanrl"), "cleanrl_worker.cli", algorithms=(PPO,))


def problems_of(**extras) -> str:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10, "extras": extras}
    return "\n".join(map(str, check_worker_config(config, SPEC)))


# -- what a config may say


def test_known_modes_pass_and_others_are_answered_with_the_nearest():
    for mode in ("train", "policy_eval", "resume_training", "interactive"):
        assert problems_of(mode=mode) == ""
    assert "Did you mean 'policy_eval'" in problems_of(mode="policy-eval")


def test_the_names_of_a_custom_script_s_run_are_labels():
    config = {"algo": "custom_script", "env_id": "whatever", "total_timesteps": 10, "extras": {"mode": "custom_script"}}
    assert check_worker_config(config, SPEC) == []


def test_two_names_for_one_checkpoint_must_agree():
    assert problems_of(mode="policy_eval", policy_path="/a", checkpoint_path="/a") == ""
    assert "differs from" in problems_of(mode="policy_eval", policy_path="/a", checkpoint_path="/b")


def test_only_training_continues_from_a_checkpoint():
    assert is_training({})
    assert is_training({"extras": {"mode": "resume_training"}})
    assert not is_training({"extras": {"mode": "custom_script"}})
    resumed = with_checkpoint({"algo": "ppo", "extras": {"policy_path": "/old", "x": 1}}, Path("/runs/step-5"))
    assert resumed["extras"] == {"x": 1, "mode": "resume_training", "checkpoint_path": "/runs/step-5"}


# -- custom scripts


def test_scripts_come_from_configured_folders_only(tmp_path):
    home, own = Home(tmp_path / "home"), tmp_path / "own"
    home.custom_scripts.mkdir(parents=True)
    own.mkdir()
    folders = script_folders(home, (own,))
    for place in (own / "a.sh", home.custom_scripts / "b.py", tmp_path / "c.sh", own / "d.txt"):
        place.write_text("# nothing\n")
    (own / "link.sh").symlink_to(tmp_path / "c.sh")

    def reported(path) -> str:
        return "\n".join(map(str, script_problems({"mode": "custom_script", "script_path": str(path)}, folders)))

    assert reported(own / "a.sh") == reported(home.custom_scripts / "b.py") == reported("b.py") == ""
    assert "lies in none of the folders" in reported(tmp_path / "c.sh")
    assert "lies in none of the folders" in reported(own / "link.sh")
    assert "lies in none of the folders" in reported(own / ".." / "c.sh")
    assert "must be a file that ends in" in reported(own / "d.txt")
    assert "cannot be read" in reported(own / "nowhere.sh")
    assert script_problems({"script_path": "/anything"}, folders) == []


def test_the_setting_is_a_list_of_absolute_folders(tmp_path):
    assert load_settings(tmp_path / "none", overrides={"custom_scripts": ["/a", "/b"]}).custom_scripts == (
        Path("/a"),
        Path("/b"),
    )
    for wrong in ("/a", ["relative"], ["/a:/b"], [5]):
        with pytest.raises(ConfigProblems):
            load_settings(tmp_path / "none", overrides={"custom_scripts": wrong})


# -- RUN|CKPT


def test_a_checkpoint_folder_says_what_it_is(tmp_path):
    args = {"env_id": "CartPole-v1", "seed": 7, "gamma": 0.9, "total_timesteps": 100, "num_iterations": 3}
    folder = RunFolder(tmp_path / RUN_ID)
    entry = write_checkpoint(folder, 64, {"algo": "ppo", "values": {"args": args}})
    chosen = of_path(folder.root / entry.path)
    assert (chosen.algo, chosen.env_id, chosen.seed, chosen.step) == ("ppo", "CartPole-v1", 7, 64)
    assert of_path(folder.root / entry.path / "state.json").path == chosen.path
    assert _flags(chosen, PPO) == {"gamma": 0.9}  # what the algorithm still has, and not its defaults


def test_a_curriculum_s_checkpoint_is_judged_in_its_last_environment(tmp_path):
    values = {"args": {"env_id": "A-v0"}, "envs": {"curriculum": {"env_ids": ["A-v0", "B-v0"]}}}
    folder = RunFolder(tmp_path)
    entry = write_checkpoint(folder, 64, {"algo": "ppo", "values": values})
    assert of_path(folder.root / entry.path).env_id == "B-v0"


def test_weights_are_asked_about_in_the_run_they_lie_in(tmp_path):
    folder = RunFolder(tmp_path / RUN_ID)
    folder.root.mkdir()
    model = folder.root / "ppo.cleanrl_model"
    model.write_bytes(b"weights")
    assert (of_path(model).algo, of_path(model).weights_only) == ("", True)
    AnalyticsManifest(RUN_ID, algo="ppo", env_id="CartPole-v1").write(folder.manifest)
    assert (of_path(model).algo, of_path(model).env_id) == ("ppo", "CartPole-v1")


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(click.UsageError, match="is no checkpoint that can be used"):
        of_path(tmp_path)
    with pytest.raises(click.UsageError, match="there is no"):
        of_path(tmp_path / "none.cleanrl_model" / "x")


# -- requirement sets


def test_removing_a_requirement_set_frees_its_folder(home):
    generation = home.trainer / "venvs" / "minigrid" / "0123456789abcdef"
    generation.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "gym_gui", "extras", "remove", "minigrid"], timeout=120, check=True)
    assert not generation.exists()


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [
        (["extras", "check", "minigrid"], 1, "requirement set 'minigrid' is not installed"),
        (["extras", "list"], 0, "minigrid"),
        (["extras", "install", "minigird"], 2, "minigrid"),
        (["extras", "remove", "minigird"], 2, "minigrid"),
        (["resume"], 2, "which run"),
        (["resume", "--checkpoint", "/nowhere"], 2, "there is no /nowhere"),
    ],
)
def test_the_command_line_wraps_and_refuses(home, message, code, said):
    done = subprocess.run(
        [sys.executable, "-m", "gym_gui", *message], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
