"""A short-lived process that reads a foreign `.cleanrl_model` and writes plain arrays: python -m … SOURCE DESTINATION

Nothing of the file is executed: torch's restricted unpickler reads it, in a process that has no secrets, no terminal
and little time. What comes out is a safetensors file and one JSON line that describes the file.
"""

from __future__ import annotations

import gc
import json
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cleanrl_worker.modes.checkpoints import STATISTICS_KEY

EXIT_REFUSED = 3
PREFIX = f"{STATISTICS_KEY}/"
"""Before the names of statistics in the safetensors file"""
_CPU_S = 300
_OLDEST_TORCH = (2, 10)
"""Before that release the restricted unpickler could be led out of its limits"""


class Refused(Exception):
    """The file is not what can be read, and why."""


def main(source: Path, destination: Path) -> int:
    """Convert the file; exit code 3 and one line on stderr when it is refused."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        tensors, facts = read(source)
    except Refused as reason:
        sys.stderr.write(f"{reason}\n")
        return EXIT_REFUSED
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, destination)
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def read(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors by name, and other facts of the file."""
    gc.disable()  # a short life: nothing is worth collecting
    import torch

    gc.freeze()
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < _OLDEST_TORCH:
        raise Refused(f"torch {torch.__version__} cannot read files of others safely; install torch 2.10 or newer")
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's file raises is a reason to refuse it
        raise Refused(_reason(error)) from None
    networks, facts = _networks(content)
    tensors = {}
    for prefix, network in networks.items():
        for name, tensor in network.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise Refused(f"its entry {str(name)[:80]!r} is {type(tensor).__name__}, not a tensor")
            floats = tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64)
            # A clone, because tied weights share memory and a safetensors file must not.
            tensors[f"{prefix}{name}"] = (tensor.float() if floats else tensor).clone()
    if not tensors:
        raise Refused("it holds no weights")
    return {**tensors, **_statistics(content)}, facts


def _statistics(content: Any) -> dict[str, Any]:
    """Return the normalizer's statistics that `run.policy_bytes` puts beside the weights, under names of their own."""
    import torch

    metadata = getattr(content, "_metadata", None)
    found = metadata.get(STATISTICS_KEY) if isinstance(metadata, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {f"{PREFIX}{name}": value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _networks(content: Any) -> tuple[dict[str, Mapping[Any, Any]], dict[str, Any]]:
    """Return the state dicts in the file by prefix, for each of the shapes CleanRL's scripts write."""
    if isinstance(content, list | tuple):
        if not content or not all(isinstance(part, Mapping) for part in content):
            raise Refused("it holds a list that is not one of state dicts")
        return {f"{index}.": part for index, part in enumerate(content)}, {"shape": "tuple", "networks": len(content)}
    if not isinstance(content, Mapping):
        raise Refused(f"it holds {type(content).__name__}, not weights")
    for key, shape in (("model_weights", "model_weights"), ("model_state_dict", "model_state_dict")):
        if isinstance(content.get(key), Mapping):
            rest = {name: value for name, value in content.items() if name != key}
            return {"": content[key]}, {"shape": shape, "networks": 1, **_plain(rest)}
    return {"": content}, {"shape": "state_dict", "networks": 1}


def _plain(facts: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the flags, and the step that training had reached."""
    found: dict[str, Any] = {}
    args = facts.get("args")
    if isinstance(args, Mapping):
        found["args"] = {str(k): v for k, v in args.items() if isinstance(v, bool | int | float | str)}
    found |= {name: facts[name] for name in ("global_step", "iteration") if isinstance(facts.get(name), int)}
    return found


def _reason(error: Exception) -> str:
    text = str(error)
    if match := re.search(r"(?:GLOBAL|Unsupported (?:global|class))[:\s]+(?:GLOBAL\s+)?([\w.]+)", text):
        return f"it would run code when it is loaded ({match[1]}); only plain weights are read"
    if "nsupported" in text or "eights only" in text:
        return "it holds more than plain weights; only plain weights are read"
    first = text.strip().splitlines()[0][:200] if text.strip() else type(error).__name__
    return f"it cannot be read as a torch file: {first if ' ' in first else 'it is damaged'}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
