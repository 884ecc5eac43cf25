"""Run any algorithm alone: python -m cleanrl_worker.algorithms ppo --env-id CartPole-v1"""

from __future__ import annotations

import importlib
import os
import sys

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.threads import limit_threads


def main() -> None:
    """The first argument names the algorithm, the rest are its flags."""
    limit_threads(1)  # before numpy and torch are imported
    available = sorted(name for name, entry in DEFAULT_ALGO_REGISTRY.items() if entry.module)
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in available:
        sys.exit(f"usage: python -m cleanrl_worker.algorithms NAME [flags]; names: {', '.join(available)}")
    entry = DEFAULT_ALGO_REGISTRY[name]
    module = importlib.import_module(entry.module)
    from cleanrl_worker.training.standalone import parse_args, run_alone

    if hasattr(module, "follow") and int(os.environ.get("RANK", "0")) > 0:  # one of several, and not the first
        module.follow(parse_args(name, getattr(module, entry.preset), sys.argv[2:]))
        return
    run_alone(name, getattr(module, entry.preset), module.train, sys.argv[2:])


if __name__ == "__main__":
    main()
