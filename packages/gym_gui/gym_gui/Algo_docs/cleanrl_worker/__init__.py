"""Help pages of the CleanRL worker's algorithms: what each is, where to begin, what its flags mean.

Data and HTML only: the worker is not imported, because it may live in another environment. Its `--describe`
says which flags an algorithm has.
"""

from __future__ import annotations

from mosaic_wire.worker_spec import AlgorithmSpec

from gym_gui.Algo_docs.cleanrl_worker.algorithms import PAGES
from gym_gui.Algo_docs.cleanrl_worker.pages import render

__all__ = ["PAGES", "help_for"]


def help_for(algorithm: AlgorithmSpec) -> str:
    """Return the page of an algorithm that is in PAGES, as an HTML fragment."""
    return render(algorithm, PAGES[algorithm.name])
