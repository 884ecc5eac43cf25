"""The training process of an interactive run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from mosaic_wire import env as names
from mosaic_wire.interactive import LONGEST_LINE, FrameSink
from mosaic_wire.interactive_lines import Descriptors, LineEnd, SocketServer

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.eval.interactive import InteractiveSession
from cleanrl_worker.eval.policies import TrainedPolicy
from cleanrl_worker.training.channel import Channel
from cleanrl_worker.training.envs import make_single, said_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.standalone import stopped_by_signals

_LOOK_EVERY_S = 0.2


def play_run(
    algo: str, module: ModuleType, args: Any, request: Mapping[str, Any], folder: Path, channel: Channel,
    *, tensorboard: Path | None = None,
) -> None:  # fmt: skip
    """Serve the protocol until the other end stops; `request` as `modes.interactive` writes it."""
    run = RunContext(algo, folder, channel, tensorboard=tensorboard)
    run_id = os.environ.get(names.MOSAIC_RUN_ID, "")
    with stopped_by_signals(run):
        trained = TrainedPolicy.load(Path(request["policy"]), algo) if request.get("policy") else None
        env_kwargs = read_env_kwargs(args.env_kwargs)
        if trained is not None:
            channel.tell("checkpoint_loaded", {"path": request["policy"], "for": "playing", **trained.facts})
            env_kwargs = env_kwargs or read_env_kwargs(str(trained.args.get("env_kwargs") or "{}"))
        env = _make(args.env_id, env_kwargs, run.pipeline)
        frames = FrameSink(run_id or str(os.getpid()))
        end: LineEnd = (
            SocketServer(Path(request["socket"])) if request.get("socket")
            else Descriptors(request["input"], request["output"])
        )  # fmt: skip
        try:
            policy = trained.for_env(module, args.env_id, env) if trained is not None else None
            session = InteractiveSession(env, args.env_id, policy, frames, end.send, run_id=run_id)
            run.begin(0, 0, args)
            _serve(session, end, run)
        finally:
            end.close()
            frames.close()
            env.close()
        run.end({"episodes": session.episodes, "steps": session.steps})


def _serve(session: InteractiveSession, end: LineEnd, run: RunContext) -> None:
    while not run.stop_requested():
        for line in end.lines(_LOOK_EVERY_S, LONGEST_LINE):
            if line is None:
                session.greet()
            elif not session.answer(line):
                return
            run.report(session.steps, session.last_return)
        if end.is_over:
            return
    session.say_goodbye()


def _make(env_id: str, env_kwargs: Mapping[str, Any], pipeline: str) -> gym.Env[Any, Any]:
    """With pictures where the environment can draw them here."""
    with said_of(env_id):
        try:
            env = make_single(env_id, env_kwargs, pipeline=pipeline, render_mode="rgb_array")
            env.reset(seed=0)
            env.render()
        except Exception:  # noqa: BLE001 - drawing needs packages of many kinds; without them it is played blind
            env = make_single(env_id, env_kwargs, pipeline=pipeline)
        return env
