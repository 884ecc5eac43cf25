"""`mosaic train`: flags as people type them, every mistake before anything is queued, and the end of the story."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

import pytest
from gym_gui.cli import main
from gym_gui.cli.flags import Minutes, Seeds, Steps, flag_help, parse_flags
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec

PPO = AlgorithmSpec(
    "ppo",
    fields=(
        FieldSpec("learning_rate", "float", 1e-3, minimum=0),
        FieldSpec("anneal_lr", "bool", True),
        FieldSpec("num_envs", "int", 4),
        FieldSpec("target_kl", "float", None, nullable=True),
        FieldSpec("note", "str", ""),
    ),
)


@pytest.fixture
def mosaic(home, capsys):
    """Run a command in this process; returns (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def submitted(fake_trainer) -> list[dict]:
    return [
        json.loads(request.config_json) for request in fake_trainer.asked if isinstance(request, pb.SubmitRunRequest)
    ]


def worker_config(fake_trainer) -> dict:
    (config,) = submitted(fake_trainer)
    return config["metadata"]["worker"]["config"]


# ---------------------------------------------------------------- flags


LLM = AlgorithmSpec("llm", fields=(FieldSpec("api_key", "str", ""), FieldSpec("model", "str", "")))


def test_a_secret_is_read_from_a_pipe_line_by_line(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("canary-key-1\nnext\n"))
    parsed = parse_flags(["E", "--api-key", "-", "--model", "-"], LLM)
    assert (parsed.parameters, parsed.positional, parsed.problems) == (
        {"api_key": "canary-key-1", "model": "-"},
        ["E"],
        [],
    )
    assert parse_flags(["--hf-token=-"], AlgorithmSpec("mine", open_flags=True)).parameters == {"hf_token": "next"}
    for algorithm in (LLM, AlgorithmSpec("mine", open_flags=True)):
        assert parse_flags(["--api_key=-"], algorithm).problems == ["--api-key -: nothing was entered"]


def test_help_says_how_a_secret_is_kept_off_the_command_line():
    (rows,) = flag_help(LLM).values()
    assert ("--api-key -|STR", "[- asks for it, or reads a line of a pipe, default: ]") in rows


@pytest.mark.parametrize(
    ("typed", "parameters"),
    [
        ("--learning-rate 3e-4", {"learning_rate": 3e-4}),
        ("--learning-rate=3e-4", {"learning_rate": 3e-4}),
        ("--learning_rate 3e-4", {"learning_rate": 3e-4}),
        ("--anneal-lr", {"anneal_lr": True}),
        ("--no-anneal-lr", {"anneal_lr": False}),
        ("--no_anneal_lr", {"anneal_lr": False}),
        ("--anneal-lr False", {"anneal_lr": False}),
        ("--anneal-lr=true", {"anneal_lr": True}),
        ("--anneal-lr --num-envs 8", {"anneal_lr": True, "num_envs": 8}),
        ("--target-kl none", {"target_kl": None}),
        ("--target-kl -0.5", {"target_kl": -0.5}),
        ("--num-envs 1_000", {"num_envs": 1000}),
        ("--note= --num-envs 2", {"note": "", "num_envs": 2}),
        ("-- --num-envs 2", {"num_envs": 2}),
        ("--num-envs 2 --num-envs 3", {"num_envs": 3}),
    ],
)
def test_flags_are_read_as_people_type_them(typed, parameters):
    parsed = parse_flags(typed.split(), PPO)
    assert (parsed.parameters, parsed.positional, parsed.problems) == (parameters, [], [])


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("--learning-rat 3e-4", "'ppo' has no flag --learning-rat; did you mean --learning-rate?"),
        ("--learning-rate", "--learning-rate needs a value (float)"),
        ("--learning-rate --num-envs 2", "--learning-rate needs a value (float)"),
        ("--learning-rate fast", "--learning-rate: expected float, got 'fast'"),
        ("--learning-rate -1", "--learning-rate: must be at least 0, got -1.0"),
        ("--learning-rate nan", "--learning-rate: expected a finite number"),
        ("--no-num-envs", "'ppo' has no flag --no-num-envs"),
        ("--no-anneal-lr=1", "--no-anneal-lr takes no value"),
        ("-x", "'ppo' has no flag -x"),
        ("--cpu 2", "did you mean --cpus?"),
    ],
)
def test_a_wrong_flag_is_named_with_the_nearest_right_one(typed, problem):
    parsed = parse_flags(typed.split(), PPO, ["--cpus"])
    assert len(parsed.problems) == 1
    assert problem in parsed.problems[0]


def test_arguments_between_flags_stay_positional():
    parsed = parse_flags(["--num-envs", "2", "CartPole-v1", "--anneal-lr", "Other-v1"], PPO)
    assert parsed.positional == ["CartPole-v1", "Other-v1"]


def test_numbers_after_a_list_flag_are_its_values_and_never_an_environment():
    script = AlgorithmSpec("script", fields=(FieldSpec("lrs", "json", None), FieldSpec("lr", "float", 0.1)))
    for typed, values in (("0.1 0.2 -1e-3", [0.1, 0.2, -1e-3]), ("[1,2]", [1, 2]), ("1,2", [1, 2]), ("3", 3)):
        parsed = parse_flags(["--lrs", *typed.split(), "CartPole-v1"], script)
        assert (parsed.parameters, parsed.positional, parsed.problems) == ({"lrs": values}, ["CartPole-v1"], [])
    assert "expected float, got '0.1,0.2'" in parse_flags(["--lr", "0.1", "0.2"], script).problems[0]


def test_the_environment_before_the_algorithm_is_reported_as_such(mosaic):
    code, _, err = mosaic("train", "CartPole-v1", "ppo")
    assert (code, "the algorithm comes first: mosaic train ppo CartPole-v1" in err) == (2, True)


def test_a_script_that_could_not_be_read_takes_any_flag():
    script = AlgorithmSpec("script", open_flags=True)
    parsed = parse_flags(["--a", "1", "--b=x", "--c", "--no-d", "--e", "True", "--f", "-1"], script)
    assert parsed.parameters == {"a": 1, "b": "x", "c": True, "d": False, "e": True, "f": -1}


@pytest.mark.parametrize(
    ("typed", "seeds"), [("1-3", [1, 2, 3]), ("5", [5]), ("1,3,7-8", [1, 3, 7, 8]), ("2..3", [2, 3])]
)
def test_seeds_are_read(typed, seeds):
    assert Seeds().convert(typed, None, None) == seeds


@pytest.mark.parametrize(
    ("kind", "typed"),
    [(Seeds(), text) for text in ("", "a", "3-1", "1-", "-1", "0-99999", "1,1,2", "1-3,0-1", "0,0")]
    + [(Steps(), text) for text in ("", "x", "0", "-5", "1.5", "1e400", "nan")]
    + [(Minutes(), text) for text in ("", "0", "-1", "1w", "h")],
)
def test_nonsense_values_are_refused(kind, typed):
    with pytest.raises(Exception, match=r"expected|more than|above"):
        kind.convert(typed, None, None)


def test_steps_and_times_are_read():
    assert [Steps().convert(text, None, None) for text in ("500_000", "5e5", "500k", "1.5M")] == [
        500_000,
        500_000,
        500_000,
        1_500_000,
    ]
    assert [Minutes().convert(text, None, None) for text in ("90", "2h", "30s", "1d")] == [90, 120, 0.5, 1440]


# ---------------------------------------------------------------- what is queued


def test_a_whole_command_line_becomes_a_config(mosaic, fake_trainer):
    code, out, err = mosaic(
        "train",
        "ppo",
        "--learning-rate",
        "3e-4",
        "Acrobot-v1",
        "--no-anneal-lr",
        "--cpus",
        "2",
        "--gpus",
        "1",
        "--memory-mb",
        "512",
        "--max-wallclock",
        "2h",
        "--priority",
        "5",
        "--retries",
        "1",
        "--tag",
        "a",
        "--tag",
        "b",
        "--name",
        "mine",
        "--notes",
        "why",
        "--total-timesteps",
        "20k",
        "--seed",
        "7",
        "--stop-at-return",
        "475",
        "--detach",
    )
    assert (code, out) == (0, fake_trainer.runs[0].run_id + "\n")
    assert "mosaic watch" in err
    (config,) = submitted(fake_trainer)
    assert config["run_name"] == "mine"
    assert config["tags"] == ["a", "b"]
    assert config["resources"] == {"cpus": {"requested": 2}, "gpus": 1, "memory_mb": 512, "max_wallclock_minutes": 120}
    assert config["scheduling"] == {"priority": 5, "retries": 1}
    assert config["metadata"]["worker"]["type"] == "cleanrl"
    assert worker_config(fake_trainer) == {
        "run_id": "${RUN_ID}",
        "algo": "ppo",
        "env_id": "Acrobot-v1",
        "seed": 7,
        "total_timesteps": 20_000,
        "extras": {"algo_params": {"learning_rate": 3e-4, "anneal_lr": False, "stop_at_return": 475}, "notes": "why"},
    }
    assert fake_trainer.runs[0].notes == "why"


def test_what_is_not_given_comes_from_the_algorithm(mosaic, fake_trainer):
    assert mosaic("train", "ppo", "-d")[0] == 0
    config = worker_config(fake_trainer)
    assert (config["env_id"], config["seed"], config["total_timesteps"]) == ("CartPole-v1", 1, 500_000)
    assert "resources" not in submitted(fake_trainer)[0]


def test_the_environment_may_be_a_flag_with_an_underscore(mosaic, fake_trainer):
    assert mosaic("train", "ppo", "--env_id", "Acrobot-v1", "--total_timesteps=10", "-d")[0] == 0
    assert worker_config(fake_trainer)["env_id"] == "Acrobot-v1"


def test_each_seed_is_a_run_with_a_name_and_a_key_of_its_own(mosaic, fake_trainer):
    code, out, _ = mosaic("train", "ppo", "--seeds", "1-3", "--name", "x", "--idempotency-key", "k", "-d", "--json")
    assert code == 0
    assert [run["seed"] for run in json.loads(out)] == [1, 2, 3]
    assert [config["run_name"] for config in submitted(fake_trainer)] == ["x-s1", "x-s2", "x-s3"]
    assert [request.idempotency_key for request in fake_trainer.asked if isinstance(request, pb.SubmitRunRequest)] == [
        "k-s1",
        "k-s2",
        "k-s3",
    ]


def test_the_experiments_name_names_the_run_and_seeds_without_a_name_have_one_each(mosaic, fake_trainer):
    assert mosaic("train", "ppo", "--exp-name", "mine", "-d")[0] == 0
    assert submitted(fake_trainer)[-1]["run_name"] == "mine"
    assert worker_config(fake_trainer)["extras"]["algo_params"]["exp_name"] == "mine"
    assert mosaic("train", "ppo", "--exp-name", "mine", "--name", "better", "-d")[0] == 0
    assert submitted(fake_trainer)[-1]["run_name"] == "better"
    assert mosaic("train", "ppo", "--seeds", "1-3", "-d")[0] == 0
    names = [config["run_name"] for config in submitted(fake_trainer)[-3:]]
    assert [re.sub(r"\d{8}-\d{6}", "WHEN", name) for name in names] == [
        f"cleanrl-ppo-WHEN-s{seed}" for seed in (1, 2, 3)
    ]


def test_two_submissions_without_a_key_are_two_runs(mosaic, fake_trainer):
    mosaic("train", "ppo", "-d")
    mosaic("train", "ppo", "-d")
    keys = {request.idempotency_key for request in fake_trainer.asked if isinstance(request, pb.SubmitRunRequest)}
    assert len(keys) == 2


def test_the_reference_worker_can_be_asked_for(mosaic, fake_trainer):
    assert mosaic("train", "random", "none", "--total-timesteps", "5", "-d")[0] == 0
    assert submitted(fake_trainer)[0]["metadata"]["worker"]["type"] == "random"


def test_an_expected_return_asks_for_an_evaluation(mosaic, fake_trainer):
    mosaic("train", "ppo", "--expect-return", "475", "-d")
    assert worker_config(fake_trainer)["extras"]["algo_params"] == {"eval_episodes": 20}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", "which algorithm?"),
        ("pppo", "there is no algorithm 'pppo'; did you mean 'ppo'?"),
        ("zzz", "there are dqn, ppo, script"),
        ("ppo CartPol-v1", "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("ppo --env-id Lunarlander", "did you mean 'LunarLander-v3'?"),
        ("ppo --learnin-rate 1", "did you mean --learning-rate?"),
        ("ppo --num-envs 0", "--num-envs: must be at least 1"),
        ("ppo --activation gelu", "expected one of 'tanh', 'relu'"),
        ("ppo CartPole-v1 Acrobot-v1", "one environment at a time"),
        ("ppo CartPole-v1 --env-id Acrobot-v1", "one environment at a time"),
        ("ppo --seed 1 --seeds 1-3", "not both"),
        ("ppo --cpus many", "'many' is not a valid float"),
        ("ppo --cpus -1", "-1.0 is not in the range"),
        ("ppo --worker cleanr", "there is no worker 'cleanr'; did you mean 'cleanrl'?"),
        ("ppo --worker broken", "worker 'broken' cannot be used: it does not start"),
        ("ppo --worker random", "there is no algorithm 'ppo' of worker 'random'"),
        ("dqn", "which environment?"),
        ("dqn CartPole-v1", "how long? --total-timesteps N"),
        ("dqn CartPole-v1 --total-timesteps 5 --stop-at-return 1", "cannot stop at a return"),
        ("--learning-rate 1 ppo", "the algorithm comes first"),
    ],
)
def test_a_mistake_is_found_before_anything_is_queued(mosaic, fake_trainer, typed, expected):
    code, _, err = mosaic("train", *typed.split(), "--detach")
    assert code == 2
    assert err.startswith("mosaic: ")
    assert expected in err
    assert fake_trainer.runs == []


def test_all_mistakes_are_reported_at_once(mosaic, fake_trainer):
    _, _, err = mosaic("train", "ppo", "CartPol-v1", "--num-envs", "x", "--foo", "1")
    assert all(part in err for part in ("CartPole-v1", "--num-envs: expected int", "no flag --foo"))


def test_the_help_of_an_algorithm_lists_its_flags_in_groups(mosaic, fake_trainer):
    code, out, _ = mosaic("train", "ppo", "--help")
    assert code == 0
    assert out.startswith("Usage: mosaic train ppo")
    assert "Optimizer:\n  --learning-rate FLOAT" in out
    assert "[min 0, default: 0.00025]" in out
    assert "--[no-]anneal-lr" in out
    assert "--activation tanh|relu" in out
    assert "--max-wallclock" in out


# ---------------------------------------------------------------- following


def life(*states: pb.Run):
    def play(run: pb.Run) -> Iterator[pb.Run]:
        yield from states

    return play


RUNNING = pb.Run(status="EXEC", step=250_000, episodic_return=100, sps=1000, started_at=1000)


def test_a_completed_run_is_followed_to_its_end(mosaic, fake_trainer):
    done = pb.Run(
        status="TERM",
        outcome="completed",
        step=500_000,
        finished_at=1075,
        run_dir="/r",
        logs_dir="/l",
        result_json='{"evaluation": {"mean_return": 498.0, "std_return": 4.0, "episodes": 20}}',
    )
    fake_trainer.on_watch = life(RUNNING, done)
    code, out, err = mosaic("train", "ppo", "--expect-return", "475")
    assert code == 0
    assert "queued ppo CartPole-v1 seed 1" in err
    assert "✓ completed  ppo CartPole-v1 seed 1 after 1:15" in out
    assert "mean return 498.0 ± 4 over 20 episodes" in out
    assert "run folder  /r\n" in out


def test_what_a_training_notes_is_printed_when_it_begins_and_at_its_end(mosaic, fake_trainer, tmp_path, capsys):
    notes = {"training_notes": ["training uses autograd with the loss as it stands there"]}
    folder = RunFolder(tmp_path)
    AnalyticsManifest(run_id="r", extra=notes).write(folder.manifest)
    running = pb.Run(status="EXEC", step=100, started_at=1000, run_dir=str(tmp_path))
    done = pb.Run(status="TERM", outcome="completed", step=500, finished_at=1075, run_dir=str(tmp_path))
    told: list[str] = []

    def play(run: pb.Run) -> Iterator[pb.Run]:
        yield running
        assert wait_until(lambda: told.append(capsys.readouterr().out) or " note: training uses" in "".join(told))
        yield done

    fake_trainer.on_watch = play
    _, out, _ = mosaic("train", "ppo")
    assert "".join(told).count("note: ") == 1
    assert re.search(r"noted +training uses autograd with the loss as it stands there", out)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ('{"evaluation": {"mean_return": 474.9}}', "reached a mean return of 474.9, expected at least 475"),
        ("", "made no evaluation"),
    ],
)
def test_a_run_below_the_expected_return_is_a_failure(mosaic, fake_trainer, result, message):
    fake_trainer.on_watch = life(pb.Run(status="TERM", outcome="completed", result_json=result))
    code, _, err = mosaic("train", "ppo", "--expect-return", "475")
    assert code == 1
    assert message in err


def test_a_failed_run_shows_its_last_output(mosaic, fake_trainer):
    def fail(run: pb.Run) -> Iterator[pb.Run]:
        tails = json.dumps({"stderr_tail": "Traceback\nKeyError: 'x'\n", "stdout_tail": "hello"})
        fake_trainer.stories[run.run_id] = [
            pb.StoryEvent(kind="faulted", to_status="FAULT"),
            pb.StoryEvent(kind="given_up", to_status="TERM", payload_json=tails),
        ]
        yield RUNNING
        yield pb.Run(status="TERM", outcome="failed", reason="exit code 1", finished_at=1001)

    fake_trainer.on_watch = fail
    code, out, err = mosaic("train", "ppo")
    assert code == 1
    assert "✗ failed" in out
    assert "exit code 1" in out
    assert "the end of its stderr:\n    Traceback\n    KeyError: 'x'\n" in err


def test_a_queued_run_says_what_it_waits_for(mosaic, fake_trainer):
    waiting = pb.Run(status="INIT", queue_reason="needs 2 CPUs, 1 free")
    fake_trainer.on_watch = life(waiting, pb.Run(status="TERM", outcome="cancelled"))
    code, out, _ = mosaic("train", "ppo")
    assert code == 1
    assert "queued" in out
    assert "– cancelled" in out


def test_several_seeds_end_with_their_spread(mosaic, fake_trainer):
    def done(run: pb.Run) -> Iterator[pb.Run]:
        yield pb.Run(
            status="TERM", outcome="completed", result_json=json.dumps({"evaluation": {"mean_return": run.seed}})
        )

    fake_trainer.on_watch = done
    code, out, _ = mosaic("train", "ppo", "--seeds", "10,20")
    assert code == 0
    assert "2 completed; evaluation 15.0 ± 7.07 over 2 runs" in out


def test_watching_runs_that_have_ended_reports_how(mosaic, fake_trainer):
    fake_trainer.add(outcome="failed", reason="no room")
    code, out, _ = mosaic("watch", "last")
    assert code == 1
    assert "no room" in out


def test_a_config_file_is_submitted_and_its_problems_are_reported(mosaic, fake_trainer, tmp_path):
    path = tmp_path / "run.json"
    worker = {"type": "cleanrl", "config": {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 5}}
    path.write_text(json.dumps({"metadata": {"worker": worker}}))
    assert mosaic("submit", str(path))[:2] == (0, fake_trainer.runs[0].run_id + "\n")
    for text, message in [("{}", "Did you mean 'cleanrl'?"), ("{", "not valid JSON"), ("[]", "expected a JSON object")]:
        path.write_text(text)
        code, _, err = mosaic("submit", str(path))
        assert code == 2
        assert message in err
