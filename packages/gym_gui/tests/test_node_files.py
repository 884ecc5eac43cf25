"""What a node sends: written below its run's folders only, resumed, verified, bounded; and nothing lost or doubled."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import threading
import zlib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer.certificates import NodeCertificates, make_certificates
from gym_gui.services.trainer.errors import NotPossibleNow, RegistryUnwritable
from gym_gui.services.trainer.node_files import NodeFiles, inputs_of
from gym_gui.services.trainer.nodes import NodeSide
from mosaic_wire import env
from mosaic_wire.errors import SessionError
from mosaic_wire.frames import Frame, FrameReader, FrameWriter, fastlane_path
from mosaic_wire.ids import new_run_id
from mosaic_wire.node import Bootstrap
from mosaic_wire.node import uploads as uploads_module
from mosaic_wire.node.attempt import Node
from mosaic_wire.node.calls import DaemonAway
from mosaic_wire.node.frames import FrameUploads
from mosaic_wire.node.uploads import FileUploads
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until


@pytest.fixture
def run_id(home: Home) -> str:
    home.create()
    run_id = new_run_id()
    home.run_folder(run_id).root.mkdir()
    return run_id


@pytest.fixture
def files(home: Home, run_id: str) -> NodeFiles:
    return NodeFiles(home, run_id, max_bytes=1 << 20, min_free_bytes=0)


def whole(path: str, data: bytes, *, offset: int = 0, sha256: str | None = None) -> pb.FilePiece:
    digest = hashlib.sha256(data).hexdigest() if sha256 is None else sha256
    return pb.FilePiece(path=path, offset=offset, data=data[offset:], size=len(data), sha256=digest, modified_ns=10**18)


def test_a_file_is_in_its_place_only_when_it_is_complete_and_right(home, run_id, files) -> None:
    target = home.run_folder(run_id).root / "checkpoints" / "step-1" / "state.bin"
    data = os.urandom(3000)
    first = pb.FilePiece(path="run/checkpoints/step-1/state.bin", data=data[:1000], size=3000)
    assert files.put(first) == 1000
    assert not target.exists()
    assert files.put(whole(first.path, data, offset=1000)) == 3000
    assert target.read_bytes() == data
    assert target.stat().st_mtime_ns == 10**18
    assert [path.name for path in target.parent.iterdir()] == ["state.bin"]
    assert files.put(whole(first.path, b"another", sha256="0" * 64)) == 0, "a wrong hash: from the beginning"
    assert target.read_bytes() == data, "the earlier version stays"


def test_a_piece_that_was_lost_or_sent_twice_is_answered_with_where_to_continue(home, run_id, files) -> None:
    data = os.urandom(3000)
    first = pb.FilePiece(path="run/x", data=data[:1000], size=3000)
    files.put(first)
    again = pb.FilePiece(path="run/x", offset=500, data=data[500:600], size=3000)
    assert files.put(again) == 1000
    assert files.put(whole("run/x", data, offset=2000)) == 1000
    other_daemon = NodeFiles(home, run_id, max_bytes=1 << 20, min_free_bytes=0)  # it has no running hash
    assert other_daemon.put(whole("run/x", data, offset=1000)) == 3000
    assert (home.run_folder(run_id).root / "x").read_bytes() == data


def test_a_growing_file_is_continued_in_its_place(home, run_id, files) -> None:
    log = home.run_logs(run_id) / "stdout.log"
    assert files.put(pb.FilePiece(path="logs/stdout.log", offset=5, data=b"x", grows=True)) == 0, "it is not here"
    files.put(whole("logs/stdout.log", b"one\n"))
    assert files.put(pb.FilePiece(path="logs/stdout.log", offset=4, data=b"two\n", grows=True)) == 8
    assert files.put(pb.FilePiece(path="logs/stdout.log", offset=4, data=b"two\n", grows=True)) == 8, "sent twice"
    assert log.read_bytes() == b"one\ntwo\n"
    log.write_bytes(b"")  # its cap
    assert files.put(pb.FilePiece(path="logs/stdout.log", offset=8, data=b"three\n", grows=True)) == 14
    assert log.read_bytes() == b"three\n"
    files.put(whole("run/events.jsonl", b"a\n"))
    end = pb.FilePiece(path="run/events.jsonl", offset=2, size=2, grows=True, sha256=hashlib.sha256(b"b\n").hexdigest())
    assert files.put(end) == 0, "what is here differs"


@pytest.mark.parametrize(
    "path",
    [
        *("", "run", "run/", "/etc/passwd", "run/../../token", "run/a/../../../token", "run//x", "run/./x", "token"),
        *("config/config.json", "scripts/x.py", "run/metrics/curves", "run/.x.upload", "run/a\nb", "run/\x00"),
        *("run/" + "x" * 300, "run/" + "/".join("x" * 40), "../x", "logs/../trainer/token"),
    ],
)
def test_nothing_outside_of_the_runs_folders_is_written_or_removed(home, run_id, files, path: str) -> None:
    before = sorted(home.root.rglob("*"))
    with pytest.raises(NotPossibleNow, match="refused"):
        files.put(whole(path, b"x"))
    with pytest.raises(NotPossibleNow, match="refused"):
        files.remove(path)
    assert sorted(home.root.rglob("*")) == before


def test_nothing_is_written_through_a_link(home, run_id, files, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs")
    folder = home.run_folder(run_id).root
    (folder / "linked").symlink_to(outside)
    (folder / "link.log").symlink_to(outside / "file")
    (folder / ".new.upload").symlink_to(outside / "file")
    for piece in (
        whole("run/linked/new", b"x"),
        pb.FilePiece(path="run/link.log", offset=6, data=b"x", grows=True),
        whole("run/new", b"x"),
    ):
        with pytest.raises(NotPossibleNow, match="link"):
            files.put(piece)
    with pytest.raises(NotPossibleNow, match="link"):
        files.remove("run/linked/file")
    files.put(whole("run/link.log", b"mine"))  # a new version replaces the link itself
    assert (outside / "file").read_text() == "theirs"
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (folder / "link.log").read_text() == "mine"


def test_a_run_sends_no_more_than_it_may(home, run_id, files, monkeypatch) -> None:
    files.put(whole("run/a", bytes(600_000)))
    with pytest.raises(NotPossibleNow, match="run_gb"):
        files.put(whole("run/b", bytes(600_000)))
    files.put(whole("run/a", b"smaller"))
    files.put(whole("run/b", bytes(600_000)))
    files.remove("run/b")
    monkeypatch.setattr("gym_gui.services.trainer.node_files.MAX_ENTRIES", 12)
    pieces = (whole(f"run/folder{number}/x", b"") for number in range(20))
    with pytest.raises(NotPossibleNow, match="12 files"):
        [files.put(piece) for piece in pieces]
    full = NodeFiles(home, run_id, max_bytes=1 << 20, min_free_bytes=1 << 60)
    with pytest.raises(RegistryUnwritable, match="must stay free"):  # passes: the node keeps it and retries
        full.put(whole("run/a", b"x"))


def test_a_run_starts_from_its_checkpoint_and_its_earlier_attempt_and_nothing_else(home, run_id) -> None:
    other = home.run_folder(new_run_id())
    for path in (
        *(other.checkpoints / "step-1" / "state.json", other.root / "exit.json"),
        *(home.run_folder(run_id).lifecycle, home.run_folder(run_id).metrics / "curves"),
        home.run_logs(run_id) / "stdout.log",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    named = {
        "checkpoint_path": str(other.checkpoints / "step-1"),
        "policy_path": str(home.token),
        "note": "/etc/passwd",
    }
    checkpoint = f"{other.root.name}/run/checkpoints/step-1/state.json"
    found = inputs_of(home, run_id, {"extras": named}, attempt=1)
    assert [file.path for file in found] == [checkpoint]
    found = inputs_of(home, run_id, {"extras": named}, attempt=2)
    assert {file.path for file in found} == {checkpoint, f"{run_id}/run/lifecycle.jsonl", f"{run_id}/logs/stdout.log"}


# ---------------------------------------------------------------------- the node's side


class BadLink:
    """A daemon at the end of a link that loses calls, and answers to calls that were carried out."""

    def __init__(self, home: Home, run_id: str, *, seed: int, loss: float) -> None:
        self._home, self._run_id, self._random, self.loss = home, run_id, random.Random(seed), loss
        self._files = NodeFiles(home, run_id, max_bytes=1 << 30, min_free_bytes=0)
        self.lost = 0

    def send_files(
        self, pieces: list[pb.FilePiece], removed: list[str], *, is_preparing: bool
    ) -> pb.SendRunFilesResponse:
        fate = self._random.random()
        if fate < self.loss / 2:
            self._lose()
        if fate < self.loss / 4 or fate > 1 - self.loss / 4:  # the daemon was restarted
            self._files = NodeFiles(self._home, self._run_id, max_bytes=1 << 30, min_free_bytes=0)
        states = [pb.FileState(path=piece.path, size=self._files.put(piece)) for piece in pieces]
        for path in removed:
            self._files.remove(path)
        if fate < self.loss:
            self._lose()
        return pb.SendRunFilesResponse(files=states)

    def _lose(self) -> None:
        self.lost += 1
        raise DaemonAway("the link is broken")


@pytest.mark.parametrize("seed", range(4))
def test_a_worker_that_writes_while_the_link_breaks_leaves_the_same_files_here(
    home, run_id, tmp_path, monkeypatch, capsys, seed: int
) -> None:
    monkeypatch.setattr(uploads_module, "INTERVAL_S", 0.005)
    monkeypatch.setattr(uploads_module, "_SETTLED_S", 0.0)
    monkeypatch.setattr(uploads_module, "_PIECE_BYTES", 3000)
    monkeypatch.setattr(uploads_module, "_LONGEST_RETRY_S", 0.01)
    choose, there = random.Random(seed), Home(tmp_path / "there")
    folder = there.run_folder(run_id)
    folder.checkpoints.mkdir(parents=True)
    (folder.root / "tensorboard").mkdir()
    link = BadLink(home, run_id, seed=seed, loss=0.4)
    sender = FileUploads(link, there, run_id)  # type: ignore[arg-type]
    sender.start()
    growing = [folder.lifecycle, folder.logs / "stdout.log", folder.root / "tensorboard" / "events.out.tfevents.1"]
    folder.logs.mkdir()
    for number in range(120):
        with choose.choice(growing).open("ab") as stream:
            stream.write(os.urandom(choose.randrange(5000)))
        event = choose.random()
        if event < 0.15:
            checkpoint = folder.checkpoints / f"step-{number}"
            checkpoint.mkdir()
            (checkpoint / "state.bin").write_bytes(os.urandom(choose.randrange(20_000)))
        elif event < 0.2 and (checkpoints := sorted(folder.checkpoints.iterdir())):
            (checkpoints[0] / "state.bin").unlink()
            checkpoints[0].rmdir()
        elif event < 0.25:
            growing[2].write_bytes(os.urandom(choose.randrange(9000)))  # as a script that begins anew does
        elif event < 0.4:
            replacement = folder.root / "new"
            replacement.write_bytes(b"{}" * choose.randrange(3000))
            replacement.replace(folder.manifest)
        threading.Event().wait(0.001)
    assert wait_until(lambda: link.lost > 5)
    assert sender.finish(threading.Event())
    capsys.readouterr()

    def content(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    assert content(home.run_folder(run_id).root) == content(folder.root)
    assert sorted(path.name for path in home.run_folder(run_id).checkpoints.iterdir()) == sorted(
        path.name for path in folder.checkpoints.iterdir()
    )


def test_an_earlier_checkpoint_is_removed_after_the_later_one_has_arrived(home, run_id, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(uploads_module, "INTERVAL_S", 0.005)
    there, here = Home(tmp_path / "there").run_folder(run_id), home.run_folder(run_id)
    there.checkpoints.mkdir(parents=True)
    (there.checkpoints / "first").write_bytes(b"1")
    order: list[tuple[list[str], list[str]]] = []

    class Link(BadLink):
        def send_files(self, pieces: Any, removed: Any, *, is_preparing: bool) -> pb.SendRunFilesResponse:
            order.append(([piece.path for piece in pieces], list(removed)))
            return super().send_files(pieces, removed, is_preparing=is_preparing)

    sender = FileUploads(Link(home, run_id, seed=1, loss=0.0), there.home, run_id)  # type: ignore[arg-type]
    sender.start()
    assert wait_until(lambda: (here.checkpoints / "first").exists())
    (there.checkpoints / "second").write_bytes(b"2")
    (there.checkpoints / "first").unlink()  # found at once, while the second one is still too new to be sent
    assert wait_until(lambda: not (here.checkpoints / "first").exists())
    assert (here.checkpoints / "second").read_bytes() == b"2"
    assert sender.finish(threading.Event())
    steps = [step for step in order if step != ([], [])]
    names = ["run/checkpoints/first", "run/checkpoints/second"]
    assert steps == [([names[0]], []), ([names[1]], []), ([], [names[0]])]


def test_a_file_that_is_refused_is_left_and_the_others_arrive(home, run_id, tmp_path, capsys) -> None:
    there = Home(tmp_path / "there")
    folder = there.run_folder(run_id).root
    folder.mkdir(parents=True)
    (folder / ("x" * 250)).write_text("too long")
    (folder / "good").write_text("good")
    files = NodeFiles(home, run_id, max_bytes=1 << 20, min_free_bytes=0)

    def send(pieces: list[pb.FilePiece], removed: list[str], *, is_preparing: bool) -> pb.SendRunFilesResponse:
        states = []
        for piece in pieces:
            try:
                states.append(pb.FileState(path=piece.path, size=files.put(piece)))
            except NotPossibleNow as error:
                states.append(pb.FileState(path=piece.path, problem=str(error)))
        return pb.SendRunFilesResponse(files=states)

    calls: Any = SimpleNamespace(send_files=send)
    sender = FileUploads(calls, there, run_id)
    sender.start()
    assert sender.finish(threading.Event())
    assert capsys.readouterr().err.count("refused") == 1
    assert (home.run_folder(run_id).root / "good").read_text() == "good"


async def test_frames_of_a_node_reach_a_viewer_here_and_are_read_only_for_one(
    home, run_id, tmp_path, monkeypatch
) -> None:
    side = NodeSide(home, run_id, load_settings(tmp_path / "none.toml"))
    viewer = FrameReader(fastlane_path(run_id))
    monkeypatch.setenv(env.MOSAIC_FRAMES_DIR, str(tmp_path))  # from here on: the node's
    worker = FrameWriter(fastlane_path(run_id))
    loop, sent = asyncio.get_running_loop(), []

    def send(frame: pb.RunFrame) -> float:
        sent.append(frame)
        asyncio.run_coroutine_threadsafe(side.show(frame), loop).result(30)
        return side.frame_interval_s

    calls: Any = SimpleNamespace(send_frame=send)
    uploads: Any = SimpleNamespace(frame_interval_s=0.0)
    frames = FrameUploads(calls, run_id, uploads)
    monkeypatch.setattr("mosaic_wire.node.frames._IDLE_S", 0.01)
    frames.start()
    try:
        worker.publish(bytes(range(12)), 2, 2)
        assert viewer.read() is None
        assert side.frame_interval_s > 0, "there is a viewer"
        assert not sent, "the node does not know yet"
        uploads.frame_interval_s = side.frame_interval_s  # as an answer to the uploads does
        seen: list[Frame] = []

        def looked() -> bool:
            if (frame := viewer.read()) is not None:
                seen.append(frame)
            return bool(seen)

        assert await asyncio.to_thread(wait_until, looked)
        assert (seen[0].pixels, seen[0].width, seen[0].height) == (bytes(range(12)), 2, 2)
    finally:
        await asyncio.to_thread(frames.close)
        worker.close()
        viewer.close()
        await side.close()


@pytest.mark.parametrize(
    "frame",
    [
        pb.RunFrame(width=2, height=2, encoding="zlib", data=b"no zlib"),
        pb.RunFrame(width=2, height=2, encoding="zlib", data=zlib.compress(b"short")),
        pb.RunFrame(width=2, height=2, encoding="rgb", data=bytes(12)),
        pb.RunFrame(width=8000, height=8000, encoding="zlib", data=zlib.compress(bytes(100))),
        pb.RunFrame(width=-1, height=5, encoding="zlib", data=zlib.compress(bytes(100))),
    ],
)
async def test_a_frame_that_is_none_is_refused(home, run_id, tmp_path, frame: pb.RunFrame) -> None:
    side = NodeSide(home, run_id, load_settings(tmp_path / "none.toml"))
    try:
        with pytest.raises(NotPossibleNow, match="refused"):
            await side.show(frame)
    finally:
        await side.close()


# ---------------------------------------------------------------------- requirement sets


@pytest.mark.parametrize(
    ("extras", "module", "printed", "problem"),
    [
        ({}, "no_such_worker", None, ""),  # its config does not allow it
        ({"install_missing": True}, "this", "Beautiful is better", ""),
        ({"install_missing": True}, "no_such_worker", "", "could not be installed.*No module named"),
    ],
)
def test_what_a_run_lacks_is_installed_on_its_node_if_its_config_allows_it(
    tmp_path: Path, monkeypatch, extras: dict[str, bool], module: str, printed: str | None, problem: str
) -> None:
    certificates = NodeCertificates(tmp_path / "nodes")
    make_certificates(certificates, ["box"])
    bootstrap = Bootstrap("box:1", certificates.authority.read_text(), new_run_id(), 1, "token", "mark")
    monkeypatch.setenv(env.MOSAIC_FRAMES_DIR, str(tmp_path))
    node = Node(bootstrap, tmp_path, tmp_path)
    log = Home(tmp_path / "home").run_logs(bootstrap.run_id) / "prepare.log"
    log.parent.mkdir(parents=True)
    opened = pb.OpenNodeResponse(module=module, worker_config_json=json.dumps({"extras": extras}), prepares=True)
    try:
        with pytest.raises(SessionError, match=problem) if problem else nullcontext():
            node._install_missing(opened)
    finally:
        node._calls.close()
    assert log.exists() is (printed is not None)
    assert printed is None or printed in log.read_text()
