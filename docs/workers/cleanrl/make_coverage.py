"""Makes coverage.md out of the smoke.json files that `mosaic smoke` leaves; the table is never typed by hand.

    mosaic --home H smoke ppo CartPole-v1 Acrobot-v1
    python docs/workers/cleanrl/make_coverage.py H          adds what H holds to coverage.json, then writes coverage.md

Without a home it writes coverage.md anew from coverage.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA, TABLE = HERE / "coverage.json", HERE / "coverage.md"

KEPT = ("algo", "env_id", "source", "outcome", "reason", "steps", "requirements", "handshake", "written_at")
COLUMNS = ("algorithm", "environment", "source", "outcome", "steps", "sets", "registered", "left", "versions", "when")
INTRODUCTION = """# What was run through the daemon

Made by `make_coverage.py` from the `smoke.json` files of short runs: each was submitted to a real daemon, its worker
registered, trained for a few thousand steps and ended. That shows that the parts fit, not that anything was learned:
[what is validated](../../coverage.md) stands elsewhere. A pair that is not listed was not tried.
"""
LEFT = {"analytics.json": "manifest", "checkpoints": "checkpoints", "tensorboard": "events", "videos": "videos"}
SHOWN_VERSIONS = ("python", "torch", "gymnasium", "cleanrl-worker")


def main(homes: Iterable[str]) -> None:
    known = {_key(entry): entry for entry in json.loads(DATA.read_text())} if DATA.is_file() else {}
    for home in homes:
        for file in sorted(Path(home).glob("trainer/runs/*/smoke.json")):
            report = json.loads(file.read_text())
            if report["worker"] == "cleanrl":
                entry = _entry(report)
                if _key(entry) not in known or known[_key(entry)]["written_at"] <= entry["written_at"]:
                    known[_key(entry)] = entry
    entries = [known[key] for key in sorted(known)]
    DATA.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    TABLE.write_text(render(entries))


def _entry(report: dict[str, Any]) -> dict[str, Any]:
    versions = {name: report["versions"][name] for name in SHOWN_VERSIONS if name in report["versions"]}
    artefacts = sorted({name.split("/")[0] for name in report["artefacts"]})
    return {**{key: report[key] for key in KEPT}, "versions": versions, "artefacts": artefacts}


def _key(entry: dict[str, Any]) -> tuple[str, str, str]:
    return entry["algo"], entry["env_id"], entry["source"]


def render(entries: list[dict[str, Any]]) -> str:
    """The document; one row per algorithm, environment and source."""
    lines = [INTRODUCTION, "| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += [_row(entry) for entry in entries]
    completed = sum(entry["outcome"] == "completed" for entry in entries)
    return "\n".join([*lines, "", f"{completed} of {len(entries)} completed.", ""])


def _row(entry: dict[str, Any]) -> str:
    outcome = entry["outcome"] if entry["outcome"] == "completed" else f"{entry['outcome']}: {entry['reason']}"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(entry["versions"].items()))
    cells = (
        f"`{entry['algo']}`",
        f"`{entry['env_id']}`",
        entry["source"],
        outcome,
        str(entry["steps"]),
        ", ".join(entry["requirements"]) or "base",
        "yes" if entry["handshake"] else "no",
        ", ".join(_left(entry["artefacts"])),
        versions,
        entry["written_at"][:10],
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _left(artefacts: list[str]) -> list[str]:
    named = [LEFT[name] for name in artefacts if name in LEFT]
    return [*named, *(["policy"] if any(name.endswith(".cleanrl_model") for name in artefacts) else [])]


if __name__ == "__main__":
    main(sys.argv[1:])
