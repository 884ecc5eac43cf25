"""The commands of the runbooks that train something, and look at it."""

from __future__ import annotations

import pytest


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("backup", marks=pytest.mark.slow),
        pytest.param("sweeps", marks=pytest.mark.slow),
        "tensorboard",
        pytest.param("wandb", marks=pytest.mark.slow),
    ],
)
def test_the_commands_of_a_runbook_do_what_it_says(name, perform_runbook):
    perform_runbook(name)
