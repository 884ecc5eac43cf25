"""Documents that are made from code and from runs are what their scripts make."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = DOCS / "workers" / "cleanrl"


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, PAGES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_error_text_is_documented_with_its_cause_and_cure():
    maker = script("make_common_errors")
    topics = {module for topic in maker.TOPICS for module in topic.modules}
    assert [name for name in maker.modules() if name not in topics] == [], "give these modules a topic"
    document = (PAGES / "common_errors.md").read_text()
    assert document == maker.render(), "run: python docs/workers/cleanrl/make_common_errors.py"
    for text in ("does not divide the batch", "of memory", "no step for more than", "could not be written", "not JSON"):
        assert text in document


def test_every_error_class_of_the_worker_is_looked_for():
    maker = script("make_common_errors")
    from cleanrl_worker import errors

    roots = {"WorkerError", "RequirementSetError"}
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes - roots <= set(maker.ERRORS)


def test_the_coverage_table_is_made_from_smoke_files(tmp_path):
    maker = script("make_coverage")
    entries = json.loads((PAGES / "coverage.json").read_text())
    assert (PAGES / "coverage.md").read_text() == maker.render(entries)
    assert all(entry["handshake"] for entry in entries if entry["outcome"] == "completed")
    maker.DATA, maker.TABLE = tmp_path / "coverage.json", tmp_path / "coverage.md"
    run = tmp_path / "home" / "trainer" / "runs" / "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    run.mkdir(parents=True)
    report = {
        "worker": "cleanrl",
        "algo": "ppo",
        "env_id": "A|B-v0",
        "source": "mosaic",
        "outcome": "failed",
        "reason": "no\nway",
        "steps": 3,
        "requirements": [],
        "handshake": None,
        "written_at": "2026-01-02T03:04:05Z",
        "versions": {},
        "artefacts": ["analytics.json", "ppo.cleanrl_model"],
    }
    (run / "smoke.json").write_text(json.dumps(report))
    maker.main([str(tmp_path / "home")])
    table = maker.TABLE.read_text()
    assert "| `ppo` | `A\\|B-v0` | mosaic | failed: no way | 3 | base | no | manifest, policy |" in table
    assert "0 of 1 completed" in table
