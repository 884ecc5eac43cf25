"""The actions of every behaviour: sense, step, explore, and update values. Plans stand in the .asl."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import agentspeak
import agentspeak.stdlib
from agentspeak import asl_repr, grounded, unify
from mosaic_wire.reasoning import reasoning_info
from mosaic_wire.worker_spec import nearest

from spade_bdi_worker.learning import ActionValues
from spade_bdi_worker.percepts import Eyes, Percept, Sight
from spade_bdi_worker.reasoner import BehaviourError, Interrupted, Mind, normalized
from spade_bdi_worker.society import FORCES, Message


class World(Protocol):
    """The environment, recorded or not."""

    is_over: bool
    steps: int
    episode: int

    def reset(self) -> Any:
        """Begin an episode; return its first observation."""

    def step(self, action: Any, info: Mapping[str, Any] | None = None) -> tuple[Any, float, bool, bool, Any]:
        """Step the environment."""


class UnrecordedWorld:
    """An environment without telemetry, for the evaluation at the end of a training."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env, self._seed = env, seed
        self.is_over, self.steps, self.episode = True, 0, -1
        self.episode_return = 0.0

    def reset(self) -> Any:
        self.episode += 1
        self.is_over, self.episode_return = False, 0.0
        return self._env.reset(seed=(self._seed + self.episode) & 0x7FFF_FFFF)[0]

    def step(self, action: Any, info: Mapping[str, Any] | None = None) -> tuple[Any, float, bool, bool, Any]:
        observation, reward, terminated, truncated, facts = self._env.step(action)
        self.steps += 1
        self.episode_return += float(reward)
        self.is_over = bool(terminated or truncated)
        return observation, float(reward), terminated, truncated, facts


@dataclass
class Exploration:
    """How often an action is random: falls from `first` to `last` until `until`, in steps."""

    first: float
    last: float
    until: int

    def at(self, step: int) -> float:
        """Return the probability at a step."""
        return self.last if step >= self.until else self.first + (self.last - self.first) * step / self.until


class Body:
    """What the acting agent does in its world."""

    def __init__(
        self, world: World, eyes: Eyes, values: ActionValues, exploration: Exploration, rng: random.Random
    ) -> None:
        self.world, self.eyes, self.values, self.exploration, self.rng = world, eyes, values, exploration, rng
        self.mind: Mind
        """The acting agent, once it is built"""
        self.outbox: list[Message] = []
        self.explains = False
        """Whether steps are recorded with the reasons for them"""
        self.is_evaluating = False
        self.most_steps: int | None = None
        self.on_step: Callable[[], None] = lambda: None
        self._ending = "running"

    @property
    def facts(self) -> list[Percept]:
        """Return what every agent knows of the world."""
        actions: list[Percept] = [("action", number) for number in range(self.values.actions)]
        return [*actions, ("evaluating",)] if self.is_evaluating else actions

    def begin_episode(self) -> None:
        """Reset the world and look around."""
        sight = self.eyes.see(self.world.reset())
        self.mind.forget_world()
        self.mind.changes.clear()  # that the last map is forgotten is no news
        self._perceive(sight)

    def _perceive(self, sight: Sight) -> None:
        now = (*sight.now, ("episode", self.world.episode))
        self.mind.perceive(Sight(now, sight.lasting, sight.key, sight.lasting_name))

    def act(self, action: Any, intention: Any) -> float:
        """Step the world; return the reward."""
        if self.world.is_over or (self.most_steps is not None and self.world.steps >= self.most_steps):
            raise Interrupted
        number = self._number_of(action)
        info = reasoning_info(self.mind.explain(intention)) if self.explains else None
        observation, reward, terminated, truncated, _ = self.world.step(number, info)
        self._ending = "ended" if terminated else "cut" if truncated else "running"
        self.on_step()
        self._perceive(self.eyes.see(observation))
        return reward

    def _number_of(self, action: Any) -> int:
        names = self.eyes.actions
        if agentspeak.is_atom(action):
            if action.functor in names:
                return names.index(action.functor)
            hint = nearest(action.functor, names)
            known = ", ".join(names) or "only numbers"
            raise BehaviourError(
                f".act({action.functor}): there is no such action{f'; did you mean {hint}?' if hint else ''} "
                f"(there are: {known})"
            )
        if type(action) in (int, float) and action == int(action) and 0 <= action < self.values.actions:
            return int(action)
        raise BehaviourError(f".act({asl_repr(action)}): actions are numbers from 0 to {self.values.actions - 1}")

    def learn(self, state: Any, action: Any, reward: Any, following: Any) -> None:
        if not self.is_evaluating:
            end = None if self._ending == "ended" else _state(following)
            self.values.learn(_state(state), self._number_of(action), float(reward), end)

    @property
    def explores(self) -> bool:
        """Return whether this action is to be explored."""
        return not self.is_evaluating and self.rng.random() < self.exploration.at(self.world.steps)

    def best(self, state: Any) -> int:
        return self.values.best(_state(state), self.rng)

    def choose(self, state: Any) -> int:
        return self.rng.randrange(self.values.actions) if self.explores else self.best(state)

    @property
    def state(self) -> Any:
        """Return the argument of the percept `state`."""
        return next(iter(self.mind.beliefs["state", 1])).args[0]

    @property
    def ending(self) -> Any:
        return agentspeak.Literal(self._ending)


def _state(term: Any) -> Any:
    """Return a term as a state of the table."""
    if type(term) is int or type(term) is str:  # most states
        return term
    plain = normalized(term)
    if isinstance(plain, int) or (isinstance(plain, tuple) and all(isinstance(item, int) for item in plain)):
        return plain
    return asl_repr(plain)


def offered_actions(body: Body | None, log: Callable[[str], object]) -> Any:
    """Return every action a behaviour may use; without a body only their names matter."""
    # Rules are copied whenever they are used: what is registered must be functions, not methods.
    actions = agentspeak.Actions(agentspeak.stdlib.actions)

    def add(name: str, inputs: int, function: Callable[..., Any], outputs: int = 0) -> None:
        def run(agent: Any, term: Any, intention: Any) -> Any:
            values = [grounded(arg, intention.scope) for arg in term.args[:inputs]]
            answer = function(agent, intention, *values)
            if outputs == 1 and not unify(term.args[inputs], answer, intention.scope, intention.stack):
                return
            if outputs > 1 and not unify(term.args[inputs:], answer, intention.scope, intention.stack):
                return
            if answer is not False:
                yield

        actions.add(name, inputs + outputs, run)

    def send(agent: Any, _: Any, receivers: Any, force: Any, content: Any) -> None:
        if not agentspeak.is_atom(force) or force.functor not in FORCES:
            raise BehaviourError(f".send: unknown force {asl_repr(force)}; there are {', '.join(FORCES)}")
        if not agentspeak.is_literal(content):
            raise BehaviourError(f".send: {asl_repr(content)} is no literal such as found(3) or found")
        for receiver in receivers if agentspeak.is_list(receivers) else (receivers,):
            outbox.append(Message(agent.name, _name(receiver), force.functor, content))

    def broadcast(agent: Any, intention: Any, force: Any, content: Any) -> None:
        send(agent, intention, tuple(name for name in agent.env.agents if name != agent.name), force, content)

    def show(agent: Any, term: Any, intention: Any) -> Any:
        memo: dict[Any, Any] = {}
        words = (agentspeak.asl_str(agentspeak.freeze(arg, intention.scope, memo)) for arg in term.args)
        log(f"{agent.name}: {' '.join(words)}")
        yield

    outbox = body.outbox if body is not None else []
    do: Any = body
    add(".act", 1, lambda _, intention, action: do.act(action, intention))
    add(".act", 1, lambda _, intention, action: do.act(action, intention), 1)
    add(".act", 1, lambda _, intention, action: (do.act(action, intention), do.state), 2)
    add(".choose", 1, lambda _, __, state: do.choose(state), 1)
    add(".best", 1, lambda _, __, state: do.best(state), 1)
    add(".exploring", 0, lambda *_: do.explores)
    add(".value", 2, lambda _, __, state, action: do.values.of(_state(state))[do._number_of(action)], 1)
    add(".learn", 4, lambda _, __, *values: do.learn(*values))
    add(".outcome", 0, lambda *_: do.ending, 1)
    add(".random", 0, lambda *_: do.rng.random(), 1)
    add(".randint", 2, lambda _, __, low, high: do.rng.randint(int(low), int(high)), 1)
    add(".send", 3, send)
    add(".broadcast", 2, broadcast)
    actions.add(".print", None, show)
    return actions


def _name(receiver: Any) -> str:
    return receiver.functor if agentspeak.is_atom(receiver) else str(receiver)
