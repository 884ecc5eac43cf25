"""A worker that registers megabytes, names its curves with megabytes or counts to 2^62 makes no listing longer."""

from __future__ import annotations

import json

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.limits import MAX_METRIC_TAG, MAX_STEP
from mosaic_wire.testing import wait_until

# It calls the daemon itself, past everything that its session would refuse.
RAW = """
import grpc
from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub

stub = TrainerServiceStub(grpc.insecure_channel(target))
answers = []

def register(extras, **names):
    request = pb.RegisterWorkerRequest(run_id=config.run_id, attempt=1, protocol_version=PROTOCOL_VERSION,
        instance="one", capabilities_json=json.dumps(WorkerCapabilities(SCRIPT_NAME).to_json()),
        extras_json=json.dumps(extras), **names)
    try:
        token = ("x-mosaic-run-token", os.environ["MOSAIC_RUN_TOKEN"])
        return stub.RegisterWorker(request, metadata=[token]).session_token
    except grpc.RpcError as error:
        answers.append(error.details())

register({"notes": "x" * (15 << 20)})
register({}, algo="x" * (1 << 20))
session = register({"depth": 3})
columns = [pb.MetricColumn(tag=tag, steps=[step], wall_times=[1.0], values=[1.0])
           for tag, step in (("charts/" + "x" * (14 << 20), 5), ("charts/far", 1 << 62), ("charts/near", 7))]
request = pb.PublishRunMetricsRequest(run_id=config.run_id, after_json="{}", folders=[pb.MetricFolder(columns=columns)])
stub.PublishRunMetrics(request, metadata=[("x-mosaic-session-token", session)])
(run_folder_of(config.run_id).root / "answers.json").write_text(json.dumps(answers))
while True:
    stub.Heartbeat(pb.HeartbeatRequest(run_id=config.run_id, step=3), metadata=[("x-mosaic-session-token", session)])
    time.sleep(0.1)
"""
# A worker that uses its session as it should, for a training that names its curves as it likes.
HONEST = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from mosaic_wire.errors import SessionError

try:
    config.extras["notes"] = "x" * (15 << 20)
    open_session()
except SessionError as error:
    print(error, file=sys.stderr)
del config.extras["notes"]
os.environ["MOSAIC_RUN_TOKEN"] = TOKEN
session = open_session()
session.started({})
folder = run_folder_of(config.run_id).tensorboard
writer = EventFileWriter(str(folder))
for tag, step in (("charts/" + "x" * 100_000, 5), ("charts/far", 1 << 62), ("charts/near", 7)):
    writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=1.0)])))
writer.close()
session.follow_metrics(folder)
session.finish(ExitOutcome.FAILED, reason="x" * 1_000_000, exit_code=1)
sys.exit(1)
"""


@pytest.fixture
def daemon(emptied_daemon: RunningDaemon) -> RunningDaemon:
    return emptied_daemon


def test_the_daemon_refuses_what_is_too_long_and_says_how_long_it_may_be(daemon: RunningDaemon) -> None:
    install_scripted_worker(daemon.home, "raw", RAW)
    run_id = daemon.client.submit(scripted_config("raw", timesteps=100)).run.run_id
    answers = daemon.home.run_folder(run_id).root / "answers.json"
    assert wait_until(answers.exists, timeout_s=60), daemon.log()
    reported = json.loads(answers.read_text())
    assert ["extras (as JSON) has" in reported[0], "are the most that MOSAIC takes" in reported[1]] == [True, True]
    run = daemon.wait_for_run(run_id, lambda run: run.metrics)
    assert json.loads(run.extras_json) == {"depth": 3}
    assert dict(run.metrics).keys() == {"charts/far", "charts/near"}
    assert run.step == 7  # the step of the only point that can be the run's
    assert daemon.client.list().ByteSize() < 100_000
    assert {tag.tag for tag in daemon.client.metric_tags(run_id)} == {"charts/far", "charts/near"}


def test_the_session_of_a_worker_does_not_send_what_is_too_long(daemon: RunningDaemon) -> None:
    install_scripted_worker(daemon.home, "honest", f"TOKEN = os.environ['MOSAIC_RUN_TOKEN']\n{HONEST}")
    run = daemon.wait_for(daemon.client.submit(scripted_config("honest")).run.run_id)
    reported = daemon.output(run.run_id, "stderr")
    assert "this worker cannot register: extras (as JSON) has" in reported
    assert reported.count(f"{MAX_METRIC_TAG} are the most that MOSAIC takes") == 1
    assert (run.outcome, len(run.reason) <= 2000) == ("failed", True)
    assert max(len(event.payload_json) for event in daemon.client.history(run.run_id)) < 1 << 18
    assert {tag.tag for tag in daemon.client.metric_tags(run.run_id)} == {"charts/far", "charts/near"}
    assert run.step < MAX_STEP
