"""What the documents say about commands, flags, settings and variables is so: they are compared with the program."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import importlib.util
import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
from gym_gui.cli.algorithms import installed_workers
from gym_gui.cli.app import mosaic
from gym_gui.cli.context import Cli
from gym_gui.config.settings import NodeSettings, Settings
from mosaic_wire import env

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")}
    | {path for kind in ("packages", "workers") for path in (ROOT / kind).glob("*/README.md")}
)
PROGRAMS = ("mosaic", "python -m", "make")
MISTAKES = {"mosaic trains ppo CartPole-v1"}
"""Written out to show what the answer is"""
OF_A_SET = {"wandb"}
"""Not in the environment the tests run in"""
NOT_FOR_PEOPLE = {"cleanrl_worker.launcher"}
"""Started by a worker; its help does not show everything"""
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands_of(path: Path) -> set[str]:
    """Every command line that a document writes out: in backticks, or at the beginning of a line of a block."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    found = set()
    for line in [*lines, *_INLINE.findall(_FENCE.sub("", text))]:
        stripped = re.sub(r"^(\$ )?(\w+=\S+ )*(\S*/bin/)?", "", line.strip())
        if stripped.startswith(tuple(f"{program} " for program in PROGRAMS)):
            # `command      what it does`: the explanation stands apart, or behind a comment sign.
            command = re.split(r"\s{2,}|\s#\s", stripped)[0]
            found.add(re.split(r"\s(?:\||>|&&|;|·|→|≥)(?:\s|$)", command)[0].strip())
    return found


def words_of(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def is_placeholder(word: str) -> bool:
    return "…" in word or word in ("...", "|", "COMMAND")


EVERY = sorted({(command, path) for path in DOCUMENTS for command in commands_of(path) - MISTAKES})


def named(program: str) -> list[pytest.param]:
    chosen = sorted({command for command, _ in EVERY if command.startswith(f"{program} ")})
    where = {
        command: next(str(path.relative_to(ROOT)) for each, path in EVERY if each == command) for command in chosen
    }
    return [pytest.param(command, where[command], id=f"{where[command]}: {command}"[:120]) for command in chosen]


# ---------------------------------------------------------------- mosaic


@cache
def algorithm_flags() -> frozenset[str]:
    specs = [worker.spec for worker in installed_workers(Cli()) if worker.spec is not None]
    names = {field.name for spec in specs for algorithm in spec.algorithms for field in algorithm.fields}
    flags = {f"--{name.replace('_', '-')}" for name in names}
    return frozenset(flags | {flag.replace("--", "--no-", 1) for flag in flags})


def command_of(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The click command that these words call, and its own words."""
    group: click.Command = mosaic
    context = click.Context(mosaic, info_name="mosaic")
    rest = arguments
    while isinstance(group, click.Group):
        plain = [word for word in rest if not word.startswith("-")]
        shared = {option for parameter in group.params for option in parameter.opts}
        while rest and rest[0].split("=")[0] in shared:
            rest = rest[1:] if "=" in rest[0] or rest[0] in ("--version", "--help") else rest[2:]
        if not rest or is_placeholder(rest[0]) or not plain:
            break
        if "start" in getattr(group, "commands", {}) and group.get_command(context, rest[0]) is None:
            rest = ["start", *rest]  # `mosaic sweep --algo …`
        found = group.get_command(context, rest[0])
        assert found is not None, f"there is no command {rest[0]!r}"
        group, rest = found, rest[1:]
    return group, rest


@pytest.mark.parametrize(("command", "where"), named("mosaic"))
def test_every_mosaic_command_of_a_document_exists_with_its_flags(command: str, where: str):
    arguments = [word.strip("[]()…,") for word in words_of(command)[1:]]
    called, rest = command_of([word for word in arguments if word])
    known = {
        option
        for parameter in (*called.params, *mosaic.params)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    known |= {"--help", "-h"}
    if called.name in ("train-command", "smoke-command", "train", "smoke"):
        known |= algorithm_flags()
    flags = [word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    unknown = [flag for flag in flags if flag not in known and not is_placeholder(flag)]
    if called.name in ("tag", "tag-command"):
        unknown = [flag for flag in unknown if flag.startswith("--")]  # -draft is a tag to remove
    assert unknown == [], where


# ---------------------------------------------------------------- python -m, make


@cache
def help_of(module: str) -> str:
    argv = [sys.executable, "-m", module, "--help"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout


@pytest.mark.parametrize(("command", "where"), named("python -m"))
def test_every_module_a_document_starts_exists_and_takes_its_flags(command: str, where: str):
    _, _, module, *rest = words_of(command)
    if re.search(r"[<…]|^my_|^MODULE$", module):
        return  # a module of the reader's
    if module in OF_A_SET:
        return
    assert importlib.util.find_spec(module) is not None, where
    if module == "pip" or module in NOT_FOR_PEOPLE:
        return
    text = help_of(module)
    flags = [word.split("=")[0] for word in rest if word.startswith("--")]
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text)] == [], where


@pytest.mark.parametrize(("command", "where"), named("make"))
def test_every_make_target_a_document_names_exists(command: str, where: str):
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    arguments = [word for word in words_of(command)[1:] if "=" not in word and not word.startswith(("[", "("))]
    assert arguments[:1] == [] or arguments[0] in targets[1].split(), where


def test_every_module_that_the_architecture_names_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    places = ("packages", "workers", "tests", "benchmarks")
    modules = {path.name for place in places for path in (ROOT / place).rglob("*.py")}
    named = {Path(name).name for name in re.findall(r"`([\w/]+\.py)`", text)}
    assert named - modules == set()


# ---------------------------------------------------------------- settings and variables


def rows_under(heading: str, text: str) -> set[str]:
    """The names in the first column of the tables below a heading."""
    part = text.partition(f"\n{heading}\n")[2]
    part = re.split(r"^#{1,2} ", part, maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_table_of_settings_has_every_setting_and_no_other():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert rows_under("## Settings of the daemon", text) == {field.name for field in dataclasses.fields(Settings)}


def test_the_table_of_settings_for_nodes_has_every_key_and_no_other():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert rows_under("## Settings for nodes", text) == {field.name for field in dataclasses.fields(NodeSettings)}


def test_the_variables_of_the_documents_are_spelled_as_in_the_program():
    text = (ROOT / "docs" / "configuration.md").read_text()
    spelled = {value for value in vars(env).values() if isinstance(value, str)} | set(env.THREAD_COUNTS)
    assert rows_under("## Environment variables", text) - spelled == set()


# ---------------------------------------------------------------- messages

OF_OTHERS = ("command not found", "file changed as we read it", "Permission denied", "No space left on device")
"""Of the shell, of tar"""


@cache
def everything_the_program_says() -> str:
    """The source of all packages, with texts that are written in pieces put together."""
    folders = [path / path.name for kind in ("packages", "workers") for path in (ROOT / kind).iterdir()]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))] + [ROOT / "Makefile"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text).replace('\\"', '"')


def quoted_messages(path: Path) -> list[str]:
    """What stands in backticks in the first column of a table under "what you see" and the like."""
    found, in_table = [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            in_table = False
        elif re.match(r"\| (what you see|it prints|reason|message) \|", line):
            in_table = True
        elif in_table:
            found += _INLINE.findall(line.split("|")[1])
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "runbooks").glob("*.md")), ids=lambda path: path.stem)
def test_every_message_a_runbook_explains_is_one_that_the_program_says(path: Path):
    said = everything_the_program_says()
    invented = []
    for message in quoted_messages(path):
        if any(theirs in message for theirs in OF_OTHERS):
            continue
        # Numbers and names stand for those that were there that day.
        pieces = [piece.strip(" ;:.,()'") for piece in re.split(r"…|'[^']*'|\d+|RUN|SIGKILL", message)]
        invented += [message for piece in pieces if len(piece) > 3 and piece not in said]
    assert invented == []


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.parent.name in ("gui", "runbooks")], ids=lambda path: path.stem
)
def test_every_button_and_menu_a_document_names_is_in_the_window(path: Path):
    """Words of the window are written in italics: *Management → Disk use*."""
    said = re.sub("&(?!&)", "", everything_the_program_says().replace("&&", "\0")).replace("\0", "&").lower()
    text = re.sub(r"<!--.*?-->", "", _INLINE.sub("", _FENCE.sub("", path.read_text(encoding="utf-8"))), flags=re.DOTALL)
    italics = re.findall(r"(?<![\w*])\*([^*\n]{2,60})\*(?![\w*])", text.replace("**", ""))
    arguments = {word.strip().rstrip(".").lower() for phrase in italics for word in phrase.split("→")}
    assert sorted(word for word in arguments if word not in said) == []


# ---------------------------------------------------------------- nothing is hidden


def test_the_index_leads_to_every_document():
    """docs/README.md names every page below docs, itself or by the index of its folder."""
    index = ROOT / "docs" / "README.md"
    reached, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text()):
            linked = (page.parent / target).resolve()
            if linked.suffix == ".md" and linked.is_file() and linked not in reached:
                reached.add(linked)
                if linked.name in ("README.md", "index.md"):
                    waiting.append(linked)
    assert sorted(str(path.relative_to(ROOT)) for path in set((ROOT / "docs").rglob("*.md")) - reached) == []


def test_every_sentence_about_an_attacker_names_a_test_that_exists():
    text = (ROOT / "docs/runbooks/security.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Who can do what\n") : text.index("\n## What is not protected\n")]
    for sentence in re.findall(r"^- ((?:.|\n(?! *\n|- |#))+)", section, re.MULTILINE):
        named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", sentence)
        assert named or "(#what-is-not-protected)" in sentence, sentence
        for file, name in named:
            assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)
            assert (ROOT / file).is_file(), file


def test_the_table_of_the_trainer_has_its_modules_in_the_order_of_the_import_contract():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = contracts["importlinter:contract:trainer"]["layers"].split("\n")
    layer_of = {name: place for place, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("\nInside `services/trainer`")[2].partition("\n\n`")[0]
    rows = [re.findall(r"`(\w+)(?:\.py|/)`", line.split("|")[1]) for line in table.splitlines() if line[:3] == "| `"]
    named = [name for row in rows for name in row]
    assert sorted(named) == sorted(layer_of)
    assert [name for above, name in pairwise(named) if layer_of[above] > layer_of[name]] == []


def test_the_walk_of_a_run_leads_through_code_that_is_there():
    rows = re.findall(
        r"^\| \d+ \| `(\S+)` \| (?:.*?)`([A-Za-z_]+)`", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE
    )
    assert 15 <= len(rows) <= 25
    for path, name in rows:
        defined = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}
        assert name in defined, f"{path} does not define {name}"
