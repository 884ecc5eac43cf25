"""Fault 16: canary secrets reach the worker's environment, and a search of the whole home finds them nowhere."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

KEY = "canary-key-2f9c41d7aa"
PASSWORD = "canary-pass-71be/0d"
NESTED = 'canary "nested" ünd-5c1'
PROXY = "http://somebody:canary-pass-71be%2F0d@proxy.example:8080"
VARIABLES = {"WANDB_API_KEY": KEY, "WANDB_HTTPS_PROXY": PROXY, "SERVICE_TOKEN": NESTED}
FORMS = [
    form.encode()
    for canary in (KEY, PASSWORD, "canary-pass-71be%2F0d", NESTED)
    for form in {canary, json.dumps(canary)[1:-1], json.dumps(canary, ensure_ascii=False)[1:-1]}
]
"""The canaries as they may stand in text, in JSON and in an address"""

BLABBER = """
SECRET_NAMES = ("WANDB_API_KEY", "WANDB_HTTPS_PROXY", "SERVICE_TOKEN")
import hashlib, subprocess, urllib.parse
from mosaic_wire.exit_record import ExitRecord
from mosaic_wire.lifecycle import LifecycleSpool

wanted = config.extras["algo_params"]
secrets = {name: os.environ.get(name, "") for name in SECRET_NAMES}
folder = run_folder_of(config.run_id)
(folder.root / "received.json").write_text(
    json.dumps({name: hashlib.sha256(value.encode()).hexdigest() for name, value in secrets.items()})
)

def blab():
    for stream in (sys.stdout, sys.stderr):
        for value in secrets.values():
            print("my key is", value, file=stream)
        print(json.dumps(secrets), file=stream)
        print(json.dumps(secrets, ensure_ascii=False), file=stream, flush=True)
    print("password", urllib.parse.unquote(urllib.parse.urlsplit(secrets["WANDB_HTTPS_PROXY"]).password))
    told = " ".join(secrets.values())
    print(f"LOG705 | {told} | extra={json.dumps(secrets)}", flush=True)
    child = "import os; print(os.environ['WANDB_API_KEY']); raise SystemExit(os.environ['SERVICE_TOKEN'])"
    subprocess.run([sys.executable, "-S", "-c", child])

session = open_session()
session.started({"environment": secrets, "told": " ".join(secrets.values())})
blab()
folder.logs.mkdir(exist_ok=True)
(folder.logs / "stdout.log").write_text("x" * 2_000_000 + "\\n".join(secrets.values()))
(folder.root / "wandb").mkdir()
(folder.root / "wandb" / "debug.log").write_text(str(secrets))
while wanted.get("wait") and not session.stop_requested.is_set():
    time.sleep(0.05)
blab()
if session.stop_requested.is_set():
    session.finish(ExitOutcome.CANCELLED, reason=str(secrets), exit_code=130)
    sys.exit(130)
if wanted.get("rude"):  # it writes its files itself and takes nothing out of them
    session.close()
    spool = LifecycleSpool(folder.lifecycle, config.run_id)
    spool.append(LifecycleKind.RUN_FAILED, {"error": f"no entry with {secrets}", "error_type": "Refused"})
    reason = " ".join(secrets.values())
    ExitRecord.now(config.run_id, 1, ExitOutcome.FAILED, reason=reason, exit_code=1, last_seq=9).write(
        folder.exit_record
    )
    folder.manifest.write_text(json.dumps({"run_id": config.run_id, "notes": reason, "host": secrets}))
    sys.exit(1)
if wanted.get("fail"):
    raise RuntimeError(f"401 for {secrets}")
session.finish(ExitOutcome.COMPLETED, payload={"used": list(secrets.values())}, exit_code=0)
"""


def blabber(**parameters: Any) -> dict[str, Any]:
    """A config with a secret in every place where people put one."""
    config = scripted_config("blabber", tags=(f"with-{KEY}", "plain"), **parameters)
    config["run_name"] = f"try {KEY} through {PROXY}"
    worker = config["metadata"]["worker"]
    worker["config"]["extras"] |= {
        "wandb_api_key": KEY,
        "wandb_https_proxy": PROXY,
        "notes": f"the key is {KEY}, the other {NESTED}, and {PASSWORD}",
    }
    worker["config"]["extras"]["algo_params"]["connections"] = [{"service_token": NESTED, "retries": 3}]
    return config


def leaks_in(data: bytes) -> list[bytes]:
    return [form for form in FORMS if form in data]


def leaks(folder: Path) -> list[tuple[str, bytes]]:
    """Every file below a folder that holds a canary, packed ones unpacked."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".gz" or ".tar.gz" in path.name:
                data += gzip.decompress(data)
            found += [(str(path.relative_to(folder)), form) for form in leaks_in(data)]
    return found


def reported(daemon: RunningDaemon, run_id: str) -> bytes:
    """Everything a client can hear of a run."""
    client = daemon.client
    pieces = [str(client.get(run_id)), *map(str, client.history(run_id)), str(client.list(include_archived=True))]
    output = [chunk.data for name in ("stdout", "stderr", "training_stdout") for chunk in client.logs(run_id, name)]
    return b"".join([*(piece.encode() for piece in pieces), *output])


def received(home: Home, run_id: str) -> dict[str, str]:
    return json.loads((home.run_folder(run_id).root / "received.json").read_text())


EXPECTED = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in VARIABLES.items()}


@pytest.fixture
def daemon(make_daemon) -> Iterator[RunningDaemon]:
    daemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "blabber", BLABBER)
    daemon.start()
    yield daemon
    assert leaks(daemon.home.root) == []


def finished(daemon: RunningDaemon, outcome: str, **parameters: Any) -> str:
    run = daemon.wait_for(daemon.client.submit(blabber(**parameters)).run.run_id)
    assert run.outcome == outcome
    assert received(daemon.home, run.run_id) == EXPECTED
    return run.run_id


@pytest.mark.parametrize(
    ("outcome", "last_output", "parameters"),
    [
        ("completed", "run_completed", {}),
        ("failed", "run_started", {"fail": True}),
        ("failed", "run_failed", {"rude": True}),
    ],
    ids=["completed", "with an exception", "by a worker that takes nothing out"],
)
def test_a_run_that_ends_publishes_no_secret(daemon: RunningDaemon, outcome: str, last_output: str, parameters) -> None:
    run_id = finished(daemon, outcome, **parameters)
    assert leaks(daemon.home.root) == []
    assert leaks_in(reported(daemon, run_id)) == []
    events = list(daemon.client.history(run_id))
    assert any("my key is" in event.payload_json for event in events)  # the last lines are there all the same
    assert "my key is *****" in daemon.output(run_id)
    assert "plain" in daemon.client.get(run_id).tags
    # The worker's own account survived the cleaning with checksums that fit.
    assert daemon.lifecycle(run_id)[-1].event == last_output
    assert daemon.manifest(run_id).outcome == outcome


def test_output_is_cleaned_while_the_run_continues_and_a_cancelled_run_leaves_nothing(daemon: RunningDaemon) -> None:
    run_id = daemon.client.submit(blabber(wait=True)).run.run_id
    daemon.wait_for(run_id, "EXEC")
    stdout, stderr = (daemon.home.run_logs(run_id) / f"{name}.log" for name in ("stdout", "stderr"))
    # A client hears nothing of them at any moment, also of what was printed just now.
    assert wait_until(lambda: reported(daemon, run_id).count(b"my key is ****") >= 6, poll_s=0.01)
    assert leaks_in(reported(daemon, run_id)) == []
    for log in (stdout, stderr):
        assert wait_until(lambda log=log: not leaks_in(log.read_bytes()))
    daemon.client.cancel(run_id)
    assert daemon.wait_for(run_id).outcome == "cancelled"
    assert received(daemon.home, run_id) == EXPECTED
    assert leaks_in(reported(daemon, run_id)) == []


def test_a_queued_run_keeps_its_secrets_over_a_restart_and_a_cancelled_one_never_used_them(
    daemon: RunningDaemon,
) -> None:
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.wait_for(daemon.submit(timesteps=10**6, steps_per_second=50, resources=everything).run_id, "EXEC")
    queued = [daemon.client.submit(blabber(resources=everything)).run.run_id for _ in range(2)]
    assert leaks(daemon.home.root) == []
    daemon.restart()
    assert leaks(daemon.home.root) == []
    daemon.client.cancel(queued[1])
    assert daemon.wait_for(queued[1]).outcome == "cancelled"
    daemon.client.cancel(blocker.run_id)
    assert daemon.wait_for(queued[0]).outcome == "completed"
    assert received(daemon.home, queued[0]) == EXPECTED
    assert leaks_in(reported(daemon, queued[0]) + reported(daemon, queued[1])) == []


def test_what_was_printed_while_no_daemon_lived_is_cleaned_by_the_next_one(daemon: RunningDaemon) -> None:
    run_id = daemon.client.submit(blabber(wait=True)).run.run_id
    run = daemon.wait_for(run_id, "EXEC")
    daemon.kill()
    with (daemon.home.run_logs(run_id) / "stdout.log").open("ab") as log:
        log.write(f"a late word: {KEY}\n".encode())
    daemon.start()
    assert wait_until(lambda: "a late word: ****" in daemon.output(run_id))
    assert daemon.client.get(run_id).pid == run.pid
    daemon.client.cancel(run_id)
    daemon.wait_for(run_id)


def test_archives_hold_no_secret_and_a_deleted_run_leaves_none(daemon: RunningDaemon, tmp_path: Path) -> None:
    run_id = finished(daemon, "completed")
    # Even what a user puts into the run's folder afterwards is masked on its way out.
    note = daemon.home.run_folder(run_id).root / "wandb" / "mine.bin"
    note.write_bytes(b"\0" * 70_000 + KEY.encode() + b"\0")
    archive = tmp_path / "run.tar.gz"
    archive.write_bytes(b"".join(chunk.data for chunk in daemon.client.export(run_id)))
    note.unlink()
    assert leaks_in(archive.read_bytes() + gzip.decompress(archive.read_bytes())) == []
    assert leaks(daemon.home.root) == []
    daemon.client.archive(run_id)
    secrets = daemon.config_home / "secrets.json"
    assert leaks_in(secrets.read_bytes()) != []  # where they are meant to lie
    daemon.client.delete(run_id)
    assert leaks_in(secrets.read_bytes()) == []
    assert daemon.client.import_archive(archive).outcome == "completed"
    assert leaks_in(reported(daemon, run_id)) == []
    assert leaks(daemon.home.root) == []


def test_a_key_that_the_person_entered_serves_runs_that_track_and_bring_none(daemon: RunningDaemon) -> None:
    UserSecrets(daemon.config_home).put(WANDB_API_KEY, KEY)
    nobody = hashlib.sha256(b"").hexdigest()
    for tracks, expected in ((True, EXPECTED["WANDB_API_KEY"]), (False, nobody)):
        config = blabber()
        extras = config["metadata"]["worker"]["config"]["extras"]
        del extras["wandb_api_key"]
        extras |= {"track_wandb": tracks, "notes": ""}
        config |= {"run_name": "quiet", "tags": []}
        run = daemon.wait_for(daemon.client.submit(config).run.run_id)
        assert received(daemon.home, run.run_id)["WANDB_API_KEY"] == expected
        assert leaks_in(reported(daemon, run.run_id)) == []


def test_what_people_write_about_a_run_later_is_cleaned_of_its_secrets(daemon: RunningDaemon) -> None:
    run_id = finished(daemon, "completed")
    run = daemon.client.update(run_id, name=f"again {KEY}", notes=f"{PROXY} and {PASSWORD}", add_tags=[f"x-{KEY}"])
    assert leaks_in(str(run).encode()) == []
    assert run.name.startswith("again ")
    assert leaks_in(reported(daemon, run_id)) == []


def test_a_refused_config_is_not_remembered(daemon: RunningDaemon) -> None:
    config = blabber()
    config["scheduling"] = {"priority": KEY}
    config["resources"]["memory_mb"] = f"-{KEY}"
    config["metadata"]["worker"]["config"]["seed"] = KEY
    with pytest.raises(InvalidConfig) as refused:
        daemon.client.submit(config)
    assert len(refused.value.problems) == 3
    assert leaks_in(str(refused.value).encode()) == []
    impossible = blabber(resources={"cpus": {"requested": 4096}})
    with pytest.raises(InvalidConfig) as refused:
        daemon.client.submit(impossible)
    assert leaks_in(str(refused.value).encode()) == []
