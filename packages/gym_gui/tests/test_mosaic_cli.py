"""The `mosaic` command against a stand-in daemon: listings, steering, keeping, and one message for each mistake."""

from __future__ import annotations

import json
import sys

import click
import grpc
import numpy as np
import pytest
from gym_gui.cli import app, main
from gym_gui.cli.app import COMMANDS
from mosaic_wire.interactive import png
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb


class Ended:
    """What a command printed and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def mosaic(home, capsys):
    """Run a command in this process."""

    def run(*message: str) -> Ended:
        with pytest.raises(SystemExit) as exit_:
            main(message)
        captured = capsys.readouterr()
        return Ended(exit_.value.code, captured.out, captured.err)

    return run


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_without_a_daemon(mosaic, command):
    ended = mosaic(command, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: mosaic {command}")


def test_a_command_may_have_a_hyphen_in_its_name(mosaic, monkeypatch):
    @click.command()
    def two_words_command() -> None:
        click.echo("both words")

    monkeypatch.setitem(COMMANDS, "two-words", ("app", "Say both."))
    monkeypatch.setattr(app, "two_words_command", two_words_command, raising=False)
    assert mosaic("two-words").out == "both words\n"


def test_help_lists_every_command(mosaic):
    out = mosaic("--help").out
    assert all(f"\n  {command} " in out for command in COMMANDS)
    assert mosaic().out == out


def test_a_daemon_that_was_stopped_is_not_started_by_a_listing(mosaic, home):
    home.create()
    home.database.write_bytes(b"")  # one ran, and left no record: it ended in good order
    for message in (["runs"], ["show", "last"], ["plot", "last"]):
        ended = mosaic(*message)
        assert ended.code == 1
        assert (
            ended.err
            == f"mosaic: the trainer daemon of {home.root} was stopped; `mosaic daemon start` starts it again\n"
        )


def test_a_mistyped_home_is_not_made_into_one(mosaic, tmp_path):
    ended = mosaic("--home", str(tmp_path / "typo"), "runs")
    assert (ended.code, (tmp_path / "typo").exists()) == (1, False)
    assert ended.err.startswith("mosaic: no trainer daemon runs for ")
    assert f"`mosaic --home {tmp_path / 'typo'} daemon start` starts one" in ended.err


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (["run"], "there is no command 'run'; did you mean 'runs'?"),
        (["runs", "--limt", "3"], "No such option '--limt'"),
        (["runs", "--status", "runnig"], "did you mean 'running'?"),
        (["runs", "--limit", "0"], "0 is not in the range"),
        (["show"], "Missing argument 'RUN...'"),
        (["--token-file", "x", "runs"], "belong to --connect"),
        (["--connect", "192.0.2.1:1", "--token-file", "/no/such", "runs"], "cannot read the token file"),
        (["--connect", "localhost:1", "runs"], "which token?"),
        (["--connect", "h:1", "daemon", "start"], "names a daemon that runs already"),
        (["tag", "--ad", "x"], "there is no option --ad"),
        (["submit", "/no/such.json"], "cannot read /no/such.json"),
        (["import", "/no/such"], "/no/such"),
        (["priority", "5", "C0EKDVP2"], "the priority comes last, a whole number such as 5; 'C0EKDVP2' is none"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(mosaic, message, expected):
    ended = mosaic(*message)
    assert ended.code == 2
    assert ended.err.startswith("mosaic: ")
    assert expected in ended.err


def test_runs_as_json_has_friendly_names(mosaic, fake_trainer):
    run = fake_trainer.add(
        name="mine",
        seed=3,
        step=50,
        total=100,
        episodic_return=12.5,
        sps=float("nan"),
        tags=["a"],
        flags=["stalled"],
        status="EXEC",
        outcome="",
        result_json='{"x": 1}',
        extras_json="{damaged",
        created_at=5.5,
    )
    (document,) = mosaic("runs", "--json").json
    assert document["run_id"] == run.run_id
    expected = {
        "status": "EXEC",
        "outcome": None,
        "reason": "",
        "name": "mine",
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 3,
        "step": 50,
        "total": 100,
        "return": 12.5,
        "sps": None,
        "tags": ["a"],
        "result": {"x": 1},
        "extras": None,
        "started_at": None,
        "created_at": 5.5,
        "parent": None,
    }
    assert {key: document[key] for key in expected} == expected
    assert {field.name for field in pb.Run.DESCRIPTOR.fields} - set(document) == {
        "episodic_return",
        "result_json",
        "capabilities_json",
        "extras_json",
        "learning_json",
    }


def test_no_runs_is_an_empty_array(mosaic, fake_trainer):
    assert mosaic("runs", "--json").json == []
    assert "mosaic train" in mosaic("runs").err


def test_a_long_listing_shows_fifty_and_says_how_many_more(mosaic, fake_trainer):
    for number in range(53):
        fake_trainer.add(name=f"run-{number}")
    ended = mosaic("runs")
    assert len(ended.out.splitlines()) == 51
    assert "3 more runs; --all shows them" in ended.err
    assert len(mosaic("runs", "--all").out.splitlines()) == 54
    assert len(mosaic("runs", "-n", "2").out.splitlines()) == 3


def test_a_piped_listing_has_whole_ids_and_one_run_a_line(mosaic, fake_trainer):
    run = fake_trainer.add(status="INIT", outcome="", queue_reason="needs 2 CPUs,\n1 free")
    header, line = mosaic("runs").out.splitlines()
    assert header.split()[:3] == ["ID", "STATUS", "ALGO"]
    assert line.split()[:4] == [run.run_id, "queued", "ppo", "CartPole-v1"]
    assert line.endswith("needs 2 CPUs, 1 free")


def test_conditions_reach_the_daemon_in_its_names(mosaic, fake_trainer):
    mosaic("runs", "--status", "running,paused", "--status", "failed", "--tag", "a", "--text", "cart", "--archived")
    request = fake_trainer.asked[-1]
    assert list(request.statuses) == ["EXEC", "PAUSE"]
    assert list(request.outcomes) == ["failed"]
    assert (list(request.tags), request.text, request.include_archived, request.limit) == (["a"], "cart", True, 50)


def test_algo_means_the_algorithm_as_lists_show_it(mosaic, fake_trainer):
    own = fake_trainer.add(algo="dqn")
    script = fake_trainer.add(algo="my_ppo", extras_json='{"script_path": "/tmp/my_ppo.py"}')
    upstream = fake_trainer.add(algo="dqn", extras_json='{"script_path": "/tmp/dqn.py", "source": "upstream"}')
    shell = fake_trainer.add(extras_json='{"script_path": "/tmp/phases.sh", "mode": "custom_script"}')
    expected = {"dqn": own, "my_ppo.py": script, "my_ppo": script, "dqn (upstream)": upstream, "phases": shell}
    for message, run in expected.items():
        assert mosaic("runs", "--algo", message, "-q").out.split() == [run.run_id]


def test_deleting_a_sweep_says_that_its_trials_stay(mosaic, fake_trainer):
    sweep = fake_trainer.add(worker_type="sweep")
    fake_trainer.add(tags=[f"sweep:{sweep.run_id}"])
    ended = mosaic("delete", sweep.run_id, "-y")
    assert f"its trials are still there (1 run); `mosaic delete --tag sweep:{sweep.run_id}`" in ended.err


def test_deleting_a_run_says_which_run_continues_it(mosaic, fake_trainer, monkeypatch):
    first = fake_trainer.add()
    second = fake_trainer.add(parent=pb.ParentRun(run_id=first.run_id, step=10))
    said = f"1 run continues it and loses the beginning of its curves: {second.run_id}"
    Asked(monkeypatch, "n")
    assert said in mosaic("delete", first.run_id).err
    assert mosaic("delete", first.run_id, "-y").err.count(said) == 1
    assert "continues" not in mosaic("delete", second.run_id, "-y").err


def test_archive_says_what_it_did(mosaic, fake_trainer):
    run = fake_trainer.add()
    assert mosaic("archive", run.run_id).out == f"{run.run_id}  ppo CartPole-v1: archived\n"
    assert mosaic("archive", "--undo", run.run_id).out == f"{run.run_id}  ppo CartPole-v1: brought back\n"


def test_what_is_over_is_reported_as_such(mosaic, fake_trainer):
    run = fake_trainer.add(status="TERM", outcome="cancelled")
    said = mosaic("frames", run.run_id, "--output", "clip.mp4").err
    assert f"run {run.run_id[-8:]} has finished and draws nothing any more; it recorded no video" in said
    assert "never started" in mosaic("eval", run.run_id).err
    assert mosaic("ps", "-q").out.split() == [run.run_id]


# ---------------------------------------------------------------- clips

RED = pb.RunFrame(width=2, height=2, data=png(np.full((2, 2, 3), (255, 0, 0), np.uint8)))


@pytest.fixture
def ffmpeg(tmp_path, monkeypatch):
    """Put a script in the place of ffmpeg; it finds the clip's path in $clip."""

    def install(script: str) -> None:
        program = tmp_path / "bin" / "ffmpeg"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\nfor clip; do :; done\ncat >/dev/null\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return install


def test_a_clip_that_ffmpeg_could_not_write_is_no_success(mosaic, fake_trainer, ffmpeg, tmp_path):
    """ffmpeg ends with an error after it was given every frame: a full disk, or a codec that it lacks."""
    run = fake_trainer.add(status="EXEC", outcome="")
    fake_trainer.frames = [RED, RED]
    ffmpeg('echo torn > "$clip"; exit 1')
    clip = tmp_path / "clip.mp4"
    clip.write_text("mine")
    ended = mosaic("frames", run.run_id, "--out", str(clip), "--force")
    assert (ended.code, f"ffmpeg could not write {clip}" in ended.err) == (1, True), ended.err
    assert [path.name for path in tmp_path.glob("*clip*")] == ["clip.mp4"]
    assert clip.read_text() == "mine"


def test_a_clip_replaces_a_file_when_it_is_complete(mosaic, fake_trainer, ffmpeg, tmp_path):
    run = fake_trainer.add(status="EXEC", outcome="")
    fake_trainer.frames = [RED, RED]
    ffmpeg('echo film > "$clip"')
    clip = tmp_path / "clip.mp4"
    clip.write_text("mine")
    ended = mosaic("frames", run.run_id, "--out", str(clip), "--force")
    assert (ended.code, ended.err) == (0, f"{clip}: 2 frames\n")
    assert clip.read_text() == "film\n"
    assert [path.name for path in tmp_path.glob("*clip*")] == ["clip.mp4"]


@pytest.mark.parametrize("name", ["clip.gif", "clip.mp4"])
def test_a_file_outlives_a_recording_of_nothing(mosaic, fake_trainer, ffmpeg, tmp_path, name):
    run = fake_trainer.add(status="EXEC", outcome="")
    ffmpeg('echo film > "$clip"')
    (tmp_path / name).write_text("mine")
    ended = mosaic("frames", run.run_id, "--out", str(tmp_path / name), "--force")
    assert (ended.code, "drew no frame" in ended.err) == (1, True)
    assert (tmp_path / name).read_text() == "mine"


def test_filters_are_saved_used_listed_and_misspelt(mosaic, fake_trainer):
    assert mosaic("runs", "--tag", "a", "--status", "EXECUTING", "--save-filter", "mine").code == 0
    mosaic("runs", "--filter", "mine", "--text", "x")
    request = fake_trainer.asked[-1]
    assert (list(request.tags), list(request.statuses), request.text) == (["a"], ["EXEC"], "x")
    mosaic("runs", "--filter", "mine", "--tag", "b")
    assert set(fake_trainer.asked[-1].tags) == {"a", "b"}, "a condition must never widen a filter"
    assert "says which statuses already" in mosaic("delete", "--filter", "mine", "--status", "paused", "--yes").err
    listed = mosaic("runs", "--filters", "--json").json
    assert listed == [{"name": "mine", "query": {"statuses": ["EXEC"], "tags": ["a"]}}]
    assert "did you mean 'mine'?" in mosaic("runs", "--filter", "mien").err


def test_shared_options_may_stand_anywhere(mosaic, fake_trainer, home, monkeypatch, tmp_path):
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "elsewhere"))
    fake_trainer.add()
    assert mosaic("--home", str(tmp_path / "elsewhere"), "runs").code == 1
    for message in (["runs", "--home", str(home.root), "--json"], [f"--home={home.root}", "runs", "--json"]):
        assert len(mosaic(*message).json) == 1


def test_show_prints_everything_in_lines(mosaic, fake_trainer):
    fake_trainer.add(
        status="TERM",
        outcome="failed",
        reason="killed by SIGSEGV",
        notes="first\nsecond",
        cpus=2,
        gpus=1,
        gpu_ids=["0"],
        memory_mb=2048,
        retries=2,
        attempt=3,
        size_bytes=5 << 20,
        parent=pb.ParentRun(run_id="P", step=1000),
        result_json='{"evaluation": {"mean_return": 498.25, "std_return": 2, "episodes": 20}}',
    )
    out = mosaic("show", "last").out
    for expected in (
        "killed by SIGSEGV",
        "2 CPUs, 1 GPU (0), at most 2.0 GiB of memory",
        "3 of 3",
        "5.0 MiB",
        "P from step 1,000",
        "mean return 498.2 ± 2 over 20 episodes",
    ):
        assert expected in out
    assert "first\n            second\n" in out


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "51 of 100 (100%)"),  # a script may count otherwise
        ({"result_json": '{"stopped_early": "enough"}'}, "51 of 100 (51%)"),
        ({"worker_type": "sweep"}, "51 of 100 (51%)"),  # its time was up
        ({"outcome": "cancelled"}, "51 of 100 (51%)"),
    ],
)
def test_a_completed_run_is_at_a_hundred_percent_unless_it_stopped_early(mosaic, fake_trainer, fields, expected):
    fake_trainer.add(**{"step": 51, "total": 100, **fields})
    assert expected in mosaic("show", "last").out


def test_a_delete_that_loses_its_daemon_says_how_far_it_came(mosaic, fake_trainer, monkeypatch):
    ids = [fake_trainer.add().run_id for _ in range(3)]
    answer = fake_trainer._answer

    def die_after_one(request, context):
        if len(fake_trainer.runs) < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return answer(request, context)

    monkeypatch.setattr(fake_trainer, "_answer", die_after_one)
    ended = mosaic("delete", "--yes", *ids)
    assert ended.code == 1
    assert "deleted 1 of 3 runs; the same command deletes the rest" in ended.err


@pytest.mark.parametrize("sps", [5e-324, 1e-300, 1e308, float("inf"), float("nan")])
def test_a_meaningless_speed_gives_no_time_left(mosaic, fake_trainer, sps):
    fake_trainer.add(status="EXEC", outcome="", step=5, total=100, sps=sps, created_at=1e300, started_at=1)
    ended = mosaic("show", "last")
    assert (ended.code, "to go" in ended.out and sps < 1) == (0, False)


def test_an_unknown_and_an_ambiguous_run_are_bad_input(mosaic, fake_trainer):
    fake_trainer.add(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    fake_trainer.add(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAW")
    unknown, ambiguous = mosaic("show", "zzzz"), mosaic("cancel", "01AR")
    assert (unknown.code, ambiguous.code) == (2, 2)
    assert "there is no run 'zzzz'" in unknown.err
    assert "matches 2 runs" in ambiguous.err


def test_one_run_that_cannot_be_cancelled_does_not_keep_the_others_from_it(mosaic, fake_trainer):
    over = fake_trainer.add()
    going = fake_trainer.add(status="EXEC", outcome="")
    ended = mosaic("cancel", over.run_id, going.run_id)
    assert ended.code == 1
    assert f"cannot cancel {over.run_id[-8:]}: it has ended already" in ended.err
    assert f"{going.run_id}  ppo CartPole-v1: cancelling" in ended.out


def test_pause_resume_and_extend_ask_for_the_right_thing(mosaic, fake_trainer):
    run = fake_trainer.add(status="EXEC", outcome="", step=500)
    assert mosaic("pause", "--release", run.run_id).code == 0
    assert fake_trainer.asked[-1] == pb.PauseRunRequest(run_id=run.run_id, release=True)
    ended = mosaic("extend", run.run_id, "--timesteps", "10k")
    assert fake_trainer.asked[-1].additional_timesteps == 10_000
    assert f"continues {run.run_id[-8:]}" in ended.out
    assert ": extended, continues" in ended.out
    ended = mosaic("resume", run.run_id, "--checkpoint", "checkpoints/step-5")
    assert fake_trainer.asked[-1].checkpoint == "checkpoints/step-5"
    assert ": resumed, continues" in ended.out


def test_the_end_of_a_run_names_its_newest_videos(mosaic, fake_trainer, tmp_path):
    run = fake_trainer.add(run_dir=str(tmp_path))
    videos = tuple(f"videos/rl-video-episode-{number}.mp4" for number in range(5))
    AnalyticsManifest(run.run_id, videos=videos).write(RunFolder(tmp_path).manifest)
    out = mosaic("watch", run.run_id).out
    assert f"videos      {tmp_path / videos[2]}" in out
    assert str(tmp_path / videos[4]) in out
    assert str(tmp_path / videos[1]) not in out


def test_tags_are_added_and_removed_in_one_go(mosaic, fake_trainer):
    run = fake_trainer.add()
    assert mosaic("tag", run.run_id, "+baseline", "-draft", "--add", "two").code == 0
    request = fake_trainer.asked[-1]
    assert (sorted(request.add_tags), list(request.remove_tags)) == (["baseline", "two"], ["draft"])


def test_a_bare_word_after_the_run_is_a_tag_and_an_id_is_a_run(mosaic, fake_trainer):
    first, second = fake_trainer.add(), fake_trainer.add()
    assert mosaic("tag", "last", "good", "dead").code == 0
    assert (fake_trainer.asked[-1].run_id, list(fake_trainer.asked[-1].add_tags)) == (second.run_id, ["good", "dead"])
    assert mosaic("tag", first.run_id, second.run_id[-8:], "good").code == 0
    assert [request.run_id for request in fake_trainer.asked[-2:] if list(request.add_tags) == ["good"]] == [
        first.run_id,
        second.run_id,
    ]
    assert mosaic("tag", "last").out.startswith(second.run_id[-8:])  # its tags, and nothing changes


def test_a_name_is_a_handle_and_several_runs_of_a_name_are_listed_newest_first(mosaic, fake_trainer):
    run = fake_trainer.add(name="my-run", status="EXEC", outcome="")
    fake_trainer.add(name="my-run-2")
    assert mosaic("pause", "my-run").code == 0
    assert fake_trainer.asked[-1].run_id == run.run_id
    namesake = fake_trainer.add(name="my-run")
    ended = mosaic("show", "my-run")
    assert ended.code == 2
    assert f"matches 2 runs: {namesake.run_id}, {run.run_id}" in ended.err
    fake_trainer.add(name=run.run_id[-8:])  # a user named it like an id: the id wins
    assert mosaic("show", run.run_id[-8:], "--json").json[0]["run_id"] == run.run_id


def test_runs_are_narrowed_sorted_limited_and_listed_as_ids(mosaic, fake_trainer):
    low = fake_trainer.add(episodic_return=10.0)
    fake_trainer.add(algo="dqn", episodic_return=99.0)
    fake_trainer.add(env_id="Acrobot-v1", episodic_return=50.0)
    unknown, high = fake_trainer.add(), fake_trainer.add(episodic_return=20.0)
    narrowed = ("runs", "--algo", "ppo", "--env", "CartPole*", "-q")
    assert mosaic(*narrowed).out.split() == [high.run_id, unknown.run_id, low.run_id]
    assert mosaic(*narrowed, "--sort", "return").out.split() == [high.run_id, low.run_id, unknown.run_id]
    assert mosaic(*narrowed, "--sort", "created", "--reverse", "--limit", "2").out.split() == [
        low.run_id,
        unknown.run_id,
    ]
    assert mosaic("runs", "--sort", "algo", "-n", "1", "--json").json[0]["algo"] == "dqn"
    assert mosaic("runs", "--algo", "dqn", "--save-filter", "deep").code == 0
    assert len(mosaic("runs", "--filter", "deep", "-q").out.split()) == 1


class Asked:
    """A terminal whose user answers like this."""

    def __init__(self, monkeypatch, answer: str) -> None:
        self.questions: list[str] = []
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.confirm", lambda text, **_: self.questions.append(text) or answer == "y")


@pytest.mark.parametrize("command", ["delete", "archive", "cancel", "tag"])
def test_a_command_that_changes_runs_never_takes_all_of_them(mosaic, fake_trainer, command):
    fake_trainer.add()
    for message in ([command], [command, "--limit", "5"], [command, "--yes"]):
        ended = mosaic(*message)
        assert ended.code == 2
        assert "which runs?" in ended.err
    ended = (
        mosaic(command, "last", "--algo", "ppo", "--add", "x")
        if command == "tag"
        else mosaic(command, "last", "--algo", "ppo")
    )
    assert "not both" in ended.err


def test_runs_chosen_by_conditions_are_counted_and_confirmed(mosaic, fake_trainer, monkeypatch):
    for _ in range(3):
        fake_trainer.add(algo="dqn")
    going, kept = fake_trainer.add(algo="dqn", status="EXEC", outcome=""), fake_trainer.add()
    ended = mosaic("delete", "--algo", "dqn")
    assert ended.code == 2
    assert "this would delete 3 runs; --yes says that you mean it" in ended.err
    assert "left out: 1 run (not finished)" in ended.err
    no = Asked(monkeypatch, "n")
    ended = mosaic("delete", "--algo", "dqn")
    assert (ended.code, len(fake_trainer.runs)) == (1, 5)
    assert no.questions == ["Delete 3 runs (0 B) for good?"]
    yes = Asked(monkeypatch, "y")
    assert mosaic("archive", "--algo", "dqn", "--env", "CartPole-v1").code == 0
    assert mosaic("cancel", "--algo", "dqn").code == 0
    assert mosaic("tag", "--algo", "dqn", "old").code == 0
    assert mosaic("delete", "--outcome", "completed", "--algo", "dqn").code == 0
    assert yes.questions == ["Archive 3 runs?", "Cancel 1 run?", "Tag 4 runs?", "Delete 3 runs (0 B) for good?"]
    assert {run.run_id for run in fake_trainer.runs} == {going.run_id, kept.run_id}
    assert (going.flags, going.tags, kept.tags) == (["cancelling"], ["old"], [])


def test_notes_are_written_appended_and_printed(mosaic, fake_trainer):
    run = fake_trainer.add()
    mosaic("note", run.run_id, "looks", "good")
    mosaic("note", run.run_id, "--append", "really")
    assert mosaic("note", run.run_id).out == "looks good\nreally\n"


def test_names_and_priorities_may_be_anything_sensible(mosaic, fake_trainer):
    run = fake_trainer.add(status="INIT", outcome="")
    assert "new name" in mosaic("rename", run.run_id, "new name").out
    assert mosaic("priority", run.run_id, "-5").code == 0
    assert fake_trainer.asked[-1].priority == -5


def test_an_export_is_a_whole_file_and_is_not_overwritten(mosaic, fake_trainer, tmp_path):
    run, target = fake_trainer.add(), tmp_path / "run.tar.gz"
    assert mosaic("export", run.run_id, "-o", str(target)).code == 0
    assert target.read_bytes() == b"onetwo"
    assert mosaic("export", run.run_id, "-o", str(target)).code == 2
    assert mosaic("export", run.run_id, "-o", str(target), "--force").code == 0
    assert [path.name for path in tmp_path.glob("*.gz*")] == ["run.tar.gz"]
    assert mosaic("import", str(target)).code == 0
    assert fake_trainer.runs[0].name == "onetwo"


def test_delete_wants_a_yes(mosaic, fake_trainer, monkeypatch, tmp_path):
    run = fake_trainer.add(size_bytes=2048)
    with (tmp_path / "empty").open("w+") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        ended = mosaic("delete", run.run_id)
    assert ended.code == 2
    assert "2.0 KiB" in ended.err
    assert len(fake_trainer.runs) == 1
    assert "freed 2.0 KiB" in mosaic("delete", run.run_id, "--yes").err
    assert fake_trainer.runs == []


def test_the_history_is_printed_in_order(mosaic, fake_trainer):
    run = fake_trainer.add()
    fake_trainer.stories[run.run_id] = [
        pb.StoryEvent(seq=1, kind="submitted", to_status="INIT", timestamp=1e9, attempt=1),
        pb.StoryEvent(seq=2, kind="faulted", from_status="INIT", to_status="FAULT", reason="no GPU", attempt=1),
    ]
    lines = mosaic("story", "last").out.splitlines()
    assert lines[1].endswith("submitted  INIT")
    assert lines[2].endswith("faulted    INIT → FAULT  no GPU")
    assert [event["to"] for event in mosaic("story", "last", "--json").json] == ["INIT", "FAULT"]


def test_logs_of_several_streams_have_headings(mosaic, fake_trainer):
    fake_trainer.add()
    fake_trainer.logs = {"stdout": b"one\ntwo\nthree\n", "stderr": b"oh no\n"}
    assert mosaic("logs", "last").out == "==> stdout <==\none\ntwo\nthree\n\n==> stderr <==\noh no\n"
    assert mosaic("logs", "last", "--stream", "stdout", "--tail", "2").out == "two\nthree\n"
    assert mosaic("logs", "last", "--stream", "stdout", "--tail", "0").out == ""


def test_following_logs_begins_at_the_asked_line_and_ends_with_the_stream(mosaic, fake_trainer):
    fake_trainer.add(status="EXEC", outcome="")
    fake_trainer.logs = {"stdout": b"".join(b"line %d\n" % number for number in range(100))}
    assert mosaic("logs", "last", "-f", "--stream", "stdout", "--tail", "2").out == "line 98\nline 99\n"


def test_workers_and_algorithms_are_listed(mosaic, fake_trainer):
    workers = mosaic("workers", "--json").json
    assert [worker["name"] for worker in workers] == ["cleanrl", "broken"]
    assert workers[1]["problem"] == "it does not start"
    assert "random" in mosaic("workers", "--all").out
    assert [algo["name"] for algo in mosaic("algos", "--json").json] == ["ppo", "dqn", "script"]
    wrong = mosaic("algos", "--env", "CartPol-v1")
    assert wrong.code == 2
    assert "did you mean 'CartPole-v1'?" in wrong.err


def test_environments_are_listed_by_family_and_text(mosaic, fake_trainer):
    listed = mosaic("envs", "--json").json
    assert {entry["env_id"] for entry in listed} >= {"CartPole-v1", "Acrobot-v1", "LunarLander-v3"}
    assert [entry["env_id"] for entry in mosaic("envs", "--family", "box2d", "--json").json] == ["LunarLander-v3"]
    assert mosaic("envs", "--search", "acro").out.splitlines()[1].split() == ["Acrobot-v1", "Classic", "control"]
    ended = mosaic("envs", "--family", "chess")
    assert (ended.code, "there is no family 'chess'; there are Classic control, Box2D" in ended.err) == (2, True)


def test_the_daemons_state_has_its_pid(mosaic, fake_trainer):
    status = mosaic("daemon", "status", "--json").json
    assert status["running"] is True
    assert status["pid"] > 0
    assert "1.5 of 2 free" in mosaic("daemon", "status").out


def test_a_daemon_that_does_not_run_is_status_1(mosaic):
    ended = mosaic("daemon", "status", "--json")
    assert ended.code == 1
    assert ended.json["running"] is False
    assert ended.json["pid"] is None
    assert mosaic("daemon", "stop").code == 0


def test_doctor_finds_a_token_that_others_can_read(mosaic, fake_trainer, home):
    home.token.chmod(0o644)
    ended = mosaic("doctor", "--json")
    assert ended.code == 1
    findings = {finding["name"]: finding for finding in ended.json if finding["state"] == "broken"}
    assert "mode 0644, expected 0600" in findings["permissions"]["text"]
    assert "chmod" in findings["permissions"]["cure"]
    assert "✗ permissions" in mosaic("doctor").out


def test_doctor_finds_a_home_that_cannot_be_written(mosaic, tmp_path):
    (tmp_path / "file").write_text("")
    ended = mosaic("--home", str(tmp_path / "file"), "doctor", "--json")
    assert ended.code == 1
    assert any(finding["name"] == "home" and finding["state"] == "broken" for finding in ended.json)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(mosaic, shell):
    assert "_MOSAIC_COMPLETE" in mosaic("completion", shell).out


def test_run_ids_are_completed(mosaic, fake_trainer, monkeypatch):
    run = fake_trainer.add()
    monkeypatch.setenv("_MOSAIC_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "mosaic show ")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert f"plain,{run.run_id[-8:]}" in mosaic().out


def test_the_version_is_reported(mosaic):
    assert mosaic("--version").out == "mosaic 0.1.0\n"
    assert mosaic("version", "--json").json["protocol_version"] == 1
