"""Configs of the LLM worker: what is wrong is named before anything runs, and what is missing can be installed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from llm_worker.budget import Budget, Usage
from llm_worker.cli import check, load
from llm_worker.errors import BudgetSpent
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.worker_config import WorkerConfig


@pytest.mark.parametrize(
    ("extras", "sentence"),
    [
        ({"base_url": "", "model": "gpt-5"}, "model: 'gpt-5' is served by an endpoint: name it with --base-url"),
        ({"base_url": "", "model": "/nowhere/a.gguf"}, "there is no file /nowhere/a.gguf"),
        ({"base_url": "127.0.0.1:80"}, "base_url: must begin with http:// or https://"),
        ({"max_cost": 1}, "needs the prices of tokens"),
        ({"max_tokens": 8}, "must be at least 64"),
        ({"describer": "nowhere"}, "describer: nowhere: write package.module:function or /path/to/file.py:function"),
        ({"describer": "nowhere:see"}, "describer: nowhere:see: cannot be loaded: ModuleNotFoundError"),
        ({"base_url": "", "model": "smollm2"}, "requirement set 'llm_local' is not installed. Install:"),
        ({"mode": "interactive"}, "is no mode of this worker"),
    ],
)
def test_a_mistake_in_the_config_is_named_before_anything_runs(
    home: Home, extras: dict[str, Any], sentence: str
) -> None:
    usual = {"base_url": "http://127.0.0.1:1/v1", "model": "m", **extras}
    document = {"algo": "llm", "env_id": "FrozenLake-v1", "total_timesteps": 5, "extras": usual}
    assert sentence in "; ".join(map(str, check(document).problems))
    with pytest.raises(ConfigProblems, match=re.escape(sentence)):
        load(WorkerConfig.from_json(document, make_run_id=new_run_id))


def test_a_missing_set_is_no_mistake_where_it_is_to_be_installed(home: Home) -> None:
    extras = {"model": "smollm2", "install_missing": True}
    answer = check({"algo": "llm", "env_id": "MiniGrid-Empty-5x5-v0", "total_timesteps": 5, "extras": extras})
    assert answer.problems == []
    assert set(answer.missing_sets) == {"llm_local", "minigrid"}


def test_the_price_of_tokens_is_counted() -> None:
    usage = Usage(prompt_tokens=2_000_000, completion_tokens=500_000)
    limits = {"input_price": 3.0, "output_price": 15.0, "max_total_tokens": 0, "max_cost": 13.5, "max_minutes": 0}
    budget = Budget(usage, limits)
    assert budget.cost == 13.5
    with pytest.raises(BudgetSpent, match=re.escape("the budget of 13.5 is spent")):
        budget.check()
    budget.renew()
    budget.check()
