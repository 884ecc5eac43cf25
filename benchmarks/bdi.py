"""What reasoning in AgentSpeak costs: FrozenLake through the Spade BDI worker beside a plain Python loop.

Both learn a table with the same parameters. Times are CPU seconds of the loop alone, with all threads of its process.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

from measure import Sample, alternate, cpu_of, print_table, temporary_home
from mosaic_extras.testing import interpreter_with, lend_sets
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.testing import PlayDaemon, WorkerProcess, wait_until

ENV_ID, RATE, DISCOUNT, LAST = "FrozenLake-v1", 0.2, 0.99, 0.05
WITHOUT, WITH, IDLE, OLD_EPISODES = 0.12, 0.08, 0.02, 4_200
WAITS = "+!act <- .wait(1000000); .act(0)."


def plain(steps: int, episodes: int) -> dict[str, float]:
    """Q-learning in a loop, until these steps or episodes."""
    import gymnasium

    env = gymnasium.make(ENV_ID, disable_env_checker=True)
    rng, table = random.Random(1), dict[int, list[float]]()
    began_cpu, done, ended = time.process_time(), 0, 0
    state = int(env.reset(seed=0)[0])
    until = (steps or episodes * 8) // 2
    while done < steps or ended < episodes:
        row = table.setdefault(state, [0.0] * 4)
        if rng.random() < max(LAST, 1 - (1 - LAST) * done / until):
            action = rng.randrange(4)
        else:
            best = [number for number, value in enumerate(row) if value == max(row)]
            action = best[0] if len(best) == 1 else rng.choice(best)
        following, reward, terminated, truncated, _ = env.step(action)
        following = int(following)
        ahead = 0.0 if terminated else DISCOUNT * max(table.setdefault(following, [0.0] * 4))
        row[action] += RATE * (float(reward) + ahead - row[action])
        state, done = following, done + 1
        if terminated or truncated:
            ended += 1
            state = int(env.reset(seed=ended)[0])
    return {"cpu": time.process_time() - began_cpu, "steps": done, "episodes": ended}


def reasoning(steps: int, episodes: int, target: str = "") -> dict[str, float]:
    """The same through the worker's own run, without a daemon, or with one that gets every step and the reasons."""
    from mosaic_wire.session import WorkerSession
    from mosaic_wire.worker_config import WorkerConfig
    from spade_bdi_worker import get_worker_metadata
    from spade_bdi_worker.cli import load

    most = steps or 10**9
    extras = {"algo_params": {"eval_episodes": 0, "exploration_fraction": 0.5 if steps else 4 * episodes / most}}
    config = WorkerConfig(new_run_id(), "spade_bdi", ENV_ID, most, 1, extras)
    with tempfile.TemporaryDirectory() as folder, closing(load(config)) as run:
        options = {"capabilities": get_worker_metadata(), "target": target or None}
        with WorkerSession(config.run_id, Path(folder), **options) as session:
            run.session = session
            session.open()
            run.start()
            began_cpu = time.process_time()
            while run.live.steps < most and (not episodes or run.live.episode < episodes):
                run._live_on(run.body, run.society)
            session.finish(ExitOutcome.COMPLETED)  # waits until everything has arrived
            cpu = time.process_time() - began_cpu
    return {"cpu": cpu, "steps": run.live.steps, "episodes": run.live.episode}


def measured(what: str, steps: int = 0, episodes: int = 0, target: str = "") -> dict[str, float]:
    """Run one of the two in a process of its own, which can import agentspeak."""
    argv = [str(interpreter_with("agentspeak")), __file__, "--inner", what, "--target", target]
    argv += ["--steps", str(steps), "--episodes", str(episodes)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def recorded(steps: int) -> float:
    """Return CPU seconds of the loop with full telemetry; every step must arrive."""
    with PlayDaemon() as daemon:
        cpu = measured("reasoning", steps, target=daemon.target)["cpu"]
        if len(daemon.steps) != steps:
            raise SystemExit(f"{len(daemon.steps)} of {steps} steps have arrived")
    return cpu


def with_telemetry(steps: int) -> tuple[float, int]:
    """Return wall-clock seconds through a real daemon, and how many steps it has stored."""
    from gym_gui.testing import RunningDaemon
    from mosaic_wire.run_request import run_request

    parameters = {"eval_episodes": 0}
    config = run_request(
        "spade_bdi",
        algo="spade_bdi",
        env_id=ENV_ID,
        module="spade_bdi_worker.cli",
        total_timesteps=steps,
        seed=1,
        extras={"algo_params": parameters},
    )
    with temporary_home() as (home, config_home):
        lend_sets(home, "agentspeak")
        with RunningDaemon(home, config_home) as daemon:
            run_id = daemon.client.submit(config).run.run_id
            daemon.wait_for(run_id, timeout_s=600)
            at = {str(event.event): event.timestamp for event in daemon.lifecycle(run_id)}
            with daemon.client.steps(run_id) as stream:
                stored = sum(len(batch.steps) for batch in stream)
    return at["checkpoint_saved"] - at["run_started"], stored


def idle_share(engine: str, seconds: float) -> float:
    """Return the part of a core that an agent takes which waits."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sleeper.asl"
        file.write_text(WAITS)
        extras = {"algo_params": {"behaviour_path": str(file), "engine": engine}}
        config = {"algo": "spade_bdi", "env_id": ENV_ID, "total_timesteps": 10, "extras": extras}
        argv = [str(interpreter_with(engine)), "-m", "spade_bdi_worker.cli"]
        with WorkerProcess(argv, config, Home(Path(folder) / "home")) as worker:
            if not wait_until(lambda: "run_started" in worker.event_names()):
                raise SystemExit(worker.stderr())
            time.sleep(2)  # what is left of its start
            before = cpu_of(worker.process.pid)
            time.sleep(seconds)
            return (cpu_of(worker.process.pid) - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=5_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    parser.add_argument("--target", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inner:
        answer = (
            plain(given.steps, given.episodes)
            if given.inner == "plain"
            else reasoning(given.steps, given.episodes, given.target)
        )
        print(json.dumps(answer))
        return
    options = {"pairs": given.pairs, "report": lambda text: None}

    def peer() -> float:
        return measured("plain", given.steps)["cpu"]

    ours, loop = alternate(lambda: measured("reasoning", given.steps)["cpu"], peer, **options)
    full, beside = alternate(lambda: recorded(given.steps), peer, **options)
    wall, stored = with_telemetry(given.steps)
    if stored != given.steps:
        raise SystemExit(f"{stored} of {given.steps} steps are stored")
    games, games_beside = (measured(what, episodes=given.episodes) for what in ("reasoning", "plain"))
    idle = {engine: idle_share(engine, 10) for engine in ("agentspeak", "spade")}
    share, full_share = loop.median / ours.median, beside.median / full.median
    print_table(
        f"{given.steps:,} steps of {ENV_ID}, CPU",
        [
            ("plain loop", _rate(given.steps, loop)),
            ("through agentspeak", f"{_rate(given.steps, ours)}  {share:.3f} × the loop  (to reach: {WITHOUT})"),
            ("with full telemetry", f"{_rate(given.steps, full)}  {full_share:.3f} × the loop  (to reach: {WITH})"),
            ("through a daemon, wall-clock", f"{wall:8.2f} s  {given.steps / wall:,.0f} steps/s, every one stored"),
            (f"{given.episodes:,} episodes, plain loop", _games(games_beside)),
            (f"{given.episodes:,} episodes, through agentspeak", f"{_games(games)}  (old worker: {OLD_EPISODES:,}/s)"),
            *((f"waiting agent, {name}", f"{part:8.2%} of a core  (below {IDLE:.0%})") for name, part in idle.items()),
        ],
    )


def _rate(steps: int, sample: Sample) -> str:
    return f"{sample} s  {steps / sample.median:,.0f} steps/s"


def _games(result: dict[str, float]) -> str:
    return (
        f"{result['cpu']:8.2f} s of CPU  {result['episodes'] / result['cpu']:,.0f} episodes/s, "
        f"{result['steps'] / result['episodes']:.1f} steps each"
    )


if __name__ == "__main__":
    main()
