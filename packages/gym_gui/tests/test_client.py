"""The client against a real gRPC server: typed errors, abbreviated ids, streams, and daemons that do not answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.services.trainer import client as client_module
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import (
    AmbiguousRunId,
    DaemonUnreachable,
    InvalidConfig,
    NotAllowed,
    NotPossibleNow,
    RunNotFound,
    TrainerError,
)
from gym_gui.services.trainer.local_daemon import DaemonRecord, read_token, start_daemon
from gym_gui.services.trainer.process_tree import ProcessIdentity, process_state
from mosaic_wire.files import write_json_atomically
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

WORKER_CONFIG = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 9}
CONFIG = {"metadata": {"worker": {"type": "cleanrl", "config": WORKER_CONFIG}}}


@pytest.fixture
def client(fake_trainer, home: Home) -> Iterator[TrainerClient]:
    with TrainerClient.connect(home) as client:
        yield client


def test_a_submitted_run_is_returned_and_found(client):
    run = client.submit(CONFIG, idempotency_key="k").run
    assert run.status == "INIT"
    assert client.get(run.run_id).env_id == "CartPole-v1"


def test_the_example_of_the_module_runs_as_it_is_written(fake_trainer, home, capsys):
    def become_done(run: pb.Run) -> Iterator[pb.Run]:
        yield pb.Run(status="EXEC", step=5)
        yield pb.Run(status="TERM", outcome="completed", step=9)

    fake_trainer.on_watch = become_done
    lines = (client_module.__doc__ or "").splitlines()
    example = "\n".join(line[4:] for line in lines if line.startswith("    "))
    assert "start_daemon(home)" in example
    exec(compile(example, "example", "exec"), {"config": CONFIG})  # it is our own docstring
    assert capsys.readouterr().out == "EXEC 5 / 9\nTERM 9 / 9\ncompleted\n"


def test_an_invalid_config_lists_its_problems(client):
    with pytest.raises(InvalidConfig, match="Did you mean 'cleanrl'") as caught:
        client.submit({})
    assert [problem.path for problem in caught.value.problems] == ["metadata.worker.type"]


def test_an_unknown_run_is_a_RunNotFound_with_its_id(client):
    with pytest.raises(RunNotFound, match="there is no run '01ARZ3NDEKTSV4RRFFQ69G5FAV'") as caught:
        client.get("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert caught.value.run_id == "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def test_a_refusal_keeps_the_daemons_sentence(client, fake_trainer):
    run = fake_trainer.add()
    with pytest.raises(NotPossibleNow, match="it has ended already"):
        client.cancel(run.run_id)


def test_a_wrong_token_is_not_allowed(fake_trainer, home):
    with (
        TrainerClient(f"unix:{home.socket}", "wrong") as stranger,
        pytest.raises(NotAllowed, match="a token is needed"),
    ):
        stranger.health()


@pytest.mark.expects_log("Method not implemented")
def test_a_request_that_the_daemon_does_not_know_says_what_to_do(client):
    with pytest.raises(TrainerError, match="of another version"):
        client.delete_filter("x")


@pytest.mark.parametrize("word", ["last", "@"])
def test_the_newest_run_has_a_word_of_its_own(client, fake_trainer, word):
    fake_trainer.add()
    newest = fake_trainer.add()
    assert client.find(word).run_id == newest.run_id


def test_the_last_run_is_the_one_the_user_started(client, fake_trainer):
    started = fake_trainer.add(worker_type="cleanrl", extras_json='{"mode": "resume_training"}')
    fake_trainer.add(extras_json='{"mode": "policy_eval", "eval_policy": "random"}', archived=True)  # a baseline
    fake_trainer.add(extras_json='{"mode": "interactive"}')  # a policy is watched
    fake_trainer.add(worker_type="human", algo="human")
    for _ in range(30):
        fake_trainer.add(submitted_by=started.run_id)  # trials of a sweep
    imported = fake_trainer.add(worker_type="cleanrl")
    fake_trainer.stories[imported.run_id] = [pb.StoryEvent(kind="imported")]
    assert client.find("last").run_id == started.run_id


def test_the_word_for_the_newest_run_fails_clearly_without_runs(client):
    with pytest.raises(RunNotFound, match="'last'"):
        client.find("last")


def test_a_run_is_found_by_its_beginning_and_by_its_end_in_any_case(client, fake_trainer):
    fake_trainer.add(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    expected = fake_trainer.add(run_id="01BX5ZZKBKACTAV9WEVGEMMVRZ")
    for abbreviation in ("01B", "01bx5zz", "MVRZ", "vgemmvrz", expected.run_id, expected.run_id.lower()):
        assert client.find(abbreviation).run_id == expected.run_id


def test_an_abbreviation_that_fits_several_runs_names_them(client, fake_trainer):
    fake_trainer.add(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    fake_trainer.add(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAW")
    with pytest.raises(AmbiguousRunId, match=r"matches 2 runs.*5FAW.*5FAV"):
        client.find("01ARZ")


@pytest.mark.parametrize("word", ["FAV", "../../etc", "", "%", "01ARZ3NDEKTSV4RRFFQ69G5FAVX"])
def test_too_short_an_end_and_nonsense_find_nothing(client, fake_trainer, word):
    fake_trainer.add(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(RunNotFound):
        client.find(word)


def test_an_update_leaves_out_what_was_not_given(client, fake_trainer):
    run = fake_trainer.add(notes="old")
    assert client.update(run.run_id, name="new", add_tags=["a"]).name == "new"
    request = fake_trainer.asked[-1]
    assert request.HasField("name")
    assert not request.HasField("notes")
    assert not request.HasField("priority")


def test_one_string_in_place_of_several_is_refused(client, fake_trainer):
    with pytest.raises(TypeError, match="'baseline'"):
        client.update(fake_trainer.add().run_id, add_tags="baseline")


def test_archives_travel_in_pieces(client, fake_trainer, tmp_path):
    run = fake_trainer.add()
    with client.export(run.run_id) as chunks:
        assert b"".join(chunk.data for chunk in chunks) == b"onetwo"
    archive = tmp_path / "run.tar.gz"
    archive.write_bytes(b"x" * 3_000_000)
    assert client.import_archive(archive).name == "x" * 3_000_000


def test_a_cancelled_stream_ends_without_an_error(client, fake_trainer):
    fake_trainer.add(status="EXEC", outcome="")
    updates = client.watch()
    updates.cancel()
    assert list(updates) == []


def test_saved_filters_come_back_as_they_were(client):
    client.save_filter("mine", {"tags": ["a"], "text": "ppo"})
    assert client.filters() == {"mine": {"tags": ["a"], "text": "ppo"}}


def test_no_daemon_says_how_to_start_one(home):
    with pytest.raises(DaemonUnreachable, match="mosaic daemon start"):
        TrainerClient.connect(home)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_damaged_record_counts_as_none(home, damage):
    home.create()
    home.daemon_record.write_text(damage)
    assert DaemonRecord.read(home) is None
    with pytest.raises(DaemonUnreachable, match="mosaic daemon start"):
        TrainerClient.connect(home)


def test_the_record_of_a_killed_daemon_is_not_believed(home):
    home.create()
    identity = ProcessIdentity.of(os.getpid())
    # Another process has the pid by now: it started at another time.
    write_json_atomically(
        home.daemon_record, {"pid": identity.pid, "start_ticks": identity.start_ticks - 1, "boot_id": identity.boot_id}
    )
    with pytest.raises(DaemonUnreachable, match="no trainer daemon runs"):
        TrainerClient.connect(home)


def test_a_daemon_that_went_away_is_unreachable_at_the_next_call(client, fake_trainer, home):
    client.health()
    fake_trainer.closing.set()
    home.daemon_record.unlink()
    with pytest.raises(DaemonUnreachable), TrainerClient("unix:/nowhere.sock", "t", timeout_s=2) as nobody:
        nobody.health()


def test_a_stopped_daemon_is_named_as_stopped_after_the_timeout(home):
    home.create()
    home.token.write_text("t")
    silent = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
        "print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", silent, str(home.socket)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            identity = ProcessIdentity.of(process.pid)
            record = {"pid": process.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
            write_json_atomically(home.daemon_record, {**record, "unix": str(home.socket)})
            with TrainerClient.connect(home, timeout_s=0.5) as client:
                with pytest.raises(DaemonUnreachable, match=r"runs but did not answer within 0.5 s"):
                    client.health()
                process.send_signal(signal.SIGSTOP)
                assert wait_until(lambda: process_state(process.pid) == "T")
                with pytest.raises(DaemonUnreachable, match=f"is stopped by a signal .* `kill -CONT {process.pid}`"):
                    client.health()
        finally:
            process.kill()


def test_a_token_never_travels_in_the_clear_to_another_machine():
    with pytest.raises(NotAllowed, match="--tls-ca"):
        TrainerClient("192.0.2.1:50055", "secret")
    for target in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/x.sock"):
        TrainerClient(target, "secret").close()


def test_a_missing_certificate_is_named(tmp_path):
    with pytest.raises(NotAllowed, match=r"ca\.pem"):
        TrainerClient("192.0.2.1:50055", "secret", tls_ca=tmp_path / "ca.pem")


def test_another_users_token_is_not_allowed(home):
    home.create()
    home.token.mkdir()  # unreadable for everybody, root included
    with pytest.raises(NotAllowed, match="another user's home"):
        read_token(home)


def test_a_daemon_that_cannot_start_shows_its_last_output(home):
    with pytest.raises(DaemonUnreachable, match=r"could not start \(exit code 2\)(.|\n)*--no-such-option"):
        start_daemon(home, 60, options=["--no-such-option"])


def test_a_home_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match=r"cannot use .*file/home as MOSAIC's home"):
        start_daemon(Home(tmp_path / "file" / "home"))


def test_the_lock_of_starting_clients_is_not_the_daemons(fake_trainer, home):
    started = start_daemon(home)
    assert started.already_running
    assert started.pid == os.getpid()
    assert not home.lock.exists()
    assert json.loads(home.daemon_record.read_text())["pid"] == os.getpid()


def test_the_log_of_an_earlier_daemon_is_not_reported_again(home: Home, tmp_path: Path):
    home.create()
    home.daemon_log.write_text("old trouble\n")
    with pytest.raises(DaemonUnreachable) as caught:
        start_daemon(home, 60, options=["--no-such-option"])
    assert "old trouble" not in str(caught.value)
