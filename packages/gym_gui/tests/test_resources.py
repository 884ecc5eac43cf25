"""The ledger: who gets what, who waits for what, and what can never be."""

from __future__ import annotations

import pytest
from gym_gui.config.settings import Settings
from gym_gui.services.trainer.gpu import Gpu
from gym_gui.services.trainer.resources import Inventory, Reservation, ResourceLedger, ResourceRequest, detect_inventory
from hypothesis import given
from hypothesis import strategies as st

GPUS = tuple(Gpu(f"GPU-{number}", "Fake", 8192) for number in range(3))


def ledger(*, cpus: float = 4, memory_mb: int = 8000, gpus: int = 0) -> ResourceLedger:
    return ResourceLedger(Inventory(cpus, memory_mb, GPUS[:gpus]))


def reserve(ledger: ResourceLedger, run_id: str, **request: float) -> Reservation:
    reservation = ledger.reserve(run_id, ResourceRequest(**request))  # type: ignore[arg-type]
    assert isinstance(reservation, Reservation), reservation
    return reservation


def refusal(ledger: ResourceLedger, **request: float) -> str:
    before = ledger.free()
    answer = ledger.reserve("refused", ResourceRequest(**request))  # type: ignore[arg-type]
    assert isinstance(answer, str)
    assert ledger.free() == before, "a refusal reserves nothing"
    return answer


def test_what_is_reserved_is_unavailable_until_it_is_released() -> None:
    book = ledger()
    reserve(book, "a", cpus=3, memory_mb=5000)
    assert (book.free().cpus, book.free().memory_mb) == (1, 3000)
    assert refusal(book, cpus=2) == "waiting for 2 CPUs (1 of 4 free)"
    assert refusal(book, cpus=1, memory_mb=4000) == "waiting for 4000 MB of memory (3000 of 8000 MB not promised)"
    both = refusal(book, cpus=4, memory_mb=4000)
    assert both == "waiting for 4 CPUs (1 of 4 free) and 4000 MB of memory (3000 of 8000 MB not promised)"
    book.release("a")
    book.release("a")
    assert (book.free().cpus, book.free().memory_mb) == (4, 8000)


def test_fractions_of_a_cpu_add_up() -> None:
    book = ledger(cpus=1)
    for number in range(10):
        reserve(book, str(number), cpus=0.1)
    assert book.free().cpus == 0
    assert "0.1 CPUs (0 of 1 free)" in refusal(book, cpus=0.1)


def test_a_run_that_needs_no_cpu_never_waits_for_one() -> None:
    book = ledger(cpus=1)
    reserve(book, "a", cpus=1)
    reserve(book, "b", cpus=0)


def test_a_run_gets_as_many_gpus_as_are_free_between_mandatory_and_requested() -> None:
    book = ledger(gpus=3)
    assert reserve(book, "a", gpus=2, gpus_mandatory=1).gpu_ids == ("GPU-0", "GPU-1")
    assert reserve(book, "b", gpus=2, gpus_mandatory=1).gpu_ids == ("GPU-2",)
    assert refusal(book, gpus=1, gpus_mandatory=1) == "waiting for 1 GPU (none of 3 free)"
    assert (book.holder_of("GPU-1"), book.holder_of("GPU-2"), book.holder_of("GPU-9")) == ("a", "b", None)
    book.release("a")
    assert [gpu.id for gpu in book.free().gpus] == ["GPU-0", "GPU-1"]
    assert refusal(book, gpus=3, gpus_mandatory=3) == "waiting for 3 GPUs (2 of 3 free)"


def test_a_run_that_would_like_a_gpu_waits_for_one_where_there_are_any() -> None:
    book = ledger(gpus=1)
    reserve(book, "a", gpus=1, gpus_mandatory=1)
    assert "1 GPU" in refusal(book, gpus=1, gpus_mandatory=0)
    book.release("a")
    assert reserve(book, "b", gpus=2, gpus_mandatory=0).gpu_ids == ("GPU-0",)


def test_a_run_that_would_like_a_gpu_runs_on_the_cpu_where_there_is_none() -> None:
    book = ledger(gpus=0)
    assert book.impossible(ResourceRequest(gpus=1)) is None
    assert reserve(book, "a", gpus=1, gpus_mandatory=0).gpu_ids == ()


def test_a_run_without_gpus_gets_none() -> None:
    assert reserve(ledger(gpus=3), "a", cpus=1).gpu_ids == ()


@pytest.mark.parametrize(
    ("request_", "reported"),
    [
        (ResourceRequest(cpus=5), "needs 5 CPUs, this machine has 4 for runs"),
        (ResourceRequest(memory_mb=9000), "needs 9000 MB of memory, this machine has 8000 MB for runs"),
        (ResourceRequest(gpus=2, gpus_mandatory=2), "needs 2 GPUs, this machine has 1"),
    ],
)
def test_what_can_never_be_met_is_reported_with_the_numbers(request_: ResourceRequest, reported: str) -> None:
    reason = ledger(gpus=1).impossible(request_)
    assert reason is not None
    assert reported in reason
    assert "request less" in reason


def test_everything_that_is_lacking_is_reported_at_once() -> None:
    reason = ledger().impossible(ResourceRequest(cpus=64, memory_mb=10**6, gpus=1, gpus_mandatory=1))
    assert reason is not None
    assert "64 CPUs" in reason
    assert "1000000 MB" in reason
    assert "1 GPU, this machine has none" in reason


def test_what_is_only_taken_now_is_not_impossible() -> None:
    book = ledger()
    reserve(book, "a", cpus=4)
    assert book.impossible(ResourceRequest(cpus=4)) is None


def test_a_restored_run_may_hold_more_than_there_is() -> None:
    book = ledger(cpus=2, memory_mb=1000, gpus=1)
    book.restore("a", Reservation(cpus=2, memory_mb=900, gpu_ids=("GPU-0",)))
    book.restore("b", Reservation(cpus=2, memory_mb=900, gpu_ids=("GPU-0", "GPU-that-was-taken-out")))
    free = book.free()
    assert (free.cpus, free.memory_mb, free.gpus) == (0, 0, ())
    book.release("a")
    assert book.free().cpus == 0
    assert book.free().gpus == (), "b still holds it"
    book.release("b")
    assert (book.free().cpus, len(book.free().gpus)) == (2, 1)


def test_reserving_twice_is_a_mistake_of_the_caller() -> None:
    book = ledger()
    held = reserve(book, "a", cpus=1)
    with pytest.raises(ValueError, match="run a already holds"):
        book.reserve("a", ResourceRequest(cpus=1))
    assert book.held("a") == held


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"),
            st.sampled_from([0, 0.1, 0.5, 1, 2]),
            st.integers(0, 3),
            st.integers(0, 3),
            st.sampled_from([None, 100, 4000]),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_never_more_is_given_than_there_is(steps: list[tuple[str, float, int, int, int | None, bool]]) -> None:
    book, held = ledger(gpus=3), dict[str, Reservation]()
    for run_id, cpus, gpus, mandatory, memory_mb, release in steps:
        if release or run_id in held:
            book.release(run_id)
            held.pop(run_id, None)
            continue
        answer = book.reserve(run_id, ResourceRequest(cpus, max(gpus, mandatory), mandatory, memory_mb))
        if isinstance(answer, Reservation):
            held[run_id] = answer
            assert len(answer.gpu_ids) >= mandatory
        gpu_ids = [gpu_id for each in held.values() for gpu_id in each.gpu_ids]
        assert len(gpu_ids) == len(set(gpu_ids))
        assert sum(each.cpus for each in held.values()) <= 4 + 1e-6
        assert sum(each.memory_mb for each in held.values()) <= 8000
    for run_id in held:
        book.release(run_id)
    assert book.free().cpus == 4
    assert len(book.free().gpus) == 3


def test_the_inventory_is_what_the_machine_has_unless_the_settings_say_otherwise() -> None:
    real = detect_inventory(Settings())
    assert real.cpus > 0
    assert real.memory_mb > 16
    assert detect_inventory(Settings(cpus=1.5, memory_mb=100)).cpus == 1.5
    assert detect_inventory(Settings(memory_mb=100)).memory_mb == 100
