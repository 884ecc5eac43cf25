"""Certificates of the address for nodes: made by one command, renewed under the same authority, checked at start."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from gym_gui.cli import main
from gym_gui.config.settings import NodeSettings, load_settings
from gym_gui.services.trainer.certificates import NodeCertificates, default_names, make_certificates
from gym_gui.services.trainer.errors import ListenFailed
from gym_gui.services.trainer.tcp_door import Listening, load_tls
from gym_gui.testing import RunningDaemon
from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.paths import Home


@pytest.fixture
def files(tmp_path: Path) -> NodeCertificates:
    return NodeCertificates.below(tmp_path)


def handshake(files: NodeCertificates, authority: str, name: str) -> str:
    """Connect as a node does; return what it found wrong, or an empty text."""
    server, _ = load_tls(files.certificate, files.key, files.authority)
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(there, server_side=True).close()
        except (ssl.SSLError, OSError):
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with here, ssl.create_default_context(cadata=authority).wrap_socket(here, server_hostname=name):
            return ""
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    finally:
        thread.join()


def test_a_node_trusts_the_names_it_was_made_for_and_no_other(files: NodeCertificates) -> None:
    assert make_certificates(files, ["trainer.lab", "127.0.0.1", "::1"])
    authority = files.authority.read_text()
    for name in ("trainer.lab", "127.0.0.1", "::1"):
        assert handshake(files, authority, name) == ""
    assert "trainer.lab" in handshake(files, authority, "elsewhere.lab") or "mismatch" in handshake(
        files, authority, "elsewhere.lab"
    )


def test_a_renewed_certificate_is_trusted_by_nodes_that_know_the_authority(files: NodeCertificates) -> None:
    make_certificates(files, ["one"])
    known, before = files.authority.read_text(), files.certificate.read_text()
    assert not make_certificates(files, ["one"]), "the authority stays"
    assert files.certificate.read_text() != before
    assert handshake(files, known, "one") == ""
    assert make_certificates(files, ["one"], new_authority=True)
    assert handshake(files, known, "one") != "", "nodes that know the old one are cut off"


def test_keys_are_this_users_alone_and_a_readable_one_is_refused(files: NodeCertificates) -> None:
    make_certificates(files, ["one"])
    for key in (files.key, files.authority_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    files.key.chmod(0o644)
    with pytest.raises(ListenFailed, match="chmod 600"):
        load_tls(files.certificate, files.key, files.authority)


def test_a_certificate_of_another_authority_is_refused_at_start(files: NodeCertificates, tmp_path: Path) -> None:
    make_certificates(files, ["one"])
    other = NodeCertificates(tmp_path / "other")
    make_certificates(other, ["one"])
    with pytest.raises(ListenFailed, match="cannot be used"):
        load_tls(files.certificate, files.key, other.authority)


def test_damaged_files_and_wrong_names_are_explained(files: NodeCertificates) -> None:
    with pytest.raises(ListenFailed, match="neither a host name nor an IP address"):
        make_certificates(files, ["no name"])
    files.authority.write_text("no certificate")
    with pytest.raises(ListenFailed, match="--new-ca"):
        make_certificates(files, ["one"])
    assert make_certificates(files, ["one"], new_authority=True)


def test_default_names_are_those_nodes_may_know() -> None:
    names = default_names("trainer.lab", "0.0.0.0", "")
    assert names[0] == "trainer.lab"
    assert {"localhost", "127.0.0.1", socket.gethostname()} <= set(names)
    assert "0.0.0.0" not in names


def test_a_daemon_without_the_certificate_for_nodes_does_not_start(home: Home, tmp_path: Path) -> None:
    daemon = RunningDaemon(home, tmp_path / "config", settings={"nodes": {"listen": "127.0.0.1", "port": 0}})
    refused = daemon.attempt()
    assert refused.returncode == 1
    assert "`mosaic daemon certs` makes it" in refused.stderr


def test_one_command_makes_it_and_doctor_checks_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    config.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv(env.MOSAIC_CONFIG_HOME, str(config))
    (config / "settings.toml").write_text('[nodes]\nlisten = "127.0.0.1"\n')

    def mosaic(*words: str) -> str:
        with pytest.raises(SystemExit):
            main(words)
        return capsys.readouterr().out

    assert "which is new" in mosaic("daemon", "certs", "127.0.0.1")
    assert "which is new" not in mosaic("daemon", "certs")
    assert "✓ nodes" in mosaic("doctor")
    NodeCertificates.below(config).key.chmod(0o604)
    assert "✗ nodes" in mosaic("doctor")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('nodes = "yes"', r"expected a table \[nodes\]"),
        ("[nodes]\nlisten_on = 1", "unknown: 'listen_on'"),
        ('[nodes]\nlisten = "everywhere"', "listen: expected an IP address"),
        ('[nodes]\naddress = "a b"', "address: expected a name"),
        ("[nodes]\nmb_per_s = -1", "mb_per_s: must lie between"),
    ],
)
def test_wrong_settings_for_nodes_are_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "settings.toml").write_text(text)
    with pytest.raises(ConfigProblems, match=expected):
        load_settings(tmp_path / "settings.toml")


def test_settings_for_nodes_are_read(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('[nodes]\nlisten = "::"\naddress = "trainer.lab"\nmb_per_s = 2.5\n')
    nodes = load_settings(tmp_path / "settings.toml").nodes
    assert nodes == NodeSettings(listen="::", address="trainer.lab", mb_per_s=2.5)


@pytest.mark.parametrize(
    ("name", "bound", "expected"),
    [
        ("", "10.0.0.1:50056", "10.0.0.1:50056"),
        ("", "0.0.0.0:50056", f"{socket.gethostname()}:50056"),
        ("", "[::]:50056", f"{socket.gethostname()}:50056"),
        ("trainer.lab", "0.0.0.0:1", "trainer.lab:1"),
        ("fe80::1", "[::]:1", "[fe80::1]:1"),
        ("", "[::1]:1", "[::1]:1"),
    ],
)
def test_the_address_that_nodes_are_given_is_one_they_can_connect_to(name: str, bound: str, expected: str) -> None:
    assert Listening(name=name).known_as(bound) == expected
