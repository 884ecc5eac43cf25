"""The hooks of a training process: what they change there, and that no other process gets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from cleanrl_worker.scripts.reading import read_script
from cleanrl_worker.scripts.running import launch_arguments
from cleanrl_worker.sitecustomize import HookSettings


@pytest.fixture
def launch(tmp_path):
    """Run a script through the launcher as the worker does; returns what it printed as JSON on its last line."""
    run = tmp_path / "run"
    run.mkdir()

    def launch(text: str, *flags: str, path: Path | None = None, expected: int = 0, **settings: str):
        script = tmp_path / "theirs" / "script.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(textwrap.dedent(text))
        hooks = HookSettings(str(run), str(run / "tensorboard"), **settings)
        message = launch_arguments(str(script), read_script(script).sha256, hooks, flags, add_path=str(path or ""))
        done = subprocess.run(
            [sys.executable, "-u", "-m", "cleanrl_worker.launcher", *message],
            cwd=run,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == expected, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr

    launch.run = run
    return launch


def package(folder: Path, name: str, **modules: str) -> Path:
    """A stand-in for a library that is not installed here."""
    place = folder / "libraries" / name
    place.mkdir(parents=True)
    for module, text in modules.items():
        file = place.joinpath(*module.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    for part in [place, *(child for child in place.rglob("*") if child.is_dir())]:
        (part / "__init__.py").touch()
    return folder / "libraries"


# -- the script sees what it would see alone


def test_a_script_is_main_with_its_own_arguments_and_folder(launch):
    seen = launch(
        """
        import json, sys, os
        print(json.dumps([__name__, __file__, sys.argv, sys.path[0], os.getcwd(), "torch" in sys.modules,
                          "gymnasium" in sys.modules, "numpy" in sys.modules]))
        """,
        "--seed",
        "3",
    )
    name, file, argv, first, folder, *loaded = seen
    assert name == "__main__"
    assert argv == [file, "--seed", "3"]
    assert first == str(Path(file).parent)
    assert folder == str(launch.run)
    assert loaded == [False, False, False]  # the hooks import nothing of it


def test_a_traceback_shows_the_script_and_not_how_it_was_started(launch):
    reported = launch("def f():\n    return 1 / 0\nf()\n", expected=1)
    assert "ZeroDivisionError" in reported
    assert "script.py" in reported
    assert "runpy" not in reported
    assert "running.py" not in reported


@pytest.mark.parametrize(("leaving", "code"), [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('enough')", 1)])
def test_a_script_leaves_with_its_own_exit_code(launch, leaving, code):
    launch(f"import sys\n{leaving}\n", expected=code)


# -- TensorBoard


def test_event_files_go_below_the_run_and_are_flushed_soon(launch):
    seen = launch(
        """
        import json, os
        from torch.utils.tensorboard import SummaryWriter
        writers = [SummaryWriter("runs/A/Pong__x"), SummaryWriter(log_dir="logs/y", flush_secs=60), SummaryWriter(),
                   SummaryWriter("/somewhere/else/z"), SummaryWriter("runs/w", "", None, 10, 0.5)]
        for writer in writers:
            writer.add_scalar("charts/SPS", 1, 1)
        is_there = os.path.isdir("runs/A/Pong__x")
        print(json.dumps([[w.log_dir for w in writers], [w.flush_secs for w in writers], is_there]))
        """.replace("/somewhere", str(launch.run.parent))
    )
    folders, flushes, is_there = seen
    below = [str(Path(folder).relative_to(launch.run / "tensorboard")) for folder in folders]
    assert (below[0], below[1], below[3], below[4]) == ("A/Pong__x", "logs/y", "z", "w")
    assert flushes == [1, 1, 1, 1, 0.5]
    assert is_there  # models are saved beside the event files
    # They were not closed; what was logged is there all the same.
    sizes = [file.stat().st_size for file in (launch.run / "tensorboard").rglob("events.*")]
    assert len(sizes) == 5
    assert min(sizes) > 100


# -- environments


ENVIRONMENTS = """
import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from cleanrl_worker import sitecustomize
made = []
sitecustomize.environment_wrappers.append(lambda env: made.append(env.spec.id) or env)
"""


def test_every_way_to_make_an_environment_passes_the_place_for_wrappers(launch):
    made = launch(
        ENVIRONMENTS
        + textwrap.dedent(
            """
            import json
            gym.make("CartPole-v1")
            SyncVectorEnv([lambda: gym.make("Acrobot-v1")] * 2)
            gym.make_vec("MountainCar-v0", num_envs=1, vectorization_mode="sync")
            print(json.dumps(made))
            """
        )
    )
    assert made == ["CartPole-v1", "Acrobot-v1", "Acrobot-v1", "MountainCar-v0"]


def test_old_gym_has_the_same_place(launch, tmp_path):
    libraries = package(tmp_path, "gym", envs__registration="def make(id): return {'id': id}")
    (libraries / "gym" / "__init__.py").write_text("from gym.envs.registration import make\n")
    made = launch(
        """
        import json
        import gym
        from cleanrl_worker import sitecustomize
        sitecustomize.environment_wrappers.append(lambda env: {**env, "wrapped": True})
        print(json.dumps(gym.make("Pong-v0")))
        """,
        path=libraries,
    )
    assert made == {"id": "Pong-v0", "wrapped": True}


# -- who gets the hooks


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_environment_processes_get_the_hooks_and_other_interpreters_do_not(launch, method):
    child, grandchild, path = launch(
        f"""
        import json, multiprocessing, os, subprocess, sys

        def look(results):
            import gymnasium.envs.registration as registration
            results.put(hasattr(registration.make, "__wrapped__"))

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            results = context.Queue()
            process = context.Process(target=look, args=(results,))
            process.start()
            hooked = results.get(timeout=60)
            process.join()
            ask = "import sys; import gymnasium.envs.registration as r; print(hasattr(r.make, '__wrapped__'))"
            other = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
            print(json.dumps([hooked, other.stdout.strip(), os.environ.get("PYTHONPATH")]))
        """
    )
    assert child is True
    assert grandchild == "False"
    assert path == os.environ.get("PYTHONPATH")


def test_the_pipes_of_the_worker_are_not_the_scripts(launch):
    assert launch("import json, os; print(json.dumps([n for n in os.environ if n.endswith('_FD')]))") == []


# -- Weights & Biases


def test_wandb_gets_mode_and_name_whatever_the_script_says(launch, tmp_path):
    libraries = package(tmp_path, "wandb")
    (libraries / "wandb" / "__init__.py").write_text(
        "def init(project=None, name=None, mode=None): return [project, name, mode]"
    )
    text = """
        import json, wandb
        print(json.dumps([wandb.init("p", name="theirs", mode="online"), wandb.init(mode="disabled")]))
        """
    assert launch(text, path=libraries, wandb_mode="offline", wandb_name="mine") == [
        ["p", "mine", "offline"],
        [None, "mine", "disabled"],
    ]
    assert launch(text, path=libraries)[0] == ["p", "theirs", "online"]
