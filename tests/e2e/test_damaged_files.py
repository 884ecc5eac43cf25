"""Fault 7, the daemon's side: files cut short or with a flipped bit. Never a crash, never taken at their word."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, NotAllowed, NotPossibleNow, SecretStoreError
from gym_gui.services.trainer.local_daemon import running_record, start_daemon
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, random_config, scripted_config
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.files import read_json_object
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 50}


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def damaged(data: bytes, *, cuts: int, flips: int, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """The same content in pieces, and with single bits turned over."""
    rng = random.Random(seed)
    for _ in range(cuts):
        length = rng.randrange(len(data) - 2)
        yield f"cut after {length} bytes", data[:length]
    for _ in range(flips):
        position, bit = rng.randrange(len(data)), rng.randrange(8)
        yield f"bit {bit} of byte {position} turned over", flipped(data, position, bit)


# ---------------------------------------------------------------------- the config of a run that waits


def test_a_queued_run_whose_config_was_damaged_fails_and_reports_it_or_runs_what_was_asked(
    daemon: RunningDaemon,
) -> None:
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.wait_for(daemon.submit(**ENDLESS, resources=everything).run_id, "EXEC")
    whole = [daemon.submit(timesteps=3, seed=number, resources=everything).run_id for number in range(24)]
    daemon.kill()
    asked, damage = {}, {}
    for run_id in whole:
        file = daemon.home.config_file(run_id)
        data = file.read_bytes()
        asked[run_id] = json.loads(data)["metadata"]["worker"]["config"]
        index = len(damage)
        if index < 20:
            damage[run_id], content = list(damaged(data, cuts=8, flips=12, seed=7))[index]
            file.write_bytes(content)
        elif index == 20:
            damage[run_id] = "removed"
            file.unlink()
        else:  # a bit that leaves it valid JSON of the right shape, and asks for something else
            word = (b'"total_timesteps": 3', b'"seed": 22', b'"algo": "random"')[index - 21]
            damage[run_id] = f"changed {word!r}"
            file.write_bytes(flipped(data, data.index(word) + len(word) - 1 - word.endswith(b'"')))
    daemon.start()
    daemon.client.cancel(blocker.run_id)
    refused = 0
    for run_id in whole:
        run = daemon.wait_for(run_id)
        if run.outcome == "completed":
            config = read_json_object(daemon.home.worker_config_file(run_id))
            assert config == asked[run_id], damage[run_id]
        else:
            assert "it could not be started: its config" in run.reason, (damage[run_id], run.reason)
            assert str(daemon.home.config_file(run_id)) in run.reason
            assert "submit the run again" in run.reason
            refused += 1
    assert refused >= 20  # a bit in the checksum's own name hurts nothing
    assert "Traceback" not in daemon.log()


def test_a_finished_run_whose_config_was_damaged_cannot_be_continued_and_says_why(daemon: RunningDaemon) -> None:
    run_id = daemon.wait_for(daemon.submit(timesteps=10, checkpoint_every=5).run_id).run_id
    file = daemon.home.config_file(run_id)
    data = file.read_bytes()
    seed = data.index(b'"seed": 1') + 8
    for content in (b"", data[:100], flipped(data, seed), b"{}", b'{"metadata": {"worker": []}}', b"[1]"):
        file.write_bytes(content)
        with pytest.raises(NotPossibleNow, match="cannot be continued, its config is unreadable"):
            daemon.client.resume(run_id, additional_timesteps=5)
    file.write_bytes(data)
    assert daemon.client.resume(run_id, additional_timesteps=5).parent.step == 10


def test_a_worker_config_that_is_damaged_before_the_worker_reads_it_is_refused_by_the_worker(
    daemon: RunningDaemon,
) -> None:
    # A program that damages the file and then becomes the worker.
    install_scripted_worker(daemon.home, "unlucky", "")
    script = daemon.home.workers / "unlucky" / "worker.py"
    script.write_text(
        "import os, sys, pathlib\n"
        "file = pathlib.Path(os.environ['MOSAIC_CONFIG_FILE'])\n"
        "data = file.read_bytes()\n"
        "at = data.index(b'\"total_timesteps\": 7') + 19\n"
        "file.write_bytes(data[:at] + b'8' + data[at + 1:] if b'\"seed\": 1,' in data else data[:50])\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'random_worker.cli', *sys.argv[1:]])\n"
    )
    for seed in (1, 2):
        config = scripted_config("unlucky", timesteps=7, seed=seed)
        run = daemon.wait_for(daemon.client.submit(config).run.run_id)
        assert run.outcome == "failed"
        assert run.reason.startswith("it refused its config: worker config "), run.reason
        reported = json.loads(list(daemon.client.history(run.run_id))[-1].payload_json)["stderr_tail"]
        assert str(daemon.home.worker_config_file(run.run_id)) in reported
        assert "half-written" in reported


# ---------------------------------------------------------------------- what a worker left while no daemon lived

WAITER = """
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.manifest import AnalyticsManifest
session = open_session(supports_checkpointing=True)
folder = session.run_folder
entry = write_checkpoint(folder, 5, {"algo": "script"})
manifest = AnalyticsManifest(config.run_id, SCRIPT_NAME, checkpoints=(entry,))
manifest.write(folder.manifest)
session.started()
go = Path(os.environ["MOSAIC_HOME"], "go")
while not go.exists():
    time.sleep(0.02)
session.finish(ExitOutcome.COMPLETED, payload={"step": 77}, exit_code=0, manifest=manifest)
"""


def last_line(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def applied(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return b"".join([*lines[:-1], change(lines[-1])])

    return applied


def at(word: bytes) -> Callable[[bytes], bytes]:
    """Turn over the lowest bit of a word's last byte."""
    return lambda data: flipped(data, data.rindex(word) + len(word) - 1)


LEFT: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "lifecycle is empty": ("lifecycle.jsonl", lambda data: b"", "without reporting run_completed"),
    "lifecycle lost its last line": ("lifecycle.jsonl", last_line(lambda line: b""), "without reporting run_completed"),
    "lifecycle's last line is torn": (
        "lifecycle.jsonl",
        last_line(lambda line: line[: len(line) // 2]),
        "without reporting run_completed",
    ),
    "lifecycle's last event is another": ("lifecycle.jsonl", at(b"run_completed"), "without reporting run_completed"),
    "lifecycle's last step is another": ("lifecycle.jsonl", at(b'"step":77'), "without reporting run_completed"),
    "lifecycle has rubbish behind": ("lifecycle.jsonl", lambda data: data + b'\xff{"event":', "completed"),
    "exit.json is cut": ("exit.json", lambda data: data[: len(data) // 2], "left no exit.json"),
    "exit.json has another exit code": ("exit.json", at(b'"exit_code": 0'), "left no exit.json"),
    "exit.json is of another run": ("exit.json", at(b'"attempt": 1'), "left no exit.json"),
    "analytics.json is cut": ("analytics.json", lambda data: data[: len(data) // 2], "completed"),
    "analytics.json is empty": ("analytics.json", lambda data: b"", "completed"),
    "analytics.json names another step": ("analytics.json", at(b'"step": 5'), "completed"),
}


def test_what_a_worker_left_is_believed_only_when_it_is_whole(make_daemon) -> None:
    daemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "waiter", WAITER, supports_checkpointing=True)
    daemon.start()
    runs = {kind: daemon.client.submit(scripted_config("waiter")).run.run_id for kind in LEFT}
    for run_id in runs.values():
        daemon.wait_for(run_id, "EXEC")
    daemon.kill()
    (daemon.home.root / "go").touch()
    for kind, run_id in runs.items():
        assert wait_until(lambda run_id=run_id: not processes_of(run_id), timeout_s=60)
        name, change, _ = LEFT[kind]
        file = daemon.home.run_folder(run_id).root / name
        whole = file.read_bytes()
        file.write_bytes(change(whole))
        assert file.read_bytes() != whole
    daemon.start()
    for kind, run_id in runs.items():
        name, _, expected = LEFT[kind]
        run = daemon.wait_for(run_id)
        assert expected in run.reason, (kind, run.reason)
        assert run.outcome == ("completed" if expected == "completed" else "failed"), kind
        # Whatever was left, there is a sound manifest now, and the checkpoint is in it.
        manifest = daemon.manifest(run_id)
        assert manifest.outcome == run.outcome, kind
        assert [entry.step for entry in manifest.checkpoints] == [5], kind
        if name == "analytics.json" or run.outcome == "failed":
            assert manifest.finalised_by == "daemon", kind
        assert sum(event.to_status == "TERM" for event in daemon.client.history(run_id)) == 1, kind
    assert "Traceback" not in daemon.log()


def test_the_newest_checkpoint_that_is_whole_is_used(daemon: RunningDaemon) -> None:
    run_id = daemon.wait_for(daemon.submit(timesteps=30, checkpoint_every=10).run_id).run_id
    folder = daemon.home.run_folder(run_id)
    state = {step: folder.checkpoints / f"step-{step}" / "state.json" for step in (10, 20, 30)}
    data = state[30].read_bytes()
    state[30].write_bytes(flipped(data, data.index(b'"step": 30') + 8))
    assert daemon.client.resume(run_id, additional_timesteps=5).parent.step == 20
    with pytest.raises(NotPossibleNow, match=r"checkpoint '30' of run .* is damaged: .* SHA-256 differs"):
        daemon.client.resume(run_id, additional_timesteps=5, checkpoint="30")
    folder.manifest.write_bytes(folder.manifest.read_bytes()[:200])
    state[20].write_bytes(b"")
    assert daemon.client.resume(run_id, additional_timesteps=5).parent.step == 10
    with pytest.raises(NotPossibleNow, match="has no readable manifest"):
        daemon.client.resume(run_id, additional_timesteps=5, checkpoint="10")
    state[10].unlink()
    with pytest.raises(NotPossibleNow, match="left no usable checkpoint"):
        daemon.client.resume(run_id, additional_timesteps=5)


# ---------------------------------------------------------------------- the daemon's own files


def test_a_damaged_daemon_json_misleads_no_client(daemon: RunningDaemon) -> None:
    file = daemon.home.daemon_record
    data = file.read_bytes()
    whole = running_record(daemon.home)
    cases = [*damaged(data, cuts=100, flips=300), ("empty", b""), ("a list", b"[]"), ("rubbish", b"\xff" * 100)]
    astray = 0
    for kind, content in cases:
        file.write_bytes(content)
        found = running_record(daemon.home)
        assert found in (None, whole), kind
        astray += found is not None
    assert astray < 60  # spaces, and the checksum's own name
    file.write_bytes(data[:50])
    with pytest.raises(DaemonUnreachable, match="no trainer daemon runs"):
        TrainerClient.connect(daemon.home)
    # A second start reports which daemon serves the home; nothing is started twice.
    with pytest.raises(DaemonUnreachable, match=f"a daemon \\(pid {daemon.pid}\\) already serves {daemon.home.root}"):
        start_daemon(daemon.home, timeout_s=30)
    daemon.restart()
    assert daemon.client.health().pid == daemon.pid


def test_a_damaged_token_refuses_everyone_and_is_reported_at_the_next_start(daemon: RunningDaemon) -> None:
    file = daemon.home.token
    data = file.read_bytes()
    daemon.client.close()
    for content in (flipped(data, 5), data[:-5], b"", b"\xff\xfe" * 32, data.upper() if data.islower() else data[::-1]):
        file.write_bytes(content)
        with pytest.raises(NotAllowed), TrainerClient.connect(daemon.home) as client:
            client.health()
    file.write_bytes(data)
    daemon.stop()
    for content in (data[:-5], b"\xff\xfe" * 32, b"0" * 1_000_000):
        file.write_bytes(content)
        refused = daemon.attempt()
        assert refused.returncode == 1
        assert len(refused.stderr.splitlines()) == 1
        assert f"{file} does not hold a token; delete it" in refused.stderr
    file.unlink()
    daemon.start()
    assert daemon.client.health().pid == daemon.pid
    assert file.read_bytes() != data


def problems_with(settings: Path) -> str:
    try:
        load_settings(settings)
    except ConfigProblems as problems:
        return str(problems)
    return f"{settings} has none"  # fewer lines, another number: a person may have written that


def test_damaged_settings_are_reported_and_nothing_is_started_with_half_of_them(make_daemon) -> None:
    daemon = make_daemon(start=False)
    file = daemon.config_home / "settings.toml"
    good = 'heartbeat_s = 0.5\nsilence_s = 20\nport = 0\non_end_command = ["/bin/true", "ä"]\n'
    data = good.encode()
    file.write_bytes(data)
    whole = load_settings(file)
    cuts = [(f"cut after {length}", data[:length]) for length in range(len(data))]
    for kind, content in (*cuts, *damaged(data, cuts=0, flips=300)):
        file.write_bytes(content)
        assert str(file) in problems_with(file), kind  # and never another error
    for content in (data[:-20], b"\xff\xfe", data.replace(b"silence_s", b"silence_z"), data.replace(b"20", b"'2'")):
        file.write_bytes(content)
        refused = daemon.attempt()
        assert refused.returncode == 2
        assert f"the settings file {file}" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not daemon.home.database.exists()
    file.write_bytes(data)
    assert load_settings(file) == whole


def test_a_damaged_secret_file_stops_the_runs_that_need_it_and_no_other(daemon: RunningDaemon) -> None:
    key = {"wandb_api_key": "0123456789abcdef0123"}
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    live = daemon.wait_for(daemon.client.submit(random_config(**ENDLESS, extras=key)).run.run_id, "EXEC")
    blocker = daemon.wait_for(daemon.submit(**ENDLESS, resources=everything).run_id, "EXEC")
    queued = daemon.client.submit(random_config(timesteps=3, resources=everything, extras=key)).run.run_id
    plain = daemon.submit(timesteps=3, resources=everything).run_id
    file = daemon.config_home / "secrets.json"
    data = file.read_bytes()
    for kind, content in damaged(data, cuts=3, flips=3):
        file.write_bytes(content)
        with pytest.raises(SecretStoreError, match=f"{file}"):
            daemon.client.submit(random_config(timesteps=3, extras=key))
        assert file.read_bytes() == content, kind  # left for the person to repair
    file.write_bytes(flipped(data, data.index(b"0123456789") + 3))
    daemon.restart()
    # A run that lives has its key already; it goes on, is watched, and can be ended.
    assert daemon.client.get(live.run_id).pid == live.pid
    daemon.client.cancel(blocker.run_id)
    ended = daemon.wait_for(queued)
    assert ended.outcome == "failed"
    assert f"repair or remove {file}" in ended.reason
    assert daemon.wait_for(plain).outcome == "completed"
    assert daemon.wait_for_run(live.run_id, lambda run: run.step > live.step).status == "EXEC"
    daemon.client.cancel(live.run_id)
    assert daemon.wait_for(live.run_id).outcome == "cancelled"
    file.write_bytes(data)
    # Whoever removes the file instead of repairing it loses what was in it; a run is not started without its key.
    blocker = daemon.wait_for(daemon.submit(**ENDLESS, resources=everything).run_id, "EXEC")
    queued = daemon.client.submit(random_config(timesteps=3, resources=everything, extras=key)).run.run_id
    file.unlink()
    daemon.client.cancel(blocker.run_id)
    assert "its secrets (wandb_api_key) are not stored here; submit the run again" in daemon.wait_for(queued).reason
    again = daemon.client.submit(random_config(timesteps=3, extras=key)).run.run_id
    assert daemon.wait_for(again).outcome == "completed"
    assert "Traceback" not in daemon.log()


def test_what_the_catalog_kept_is_asked_for_again_when_it_is_damaged(daemon: RunningDaemon) -> None:
    daemon.wait_for(daemon.submit(timesteps=3).run_id)
    kept = daemon.home.cache / "describe" / "random.json"
    data = kept.read_bytes()
    kept.write_bytes(data.replace(b"random_worker.cli", b"random_worker.evl"))
    daemon.restart()
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"
    assert kept.read_bytes() == data


def test_a_damaged_worker_json_is_listed_with_its_problem_and_hurts_no_other_worker(daemon: RunningDaemon) -> None:
    install_scripted_worker(daemon.home, "third", "session = open_session()\n")
    file = daemon.home.workers / "third" / "worker.json"
    data = file.read_bytes()
    for content in (data[: len(data) // 2], b"", b"\xff" * 50, data.replace(b'"argv"', b'"argw"')):
        file.write_bytes(content)
        workers = {worker.name: worker for worker in daemon.client.workers(refresh=True)}
        assert not workers["third"].spec_json
        assert str(file) in workers["third"].problem
        assert workers["random"].spec_json
    assert Path(file).read_bytes() == content
