"""The run manifest as this worker writes it, with what the run was made with: machine, versions, foreign code.

What describes the machine is read from files of the kernel and of the installation; nothing heavy is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.checkpoints import unlisted_checkpoint
from mosaic_wire.files import write_bytes_atomically
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry, sha256_of_file
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_request import Mode

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.modes.checkpoints import find_checkpoint


def build_manifest(
    config: CleanRLWorkerConfig,
    folder: RunFolder,
    *,
    argv: Sequence[str],
    requirements: Sequence[str] = ("base",),
    threads: int = 1,
    attempt: int = 1,
    versions: Mapping[str, str] | None = None,
) -> AnalyticsManifest:
    """Return the manifest at the start of a run; what an earlier attempt left is kept.

    `versions` are those of the run's requirement sets, where they differ from what this process sees.
    """
    earlier = AnalyticsManifest.find(folder.manifest) if attempt > 1 else None
    checkpoints, best = _usable_checkpoints(earlier, config, folder) if earlier is not None else ((), {})
    events = config.tensorboard_folder(folder)
    steps = earlier.extra.get("video_steps") if earlier is not None else None
    own_module = config.env_id.rpartition(":")[0]
    environment = describe_module(own_module) if own_module else None
    return AnalyticsManifest(
        run_id=config.run_id,
        worker_type="cleanrl",
        algo=config.algo,
        env_id=config.env_id,
        seed=config.seed,
        tensorboard_dir=os.path.relpath(events, folder.root) if config.writes_events else None,
        checkpoints=checkpoints,
        videos=tuple(
            video for video in (earlier.videos if earlier is not None else ()) if (folder.root / video).exists()
        ),
        notes=str(config.extras.get("notes") or ""),
        requirements=tuple(requirements),
        versions=versions_of(from_sets=versions),
        hyperparameters=earlier.hyperparameters if earlier is not None else {},
        parent=_parent(config) or (earlier.parent if earlier is not None else None),
        argv=tuple(argv),
        host=describe_machine(threads=threads),
        extra={
            **({"environment_source": environment} if environment else {}),
            **best,
            **({"video_steps": steps} if isinstance(steps, dict) else {}),
        },
    )


def _usable_checkpoints(
    earlier: AnalyticsManifest, config: CleanRLWorkerConfig, folder: RunFolder
) -> tuple[tuple[CheckpointEntry, ...], dict[str, Any]]:
    """Return the checkpoints, and the best of them, up to the one to resume from: later ones are unusable."""
    source = config.resume_from
    if source is None or source.parent.resolve() != folder.checkpoints.resolve():
        return (), {}
    resumed_from = [entry for entry in earlier.checkpoints if Path(entry.path).name == source.name]
    if not resumed_from and (entry := unlisted_checkpoint(source)) is not None:
        resumed_from = [entry]  # a worker that was killed had no time to list it
    newest = max((entry.step for entry in resumed_from), default=int(source.name.removeprefix("step-")))
    kept = tuple(entry for entry in earlier.checkpoints if entry.step < newest) + tuple(resumed_from)
    best = earlier.extra.get("best")
    is_kept = isinstance(best, dict) and best.get("path") in {entry.path for entry in kept}
    return kept, {"best": best} if is_kept else {}


def _parent(config: CleanRLWorkerConfig) -> dict[str, Any] | None:
    """Return the other run whose checkpoint this one resumes from or plays with, if any."""
    source = find_checkpoint(config.extras) if config.mode in (Mode.RESUME, Mode.EVALUATE, Mode.INTERACTIVE) else None
    return source.parent(config.run_id) if source is not None else None


PACKAGES = (
    *("cleanrl-worker", "mosaic-wire", "torch", "numpy", "gymnasium"),
    *("safetensors", "tensorboard", "tyro", "protobuf"),
)
"""Packages whose version may change what a run does or leaves"""

_PROC = Path("/proc")


def describe_machine(*, threads: int, proc: Path = _PROC) -> dict[str, Any]:
    """Return the host, its processor and memory, its GPUs with their driver, and the threads training may use."""
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    facts: dict[str, Any] = {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_implementation(),
        "cpu": cpu_model(proc),
        "cpus": os.cpu_count() or 1,
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_mb": int(memory[1]) // 1024 if memory else None,
        "threads": threads,
    }
    driver = nvidia_driver(proc)
    if driver is not None:
        facts |= {"gpu_driver": driver, "gpus": nvidia_gpus(proc)}
        facts["visible_gpus"] = os.environ.get(env.CUDA_VISIBLE_DEVICES)
    return facts


def cpu_model(proc: Path = _PROC) -> str:
    """Return the processor's name from the kernel."""
    found = re.search(r"^(?:model name|Hardware|Processor)\s*:\s*(.+)$", _text(proc / "cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def nvidia_driver(proc: Path = _PROC) -> str | None:
    """Return the version of the loaded NVIDIA driver; None without one."""
    found = re.search(r"Kernel Module\D*?(?:for \S+\s+)?(\d+\.\d[\d.]*)", _text(proc / "driver/nvidia/version"))
    return found[1] if found else None


def nvidia_gpus(proc: Path = _PROC) -> list[dict[str, str]]:
    """Return model and UUID of every GPU the driver has."""
    found = []
    for information in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        lines = (line.partition(":") for line in _text(information).splitlines())
        values = {name.strip(): value.strip() for name, _, value in lines}
        found.append({"model": values.get("Model", ""), "uuid": values.get("GPU UUID", "")})
    return found


def versions_of(packages: Iterable[str] = PACKAGES, from_sets: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return Python's and each package's version; those of the run's requirement sets win over the base."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {**versions, **(from_sets or {})}


def describe_module(name: str) -> dict[str, Any] | None:
    """Return where a user's own module (`module:Env-v0`) lies, its hash, and the state of the repository around it.

    The module itself is not imported; of a package's submodule the package is, as Python must do to find it.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return None
    file = Path(spec.origin)
    facts: dict[str, Any] = {"module": name, "file": str(file), "sha256": sha256_of_file(file)}
    if (state := repository_state(file.parent)) is not None:
        if diff := str(state.pop("diff", "")):
            state["diff_sha256"] = hashlib.sha256(diff.encode("utf-8", "surrogateescape")).hexdigest()
        facts["git"] = state
    return facts


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


_GIT_TIMEOUT_S = 10.0
_MAX_DIFF_BYTES = 4 << 20
# No program that the repository's own configuration names is started, and nothing in it is written.
_GIT = (
    *("git", "--no-optional-locks"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "diff.external="),
)


def copy_script(script: Path, content: bytes, folder: RunFolder) -> dict[str, Any]:
    """Copy a script into the run folder; return what the manifest records about it."""
    copy = folder.root / "scripts" / script.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(copy, content)
    return {"path": str(script), "sha256": hashlib.sha256(content).hexdigest(), "copy": f"scripts/{copy.name}"}


def script_git_state(script: Path, folder: RunFolder, redact: Callable[[str], str]) -> dict[str, Any]:
    """Return the repository state around a script as `{"git": …}`, its diff in a file beside the copy; else `{}`."""
    if (git := repository_state(script.parent)) is None:
        return {}
    if diff := git.pop("diff"):
        git["diff"] = "scripts/uncommitted.diff"
        write_bytes_atomically(folder.root / git["diff"], redact(diff).encode("utf-8", "replace"))
    return {"git": git}


def repository_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, uncommitted changes and new files of the folder; None where there is no git or no repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _git(folder, "status", "--porcelain=v1", "--untracked-files=normal", "--", ".") or ""
    changes = [line for line in status.splitlines() if line]
    return {
        "commit": commit.strip(),
        "is_dirty": bool(changes),
        "changes": changes[:200],
        "diff": (_git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".") or "") if changes else "",
    }


def _git(folder: Path, *arguments: str) -> str | None:
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "timeout": _GIT_TIMEOUT_S}
    try:
        answer = subprocess.run([*_GIT, *arguments], cwd=folder, capture_output=True, check=True, **options)
    except (OSError, subprocess.SubprocessError):
        return None
    output: bytes = answer.stdout[:_MAX_DIFF_BYTES]
    return output.decode("utf-8", "replace")
