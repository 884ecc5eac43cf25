"""Errors of the LLM worker.

WireError
├── EndpointFailed         the endpoint gives no usable answer, even after retries; a later attempt may go better
├── BudgetSpent            a limit of the user is reached: tokens, cost or time
└── GivenUp (mosaic_wire)  the endpoint refuses what it is asked: a wrong key, an unknown model
"""

from __future__ import annotations

from mosaic_wire.errors import WireError


class EndpointFailed(WireError):
    """The endpoint gives no usable answer."""


class BudgetSpent(WireError):
    """A limit that the user set is reached."""
