"""Which run starts when, and with what: priorities, order, CPUs, GPUs, memory, and the reason why a run waits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gym_gui.services.trainer.errors import InvalidConfig, NotPossibleNow
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 50}

MACHINE = """
import logging, sys
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer.daemon import run_daemon
from gym_gui.services.trainer.gpu import Gpu
from gym_gui.services.trainer.resources import Inventory
from mosaic_wire.paths import find_home
gpus = tuple(Gpu(f"GPU-{{number}}", "Imagined", 1024) for number in range({gpus}))
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.exit(run_daemon(find_home(), load_settings(), inventory=Inventory({cpus}, {memory_mb}, gpus)))
"""
TELL_ENVIRONMENT = """
session = open_session()
session.started()
names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MOSAIC_RUN_ID", "MOSAIC_RUN_DIR", "PYTHONPATH")
(Path(os.environ["MOSAIC_RUN_DIR"]) / "environment.json").write_text(json.dumps({n: os.environ.get(n) for n in names}))
if session.stop_requested.wait(config.parameters.get("hold_s", 0)):
    session.finish(ExitOutcome.CANCELLED, exit_code=130)
    sys.exit(130)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


def machine(*, cpus: float = 4, memory_mb: int = 8192, gpus: int = 0) -> str:
    return MACHINE.format(cpus=cpus, memory_mb=memory_mb, gpus=gpus)


def asking(cpus: float = 1, gpus: int | dict[str, int] = 0, **more: Any) -> dict[str, Any]:
    return {"cpus": {"requested": cpus}, "gpus": gpus, **more}


def gpus_of(daemon: RunningDaemon) -> dict[str, str]:
    """Which run holds which GPU."""
    return {gpu.id: gpu.reserved_by for gpu in daemon.client.health().gpus}


def order_of_start(daemon: RunningDaemon, run_ids: list[str]) -> list[str]:
    events = [event for run_id in run_ids for event in daemon.client.history(run_id) if event.kind == "dispatched"]
    return [event.run_id for event in sorted(events, key=lambda event: event.seq)]


def test_the_highest_priority_goes_first_and_equals_in_the_order_they_came(make_daemon) -> None:
    daemon = make_daemon(script=machine(cpus=1))
    blocker = daemon.submit(**ENDLESS, resources=asking(1)).run_id
    daemon.wait_for(blocker, "EXEC")
    low, normal_1, normal_2, high, changed = (
        daemon.submit(timesteps=2, resources=asking(1), scheduling={"priority": priority}).run_id
        for priority in (-5, 0, 0, 7, -9)
    )
    assert daemon.client.update(changed, priority=100).priority == 100
    # A run that waits says for what, or behind how many.
    daemon.wait_for_run(changed, lambda run: run.queue_reason == "waiting for 1 CPU (0 of 1 free)")
    daemon.wait_for_run(low, lambda run: run.queue_reason == "waiting: 4 queued before it")

    daemon.client.cancel(blocker)

    expected = [changed, high, normal_1, normal_2, low]
    for run_id in expected:
        assert daemon.wait_for(run_id).outcome == "completed"
    assert order_of_start(daemon, expected) == expected
    with pytest.raises(NotPossibleNow, match="priority counts only while it is queued"):
        daemon.client.update(changed, priority=1)


def test_whoever_watches_a_run_that_cannot_start_yet_is_told_why(make_daemon) -> None:
    daemon = make_daemon(script=machine(cpus=1))
    daemon.wait_for(daemon.submit(**ENDLESS, resources=asking(1)).run_id, "EXEC")
    with daemon.client.watch() as updates:
        run_id = daemon.submit(**ENDLESS, resources=asking(1)).run_id
        reasons = (update.run.queue_reason for update in updates if update.run.run_id == run_id)
        assert next(reason for reason in reasons if reason != "about to start") == "waiting for 1 CPU (0 of 1 free)"


def test_a_large_run_is_not_starved_by_small_ones_that_came_later(make_daemon) -> None:
    daemon = make_daemon(script=machine(cpus=2))
    first = daemon.submit(**ENDLESS, resources=asking(1)).run_id
    daemon.wait_for(first, "EXEC")
    large = daemon.submit(timesteps=2, resources=asking(2)).run_id
    small = [daemon.submit(timesteps=2, resources=asking(1)).run_id for _ in range(3)]
    daemon.wait_for_run(large, lambda run: run.queue_reason == "waiting for 2 CPUs (1 of 2 free)")
    daemon.wait_for_run(small[0], lambda run: "waiting" in run.queue_reason)
    daemon.client.cancel(first)
    for run_id in (large, *small):
        assert daemon.wait_for(run_id).outcome == "completed"
    assert order_of_start(daemon, [large, *small])[0] == large


def test_no_more_cpus_are_given_away_than_there_are(make_daemon) -> None:
    daemon = make_daemon(script=machine(cpus=2))
    runs = [daemon.submit(timesteps=20, steps_per_second=100, resources=asking(1)).run_id for _ in range(6)]
    most = 0

    def all_ended() -> bool:
        nonlocal most
        listed = daemon.client.list().runs
        most = max(most, sum(run.status not in ("INIT", "TERM") for run in listed))
        return all(run.status == "TERM" for run in listed)

    assert wait_until(all_ended, timeout_s=90)
    assert most == 2
    # Two that start together may be reported in either order.
    assert all(abs(place - runs.index(run_id)) <= 1 for place, run_id in enumerate(order_of_start(daemon, runs)))


def test_a_worker_sees_the_gpus_it_holds_and_none_without_a_reservation(make_daemon) -> None:
    daemon = make_daemon(
        script=machine(gpus=3), environment={"CUDA_VISIBLE_DEVICES": "0,1", "MKL_NUM_THREADS": "7", "PYTHONPATH": ""}
    )
    install_scripted_worker(daemon.home, "teller", TELL_ENVIRONMENT)

    def tell(resources: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        run = daemon.client.submit(scripted_config("teller", resources=resources)).run
        run = daemon.wait_for(run.run_id)
        assert run.outcome == "completed", run.reason
        text = (daemon.home.run_folder(run.run_id).root / "environment.json").read_text()
        return json.loads(text), list(run.gpu_ids)

    reported, gpu_ids = tell(asking(2, 2))
    assert (reported["CUDA_VISIBLE_DEVICES"], gpu_ids) == ("GPU-0,GPU-1", ["GPU-0", "GPU-1"])
    # Threads as many as it asked CPUs for, unless the user chose another number.
    assert (reported["OMP_NUM_THREADS"], reported["MKL_NUM_THREADS"]) == ("2", "7")
    reported, gpu_ids = tell(asking(0))
    assert (reported["CUDA_VISIBLE_DEVICES"], reported["OMP_NUM_THREADS"], gpu_ids) == ("", "1", [])


def test_gpus_are_held_by_one_run_each_across_a_restart_and_come_back(make_daemon) -> None:
    daemon = make_daemon(script=machine(gpus=2))
    both = [daemon.submit(**ENDLESS, resources=asking(1, 1)).run_id for _ in range(2)]
    for run_id in both:
        daemon.wait_for(run_id, "EXEC")
    assert sorted(gpus_of(daemon).values()) == sorted(both)
    third = daemon.submit(**ENDLESS, resources=asking(1, {"requested": 2, "mandatory": 1})).run_id
    daemon.wait_for_run(third, lambda run: run.queue_reason == "waiting for 1 GPU (none of 2 free)")
    held = gpus_of(daemon)

    daemon.restart()

    assert gpus_of(daemon) == held
    assert daemon.client.get(third).status == "INIT"
    daemon.client.cancel(both[0])
    # It would like two, and starts with the one it cannot do without.
    assert list(daemon.wait_for(third, "EXEC").gpu_ids) == [gpu for gpu, run_id in held.items() if run_id == both[0]]
    # A released run shows and holds none.
    daemon.client.pause(third, release=True)
    released = daemon.wait_for_run(third, lambda run: "released" in run.flags)
    assert list(released.gpu_ids) == []
    assert sorted(gpus_of(daemon).values()) == ["", both[1]]


def test_a_run_waiting_for_a_gpu_does_not_idle_the_cpus(make_daemon) -> None:
    daemon = make_daemon(script=machine(cpus=4, gpus=1))
    holder = daemon.submit(**ENDLESS, resources=asking(1, 1)).run_id
    daemon.wait_for(holder, "EXEC")
    waiting = daemon.submit(**ENDLESS, resources=asking(1, 1)).run_id
    assert daemon.wait_for(daemon.submit(timesteps=2, resources=asking(1)).run_id).outcome == "completed"
    assert daemon.client.get(waiting).status == "INIT"


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (asking(5), "needs 5 CPUs, this machine has 4 for runs"),
        (asking(1, 3), "needs 3 GPUs, this machine has 2"),
        (asking(1, memory_mb=9000), "needs 9000 MB of memory, this machine has 8192 MB for runs"),
    ],
    ids=["CPUs", "GPUs", "memory"],
)
def test_an_impossible_request_is_refused_and_nothing_is_queued(make_daemon, resources, reason: str) -> None:
    daemon = make_daemon(script=machine(gpus=2))
    with pytest.raises(InvalidConfig, match=reason):
        daemon.submit(**ENDLESS, resources=resources)
    assert not daemon.client.list(include_archived=True).runs
    assert not list(daemon.home.configs.glob("*"))
    # GPUs that it would only like to have are no reason to refuse it.
    if "GPU" in reason:
        wishful = daemon.submit(**ENDLESS, resources=asking(1, {"requested": 3, "mandatory": 1})).run_id
        assert list(daemon.wait_for(wishful, "EXEC").gpu_ids) == ["GPU-0", "GPU-1"]


def test_a_shortage_of_memory_or_disk_holds_runs_in_the_queue_and_reports_it(make_daemon) -> None:
    daemon = make_daemon(min_free_memory_mb=2**30, cpus=4)
    run_id = daemon.submit(timesteps=2).run_id
    daemon.wait_for_run(run_id, lambda run: run.queue_reason.startswith("waiting for memory: needs about 48 MB"))
    daemon.stop()
    daemon = make_daemon(min_free_disk_mb=2**30)
    waiting = daemon.wait_for_run(run_id, lambda run: run.queue_reason.startswith("waiting for disk space"))
    assert (waiting.status, "delete runs you no longer need" in waiting.queue_reason) == ("INIT", True)
    daemon.stop()
    daemon = make_daemon()
    assert daemon.wait_for(run_id).outcome == "completed"


def test_a_run_out_of_wall_clock_time_is_ended(daemon: RunningDaemon) -> None:
    run = daemon.submit(**ENDLESS, ignore_sigterm=True, resources=asking(0, max_wallclock_minutes=0.02))
    ended = daemon.wait_for(run.run_id)
    assert (ended.outcome, ended.reason) == ("failed", "out of wall-clock time: more than 0.02 minutes")
    assert processes_of(run.run_id) == []


def test_memory_promised_to_runs_is_not_promised_twice(make_daemon) -> None:
    daemon = make_daemon(script=machine(memory_mb=1000))
    first = daemon.submit(**ENDLESS, resources=asking(1, memory_mb=700)).run_id
    daemon.wait_for(first, "EXEC")
    second = daemon.submit(timesteps=2, resources=asking(1, memory_mb=700)).run_id
    daemon.wait_for_run(second, lambda run: run.queue_reason.startswith("waiting for 700 MB of memory (300 of 1000"))
    daemon.client.cancel(first)
    assert daemon.wait_for(second).outcome == "completed"


SMALL_MEMORY = """
import functools, logging, sys
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer import daemon
from gym_gui.services.trainer.resources import Inventory
from mosaic_wire.paths import find_home

class Probe:
    def free_memory_mb(self): return 1000
    def free_disk_mb(self, folder): return 1_000_000

daemon.CapacityGuard = functools.partial(daemon.CapacityGuard, probe=Probe())
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.exit(daemon.run_daemon(find_home(), load_settings(), inventory=Inventory(64, 100_000)))
"""


def test_a_burst_of_runs_does_not_get_the_same_free_memory_over_and_over(make_daemon) -> None:
    # 1000 MB stay free all the time, as they do until workers that were just started touch what they need.
    daemon = make_daemon(script=SMALL_MEMORY, min_free_memory_mb=100)
    runs = [daemon.submit(**ENDLESS, never_register=True, resources=asking(1, memory_mb=400)).run_id for _ in range(5)]
    daemon.wait_for(runs[1], "HSHK")
    daemon.wait_for_run(runs[2], lambda run: run.queue_reason.startswith("waiting for memory"))
    assert [daemon.client.get(run_id).status for run_id in runs] == ["HSHK", "HSHK", "INIT", "INIT", "INIT"]
    daemon.client.cancel(runs[0])
    assert daemon.wait_for(runs[2], "HSHK")
