"""The waiting line: order, fairness, and the reported reason."""

from __future__ import annotations

from dataclasses import dataclass

from gym_gui.services.trainer.gpu import Gpu
from gym_gui.services.trainer.resources import Inventory, ResourceLedger, ResourceRequest, RunQueue


@dataclass(frozen=True)
class Waiting:
    """The part of a run record that the queue reads."""

    run_id: str
    number: int
    priority: int = 0
    cpus: float = 1.0
    gpus: int = 0
    executor: str = ""


def start_what_fits(queue: RunQueue, ledger: ResourceLedger) -> list[str]:
    started = []
    for run in queue.candidates(ledger):
        reservation = ledger.reserve(run.run_id, ResourceRequest(run.cpus, run.gpus, run.gpus))
        if isinstance(reservation, str):
            queue.blocked(run, reservation)
        else:
            queue.remove(run.run_id)
            started.append(run.run_id)
    return started


def queue_of(*runs: Waiting) -> RunQueue:
    queue = RunQueue()
    for run in runs:
        queue.add(run)
    return queue


def test_equal_priorities_start_in_order_of_submission():
    queue = queue_of(Waiting("b", 2), Waiting("a", 1), Waiting("c", 3))
    assert start_what_fits(queue, ResourceLedger(Inventory(2, 1000))) == ["a", "b"]
    assert queue.reason("c").startswith("waiting")


def test_a_higher_priority_goes_first_and_can_be_changed_while_queued():
    queue = queue_of(Waiting("a", 1), Waiting("b", 2), Waiting("urgent", 3, priority=5))
    queue.add(Waiting("b", 2, priority=9))
    assert start_what_fits(queue, ResourceLedger(Inventory(1, 1000))) == ["b"]
    assert start_what_fits(queue, ResourceLedger(Inventory(1, 1000))) == ["urgent"]


def test_a_large_run_is_not_starved_by_small_ones_behind_it():
    ledger = ResourceLedger(Inventory(2, 1000))
    ledger.reserve("running", ResourceRequest(1))
    queue = queue_of(Waiting("large", 1, cpus=2), Waiting("small", 2))
    assert start_what_fits(queue, ledger) == []
    ledger.release("running")
    assert start_what_fits(queue, ledger) == ["large"]


def test_a_run_that_waits_for_a_gpu_does_not_idle_the_cpus():
    ledger = ResourceLedger(Inventory(3, 1000, (Gpu("GPU-0", "fake", 1000),)))
    ledger.reserve("holder", ResourceRequest(1, 1, 1))
    queue = queue_of(Waiting("wants-gpu", 1, gpus=1), Waiting("cpu-only", 2))
    assert start_what_fits(queue, ledger) == ["cpu-only"]
    assert "GPU" in queue.reason("wants-gpu")


def test_the_cpus_of_a_waiting_gpu_run_are_kept_for_it():
    ledger = ResourceLedger(Inventory(2, 1000, (Gpu("GPU-0", "fake", 1000),)))
    ledger.reserve("holder", ResourceRequest(1, 1, 1))
    queue = queue_of(Waiting("wants-gpu", 1, gpus=1), Waiting("cpu-only", 2))
    assert start_what_fits(queue, ledger) == []


def test_a_run_without_cpus_starts_on_a_busy_machine():
    ledger = ResourceLedger(Inventory(1, 1000))
    ledger.reserve("running", ResourceRequest(1))
    queue = queue_of(Waiting("controller", 1, cpus=0))
    assert start_what_fits(queue, ledger) == ["controller"]


def test_a_removed_run_waits_for_nothing():
    queue = queue_of(Waiting("a", 1))
    queue.remove("a")
    assert "a" not in queue
    assert len(queue) == 0
    assert queue.reason("a") == ""


def test_a_run_that_requests_nothing_does_not_wait():
    """A sweep reserves no CPU: it starts when all are taken, wherever it stands in line."""
    ledger = ResourceLedger(Inventory(1, 1000))
    ledger.reserve("running", ResourceRequest(1))
    queue = queue_of(Waiting("a", 1), Waiting("b", 2), Waiting("sweep", 3, cpus=0), Waiting("c", 4))
    assert start_what_fits(queue, ledger) == ["sweep"]
    assert start_what_fits(queue, ledger) == []
    ledger.release("running")
    assert start_what_fits(queue, ledger) == ["a"], "and takes no other run's place"


def test_a_run_that_waits_for_a_cluster_keeps_no_place_of_this_machine():
    queue = queue_of(Waiting("there", 1, cpus=4, gpus=8, executor="cluster"), Waiting("here", 2, cpus=2))
    assert start_what_fits(queue, ResourceLedger(Inventory(2, 1000))) == ["here"]
    assert (queue.count("cluster"), queue.count("")) == (1, 0)
    assert queue.reason("there").startswith("waiting")
