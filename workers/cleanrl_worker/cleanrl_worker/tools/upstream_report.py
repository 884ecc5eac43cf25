"""Run every script of a CleanRL checkout through MOSAIC at a tiny horizon, and record how each ended.

    python -m cleanrl_worker.tools.upstream_report run --checkout ~/cleanrl [--only dqn,ppo]   # results as JSON
    python -m cleanrl_worker.tools.upstream_report write                                       # the page from them

The scripts lie in the checkout and stay there. The page's figures come from the results file, and are never typed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.run_status import RunOutcome, RunStatus

from cleanrl_worker.analytics import repository_state
from cleanrl_worker.errors import BadInput
from cleanrl_worker.scripts.checking import ScriptChoice, find_script

DOCS = Path(__file__).resolve().parents[4] / "docs" / "workers" / "cleanrl"
RESULTS, PAGE = DOCS / "upstream_scripts.json", DOCS / "upstream_scripts.md"

TINY: Mapping[str, Any] = {
    **{"num_envs": 4, "local_num_envs": 4, "num_steps": 16, "learning_starts": 64, "buffer_size": 1024},
    **{"n_iteration": 1, "e_auxiliary": 1, "num_iterations_obs_norm_init": 1, "cuda": False},
}
"""Parameters that make a script finish soon; each script is given those it has"""
HORIZON = 256
_NEEDS_STEPS = frozenset({"num_steps"})
_POLL_S = 3.0
_MAX_CHARACTERS = 240


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scripts and write the results file (`run`), or the page (`write`)."""
    parser = argparse.ArgumentParser(prog="cleanrl_worker.tools.upstream_report", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the scripts; needs the requirement sets and a home")
    run.add_argument("--checkout", type=Path, required=True)
    run.add_argument("--only", default="", help="names, separated by commas; other scripts keep their earlier results")
    run.add_argument("--timeout-s", type=float, default=1200)
    run.add_argument("--results", type=Path, default=RESULTS)
    write = commands.add_parser("write", help="write the page")
    write.add_argument("--results", type=Path, default=RESULTS)
    write.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args(argv)
    if arguments.command == "write":
        arguments.page.write_text(page(read_json_object(arguments.results)), encoding="utf-8")
        return 0
    only = set(filter(None, arguments.only.split(",")))
    return _run(arguments.checkout.absolute(), only, arguments.timeout_s, arguments.results)


def scripts_of(checkout: Path) -> Iterator[str]:
    """Names of the training scripts: files of `cleanrl/`, and of folders that have a file of their own name."""
    folder = checkout / "cleanrl"
    yield from sorted(file.stem for file in folder.glob("*.py"))
    yield from sorted(place.name for place in folder.iterdir() if (place / f"{place.name}.py").is_file())


def _run(checkout: Path, only: set[str], timeout_s: float, results: Path) -> int:
    try:
        known = read_json_object(results)
    except (OSError, ValueError):
        known = {}
    rows = {row["script"]: row for row in known.get("scripts", [])}
    names = [name for name in scripts_of(checkout) if not only or name in only]
    queued = {name: _queue(name, checkout) for name in names}
    for name, row in queued.items():
        rows[name] = _finish(row, timeout_s)
        sys.stdout.write(f"{name:40} {rows[name]['outcome']:10} {rows[name]['reason'][:100]}\n")
        sys.stdout.flush()
    state = repository_state(checkout) or {}
    about = {"commit": state.get("commit", ""), "is_dirty": state.get("is_dirty", False), "horizon": HORIZON}
    scripts = [rows[name] for name in sorted(rows)]
    write_json_atomically(results, {**about, "made": time.strftime("%Y-%m-%d"), "scripts": scripts})
    return 0


def _queue(name: str, checkout: Path) -> dict[str, Any]:
    """Queue one script; a refusal is a result, too."""
    row: dict[str, Any] = {"script": name, "outcome": "refused", "reason": "", "sets": [], "arguments": []}
    try:
        choice = ScriptChoice.of(name, {"script_path": str(find_script(name, str(checkout)))})
    except BadInput as error:
        return {**row, "reason": str(error)}
    script = choice.script
    default = script.parameter_for("env_id")
    row["env_id"] = default.field.default if default is not None else "none"
    row["style"] = str(script.style)
    row["sets"] = list(choice.requirement_sets(str(row["env_id"]), {}))
    values = {key: value for key, value in TINY.items() if script.parameter(key) is not None}
    if not _NEEDS_STEPS & values.keys():
        values.pop("num_envs", None)  # off-policy: one environment, as they are written for
    row["arguments"] = script.argv({**values, "total_timesteps": HORIZON})
    flags = [f"--{key.replace('_', '-')}={json.dumps(value)}" for key, value in values.items()]
    answer = _mosaic(
        "train", name, "--source", str(checkout), "--total-timesteps", str(HORIZON), *flags, "-d", "--json"
    )
    if answer.returncode != 0:
        return {**row, "reason": answer.stderr.strip().splitlines()[0]}
    return {**row, "run_id": json.loads(answer.stdout)[0]["run_id"]}


def _finish(row: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Wait for the end of a run, and note how it came."""
    if "run_id" not in row:
        return row
    run_id = row.pop("run_id")
    deadline = time.monotonic() + timeout_s
    while True:
        run = json.loads(_mosaic("show", "--json", run_id).stdout)[0]
        if run["status"] == RunStatus.TERM:
            break
        if time.monotonic() > deadline:
            _mosaic("cancel", run_id)
            return {**row, "outcome": RunOutcome.CANCELLED.value, "reason": f"not done after {timeout_s:g} s"}
        time.sleep(_POLL_S)
    seconds = (run["finished_at"] or 0) - (run["started_at"] or run["finished_at"] or 0)
    reason = "" if run["outcome"] == RunOutcome.COMPLETED else " ".join(run["reason"].split())
    return {**row, "outcome": run["outcome"], "reason": reason, "step": run["step"], "seconds": round(seconds, 1)}


def _mosaic(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("mosaic")
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)


def page(results: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    rows: list[dict[str, Any]] = list(results["scripts"])
    done = [row for row in rows if row["outcome"] == RunOutcome.COMPLETED]
    others = [row for row in rows if row["outcome"] != RunOutcome.COMPLETED]
    lines = [
        "# CleanRL's own scripts",
        "",
        "`mosaic train NAME --source upstream` runs a script of a CleanRL checkout without changes.",
        "The page is generated by `python -m cleanrl_worker.tools.upstream_report write` from `upstream_scripts.json`.",
        "",
        f"Checkout {results['commit'][:12]}{' with changes' if results['is_dirty'] else ''}, {results['made']}: "
        f"{len(done)} of {len(rows)} scripts completed at {results['horizon']} timesteps.",
        "",
        "| script | environment | requirement set | steps | seconds |",
        "| --- | --- | --- | ---: | ---: |",
        *(
            f"| `{row['script']}` | {row['env_id']} | {', '.join(row['sets'])} | {row['step']} | {row['seconds']} |"
            for row in done
        ),
        "",
        "Steps are the largest step in the event files; a script that ends without a finished episode may have none.",
    ]
    if others:
        lines += ["", "## Failures", "", "| script | outcome | reason |", "| --- | --- | --- |"]
        lines += [f"| `{row['script']}` | {row['outcome']} | {_shortened(row['reason'])} |" for row in others]
    return "\n".join([*lines, ""])


def _shortened(reason: str) -> str:
    text = reason.replace("|", "/")
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS].rsplit(" ", 1)[0] + " …"


if __name__ == "__main__":
    sys.exit(main())
