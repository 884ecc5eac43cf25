"""Every command of a runbook is run, in order, and prints what the runbook says; conftest.py has the markers."""

from __future__ import annotations

import re

import pytest

DATA = ("ini", "json", "toml", "text", "python")
"""Languages of blocks that hold no commands"""
MARKERS = {"skip", "exit", "interrupt", "first", "wait", "where", "sets"}
HERE = ("atari", "daemon", "dependencies", "nodes", "recovering", "security", "troubleshooting")
LONG = ("atari", "dependencies")
"""They install packages or train, which takes long: in `make test-all`"""
THERE = ("backup", "sweeps", "tensorboard", "wandb")
"""In test_runbooks_of_analytics.py: tests of one file run one after the other"""

OF_ENGINES = ("slurm",)
"""Their sessions need a cluster; tests/e2e/test_slurm.py gives these commands on one"""


def test_there_are_the_runbooks_that_operators_were_promised_and_each_is_run(runbooks):
    assert sorted(runbooks) == sorted([*HERE, *THERE, *OF_ENGINES])


def test_every_block_is_run_or_says_why_not(runbooks):
    """A new block cannot slip by: it is a session, or data, or it has a reason."""
    for name, block in [(name, block) for name, blocks in runbooks.items() for block in blocks]:
        where = f"{name}.md:{block.line}"
        assert {verb for verb, _ in block.markers} <= MARKERS, f"{where}: no such marker"
        if block.language in DATA:
            assert not re.search(r"^\$? ?mosaic ", block.text, re.MULTILINE), f"{where}: commands belong in `console`"
            continue
        assert block.language == "console", f"{where}: a block of commands is a `console` block"
        assert block.steps, f"{where}: there is no command ($ …) in it"
        if block.reason_to_skip is not None:
            assert len(block.reason_to_skip.split()) >= 3, f"{where}: say why it cannot be run here"


def test_most_blocks_are_really_run(runbooks):
    here = [blocks for name, blocks in runbooks.items() if name not in OF_ENGINES]
    sessions = [block for blocks in here for block in blocks if block.language == "console"]
    skipped = [block.reason_to_skip for block in sessions if block.reason_to_skip is not None]
    assert len(skipped) * 8 <= len(sessions), skipped


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in HERE]
)
def test_the_commands_of_a_runbook_do_what_it_says(name, perform_runbook):
    perform_runbook(name)
