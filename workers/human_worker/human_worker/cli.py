"""The human worker: an environment in its own process, controlled by a player through a socket.

    python -m human_worker.cli --algo human --env-id CartPole-v1 --total-timesteps 1 --grpc

A run of the daemon: it registers, reports its socket in `run_started`, serves one player at a time, records, and
ends when the player ends it, when no player has been connected for long, or when it is cancelled.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import find_home
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_run import Question, WorkerRun, run_worker
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice

from human_worker import __version__, get_worker_metadata

if TYPE_CHECKING:
    from human_worker.play import Game

MODE = "interactive"
FIELDS = (
    FieldSpec(
        "autoplay_hz",
        "float",
        0.0,
        "a demonstration: act at random so many times a second until total_timesteps; 0: played by hand",
        minimum=0,
        maximum=1000,
    ),
    FieldSpec("idle_s", "float", 300.0, "end when no player has been connected for so long", minimum=1),
    FieldSpec("record_pictures", "bool", True, "store the frames that the player saw, for replays"),
)
_POLL_S = 0.1


def describe(*, environments: bool = True) -> WorkerSpec:
    """Return what `--describe` prints, with the environments registered in gymnasium."""
    from human_worker.environments import PATTERNS, base_ids

    return WorkerSpec(
        name="human",
        display_name="Human-Only",
        version=__version__,
        capabilities=get_worker_metadata(),
        module="human_worker.cli",
        argv=(sys.executable, "-m", "human_worker.cli"),
        algorithms=(AlgorithmSpec("human", "played by hand", FIELDS, modes=(MODE,)),),
        environments=base_ids() if environments else None,
        environment_patterns=PATTERNS,
    )


def env_kwargs_of(config: WorkerConfig) -> dict[str, Any]:
    """Return `extras.env_kwargs`, an object or its JSON text; raise ConfigProblems."""
    given: Any = config.extras.get("env_kwargs") or {}
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ConfigProblems("the worker config", [Problem("extras.env_kwargs", f"is not JSON: {error}")]) from None
    if not isinstance(value, dict):
        message = f"must be a JSON object, not {type(value).__name__}"
        raise ConfigProblems("the worker config", [Problem("extras.env_kwargs", message)])
    return value


def load(config: WorkerConfig) -> HumanRun:
    """Return the run of a config, with its environment; raise ConfigProblems."""
    problems = check_algorithm_choice(describe(environments=False), config.algo, config.env_id, config.parameters)
    if config.extras.get("mode", MODE) not in (MODE, "train"):
        problems.append(Problem("extras.mode", f"must be {MODE!r}: it is played by hand, nothing is trained"))
    if problems:
        raise ConfigProblems("the worker config", problems)
    from human_worker.environments import enter_overlay, make

    enter_overlay(find_home(), config.env_id, sys.argv[1:])
    return HumanRun(config, make(config.env_id, env_kwargs_of(config)))


class HumanRun(WorkerRun):
    """One run: a game and its player."""

    def __init__(self, config: WorkerConfig, env: Any) -> None:
        manifest = AnalyticsManifest(
            config.run_id,
            "human",
            config.algo,
            config.env_id,
            config.seed,
            versions=_versions(),
            extra={"env_kwargs": env_kwargs_of(config)},
        )
        super().__init__(config, manifest)
        self._env, self._stack = env, ExitStack()
        self._stack.callback(env.close)
        self._parameters = {field.name: field.default for field in FIELDS} | config.parameters
        self.game: Game

    def preview(self) -> Mapping[str, Any]:
        """Return what a dry run prints."""
        return {"would_play": self.config.env_id, "draws": self._env.render_mode == "rgb_array"}

    def start(self) -> Mapping[str, Any]:
        """Open the socket, and the game behind it."""
        from mosaic_wire.interactive import FrameSink, SocketServer, socket_of
        from mosaic_wire.live_environment import FrameFile

        from human_worker.play import Game, Recorder

        config, session = self.config, self.session
        recorded = FrameFile(session.run_folder.root) if self._parameters["record_pictures"] else None
        frames = FrameSink(config.run_id)
        self._stack.callback(frames.close)
        socket = socket_of(session.run_folder)
        self._end = SocketServer(socket)
        self._stack.callback(self._end.close)
        recorder = Recorder(session.telemetry(), recorded)
        self.game = Game(self._env, config.env_id, recorder, frames, self._end.send, run_id=config.run_id)
        self._stack.callback(self.game.close)
        return {"interactive": {"socket": str(socket)}}

    def train(self) -> ExitOutcome:
        """Serve the player or run the demonstration."""
        return self._demonstrate() if self._parameters["autoplay_hz"] else self._serve()

    def _serve(self) -> ExitOutcome:
        from mosaic_wire.interactive import LONGEST_LINE

        idle_s, heard_at = self._parameters["idle_s"], time.monotonic()
        while (outcome := self.obey()) is None:
            for line in self._end.lines(_POLL_S, LONGEST_LINE):
                if line is None:
                    self.game.greet()
                elif not self.game.answer(line):
                    return ExitOutcome.COMPLETED
                # The length of a game is unknown, so report the steps played as the total.
                self.session.progress(self.game.steps, max(1, self.game.steps), self.game.last_return)
            self.game.show_to_viewers()
            now = time.monotonic()
            heard_at = now if self._end.has_client else heard_at
            if now - heard_at > idle_s:
                self.game.leave_episode()
                self.reason = f"no player was connected for {idle_s:g} s"
                return ExitOutcome.COMPLETED
        self.game.leave_episode()
        self.game.send_goodbye()
        return outcome

    def _demonstrate(self) -> ExitOutcome:
        from human_worker.play import Demonstration

        demonstration = Demonstration(self.game, self.config.seed)
        while self.game.steps < self.config.total_timesteps:
            if (outcome := self.obey()) is not None:
                return outcome
            demonstration.step()
            self.session.progress(self.game.steps, self.config.total_timesteps, self.game.last_return)
            self.session.stop_requested.wait(1 / self._parameters["autoplay_hz"])
        return ExitOutcome.COMPLETED

    def result(self) -> Mapping[str, Any]:
        """Return facts for the event that ends the run."""
        return {"steps": self.game.steps, "episodes": self.game.episodes} if hasattr(self, "game") else {"step": 0}

    def close(self) -> None:
        """Close the game, the socket and the environment."""
        self._stack.close()


def _versions() -> dict[str, str]:
    import gymnasium

    return {"human_worker": __version__, "gymnasium": gymnasium.__version__}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    # This process has no display for SDL, and pygame must not print its greeting.
    os.environ |= {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    return run_worker("human_worker.cli", describe, load, questions=QUESTIONS, argv=argv)


def _list_environments(_: argparse.Namespace) -> int:
    from human_worker.environments import list_environments

    print(json.dumps([playable.to_json() for playable in list_environments(find_home())]))
    return 0


def _describe_environment(arguments: argparse.Namespace) -> int:
    from human_worker.environments import describe_environment, enter_overlay

    env_id = arguments.describe_environment
    try:
        env_kwargs = json.loads(arguments.env_kwargs or "{}")
    except ValueError as error:
        raise ConfigProblems("the command line", [Problem("--env-kwargs", f"is not JSON: {error}")]) from None
    enter_overlay(find_home(), env_id, sys.argv[1:])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some environments print while they are made
    facts = describe_environment(env_id, env_kwargs)
    with answer:
        answer.write(json.dumps(facts) + "\n")
    return 0


QUESTIONS = (
    Question("--list-environments", "print what can be played here, as JSON", _list_environments),
    Question(
        "--describe-environment",
        "print actions, spaces and arguments of one",
        _describe_environment,
        metavar="ENV",
        options={"--env-kwargs": "arguments of the environment, as JSON"},
    ),
)


if __name__ == "__main__":
    sys.exit(main())
