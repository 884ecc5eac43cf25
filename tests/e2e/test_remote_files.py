"""A client without the daemon's disk: files of runs over TLS, resumed, verified, bounded, and never from elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from gym_gui.cli import main
from gym_gui.config.settings import change_settings, load_settings
from gym_gui.services.trainer import run_copies
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import NotAllowed, RunNotFound, TrainerError
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.services.trainer.programs import argv_of
from gym_gui.services.trainer.run_copies import DOCUMENTS, RunCopies
from gym_gui.testing import RunningDaemon, certificate
from gym_gui.ui.workers.requirement_sets import list_sets
from gym_gui.validations.worker_questions import ask_worker
from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import EXTRAS, WorkerSpec

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A daemon that listens with TLS, and a finished run of it."""
    folder = tmp_path_factory.mktemp("server")
    cert, key = certificate(folder, "server")
    settings = {**QUICK, "listen": "127.0.0.1", "tls_cert": str(cert), "tls_key": str(key)}
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=settings) as daemon:
        run = daemon.wait_for(daemon.submit(timesteps=50).run_id)
        record = running_record(daemon.home)
        assert record is not None
        token = daemon.home.token.read_text().strip()
        token_file = folder / "token"
        token_file.write_text(token)
        yield SimpleNamespace(daemon=daemon, run=run, address=record.tcp, ca=cert, token=token, token_file=token_file)


@pytest.fixture(autouse=True)
def another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may not read the daemon's token, as on another machine, and has a home and a cache of its own."""

    def refuse(home: Home) -> str:
        raise NotAllowed(f"cannot read {home.token}")

    monkeypatch.setattr(run_copies, "read_token", refuse)
    monkeypatch.setenv(env.MOSAIC_CACHE_HOME, str(tmp_path / "cache"))
    monkeypatch.setenv(env.MOSAIC_HOME, str(tmp_path / "own-home"))


@pytest.fixture
def client(server: SimpleNamespace) -> Iterator[TrainerClient]:
    with TrainerClient(server.address, server.token, tls_ca=server.ca, timeout_s=30) as client:
        yield client


def folder_of(server: SimpleNamespace) -> Path:
    return Path(server.run.run_dir)


def read(client: TrainerClient, run_id: str, path: str, offset: int = 0) -> list[pb.FilePiece]:
    return list(client.read_files(run_id, {path: offset}))


# ---------------------------------------------------------------------- the calls


def test_every_file_of_a_run_is_listed_and_read_with_its_hash(server, client) -> None:
    listed = {file.path: file for file in client.list_files(server.run.run_id).files}
    assert {"config/config.json", "run/analytics.json", "run/exit.json", "logs/stdout.log"} <= set(listed)
    for path, pieces in ((path, read(client, server.run.run_id, path)) for path in listed):
        data = b"".join(piece.data for piece in pieces)
        assert len(data) == listed[path].size == pieces[-1].size, path
        assert pieces[-1].sha256 == hashlib.sha256(data).hexdigest(), path
        assert not any(piece.problem for piece in pieces)
    assert (folder_of(server) / "exit.json").read_bytes() == b"".join(
        piece.data for piece in read(client, server.run.run_id, "run/exit.json")
    )


def test_a_pattern_lists_only_what_matches(server, client) -> None:
    listed = client.list_files(server.run.run_id, ["config/*", "run/exit.json"]).files
    assert {file.path for file in listed} == {"config/config.json", "config/worker.json", "run/exit.json"}


def test_a_large_file_is_read_in_pieces_from_an_offset_on(server, client) -> None:
    content = os.urandom(1_500_000)
    (folder_of(server) / "large.bin").write_bytes(content)
    pieces = read(client, server.run.run_id, "run/large.bin", 700_000)
    assert len(pieces) > 1
    assert pieces[0].offset == 700_000
    assert b"".join(piece.data for piece in pieces) == content[700_000:]
    assert pieces[-1].sha256 == hashlib.sha256(content).hexdigest()
    assert read(client, server.run.run_id, "run/large.bin", 1_500_001)[0].offset == 0, "it is shorter: from the start"


@pytest.mark.parametrize(
    "path",
    ["run/../../token", "run//etc/passwd", "/etc/passwd", "run/link", "run/folder/passwd", "token", "run", "run/pipe"],
)
def test_nothing_outside_of_the_run_is_read(server, client, path: str) -> None:
    folder = folder_of(server)
    for link, target in (("link", "/etc/passwd"), ("folder", "/etc")):
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(target)
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    pieces = read(client, server.run.run_id, path)
    assert [piece.data for piece in pieces] == [b""]
    assert pieces[0].problem
    listed = {file.path for file in client.list_files(server.run.run_id).files}
    assert listed.isdisjoint({"run/link", "run/folder/passwd", "run/pipe"})


def test_files_of_an_unknown_run_are_refused_by_name(client) -> None:
    with pytest.raises(RunNotFound):
        client.list_files("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(RunNotFound):
        read(client, "01ARZ3NDEKTSV4RRFFQ69G5FAV", "run/exit.json")


# ---------------------------------------------------------------------- the copies


def test_copies_are_laid_out_as_a_home_and_fetched_once(server, client, monkeypatch) -> None:
    here = client.local(server.run, *DOCUMENTS)
    assert here.run_dir != server.run.run_dir
    assert (Path(here.run_dir) / "exit.json").read_bytes() == (folder_of(server) / "exit.json").read_bytes()
    config = Path(here.run_dir).parent.parent / "configs" / f"config-{server.run.run_id}.json"
    assert json.loads(config.read_text())["metadata"]["worker"]["type"] == "random"
    monkeypatch.setattr(client, "read_files", lambda *_: pytest.fail("nothing has changed"))
    client.local(server.run, *DOCUMENTS)


def test_a_file_that_grew_is_continued_and_one_that_is_gone_is_removed(server, client, monkeypatch) -> None:
    file = folder_of(server) / "growing.txt"
    file.write_bytes(b"one\n")
    copy = Path(client.local(server.run, "run/growing.txt").run_dir) / "growing.txt"
    assert copy.read_bytes() == b"one\n"
    with file.open("ab") as stream:
        stream.write(b"two\n")
    offsets = []
    read_files = client.read_files
    monkeypatch.setattr(client, "read_files", lambda run, files: (offsets.append(files), read_files(run, files))[1])
    client.local(server.run, "run/growing.txt")
    assert copy.read_bytes() == b"one\ntwo\n"
    assert offsets == [{"run/growing.txt": 4}]
    file.write_bytes(b"another beginning, and longer\n")  # not what the copy begins with: read from its beginning
    client.local(server.run, "run/growing.txt")
    assert copy.read_bytes() == b"another beginning, and longer\n"
    file.unlink()
    client.local(server.run, "run/growing.txt")
    assert not copy.exists()


def test_a_fetch_that_was_cut_short_is_resumed(server, client, monkeypatch) -> None:
    content = os.urandom(1_200_000)
    (folder_of(server) / "cut.bin").write_bytes(content)
    read_files = client.read_files

    def cut(run_id: str, files: dict[str, int]) -> Iterator[pb.FilePiece]:
        yield next(read_files(run_id, files))
        raise TrainerError("the link broke")

    monkeypatch.setattr(client, "read_files", cut)
    with pytest.raises(TrainerError, match="the link broke"):
        client.local(server.run, "run/cut.bin")
    offsets: list[dict[str, int]] = []
    monkeypatch.setattr(client, "read_files", lambda run, files: (offsets.append(files), read_files(run, files))[1])
    copy = Path(client.local(server.run, "run/cut.bin").run_dir) / "cut.bin"
    assert copy.read_bytes() == content
    assert offsets[0]["run/cut.bin"] > 0


def test_what_is_only_listed_has_name_and_size_and_is_no_content(server, client) -> None:
    (folder_of(server) / "videos").mkdir(exist_ok=True)
    (folder_of(server) / "videos" / "one.mp4").write_bytes(b"film")
    here = client.local(server.run, listed=("run/videos/*",))
    copy = Path(here.run_dir) / "videos" / "one.mp4"
    assert copy.stat().st_size == 4
    assert copy.stat().st_mode & 0o777 == 0
    assert client.copies.name_of(server.run.run_id, copy) == "run/videos/one.mp4"
    client.local(server.run, "run/videos/one.mp4")
    assert copy.read_bytes() == b"film"


def test_a_fetched_file_that_is_only_listed_later_keeps_its_content(server, client) -> None:
    file = folder_of(server) / "kept.txt"
    file.write_text("one")
    copy = Path(client.local(server.run, "run/kept.txt").run_dir) / "kept.txt"
    file.write_text("one and two")
    client.local(server.run, listed=("run/*",))
    assert copy.read_text() == "one"
    client.local(server.run, "run/kept.txt", listed=("run/*",))
    assert copy.read_text() == "one and two"


def test_a_hostile_daemon_writes_nothing_outside_of_the_copies(server, client, monkeypatch, tmp_path) -> None:
    evil = pb.ListRunFilesResponse(files=[pb.RunFile(path="run/../../../../../evil", size=1, modified_ns=1)])
    monkeypatch.setattr(client, "list_files", lambda *_: evil)
    with pytest.raises(TrainerError, match="outside of the run"):
        client.local(server.run, "run/*")
    assert not list(tmp_path.rglob("evil"))


def test_the_copies_are_bounded_and_the_oldest_go_first(server, client) -> None:
    other = server.daemon.wait_for(server.daemon.submit(timesteps=5).run_id)
    for run in (server.run, other):
        (Path(run.run_dir) / "block.bin").write_bytes(os.urandom(300_000))
    copies = RunCopies(client, server.token, limit_bytes=500_000)
    part = copies.home.cache / f"{other.run_id}-0123.part"
    first = Path(copies.local(other, "run/block.bin").run_dir)
    part.write_bytes(bytes(10))  # of a fetch that was given up
    second = Path(copies.local(server.run, "run/block.bin").run_dir)
    assert not (first / "block.bin").exists()
    assert not part.exists()
    assert (second / "block.bin").exists()
    (Path(server.run.run_dir) / "block.bin").write_bytes(os.urandom(600_000))
    with pytest.raises(TrainerError, match="mosaic export"):
        copies.local(server.run, "run/block.bin")


def test_a_daemon_of_this_user_on_this_machine_needs_no_copies(server, monkeypatch) -> None:
    monkeypatch.undo()
    with TrainerClient(server.address, server.token, tls_ca=server.ca, timeout_s=30) as client:
        assert client.local(server.run, "run/*") is server.run


# ---------------------------------------------------------------------- commands


def test_commands_read_a_runs_files_through_the_daemon(server, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared = ["--connect", server.address, "--tls-ca", str(server.ca), "--token-file", str(server.token_file)]

    def mosaic(*words: str) -> str:
        with pytest.raises(SystemExit) as exit_:
            main([*shared, *words])
        captured = capsys.readouterr()
        assert not exit_.value.code, captured.err
        return captured.out

    run_id = server.run.run_id
    cloned = json.loads(mosaic("clone", run_id, "--print"))
    assert cloned["metadata"]["worker"]["config"]["total_timesteps"] == 50
    assert json.loads(mosaic("show", run_id, "--json"))[0]["provenance"]["versions"]
    mosaic("report", run_id, "--out", "report.html", "--no-baseline")
    assert "mosaic clone" in (report := (tmp_path / "report.html").read_text()) or "mosaic train" in report


def test_programs_of_a_worker_run_where_the_daemon_is(server, capsys, monkeypatch) -> None:
    shared = ["--connect", server.address, "--tls-ca", str(server.ca), "--token-file", str(server.token_file)]

    def mosaic(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([*shared, *words])
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    code, out, _ = mosaic("extras", "list", "--json")
    assert code == 0
    assert "atari" in {entry["name"] for entry in json.loads(out)}
    _, out, err = mosaic("doctor", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)}
    assert found["home"]["text"].startswith(str(server.daemon.home.root)), "the daemon's home, not this client's"
    assert found["tls"]["state"] == "note", "it expires tomorrow"
    assert "this is its machine" in err
    code, _, err = mosaic("daemon", "relay", "random", "worker", "--run-id", "x")
    assert (code, "clients cannot start" in err) == (1, True)
    code, _, err = mosaic("daemon", "relay", "random", "nothing")
    assert (code, "clients cannot start" in err) == (1, True)


def test_a_dry_run_is_made_by_the_worker_beside_the_daemon(server, client, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv(env.MOSAIC_DAEMON_TOKEN, server.token)
    specs = {worker.name: WorkerSpec.from_json(json.loads(worker.spec_json)) for worker in client.workers()}
    spec = specs["cleanrl"]
    elsewhere = replace(spec, argv=client.program(spec))
    assert elsewhere.argv[0] == sys.executable
    assert "relay" in elsewhere.argv
    config = {"run_id": new_run_id(), "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 500}
    good, text = ask_worker(elsewhere, config, "--dry-run", home=Home(tmp_path))
    assert good, text
    good, text = ask_worker(elsewhere, {**config, "env_id": "NoSuchEnv-v9"}, "--dry-run", home=Home(tmp_path))
    assert not good
    assert "NoSuchEnv-v9" in text
    sets = list_sets(client.program(spec, EXTRAS), Home(tmp_path))
    assert "base" in {entry.name for entry in sets}


def test_the_output_of_a_program_arrives_with_its_exit_code(client) -> None:
    spec = WorkerSpec.from_json(json.loads(next(iter(client.workers(name="random"))).spec_json))
    assert argv_of(spec, "worker", ["--describe"]) == [*spec.argv, "--describe"]
    with client.run_program("random", "worker", ["--describe"]) as pieces:
        collected = list(pieces)
    assert b"".join(piece.stdout for piece in collected).startswith(b"{")
    assert collected[-1].exit_code == 0


# ---------------------------------------------------------------------- reaching it


def test_a_profile_and_the_environment_name_the_daemon(server, capsys, monkeypatch, tmp_path: Path) -> None:
    config_home = tmp_path / "own-config"
    config_home.mkdir(mode=0o700)
    monkeypatch.setenv(env.MOSAIC_CONFIG_HOME, str(config_home))
    profile = f'connect = "{server.address}"\ntoken_file = "{server.token_file}"\ntls_ca = "{server.ca}"\n'
    (config_home / "settings.toml").write_text(f"[daemons.gpu]\n{profile}")

    def mosaic(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(words)
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    code, out, _ = mosaic("--connect", "gpu", "runs")
    assert (code, server.run.run_id in out) == (0, True)
    code, _, err = mosaic("--connect", "gpuu", "runs")
    assert (code, "did you mean 'gpu'" in err) == (2, True)
    code, out, err = mosaic("--connect", "gpu", "clone", server.run.run_id)
    assert code == 0
    queued = out.strip()
    code, _, err = mosaic("--connect", "gpu", "submit", str(tmp_path / "missing.json"))
    assert code == 2
    code, _, err = mosaic("--connect", "gpu", "show", "nothing-like-this")
    assert "`mosaic --connect gpu runs --all` lists them" in err
    monkeypatch.setenv(env.MOSAIC_CONNECT, "gpu")
    code, out, err = mosaic("show", queued)
    assert (code, queued in out) == (0, True)
    code, _, err = mosaic("show", "nothing-like-this")
    assert "`mosaic runs --all` lists them" in err, "the environment names the daemon in the next command, too"
    server.daemon.wait_for(queued)


def test_settings_keep_their_profiles_when_the_window_changes_them(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('heartbeat_s = 5\n[daemons.gpu]\nconnect = "server:50055"\n')
    settings = change_settings({"heartbeat_s": 7, "grace_s": 3}, file)
    assert settings.daemons["gpu"].connect == "server:50055"
    assert load_settings(file).heartbeat_s == 7


@pytest.mark.parametrize(
    "text", ['daemons = "x"', "[daemons.a]\nport = 1", '[daemons."a:b"]\nconnect = "x:1"', '[daemons.a]\nconnect = "x"']
)
def test_a_profile_that_is_not_right_says_how_one_is_written(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(ConfigProblems, match="connect ="):
        load_settings(file)


def test_stopping_a_daemon_elsewhere_asks_first(server, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    shared = ["--connect", server.address, "--tls-ca", str(server.ca), "--token-file", str(server.token_file)]
    with pytest.raises(SystemExit) as exit_:
        main([*shared, "daemon", "stop"])
    assert exit_.value.code == 130
    assert "nothing can start this daemon from here" in capsys.readouterr().err
    assert server.daemon.client.health().pid == server.daemon.pid
