"""The worker catalog: what is installed shows up, what is broken is reported and affects no other worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from gym_gui.services.trainer.catalog import WorkerCatalog, usable
from gym_gui.services.trainer.errors import UnknownWorker
from gym_gui.services.trainer.validation.train_config import validate_train_run_config
from gym_gui.testing import make_overlay_with
from mosaic_wire.errors import SpecError
from mosaic_wire.paths import Home

SPEC = {
    "spec_version": 1,
    "name": "tiny",
    "display_name": "Tiny Worker",
    "version": "0.3",
    "module": "tiny_worker.cli",
    "capabilities": {"worker_type": "tiny", "estimated_memory_mb": 64},
    "algorithms": [{"name": "nothing", "fields": [{"name": "speed", "kind": "int", "default": 1, "minimum": 1}]}],
    "environments": ["Void-v0"],
}

CLI = f"""
import json, os, pathlib, sys

SPEC = json.loads({json.dumps(json.dumps(SPEC))})


def main():
    if "--describe" in sys.argv:
        if counter := os.environ.get("TEST_COUNT_FILE"):
            with open(counter, "a") as stream:
                stream.write("asked\\n")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        print("a library greets its users")
        print(json.dumps(SPEC))


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs distributions the way the import system sees them: a package and its metadata on the path."""
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("TEST_COUNT_FILE", str(tmp_path / "asked"))

    def install(package: str, cli: str, *, name: str = "", version: str = "1.0", target: str = "") -> Path:
        folder = site / package
        folder.mkdir()
        (folder / "__init__.py").write_text("raise AssertionError('the catalog must not import a worker')\n")
        if cli == CLI:
            (folder / "__init__.py").write_text("")
        (folder / "cli.py").write_text(cli)
        info = site / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[mosaic.workers]\n{name or package} = {target or package}:meta\n")
        return folder

    return install


@pytest.fixture(scope="module")
def descriptions(tmp_path_factory) -> Path:
    """What the workers of this environment say of themselves, asked once for all tests."""
    home = Home(tmp_path_factory.mktemp("described"))
    WorkerCatalog(home).entries()
    return home.cache / "describe"


@pytest.fixture(autouse=True)
def _already_described(home, descriptions) -> None:
    shutil.copytree(descriptions, home.cache / "describe")


def times_asked(tmp_path: Path) -> int:
    counter = tmp_path / "asked"
    return len(counter.read_text().splitlines()) if counter.exists() else 0


def entry_of(catalog: WorkerCatalog, name: str):
    return next(entry for entry in catalog.entries() if entry.name == name)


def write_worker_json(home, document, folder: str = "tiny") -> Path:
    path = home.workers / folder / "worker.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


# ---------------------------------------------------------------- entry points


def test_an_installed_worker_is_described_and_gets_its_command(home, installed):
    installed("tiny_worker", CLI, name="tiny")
    spec = WorkerCatalog(home).get("tiny")
    assert spec.argv == (sys.executable, "-m", "tiny_worker.cli")
    assert (spec.display_name, spec.version, spec.environments) == ("Tiny Worker", "0.3", ("Void-v0",))
    assert spec.capabilities.estimated_memory_mb == 64


def test_a_worker_that_is_asked_gets_no_secrets(home, installed, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "HF_TOKEN", "MOSAIC_DAEMON_TOKEN"):
        monkeypatch.setenv(name, "s3cr3t")
    monkeypatch.setenv("TEST_KEPT", "kept")
    note_environment = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(repr(dict(os.environ)))\n"
    installed("tiny_worker", CLI, name="tiny").joinpath("cli.py").write_text(note_environment + CLI)
    WorkerCatalog(home).get("tiny")
    seen = (tmp_path / "seen").read_text()
    assert "s3cr3t" not in seen
    assert "TEST_KEPT" in seen


def test_an_entry_point_inside_a_package_finds_the_packages_cli(home, installed):
    folder = installed("tiny_worker", CLI, name="tiny", target="tiny_worker.meta")
    (folder / "meta.py").write_text("")
    assert WorkerCatalog(home).get("tiny").argv[-1] == "tiny_worker.cli"


def test_a_description_is_asked_for_once_and_kept_over_a_restart(home, installed, tmp_path):
    folder = installed("tiny_worker", CLI, name="tiny")
    for _ in range(3):
        catalog = WorkerCatalog(home)
        assert catalog.get("tiny") == entry_of(catalog, "tiny").spec
    assert times_asked(tmp_path) == 1
    os.utime(folder / "cli.py", ns=(1, 1))  # the worker changed
    WorkerCatalog(home).get("tiny")
    assert times_asked(tmp_path) == 2
    catalog.refresh()
    catalog.get("tiny")
    assert times_asked(tmp_path) == 3


def test_a_damaged_cache_is_asked_for_again(home, installed, tmp_path):
    installed("tiny_worker", CLI, name="tiny")
    whole = WorkerCatalog(home).get("tiny")
    kept = home.cache / "describe" / "tiny.json"
    data = kept.read_bytes()
    for damage in (b"", data[: len(data) // 2], b"[]", data.replace(b"Void-v0", b"Void-v1")):
        kept.write_bytes(damage)
        assert WorkerCatalog(home).get("tiny") == whole
    assert times_asked(tmp_path) == 5


def test_a_home_that_cannot_be_written_is_no_obstacle(home, installed):
    installed("tiny_worker", CLI, name="tiny")
    shutil.rmtree(home.root)
    home.root.write_text("a file, not a folder")
    assert WorkerCatalog(home).get("tiny").name == "tiny"


def test_many_threads_ask_a_worker_once(home, installed, tmp_path):
    installed("tiny_worker", CLI, name="tiny")
    catalog, found = WorkerCatalog(home), []
    threads = [threading.Thread(target=lambda: found.append(catalog.get("tiny"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert times_asked(tmp_path) == 1


def test_a_worker_that_is_uninstalled_disappears(home, installed):
    folder = installed("tiny_worker", CLI, name="tiny")
    catalog = WorkerCatalog(home)
    assert "tiny" in catalog.names()
    (folder.parent / "tiny_worker-1.0.dist-info" / "entry_points.txt").unlink()
    catalog.refresh()
    assert "tiny" not in catalog.names()


def test_an_unknown_worker_names_the_nearest(home, installed):
    installed("tiny_worker", CLI, name="tiny")
    with pytest.raises(UnknownWorker, match="tiny") as caught:
        WorkerCatalog(home).get("tinny")
    assert caught.value.suggestion == "tiny"


BROKEN = {
    "crashes": ("raise RuntimeError('no GPU today')", "exit code 1.*no GPU today"),
    "exits": ("raise SystemExit(3)", "exit code 3.*printed nothing"),
    "prints_garbage": ("print('hello')", "not JSON"),
    "prints_nothing": ("pass", "not JSON"),
    "prints_bytes": ("import sys; sys.stdout.buffer.write(bytes(range(256)))", "not JSON"),
    "prints_a_list": ("print([])", "not a JSON object"),
    "prints_depth": ("print('[' * 100000)", "not JSON"),
    "prints_another_version": ("print('{\"spec_version\": 99}')", "spec_version"),
    "prints_half": ('print(\'{"spec_version": 1, "name": "prints_half"}\')', "no usable description"),
    "floods": ("while True: print('x' * 100000)", "more than 16 MiB"),
    "calls_itself_otherwise": (CLI, "calls itself 'tiny'"),
}
HANGING = {
    "hangs": ("import time\nprint('wait', flush=True)\ntime.sleep(600)", "no answer within"),
    "closes_and_hangs": ("import os, time\nos.close(1); os.close(2)\ntime.sleep(600)", "did not end|no answer within"),
    "leaves_a_child": ("import subprocess\nsubprocess.Popen(['sleep', '600'])", "no answer within"),
}


@pytest.mark.parametrize(("broken", "timeout_s"), [(BROKEN, 60), (HANGING, 3)], ids=["answer wrongly", "do not answer"])
def test_broken_workers_are_listed_with_their_problem_and_affect_no_other(home, installed, broken, timeout_s):
    installed("tiny_worker", CLI, name="tiny")
    for name, (cli, _) in broken.items():
        folder = installed(name, cli)
        (folder / "__init__.py").write_text("")
    # Asked alone and with patience: no other worker is queried, and it is kept for them.
    assert WorkerCatalog(home, describe_timeout_s=60).get("tiny").name == "tiny"
    catalog = WorkerCatalog(home, describe_timeout_s=timeout_s)
    entries = {entry.name: entry for entry in catalog.entries()}
    for name, (_, expected) in broken.items():
        assert entries[name].spec is None
        with pytest.raises(SpecError, match=expected):
            catalog.get(name)
        assert "try it by hand" in entries[name].problem or "make them the same" in entries[name].problem
    assert entries["tiny"].spec in usable(list(entries.values()))


def test_a_worker_whose_package_is_missing_is_a_problem(home, installed):
    folder = installed("tiny_worker", CLI, name="tiny")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert "No module named" in entry_of(WorkerCatalog(home), "tiny").problem


def test_a_worker_is_never_imported_by_the_catalog(home, installed):
    installed("tiny_worker", "raise SystemExit(1)", name="tiny")
    WorkerCatalog(home).entries()
    assert "tiny_worker" not in sys.modules


def test_a_name_that_could_leave_the_cache_folder_is_a_problem(home, installed):
    installed("tiny_worker", CLI, name="../../evil")
    entry = next(entry for entry in WorkerCatalog(home).entries() if "evil" in entry.name)
    assert "must consist of" in entry.problem
    assert "/" not in entry.name


# ---------------------------------------------------------------- worker.json

WRONG_FIELD = {"name": "x", "kind": "int", "minimum": "0"}


def test_a_worker_json_with_a_description_needs_no_process(home, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/false\n")
    program.chmod(0o755)
    path = write_worker_json(home, {**SPEC, "argv": [str(program), "-m", "tiny_worker.cli"], "env": {"A": "1"}})
    entry = entry_of(WorkerCatalog(home), "tiny")
    assert entry.origin == str(path)
    assert entry.spec is not None
    assert entry.spec.argv == (str(program), "-m", "tiny_worker.cli")
    assert entry.spec.env == {"A": "1"}


def test_a_short_worker_json_is_asked(home, installed, tmp_path):
    installed("other_name", CLI, name="unused")
    write_worker_json(home, {"name": "tiny", "argv": [sys.executable, "-m", "other_name.cli"]})
    assert WorkerCatalog(home).get("tiny").argv == (sys.executable, "-m", "other_name.cli")


def test_a_program_may_be_found_on_the_path(home):
    write_worker_json(home, {**SPEC, "argv": ["sh", "-c", "true"]})
    program = WorkerCatalog(home).get("tiny").argv[0]
    assert os.path.isabs(program)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ({**SPEC}, "argv is missing"),
        ({**SPEC, "argv": []}, "argv is missing"),
        ({**SPEC, "argv": "python -m x"}, "argv is missing"),
        ({**SPEC, "argv": ["bin/python"]}, "relative path"),
        ({**SPEC, "argv": ["/no/such/program"]}, "does not exist"),
        ({**SPEC, "argv": ["no-such-program-anywhere"]}, "does not exist"),
        ({**SPEC, "argv": ["sh"], "name": "../x"}, "name must consist"),
        ({**SPEC, "argv": ["sh"], "name": 5}, "name must consist"),
        ({**SPEC, "argv": ["sh"], "spec_version": 2}, "spec_version"),
        ({**SPEC, "argv": ["sh"], "capabilities": 5}, "malformed"),
        ({**SPEC, "argv": ["sh"], "env": ["ab", "c"]}, "malformed"),
        ({**SPEC, "argv": ["sh"], "algorithms": [{"name": "a", "fields": [WRONG_FIELD]}]}, "must be a number"),
    ],
)
def test_a_malformed_worker_json_is_listed_as_a_problem(home, document, expected):
    write_worker_json(home, document)
    write_worker_json(home, {**SPEC, "name": "good", "argv": ["sh"]}, "good")
    catalog = WorkerCatalog(home)
    entry = entry_of(catalog, "tiny")
    assert entry.spec is None
    assert expected in entry.problem
    assert catalog.get("good").name == "good"


def test_the_first_of_two_with_one_name_wins_and_the_other_is_reported(home, installed, tmp_path):
    installed("tiny_worker", CLI, name="tiny")
    path = write_worker_json(home, {**SPEC, "argv": ["sh"]})
    catalog = WorkerCatalog(home)
    assert catalog.get("tiny").argv[0] == sys.executable
    first, second = [entry for entry in catalog.entries() if entry.name == "tiny"]
    assert first.spec is not None
    assert second.spec is None
    assert second.origin == str(path)
    assert "taken by entry point of tiny_worker 1.0" in second.problem


def test_a_catalog_fits_the_validation_of_a_config(home):
    write_worker_json(home, {**SPEC, "argv": ["sh"]})
    catalog = WorkerCatalog(home)
    config = {"algo": "nothing", "env_id": "Void-v0", "total_timesteps": 5, "extras": {"speed": 2}}
    document = {"metadata": {"worker": {"type": "tiny", "config": config}}}
    assert validate_train_run_config(document, workers=catalog.get).metadata.worker.module == "tiny_worker.cli"


# ---------------------------------------------------------------- a stranger's worker in its own environment


@pytest.fixture
def strangers_environment(tmp_path):
    """A fresh virtual environment that sees our packages, with a stranger's worker built and installed into it."""
    source = tmp_path / "source"
    (source / "tiny_worker").mkdir(parents=True)
    (source / "tiny_worker" / "__init__.py").write_text("")
    (source / "tiny_worker" / "cli.py").write_text(CLI)
    (source / "pyproject.toml").write_text(
        textwrap.dedent("""
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "tiny-worker"
        version = "0.3"
        [project.entry-points."mosaic.workers"]
        tiny = "tiny_worker:meta"
        [tool.setuptools]
        packages = ["tiny_worker"]
        """)
    )
    return make_overlay_with(source, tmp_path / "venv")


LIST = """
import json, sys
from gym_gui.services.trainer.catalog import WorkerCatalog
from mosaic_wire.paths import find_home
entries = WorkerCatalog(find_home()).entries()
print(json.dumps([[e.name, e.problem, list(e.spec.argv) if e.spec else None] for e in entries]))
"""


def test_a_strangers_worker_is_listed_after_its_installation_and_through_worker_json(home, strangers_environment):
    python = str(strangers_environment)
    answer = subprocess.run([python, "-c", LIST], capture_output=True, text=True, cwd="/", check=False)
    assert answer.returncode == 0, answer.stderr
    listed = {name: (problem, argv) for name, problem, argv in json.loads(answer.stdout.splitlines()[-1])}
    assert listed["tiny"] == ("", [python, "-m", "tiny_worker.cli"])

    # It is not in our own environment; its worker.json makes it known here, and its interpreter is used.
    home.cache.joinpath("describe", "tiny.json").unlink()
    assert "tiny" not in WorkerCatalog(home).names()
    write_worker_json(home, {"name": "tiny", "argv": [python, "-m", "tiny_worker.cli"]})
    spec = WorkerCatalog(home).get("tiny")
    assert spec.argv == (python, "-m", "tiny_worker.cli")
    assert spec.display_name == "Tiny Worker"
    # Another interpreter's entry points can be listed, too.
    assert "tiny" in WorkerCatalog(home, python=python).names()
