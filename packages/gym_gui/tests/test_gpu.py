"""GPUs: the allocator, CUDA_VISIBLE_DEVICES, and NVML with and without a driver."""

from __future__ import annotations

import pynvml
import pytest
from gym_gui.services.trainer.gpu import Gpu, GPUAllocator, choose_visible, detect_gpus

CARDS = (Gpu("GPU-aaaa-1", "One", 1000), Gpu("GPU-aabb-2", "Two", 2000), Gpu("GPU-cccc-3", "Three", 3000))


def driver_is_there() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


def test_a_gpu_has_one_holder_at_a_time() -> None:
    allocator = GPUAllocator(CARDS)
    assert allocator.allocate("a", 2) == ("GPU-aaaa-1", "GPU-aabb-2")
    assert allocator.allocate("b", 2) is None
    assert allocator.allocate("b", 1) == ("GPU-cccc-3",)
    assert allocator.free == ()
    assert allocator.allocate("c", 0) == ()
    with pytest.raises(ValueError, match="run a already holds GPUs"):
        allocator.allocate("a", 1)
    allocator.release("a")
    allocator.release("a")
    assert [gpu.id for gpu in allocator.free] == ["GPU-aaaa-1", "GPU-aabb-2"]
    assert allocator.holder_of("GPU-cccc-3") == "b"
    assert allocator.holder_of("GPU-aaaa-1") is None


def test_a_restored_run_keeps_its_gpus_also_when_the_machine_no_longer_has_them() -> None:
    allocator = GPUAllocator(CARDS)
    allocator.restore("a", ["GPU-cccc-3", "GPU-gone"])
    assert len(allocator.free) == 2
    allocator.release("a")
    assert len(allocator.free) == 3


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, ["One", "Two", "Three"]),
        ("", []),
        ("0", ["One"]),
        ("2,0", ["Three", "One"]),
        ("1,1", ["Two"]),
        (" 1 , 2 ", ["Two", "Three"]),
        ("GPU-cccc-3", ["Three"]),
        ("GPU-cc", ["Three"]),
        ("0,9,1", ["One"]),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_daemons_own_cuda_visible_devices_is_obeyed(visible: str | None, chosen: list[str]) -> None:
    assert [gpu.name for gpu in choose_visible(CARDS, visible)] == chosen


@pytest.mark.skipif(driver_is_there(), reason="this machine has an NVIDIA driver")
def test_a_machine_without_a_driver_has_no_gpus() -> None:
    assert detect_gpus() == ()


@pytest.mark.gpu
@pytest.mark.skipif(not driver_is_there(), reason="needs an NVIDIA driver")
def test_real_gpus_have_an_id_that_cuda_understands_a_name_and_memory() -> None:
    gpus = detect_gpus({})
    assert gpus
    for gpu in gpus:
        assert gpu.id.startswith(("GPU-", "MIG-"))
        assert gpu.name
        assert gpu.memory_mb > 1000
    assert detect_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert detect_gpus({"CUDA_VISIBLE_DEVICES": gpus[-1].id}) == (gpus[-1],)
