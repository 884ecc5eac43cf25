"""What a client elsewhere reads when it cannot connect, and what a daemon says of a certificate it should not use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.client_errors import connection_problem
from gym_gui.services.trainer.errors import DaemonUnreachable
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import RunningDaemon, certificate
from mosaic_wire.paths import Home

QUICK = {"min_free_disk_mb": 0, "listen": "127.0.0.1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("server")
    cert, key = certificate(folder, "server")
    settings = {**QUICK, "tls_cert": str(cert), "tls_key": str(key)}
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=settings) as daemon:
        record = running_record(daemon.home)
        assert record is not None
        port = record.tcp.rpartition(":")[2]
        yield SimpleNamespace(daemon=daemon, address=record.tcp, port=port, ca=cert, folder=folder)


def refusal(address: str, ca: Path | None) -> str:
    """What a client says that cannot connect."""
    with TrainerClient(address, "0" * 64, tls_ca=ca, timeout_s=5) as client, pytest.raises(DaemonUnreachable) as caught:
        client.health()
    return str(caught.value)


def test_a_wrong_authority_is_named(server, tmp_path: Path) -> None:
    theirs, _ = certificate(tmp_path, "theirs")
    said = refusal(server.address, theirs)
    assert f"no trainer daemon answers at {server.address}: its certificate is not vouched for by {theirs}" in said


def test_a_certificate_for_another_name_says_which_name_it_lacks(server) -> None:
    assert "its certificate is not for 'localhost'" in refusal(f"localhost:{server.port}", server.ca)


def test_in_clear_against_tls_says_which_option_is_missing(server) -> None:
    assert "it speaks TLS; give its certificate with --tls-ca" in refusal(server.address, None)


def test_a_port_where_nothing_listens_is_said(server) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "nothing listens at this port" in refusal(f"127.0.0.1:{port}", server.ca)


def test_a_name_that_is_not_known_is_said(server) -> None:
    assert "the name 'no-such-host.invalid' is not known here" in connection_problem(
        "no-such-host.invalid:50055", server.ca, "gRPC's words"
    )


def test_an_expired_certificate_is_said_by_the_client_and_refused_by_the_daemon(tmp_path: Path, make_daemon) -> None:
    cert, key = certificate(tmp_path, "old", days=-1)
    import ssl
    import threading

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # a daemon whose certificate expired while it ran
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(listener.accept()[0], server_side=True)

        thread = threading.Thread(target=answer)
        thread.start()
        said = connection_problem(f"127.0.0.1:{listener.getsockname()[1]}", cert, "")
        thread.join()
    assert "its certificate has expired" in said
    started = make_daemon(start=False).attempt("--listen", "127.0.0.1", "--tls-cert", str(cert), "--tls-key", str(key))
    assert started.returncode == 1
    assert "cannot be used: certificate has expired" in started.stderr


def test_tls_against_clear_is_said(make_daemon, server) -> None:
    daemon = make_daemon(listen="127.0.0.1")
    record = running_record(daemon.home)
    assert record is not None
    assert "it does not speak TLS: leave out --tls-ca" in refusal(record.tcp, server.ca)


def test_a_key_that_others_can_read_is_refused(make_daemon, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "open")
    key.chmod(0o644)
    started = make_daemon(start=False).attempt("--listen", "127.0.0.1", "--tls-cert", str(cert), "--tls-key", str(key))
    assert started.returncode == 1
    assert f"other users can read the TLS key {key}; run `chmod 600` on it" in started.stderr
