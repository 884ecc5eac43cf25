"""`Annotated[int, Range(1)]`: what a field of `Args` may be, for forms, dry runs and the algorithm itself."""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """The smallest and the largest value; None: no limit. Write it with literals, it is read as text."""

    minimum: float | None = None
    maximum: float | None = None
