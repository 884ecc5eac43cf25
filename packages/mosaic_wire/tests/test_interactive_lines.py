"""Where the lines of an interactive run come from: two descriptors, or a unix socket that is its user's alone."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
from mosaic_wire.interactive import Descriptors, SocketServer, socket_of
from mosaic_wire.paths import RunFolder


def test_the_socket_lies_in_the_run_folder_unless_its_path_would_be_too_long(tmp_path: Path) -> None:
    assert socket_of(RunFolder(Path("/home/somebody/run"))) == Path("/home/somebody/run/interactive.sock")
    deep = RunFolder(tmp_path / ("x" * 120))
    place = socket_of(deep)
    assert len(str(place)) < 100
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert place == socket_of(deep) != socket_of(RunFolder(tmp_path / ("y" * 120)))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_in_the_place_of_the_socket_is_not_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / f"mosaic-{os.getuid()}").mkdir()
    os.chown(tmp_path / f"mosaic-{os.getuid()}", 65534, 65534)
    place = socket_of(RunFolder(tmp_path / ("x" * 120)))
    assert place.is_relative_to(tmp_path / "user" / ".cache" / "mosaic")


def test_lines_are_cut_out_of_whatever_arrives(tmp_path):
    theirs, ours = socket.socketpair()
    end = Descriptors(ours.fileno(), ours.fileno())
    assert list(end.lines(0, 10)) == [None]  # the greeting
    theirs.sendall(b"one\ntw")
    assert list(end.lines(1, 10)) == [b"one"]
    theirs.sendall(b"o\n" + b"x" * 25)
    assert list(end.lines(1, 10)) == [b"two", b"x" * 11]  # too long: reported once, the rest is dropped
    theirs.sendall(b"xxx\nfour\nfi")
    assert list(end.lines(1, 10)) == [b"four"]
    theirs.shutdown(socket.SHUT_WR)
    assert list(end.lines(1, 10)) == [b"fi"]
    assert end.is_over
    end.close()
    theirs.close()
    ours.close()


def test_a_client_of_the_socket_may_leave_and_another_may_come(tmp_path):
    path = tmp_path / "s.sock"
    server = SocketServer(path)
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(server.lines(0.01, 100)) == []
        for _ in range(2):
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(path))
            assert list(server.lines(5, 100)) == [None]
            client.sendall(b'{"cmd": "ping"}\n')
            assert list(server.lines(5, 100)) == [b'{"cmd": "ping"}']
            server.send({"type": "pong"})
            assert client.recv(100) == b'{"type":"pong"}\n'
            client.close()
            assert list(server.lines(5, 100)) == []
        server.send({"nobody": "there"})
        assert not server.is_over
    finally:
        server.close()
    assert not path.exists()
