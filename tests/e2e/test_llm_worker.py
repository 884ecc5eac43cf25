"""The LLM worker under a real daemon: trained, benchmarked and exported by commands, and broken as every worker is."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from gym_gui.services.analytics.configurations import environment_of
from gym_gui.testing import RunningDaemon, processes_of
from gym_gui.ui.run_page.run_labels import remark_of
from gym_gui.wording.run_view import progress_of
from llm_worker.testing import FakeEndpoint, Fault, plays_at_random, solve, write_tiny_model
from mosaic_extras.testing import lend_sets
from mosaic_wire.run_request import run_request
from mosaic_wire.testing import wait_until

from tests.e2e.conftest import MakeDaemon, Mosaic

CANARY = "canary-key-77ab01c93f"
LAKE = ("FrozenLake-v1", "--env-kwargs", "is_slippery=false")


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint(solve) as endpoint:
        yield endpoint


def config(endpoint: FakeEndpoint | None, steps: int = 12, *, scheduling: Any = None, **parameters: Any) -> Any:
    usual: dict[str, Any] = {"env_kwargs": "is_slippery=false", "retry_wait_s": 0.01}
    if endpoint is not None:
        usual |= {"base_url": endpoint.address, "model": "perfect"}
    return run_request(
        "llm",
        module="llm_worker.cli",
        algo="llm",
        env_id="FrozenLake-v1",
        seed=1,
        total_timesteps=steps,
        extras={"algo_params": {**usual, **parameters}},
        resources={"cpus": {"requested": 0.1}},
        scheduling=scheduling,
    )


def submitted(daemon: RunningDaemon, *words: Any, **parameters: Any) -> str:
    return str(daemon.client.submit(config(*words, **parameters)).run.run_id)


def holders_of(folder: Path, secret: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_a_model_plays_its_episodes_are_exported_and_its_key_is_nowhere(
    mosaic: Mosaic, shared_daemon: RunningDaemon, endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    """Fault 16 for this worker: the model, which was sent the key, says it in every answer."""
    endpoint.key = CANARY
    endpoint.honors = ()
    endpoint.script = lambda request: f"{CANARY}: {solve(request)}"
    flags = ("--base-url", endpoint.address, "--model", "perfect", "--api-key", CANARY, "--notes", f"with {CANARY}")
    code, out, err = mosaic("train", "llm", *LAKE, "--total-timesteps", "12", "--seed", "1", *flags)
    assert code == 0, out + err
    assert CANARY not in out + err
    assert endpoint.headers[-1]["authorization"] == f"Bearer {CANARY}"
    (run,) = shared_daemon.client.list(text="FrozenLake").runs
    assert (run.outcome, run.step) == ("completed", 12)
    code, out, _ = mosaic("steps", run.run_id, "-n", "1")
    assert (code, CANARY in out) == (0, False)
    assert "episode 1 · step 5 · right (2) · reward 1 · the episode ends" in out
    assert re.search(r"Answer +•••: right\n +Action +right\n", out), out
    code, out, _ = mosaic("steps", run.run_id, "--episode", "0", "--json")
    steps = json.loads(out)
    assert [step["action_text"] for step in steps] == ["down (1)"] * 2 + ["right (2)", "down (1)"] + ["right (2)"] * 2
    assert steps[0]["info"]["llm"]["fallback"] is False
    file = tmp_path / "conversations.jsonl"
    assert mosaic("export", run.run_id, "--episodes", str(file), "--min-return", "1")[0] == 0
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["return"], first["steps"], first["random_actions"], first["seed"]) == (1.0, 6, 0, 1_000_003)
    assert [message["role"] for message in first["messages"]] == ["system", *["user", "assistant"] * 6]
    assert [each["content"] for each in first["messages"][2::2]] == ["down", "down", "right", "down", "right", "right"]
    assert second["episode"] == 1
    assert mosaic("export", run.run_id, "--episodes", str(tmp_path / "episodes.npz"))[0] == 0
    code, _, err = mosaic("export", run.run_id, "--episodes", str(file), "--force", "--min-return", "2")
    assert (code, "has no such episode: 2 are recorded" in err) == (2, True)
    # The endpoint refuses whoever has no key: an evaluation and a clone have that of the run.
    code, out, err = mosaic("eval", run.run_id, "--episodes", "1", "--expect-return", "1")
    assert code == 0, out + err
    code, out, err = mosaic("clone", run.run_id, "--follow")
    assert code == 0, out + err
    assert holders_of(shared_daemon.home.root, CANARY) == []
    assert holders_of(tmp_path, CANARY) == []


@pytest.mark.slow  # an evaluation of a run has its key in every CI, by the test above
def test_whatever_continues_a_run_has_its_key_unless_another_is_given(
    mosaic: Mosaic, shared_daemon: RunningDaemon, endpoint: FakeEndpoint
) -> None:
    endpoint.key = CANARY
    run_id = submitted(shared_daemon, endpoint, api_key=CANARY)
    checkpoint = Path(shared_daemon.wait_for(run_id).run_dir) / "checkpoints" / "step-12"
    code, out, err = mosaic("extend", run_id, "--timesteps", "6", "--follow")
    assert code == 0, out + err
    (extended,) = [run for run in shared_daemon.client.list().runs if run.parent.run_id == run_id]
    for source in (str(checkpoint), extended.run_id):
        code, out, err = mosaic("eval", source, "--env-id", "FrozenLake-v1", "--episodes", "1")
        assert code == 0, out + err
    evaluation = {"mode": "policy_eval", "checkpoint_path": run_id, "eval_episodes": 1}
    refused = config(endpoint, 1, api_key="canary-key-of-nobody-5")
    refused["metadata"]["worker"]["config"]["extras"] |= evaluation
    ended = shared_daemon.wait_for(shared_daemon.client.submit(refused).run.run_id)
    assert "refuses the key" in ended.reason


@pytest.mark.slow  # the grid itself is tested in every CI, in packages/gym_gui/tests/test_bench_plan.py
def test_models_are_compared_over_seeds(
    mosaic: Mosaic, shared_daemon: RunningDaemon, endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    """One model plays perfectly, the other at random."""
    clumsy = plays_at_random()
    endpoint.script = lambda request: (solve if request["model"] == "clever" else clumsy)(request)
    settings = [f"base_url={endpoint.address}", "env_kwargs=is_slippery=false"]
    words = ["bench", "--worker", "llm", "--models", "clever,clumsy", "--envs", "FrozenLake-v1", "--seeds", "1-2"]
    words += ["--total-timesteps", "60", "--parallel", "--name", "models", "--out", str(tmp_path / "report")]
    words += [word for setting in settings for word in ("--set", setting)]
    code, out, err = mosaic(*words)
    assert code == 0, out + err
    assert "4 of 4 done" in out + err
    report = (tmp_path / "report" / "report.md").read_text()
    rows = {name: next(line for line in out.splitlines() if name in line) for name in ("llm clever", "llm clumsy")}
    assert " 1.00" in rows["llm clever"] or " 1 " in rows["llm clever"], out
    assert "SUCCESS" in out
    assert "100 %" in rows["llm clever"]
    assert "TOKENS" in out
    assert "| success | tokens | invalid | random actions | latency (ms) | learned? |" in report
    assert "**Learned nothing** (no better than acting at random): llm model=clumsy on FrozenLake-v1" in report
    every_run = report.partition("## Every run")[2]
    assert [every_run.count(f"`llm model={model}`") for model in ("clever", "clumsy")] == [2, 2]


def test_a_budget_pauses_the_run_until_it_is_resumed(shared_daemon: RunningDaemon, endpoint: FakeEndpoint) -> None:
    run_id = submitted(shared_daemon, endpoint, max_total_tokens=660, on_budget="pause")
    shared_daemon.wait_for(run_id, "PAUSE")
    paused = shared_daemon.client.get(run_id)
    assert paused.step <= 6
    assert paused.reason == "the budget of 660 tokens is used up (660 used)"
    shared_daemon.client.resume(run_id)
    run = shared_daemon.wait_for(run_id)
    assert (run.outcome, run.step, run.reason) == ("completed", 12, "completed")
    events = {event.kind: event for event in shared_daemon.client.history(run_id)}
    assert events["paused"].reason == paused.reason
    assert "reason" not in events["resumed"].payload_json


def test_a_run_that_ended_by_its_budget_says_so(
    mosaic: Mosaic, shared_daemon: RunningDaemon, endpoint: FakeEndpoint
) -> None:
    flags = ("--base-url", endpoint.address, "--model", "perfect", "--max-total-tokens", "440", "--seed", "1")
    code, out, err = mosaic("train", "llm", *LAKE, "--total-timesteps", "12", *flags)
    assert code == 0, out + err
    assert "stopped early" in out
    assert "the budget of 440 tokens is used up (440 used)" in out
    run_id = re.search(r"[0-9A-HJKMNP-TV-Z]{26}", out)
    assert run_id is not None
    run = shared_daemon.client.get(run_id[0])
    assert (run.outcome, remark_of(run), progress_of(run)) == (
        "completed",
        "stopped early: the budget of 440 tokens is used up (440 used)",
        "33%",
    )


@pytest.mark.slow  # the first test evaluates in every CI
def test_a_run_and_a_baseline_are_evaluated_by_command(
    mosaic: Mosaic, shared_daemon: RunningDaemon, endpoint: FakeEndpoint
) -> None:
    run_id = submitted(shared_daemon, endpoint)
    number = shared_daemon.wait_for(run_id).number
    code, out, err = mosaic("eval", run_id, "--episodes", "3", "--expect-return", "1")
    assert code == 0, out + err
    kwargs = ("--env-kwargs", "map_name=8x8")
    code, out, err = mosaic("eval", "--random", "FrozenLake-v1", "--algo", "llm", "--episodes", "4", *kwargs)
    assert code == 0, out + err
    newest = shared_daemon.client.list(limit=1, include_archived=True).runs[0]
    assert environment_of(newest) == 'FrozenLake-v1 {"map_name": "8x8"}'
    evaluated = [run for run in shared_daemon.client.list(text="eval").runs if run.number > number]
    assert {run.outcome for run in evaluated} == {"completed"}
    assert len(evaluated) == 2


def test_a_missing_set_is_named_before_the_run_is_queued(mosaic: Mosaic) -> None:
    code, _, err = mosaic("train", "llm", "FrozenLake-v1")
    assert code == 2
    assert "mosaic extras install llm_local" in err
    assert "--install-missing" in err


# ---------------------------------------------------------------- faults 1, 3, 4, 8, 12, 15


@pytest.mark.fault
def test_runs_outlive_a_killed_daemon(make_daemon: MakeDaemon, endpoint: FakeEndpoint) -> None:
    daemon = make_daemon()
    runs = [submitted(daemon, endpoint, 10**6) for _ in range(3)] + [submitted(daemon, endpoint, 2_000)]
    pids = [daemon.wait_for(run_id, "EXEC").pid for run_id in runs[:3]]
    daemon.kill()
    daemon.start()
    assert [daemon.client.get(run_id).pid for run_id in runs[:3]] == pids
    steps = [daemon.client.get(run_id).step for run_id in runs[:3]]
    for run_id, step in zip(runs, steps, strict=False):
        daemon.wait_for_run(run_id, lambda run, step=step: run.step > step)
    assert daemon.wait_for(runs[3]).outcome == "completed"
    for run_id in runs[:3]:
        daemon.client.cancel(run_id)
        assert daemon.wait_for(run_id).outcome == "cancelled"


@pytest.mark.fault
# Once pygame has drawn the lake, it answers SIGSEGV with abort.
@pytest.mark.parametrize(("number", "ending"), [(signal.SIGKILL, "KILL"), (signal.SIGSEGV, "(SEGV|ABRT)")])
def test_a_worker_that_dies_takes_its_model_along(
    make_daemon: MakeDaemon, tmp_path: Path, number: signal.Signals, ending: str
) -> None:
    daemon = make_daemon()
    lend_sets(daemon.home, "llama_cpp")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    run_id = submitted(daemon, None, 10**6, model=str(model))
    pid = daemon.wait_for_run(run_id, lambda run: run.step > 3).pid
    assert len(processes_of(run_id)) >= 2
    os.kill(pid, number)
    run = daemon.wait_for(run_id)
    assert run.outcome == "failed"
    assert re.search(f"killed by SIG{ending}", run.reason)
    assert processes_of(run_id) == []


@pytest.mark.fault
def test_an_embedded_model_answers_this_machine_and_its_key_alone(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    lend_sets(daemon.home, "llama_cpp")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    run_id = submitted(daemon, None, 10**6, model=str(model))
    daemon.wait_for_run(run_id, lambda run: run.step > 3)
    listening = [
        connection.laddr
        for pid in processes_of(run_id)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    (address,) = listening
    assert address.ip == "127.0.0.1"
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for headers in ({}, {"authorization": "Bearer wrong"}):
        answer = httpx.post(f"http://127.0.0.1:{address.port}/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 401
    daemon.client.cancel(run_id)
    assert daemon.wait_for(run_id).outcome == "cancelled"


@pytest.mark.fault
def test_a_stopped_worker_is_stalled_and_goes_on(make_daemon: MakeDaemon, endpoint: FakeEndpoint) -> None:
    daemon = make_daemon(silence_s=1.5)
    run_id = submitted(daemon, endpoint, 10**6)
    pid = daemon.wait_for(run_id, "EXEC").pid
    os.kill(pid, signal.SIGSTOP)
    assert daemon.wait_for_run(run_id, lambda run: "stalled" in run.flags).status == "EXEC"
    step = daemon.client.get(run_id).step
    os.kill(pid, signal.SIGCONT)
    daemon.wait_for_run(run_id, lambda run: run.step > step and "stalled" not in run.flags)
    daemon.client.cancel(run_id)
    assert daemon.wait_for(run_id).outcome == "cancelled"


@pytest.mark.fault
def test_a_killed_worker_is_retried_from_its_checkpoint(make_daemon: MakeDaemon, endpoint: FakeEndpoint) -> None:
    """The endpoint says nothing after the 25th answer, until the worker was killed."""
    daemon = make_daemon()
    endpoint.script = lambda request: Fault(hangs=True) if len(endpoint.turns()) == 25 else solve(request)
    run_id = submitted(
        daemon, endpoint, 40, scheduling={"retries": 1}, checkpoint_every=10, timeout_s=3600, constraint="json_schema"
    )
    assert endpoint.hanging.acquire(timeout=60)
    os.kill(daemon.client.get(run_id).pid, signal.SIGKILL)
    run = daemon.wait_for(run_id)
    assert (run.outcome, run.attempt, run.step) == ("completed", 2, 40)
    assert len(endpoint.turns()) == 25 + 20  # from step 20


@pytest.mark.fault
@pytest.mark.parametrize("state", ["hanging", "paused", "released", "resuming"])
def test_cancel_in_each_state_ends_the_run_once(make_daemon: MakeDaemon, endpoint: FakeEndpoint, state: str) -> None:
    daemon = make_daemon()
    endpoint.script = lambda request: solve(request) if len(endpoint.turns()) < 5 else Fault(hangs=True)
    run_id = submitted(daemon, endpoint, 10**6, timeout_s=3600)
    assert endpoint.hanging.acquire(timeout=60)
    daemon.wait_for(run_id, "EXEC")
    if state != "hanging":
        daemon.client.pause(run_id, release=state == "released")
        daemon.wait_for(run_id, "PAUSE")
    if state == "released":
        daemon.wait_for_run(run_id, lambda run: "released" in run.flags)
    if state == "resuming":
        daemon.client.resume(run_id)
    for _ in range(2):
        daemon.client.cancel(run_id)
    run = daemon.wait_for(run_id)
    assert run.outcome == "cancelled"
    story = [event.kind for event in daemon.client.history(run_id) if event.to_status == "TERM"]
    assert len(story) == 1
    assert wait_until(lambda: processes_of(run_id) == [])
