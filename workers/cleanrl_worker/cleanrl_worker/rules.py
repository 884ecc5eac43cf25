"""Rules between the fields of `Args`: pairs of an expression and the message for when it is false.

A false rule of `RULES` refuses the run. A false rule of `NOTES` is a note: the run starts, as CleanRL's script does.
"""

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

NOTES: tuple[Rule, ...] = (
    (
        "learning_starts < total_timesteps",
        "--learning-starts {learning_starts} is not reached in {total_timesteps} steps: nothing will be learned",
    ),
    (
        "total_timesteps >= num_envs * num_steps",
        "--total-timesteps {total_timesteps} is less than one batch of {num_envs * num_steps} steps "
        "(--num-envs {num_envs} × --num-steps {num_steps}): nothing will be trained",
    ),
)
"""The notes of an algorithm whose file declares no `NOTES`"""


def broken_rules(rules: Sequence[Rule], values: Mapping[str, Any], *, leaving_out: Collection[str] = ()) -> list[str]:
    """Return the messages of the rules that refuse these values; a value that is wrong by itself breaks no rule."""
    return _false((*rules, *OF_ALL), values, leaving_out)


def notes_on(declared: Mapping[str, Any], values: Mapping[str, Any], *, leaving_out: Collection[str] = ()) -> list[str]:
    """Return what to tell about values that a run can start with; `declared` are the constants of its file."""
    return _false(declared.get("NOTES", NOTES), values, leaving_out)


def _false(rules: Sequence[Rule], values: Mapping[str, Any], leaving_out: Collection[str]) -> list[str]:
    unusable = {*leaving_out, *(name for name, value in values.items() if type(value) not in (int, float, bool))}
    return [
        fill(sentence, values)
        for expression, sentence in rules
        if not (names := names_in(expression)) & unusable
        and names <= values.keys()
        and not evaluate(expression, values)
    ]
