"""A run: episodes that a model plays, one or several at a time, over one endpoint."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from mosaic_wire.errors import GivenUp
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.live_environment import LiveEnvironment
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import find_home
from mosaic_wire.reasoning import Part, reasoning_info
from mosaic_wire.run_request import Mode
from mosaic_wire.session import CommandKind
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_run import WorkerRun

from llm_worker import __version__
from llm_worker.answers import Constraint, parse, repair_request, written
from llm_worker.budget import Budget, Usage
from llm_worker.describers import Game
from llm_worker.embedded import EmbeddedServer, is_embedded
from llm_worker.endpoint import Endpoint, Reply, probe
from llm_worker.errors import BudgetSpent, EndpointFailed
from llm_worker.prompt import Message, Turn, instructions, messages, plan_request

_POLL_S = 0.05
_CURVES_EVERY = 10
"""Steps between two points of a curve"""
_LONGEST_PLAN = 1_000
"""Characters of a plan, which is in every prompt until the next one"""
_LONGEST_REPEATED = 1_000
"""Characters of an invalid answer that the model is reminded of"""
RANDOM = "random"
"""`extras.eval_policy` of a baseline, which asks no model"""


@dataclass
class Decision:
    """One choice of an action, and how it came about."""

    action: str
    asked: str = ""
    answer: str = ""
    asked_again: str = ""
    second_answer: str = ""
    latency_ms: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_fallback: bool = False

    @property
    def is_invalid(self) -> bool:
        """Return whether the first answer named no single legal action."""
        return bool(self.asked_again)

    @property
    def note(self) -> str:
        """Return what a viewer should know of the choice."""
        if self.is_fallback:
            return " (a random one: no answer named a legal action)"
        return " (after being asked again)" if self.is_invalid else ""

    def add(self, reply: Reply) -> None:
        """Count a reply."""
        self.latency_ms += reply.latency_ms
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


class Player:
    """One environment, the conversation about its episode, and its plan."""

    def __init__(self, live: LiveEnvironment, history: int) -> None:
        self.live, self._history = live, history
        self.turns: list[Turn] = []
        self.plan = ""
        self.planned_at = -1
        """Length of the episode when the plan was made"""
        self.is_introduced = False
        """Whether the instructions are in the record of this episode"""

    def begin(self) -> None:
        """Begin the next episode with an empty conversation."""
        self.live.reset()
        self.turns, self.plan, self.planned_at, self.is_introduced = [], "", -1, False

    def remember(self, turn: Turn) -> None:
        """Add a turn; what no prompt shows any more is left out."""
        self.turns = [*self.turns, turn][-(self._history + 1) :]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        turns = [turn.to_json() for turn in self.turns]
        return {"live": self.live.state(), "turns": turns, "plan": self.plan, "planned_at": self.planned_at}

    def restore(self, state: Mapping[str, Any]) -> str:
        """Continue the episode of a checkpoint; return why it could not be continued, or an empty text."""
        if problem := self.live.restore(state["live"]):
            return problem
        self.turns = [Turn(**turn) for turn in state["turns"]]
        self.plan, self.planned_at = state["plan"], state["planned_at"]
        return ""


class LlmRun(WorkerRun):
    """One run: the players, the endpoint they share, and what it has used."""

    def __init__(
        self,
        config: WorkerConfig,
        parameters: Mapping[str, Any],
        environments: Sequence[Any],
        game: Game,
        state: Mapping[str, Any],
        *,
        shown: Mapping[str, Any],
    ) -> None:
        self.stopped_early = ""
        self.is_evaluation = config.extras.get("mode") == Mode.EVALUATE
        self.is_random = config.extras.get("eval_policy") == RANDOM
        manifest = AnalyticsManifest(
            config.run_id,
            "llm",
            config.algo,
            config.env_id,
            config.seed,
            versions=_versions(),
            tensorboard_dir="tensorboard",
            extra={"parameters": dict(shown)},
        )
        resumed = state if not self.is_evaluation else {}
        super().__init__(config, manifest, resumed_at=resumed.get("step"))
        self.parameters, self.game, self._shown = parameters, game, dict(shown)
        self._environments, self._resumed = environments, resumed
        self.usage = Usage(**resumed.get("usage", {}))
        self.budget = Budget(self.usage, parameters)
        self.constraint: Constraint | None = None
        self.players: list[Player] = []
        self._actions = list(game.actions)
        self._returns: list[float] = list(resumed.get("finished", {}).get("returns", ()))
        self._successes: list[bool] = list(resumed.get("finished", {}).get("successes", ()))
        self._episodes_begun = 0
        self._asking = 0
        """Steps that players are about to take"""
        self._probing = asyncio.Lock()
        self._server: EmbeddedServer | None = None
        self._stack = ExitStack()

    # ------------------------------------------------------------------ the life of a run

    def preview(self) -> Mapping[str, Any]:
        """Return what a dry run prints."""
        return {"would_play": self.config.env_id, "model": self.parameters["model"], "actions": self._actions}

    def start(self) -> Mapping[str, Any]:
        """Make the players, and the model where it is embedded."""
        first: LiveEnvironment | None = None
        for number, env in enumerate(self._environments):
            live = LiveEnvironment(
                env,
                self.session,
                seed=self.config.seed,
                total=self.config.total_timesteps,
                records_frames=self.parameters["record_frames"],
                resumed_at=self.resumed_at,
                beside=first,
                counts_episodes=self.is_evaluation,
            )
            first = first or live
            player = Player(live, self.parameters["history"])
            self.players.append(player)
            known = self._resumed.get("players", ())
            if number < len(known) and (problem := player.restore(known[number])):
                self.session.print_error(problem)
        facts = {name: self.parameters[name] for name in ("model", "api", "parallel")}
        return {**facts, "endpoint": self._shown["base_url"] or ("" if self.is_random else "embedded")}

    @property
    def _lead(self) -> LiveEnvironment:
        return self.players[0].live

    def train(self) -> ExitOutcome:
        """Play until the steps or a budget are used up, or the run is interrupted."""
        while True:
            try:
                if not self.is_random and is_embedded(self.parameters) and self._server is None:
                    self._start_server()
                is_finished = _run(self._play())
            except BudgetSpent as spent:
                is_finished = not any(map(self._may_go_on, self.players))
                outcome = ExitOutcome.COMPLETED if is_finished else self._end_of_budget(str(spent))
            except EndpointFailed as error:
                outcome = self.obey() if self.session.stop_requested.is_set() else self._fail(error)
            except GivenUp as error:
                self._fail(error)
                raise
            else:
                outcome = ExitOutcome.COMPLETED if is_finished else self.obey()
            if outcome is ExitOutcome.COMPLETED:
                self.save("last")
            if outcome is not None:
                return outcome
            self.budget.restart_clock()

    def _fail(self, error: Exception) -> ExitOutcome:
        """Keep what was played; the run can be continued once the endpoint answers."""
        died = self._server.death if self._server is not None else ""
        self.reason = f"{error}{died and f'; {died}'}"
        self.session.print_error(self.reason)
        if self.step:
            self.save("last")
        return ExitOutcome.FAILED

    def _start_server(self) -> None:
        server = EmbeddedServer(find_home(), self.parameters, is_stopping=self.session.stop_requested.is_set)
        self._server = server
        self._stack.callback(server.close)

    def _end_of_budget(self, reason: str) -> ExitOutcome | None:
        """End the run, or pause it and grant the same budget again."""
        is_connected = self.session.telemetry() is not None  # without a daemon no client can resume it
        if self.parameters["on_budget"] == "pause" and is_connected:
            self.save("last")
            command = self.session.pause({"step": self.step}, reason=reason)
            if self.session.stop_requested.is_set():
                return ExitOutcome.CANCELLED
            if command is CommandKind.RELEASE:
                return ExitOutcome.RELEASED
            self.budget.renew()
            return None
        self.stopped_early = reason
        return ExitOutcome.COMPLETED

    def state(self) -> Mapping[str, Any]:
        """Return what a checkpoint holds: conversations, environments, and what was used."""
        self.budget.measure()
        return {
            "step": self.step,
            "parameters": self._shown,
            "usage": vars(self.usage),
            "players": [player.state() for player in self.players],
            "finished": {"returns": self._returns, "successes": self._successes},
        }

    def result(self) -> Mapping[str, Any]:
        """Return facts for the event that ends the run."""
        if self.players:
            self._lead.report()
        used = self.usage
        if used.fallbacks:
            note = f"{used.fallbacks:,} of {used.steps:,} actions were random: the model named no legal one"
            self.manifest = replace(self.manifest, extra={**self.manifest.extra, "training_notes": [note]})
        facts: dict[str, Any] = {
            "step": self.step,
            "constraint": str(self.constraint or ""),
            "total_tokens": used.tokens,
            "invalid": used.invalid,
            "repaired": used.repaired,
            "fallbacks": used.fallbacks,
        }
        if used.calls:
            facts["invalid_rate"], facts["fallback_rate"] = used.rate(used.invalid), used.rate(used.fallbacks)
            facts["latency_ms"] = round(used.waited_ms / used.calls, 1)
        if self.budget.has_prices:  # without them the cost is unknown
            facts["cost"] = round(self.budget.cost, 6)
        if self.stopped_early:
            facts["stopped_early"] = self.stopped_early
        if self._returns:
            facts["evaluation"] = {
                "mean_return": statistics.fmean(self._returns),
                "std_return": statistics.pstdev(self._returns),
                "episodes": len(self._returns),
            }
            if self._successes:
                facts["evaluation"]["success_rate"] = statistics.fmean(self._successes)
        return facts

    def close(self) -> None:
        """End the server and close the environments."""
        self._stack.close()
        for player in reversed(self.players):  # the first one last, because it holds the files
            player.live.close()
        for env in self._environments[len(self.players) :]:
            env.close()

    # ------------------------------------------------------------------ playing

    async def _play(self) -> bool:
        """Play until nothing is left; return False when the run was interrupted before that."""
        self._probing = asyncio.Lock()  # of this event loop
        async with self._endpoint() as endpoint:
            players = {asyncio.create_task(self._turns(endpoint, player)) for player in self.players}
            watch = asyncio.create_task(self._watch())
            everything = (*players, watch)
            try:
                while players and not watch.done():
                    done, _ = await asyncio.wait({*players, watch}, return_when=asyncio.FIRST_COMPLETED)
                    players -= done
                    for task in done:
                        task.result()
                return not players
            finally:
                for task in everything:
                    task.cancel()
                await asyncio.gather(*everything, return_exceptions=True)

    def _endpoint(self) -> Endpoint:
        address, key = str(self.parameters["base_url"]), str(self.parameters["api_key"])
        if self._server is not None:
            address, key = self._server.address, self._server.key
        # Parallel players have one seed: their prompts differ.
        return Endpoint(address, self.parameters, key=key, seed=self.config.seed or 0, before_request=self.budget.check)

    async def _watch(self) -> None:
        """Return when the run is interrupted; raise BudgetSpent also while an answer is awaited."""
        while not self.session.is_interrupted:
            self.budget.check()
            await asyncio.sleep(_POLL_S)

    async def _turns(self, endpoint: Endpoint, player: Player) -> None:
        while self._may_go_on(player):
            if player.live.is_over:
                player.begin()
                self._episodes_begun += 1
            self._asking += 1
            try:
                if self.constraint is None and not self.is_random:
                    await self._probe(endpoint)
                decision = await self._decide(endpoint, player)
            finally:
                self._asking -= 1
            self._act(player, decision)
            await asyncio.sleep(0)

    def _may_go_on(self, player: Player) -> bool:
        total = self.config.total_timesteps
        if self.is_evaluation:
            return not player.live.is_over or self._episodes_begun < total
        return self.step + self._asking < total

    async def _probe(self, endpoint: Endpoint) -> None:
        """Find out once how answers are held to legal actions; the other players wait."""
        async with self._probing:
            if self.constraint is not None:
                return
            chosen = self.parameters["constraint"]
            self.constraint = await probe(endpoint) if chosen == "auto" else Constraint(chosen)
            print(f"{endpoint.model} at {endpoint.address} answers by {self.constraint}", flush=True)  # noqa: T201 - the log

    # ------------------------------------------------------------------ one step

    @property
    def system(self) -> str:
        """Return the instructions of every episode."""
        return instructions(
            self.parameters["prompt"],
            environment=self.config.env_id,
            goal=self.game.goal,
            actions=self._actions,
            constraint=self.constraint or Constraint.TEXT,
        )

    def conversation(self, player: Player) -> list[Message]:
        """Return the messages that ask for the next action."""
        return messages(
            self.system,
            player.turns,
            self.game.text(player.live.observation),
            self.constraint or Constraint.TEXT,
            history=self.parameters["history"],
            plan=player.plan,
        )

    def first_prompt(self) -> list[Message]:
        """Return the messages for a first observation; the run need not be registered."""
        chosen = self.parameters["constraint"]
        self.constraint = Constraint.JSON_SCHEMA if chosen == "auto" else Constraint(chosen)
        observation, _ = self._environments[0].reset(seed=self.config.seed)
        return messages(self.system, [], self.game.text(observation), self.constraint, history=0)

    async def _decide(self, endpoint: Endpoint, player: Player) -> Decision:
        live = player.live
        rng = random.Random(f"{self.config.seed}/{live.episode}/{live.length}")
        if self.is_random:
            return Decision(rng.choice(self._actions))
        constraint = self.constraint or Constraint.TEXT
        every = self.parameters["plan_every"]
        if every and live.length % every == 0 and player.planned_at != live.length:
            reply = await self._ask(endpoint, plan_request(self.conversation(player), player.plan))
            # Checkpoints hold it, and a model may repeat anything.
            plan = " ".join(self.session.redact(reply.text).split())[:_LONGEST_PLAN]
            player.plan, player.planned_at = "".join(filter(str.isprintable, plan)), live.length
        asked = self.conversation(player)
        reply = await self._ask(endpoint, asked, constraint)
        decision = Decision(parse(reply.text, self._actions) or "", asked[-1]["content"], reply.text)
        decision.add(reply)
        if not decision.action:
            decision.asked_again = repair_request(reply.text, constraint, self._actions)
            again = [{"role": "assistant", "content": reply.text[:_LONGEST_REPEATED] or "…"}]
            again.append({"role": "user", "content": decision.asked_again})
            second = await self._ask(endpoint, [*asked, *again], constraint)
            decision.add(second)
            decision.second_answer = second.text
            decision.action = parse(second.text, self._actions) or ""
        if not decision.action:
            decision = replace(decision, action=rng.choice(self._actions), is_fallback=True)
        return decision

    async def _ask(self, endpoint: Endpoint, asked: Sequence[Message], constraint: Constraint | None = None) -> Reply:
        """Ask for an action under a constraint, or for free text; count what that took."""
        reply = await endpoint.ask(asked, self._actions if constraint else (), constraint or Constraint.TEXT)
        self.usage.calls += 1
        self.usage.prompt_tokens += reply.prompt_tokens
        self.usage.completion_tokens += reply.completion_tokens
        self.usage.waited_ms += reply.latency_ms
        return reply

    def _act(self, player: Player, decision: Decision) -> None:
        """Step the environment and record why."""
        live, used = player.live, self.usage
        observation = self.game.text(live.observation)
        system = "" if player.is_introduced else self.system
        player.is_introduced = True

        def step_info(after: Any, reward: float, terminated: bool, truncated: bool, _: Any) -> Mapping[str, Any]:
            ending = "; the episode is over" if terminated or truncated else ""
            return self._info(player, decision, system, f"reward {reward:g}{ending}\n{self.game.text(after)}")

        _, reward, terminated, truncated, facts = live.step(self.game.actions[decision.action], info=step_info)
        self.step = self._lead.steps
        used.steps += 1
        used.invalid += decision.is_invalid
        used.repaired += decision.is_invalid and not decision.is_fallback
        used.fallbacks += decision.is_fallback
        player.remember(Turn(observation, decision.action, reward))
        if terminated or truncated:
            self._end_episode(live, self.game.success(reward, terminated, facts))
        if used.steps % _CURVES_EVERY == 0 or live.is_over:
            self._add_curves(decision)
        every = self.parameters["checkpoint_every"]
        if every and self.step % every == 0:
            self.save()

    def _end_episode(self, live: LiveEnvironment, success: bool | None) -> None:
        self._returns.append(live.episode_return)
        if success is not None:
            self._successes.append(success)
            live.add_scalars({"charts/success": float(success)})

    def _add_curves(self, decision: Decision) -> None:
        used = self.usage
        values = {
            "llm/latency_ms": decision.latency_ms,
            "llm/tokens": used.tokens,
            "llm/invalid_rate": used.rate(used.invalid),
            "llm/fallback_rate": used.rate(used.fallbacks),
        }
        if cost := self.budget.cost:
            values["llm/cost"] = cost
        if not self.is_random:
            self._lead.add_scalars(values)

    def _info(self, player: Player, decision: Decision, system: str, result: str) -> dict[str, Any]:
        """Return what is stored with a step, without secrets."""
        clean = self.session.redact
        parts = [
            Part("Instructions", clean(system)),
            Part("Plan", clean(player.plan)),
            Part("Prompt", clean(decision.asked)),
            Part("Answer", clean(decision.answer)),
            Part("Asked again", clean(decision.asked_again)),
            Part("Second answer", clean(decision.second_answer)),
            Part("Action", f"{decision.action}{decision.note}"),
            Part("Result", clean(result)),
        ]
        facts: dict[str, Any] = {
            "action": decision.action,
            "written": written(decision.action, self.constraint or Constraint.TEXT),
            "latency_ms": round(decision.latency_ms, 1),
            "tokens": [decision.prompt_tokens, decision.completion_tokens],
            "invalid": decision.is_invalid,
            "fallback": decision.is_fallback,
        }
        return {**reasoning_info(parts), "llm": facts}


def _run(work: Any) -> bool:
    """Run a coroutine; unlike `asyncio.run` it does not wait for a name that is still being looked up."""
    loop = asyncio.new_event_loop()
    try:
        return bool(loop.run_until_complete(work))
    finally:
        loop.close()


def _versions() -> dict[str, str]:
    import gymnasium
    import httpx

    return {"llm_worker": __version__, "gymnasium": gymnasium.__version__, "httpx": httpx.__version__}
