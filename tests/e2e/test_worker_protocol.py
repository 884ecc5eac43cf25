"""Workers that do not keep to the protocol: each has a clear outcome, and none gets at another one's run."""

from __future__ import annotations

import json

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.proto import trainer_pb2 as pb

RAW_CALLS = """
import grpc
from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub

stub = TrainerServiceStub(grpc.insecure_channel(target))
run_token = os.environ["MOSAIC_RUN_TOKEN"]
answers = []

def register(run_id=config.run_id, token=run_token, instance="one", protocol=PROTOCOL_VERSION, attempt=1,
             capabilities=json.dumps(WorkerCapabilities(SCRIPT_NAME).to_json()), **fields):
    request = pb.RegisterWorkerRequest(run_id=run_id, attempt=attempt, protocol_version=protocol, instance=instance,
                                       pid=os.getpid(), capabilities_json=capabilities, **fields)
    return ask(stub.RegisterWorker, request, ("x-mosaic-run-token", token))

def beat(token, run_id=config.run_id, **fields):
    return ask(stub.Heartbeat, pb.HeartbeatRequest(run_id=run_id, **fields), ("x-mosaic-session-token", token))

def ask(method, request, *metadata):
    try:
        response = method(request, metadata=metadata, timeout=30)
    except grpc.RpcError as error:
        answers.append([error.code().name, error.details()])
        return ""
    answers.append(["OK", ""])
    return getattr(response, "session_token", "")

def tell():
    (run_folder_of(config.run_id).root / "answers.json").write_text(json.dumps(answers))
"""


@pytest.fixture
def daemon(emptied_daemon: RunningDaemon) -> RunningDaemon:
    return emptied_daemon


def run_scripted(daemon: RunningDaemon, source: str, **parameters) -> tuple[pb.Run, list[list[str]]]:
    """The end of a run of a worker that makes its calls itself, and the answers it got."""
    install_scripted_worker(daemon.home, "raw", f"{RAW_CALLS}\n{source}")
    run = daemon.wait_for(daemon.client.submit(scripted_config("raw", **parameters)).run.run_id)
    file = daemon.home.run_folder(run.run_id).root / "answers.json"
    return run, json.loads(file.read_text()) if file.exists() else []


def test_registering_again_is_harmless_for_the_same_worker_and_refused_for_another(daemon: RunningDaemon) -> None:
    run, answers = run_scripted(
        daemon,
        """
first = register(instance="one")
second = register(instance="one")
beat(second)
beat(first)
register(instance="two")
tell()
sys.exit(4)
""",
    )
    assert [code for code, _ in answers] == ["OK", "OK", "OK", "UNAUTHENTICATED", "FAILED_PRECONDITION"]
    assert "already has a registered worker; a second one is refused" in answers[-1][1]
    assert "exited with code 4" in run.reason
    assert daemon.event_kinds(run.run_id).count("registered") == 1


def test_wrong_tokens_attempts_and_versions_are_refused_and_reported(daemon: RunningDaemon) -> None:
    victim = daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id
    daemon.wait_for(victim, "EXEC")
    before = daemon.client.get(victim)
    run, answers = run_scripted(
        daemon,
        f"""
victim = {victim!r}
register(token="f" * 64)
register(token="")
register(run_id=victim)
register(run_id="01" + "0" * 24)
register(run_id="../../etc")
register(attempt=2)
register(protocol=PROTOCOL_VERSION + 1)
register(capabilities="no JSON")
register(capabilities='{{"worker_type": 5}}')
session = register()
beat(session, run_id=victim, step=999_999_999)
beat("f" * 64)
beat(run_token)
beat(session, step=1)
tell()
""",
    )
    codes = [code for code, _ in answers]
    assert codes == [
        *["UNAUTHENTICATED"] * 4,
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "OK",
        *["UNAUTHENTICATED"] * 3,
        "OK",
    ]
    assert f"speaks protocol {PROTOCOL_VERSION + 1}, this daemon {PROTOCOL_VERSION}" in answers[6][1]
    # It never said run_started nor run_completed: exit 0 is no success.
    assert (run.outcome, "without reporting run_completed" in run.reason) == ("failed", True)
    after = daemon.client.get(victim)
    assert (after.status, after.pid, after.step < 999_999_999) == ("EXEC", before.pid, True)


def test_a_refused_registration_fails_the_run_in_the_daemons_words(daemon: RunningDaemon) -> None:
    install_scripted_worker(
        daemon.home,
        "modern",
        """
        import mosaic_wire.daemon_link
        mosaic_wire.daemon_link.PROTOCOL_VERSION = 99
        from mosaic_wire.errors import SessionError
        try:
            open_session()
        except SessionError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
        """,
    )
    run = daemon.wait_for(daemon.client.submit(scripted_config("modern")).run.run_id)
    assert run.outcome == "failed"
    assert "speaks protocol 99, this daemon 1" in run.reason


def test_a_session_token_is_worthless_once_its_run_is_over(daemon: RunningDaemon) -> None:
    install_scripted_worker(
        daemon.home,
        "leaky",
        f"{RAW_CALLS}\n(run_folder_of(config.run_id).root / 'token').write_text(register())\nsys.exit(0)\n",
    )
    ended = daemon.wait_for(daemon.client.submit(scripted_config("leaky")).run.run_id)
    token = (daemon.home.run_folder(ended.run_id).root / "token").read_text()
    assert len(token) == 64
    _, answers = run_scripted(daemon, f"beat({token!r}, run_id={ended.run_id!r}, step=5)\ntell()\n")
    assert [code for code, _ in answers] == ["UNAUTHENTICATED"]
    assert daemon.client.get(ended.run_id).step == 0


def test_the_run_token_reaches_the_worker_and_none_of_its_children(daemon: RunningDaemon) -> None:
    run_id = daemon.submit(timesteps=1_000_000, steps_per_second=50, spawn_children=1).run_id
    worker = daemon.wait_for(run_id, "EXEC").pid
    daemon.wait_for_run(run_id, lambda run: len(processes_of(run_id)) == 2)
    (child,) = (pid for pid in processes_of(run_id) if pid != worker)
    with open(f"/proc/{child}/environ", "rb") as stream:
        environment = stream.read()
    assert b"MOSAIC_RUN_MARK=" in environment
    assert b"MOSAIC_RUN_TOKEN=" not in environment


@pytest.mark.parametrize(
    ("source", "outcome", "reason"),
    [
        ("session = open_session()\nsession.emit(LifecycleKind.RUN_COMPLETED)\n", "failed", "before run_started"),
        (
            "session = open_session()\nsession.started()\nsession.started()\n"
            "session.finish(ExitOutcome.COMPLETED, exit_code=0)\n",
            "completed",
            "completed",
        ),
        (
            "session = open_session()\nsession.emit(LifecycleKind.RESUMED)\nsession.started()\n"
            "session.finish(ExitOutcome.COMPLETED, exit_code=0)\n",
            "completed",
            "completed",
        ),
        (
            "session = open_session()\nsession.started()\nsession.finish(ExitOutcome.COMPLETED, exit_code=0)\n"
            "sys.exit(9)\n",
            "failed",
            "exited with code 9",
        ),
        (
            "session = open_session()\nsession.started()\nsession.finish(ExitOutcome.RELEASED, exit_code=0)\n",
            "failed",
            "",
        ),
        ("print('no such thing')\nsys.exit(2)\n", "failed", "exited with code 2"),
    ],
    ids=[
        "completed before started",
        "started twice",
        "resumed before started",
        "completed, exit 9",
        "released unasked",
        "bad input",
    ],
)
def test_a_worker_that_says_things_out_of_order_harms_only_itself(
    daemon: RunningDaemon, source: str, outcome: str, reason: str
) -> None:
    install_scripted_worker(daemon.home, "odd", source)
    run = daemon.wait_for(daemon.client.submit(scripted_config("odd")).run.run_id)
    assert (run.outcome, reason in run.reason) == (outcome, True), run.reason
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"
    assert "Traceback" not in daemon.log()


def test_structured_lines_of_a_worker_appear_in_the_daemons_log_once(make_daemon) -> None:
    daemon = make_daemon()
    line = 'LOG503 | the training broke | extra={"loss": "nan"}'
    run_id = daemon.submit(timesteps=1_000_000, steps_per_second=50, print_line=line).run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 20)
    daemon.restart()
    daemon.wait_for_run(run_id, lambda run: run.step > 60)
    daemon.client.cancel(run_id)
    daemon.wait_for(run_id)
    reported = [text for text in daemon.log().splitlines() if "LOG503" in text]
    assert len(reported) == 1
    assert run_id in reported[0]
    assert " ERROR " in reported[0]
    assert "the training broke" in reported[0]
    assert "nan" in reported[0]


def test_what_a_worker_reports_at_registration_is_kept_for_clients(daemon: RunningDaemon) -> None:
    install_scripted_worker(
        daemon.home,
        "renamer",
        f"""{RAW_CALLS}
register(algo="ppo", env_id="CartPole-v1", extras_json=json.dumps({{"api_key": "hush", "depth": 3}}))
tell()
""",
    )
    run = daemon.wait_for(daemon.client.submit(scripted_config("renamer")).run.run_id)
    for kept in (run, daemon.client.get(run.run_id), daemon.client.list().runs[0]):
        assert (kept.algo, kept.env_id, kept.protocol_version) == ("ppo", "CartPole-v1", PROTOCOL_VERSION)
        assert json.loads(kept.capabilities_json)["worker_type"] == "renamer"
        assert json.loads(kept.extras_json) == {"api_key": "•••", "depth": 3}
