"""What a run was made with, for its manifest: machine, versions, and the state of code that is not ours.

Everything is read from files of the kernel and of the installation: no program is started, nothing heavy is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import socket
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from mosaic_wire import env

PACKAGES = (
    "cleanrl-worker", "mosaic-wire", "torch", "numpy", "gymnasium", "safetensors", "tensorboard", "tyro", "protobuf",
)  # fmt: skip
"""Packages whose version may change what a run does or leaves"""

_PROC = Path("/proc")


def describe_machine(*, threads: int, proc: Path = _PROC) -> dict[str, Any]:
    """The host, its processor and memory, its GPUs with their driver, and how many threads training may use."""
    facts: dict[str, Any] = {
        "name": socket.gethostname(), "system": platform.platform(), "machine": platform.machine(),
        "python": platform.python_implementation(), "cpu": cpu_model(proc), "cpus": os.cpu_count() or 1,
        "usable_cpus": len(os.sched_getaffinity(0)), "memory_mb": _memory_mb(proc), "threads": threads,
    }  # fmt: skip
    driver = nvidia_driver(proc)
    if driver is not None:
        facts["gpu_driver"] = driver
        facts["gpus"] = nvidia_gpus(proc)
        facts["visible_gpus"] = os.environ.get(env.CUDA_VISIBLE_DEVICES)
    return facts


def cpu_model(proc: Path = _PROC) -> str:
    """The processor's name as the kernel tells it."""
    found = re.search(r"^(?:model name|Hardware|Processor)\s*:\s*(.+)$", _text(proc / "cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _memory_mb(proc: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    return int(found[1]) // 1024 if found else None


def nvidia_driver(proc: Path = _PROC) -> str | None:
    """Version of the loaded NVIDIA driver; None without one."""
    found = re.search(r"Kernel Module\D*?(?:for \S+\s+)?(\d+\.\d[\d.]*)", _text(proc / "driver/nvidia/version"))
    return found[1] if found else None


def nvidia_gpus(proc: Path = _PROC) -> list[dict[str, str]]:
    """Model and UUID of every GPU the driver has."""
    found = []
    for information in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        lines = (line.partition(":") for line in _text(information).splitlines())
        values = {name.strip(): value.strip() for name, _, value in lines}
        found.append({"model": values.get("Model", ""), "uuid": values.get("GPU UUID", "")})
    return found


def versions_of(packages: Iterable[str] = PACKAGES, from_sets: Mapping[str, str] | None = None) -> dict[str, str]:
    """Python's and each package's version; what the run's requirement sets bring wins over the base."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {**versions, **(from_sets or {})}


def describe_module(name: str) -> dict[str, Any] | None:
    """Where a person's own module (`module:Env-v0`) lies, its hash, and the state of the repository around it.

    The module itself is not imported; of a package's submodule the package is, as Python must do to find it.
    """
    from cleanrl_worker.scripts.provenance import repository_state

    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return None
    file = Path(spec.origin)
    facts: dict[str, Any] = {"module": name, "file": str(file), "sha256": _sha256(file)}
    if (state := repository_state(file.parent)) is not None:
        diff = str(state.pop("diff", ""))
        if diff:
            state["diff_sha256"] = hashlib.sha256(diff.encode("utf-8", "surrogateescape")).hexdigest()
        facts["git"] = state
    return facts


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
