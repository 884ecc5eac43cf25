"""The worker's command: python -m cleanrl_worker.cli (also `cleanrl-worker`).

Exit codes: 0 done, 1 failed, 2 bad input, 130 cancelled; a script that fails has its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire import env
from mosaic_wire.config_checks import CheckAnswer, serve_checks
from mosaic_wire.errors import ConfigProblems, Problem, WireError
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import RunFolder, find_home
from mosaic_wire.redaction import redact_document, secret_values
from mosaic_wire.worker_config import (
    add_worker_arguments,
    canonical_flags,
    daemon_target,
    overrides_from,
    run_folder_of,
)
from mosaic_wire.worker_spec import AlgorithmSpec

from cleanrl_worker.config import CleanRLWorkerConfig, read_flags
from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.table import CUSTOM_SCRIPT, INTERACTIVE
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, resolve
from cleanrl_worker.switches import HELP, from_artifacts, take_switches

if TYPE_CHECKING:
    from cleanrl_worker.modes.custom_script_run import CustomScriptRun
    from cleanrl_worker.preflight import Preflight
    from cleanrl_worker.runtime import CleanRLWorkerRuntime
    from cleanrl_worker.scripts.choice import ScriptChoice
    from cleanrl_worker.scripts.runtime import ScriptRuntime

EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Describe the worker, check a config, or run it."""
    arguments, rest = _parser().parse_known_args(canonical_flags(sys.argv[1:] if argv is None else argv))
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
        epilog=f"switches, which win over the file:\n{HELP}\n\n"
        "Any flag of the algorithm may follow, e.g. --learning-rate 1e-3 --no-anneal-lr.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_worker_arguments(parser)
    parser.add_argument("--extras", metavar="JSON", help="an object that is merged over the file's extras")
    parser.add_argument(
        "--source", metavar="WHERE",
        help="upstream: CleanRL's own script of that name, from $CLEANRL_HOME; or the folder of a checkout",
    )  # fmt: skip
    parser.add_argument(
        "--describe-script", metavar="FILE", help="print what a script's text tells about it, as JSON, and exit"
    )
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="step the environment through JSON lines on standard input and output",
    )
    parser.add_argument(
        "--check", action="store_true", help="answer a config a line on standard input with what a dry run would find"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="install the requirement sets the config needs, and exit"
    )
    parser.add_argument("--emit-summary", action="store_true", help="with --dry-run: print the result as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
    return parser


def _run(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from cleanrl_worker.description import worker_spec  # `--help` need not wait for it

    if arguments.describe:
        print(json.dumps(worker_spec().to_json()))
        return 0
    if arguments.describe_script is not None:
        print(json.dumps(_describe_script(arguments.describe_script, arguments.source)))
        return 0
    if arguments.check:
        return serve_checks(check_document)
    config, script, problems = _load(arguments, rest)
    if arguments.prepare:
        return _install_missing(config, script)
    folder = _folder_of(config.run_id)
    found, runtime = _prepare(config, script, problems, folder, arguments)
    if arguments.dry_run:
        return _show(runtime, found, problems, secret_values(config.extras), as_json=arguments.emit_summary)
    if runtime is None:
        raise ConfigProblems("the worker config", problems)
    return runtime.run()


def check_document(document: Mapping[str, Any]) -> CheckAnswer:
    """What a dry run would find, for a run that is to be queued: memory that is taken now may be free by then."""
    from cleanrl_worker.description import spec_without_environments
    from cleanrl_worker.preflight import ALL_THERE_IS, check_run

    config = CleanRLWorkerConfig.from_json(document, make_run_id=new_run_id)
    if config.mode == CUSTOM_SCRIPT:
        return CheckAnswer()  # the daemon knows the folders that scripts may come from
    home, spec = find_home(), spec_without_environments()
    folder = home.run_folder(config.run_id)
    try:
        if (script := _script_of(config)) is None:
            found = check_run(config, spec, folder, home, memory=ALL_THERE_IS)
        else:
            from cleanrl_worker.scripts.checking import check_script

            found = check_script(config, script, spec, folder, home, may_install=True, memory=ALL_THERE_IS)
    except BadInput as error:
        return CheckAnswer([Problem("", str(error))])
    return CheckAnswer(found.problems, found.fits, found.missing_sets, notes=found.notes)


def _prepare(
    config: CleanRLWorkerConfig, script: ScriptChoice | None, problems: list[Problem], folder: RunFolder,
    arguments: argparse.Namespace,
) -> tuple[Preflight, CleanRLWorkerRuntime | ScriptRuntime | CustomScriptRun | None]:  # fmt: skip
    """What was found out, and what would run; nothing when there are problems, which are added to the list."""
    from cleanrl_worker.description import spec_without_environments

    target = daemon_target(arguments)
    if config.mode == CUSTOM_SCRIPT:
        return _prepare_custom_script(config, problems, folder, target)
    if script is not None:
        from cleanrl_worker.scripts.checking import check_script
        from cleanrl_worker.scripts.runtime import ScriptRuntime

        found = check_script(
            config, script, spec_without_environments(), folder, find_home(), may_install=arguments.dry_run
        )
        problems += found.problems
        return found, None if problems else ScriptRuntime(config, script, found, folder, target=target)

    from cleanrl_worker.preflight import check_run
    from cleanrl_worker.runtime import CleanRLWorkerRuntime

    found = check_run(config, spec_without_environments(), folder, find_home(), look_at_environments=arguments.dry_run)
    problems += found.problems
    terminal = _take_terminal() if arguments.interactive and not arguments.dry_run else None
    runtime = None if problems else CleanRLWorkerRuntime(config, folder, target=target, found=found, terminal=terminal)
    return found, runtime


def _prepare_custom_script(
    config: CleanRLWorkerConfig, problems: list[Problem], folder: RunFolder, target: str | None
) -> tuple[Preflight, CustomScriptRun | None]:
    from cleanrl_worker.modes.custom_script import find_script
    from cleanrl_worker.modes.custom_script_run import CustomScriptRun
    from cleanrl_worker.preflight import Preflight

    script, wrong = find_script(config.extras)
    problems += wrong
    return Preflight(), None if script is None or problems else CustomScriptRun(config, script, folder, target=target)


def _install_missing(config: CleanRLWorkerConfig, script: ScriptChoice | None) -> int:
    from cleanrl_worker.preparing import install_missing
    from cleanrl_worker.requirement_sets import sets_needed

    if script is not None:
        sets = script.requirement_sets(config.env_id, config.extras)
    else:
        sets = sets_needed(resolve(config.algo), config.env_id, config.extras)
    return install_missing(find_home(), sets)


def _take_terminal() -> tuple[int, int]:
    """Keep standard input and output for the protocol; whatever else is printed goes to standard error."""
    terminal = os.dup(0), os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    return terminal


def _folder_of(run_id: str) -> RunFolder:
    """The run's folder; a worker that a custom script started makes a phase of the script's run."""
    folder = run_folder_of(run_id)
    inside = os.environ.get(env.MOSAIC_SCRIPT_RUN) not in (None, "", run_id)
    return RunFolder(folder.root / "phases" / run_id) if inside else folder


def _describe_script(name: str, source: str | None) -> dict[str, Any]:
    from cleanrl_worker.scripts.choice import ScriptChoice, find_script

    extras = {"script_path": str(find_script(name, source)), "source": source}
    choice = ScriptChoice.of(name, extras)
    default = choice.script.parameter_for("env_id")
    env_id = str(default.field.default or "") if default is not None else ""
    return choice.script.spec(choice.requirement_sets(env_id, extras)).to_json()


def _show(
    runtime: CleanRLWorkerRuntime | ScriptRuntime | CustomScriptRun | None,
    found: Preflight,
    problems: list[Problem],
    secrets: set[str],
    *,
    as_json: bool,
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


def _load(
    arguments: argparse.Namespace, rest: Sequence[str]
) -> tuple[CleanRLWorkerConfig, ScriptChoice | None, list[Problem]]:
    """Read the file, then let the flags win: first the worker's own, then the algorithm's."""
    extras = _read_extras(arguments.extras)
    if arguments.source is not None:
        extras["source"] = arguments.source
    if arguments.interactive:
        extras["mode"] = INTERACTIVE
    overrides = {**overrides_from(arguments), "extras": extras}
    if arguments.interactive and arguments.config is None:  # who only plays need not say how it would be trained
        overrides = {**overrides, "algo": overrides["algo"] or "ppo", "total_timesteps": 1}
    if extras.get("script_path") and not overrides.get("algo"):
        overrides["algo"] = Path(str(extras["script_path"])).stem
    config = CleanRLWorkerConfig.load(arguments.config, overrides, make_run_id=new_run_id)
    script = _script_of(config)
    algorithm = script.script.algorithm() if script is not None else _algorithm(config.algo)
    switched = from_artifacts(config.raw, config.extras)
    rest, switched = take_switches(rest, switched, algorithm, is_script=script is not None)
    config = replace(config, extras=switched)
    if not rest or algorithm is None:  # without an algorithm nobody knows its flags
        return config, script, []
    values, problems = read_flags(rest, algorithm)
    # A flag wins over the same parameter wherever the file has it.
    kept = {key: value for key, value in config.extras.items() if key.replace("-", "_") not in values}
    merged = {**kept, "algo_params": {**(config.extras.get("algo_params") or {}), **values}}
    return replace(config, extras=merged), script, problems


def _script_of(config: CleanRLWorkerConfig) -> ScriptChoice | None:
    """The script this run trains with, if it does."""
    if not (config.extras.get("script_path") or config.extras.get("source")):
        return None  # most runs: nothing has to be imported for that
    from cleanrl_worker.scripts.choice import ScriptChoice, means_a_script

    return ScriptChoice.of(config.algo, config.extras) if means_a_script(config.extras) else None


def _algorithm(name: str) -> AlgorithmSpec | None:
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    return entry.spec() if entry is not None and entry.module else None


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
