"""Runs of the LLM worker as processes: it can win, hides no invalid answer, and ends or continues when asked to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from llm_worker.answers import Constraint, parse
from llm_worker.embedded import EmbeddedServer
from llm_worker.errors import EndpointFailed
from llm_worker.testing import FakeEndpoint, Fault, error, is_probe, plays_at_random, solve, write_tiny_model
from mosaic_extras.testing import lend_sets
from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.frames import remove_frames
from mosaic_wire.paths import Home
from mosaic_wire.reasoning import reasoning_of
from mosaic_wire.session import CommandKind
from mosaic_wire.telemetry import decode
from mosaic_wire.testing import PlayDaemon, WorkerProcess, wait_until

from workers.llm_worker.tests.conftest import ARGV, Start

MINIGRID = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
CANARY = "canary-key-3d9f77aa10"


def infos(daemon: PlayDaemon) -> list[dict[str, Any]]:
    return [json.loads(step.info_json) for step in daemon.steps]


def ending(worker: WorkerProcess, event: str = "run_completed", code: int = 0) -> dict[str, Any]:
    assert worker.wait() == code, worker.stderr()
    assert str(worker.events()[-1].event) == event, worker.stderr()
    assert "Traceback" not in worker.stderr()
    return dict(worker.events()[-1].payload)


def curves(worker: WorkerProcess) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for batch in EventFolderReader(worker.folder.root / "tensorboard").read():
        for tag, column in batch.columns.items():
            found.setdefault(tag, []).extend(column.values)
    return found


# ---------------------------------------------------------------- playing


def test_a_perfect_model_wins_and_everything_it_was_told_is_recorded(
    start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon
) -> None:
    worker = start(steps=18, options={"daemon": daemon})
    told = ending(worker)
    assert told["evaluation"] == {"mean_return": 1.0, "std_return": 0.0, "episodes": 3, "success_rate": 1.0}
    assert (told["constraint"], told["invalid"], told["fallbacks"]) == ("json_schema", 0, 0)
    assert told["total_tokens"] == 18 * 110
    assert [(step.episode, step.index) for step in daemon.steps] == [(e, i) for e in range(3) for i in range(6)]
    assert [(episode.episode, episode.episodic_return) for episode in daemon.episodes] == [(e, 1.0) for e in range(3)]
    parts = {part.title: part.text for part in reasoning_of(infos(daemon)[0])}
    asked = endpoint.turns()[0]["messages"]
    assert [asked[0]["content"], asked[1]["content"]] == [parts["Instructions"], parts["Prompt"]]
    assert (parts["Answer"], parts["Action"]) == ('{"action": "down"}', "down")
    assert parts["Result"].startswith("reward 0\nYou (A) are at row 1, column 0")
    assert reasoning_of(infos(daemon)[5])[-1].text.startswith("reward 1; the episode is over")
    # The second turn of an episode shows the first; the next episode begins with an empty conversation.
    assert [len(each["messages"]) for each in endpoint.turns()[:8]] == [2, 4, 6, 8, 10, 12, 2, 4]
    assert endpoint.turns()[0]["temperature"] == 0
    found = curves(worker)
    assert found["charts/episodic_return"] == found["charts/success"] == [1.0, 1.0, 1.0]
    assert found["llm/tokens"][-1] == 18 * 110
    assert found["llm/invalid_rate"][-1] == found["llm/fallback_rate"][-1] == 0
    assert len(found["llm/latency_ms"]) == len(found["llm/tokens"])


@pytest.mark.slow  # the lake is won above, and test_prompts.py describes a grid, in every CI
def test_a_grid_world_is_won_in_its_set(
    start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon, tmp_path: Path
) -> None:
    lend_sets(Home(tmp_path / "home"), "minigrid")
    worker = start("MiniGrid-Empty-5x5-v0", steps=5, options={"daemon": daemon}, parallel=1)
    assert ending(worker)["evaluation"]["success_rate"] == 1.0
    actions = [info["llm"]["action"] for info in infos(daemon)]
    assert actions == ["forward", "forward", "right", "forward", "forward"]


def test_no_invalid_answer_is_hidden(start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon) -> None:
    """One third of the answers is right, one third after being asked again, one third never."""
    endpoint.honors = ()
    kinds: Counter[str] = Counter()

    def answer(request: Any) -> str:
        last = request["messages"][-1]["content"]
        if "names no single legal action" in last:
            kinds["again"] += 1
            return "left" if kinds["again"] % 2 else "I would rather not"
        kinds["first"] += 1
        return "left" if kinds["first"] % 3 == 0 else "left or up, " * 500

    endpoint.script = answer
    told = ending(start(steps=30, options={"daemon": daemon}))
    assert (told["constraint"], told["invalid"], told["repaired"], told["fallbacks"]) == ("text", 20, 10, 10)
    facts = [info["llm"] for info in infos(daemon)]
    assert sum(fact["invalid"] for fact in facts) == 20
    assert sum(fact["fallback"] for fact in facts) == 10
    for info in infos(daemon):
        parts = {part.title: part.text for part in reasoning_of(info)}
        assert ("Asked again" in parts) is info["llm"]["invalid"]
        assert ("a random one" in parts["Action"]) is info["llm"]["fallback"]
    # Of a long answer the model is reminded in part: it could exceed the context.
    assert max(len(part["content"]) for each in endpoint.turns() for part in each["messages"]) <= 1000
    # What was stepped is what was shown, also where it was random.
    names = ["left", "down", "right", "up"]
    assert [names[int(decode(step.action))] for step in daemon.steps] == [fact["action"] for fact in facts]


@pytest.mark.slow  # the exact resume depends on it, too
def test_random_fallbacks_follow_from_the_seed(start: Start, endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda _: "nonsense"

    def actions() -> list[str]:
        with PlayDaemon() as daemon:
            ending(start(options={"daemon": daemon}))
            return [info["llm"]["action"] for info in infos(daemon)]

    first = actions()
    assert actions() == first
    assert len(set(first)) > 1


def test_episodes_in_parallel_are_recorded_apart(start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon) -> None:
    worker = start(steps=60, parallel=4, options={"daemon": daemon})
    told = ending(worker)
    assert told["step"] == len(daemon.steps) == 60
    by_episode: dict[int, list[Any]] = {}
    for step in daemon.steps:
        by_episode.setdefault(step.episode, []).append(step)
    for steps in by_episode.values():
        assert [step.index for step in steps] == list(range(len(steps)))
        assert not any(step.terminated for step in steps[:-1])
    whole = [steps for steps in by_episode.values() if steps[-1].terminated]
    assert len(whole) == len(daemon.episodes) == told["evaluation"]["episodes"] >= 7
    assert {episode.episode for episode in daemon.episodes} == {steps[0].episode for steps in whole}
    seeds = [json.loads(episode.info_json)["seed"] for episode in daemon.episodes]
    assert len(set(seeds)) == len(seeds)
    assert {len(each["messages"]) for each in endpoint.turns()} == {2, 4, 6, 8, 10, 12}
    assert sum(map(is_probe, endpoint.requests)) == 1


@pytest.mark.slow  # the exact resume below makes plans, too
def test_a_plan_is_made_every_few_steps_and_reminded_of(start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon):
    endpoint.script = lambda request: (
        "Keep to\nthe ice." if "Do not act yet" in request["messages"][-1]["content"] else solve(request)
    )
    ending(start(plan_every=4, options={"daemon": daemon}))
    asked = ["Do not act yet" in each["messages"][-1]["content"] for each in endpoint.turns()]
    assert asked == [True, False, False, False, False, True, False, False]
    assert "Your plan: Keep to the ice." in endpoint.turns()[1]["messages"][-1]["content"]
    assert all(("Plan", "Keep to the ice.") in [(p.title, p.text) for p in reasoning_of(i)] for i in infos(daemon))


# ---------------------------------------------------------------- budgets and failures


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param(
            {"max_total_tokens": 500},
            "the budget of 500 tokens is used up (550 used)",
            marks=pytest.mark.slow,  # one pauses a run in every CI, in tests/e2e/test_llm_worker.py
        ),
        pytest.param(
            {"max_cost": 0.001, "input_price": 1.0, "output_price": 10.0},
            "the budget of 0.001 is spent (cost 0.0010)",
            marks=pytest.mark.slow,  # as the tokens
        ),
        ({"max_minutes": 0.005}, "the time of 0.005 minutes is over"),
    ],
)
def test_a_budget_ends_the_run_as_completed_with_that_reason(
    start: Start, endpoint: FakeEndpoint, limits: dict[str, Any], reason: str
) -> None:
    if "max_minutes" in limits:  # while an answer is awaited
        endpoint.faults.append(Fault(hangs=True))
    told = ending(start(steps=100_000, timeout_s=3600, constraint="json_schema", **limits))
    assert told["stopped_early"] == reason
    assert told["step"] < 10


@pytest.mark.slow  # under a real daemon in every CI, in tests/e2e/test_llm_worker.py
def test_a_budget_may_pause_the_run_and_be_granted_again(start: Start, daemon: PlayDaemon) -> None:
    worker = start(steps=12, max_total_tokens=660, on_budget="pause", options={"daemon": daemon})
    assert wait_until(lambda: "paused" in worker.event_names()), worker.stderr()
    assert len(daemon.steps) <= 6
    daemon.send(CommandKind.RESUME)
    told = ending(worker)
    assert told["step"] == 12
    assert told["total_tokens"] == 12 * 110


@pytest.mark.parametrize(
    ("fault", "told", "is_final"),
    [
        (error(401, "no"), "refuses the key (401: no)", True),
        pytest.param(error(500, "oh"), "answers with status 500: oh", False, marks=pytest.mark.slow),  # as the first
        pytest.param(Fault(200, b"no", cuts=True), "broke off", False, marks=pytest.mark.slow),  # as the others
    ],
)
def test_an_endpoint_that_fails_fails_the_run_with_one_sentence(
    start: Start, endpoint: FakeEndpoint, fault: Fault, told: str, is_final: bool
) -> None:
    def play(request: Any) -> str | Fault:
        return solve(request) if len(endpoint.turns()) <= 3 else fault

    endpoint.script = play
    worker = start(max_retries=1)
    failed = ending(worker, "run_failed", 1)
    assert told in failed["error"]
    assert failed.get("final", False) is is_final
    assert failed["step"] == 3
    assert [path.name for path in worker.folder.checkpoints.iterdir()] == ["step-3"]


# ---------------------------------------------------------------- cancel, pause, resume


def test_a_request_that_hangs_holds_nothing_up(start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon) -> None:
    """Pause, resume and cancel while the endpoint says nothing for an hour; the benchmark says how quickly."""
    endpoint.faults.append(Fault(hangs=True))
    worker = start(steps=10**6, timeout_s=3600, constraint="json_schema", options={"daemon": daemon})
    assert endpoint.hanging.acquire(timeout=60), worker.stderr()
    daemon.send(CommandKind.PAUSE)
    assert wait_until(lambda: "paused" in worker.event_names())
    assert endpoint.dropped.acquire(timeout=60)
    assert not daemon.steps
    with endpoint.lock:
        endpoint.faults.append(Fault(hangs=True))
    daemon.send(CommandKind.RESUME)
    assert endpoint.hanging.acquire(timeout=60), worker.stderr()
    worker.process.send_signal(signal.SIGTERM)
    ending(worker, "run_cancelled", 130)
    assert endpoint.dropped.acquire(timeout=60)


def played(daemon: PlayDaemon) -> list[tuple[str, int, str]]:
    """Return what was seen, done and answered, in order."""
    return [
        (parts["Prompt"], int(decode(step.action)), parts["Answer"])
        for step in daemon.steps
        if (parts := {part.title: part.text for part in reasoning_of(json.loads(step.info_json))})
    ]


@pytest.mark.parametrize("death", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])  # as a kill
def test_a_resumed_run_plays_on_exactly(start: Start, endpoint: FakeEndpoint, death: signal.Signals) -> None:
    """Slippery ice and random play: environment, conversation and plan must all be restored."""
    endpoint.script = plays_at_random()
    settings: dict[str, Any] = {"env_kwargs": "", "checkpoint_every": 10, "plan_every": 7, "history": 3}
    with PlayDaemon() as daemon:
        ending(start(steps=40, options={"daemon": daemon}, **settings))
        whole = played(daemon)
    with PlayDaemon() as daemon:
        hang_at = len(endpoint.turns()) + 29

        def until_then(request: Any) -> str | Fault:
            return plays_at_random()(request) if len(endpoint.turns()) != hang_at else Fault(hangs=True)

        endpoint.script = until_then
        worker = start(steps=40, timeout_s=3600, options={"daemon": daemon}, **settings)
        assert endpoint.hanging.acquire(timeout=60), worker.stderr()
        assert wait_until(lambda: len(played(daemon)) >= 20)  # what precedes the checkpoint has arrived
        os.kill(worker.process.pid, death)
        worker.wait()
        remove_frames(worker.folder.root.name)  # as a daemon does
        (*_, checkpoint) = sorted(worker.folder.checkpoints.iterdir(), key=lambda path: int(path.name[5:]))
        step = int(checkpoint.name.removeprefix("step-"))
        before = played(daemon)[:step]
    endpoint.script = plays_at_random()
    with PlayDaemon() as daemon:
        resume = {"mode": "resume_training", "checkpoint_path": str(checkpoint)}
        told = ending(start(steps=40, options={"daemon": daemon}, **settings, **resume))
        after = played(daemon)
    assert 0 < step < 40
    assert told["step"] == 40
    assert before + after == whole


# ---------------------------------------------------------------- evaluation


@pytest.mark.slow  # a run is evaluated in every CI, in tests/e2e/test_llm_worker.py
def test_an_evaluation_plays_so_many_episodes_with_the_settings_of_the_run(
    start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon
) -> None:
    trained = start(steps=6, history=2)
    ending(trained)
    (checkpoint,) = trained.folder.checkpoints.iterdir()
    before = len(endpoint.turns())
    evaluation = {"mode": "policy_eval", "checkpoint_path": str(checkpoint), "eval_episodes": 3}
    config = {"algo": "llm", "env_id": "FrozenLake-v1", "total_timesteps": 3, "seed": 5, "extras": evaluation}
    with WorkerProcess(ARGV, config, trained.home, daemon=daemon) as worker:
        told = ending(worker)
    assert (told["evaluation"]["episodes"], told["evaluation"]["mean_return"]) == (3, 1.0)
    assert len(daemon.episodes) == 3
    assert max(len(each["messages"]) for each in endpoint.turns()[before:]) == 6  # a window of two turns


@pytest.mark.slow  # as above
def test_a_baseline_acts_at_random_and_asks_nobody(start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon) -> None:
    extras = {"mode": "policy_eval", "eval_policy": "random", "base_url": "", "model": "smollm2"}
    told = ending(start(steps=5, options={"daemon": daemon}, **extras))
    assert told["evaluation"]["episodes"] == 5
    assert not endpoint.requests
    assert "Prompt" not in {part.title for part in reasoning_of(infos(daemon)[0])}


# ---------------------------------------------------------------- secrets


@pytest.mark.slow  # a model repeats its key in every CI, in tests/e2e/test_llm_worker.py
def test_the_key_is_used_and_nowhere_to_be_found(start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon) -> None:
    """The model repeats the key in every answer, and the endpoint in an error."""
    endpoint.key = CANARY
    endpoint.honors = ()

    def repeat(request: Any) -> str | Fault:
        if len(endpoint.turns()) > 8:
            return error(403, f"the key {CANARY} is used up")
        return f"My key is {CANARY}. I go left or up."

    endpoint.script = repeat
    reference = {"api_key": {"secret_ref": "api_key"}}
    options = {"daemon": daemon, "environment": {"API_KEY": CANARY}}
    worker = start(steps=10**6, options=options, prompt=f"{CANARY} {{goal}}", plan_every=3, **reference)
    assert "refuses the key" in ending(worker, "run_failed", 1)["error"]
    assert any(header.get("authorization") == f"Bearer {CANARY}" for header in endpoint.headers)
    told = b"".join(part.SerializeToString() for part in (*daemon.steps, *daemon.episodes, *daemon.registrations))
    assert rb"\u2022" in told
    assert CANARY.encode() not in told
    found = [path for path in worker.home.root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert found == [worker.config_file]  # where this test wrote it


@pytest.mark.slow  # the endpoint's own tests send a password in every CI
def test_an_address_with_a_password_is_a_secret(start: Start, endpoint: FakeEndpoint, daemon: PlayDaemon) -> None:
    address = endpoint.address.replace("//", f"//user:{CANARY}@")
    options = {"daemon": daemon, "environment": {"BASE_URL": address}}
    worker = start(base_url={"secret_ref": "base_url"}, options=options)
    ending(worker)
    assert endpoint.headers[-1]["authorization"].startswith("Basic ")
    assert CANARY not in worker.stderr() + str(worker.events())
    assert not [path for path in worker.home.root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


# ---------------------------------------------------------------- questions of the form


def ask(start: Start, *flags: str, **extras: Any) -> subprocess.CompletedProcess[str]:
    worker = start(options={"flags": ["--dry-run"]}, **extras)
    worker.wait()
    command = [*ARGV, "--config", str(worker.config_file), *flags]
    variables = {**os.environ, "MOSAIC_HOME": str(worker.home.root)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, check=False)


@pytest.mark.slow  # the form's own tests ask a real worker in every CI
def test_a_form_can_ask_for_models_probe_and_first_prompt(start: Start, endpoint: FakeEndpoint) -> None:
    assert json.loads(ask(start, "--models", model="").stdout) == {"models": ["first", "second"]}
    assert json.loads(ask(start, "--probe").stdout) == {"constraint": "json_schema"}
    answer = json.loads(ask(start, "--preview", prompt="{actions}!").stdout)
    assert answer["messages"][0]["content"] == "left, down, right, up!"
    assert answer["messages"][1]["content"].startswith("You (A) are at row 0, column 0")
    assert answer["estimated_tokens"] > 20
    assert all(is_probe(request) for request in endpoint.requests)


@pytest.mark.slow  # as above
def test_what_a_describer_prints_is_no_part_of_the_answer(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("print('hello')\ndef tell(observation, env):\n    print('seen')\n    return 'dark'\n")
    done = ask(start, "--preview", describer=f"{file}:tell")
    assert json.loads(done.stdout)["messages"][1]["content"] == "dark"
    assert "seen" in done.stderr


@pytest.mark.slow  # as above
def test_a_question_that_cannot_be_answered_says_why(start: Start, endpoint: FakeEndpoint) -> None:
    endpoint.key = CANARY
    done = ask(start, "--probe", api_key="wrong-key-4711aa")
    assert done.returncode == 2
    assert "refuses the key" in done.stderr
    assert "wrong-key" not in done.stderr


# ---------------------------------------------------------------- a model of the worker's own


def test_a_tiny_model_is_served_by_the_worker_and_ends_with_it(
    start: Start, daemon: PlayDaemon, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    lend_sets(home, "llama_cpp")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    assert model.stat().st_size < 600_000
    worker = start(steps=10, base_url="", model=str(model), parallel=2, options={"daemon": daemon})
    told = ending(worker)
    facts = [info["llm"] for info in infos(daemon)]
    assert len(facts) == 10
    assert told["constraint"] in (Constraint.JSON_SCHEMA, Constraint.GRAMMAR)
    assert told["fallbacks"] == sum(fact["fallback"] for fact in facts)
    assert not worker.survivors()


def test_a_model_that_is_being_loaded_is_ended_at_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    lend_sets(home, "llama_cpp")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    parameters = {"model": str(model), "base_url": "", "api": "openai", "parallel": 1, "context": 512}
    before, servers = psutil.Process().children(), list[psutil.Process]()

    def stop() -> bool:
        servers.extend(set(psutil.Process().children()) - {*before})
        return True

    with pytest.raises(EndpointFailed, match="the run was stopped while its model was loaded"):
        EmbeddedServer(home, parameters, is_stopping=stop)
    assert [server.is_running() for server in servers] == [False]


@pytest.mark.slow  # ten steps are played in every CI
@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "MiniGrid-Empty-5x5-v0"])
@pytest.mark.parametrize("constraint", ["auto", "text"])
def test_two_hundred_steps_hide_no_invalid_answer(
    start: Start, daemon: PlayDaemon, tmp_path: Path, env_id: str, constraint: str
) -> None:
    lend_sets(Home(tmp_path / "home"), "llama_cpp", "minigrid")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    settings: dict[str, Any] = {"base_url": "", "model": str(model), "constraint": constraint}
    worker = start(env_id, steps=200, options={"daemon": daemon}, history=0, max_tokens=64, **settings)
    worker.wait(170)
    told = ending(worker)
    steps = infos(daemon)
    assert len(steps) == 200
    for info in steps:
        parts = {part.title: part.text for part in reasoning_of(info)}
        answers = [parts[title] for title in ("Answer", "Second answer") if title in parts]
        named = [parse(text, ["left", "down", "right", "up"]) or parse(text, list(MINIGRID)) for text in answers]
        assert info["llm"]["fallback"] or info["llm"]["action"] in named
    assert told["fallbacks"] == sum(info["llm"]["fallback"] for info in steps)
    assert told["invalid"] == sum(info["llm"]["invalid"] for info in steps)


@pytest.mark.slow  # a model is served in every CI by the test above
def test_a_server_that_dies_fails_the_run_with_the_reason(start: Start, daemon: PlayDaemon, tmp_path: Path) -> None:
    lend_sets(Home(tmp_path / "home"), "llama_cpp")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    worker = start(steps=10**6, base_url="", model=str(model), max_retries=1, options={"daemon": daemon})
    assert wait_until(lambda: len(daemon.steps) > 3), worker.stderr()
    (server,) = set(worker.survivors()) - {worker.process.pid}
    os.kill(server, signal.SIGKILL)
    assert "the embedded server ended with -9" in ending(worker, "run_failed", 1)["error"]


@pytest.mark.slow  # as above
@pytest.mark.parametrize("content", [b"", b"GGUF no model"])
def test_a_file_that_is_no_model_is_named(start: Start, tmp_path: Path, content: bytes) -> None:
    lend_sets(Home(tmp_path / "home"), "llama_cpp")
    model = tmp_path / "broken.gguf"
    model.write_bytes(content)
    worker = start(base_url="", model=str(model))
    assert "broken.gguf cannot be served" in ending(worker, "run_failed", 1)["error"]
