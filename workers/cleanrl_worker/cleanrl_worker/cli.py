"""The worker's command: python -m cleanrl_worker.cli (also `cleanrl-worker`).

Exit codes: 0 done, 1 failed, 2 bad input, 130 cancelled; a script that fails has its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire import env
from mosaic_wire.config_checks import CheckAnswer, serve_checks
from mosaic_wire.errors import ConfigProblems, Problem, WireError
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import RunFolder, find_home
from mosaic_wire.redaction import redact_document, secret_values
from mosaic_wire.run_request import Extras, Mode, algo_params, runs_script, without
from mosaic_wire.worker_config import (
    add_worker_arguments,
    canonical_flags,
    daemon_target,
    overrides_from,
    run_folder_of,
)
from mosaic_wire.worker_spec import AlgorithmSpec

from cleanrl_worker.config import (
    SWITCHES,
    CleanRLWorkerConfig,
    apply_switches,
    from_artifacts,
    no_progress_problems,
    read_flags,
)
from cleanrl_worker.errors import BadInput
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, resolve, worker_spec

if TYPE_CHECKING:
    from cleanrl_worker.preflight import Preflight
    from cleanrl_worker.runtime import SupervisedRun
    from cleanrl_worker.scripts.checking import ScriptChoice

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
        prog="cleanrl-worker",
        description="Run one CleanRL algorithm as a MOSAIC worker.",
        epilog=f"switches, which win over the file:\n{SWITCHES}\n\n"
        "Any flag of the algorithm may follow, e.g. --learning-rate 1e-3 --no-anneal-lr.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_worker_arguments(parser)
    upstream = "upstream: CleanRL's own script of that name, from $CLEANRL_HOME; or the folder of a checkout"
    parser.add_argument("--extras", metavar="JSON", help="an object that is merged over the file's extras")
    parser.add_argument("--source", metavar="WHERE", help=upstream)
    parser.add_argument("--describe-script", metavar="FILE", help="print a script's parameters as JSON, and exit")
    for flag, text in {
        "--interactive": "step the environment through JSON lines on standard input and output",
        "--check": "answer a config a line on standard input with what a dry run would find",
        "--prepare": "install the requirement sets the config needs, and exit",
        "--emit-summary": "with --dry-run: print the result as JSON",
    }.items():
        parser.add_argument(flag, action="store_true", help=text)
    parser.add_argument("-v", "--verbose", action="store_true", help="log more on stderr")
    return parser


def _run(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
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
        from mosaic_extras.install_extras import prepare

        return prepare(find_home(), _sets_of(config, script))
    found, make_run = _prepare(config, script, arguments)
    problems += found.problems
    run = make_run() if make_run is not None and not problems else None
    if arguments.dry_run:
        _print_summary(run, found, problems, secret_values(config.extras), as_json=arguments.emit_summary)
    if run is None:
        raise ConfigProblems("the worker config", problems)
    return 0 if arguments.dry_run else run.run()


def check_document(document: Mapping[str, Any]) -> CheckAnswer:
    """Return what a dry run would find, for a run that is to be queued: memory in use now may be free by then."""
    from cleanrl_worker.preflight import ALL_THERE_IS, check_run

    config = CleanRLWorkerConfig.from_json(document, make_run_id=new_run_id)
    if config.mode == Mode.CUSTOM_SCRIPT:
        return CheckAnswer()  # the daemon knows the folders that scripts may come from
    home = find_home()
    folder = home.run_folder(config.run_id)
    try:
        if (script := _script_of(config)) is None:
            found = check_run(config, folder, home, memory=ALL_THERE_IS)
        else:
            from cleanrl_worker.scripts.checking import check_script

            found = check_script(script, config, folder, home, may_install=True, memory=ALL_THERE_IS)
    except BadInput as error:
        return CheckAnswer([Problem("", str(error))])
    return CheckAnswer(found.problems, found.fits, found.missing_sets, notes=found.notes)


def _prepare(
    config: CleanRLWorkerConfig, script: ScriptChoice | None, arguments: argparse.Namespace
) -> tuple[Preflight, Callable[[], SupervisedRun] | None]:
    """Return what was found out, and how to make the run when nothing is wrong."""
    from cleanrl_worker.preflight import FREE, Preflight, check_run
    from cleanrl_worker.runtime import CleanRLWorkerRuntime

    home, folder, target = find_home(), _folder_of(config.run_id), daemon_target(arguments)
    if config.mode == Mode.CUSTOM_SCRIPT:
        from cleanrl_worker.scripts.custom import CustomScriptRun, find_custom_script

        try:
            custom = find_custom_script(config.extras)
        except ConfigProblems as error:
            return Preflight(list(error.problems)), None
        wrong = list(no_progress_problems(config.extras))
        return Preflight(wrong), lambda: CustomScriptRun(config, custom, folder, target=target)
    if script is not None:
        from cleanrl_worker.scripts.checking import check_script
        from cleanrl_worker.scripts.runtime import ScriptRuntime

        found = check_script(script, config, folder, home, may_install=arguments.dry_run, memory=FREE)
        return found, lambda: ScriptRuntime(config, script, found, folder, target=target)
    found = check_run(config, folder, home, probe=arguments.dry_run)
    terminal = _reserve_terminal() if arguments.interactive and not arguments.dry_run else None
    return found, lambda: CleanRLWorkerRuntime(config, folder, target=target, found=found, terminal=terminal)


def _sets_of(config: CleanRLWorkerConfig, script: ScriptChoice | None) -> tuple[str, ...]:
    from cleanrl_worker.requirement_sets import sets_needed

    if script is not None:
        return script.requirement_sets(config.env_id, config.extras)
    return sets_needed(resolve(config.algo), config.env_id, config.extras)


def _reserve_terminal() -> tuple[int, int]:
    """Keep standard input and output for the protocol; whatever else is printed goes to standard error."""
    terminal = os.dup(0), os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    return terminal


def _folder_of(run_id: str) -> RunFolder:
    """Return the run's folder; a worker that a custom script started makes a phase of the script's run."""
    folder = run_folder_of(run_id)
    inside = os.environ.get(env.MOSAIC_SCRIPT_RUN) not in (None, "", run_id)
    return RunFolder(folder.root / "phases" / run_id) if inside else folder


def _describe_script(name: str, source: str | None) -> dict[str, Any]:
    from cleanrl_worker.scripts.checking import ScriptChoice, find_script

    extras = {"script_path": str(find_script(name, source)), "source": source}
    choice = ScriptChoice.of(name, extras)
    default = choice.script.parameter_for("env_id")
    env_id = str(default.field.default or "") if default is not None else ""
    return choice.script.spec(choice.requirement_sets(env_id, extras)).to_json()


def _print_summary(
    run: SupervisedRun | None, found: Preflight, problems: Sequence[Problem], secrets: set[str], *, as_json: bool
) -> None:
    """Print what a dry run found; what would run is shown without secrets."""
    summary: dict[str, Any] = {"ok": not problems}
    if run is not None:
        summary |= redact_document({**run.summary(), **found.summary()}, secrets)
    if as_json:
        shown = [{"path": p.path, "message": p.message, "suggestion": p.suggestion} for p in problems]
        print(json.dumps({**summary, "problems": redact_document(shown, secrets)}))
    elif run is not None:
        for name, value in summary.items():
            if name != "notes":
                print(f"{name:16} {value if isinstance(value, str | int) else json.dumps(value)}")
        for note in found.notes:
            print(f"{'note':16} {note}")


def _load(
    arguments: argparse.Namespace, rest: Sequence[str]
) -> tuple[CleanRLWorkerConfig, ScriptChoice | None, list[Problem]]:
    """Read the file, then let the flags win: first the worker's own, then the algorithm's."""
    extras = _read_extras(arguments.extras)
    if arguments.source is not None:
        extras["source"] = arguments.source
    if arguments.interactive:
        extras["mode"] = Mode.INTERACTIVE.value
    overrides = {**overrides_from(arguments), "extras": extras}
    if arguments.interactive and arguments.config is None:  # playing needs no training settings
        overrides = {**overrides, "algo": overrides["algo"] or "ppo", "total_timesteps": 1}
    if extras.get("script_path") and not overrides.get("algo"):
        overrides["algo"] = Path(str(extras["script_path"])).stem
    config = CleanRLWorkerConfig.load(arguments.config, overrides, make_run_id=new_run_id)
    script = _script_of(config)
    algorithm = script.script.algorithm() if script is not None else _algorithm(config.algo)
    configured = from_artifacts(config.raw, config.extras)
    rest, switched = apply_switches(rest, configured, algorithm, is_script=script is not None)
    config = replace(config, extras=switched)
    if not rest or algorithm is None:  # without an algorithm its flags are unknown
        return config, script, []
    values, problems = read_flags(rest, algorithm)
    # A flag wins over the same parameter wherever the file has it.
    kept = without(config.extras, [key for key in config.extras if key.replace("-", "_") in values])
    merged: Extras = {**kept, "algo_params": {**algo_params(config.extras), **values}}
    return replace(config, extras=merged), script, problems


def _script_of(config: CleanRLWorkerConfig) -> ScriptChoice | None:
    """Return the script this run trains with, if any."""
    if not (config.extras.get("script_path") or config.extras.get("source")):
        return None  # most runs: nothing has to be imported for that
    from cleanrl_worker.scripts.checking import ScriptChoice

    return ScriptChoice.of(config.algo, config.extras) if runs_script(config.extras) else None


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
