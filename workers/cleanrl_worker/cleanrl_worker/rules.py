"""What must hold between the fields of `Args`: pairs of an expression and what to say when it is false."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cleanrl_worker.expressions import evaluate, fill, names_in

Rule = tuple[str, str]
"""(`num_envs * num_steps % num_minibatches == 0`, `--num-minibatches {num_minibatches} does not divide …`)"""

OF_ALL: tuple[Rule, ...] = (
    (
        "eval_freq * (eval_episodes == 0) == 0",
        "--eval-freq {eval_freq} asks for evaluations without an episode: give --eval-episodes, too",
    ),
)
"""What must hold whatever the algorithm"""


def broken_rules(rules: Sequence[Rule], values: Mapping[str, Any], *, leaving_out: Collection[str] = ()) -> list[str]:
    """The sentences of the rules that do not hold; rules about a value that is wrong by itself say nothing."""
    unusable = {*leaving_out, *(name for name, value in values.items() if type(value) not in (int, float, bool))}
    return [
        fill(sentence, values)
        for expression, sentence in (*rules, *OF_ALL)
        if not (names := names_in(expression)) & unusable
        and names <= values.keys()
        and not evaluate(expression, values)
    ]
