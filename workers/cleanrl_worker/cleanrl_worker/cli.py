"""The worker's command: python -m cleanrl_worker.cli (also `cleanrl-worker`).

Exit codes: 0 done, 1 failed, 2 bad input, 130 cancelled.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from mosaic_wire.errors import ConfigProblems, Problem, WireError
from mosaic_wire.ids import new_run_id
from mosaic_wire.worker_config import add_worker_arguments, daemon_target, overrides_from, run_folder_of
from mosaic_wire.worker_spec import AlgorithmSpec, nearest

from cleanrl_worker.config import CleanRLWorkerConfig, parse_flags
from cleanrl_worker.errors import BadInput
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Describe the worker, check a config, or run it."""
    arguments, rest = _parser().parse_known_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        return _run(arguments, rest)
    except (WireError, BadInput) as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cleanrl-worker", description="Run one CleanRL algorithm as a MOSAIC worker.", allow_abbrev=False,
        epilog="Any flag of the algorithm may follow, e.g. --learning-rate 1e-3 --no-anneal-lr.",
    )  # fmt: skip
    add_worker_arguments(parser)
    parser.add_argument("--extras", metavar="JSON", help="an object that is merged over the file's extras")
    parser.add_argument("--emit-summary", action="store_true", help="with --dry-run: print the result as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
    return parser


def _run(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from cleanrl_worker.description import worker_spec  # imports gymnasium, which `--help` need not wait for

    if arguments.describe:
        print(json.dumps(worker_spec().to_json()))
        return 0
    config = _load(arguments, rest)
    folder = run_folder_of(config.run_id)
    if problems := config.problems(worker_spec(), folder):
        raise ConfigProblems("the worker config", problems)

    from cleanrl_worker.runtime import CleanRLWorkerRuntime, render_summary

    runtime = CleanRLWorkerRuntime(config, folder, target=daemon_target(arguments))
    if arguments.dry_run:
        summary = runtime.summary()
        print(json.dumps(summary) if arguments.emit_summary else render_summary(summary))
        return 0
    return runtime.run()


def _load(arguments: argparse.Namespace, rest: Sequence[str]) -> CleanRLWorkerConfig:
    """Read the file, then let the flags win: first the worker's own, then the algorithm's."""
    extras = _read_extras(arguments.extras)
    overrides = {**overrides_from(arguments), "extras": extras}
    config = CleanRLWorkerConfig.load(arguments.config, overrides, make_run_id=new_run_id)
    if not rest:
        return config
    values = parse_flags(rest, _algorithm(config.algo))
    # A flag wins over the same parameter wherever the file has it.
    kept = {key: value for key, value in config.extras.items() if key.replace("-", "_") not in values}
    merged = {**kept, "algo_params": {**(config.extras.get("algo_params") or {}), **values}}
    return CleanRLWorkerConfig(
        config.run_id, config.algo, config.env_id, config.total_timesteps, config.seed, merged, config.worker_id,
        config.raw,
    )  # fmt: skip


def _algorithm(name: str) -> AlgorithmSpec:
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    if entry is None:
        hint = nearest(name, DEFAULT_ALGO_REGISTRY)
        raise ConfigProblems("the worker config", [Problem("algo", f"unknown algorithm {name!r}", hint)])
    spec = entry.spec()
    if spec.unavailable:
        raise ConfigProblems("the worker config", [Problem("algo", f"{name!r} cannot run now: {spec.unavailable}")])
    return spec


def _read_extras(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        extras = json.loads(text)
    except ValueError as error:
        raise BadInput(f"--extras is not JSON: {error}") from error
    if not isinstance(extras, dict):
        raise BadInput(f"--extras must be a JSON object, not {type(extras).__name__}")
    return extras


if __name__ == "__main__":
    sys.exit(main())
