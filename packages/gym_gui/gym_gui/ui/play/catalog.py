"""Query the human worker, in its own process, for playable environments and their arguments. No Qt."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import SpecError
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import WorkerSpec

WORKER = "human"
_TIMEOUT_S = 90.0
_FAMILIES = ("Classic control", "Toy text", "Box2D", "MiniGrid", "BabyAI", "Atari", "MuJoCo")
"""Order of the list: simple games without extra packages first"""


class CannotAsk(ValueError):
    """The worker did not answer; the message for users gives the reason."""


@dataclass(frozen=True)
class Playable:
    """A playable environment."""

    env_id: str
    family: str
    needs: str = ""
    """The requirement set to install first; empty: none"""
    is_newest: bool = True


@dataclass(frozen=True)
class GameArgument:
    """A constructor argument of an environment."""

    name: str
    kind: str
    """bool, int, float, str or json"""
    default: Any = None
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class GameFacts:
    """What is known of an environment before it is constructed in a game."""

    env_id: str
    reported: Mapping[str, Any]
    """action_space, action_meanings, render_fps …, as in the protocol's init message"""
    arguments: tuple[GameArgument, ...] = ()
    draws: bool = True


def worker_argv(workers: Iterable[pb.Worker]) -> tuple[str, ...]:
    """Return the command line of the worker; CannotAsk if there is none."""
    for worker in workers:
        if worker.name != WORKER:
            continue
        if not worker.spec_json:
            raise CannotAsk(f"the human worker cannot be used: {worker.problem}")
        try:
            return WorkerSpec.from_json(json.loads(worker.spec_json)).argv
        except (SpecError, ValueError) as error:
            raise CannotAsk(f"the human worker cannot be used: {error}") from error
    raise CannotAsk("the human worker is not installed; install it: pip install -e workers/human_worker")


def ask(argv: Sequence[str], home: Home | None, *arguments: str) -> Any:
    """Run the worker with these arguments and parse the JSON it prints."""
    variables = {**os.environ, **({env.MOSAIC_HOME: str(home.root)} if home is not None else {})}
    try:
        done = subprocess.run(
            [*argv, *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise CannotAsk(f"the human worker did not answer within {_TIMEOUT_S:g} s") from None
    except (OSError, ValueError, IndexError) as error:
        raise CannotAsk(f"the human worker could not be started: {error}") from error
    output = done.stderr.strip()
    if done.returncode < 0:
        raise CannotAsk(f"constructing the environment killed its process (signal {-done.returncode})")
    raise CannotAsk(output[-600:] if output else f"the human worker ended with exit code {done.returncode}")


def list_environments(argv: Sequence[str], home: Home | None) -> list[Playable]:
    """Return everything that can be played here."""
    found = [
        Playable(
            str(entry["env_id"]), str(entry["family"]), str(entry.get("needs", "")), bool(entry.get("is_newest", True))
        )
        for entry in ask(argv, home, "--list-environments")
    ]
    return sorted(found, key=lambda playable: (bool(playable.needs), family_rank(playable.family), playable.env_id))


def family_rank(family: str) -> tuple[int, str]:
    """Return the sort key of a family."""
    return (_FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES)), family


def describe_environment(argv: Sequence[str], home: Home | None, env_id: str) -> GameFacts:
    """Return the arguments and spaces of an environment."""
    reported = ask(argv, home, "--describe-environment", env_id)
    arguments = tuple(
        GameArgument(str(entry["name"]), str(entry["kind"]), entry.get("default"), tuple(entry.get("choices") or ()))
        for entry in reported.get("arguments", ())
    )
    return GameFacts(env_id, reported, arguments, bool(reported.get("draws", True)))


def matching(playables: Iterable[Playable], text: str, family: str, *, with_older: bool) -> list[Playable]:
    """Return the environments whose id contains all of the terms."""
    terms = text.lower().split()
    return [
        playable
        for playable in playables
        if (not family or playable.family == family)
        and (playable.is_newest or with_older or (terms and playable.env_id.lower() == text.lower().strip()))
        and all(word in playable.env_id.lower() for word in terms)
    ]
