"""How W&B is reached: the key and its place, proxies, `mosaic doctor --wandb`; `wandb sync` as a process."""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from gym_gui.cli.app import mosaic
from gym_gui.services.analytics.wandb_access import (
    Fallback,
    Key,
    Proxies,
    SyncFailed,
    SyncJob,
    address,
    find_interpreter,
    find_key,
    find_proxies,
    page_of,
    variables_for,
    way_to,
)
from gym_gui.services.analytics.wandb_file import find_wandb_folders
from gym_gui.services.trainer.errors import SecretStoreError
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets
from mosaic_wire.paths import Home

KEY = "0123456789abcdef0123456789abcdef01234567"


# ---------------------------------------------------------------------- the key


def test_a_key_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    secrets = UserSecrets(tmp_path / "config")
    assert secrets.get(WANDB_API_KEY) == secrets.place_of(WANDB_API_KEY) == ""
    secrets.put(WANDB_API_KEY, KEY)
    file = tmp_path / "config" / "user_secrets.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert UserSecrets(tmp_path / "config").get(WANDB_API_KEY) == KEY
    assert secrets.place_of(WANDB_API_KEY) == str(file)
    secrets.delete(WANDB_API_KEY)
    secrets.delete(WANDB_API_KEY)
    assert secrets.get(WANDB_API_KEY) == ""
    assert KEY not in file.read_text()


def test_what_is_no_key_and_what_is_no_store_is_refused(tmp_path: Path) -> None:
    secrets = UserSecrets(tmp_path / "config")
    for nonsense in ("", "two\nlines", "nul\0", "x" * 5000):
        with pytest.raises(SecretStoreError, match="one line"):
            secrets.put(WANDB_API_KEY, nonsense)
    secrets.put(WANDB_API_KEY, KEY)
    (tmp_path / "config" / "user_secrets.json").write_text("[]")
    with pytest.raises(SecretStoreError, match="repair or remove"):
        secrets.get(WANDB_API_KEY)


def test_the_key_is_looked_for_in_order(tmp_path: Path) -> None:
    secrets = UserSecrets(tmp_path / "config")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.wandb.ai login user password fromnetrc\n")
    netrc.chmod(0o600)
    environ = {"NETRC": str(netrc), "WANDB_API_KEY": "fromvariable"}
    assert find_key(secrets, {"NETRC": str(tmp_path / "none")}) == Key()
    assert not find_key(secrets, {"NETRC": str(tmp_path / "none")}).is_there
    assert "wandb login" in find_key(secrets, {"NETRC": str(netrc)}).place
    assert find_key(secrets, environ) == Key("fromvariable", "the variable WANDB_API_KEY")
    secrets.put(WANDB_API_KEY, KEY)
    assert find_key(secrets, environ).value == KEY  # what a person entered here counts first


# ---------------------------------------------------------------------- the way


def test_proxies_count_in_their_order_and_only_with_the_box(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WANDB_VPN_HTTPS_PROXY=http://vpn:8080\n")
    environ = {"WANDB_HTTPS_PROXY": "http://wandb:1", "HTTPS_PROXY": "http://general:1"}
    boxed = {"wandb_use_vpn_proxy": True}
    own = {**boxed, "wandb_https_proxy": "http://own:1"}
    assert find_proxies(own, [tmp_path], environ).https == Fallback("http://own:1", "the run's config")
    assert find_proxies(boxed, [tmp_path], environ).https.value == "http://vpn:8080"
    assert find_proxies(boxed, [], environ).https.value == "http://wandb:1"
    assert find_proxies({}, [tmp_path], environ).https.value == "http://general:1"
    assert find_proxies({}, [tmp_path], {}).https.value == ""


def test_a_process_gets_key_and_proxies_and_never_proxies_loopback() -> None:
    proxies = Proxies(https=Fallback("http://proxy:8080", "x"))
    variables = variables_for(Key(KEY, "x"), proxies, {"no_proxy": "intranet", "WANDB_MODE": "offline"})
    assert variables["WANDB_API_KEY"] == KEY
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://proxy:8080"
    assert "HTTP_PROXY" not in variables
    assert variables["NO_PROXY"] == variables["no_proxy"] == "intranet,127.0.0.1,localhost,::1"
    assert variables["WANDB_MODE"] == "online"
    assert way_to("https://api.wandb.ai", proxies) == "http://proxy:8080"
    assert way_to("http://127.0.0.1:8080", proxies) == way_to("http://localhost", proxies) == ""


def test_pages_are_named_after_the_path() -> None:
    assert page_of("team/demo/abc", {}) == "https://wandb.ai/team/demo/runs/abc"
    assert (
        page_of("team/demo/abc", {"WANDB_BASE_URL": "https://own.example/"}) == "https://own.example/team/demo/runs/abc"
    )
    assert page_of("demo/abc", {}) == page_of("", {}) == page_of("a//b", {}) == ""
    assert address({}) == "https://api.wandb.ai"


# ---------------------------------------------------------------------- mosaic doctor --wandb


class _PlayWandb(BaseHTTPRequestHandler):
    """Answers as W&B's API does: who is this key's?"""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        known = self.headers.get("Authorization", "") == _basic(KEY)
        self.send_response(200 if known else 401)
        self.end_headers()
        viewer = {"username": "ada", "entity": "ada-team"}
        self.wfile.write(json.dumps({"data": {"viewer": viewer if known else None}}).encode())

    def log_message(self, *_args: object) -> None:
        pass


def _basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"api:{key}".encode()).decode()


@pytest.fixture
def play_wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _PlayWandb)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)


def doctor() -> tuple[Result, dict[str, tuple[str, str]]]:
    result = CliRunner().invoke(mosaic, ["doctor", "--wandb", "--json"], standalone_mode=False)
    return result, {entry["name"]: (entry["state"], entry["text"]) for entry in json.loads(result.output)}


def test_a_good_connection_is_reported_step_by_step(
    home: Home, play_wandb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hidden@127.0.0.1:9")  # not for this machine's own address
    result, found = doctor()
    assert result.return_value == 0, result.output
    assert found["W&B address"] == ("ok", f"{play_wandb} (WANDB_BASE_URL)")
    assert found["W&B connection"][0] == "ok"
    assert found["W&B key"] == ("ok", "found in the variable WANDB_API_KEY")
    assert found["W&B API"] == ("ok", "the key is that of ada-team")
    assert found["W&B package"][0] in ("ok", "note")
    assert KEY not in result.output
    assert "hidden" not in result.output


def test_a_wrong_key_and_no_key_fail(home: Home, play_wandb: str) -> None:
    result, found = doctor()
    assert result.return_value == 1
    assert found["W&B key"][0] == "broken"
    assert "W&B API" not in found
    UserSecrets().put(WANDB_API_KEY, "f" * 40)
    result, found = doctor()
    assert result.return_value == 1
    assert found["W&B key"][0] == "ok"
    assert "refuses this key" in found["W&B API"][1]


def test_no_name_no_server_and_a_bad_proxy_fail(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "https://nowhere.invalid")
    result, found = doctor()
    assert result.return_value == 1
    assert "nowhere.invalid has no address" in found["W&B DNS"][1]
    assert "W&B connection" not in found
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    result, found = doctor()
    assert result.return_value == 1
    assert found["W&B connection"][0] == "broken"
    monkeypatch.setenv("WANDB_BASE_URL", "https://nowhere.invalid")
    monkeypatch.setenv("WANDB_VPN_HTTPS_PROXY", "http://user:hidden@127.0.0.1:9")
    result, found = doctor()
    assert result.return_value == 1
    assert found["W&B DNS"][0] == "ok"  # of the proxy
    assert "cannot be reached" in found["W&B connection"][1]
    assert "hidden" not in result.output


def test_something_else_at_the_address_is_reported(
    home: Home, monkeypatch: pytest.MonkeyPatch, play_wandb: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(_PlayWandb, "do_POST", lambda self: (self.send_response(200), self.end_headers()))
    _, found = doctor()
    assert "not as W&B does" in found["W&B API"][1]


# ---------------------------------------------------------------------- wandb sync


def a_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    folder.mkdir(parents=True)
    (folder / "run-abc.wandb").touch()
    return folder


def program(tmp_path: Path, source: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{source}\n")
    path.chmod(0o755)
    return str(path)


def test_progress_is_reported_without_ornaments_and_without_the_key(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    python = program(
        tmp_path,
        f"""printf 'wandb: \\033[33mSyncing\\033[0m 1 run(s):\\n'
printf 'wandb: ⣾ uploading 10%%\\rwandb: ⣷ uploading 90%%\\n'
echo "wandb: key is $WANDB_API_KEY"
echo "wandb: View run at https://wandb.ai/a/b/runs/abc"
touch {folder}/run-abc.wandb.synced""",
    )
    reported: list[str] = []
    job = SyncJob(python, find_wandb_folders(tmp_path / "wandb"), variables_for(Key(KEY, "x"), Proxies()), [KEY])
    result = job.run(reported.append)
    assert result.url == "https://wandb.ai/a/b/runs/abc"
    assert result.folders == 1
    assert reported[:3] == ["Syncing 1 run(s):", "uploading 10%", "uploading 90%"]
    assert reported[3:] == ["key is •••", "View run at https://wandb.ai/a/b/runs/abc"]


def test_exit_code_0_without_the_mark_is_a_failure(tmp_path: Path) -> None:
    a_folder(tmp_path)
    job = SyncJob(program(tmp_path, "echo 'wandb: Not authenticated.'"), find_wandb_folders(tmp_path / "wandb"), {})
    with pytest.raises(SyncFailed, match="Not authenticated"):
        job.run(lambda _line: None)


def test_sending_can_be_stopped(tmp_path: Path) -> None:
    a_folder(tmp_path)
    job = SyncJob(program(tmp_path, "echo begun; exec sleep 600"), find_wandb_folders(tmp_path / "wandb"), os.environ)
    with pytest.raises(SyncFailed, match="Stopped"):
        job.run(lambda _line: job.cancel())
    with pytest.raises(SyncFailed, match="before anything"):
        job.run(lambda _line: None)


def test_the_package_is_looked_for_where_the_run_trained(tmp_path: Path) -> None:
    with pytest.raises(SyncFailed, match="mosaic extras install wandb"):
        find_interpreter(Home(tmp_path), ["/no/python"])
    python = program(tmp_path, "exit 0")
    assert find_interpreter(Home(tmp_path), [python, "-m", "x"]) == python
    of_set = Home(tmp_path).trainer / "venvs" / "wandb" / "generation" / "bin"
    of_set.mkdir(parents=True)
    (of_set / "python").symlink_to(python)
    assert find_interpreter(Home(tmp_path)) == str(of_set / "python")
