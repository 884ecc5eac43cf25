"""What people do wrong, and the sentence that each gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mosaic_extras.env_construction import read_env_kwargs
from mosaic_wire.errors import ConfigProblems
from spade_bdi_worker.sources import find_sources

ACTS = "+!act <- .act(1)."
WORLDS = Path(__file__).with_name("worlds")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("+!act : state(S <- .act(1).", "walker.asl:1:17: expected ')' or another argument for the literal, got '<-'"),
        ("+!act <-\n  .act(1)", "walker.asl:2:9: unexpected end of file"),
        ("+!act <- .atc(1).", "walker.asl:1:10: there is no action .atc with 1 argument; did you mean .act?"),
        ("+!act <- .act(1, 2, 3, 4).", "walker.asl:1:10: there is no action .act with 4 arguments"),
        ("+!go.", "walker.asl: no plan for +!act, the goal before every step, such as: +!act <- .act(0)."),
        ("+!act <- .jump(1).", "walker.asl:1:10: there is no action .jump with 1 argument\n"),
        ("!wake. " + ACTS, "walker.asl: no applicable plan for +!wake/0"),
    ],
)
def test_a_behaviour_that_cannot_be_read_is_refused_with_its_place(train, behaviour, text, sentence):
    done = train(behaviour_path=behaviour(walker=text))
    assert done.code == 2
    assert sentence in done.error
    assert "Traceback" not in done.error
    assert not done.folder.root.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "+!act : state(99) <- .act(1).",
            "no plan of walker applies to +!act; it believes state(0), at(0, 0), episode(0). Add a plan",
        ),
        ("+!act <- !walk.", "walker.asl:1:10: no applicable plan for +!walk/0"),
        ("+!act <- .act(jump).", "walker.asl:1:10: .act(jump): there is no such action"),
        ("+!act <- .act(7).", "walker.asl:1:10: .act(7): actions are numbers from 0 to 3"),
        ("+!act <- .act(X).", "walker.asl:1:10: a variable has no value here"),
        ("+!act <- state(99); .act(1).", "walker.asl:1:10: this failed, and with it the plan"),
        ("+!act <- .send(anna, tell, hello).", "walker sends to 'anna', but the agents are walker"),
        ("+!act <- .send(walker, shout, hello).", ".send: unknown force shout; there are tell, untell"),
        ("+!act <- +thought.", "+!act leads to no action: 5000 deliberations without a step. A plan has to call .act"),
        ("+!act <- !act.", "+!act leads to no action: 5000 deliberations without a step"),
        ("+!act <- .send(walker, tell, hint(3)).", "; there is no plan for +hint/1 of walker. A plan has to call .act"),
        ('+!act <- .wait("+never").', "; walker waits for +never. A plan has to call .act"),
        ("+!act : state(S) <- X = S + Y; .act(X).", "walker.asl:1:23: a variable has no value here"),
    ],
)
def test_a_behaviour_that_cannot_continue_faults_the_run_with_the_reason(train, behaviour, text, sentence):
    done = train(behaviour_path=behaviour(walker=text), max_deliberations=5_000)
    assert done.code == 1
    assert sentence in done.reason
    assert "Traceback" not in done.error


def test_two_agents_that_act_are_refused(train, behaviour):
    done = train(behaviour_path=behaviour(anna=ACTS, ben=ACTS))
    assert done.code == 2
    assert "anna and ben have plans for +!act; only one agent can act in the environment" in done.error


def test_an_exception_in_an_action_names_the_plan_and_the_exception(train, behaviour, monkeypatch):
    monkeypatch.syspath_prepend(WORLDS)
    done = train("broken_worlds:Breaking-v0", behaviour_path=behaviour(walker=ACTS))
    assert done.code == 1
    assert done.reason == "walker.asl:1:10: it raised ZeroDivisionError: the floor gave way"


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("FrozenLak-v1", "Did you mean 'FrozenLake-v1'"),
        ("broken_worlds:Continuous-v0", "this worker needs discrete ones from 0"),
        ("broken_worlds:Painting-v0", "have no symbolic form; choose toy text, MiniGrid or classic control"),
        ("no_such_module:Env-v0", "No module named 'no_such_module'"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(train, monkeypatch, env_id, sentence):
    monkeypatch.syspath_prepend(WORLDS)
    done = train(env_id)
    assert done.code == 2
    assert sentence in done.error


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"env_kwargs": "{slippery"}, "env_kwargs: is not JSON"),
        ({"env_kwargs": "is_slipery=false"}, "is_slipery"),
        ({"behaviour": "q_lerning"}, "expected one of 'q_learning', 'planner', 'teacher_pupil'"),
        ({"behaviour_path": "walker.asl"}, "must be a whole path"),
        ({"behaviour_path": "/no/such/walker.asl"}, "/no/such/walker.asl cannot be read: No such file"),
        ({"engine": "spade", "server": "xmpp.example"}, "jid: must be name@domain for the server 'xmpp.example'"),
        ({"engine": "spade", "server": "xmpp.example", "jid": "anna@xmpp.example"}, "password: is missing"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_refused(train, parameters, sentence):
    done = train(**parameters)
    assert done.code == 2
    assert sentence in done.error
    assert "Traceback" not in done.error


def test_a_folder_or_file_that_is_no_behaviour_is_refused(tmp_path):
    for name, content, sentence in (
        ("Walker.asl", b"", "lower-case letters"),
        ("walker.asl", b"\xff\xfe", "is not UTF-8 text"),
        ("walker.asl", b" " * (2 << 20), "is longer than 1 MiB"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigProblems, match=sentence):
            find_sources("", str(tmp_path / name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigProblems, match=r"has no \.asl file"):
        find_sources("", str(tmp_path / "empty"))


def test_arguments_of_environments_are_json_or_pairs():
    assert read_env_kwargs("is_slippery=false, map_name=8x8") == {"is_slippery": False, "map_name": "8x8"}
    assert read_env_kwargs('{"size": 5}') == {"size": 5}
    with pytest.raises(ConfigProblems, match="must be a JSON object"):
        read_env_kwargs("[1]")


def test_a_missing_interpreter_is_named_with_the_command_that_installs_it(tmp_path):
    """In a process without the sets of the tests."""
    import subprocess

    config = {"algo": "spade_bdi", "env_id": "FrozenLake-v1", "total_timesteps": 10}
    (tmp_path / "config.json").write_text(json.dumps(config))
    argv = [sys.executable, "-m", "spade_bdi_worker.cli", "--config", str(tmp_path / "config.json")]
    refused = subprocess.run([*argv, "--dry-run"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "Install: mosaic extras install agentspeak" in refused.stderr
    answer = json.loads(subprocess.run([*argv, "--sources"], capture_output=True, text=True, check=True).stdout)
    assert "+!act" in answer["agents"]["q_learning"]["text"]
    assert "mosaic extras install agentspeak; GPL-3" in answer["note"]
    lines = "".join(json.dumps({**config, "extras": {"install_missing": on}}) + "\n" for on in (False, True))
    asked = subprocess.run(
        [*argv[:3], "--check"], input=lines, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    first, second = map(json.loads, asked)
    assert "or add --install-missing" in first["problems"][0]["message"]
    assert (second["problems"], second["missing_sets"]) == ([], ["agentspeak"])
