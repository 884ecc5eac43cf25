"""A daemon that died is replaced; one that was stopped on purpose stays stopped until it is wanted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.services.trainer.local_daemon import running_record, stop_process, wait_for_end
from gym_gui.ui.shell import daemon_banner as connecting
from gym_gui.ui.shell.connect_dialog import ConnectDialog
from gym_gui.ui.shell.daemon_banner import DaemonStopped, LocalConnector
from mosaic_wire.paths import Home
from PySide6.QtCore import QProcess
from PySide6.QtWidgets import QDialogButtonBox, QLabel


@pytest.fixture
def connector(home: Home) -> Iterator[LocalConnector]:
    yield LocalConnector(home)
    if (record := running_record(home)) is not None:
        assert stop_process(record, timeout_s=60)


def test_the_first_look_starts_a_daemon(connector, home) -> None:
    with connector() as client:
        assert client.health().home == str(home.root)
    record = running_record(home)
    assert record is not None
    with connector() as client:
        assert client.health().pid == record.pid, "the second look finds it"


def test_a_daemon_that_was_killed_is_replaced(connector, home) -> None:
    connector().close()
    record = running_record(home)
    os.kill(record.pid, signal.SIGKILL)
    assert wait_for_end(record, 20)
    with connector() as client:
        assert client.health().pid != record.pid


def test_a_daemon_that_was_stopped_stays_stopped_until_it_is_started(connector, home) -> None:
    with connector() as client:
        record = running_record(home)
        client.shutdown()
    assert wait_for_end(record, 20)
    with pytest.raises(DaemonStopped, match="was stopped"):
        connector()
    assert connector.is_stopped
    assert running_record(home) is None
    connector.restart_daemon()
    connector().close()
    assert not connector.is_stopped
    assert running_record(home) is not None


def test_a_start_that_failed_is_not_tried_at_every_look(home: Home, monkeypatch) -> None:
    home.root.mkdir()
    (home.root / "trainer").write_text("a file where a folder belongs")
    connector = LocalConnector(home)
    tries = []
    start = connecting.start_daemon
    monkeypatch.setattr(connecting, "start_daemon", lambda home: (tries.append(home), start(home)))
    for _ in range(3):
        with pytest.raises(TrainerError, match="cannot use"):
            connector()
    assert len(tries) == 1
    connector.restart_daemon()
    with pytest.raises(TrainerError):
        connector()
    assert len(tries) == 2


def test_a_daemon_far_away_is_looked_for_and_never_started(home: Home) -> None:
    far = connecting.RemoteConnector("127.0.0.1:1", "token")
    with far() as client:
        client.timeout_s = 1
        with pytest.raises(DaemonUnreachable):
            client.health()
    assert running_record(home) is None


def test_the_daemons_of_the_settings_are_offered_in_a_window_of_their_own(qtbot, monkeypatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(QProcess, "startDetached", lambda _program, arguments: started.append(arguments))
    dialog = ConnectDialog(["lab", "gpu"])
    qtbot.addWidget(dialog)
    assert [dialog.profiles.item(row).text() for row in range(2)] == ["gpu", "lab"]
    dialog.profiles.setCurrentRow(1)
    dialog.accept()
    assert started == [["-m", "gym_gui", "gui", "--connect", "lab"]]
    nothing = ConnectDialog([])
    qtbot.addWidget(nothing)
    assert not nothing.findChild(QDialogButtonBox).button(QDialogButtonBox.StandardButton.Open).isEnabled()
    assert "[daemons.gpu]" in nothing.findChild(QLabel).text()
