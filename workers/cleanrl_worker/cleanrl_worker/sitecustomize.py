"""Hooks around the libraries of an unmodified script: where its event files go, W&B, and a place to wrap environments.

Installed by the launcher into the training process and nowhere else: despite its name, this file is on no search path.
Processes that multiprocessing starts for environments get the hooks, because they run a part of the script (`spawn`: by
their command line; `forkserver`: preloaded; `fork`: inherited). Any other interpreter the script starts does not.

Nothing is imported here that the script would not have imported: a module is patched when it is loaded.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from cleanrl_worker import fastlane

FLUSH_S = 1
"""Scalars reach the event file within this many seconds (the libraries' own default is 120)"""

MARK = "CLEANRL_HOOKS"
"""Environment variable with the settings, for processes that get them in no other way; it does nothing by itself"""


@dataclass(frozen=True)
class HookSettings:
    """Settings of the hooks; passed to environment processes as JSON."""

    run_dir: str
    tensorboard_dir: str
    wandb_mode: str = ""
    """overrides the script's mode, unless that is `disabled`; empty: the script's"""
    wandb_name: str = ""
    """the name the user chose for the W&B run; empty: the script's"""


# ------------------------------------------------------------------ the place for FastLane and video

EnvironmentWrapper = Callable[[Any], Any]

environment_wrappers: list[EnvironmentWrapper] = []
"""Each gets what `gym.make` of gymnasium or old gym made, and returns what the script shall get"""


# ------------------------------------------------------------------ installing

_settings: HookSettings | None = None
_writers: list[Any] = []
"""Kept: a script that has ended no longer refers to them, and what they buffer would be lost"""


def install(settings: HookSettings) -> None:
    """Patch what is loaded already, and everything else when it is loaded. Harmless when called twice."""
    global _settings
    first = _settings is None
    _settings = settings
    if not first:
        return
    os.environ[MARK] = json.dumps(asdict(settings))
    sys.meta_path.insert(0, _Finder())
    for name, patch in _PATCHES.items():
        if (module := sys.modules.get(name)) is not None:
            patch(module)
    fastlane.install(environment_wrappers)


def install_in_child(text: str) -> None:
    """Install the hooks in a process that multiprocessing started."""
    install(HookSettings(**json.loads(text)))


def flush_writers() -> None:
    """Write to disk what a script that ends without closing its writers would lose."""
    for writer in _writers:
        try:
            writer.flush()
        except Exception as error:  # noqa: BLE001 - a closed writer, a full disk: the script is over anyway
            sys.stderr.write(f"an event file could not be flushed: {error}\n")


class _Finder(importlib.abc.MetaPathFinder):
    """Find the modules of `_PATCHES` with the other finders, and patch them once they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = _PATCHES.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                _patch_after_loading(spec, patch)
                return spec
        return None


def _patch_after_loading(spec: importlib.machinery.ModuleSpec, patch: Callable[[ModuleType], None]) -> None:
    # On the loader itself, so that it keeps its type: resources and sources of the module are found through it.
    loader: Any = spec.loader
    if loader is None or not hasattr(loader, "exec_module"):
        return
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        patch(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        sys.stderr.write(f"{spec.name} cannot be hooked: its loader {type(loader).__name__} takes no attributes\n")


# ------------------------------------------------------------------ TensorBoard


def place_of(log_dir: str) -> str:
    """Return the folder below the run's TensorBoard folder that replaces the one the script requested."""
    assert _settings is not None
    requested = os.path.abspath(log_dir)
    if _is_below(requested, _settings.tensorboard_dir):
        return requested
    if _is_below(requested, _settings.run_dir):
        parts = os.path.relpath(requested, _settings.run_dir).split(os.sep)
        if parts[0] == "runs":
            parts = parts[1:]
    else:  # an absolute path somewhere else: its last part is the name
        parts = [os.path.basename(requested)]
    return os.path.join(_settings.tensorboard_dir, *(part for part in parts if part not in ("", ".")))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _redirected(log_dir: Any) -> str:
    # Scripts save their models beside their event files, so the folder they named must exist, too.
    os.makedirs(log_dir, exist_ok=True)
    return place_of(os.fspath(log_dir))


def _patch_summary_writer(module: ModuleType) -> None:
    writer = module.SummaryWriter
    original = writer.__init__

    @functools.wraps(original)
    def __init__(self: Any, log_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        if "logdir" in kwargs and log_dir is None:  # tensorboardX calls it so
            log_dir = kwargs.pop("logdir")
        if kwargs.get("write_to_disk", True):
            if not log_dir:
                stamp = time.strftime("%b%d_%H-%M-%S")
                log_dir = os.path.join("runs", stamp + str(kwargs.get("comment", args[0] if args else "")))
            log_dir = _redirected(log_dir)
        # log_dir, comment, purge_step, max_queue, flush_secs
        if len(args) > 3:
            args = (*args[:3], min(args[3], FLUSH_S), *args[4:])
        else:
            kwargs["flush_secs"] = min(kwargs.get("flush_secs", FLUSH_S), FLUSH_S)
        original(self, log_dir, *args, **kwargs)
        _writers.append(self)

    writer.__init__ = __init__


# ------------------------------------------------------------------ Weights & Biases


def _patch_wandb(module: ModuleType) -> None:
    original = module.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        assert _settings is not None
        if _settings.wandb_mode and kwargs.get("mode") != "disabled":
            kwargs["mode"] = _settings.wandb_mode
        if _settings.wandb_name:
            kwargs["name"] = _settings.wandb_name
        return original(*args, **kwargs)

    module.init = init  # type: ignore[attr-defined]


# ------------------------------------------------------------------ environments


def _patch_make(module: ModuleType) -> None:
    """Patch `gymnasium.envs.registration` and `gym.envs.registration`, where `make` is imported from."""
    original = module.make

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        environment = original(*args, **kwargs)
        for wrap in environment_wrappers:
            environment = wrap(environment)
        return environment

    module.make = make  # type: ignore[attr-defined]


# ------------------------------------------------------------------ environment processes


def _patch_spawn(module: ModuleType) -> None:
    original = module.get_command_line

    @functools.wraps(original)
    def get_command_line(**kwargs: Any) -> list[str]:
        assert _settings is not None
        command = list(original(**kwargs))
        if "-c" in command:
            place = command.index("-c") + 1
            text = json.dumps(asdict(_settings))
            command[place] = f"from {__name__} import install_in_child; install_in_child({text!r}); {command[place]}"
        return command

    module.get_command_line = get_command_line  # type: ignore[attr-defined]


def _patch_forkserver(module: ModuleType) -> None:
    server = module._forkserver
    server.set_forkserver_preload([*server._preload_modules, f"{__package__}.hooked_child"])


_PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch.utils.tensorboard.writer": _patch_summary_writer,
    "tensorboardX.writer": _patch_summary_writer,
    "wandb": _patch_wandb,
    "gymnasium.envs.registration": _patch_make,
    "gym.envs.registration": _patch_make,
    "multiprocessing.spawn": _patch_spawn,
    "multiprocessing.forkserver": _patch_forkserver,
}
"""What is patched, and how; modules that are never imported cost nothing"""
