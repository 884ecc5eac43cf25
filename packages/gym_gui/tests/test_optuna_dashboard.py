"""`optuna-dashboard` is optional: a small server stands in for it, started, waited for and ended as the real one is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest
from gym_gui.services.analytics.web_servers import Dashboard, ServerProblem, find_program, storage_arguments
from mosaic_wire.testing import wait_until

SERVER = """
import http.server, sys, os
words = sys.argv[1:]
if "broken" in words[0]:
    sys.exit("cannot open the study")
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid()} {' '.join(words)}".encode())
host, port = words[words.index("--host") + 1], int(words[words.index("--port") + 1])
http.server.HTTPServer((host, port), Answer).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "optuna-dashboard"
    path.write_text(f"#!{sys.executable}\n{SERVER}")
    path.chmod(0o755)
    return str(path)


def test_it_listens_on_loopback_and_ends_with_its_owner(tmp_path: Path, program: str) -> None:
    dashboard = Dashboard.start(tmp_path / "study.journal", is_journal=True, program=program)
    try:
        assert dashboard.address.startswith("http://127.0.0.1:")
        with build_opener(ProxyHandler({})).open(dashboard.address, timeout=30) as answer:
            pid, *text = answer.read().decode().split()
        assert text[:3] == [str(tmp_path / "study.journal"), "--storage-class", "JournalFileStorage"]
        assert dashboard.is_running
    finally:
        dashboard.stop()
    assert not dashboard.is_running
    assert wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_its_last_output_is_shown_when_it_does_not_start(tmp_path: Path, program: str) -> None:
    with pytest.raises(ServerProblem, match=r"ended at once\. cannot open the study"):
        Dashboard.start(tmp_path / "broken.db", is_journal=False, program=program)


def test_an_owner_that_left_does_not_wait(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    deaf.write_text(f"#!{sys.executable}\nimport time; time.sleep(600)\n")
    deaf.chmod(0o755)
    with pytest.raises(ServerProblem, match="not needed any more"):
        Dashboard.start(tmp_path / "s.db", is_journal=False, program=str(deaf), is_given_up=lambda: True)


def test_where_it_is_looked_for(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() == program
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(ServerProblem, match="pip install optuna-dashboard"):
        find_program()
    assert storage_arguments(tmp_path / "a.db", is_journal=False) == [f"sqlite:///{tmp_path / 'a.db'}"]
