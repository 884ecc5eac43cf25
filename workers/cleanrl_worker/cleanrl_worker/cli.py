"""The worker's command: python -m cleanrl_worker.cli (also `cleanrl-worker`).

Exit codes: 0 done, 1 failed, 2 bad input, 130 cancelled.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mosaic_wire.errors import ConfigProblems, Problem, WireError
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import find_home
from mosaic_wire.redaction import redact_document, secret_values
from mosaic_wire.worker_config import add_worker_arguments, daemon_target, overrides_from, run_folder_of

from cleanrl_worker.config import CleanRLWorkerConfig, read_flags
from cleanrl_worker.errors import BadInput
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

if TYPE_CHECKING:
    from cleanrl_worker.preflight import Preflight
    from cleanrl_worker.runtime import CleanRLWorkerRuntime

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
    from cleanrl_worker.description import spec_without_environments, worker_spec  # `--help` need not wait for them

    if arguments.describe:
        print(json.dumps(worker_spec().to_json()))
        return 0
    config, problems = _load(arguments, rest)
    folder = run_folder_of(config.run_id)

    from cleanrl_worker.preflight import check_run
    from cleanrl_worker.runtime import CleanRLWorkerRuntime

    found = check_run(config, spec_without_environments(), folder, find_home(), look_at_environments=arguments.dry_run)
    problems += found.problems
    runtime = None if problems else CleanRLWorkerRuntime(config, folder, target=daemon_target(arguments))
    if arguments.dry_run:
        return _show(runtime, found, problems, secret_values(config.extras), as_json=arguments.emit_summary)
    if runtime is None:
        raise ConfigProblems("the worker config", problems)
    return runtime.run()


def _show(
    runtime: CleanRLWorkerRuntime | None, found: Preflight, problems: list[Problem], secrets: set[str], *, as_json: bool
) -> int:
    """Print what a dry run found; what would run is shown without secrets."""
    summary: dict[str, Any] = {"ok": not problems}
    if runtime is not None:
        summary |= redact_document({**runtime.summary(), **found.summary()}, secrets)
    if as_json:
        told = [{"path": p.path, "message": p.message, "suggestion": p.suggestion} for p in problems]
        print(json.dumps({**summary, "problems": redact_document(told, secrets)}))
    elif runtime is not None:
        from cleanrl_worker.runtime import render_summary

        print(render_summary(summary))
    if problems:
        raise ConfigProblems("the worker config", problems)
    return 0


def _load(arguments: argparse.Namespace, rest: Sequence[str]) -> tuple[CleanRLWorkerConfig, list[Problem]]:
    """Read the file, then let the flags win: first the worker's own, then the algorithm's."""
    extras = _read_extras(arguments.extras)
    overrides = {**overrides_from(arguments), "extras": extras}
    config = CleanRLWorkerConfig.load(arguments.config, overrides, make_run_id=new_run_id)
    entry = DEFAULT_ALGO_REGISTRY.get(config.algo)
    if not rest or entry is None or not entry.module:  # without an algorithm nobody knows its flags
        return config, []
    values, problems = read_flags(rest, entry.spec())
    # A flag wins over the same parameter wherever the file has it.
    kept = {key: value for key, value in config.extras.items() if key.replace("-", "_") not in values}
    merged = {**kept, "algo_params": {**(config.extras.get("algo_params") or {}), **values}}
    return replace(config, extras=merged), problems


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
