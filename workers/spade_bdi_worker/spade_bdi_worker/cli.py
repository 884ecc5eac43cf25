"""The Spade BDI worker: an agent whose reasoning is AgentSpeak, in an environment, learning.

    python -m spade_bdi_worker.cli --algo spade_bdi --env-id FrozenLake-v1 --total-timesteps 20000

The interpreter (agentspeak, GPL-3) is in a requirement set; the worker continues in its overlay.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mosaic_extras.env_construction import read_env_kwargs
from mosaic_extras.install_extras import prepare as install_sets
from mosaic_extras.overlays import make_plan
from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.config_checks import CheckAnswer, problems_of_dry_run
from mosaic_wire.errors import ConfigProblems, DamagedCheckpoint, Problem
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.ids import is_run_id, new_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import find_home
from mosaic_wire.redaction import with_secrets
from mosaic_wire.run_request import Mode
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_run import Question, WorkerRun, run_worker, state_to_resume
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice

from spade_bdi_worker import __version__, get_worker_metadata
from spade_bdi_worker.environment import ENVIRONMENTS, PATTERNS, enter_sets, make, missing_sets, sets_of
from spade_bdi_worker.learning import ActionValues
from spade_bdi_worker.percepts import NotSymbolic, eyes_of
from spade_bdi_worker.sources import BEHAVIOURS, Source, find_sources

if TYPE_CHECKING:  # imported in the overlay that has agentspeak
    from spade_bdi_worker.actions import Body, World
    from spade_bdi_worker.society import Mail, Society

MODULE = "spade_bdi_worker.cli"
GOAL = "act"
"""The goal that the acting agent gets before every step"""
WARNING = " (warning)"
FIELDS = (
    FieldSpec("total_timesteps", "int", 20_000, "how many steps to take", minimum=1),
    FieldSpec("seed", "int", 1, "seed of the episodes and of exploration", minimum=0),
    FieldSpec("behaviour", "str", "q_learning", "the plans of the agents", choices=BEHAVIOURS, group="Behaviour"),
    FieldSpec(
        "behaviour_path",
        "str",
        "",
        "your own .asl file, or a folder with one per agent; empty: as above",
        group="Behaviour",
    ),
    FieldSpec("env_kwargs", "str", "", "arguments of the environment: JSON, or is_slippery=false,map_name=8x8"),
    FieldSpec("learning_rate", "float", 0.2, "how far a value moves towards its target", minimum=0, maximum=1),
    FieldSpec("discount", "float", 0.99, "weight of the next state's value", minimum=0, maximum=1),
    FieldSpec("exploration", "float", 1.0, "probability of a random action at the beginning", minimum=0, maximum=1),
    FieldSpec("exploration_final", "float", 0.05, "and at the end", minimum=0, maximum=1),
    FieldSpec("exploration_fraction", "float", 0.5, "part of the run until that is reached", minimum=0, maximum=1),
    FieldSpec("tilings", "int", 8, "tilings of the observations of classic control", minimum=1, maximum=64),
    FieldSpec("bins", "int", 8, "tiles of a tiling along each number", minimum=2, maximum=64),
    FieldSpec(
        "max_deliberations", "int", 100_000, "fail when an agent only thinks so long", minimum=1_000, group="Behaviour"
    ),
    FieldSpec(
        "engine",
        "str",
        "agentspeak",
        "agentspeak: in this process; spade: messages go through XMPP",
        choices=("agentspeak", "spade"),
        group="Messages",
    ),
    FieldSpec("jid", "str", "", "account of the acting agent on your XMPP server, name@domain", group="Messages"),
    FieldSpec("password", "str", "", "its password; the other agents have the same", group="Messages"),
    FieldSpec(
        "server", "str", "", "host of your XMPP server; empty: an embedded one on this machine", group="Messages"
    ),
    FieldSpec("port", "int", 5222, "its port", minimum=1, maximum=65535, group="Messages"),
    FieldSpec("verify_certificate", "bool", True, "check the certificate of your server", group="Messages"),
    FieldSpec(
        "answer_s", "float", 30.0, "fail when an agent outside does not answer so long", minimum=1, group="Messages"
    ),
    FieldSpec("eval_episodes", "int", 20, "episodes of the evaluation at the end; 0: none", minimum=0),
    FieldSpec("checkpoint_every", "int", 0, "write a checkpoint every so many steps; 0: only at the end", minimum=0),
    FieldSpec("record_steps", "bool", True, "record every step and the reasons for it"),
    FieldSpec("record_frames", "bool", False, "record frames for replays"),
)
_NON_LEARNING = ("eval_episodes", "checkpoint_every", "record_steps", "record_frames", "max_deliberations", "answer_s")
_OF_POLICY = ("behaviour", "behaviour_path", "env_kwargs", "tilings", "bins")
"""Parameters that a policy is evaluated with, too"""
_MODES = (Mode.TRAIN, Mode.RESUME, Mode.EVALUATE)


def describe() -> WorkerSpec:
    """Return what `--describe` prints."""
    algorithm = AlgorithmSpec(
        "spade_bdi",
        "beliefs, goals and plans in AgentSpeak; Q-learning and planning are behaviours",
        FIELDS,
        action_spaces=("discrete",),
        observation_spaces=("discrete", "vector", "dict"),
        requirement_sets=("agentspeak",),
        modes=tuple(map(str, _MODES)),
    )
    return WorkerSpec(
        name="spade_bdi",
        display_name="Spade BDI Worker",
        version=__version__,
        capabilities=get_worker_metadata(),
        module=MODULE,
        argv=(sys.executable, "-m", MODULE),
        algorithms=(algorithm,),
        environments=ENVIRONMENTS,
        environment_patterns=PATTERNS,
        prepares=True,
        non_learning=_NON_LEARNING,
        checks=True,
    )


# ---------------------------------------------------------------- checking


def settings_of(config: WorkerConfig, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return every parameter, secrets filled in; raise ConfigProblems with everything that is wrong with them.

    An evaluation without parameters of its own has those of the policy in `state`.
    """
    given: dict[str, Any] = with_secrets(config.parameters, os.environ)
    if env_kwargs := config.extras.get("env_kwargs"):  # of an evaluation
        given["env_kwargs"] = json.dumps(env_kwargs)
    problems = check_algorithm_choice(describe(), config.algo, config.env_id, given)
    known = (state or {}).get("settings", {}) if config.extras.get("mode") == Mode.EVALUATE else {}
    settings = {field.name: field.default for field in FIELDS} | known | given
    if not problems and settings["engine"] == "spade" and settings["server"]:
        node, at, domain = str(settings["jid"]).partition("@")
        if not (node and at and domain) or "/" in settings["jid"]:
            problems.append(Problem("jid", f"must be name@domain for the server {settings['server']!r}"))
        if not settings["password"]:
            problems.append(Problem("password", "is missing: your XMPP server wants one"))
    if (config.extras.get("mode") or Mode.TRAIN) not in _MODES:
        problems.append(Problem("extras.mode", f"must be one of {', '.join(_MODES)}"))
    if problems:
        raise ConfigProblems("the worker config", problems)
    return settings


def _state_of(config: WorkerConfig) -> dict[str, Any]:
    """Return the state of the checkpoint that a run continues from or evaluates, or {}; raise ConfigProblems."""
    problems: list[Problem] = []
    if config.extras.get("mode") == Mode.EVALUATE:
        if folder := config.extras.get("checkpoint_path"):
            state = state_to_resume(_resuming(config, _checkpoint_of(folder)), problems)
        elif config.extras.get("eval_policy") == "random":
            state = {}
        else:
            problems.append(Problem("extras.checkpoint_path", "is missing: which policy is to be evaluated?"))
            state = {}
    else:
        state = state_to_resume(config, problems)
    if state and not {"values", "rng", "beliefs", "live", "actions"} <= state.keys():
        problems.append(Problem("extras.checkpoint_path", "is not a checkpoint of this worker"))
    if problems:
        raise ConfigProblems("the worker config", problems)
    return state


def _checkpoint_of(named: str) -> str:
    """Return the folder of a checkpoint, of a run's last good one where a run is named; raise ConfigProblems."""
    if not is_run_id(named):
        return named
    folder = find_home().run_folder(named)
    entry = last_good_checkpoint(folder)
    if entry is None:
        wrong = f"run {named} has no checkpoint that could be evaluated"
        raise ConfigProblems("the worker config", [Problem("extras.checkpoint_path", wrong)])
    return str(folder.root / entry.path)


def _resuming(config: WorkerConfig, checkpoint: str) -> WorkerConfig:
    return replace(config, extras={**config.extras, "mode": Mode.RESUME.value, "checkpoint_path": checkpoint})


def _import_interpreter() -> bool:
    """Make agentspeak importable from its set, for checks of sources in this process; return whether it is."""
    home = find_home()
    for name in sets_of("agentspeak", ""):
        if missing_sets(home, [name]) is not None:
            return False
        sys.path.append(str(make_plan(home, name).site))  # it is pure Python
    return True


def source_problems(sources: Sequence[Source]) -> list[str]:
    """Return errors of the sources, one line each with its place, then warnings; needs agentspeak."""
    from spade_bdi_worker.actions import offered_actions
    from spade_bdi_worker.reasoner import Mind

    actions = offered_actions(None, lambda text: None)
    minds, errors, warnings = Mind.examine(sources, actions)
    actors = [mind.name for mind in minds if mind.can_achieve(GOAL)]
    if not errors and not actors:
        files = ", ".join(source.path.name for source in sources)
        errors = [f"{files}: no plan for +!{GOAL}, the goal before every step, such as: +!{GOAL} <- .act(0)."]
    elif not errors and len(actors) > 1:
        errors = [f"{' and '.join(actors)} have plans for +!{GOAL}; only one agent can act in the environment"]
    return [*errors, *(f"{warning}{WARNING}" for warning in warnings)]


def _source_errors(settings: Mapping[str, Any], sources: Sequence[Source]) -> list[Problem]:
    path = "behaviour_path" if settings["behaviour_path"] else "behaviour"
    return [Problem(path, line) for line in source_problems(sources) if not line.endswith(WARNING)]


def check(document: Mapping[str, Any]) -> CheckAnswer:
    """Return what is wrong with a config that is to be queued."""
    config = WorkerConfig.from_json(document, make_run_id=new_run_id)
    try:
        settings = settings_of(config, _state_of(config))
    except DamagedCheckpoint as error:
        return CheckAnswer([Problem("extras.checkpoint_path", str(error))])
    read_env_kwargs(settings["env_kwargs"])
    sources = find_sources(settings["behaviour"], settings["behaviour_path"])
    problems: list[Problem] = []
    if _import_interpreter():
        problems = _source_errors(settings, sources)
    answer = missing_sets(find_home(), sets_of(settings["engine"], config.env_id))
    if answer is None:
        return CheckAnswer(problems or problems_of_dry_run(MODULE, document))
    if not answer.missing:
        return CheckAnswer([*problems, Problem("extras.requirements", answer.message)])
    if config.extras.get("install_missing") is not True:
        problems.append(Problem("extras.install_missing", f"{answer.message}, or add --install-missing"))
    return CheckAnswer(problems, missing_sets=answer.missing)


def prepare(config: WorkerConfig) -> int:
    """Install what a run lacks."""
    return install_sets(find_home(), sets_of(settings_of(config)["engine"], config.env_id))


def load(config: WorkerConfig) -> BdiRun:
    """Return the run of a config, in a process that has what it needs; raise ConfigProblems or DamagedCheckpoint."""
    state = _state_of(config)
    settings = settings_of(config, state)
    env_kwargs = read_env_kwargs(settings["env_kwargs"])
    sources = find_sources(settings["behaviour"], settings["behaviour_path"])
    home, sets = find_home(), sets_of(settings["engine"], config.env_id)
    if (answer := missing_sets(home, sets)) is not None:
        raise ConfigProblems("the worker config", [Problem("extras.requirements", answer.message)])
    enter_sets(home, sets)
    if errors := _source_errors(settings, sources):
        raise ConfigProblems("the worker config", errors)
    env = make(config.env_id, env_kwargs, renders=True)
    try:
        eyes_of(env, tilings=settings["tilings"], bins=settings["bins"])
        if state and state["actions"] != int(env.action_space.n):
            wrong = f"has {state['actions']} actions; {config.env_id} has {env.action_space.n}"
            raise ConfigProblems("the worker config", [Problem("extras.checkpoint_path", wrong)])
    except NotSymbolic as error:
        env.close()
        raise ConfigProblems("the worker config", [Problem("env_id", f"{config.env_id}: {error}")]) from None
    except ConfigProblems:
        env.close()
        raise
    return BdiRun(config, settings, sources, env, state)


# ---------------------------------------------------------------- running


class BdiRun(WorkerRun):
    """One run: agents, one of which acts in an environment."""

    def __init__(
        self,
        config: WorkerConfig,
        settings: Mapping[str, Any],
        sources: Sequence[Source],
        env: Any,
        state: Mapping[str, Any],
    ) -> None:
        self._mode = Mode(config.extras.get("mode") or Mode.TRAIN)
        unused = {"password", *(["behaviour"] if settings["behaviour_path"] else [])}
        shown = {name: value for name, value in settings.items() if name not in unused}
        shown |= {"total_timesteps": config.total_timesteps, "seed": config.seed}
        manifest = AnalyticsManifest(
            config.run_id,
            "spade_bdi",
            config.algo,
            config.env_id,
            config.seed,
            tensorboard_dir="tensorboard",
            versions=_versions(),
            hyperparameters=shown,
            extra={"sources": {source.agent: _digest(source) for source in sources}},
        )
        super().__init__(config, manifest, resumed_at=state.get("step") if self._mode is Mode.RESUME else None)
        self._settings, self._sources, self._env, self._state = settings, sources, env, state
        self._stack = ExitStack()
        self._stack.callback(env.close)
        self._rng = random.Random(config.seed)
        self._values = ActionValues(int(env.action_space.n), settings["learning_rate"], settings["discount"])
        if state:
            self._values.restore(state["values"])
        self._evaluation: dict[str, Any] | None = None
        self._made_mail: Mail | None = None

    def preview(self) -> Mapping[str, Any]:
        """Return what a dry run prints."""
        agents = {source.agent: str(source.path) for source in self._sources}
        return {**super().preview(), "engine": self._settings["engine"], "agents": agents, "mode": str(self._mode)}

    def start(self) -> Mapping[str, Any]:
        """Make the agents and their mail, and restore the checkpoint."""
        from mosaic_wire.live_environment import LiveEnvironment

        settings, session = self._settings, self.session
        folder = session.run_folder.root / "behaviour"
        folder.mkdir(exist_ok=True)
        for source in self._sources:
            (folder / source.path.name).write_text(source.text, encoding="utf-8")
        self.live = LiveEnvironment(
            self._env,
            session,
            seed=self.config.seed,
            total=self.config.total_timesteps,
            counts_episodes=self._mode is Mode.EVALUATE,
            records_steps=settings["record_steps"],
            records_frames=settings["record_frames"],
            resumed_at=self.resumed_at,
        )
        self._stack.callback(self.live.close)
        facts: dict[str, Any] = {"engine": settings["engine"], "agents": [source.agent for source in self._sources]}
        if self._mode is Mode.EVALUATE and not self._state:
            return facts
        is_evaluating = self._mode is Mode.EVALUATE
        self.body, self.society = self._made_agents(self.live, self._env, is_evaluating=is_evaluating)
        self.body.explains = bool(settings["record_steps"]) and session.telemetry() is not None
        self.body.mind.changes.is_kept = self.body.explains
        if self._mode is Mode.RESUME:
            self._restore()
        return facts

    def _made_agents(self, world: World, env: Any, *, is_evaluating: bool) -> tuple[Body, Society]:
        """Return the agents in a world, and the body of the one that acts."""
        import agentspeak.runtime

        from spade_bdi_worker.actions import Body, Exploration, offered_actions
        from spade_bdi_worker.reasoner import Mind
        from spade_bdi_worker.society import Society

        settings, total = self._settings, self.config.total_timesteps
        until = max(1, int(settings["exploration_fraction"] * total))
        exploration = Exploration(settings["exploration"], settings["exploration_final"], until)
        eyes = eyes_of(env, tilings=settings["tilings"], bins=settings["bins"])
        rng = random.Random(self.config.seed) if is_evaluating else self._rng
        body = Body(world, eyes, self._values, exploration, rng)
        body.is_evaluating = is_evaluating
        body.most_steps = None if is_evaluating else total
        actions = offered_actions(body, self.session.print_error)
        environment = agentspeak.runtime.Environment()
        minds = {source.agent: Mind.build(source, actions, environment) for source in self._sources}
        [actor] = [mind for mind in minds.values() if mind.can_achieve(GOAL)]
        for mind in minds.values():
            mind.know(body.facts)
        if is_evaluating:
            for name, beliefs in self._beliefs().items():
                if name in minds:
                    minds[name].restore([*minds[name].state(), *beliefs], None)
                    minds[name].know(body.facts)
        body.mind = actor
        society = Society(
            minds,
            actor,
            self._mail([*minds], actor.name),
            body.outbox,
            max_deliberations=settings["max_deliberations"],
            answer_s=settings["answer_s"],
            should_stop=self.session.stop_requested.is_set,
            pause=self.session.stop_requested.wait,
        )
        body.on_step = society.note_action
        return body, society

    def _mail(self, names: Sequence[str], actor: str) -> Mail:
        """Return the mail of this run; the agents of its evaluation have the same accounts."""
        if self._made_mail is None:
            if self._settings["engine"] == "spade":
                from spade_bdi_worker.spade_engine import Account, SpadeMail

                given = self._settings
                where = (given["server"], given["port"], given["jid"], given["password"], given["verify_certificate"])
                self._made_mail = SpadeMail(names, actor, Account(*where), self.session.print_error)
            else:
                from spade_bdi_worker.society import LocalMail

                self._made_mail = LocalMail(names)
            self._stack.callback(self._made_mail.close)
        return self._made_mail

    def train(self) -> ExitOutcome:
        """Act until the steps, or the episodes of an evaluation, are used up."""
        if self._mode is Mode.EVALUATE:
            return self._evaluate_policy()
        total, every = self.config.total_timesteps, self._settings["checkpoint_every"]
        due = self.step + every if every else total + 1
        while self.live.steps < total:
            if (outcome := self.obey()) is not None:
                return outcome
            self._live_on(self.body, self.society)
            self.step = self.live.steps
            if self.step >= due and self.society.is_idle:
                self.save()
                due = self.step + every
        self.live.report()
        self.save("last")
        return self._evaluate_at_the_end()

    def _live_on(self, body: Body, society: Society) -> None:
        """Let the agents think until the next step, or a little longer."""
        if body.world.is_over:
            body.begin_episode()
        if not society.actor.intentions:
            society.actor.achieve(GOAL)
        society.deliberate()

    # ------------------------------------------------------------ evaluation

    def _evaluate_policy(self) -> ExitOutcome:
        """Play the episodes of an evaluation, recorded; without a checkpoint at random."""
        returns: list[float] = []
        while len(returns) < self.config.total_timesteps:
            if (outcome := self.obey()) is not None:
                return outcome
            if self._state:
                self._live_on(self.body, self.society)
            else:
                if self.live.is_over:
                    self.live.reset()
                self.live.step(self._rng.randrange(self._values.actions))
            if self.live.last_return is not None and self.live.is_over and len(returns) <= self.live.episode:
                returns.append(self.live.last_return)
                self.step = len(returns)  # it counts episodes
        self.live.report()
        self._conclude(returns)
        return ExitOutcome.COMPLETED

    def _evaluate_at_the_end(self) -> ExitOutcome:
        """Play episodes without exploration and learning, unrecorded."""
        from spade_bdi_worker.actions import UnrecordedWorld

        if not (episodes := self._settings["eval_episodes"]):
            return ExitOutcome.COMPLETED
        self._state = {**self.state(), "step": self.step}
        env = make(self.config.env_id, read_env_kwargs(self._settings["env_kwargs"]), renders=False)
        self._stack.callback(env.close)
        world = UnrecordedWorld(env, (self.config.seed or 0) * 1_000_003 + 500_000)
        body, society = self._made_agents(world, env, is_evaluating=True)
        returns: list[float] = []
        while len(returns) < episodes:
            if self.session.stop_requested.is_set():
                return ExitOutcome.CANCELLED
            self._live_on(body, society)
            if world.is_over:
                returns.append(world.episode_return)
        self._conclude(returns)
        return ExitOutcome.COMPLETED

    def _conclude(self, returns: Sequence[float]) -> None:
        self._evaluation = {
            "mean_return": statistics.fmean(returns),
            "std_return": statistics.pstdev(returns),
            "episodes": len(returns),
        }
        self.manifest = replace(self.manifest, evaluation=self._evaluation)

    # ------------------------------------------------------------ checkpoints

    def save(self, kind: str = "periodic") -> None:
        """Write a checkpoint; an evaluation has none and begins anew."""
        if self._mode is not Mode.EVALUATE:
            super().save(kind)

    def state(self) -> Mapping[str, Any]:
        """Return what a checkpoint holds."""
        return {
            "actions": self._values.actions,
            "values": self._values.to_json(),
            "rng": self._rng.getstate(),
            "beliefs": {name: mind.state() for name, mind in self.society.minds.items()},
            "live": self.live.state(),
            "sources": {source.agent: _digest(source) for source in self._sources},
            "settings": {name: self._settings[name] for name in _OF_POLICY},
            "is_exact": self.society.is_idle,
        }

    def _beliefs(self) -> Mapping[str, Any]:
        beliefs = self._state["beliefs"]
        return beliefs if isinstance(beliefs, Mapping) else {}

    def _restore(self) -> None:
        """Continue the episode and what the agents believed; tell what could not be continued."""
        state = self._state
        version, internal, gauss = state["rng"]
        if (problem := self.live.restore(state["live"])) or not state.get("is_exact", True):
            text = "the checkpoint was written while an agent followed an intention; it decides anew"
            self.session.print_error(problem or text)
        self._rng.setstate((version, tuple(internal), gauss))
        if state.get("sources") != {source.agent: _digest(source) for source in self._sources}:
            self.session.print_error("the behaviour has changed since the checkpoint; the agents keep their beliefs")
        sight = self.body.eyes.see(self.live.observation) if not self.live.is_over else None
        for name, mind in self.society.minds.items():
            if name in self._beliefs():
                mind.restore(self._beliefs()[name], sight)

    def result(self) -> Mapping[str, Any]:
        """Return facts for the event that ends the run."""
        return {"step": self.step, **({"evaluation": self._evaluation} if self._evaluation else {})}

    def close(self) -> None:
        """Close the mail, the recordings and the environment."""
        self._stack.close()


def _digest(source: Source) -> str:
    return hashlib.sha256(source.text.encode()).hexdigest()


def _versions() -> dict[str, str]:
    from importlib import metadata

    names = ("gymnasium", "agentspeak", "spade", "minigrid")
    found = {name: metadata.version(name) for name in names if list(metadata.distributions(name=name))}
    return {"spade_bdi_worker": __version__, **found}


# ---------------------------------------------------------------- questions


def _show_sources(arguments: argparse.Namespace) -> int:
    """Print the sources of a config's behaviour and what is wrong with them."""
    of_a_draft = {"algo": "spade_bdi", "env_id": "any", "total_timesteps": 1}  # it may not have these yet
    config = WorkerConfig.load(arguments.config, of_a_draft, make_run_id=new_run_id)
    given = {field.name: field.default for field in FIELDS} | config.parameters
    sources = find_sources(str(given["behaviour"]), str(given["behaviour_path"] or ""))
    answer: dict[str, Any] = {"problems": []}
    answer["agents"] = {source.agent: {"path": str(source.path), "text": source.text} for source in sources}
    if _import_interpreter():
        answer["problems"] = source_problems(sources)
    else:
        answer["note"] = "Not checked: agentspeak is not installed (mosaic extras install agentspeak; GPL-3)"
    print(json.dumps(answer))
    return 0


QUESTIONS = (
    Question("--sources", "print the AgentSpeak of the config's agents and what is wrong, as JSON", _show_sources),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    # No display for SDL, and no greeting of pygame.
    os.environ |= {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    return run_worker(MODULE, describe, load, check=check, prepare=prepare, questions=QUESTIONS, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
