"""Fault 17 and bad input: hostile archives, run ids and configs are refused with the reason; nothing is written."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import ArchiveRefused, InvalidConfig, NotPossibleNow, RunNotFound, TrainerError
from gym_gui.testing import RunningDaemon, random_config
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb

UNKNOWN_RUN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture(scope="module")
def daemon(shared_daemon: RunningDaemon) -> RunningDaemon:
    return shared_daemon


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> TrainerClient:
    return daemon.client


@pytest.fixture(scope="module")
def finished(daemon: RunningDaemon) -> str:
    """A run that is over, with a checkpoint."""
    run = daemon.wait_for(daemon.submit(timesteps=20, checkpoint_every=20).run_id)
    assert run.outcome == "completed"
    return run.run_id


@pytest.fixture
def untouched(daemon: RunningDaemon, finished: str):
    """The test must leave every file of the home, and everything around it, as it was; and the daemon unshaken."""
    around = daemon.home.root.parent
    logged = len(daemon.log())

    def content() -> dict[str, int]:
        moving = ("-wal", "-shm", "daemon.log", ".sqlite")
        return {
            str(path.relative_to(around)): path.lstat().st_size
            for path in around.rglob("*")
            if not path.name.endswith(moving) and "/cache/" not in str(path) and path.name != "imports"
        }

    before, runs = content(), len(daemon.client.list(include_archived=True).runs)
    yield
    assert content() == before
    assert len(daemon.client.list(include_archived=True).runs) == runs
    assert "Traceback" not in daemon.log()[logged:]


# ---------------------------------------------------------------------- archives

Members = dict[str, bytes]


def entry(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    header = tarfile.TarInfo(name)
    header.size, header.type, header.linkname, header.mode = len(data), kind, link, 0o777
    return header, data


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for header, data in entries:
            tar.addfile(header, io.BytesIO(data))
    return gzip.compress(raw.getvalue())


def with_manifest(members: Members, *more: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive whose hashes are right: a hostile one that was made with care."""
    reported = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()}
    for header, data in more:
        reported[header.name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = json.dumps({"format": 1, "run_id": "x", "members": reported}).encode()
    files = [entry(name, data) for name, data in {**members, "manifest.json": manifest}.items()]
    return packed(*more, *files)


@pytest.fixture(scope="module")
def members(client: TrainerClient, finished: str) -> Members:
    """The files of an honest archive, of a run that is not here."""
    data = b"".join(chunk.data for chunk in client.export(finished))
    foreign = new_run_id()
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    files.pop("manifest.json")
    return {name: content.replace(finished.encode(), foreign.encode()) for name, content in files.items()}


def altered(members: Members, **changes: Any) -> Members:
    return {**members, "run.json": json.dumps({**json.loads(members["run.json"]), **changes}).encode()}


HOSTILE: dict[str, tuple[Callable[[Members], bytes], str]] = {
    "a path that climbs out": (lambda m: with_manifest(m, entry("run/../../../evil", b"x")), "leaves the archive"),
    "an absolute path": (lambda m: with_manifest(m, entry("/tmp/evil", b"x")), "its path is absolute"),
    "a symbolic link": (lambda m: with_manifest(m, entry("run/l", kind=tarfile.SYMTYPE, link="/etc")), "symbolic link"),
    "a hard link": (
        lambda m: with_manifest(m, entry("run/l", kind=tarfile.LNKTYPE, link="../../token")),
        "a hard link",
    ),
    "a device": (lambda m: with_manifest(m, entry("run/d", kind=tarfile.CHRTYPE)), "a device"),
    "a pipe": (lambda m: with_manifest(m, entry("run/p", kind=tarfile.FIFOTYPE)), "a named pipe"),
    "a file for the daemon": (lambda m: with_manifest(m, entry("token", b"0" * 64)), "does not belong"),
    "a worker of its own": (lambda m: with_manifest(m, entry("workers/evil/worker.json", b"{}")), "does not belong"),
    "a backslash": (lambda m: with_manifest(m, entry("run/..\\evil", b"x")), "backslash"),
    "a file twice": (lambda m: packed(entry("run/a", b"1"), entry("run/a", b"2")), "in the archive twice"),
    "a bomb": (lambda m: with_manifest(m, entry("run/zeros", bytes(64 << 20))), "a zip bomb"),
    "a file its manifest does not name": (
        lambda m: packed(*[entry(name, data) for name, data in m.items()], entry("manifest.json", b'{"format": 1}')),
        "lists no members",
    ),
    "a changed file": (
        lambda m: gzip.compress(gzip.decompress(with_manifest(m)).replace(b'"algo": "random"', b'"algo": "hacked"')),
        "hash differs from the manifest's",
    ),
    "a run id that climbs": (lambda m: with_manifest(altered(m, run_id="../../../../evil")), "is not a run id"),
    "a run that goes on": (lambda m: with_manifest(altered(m, status="EXEC")), "only finished runs"),
    "a number that is text": (lambda m: with_manifest(altered(m, step="many")), "step"),
    "a parent that climbs": (
        lambda m: with_manifest(altered(m, parent={"run_id": "../x", "step": 1, "sha256": "0"})),
        "parent.run_id is not a run id",
    ),
    "another run's story": (
        lambda m: with_manifest({**m, "story.jsonl": m["story.jsonl"].replace(b'"run_id": "0', b'"run_id": "1')}),
        "is not an event of run",
    ),
    "no manifest": (lambda m: packed(entry("run.json", m["run.json"])), "no manifest.json"),
    "half of it": (lambda m: with_manifest(m)[:-400], "truncated|not a valid"),
    "no archive at all": (lambda m: b"PK\3\4 this is a zip", "not a valid .tar.gz"),
    "a pickle": (lambda m: b"\x80\x04\x95\x1f\0\0\0cposix\nsystem\n\x8c\x04evil\x85R.", "not a valid .tar.gz"),
    "nothing": (lambda m: b"", "truncated"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.usefixtures("untouched")
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    client: TrainerClient, members: Members, tmp_path: Path, kind: str
) -> None:
    make, expected = HOSTILE[kind]
    archive = tmp_path / "evil.tar.gz"
    archive.write_bytes(make(members))
    with pytest.raises(ArchiveRefused, match=expected):
        client.import_archive(archive)


def test_the_same_archive_without_anything_hostile_is_taken_in(
    client: TrainerClient, members: Members, tmp_path: Path
) -> None:
    archive = tmp_path / "honest.tar.gz"
    archive.write_bytes(with_manifest(members))
    run = client.import_archive(archive)
    assert run.outcome == "completed"
    with pytest.raises(NotPossibleNow, match="already exists; delete it first"):
        client.import_archive(archive)
    client.delete(run.run_id)


# ---------------------------------------------------------------------- run ids

RUN_IDS = {
    "climbing": "../../../../etc/passwd",
    "absolute": "/etc/passwd",
    "with a NUL": "01ARZ3NDEKTSV4RRFFQ69G5FA\0",
    "with more behind": f"{UNKNOWN_RUN}/../x",
    "with a line break": f"{UNKNOWN_RUN}\n",
    "in small letters": UNKNOWN_RUN.lower(),
    "of other digits": "٠" * 26,
    "too large for its time": "8" + UNKNOWN_RUN[1:],
    "huge": "0" * 1_000_000,
    "empty": "",
}


@pytest.mark.parametrize("kind", RUN_IDS)
@pytest.mark.usefixtures("untouched")
def test_a_run_id_that_is_none_is_refused_by_every_request(client: TrainerClient, kind: str) -> None:
    run_id = RUN_IDS[kind]
    requests: list[Callable[[], object]] = [
        lambda: client.get(run_id),
        lambda: client.cancel(run_id),
        lambda: client.pause(run_id),
        lambda: client.resume(run_id),
        lambda: client.update(run_id, name="x"),
        lambda: client.archive(run_id),
        lambda: client.delete(run_id),
        lambda: client.history(run_id),
        lambda: next(client.logs(run_id)),
        lambda: next(client.export(run_id)),
    ]
    if run_id:  # an empty one means every run
        requests.append(lambda: next(client.watch(run_id=run_id)))
    for request in requests:
        with pytest.raises(TrainerError, match="is not a run id: expected a ULID") as refused:
            request()
        assert len(str(refused.value)) < 300


@pytest.mark.usefixtures("untouched")
def test_an_unknown_run_is_reported(client: TrainerClient) -> None:
    for request in (client.get, client.cancel, client.delete, client.resume, client.pause, client.history):
        with pytest.raises(RunNotFound, match=f"there is no run '{UNKNOWN_RUN}'"):
            request(UNKNOWN_RUN)
    for stream in (client.logs(UNKNOWN_RUN), client.export(UNKNOWN_RUN), client.watch(run_id=UNKNOWN_RUN)):
        with pytest.raises(RunNotFound):
            next(stream)


# ---------------------------------------------------------------------- configs

WORKER = "metadata.worker.config"


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good config with one value set or added."""
    document: Any = random_config(timesteps=5)
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return document


BAD_VALUES: list[tuple[str, Any, str]] = [
    ("resorces", {}, "unknown key 'resorces'.*resources"),
    ("artifacts.notes", "hello", "LOG705.*unknown key 'notes'"),
    ("resources.cpus", "two", "expected a number or an object"),
    ("resources.cpus", {"requested": -1}, "must be at least 0"),
    ("resources.cpus", {"requested": 1e300}, "must be at most 4096"),
    ("resources.cpus", {"requested": "2"}, "expected a number, got a string '2'"),
    ("resources.cpus", True, "expected a number or an object"),
    ("resources.gpus", {"requested": 1, "mandatory": 2}, "must not exceed requested"),
    ("resources.gpus", {"requested": 5000}, "must be at most 4096"),
    ("resources.gpus", {"requested": 0.5}, "expected a whole number"),
    ("resources.memory_mb", -5, "must be at least 16"),
    ("resources.memory_mb", 2**40, "must be at most 1073741824"),
    ("resources.max_wallclock_minutes", 0, "must be greater than 0"),
    ("resources.max_wallclock_minutes", -1, "must be greater than 0"),
    ("scheduling.priority", 10**6, "must be at most 1000"),
    ("scheduling.retries", -1, "must be at least 0"),
    ("scheduling.silence_s", 0, "must be at least 1"),
    ("tags", "fast", "expected a list"),
    ("tags", ["\x1b[2J"], "control characters"),
    ("tags", [f"t{number}" for number in range(101)], "at most 100"),
    ("run_name", "", "must have at least 1 character"),
    ("run_name", "x" * 201, "must have at most 200 characters"),
    ("run_name", "a\nb", "control characters"),
    ("run_name", "NUL \0", "must not contain a NUL"),
    ("metadata.worker.type", "randm", "there is no worker 'randm'.*random"),
    ("metadata.worker.type", "../../evil", "there is no worker"),
    ("metadata.worker.module", "os", "the module of worker 'random' is not.*random_worker.cli"),
    (f"{WORKER}.algo", "rando", "'rando'.*random"),
    (f"{WORKER}.total_timesteps", 0, "a whole number above 0"),
    (f"{WORKER}.total_timesteps", 2**64, "does not fit into 64 bits"),
    (f"{WORKER}.seed", -1, "not negative"),
    (f"{WORKER}.run_id", "../../evil", "the daemon chooses the id"),
    (f"{WORKER}.extras.tensorboard_dir", "/etc", "must stay inside the run folder"),
    (f"{WORKER}.extras.tensorboard_dir", "../../x", "must stay inside the run folder"),
    (f"{WORKER}.extras.notes", "${HOME}", "cannot be expanded"),
    (f"{WORKER}.extras.algo_params", [], "expected an object"),
    (f"{WORKER}.extras.algo_params.slep_s", 1, "slep_s.*sleep_s"),
    (f"{WORKER}.extras.algo_params.sleep_s", "long", "sleep_s"),
]


@pytest.mark.usefixtures("untouched")
def test_each_bad_value_is_refused_with_its_place_and_what_was_expected(client: TrainerClient) -> None:
    for path, value, expected in BAD_VALUES:
        with pytest.raises(InvalidConfig, match=f"(?s){expected}") as refused:
            client.submit(changed(path, value))
        places = [problem.path for problem in refused.value.problems]
        assert any(place.startswith(path) for place in places), (path, value, places)


@pytest.mark.usefixtures("untouched")
def test_all_problems_of_a_config_are_reported_at_once(client: TrainerClient) -> None:
    config = changed("resources.cpus", -1)
    config["extra"] = 1
    config["scheduling"]["retries"] = "often"
    config["metadata"]["worker"]["config"] |= {"algo": "randon", "seed": 0.5, "steps": 4}
    with pytest.raises(InvalidConfig, match="6 problems") as refused:
        client.submit(config)
    assert {problem.path for problem in refused.value.problems} == {
        "resources.cpus.requested",
        "extra",
        "scheduling.retries",
        *(f"{WORKER}.{key}" for key in ("algo", "seed", "steps")),
    }


UNREADABLE = {
    "": "not valid JSON",
    "{": "not valid JSON.*line 1",
    "null": "expected a JSON object, got null",
    "[]": "expected a JSON object, got a list",
    '"config"': "expected a JSON object, got a string",
    '{"metadata": NaN}': "NaN is not a JSON number",
    '{"a": 1, "a": 2}': "is repeated",
    '{"a": 1e999}': "finite number",
    '{"a": ' + "9" * 5000 + "}": "too many digits|64 bits",
    '{"a": "\\ud800"}': "valid Unicode",
    "[" * 100_000: "nested deeper",
    '{"a":' * 500 + "1" + "}" * 500: "nested deeper",
    json.dumps({"notes": "x" * (2 << 20)}): "larger than 1048576 bytes",
    json.dumps({f"k{number}": 1 for number in range(2000)}): "more than 500",
    "run_name: yaml\n": "not valid JSON",
}


@pytest.mark.usefixtures("untouched")
def test_a_config_that_cannot_be_read_is_refused_in_one_sentence(client: TrainerClient) -> None:
    for text, expected in UNREADABLE.items():
        with pytest.raises(InvalidConfig, match=expected):
            client.submit(text)
    with pytest.raises(TrainerError, match="larger than max"):
        client.submit("x" * (17 << 20))


def test_a_request_no_machine_can_meet_is_refused_with_the_reason(daemon: RunningDaemon) -> None:
    for resources, expected in (
        ({"cpus": {"requested": 4096}}, "4096 CPUs"),
        ({"gpus": {"requested": 64, "mandatory": 64}}, "64 GPUs"),
        ({"memory_mb": 2**30}, "1073741824 MB"),
    ):
        with pytest.raises(InvalidConfig, match=f"resources.*needs {expected}"):
            daemon.submit(resources=resources)


def test_a_checkpoint_from_somewhere_else_is_not_believed(daemon: RunningDaemon, tmp_path: Path) -> None:
    for name, content in (("pickle", b"\x80\x04cposix\nsystem\n."), ("json", b'{"step": 5, "files": {"x": "0"}}')):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "state.json").write_bytes(content)
        extras = {"mode": "resume_training", "checkpoint_path": str(folder)}
        run = daemon.wait_for(daemon.client.submit(random_config(timesteps=10, extras=extras)).run.run_id)
        assert (run.outcome, run.step) == ("failed", 0)
        last = list(daemon.client.history(run.run_id))[-1]
        assert str(folder) in json.loads(last.payload_json)["stderr_tail"]


# ---------------------------------------------------------------------- other requests


@pytest.mark.usefixtures("untouched")
def test_odd_requests_are_refused_or_answered_but_never_shake_the_daemon(client: TrainerClient, finished: str) -> None:
    with pytest.raises(NotPossibleNow, match=r"there is no log '../../trainer/token'; a run has stdout"):
        next(client.logs(finished, "../../trainer/token"))
    with pytest.raises(NotPossibleNow, match="cannot show the last -5 bytes"):
        next(client.logs(finished, tail_bytes=-5))
    assert b"run_started" in b"".join(chunk.data for chunk in client.logs(finished, tail_bytes=2**62))
    with pytest.raises(NotPossibleNow, match=r"has no checkpoint '../../../etc'; it has: checkpoints/step-20"):
        client.resume(finished, additional_timesteps=5, checkpoint="../../../etc")
    with pytest.raises(NotPossibleNow, match="cannot extend by -5"):
        client.resume(finished, additional_timesteps=-5)
    with pytest.raises(InvalidConfig, match="64 bits"):
        client.resume(finished, additional_timesteps=2**63 - 1)
    with pytest.raises(NotPossibleNow, match="trained all of its 20 timesteps"):
        client.resume(finished)
    with pytest.raises(InvalidConfig, match="idempotency_key"):
        client.submit(random_config(), idempotency_key="k" * 100_000)
    for change in ({"name": "\x1b]0;x\a"}, {"name": " "}, {"notes": "\x1b[2J"}, {"add_tags": ["a\nb"]}):
        with pytest.raises(InvalidConfig, match=r"control characters|visible character"):
            client.update(finished, **change)
    with pytest.raises(InvalidConfig, match="at most 100 tags"):
        client.update(finished, add_tags=[f"tag {number}" for number in range(101)])
    for text in ("%", "'; DROP TABLE runs; --", "\0", "x" * 100_000):
        assert client.list(text=text, include_archived=True).matching == 0
    assert client.list(statuses=["NOPE"]).matching == client.list(run_id_prefix="../%").matching == 0
    assert client.get(finished).outcome == "completed"


@pytest.mark.usefixtures("untouched")
def test_a_saved_filter_is_a_named_object_or_nothing(client: TrainerClient) -> None:
    for name, text, expected in (
        ("", "{}", "1 to 100 printable"),
        ("x" * 101, "{}", "1 to 100 printable"),
        ("\x1b[1m", "{}", "1 to 100 printable"),
        ("odd", "[]", "expected a JSON object"),
        ("odd", "{", "not valid JSON"),
        ("odd", "[" * 100_000, "nested deeper"),
    ):
        with pytest.raises(NotPossibleNow, match=expected):
            client._call(client._stub.SaveFilter, pb.SavedFilter(name=name, query_json=text))
    assert client.filters() == {}
