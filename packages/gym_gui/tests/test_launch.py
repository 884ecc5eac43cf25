"""What a worker is started with: its arguments, and an environment without the daemon's secrets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gym_gui.config.settings import Settings
from gym_gui.services.trainer.launch import Launch, build_launch, inherited_environment
from gym_gui.services.trainer.records import NewRun
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.run_request import with_checkpoint
from mosaic_wire.worker_spec import WorkerSpec

RUN_ID = new_run_id()


def spec(**changes: Any) -> WorkerSpec:
    values: dict[str, Any] = {
        "name": "tiny",
        "display_name": "Tiny",
        "version": "1",
        "capabilities": WorkerCapabilities("tiny"),
        "module": "tiny_worker.cli",
        "argv": ("/opt/tiny/bin/python", "-m", "tiny_worker.cli"),
    }
    return WorkerSpec(**(values | changes))


def build(tmp_path: Path, *, cpus: float = 1.0, memory_mb: int | None = None, **changes: Any) -> Launch:
    values: dict[str, Any] = {
        "gpu_ids": (),
        "run_token": "the-run-token",
        "mark": f"{RUN_ID}.2.0123abcd",
        "grpc_target": "unix:/somewhere/daemon.sock",
        "base_env": {},
    }
    limits = {"cpus": cpus, "memory_mb": memory_mb, "max_wallclock_minutes": None}
    record: Any = SimpleNamespace(run_id=RUN_ID, attempt=2, gpus=0, gpus_mandatory=0, **limits)
    worker = changes.pop("spec", None) or spec()
    settings = Settings(max_processes=changes.pop("max_processes", 4096))
    return build_launch(worker, record, Home(tmp_path), settings, **(values | changes))


def test_the_arguments_are_the_workers_own_and_the_contract(tmp_path: Path) -> None:
    launch = build(tmp_path, memory_mb=700, max_processes=99, cpus=2)
    assert launch.argv == (
        *("/opt/tiny/bin/python", "-m", "tiny_worker.cli"),
        *("--config", f"{tmp_path}/trainer/configs/worker-{RUN_ID}.json", "--run-id", RUN_ID),
        *("--grpc", "--grpc-target", "unix:/somewhere/daemon.sock"),
    )
    assert launch.cwd == tmp_path / "trainer" / "runs" / RUN_ID
    assert launch.stdout == tmp_path / "logs" / "trainer" / RUN_ID / "stdout.log"
    assert launch.stderr == tmp_path / "logs" / "trainer" / RUN_ID / "stderr.log"
    assert (launch.run_id, launch.attempt, launch.mark) == (RUN_ID, 2, f"{RUN_ID}.2.0123abcd")
    assert (launch.memory_mb, launch.max_processes, launch.cpus) == (700, 99, 2)


def test_the_environment_holds_the_contract_and_nothing_else(tmp_path: Path) -> None:
    run_dir = f"{tmp_path}/trainer/runs/{RUN_ID}"
    assert dict(build(tmp_path).env) == {
        "MOSAIC_HOME": str(tmp_path),
        "MOSAIC_RUN_ID": RUN_ID,
        "MOSAIC_RUN_DIR": run_dir,
        "MOSAIC_RUN_ATTEMPT": "2",
        "MOSAIC_RUN_TOKEN": "the-run-token",
        "MOSAIC_RUN_MARK": f"{RUN_ID}.2.0123abcd",
        "MOSAIC_CONFIG_FILE": f"{tmp_path}/trainer/configs/worker-{RUN_ID}.json",
        "MOSAIC_CHECKPOINT_DIR": f"{run_dir}/checkpoints",
        "MOSAIC_GRPC_TARGET": "unix:/somewhere/daemon.sock",
        "MOSAIC_GRACE_S": "30",
        "CUDA_VISIBLE_DEVICES": "",
        "MOSAIC_GPUS_MANDATORY": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMEXPR_NUM_THREADS": "1",
    }


def test_reserved_gpus_are_visible_and_others_are_not(tmp_path: Path) -> None:
    launch = build(tmp_path, gpu_ids=("GPU-a", "GPU-b"), base_env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert build(tmp_path, base_env={"CUDA_VISIBLE_DEVICES": "0"}).env["CUDA_VISIBLE_DEVICES"] == ""
    greedy = spec(env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert build(tmp_path, spec=greedy).env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("cpus", "threads"), [(0, "1"), (0.5, "1"), (1, "1"), (2.9, "2"), (16, "16")])
def test_thread_counts_follow_the_cpus(tmp_path: Path, cpus: float, threads: str) -> None:
    launch = build(tmp_path, cpus=cpus)
    assert {launch.env[name] for name in env.THREAD_COUNTS} == {threads}


def test_thread_counts_the_user_set_stay(tmp_path: Path) -> None:
    launch = build(tmp_path, cpus=8, base_env={"OMP_NUM_THREADS": "3"}, spec=spec(env={"MKL_NUM_THREADS": "5"}))
    assert (launch.env["OMP_NUM_THREADS"], launch.env["MKL_NUM_THREADS"]) == ("3", "5")
    assert launch.env["OPENBLAS_NUM_THREADS"] == "8"


def test_what_people_need_is_inherited_and_the_rest_is_not() -> None:
    kept = {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "C",
        "TZ": "Europe/Berlin",
        "TMPDIR": "/scratch",
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": "localhost",
        "LD_LIBRARY_PATH": "/opt/cuda/lib64",
        "VIRTUAL_ENV": "/opt/venv",
        "WANDB_MODE": "offline",
        "XLA_FLAGS": "--x",
        "CLEANRL_FASTLANE_INTERVAL_MS": "100",
        "CLEANRL_FASTLANE_MAX_DIM": "320",
        "KEYBOARD": "monkeys",
    }
    dropped = {
        "PYTHONPATH": "/leak",
        "PYTHONHOME": "/leak",
        "MOSAIC_DAEMON_TOKEN": "x",
        "MOSAIC_CONFIG_HOME": "/secret/place",
        "MOSAIC_RUN_MARK": "another.run",
        "CLEANRL_RUN_DIR": "/another/run",
        "WANDB_API_KEY": "x",
        "OPENAI_API_KEY": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "GITHUB_TOKEN": "x",
        "DB_PASSWORD": "x",
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    assert inherited_environment(kept | dropped) == kept


def test_secrets_of_the_run_reach_the_worker_and_those_of_the_daemon_do_not(tmp_path: Path) -> None:
    launch = build(
        tmp_path,
        base_env={"WANDB_API_KEY": "the daemon's", "OPENAI_API_KEY": "the daemon's"},
        secrets={"WANDB_API_KEY": "the run's"},
    )
    assert launch.env["WANDB_API_KEY"] == "the run's"
    assert "OPENAI_API_KEY" not in launch.env
    assert "the run's" not in repr(launch)
    assert "the-run-token" not in repr(launch)
    assert not any("the run's" in word or "the-run-token" in word for word in launch.argv), "argv is readable by all"


def test_no_variable_overrides_what_the_daemon_sets(tmp_path: Path) -> None:
    launch = build(
        tmp_path,
        spec=spec(env={"MOSAIC_RUN_MARK": "mine", "EXTRA": "1", "PYTHONPATH": "/its/own"}),
        secrets={"MOSAIC_RUN_TOKEN": "mine"},
        base_env={"EXTRA": "0"},
    )
    assert launch.env["MOSAIC_RUN_MARK"] == f"{RUN_ID}.2.0123abcd"
    assert launch.env["MOSAIC_RUN_TOKEN"] == "the-run-token"
    assert launch.env["EXTRA"] == "1", "the worker's description wins over the daemon's environment"
    assert launch.env["PYTHONPATH"] == "/its/own", "set by the worker's own description"


def test_a_record_of_the_registry_will_do(tmp_path: Path) -> None:
    registry = RunRegistry(tmp_path / "trainer.sqlite")
    try:
        record, _ = registry.submit(NewRun(RUN_ID, "tiny", cpus=3, memory_mb=512))
    finally:
        registry.close()
    launch = build_launch(
        spec(),
        record,
        Home(tmp_path),
        Settings(grace_s=0.5),
        run_token="t",
        mark="m",
        grpc_target="unix:/x",
        base_env={},
    )
    assert (launch.cpus, launch.memory_mb, launch.env["OMP_NUM_THREADS"]) == (3, 512, "3")
    assert launch.env["MOSAIC_GRACE_S"] == "0.5"


def test_a_config_gets_the_checkpoint_to_resume_from(tmp_path: Path) -> None:
    config = {"algo": "ppo", "extras": {"mode": "train", "notes": "kept"}}
    resumed = with_checkpoint(config, tmp_path / "checkpoints" / "step-10")
    assert resumed == {
        "algo": "ppo",
        "extras": {
            "mode": "resume_training",
            "notes": "kept",
            "checkpoint_path": str(tmp_path / "checkpoints" / "step-10"),
        },
    }
    assert config["extras"] == {"mode": "train", "notes": "kept"}, "the original is not touched"
    assert with_checkpoint({}, tmp_path)["extras"]["mode"] == "resume_training"
