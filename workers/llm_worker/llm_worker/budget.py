"""What a run has used, and the limits that the user set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_worker.errors import BudgetSpent

_PER_PRICE = 1_000_000
"""Prices are per so many tokens"""


@dataclass
class Usage:
    """Counts of a run, over all its attempts."""

    calls: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    invalid: int = 0
    """Steps whose first answer named no single legal action"""
    repaired: int = 0
    """Of those, steps whose second answer did"""
    fallbacks: int = 0
    """Of those, steps with a random action"""
    seconds: float = 0.0
    waited_ms: float = 0.0
    """For answers, of all players together"""

    @property
    def tokens(self) -> int:
        """Return all tokens."""
        return self.prompt_tokens + self.completion_tokens

    def rate(self, count: int) -> float:
        """Return a count per step."""
        return count / self.steps if self.steps else 0.0


class Budget:
    """The limits of a run; 0 is no limit."""

    def __init__(self, usage: Usage, parameters: Mapping[str, Any]) -> None:
        self._usage = usage
        self._input_price, self._output_price = parameters["input_price"], parameters["output_price"]
        self._max_tokens, self._max_cost = parameters["max_total_tokens"], parameters["max_cost"]
        self._max_seconds = parameters["max_minutes"] * 60
        self._since = Usage(), 0.0
        """Usage and cost when the budget was last renewed"""
        self._measured_at = time.monotonic()

    @property
    def has_prices(self) -> bool:
        """Return whether the user gave a price."""
        return bool(self._input_price or self._output_price)

    @property
    def cost(self) -> float:
        """Return the cost in the currency of the prices."""
        used = self._usage
        spent = used.prompt_tokens * self._input_price + used.completion_tokens * self._output_price
        return float(spent / _PER_PRICE)

    def measure(self) -> None:
        """Add the time since the last call to what was used."""
        now = time.monotonic()
        self._usage.seconds += now - self._measured_at
        self._measured_at = now

    def restart_clock(self) -> None:
        """Leave out the time until now: the run was paused."""
        self._measured_at = time.monotonic()

    def check(self) -> None:
        """Raise BudgetSpent with the limit that is reached."""
        self.measure()
        (before, cost), used = self._since, self._usage
        if self._max_tokens and used.tokens - before.tokens >= self._max_tokens:
            raise BudgetSpent(f"the budget of {self._max_tokens:,} tokens is used up ({used.tokens:,} used)")
        if self._max_cost and self.cost - cost >= self._max_cost:
            raise BudgetSpent(f"the budget of {self._max_cost:g} is spent (cost {self.cost:.4f})")
        if self._max_seconds and used.seconds - before.seconds >= self._max_seconds:
            raise BudgetSpent(f"the time of {self._max_seconds / 60:g} minutes is over")

    def renew(self) -> None:
        """Grant the same budget again."""
        self._since = Usage(**vars(self._usage)), self.cost
        self.restart_clock()
