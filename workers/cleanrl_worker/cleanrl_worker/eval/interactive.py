"""The interactive protocol (`mosaic_wire.interactive`) with a trained policy, whose steps without an action are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from mosaic_wire import env as names
from mosaic_wire import interactive
from mosaic_wire.interactive import LONGEST_LINE, Descriptors, FrameSink, LineEnd, Send, SocketServer, plain

from cleanrl_worker.eval.policies import load_policy
from cleanrl_worker.training.channel import Channel
from cleanrl_worker.training.envs import environment_errors, make_single
from cleanrl_worker.training.policies import Policy, action_scores, set_episodes
from cleanrl_worker.training.run import RunContext
from cleanrl_worker.training.standalone import stopped_by_signals

_POLL_S = 0.2


class PolicySession(interactive.InteractiveSession):
    """One environment, and a policy that plays it on request."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        env_id: str,
        policy: Policy | None,
        frames: FrameSink,
        send: Send,
        *,
        run_id: str = "",
    ) -> None:
        super().__init__(env, env_id, frames, send, run_id=run_id)
        self._policy = policy
        self.has_policy = policy is not None

    def facts(self) -> dict[str, Any]:
        """Return what the greeting reports of the environment."""
        return interactive.facts_about(self.env)

    def choose(self) -> tuple[Any, str, Mapping[str, Any]]:
        """Return the policy's action, who chose it, and the policy's action scores."""
        space = self.env.action_space
        if self._policy is None:
            return super().choose()
        set_episodes(self._policy, [self.episode])
        seen = np.asarray(self.obs)[None]
        chosen = self._policy.act(seen, None)[0]
        scores = {name: plain(value) for name, value in action_scores(self._policy, seen).items()}
        if isinstance(space, gym.spaces.Discrete):
            return int(chosen) + int(space.start), "policy", scores
        if isinstance(space, gym.spaces.Box):
            chosen = np.clip(chosen, space.low, space.high).astype(space.dtype)
        return chosen, "policy", scores


def play_run(run: RunContext, channel: Channel, module: ModuleType, args: Any, request: Mapping[str, Any]) -> None:
    """Serve the protocol until the client stops; `request` as `modes.launcher_options` writes it."""
    run_id = os.environ.get(names.MOSAIC_RUN_ID, "")
    with stopped_by_signals(run):
        trained, env_kwargs = load_policy(request.get("policy"), run.algo, args, channel, purpose="playing")
        env = _make(args.env_id, env_kwargs, run.pipeline)
        frames = FrameSink(run_id or str(os.getpid()))
        end: LineEnd
        if request.get("socket"):
            end = SocketServer(Path(request["socket"]))
        else:
            end = Descriptors(request["input"], request["output"])
        try:
            policy = trained.for_env(module, args.env_id, env) if trained is not None else None
            session = PolicySession(env, args.env_id, policy, frames, end.send, run_id=run_id)
            run.begin(0, 0, args)
            _serve(session, end, run)
        finally:
            end.close()
            frames.close()
            env.close()
        run.end({"episodes": session.episodes, "steps": session.steps})


def _serve(session: PolicySession, end: LineEnd, run: RunContext) -> None:
    while not run.stop_requested():
        for line in end.lines(_POLL_S, LONGEST_LINE):
            if line is None:
                session.greet()
            elif not session.answer(line):
                return
            run.report(session.steps, session.last_return)
        if end.is_over:
            return
    session.send_goodbye()


def _make(env_id: str, env_kwargs: Mapping[str, Any], pipeline: str) -> gym.Env[Any, Any]:
    """Make the environment, with frames where it can draw them here."""
    with environment_errors(env_id):
        try:
            env = make_single(env_id, env_kwargs, pipeline=pipeline, render_mode="rgb_array")
            env.reset(seed=0)
            env.render()
        except Exception:  # noqa: BLE001 - drawing needs packages of many kinds; without them there are no frames
            env = make_single(env_id, env_kwargs, pipeline=pipeline)
        return env
