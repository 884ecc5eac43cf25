"""Promises of the repository itself: pins, stubs, documents, import contracts, CI."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
DISTRIBUTIONS = sorted(
    path.parent for kind in ("packages", "workers") for path in (ROOT / kind).glob("*/pyproject.toml")
)
REQUIREMENT_FILES = sorted({ROOT / "requirements.txt", *(ROOT / "requirements").glob("*.txt")})
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"


def tracked_files() -> list[Path]:
    """Files git knows, or would know after `git add`."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True)
    return [path for name in done.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_lines(path: Path) -> list[str]:
    """Lines of a requirement file without comments and blank ones."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def constraints() -> dict[str, str]:
    pairs = (line.split("==") for line in requirement_lines(CONSTRAINTS))
    return {normalized(name): version for name, version in pairs}


# ---------------------------------------------------------------- requirements


def test_every_constraint_is_one_exact_pin():
    lines = requirement_lines(CONSTRAINTS)
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    assert len(constraints()) == len(lines), "a package is pinned twice"


@pytest.mark.parametrize("path", REQUIREMENT_FILES, ids=lambda path: path.name)
def test_every_required_package_is_pinned_by_the_constraints(path):
    if path == CONSTRAINTS:
        return
    pinned = constraints()
    options = [line for line in requirement_lines(path) if line.startswith("-")]
    names = [re.split(r"[\s<>=!~;\[]", line)[0] for line in requirement_lines(path) if not line.startswith("-")]
    assert [name for name in names if normalized(name) not in pinned] == []
    assert "-c constraints.txt" in options or not names
    for option in options:
        flag, argument = option.split()
        if flag == "-e":  # pip reads these from the folder it is started in
            assert (ROOT / argument / "pyproject.toml").is_file()
        else:
            assert flag in ("-c", "-r")
            assert (path.parent / argument).is_file()


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_every_dependency_of_a_package_is_pinned_by_the_constraints(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ours = {normalized(other.name) for other in DISTRIBUTIONS}
    names = {normalized(re.split(r"[\s<>=!~;\[]", line)[0]) for line in project["dependencies"]}
    assert names - ours - set(constraints()) == set()


def test_nothing_unpinned_is_installed():
    """Whatever came into the environment beside our packages and pip has its line in the constraints."""
    pinned, ours = constraints(), {normalized(folder.name) for folder in DISTRIBUTIONS}
    installed = {normalized(found.metadata["Name"]) for found in importlib.metadata.distributions()}
    assert installed - ours - set(pinned) - {"pip", "wheel"} == set()


def test_the_base_needs_no_learning_framework():
    text = (ROOT / "requirements" / "base.txt").read_text()
    assert not re.search(r"^(torch|jax|gymnasium|tensorboard|numpy)\b", text, re.MULTILINE)


# ---------------------------------------------------------------- packages and stubs


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_every_package_has_its_project_file_readme_and_tests(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert normalized(project["name"]) == normalized(folder.name)
    assert project["license"] == "MIT"
    assert (folder / folder.name / "__init__.py").is_file()
    assert (folder / "README.md").stat().st_size > 200, "a README says what belongs here and what does not"
    assert list((folder / "tests").glob("test_*.py"))
    assert not list((folder / "tests").rglob("__init__.py")), "tests are imported by path, not as packages"


def test_the_checked_in_stubs_are_what_make_proto_generates(tmp_path):
    argv = ["make", "proto", "TEST_READY=", f"BIN={BIN}", f"PROTO_OUT={tmp_path}"]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    fresh = sorted((tmp_path / "mosaic_wire" / "proto").iterdir())
    assert len(fresh) == 4
    for path in fresh:
        kept = ROOT / "packages" / "mosaic_wire" / "mosaic_wire" / "proto" / path.name
        assert path.read_bytes() == kept.read_bytes(), f"{path.name} is out of date: run make proto"


# ---------------------------------------------------------------- files


def test_no_tracked_file_is_large():
    assert [path for path in tracked_files() if path.stat().st_size > 2**20] == []


def test_no_tracked_file_names_a_package_registry():
    # Spelled in pieces, so that this file does not name one either.
    hosts = [b"pypi" + b".org", b"python" + b"hosted.org", b"download.py" + b"torch.org", b"ana" + b"conda.org"]
    named = [
        path.relative_to(ROOT) for path in tracked_files() if any(host in path.read_bytes().lower() for host in hosts)
    ]
    assert named == []


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    lines = script.read_text().splitlines()
    assert lines[0].endswith("bash")
    assert "set -euo pipefail" in lines
    assert lines[-1] == "exec make test"


def test_the_help_of_the_makefile_names_every_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make (\S+)", shown, re.MULTILINE) == phony[1].split()


# ---------------------------------------------------------------- documents


def headings(path: Path) -> set[str]:
    """Anchors of a Markdown file, as they are made from its headings."""
    found = re.findall(r"^#+ +(.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.replace("`", "")).strip().lower().replace(" ", "-") for text in found}


DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        if not linked.exists() or (anchor and anchor not in headings(linked)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_a_document_names_exists(path):
    """`packages/…`, `workers/…`, `docs/…`, `tests/…` in backticks are promises to a reader."""
    text = path.read_text()
    named = re.findall(r"`((?:packages|workers|docs|tests|requirements|benchmarks)/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists() and not (path.parent / name).exists()] == []


# ---------------------------------------------------------------- import contracts


@pytest.fixture(scope="module")
def source_copy(tmp_path_factory):
    """A copy of the import packages to plant imports in."""
    folder = tmp_path_factory.mktemp("sources")
    for distribution in DISTRIBUTIONS:
        ignored = shutil.ignore_patterns("__pycache__", "tests")
        shutil.copytree(distribution / distribution.name, folder / distribution.name, ignore=ignored)
    shutil.copy(ROOT / ".importlinter", folder)
    return folder


def lint_imports(folder: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    chosen = [argument for contract in contracts for argument in ("--contract", contract)]
    # The tool puts the current folder first on its path: the copy is looked at, not the installed packages.
    argv = [str(BIN / "lint-imports"), "--no-logo", "--no-cache", *chosen]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


PLANTED = [
    ("processes", "cleanrl_worker/registry.py", "import gym_gui"),
    ("processes", "gym_gui/config/settings.py", "import random_worker"),
    ("processes", "mosaic_wire/files.py", "import gym_gui"),
    ("processes", "sweep_worker/controller.py", "import random_worker"),
    ("extras", "gym_gui/cli/runs.py", "def lazily():\n    import mosaic_extras.overlays"),
    ("no-qt", "gym_gui/services/trainer/registry.py", "import PySide6"),
    ("no-qt", "gym_gui/cli/runs.py", "def lazily():\n    import gym_gui.ui.theme"),
    ("no-qt", "gym_gui/ui/shell/announcements.py", "import PySide6.QtCore"),
    ("no-qt", "gym_gui/ui/workers/catalog.py", "import gym_gui.ui.theme"),
    ("no-ml", "gym_gui/services/trainer/launch.py", "def lazily():\n    import torch"),
    ("no-ml", "gym_gui/services/sweeps.py", "def lazily():\n    import optuna"),
    ("gui", "gym_gui/config/settings.py", "import gym_gui.services.trainer.registry"),
    ("gui", "gym_gui/ui/theme.py", "import gym_gui.cli.runs"),
    ("gui", "gym_gui/services/trainer/launch.py", "import gym_gui.ui.workers.catalog"),
    ("window", "gym_gui/ui/widgets/banner.py", "import gym_gui.ui.run_page.page"),
    ("window", "gym_gui/ui/presenters/run_files.py", "import gym_gui.ui.widgets.banner"),
    ("trainer", "gym_gui/services/trainer/registry.py", "import gym_gui.services.trainer.dispatcher"),
    ("trainer", "gym_gui/services/trainer/errors.py", "import gym_gui.services.trainer.fsm"),
    ("client", "gym_gui/services/trainer/client.py", "import gym_gui.services.trainer.registry"),
    ("pure-fsm", "gym_gui/services/trainer/fsm.py", "import time"),
    ("worker", "cleanrl_worker/config.py", "import cleanrl_worker.runtime"),
    ("light-root", "cleanrl_worker/registry.py", "import torch"),
    ("single-file", "cleanrl_worker/algorithms/second.py", "import cleanrl_worker.algorithms.ppo"),
    ("standalone", "cleanrl_worker/algorithms/ppo.py", "import mosaic_wire"),
]


@contextmanager
def planted_in(folder: Path, plants: Iterable[tuple[str, str]]) -> Iterator[None]:
    before = {path: path.read_text() if path.exists() else None for path in (folder / module for module, _ in plants)}
    for module, planted in plants:
        path = folder / module
        path.write_text(f"{path.read_text() if path.exists() else ''}\n{planted}\n")
    try:
        yield
    finally:
        for path, original in before.items():
            path.unlink() if original is None else path.write_text(original)


def test_every_contract_has_a_planted_import():
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter")
    names = {section.rpartition(":")[2] for section in settings.sections() if ":contract:" in section}
    assert names == {contract for contract, _, _ in PLANTED}


def test_the_contracts_hold(source_copy):
    done = lint_imports(source_copy)
    assert done.returncode == 0, done.stdout


def test_planted_imports_break_every_contract(source_copy):
    with planted_in(source_copy, [(module, planted) for _, module, planted in PLANTED]):
        done = lint_imports(source_copy)
    assert done.returncode == 1, done.stderr
    assert "Contracts: 0 kept" in done.stdout


@pytest.mark.slow  # all of them together are tried in every CI
@pytest.mark.parametrize(("contract", "module", "planted"), PLANTED, ids=lambda value: value.replace("\n", " "))
def test_a_planted_import_breaks_its_contract(source_copy, contract, module, planted):
    with planted_in(source_copy, [(module, planted)]):
        done = lint_imports(source_copy, contract)
    assert done.returncode == 1, done.stderr
    assert "BROKEN" in done.stdout


# ---------------------------------------------------------------- tests that depend on the machine

CLOCKS = {
    "clock_gettime",
    "cpu_times",
    "getrusage",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
}
TIME_NAMES = re.compile(r"(^|_)(elapsed|took|duration|latency)(_|$)|_ms$|_seconds$")


def is_a_time(node: ast.AST, times: set[str]) -> bool:
    """Whether an expression reads a clock, or something that was computed from one, or is named like a time."""
    for part in ast.walk(node):
        name = part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""
        called = part.func.attr if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) else ""
        if called in CLOCKS or name in times or (name and TIME_NAMES.search(name)):
            return True
    return False


def times_of(function: ast.AST) -> set[str]:
    """Names in a function that hold times."""
    times: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and is_a_time(node.value, times):
            times |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Call) and any(is_a_time(each, times) for each in node.args):
            times.add(ast.unparse(node.func).removesuffix(".append"))  # another name does no harm
    return times


def is_fixed(node: ast.AST) -> bool:
    parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    return all(
        isinstance(part, ast.Constant | ast.BinOp | ast.UnaryOp) or (isinstance(part, ast.Name) and part.id.isupper())
        for part in parts
    )


def absolute_times(source: str) -> list[str]:
    """Assertions that a time is at most some number."""
    found = []
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        times = times_of(function)
        asserted = [node.test for node in ast.walk(function) if isinstance(node, ast.Assert)]
        for compare in (node for test in asserted for node in ast.walk(test) if isinstance(node, ast.Compare)):
            sides = [compare.left, *compare.comparators]
            for left, operator, right in zip(sides, compare.ops, sides[1:], strict=False):
                small, large = (right, left) if isinstance(operator, ast.Gt | ast.GtE) else (left, right)
                is_order = isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
                if is_order and is_fixed(large) and is_a_time(small, times):
                    found.append(f"line {compare.lineno}: {ast.unparse(compare)}")
    return found


def test_no_test_asserts_how_long_a_computation_takes():
    """A busy or slow machine would fail it: measure in benchmarks/, compare, or assert what makes it quick."""
    tests = [path for path in tracked_files() if path.suffix == ".py" and "tests" in path.relative_to(ROOT).parts]
    assert len(tests) > 200
    found = {str(path.relative_to(ROOT)): absolute_times(path.read_text(encoding="utf-8")) for path in tests}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "assert watch.longest_ms < 50, watch.report()",
        "began = time.monotonic(); work(); assert time.monotonic() - began < 5",
        "began = time.thread_time(); costs = []; costs.append(time.thread_time() - began); assert LIMIT_S > max(costs)",
        "before = resource.getrusage(0); took = resource.getrusage(0).ru_utime - before; assert took <= 0.5 * 2",
    ],
)
def test_an_absolute_time_is_found(line):
    assert absolute_times("def test_it():\n    " + line)


@pytest.mark.parametrize(
    "line",
    [
        "assert wait_until(lambda: over, timeout_s=60)",
        "began = time.monotonic(); assert time.monotonic() - began >= 2",
        "took = time.monotonic() - began; assert len(told) <= took / 0.1 + 2",
    ],
)
def test_waiting_and_rates_are_not_absolute_times(line):
    assert absolute_times("def test_it():\n    " + line) == []


def test_every_name_that_a_benchmark_imports_is_there():
    """No other test imports the benchmarks: a rename in a package would break `make bench` unnoticed."""
    own = tuple(f"{path.name}." for path in DISTRIBUTIONS)
    missing = [
        f"{path.name}: {node.module}.{alias.name}"
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(own)
        for alias in node.names
        if not has_name(node.module or "", alias.name)
    ]
    assert missing == []


def has_name(module: str, name: str) -> bool:
    """Whether a module of ours binds a name, or a package has a module of that name; nothing is imported."""
    (place,) = (path / module.replace(".", "/") for path in DISTRIBUTIONS if module.split(".")[0] == path.name)
    if (place / f"{name}.py").is_file():
        return True
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    nodes = list(ast.walk(ast.parse(source.read_text()))) if source.is_file() else []
    bound = {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    return name in bound
