"""A small stand-in for the daemon, for tests of its clients: a real gRPC server with runs in a list."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from gym_gui.services.trainer.errors import RunNotFound
from gym_gui.services.trainer.process_tree import ProcessIdentity
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.files import write_json_atomically
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceServicer, add_TrainerServiceServicer_to_server
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

TOKEN = "a" * 64

PPO = AlgorithmSpec(
    "ppo",
    "proximal policy optimization",
    (
        FieldSpec("env_id", "str", "CartPole-v1"),
        FieldSpec("exp_name", "str", "ppo"),
        FieldSpec("seed", "int", 1),
        FieldSpec("total_timesteps", "int", 500_000),
        FieldSpec("learning_rate", "float", 2.5e-4, "Adam's step size", minimum=0, group="Optimizer"),
        FieldSpec("anneal_lr", "bool", True, "let the learning rate fall", group="Optimizer"),
        FieldSpec("num_envs", "int", 4, "environments in parallel", minimum=1),
        FieldSpec("target_kl", "float", None, "stop the epochs beyond this", nullable=True),
        FieldSpec("activation", "str", "tanh", "of the network", choices=("tanh", "relu")),
        FieldSpec("eval_episodes", "int", 0),
        FieldSpec("stop_at_return", "float", None, nullable=True),
    ),
    action_spaces=("discrete",),
    observation_spaces=("vector",),
)
CLEANRL = WorkerSpec(
    name="cleanrl",
    display_name="CleanRL Worker",
    version="1.0",
    capabilities=WorkerCapabilities("cleanrl"),
    module="cleanrl_worker.cli",
    algorithms=(PPO, AlgorithmSpec("dqn", "deep Q-learning"), AlgorithmSpec("script", open_flags=True)),
    environments=("CartPole-v1", "Acrobot-v1", "LunarLander-v3"),
)
REFERENCE = WorkerSpec(
    name="random",
    display_name="Random (reference)",
    version="1.0",
    capabilities=WorkerCapabilities("random"),
    module="random_worker.cli",
    algorithms=(AlgorithmSpec("random"),),
    hidden=True,
)


class FakeTrainer(TrainerServiceServicer):
    """What a test puts into `runs`, `stories` and `logs` is what clients see; what they asked for is in `asked`."""

    def __init__(self) -> None:
        self.runs: list[pb.Run] = []
        self.stories: dict[str, list[pb.StoryEvent]] = {}
        self.logs: dict[str, bytes] = {}
        self.frames: list[pb.RunFrame] = []
        self.filters: dict[str, str] = {}
        self.asked: list[Any] = []
        self.workers: list[WorkerSpec] = [CLEANRL, REFERENCE]
        self.on_watch: Callable[[pb.Run], Iterator[pb.Run]] = lambda run: iter(())
        """The states that a watched run goes through"""
        self.closing = threading.Event()

    def add(self, **fields: Any) -> pb.Run:
        values = {"status": "TERM", "outcome": "completed", "algo": "ppo", "env_id": "CartPole-v1", "attempt": 1}
        run = pb.Run(run_id=new_run_id(), number=len(self.runs) + 1, event_seq=len(self.runs) + 1)
        run.MergeFrom(pb.Run(**{**values, **fields}))
        self.runs.insert(0, run)
        return run

    def _find(self, run_id: str, context: grpc.ServicerContext) -> pb.Run:
        for run in self.runs:
            if run.run_id == run_id:
                return run
        context.set_trailing_metadata((("mosaic-error", "RunNotFound"),))
        context.abort(grpc.StatusCode.NOT_FOUND, str(RunNotFound(run_id)))
        raise AssertionError("abort does not return")

    def _answer(self, request: Any, context: grpc.ServicerContext, **changes: Any) -> pb.Run:
        self.asked.append(request)
        run = self._find(request.run_id, context)
        run.MergeFrom(pb.Run(**changes))
        return run

    def SubmitRun(self, request: pb.SubmitRunRequest, context: grpc.ServicerContext) -> pb.SubmitRunResponse:
        self.asked.append(request)
        config = json.loads(request.config_json)
        if "metadata" not in config:
            problems = json.dumps([["metadata.worker.type", "unknown worker 'clean'", "cleanrl"]]).encode()
            context.set_trailing_metadata((("mosaic-error", "InvalidConfig"), ("mosaic-problems-bin", problems)))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the run config has 1 problem")
        worker = config["metadata"]["worker"]["config"]
        run = self.add(
            status="INIT",
            outcome="",
            seed=worker.get("seed"),
            total=worker["total_timesteps"],
            algo=worker["algo"],
            env_id=worker["env_id"],
            name=config.get("run_name", ""),
        )
        return pb.SubmitRunResponse(run=run)

    def ListRuns(self, request: pb.ListRunsRequest, context: grpc.ServicerContext) -> pb.ListRunsResponse:
        self.asked.append(request)
        runs = [
            run
            for run in self.runs
            if run.run_id.startswith(request.run_id_prefix) and request.text in f"{run.run_id} {run.name}"
        ]
        limited = runs[: request.limit or None]
        return pb.ListRunsResponse(runs=limited, matching=len(runs), last_seq=len(self.runs))

    def WatchRuns(self, request: pb.WatchRunsRequest, context: grpc.ServicerContext) -> Iterator[pb.RunUpdate]:
        self.asked.append(request)
        for run in list(self.runs):
            if request.run_id in ("", run.run_id):
                for state in self.on_watch(run):
                    run.MergeFrom(state)
                    yield pb.RunUpdate(run=run, event=pb.StoryEvent(seq=run.event_seq + 1, run_id=run.run_id))
        while context.is_active() and not self.closing.wait(0.02):
            pass

    def StreamRunLogs(self, request: pb.StreamRunLogsRequest, context: grpc.ServicerContext) -> Iterator[pb.LogChunk]:
        data = self.logs.get(request.stream, b"")
        start = max(0, len(data) - request.tail_bytes) if request.tail_bytes else 0
        for offset in range(start, len(data), 7):
            yield pb.LogChunk(data=data[offset : min(offset + 7, len(data))], offset=offset)

    def StreamFrames(self, request: pb.StreamFramesRequest, context: grpc.ServicerContext) -> Iterator[pb.RunFrame]:
        yield from self.frames

    def GetStory(self, request: pb.GetStoryRequest, context: grpc.ServicerContext) -> pb.GetStoryResponse:
        return pb.GetStoryResponse(events=self.stories.get(request.run_id, []))

    def GetRun(self, request: Any, context: grpc.ServicerContext) -> pb.Run:
        return self._answer(request, context)

    def CancelRun(self, request: Any, context: grpc.ServicerContext) -> pb.Run:
        if self._find(request.run_id, context).status == "TERM":
            context.set_trailing_metadata((("mosaic-error", "NotPossibleNow"),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it has ended already")
        return self._answer(request, context, flags=["cancelling"])

    def CancelRuns(self, request: Any, context: grpc.ServicerContext) -> pb.CancelRunsResponse:
        self.asked.append(request)
        over = {run.run_id for run in self.runs if run.status == "TERM"}
        for run in self.runs:
            if run.run_id in request.run_ids and run.run_id not in over:
                run.flags.append("cancelling")
        return pb.CancelRunsResponse(
            refused={run_id: "it has ended already" for run_id in request.run_ids if run_id in over}
        )

    def PauseRun(self, request: Any, context: grpc.ServicerContext) -> pb.Run:
        return self._answer(request, context, status="PAUSE")

    def ResumeRun(self, request: Any, context: grpc.ServicerContext) -> pb.Run:
        parent = self._answer(request, context)
        return self.add(status="INIT", outcome="", parent=pb.ParentRun(run_id=parent.run_id, step=parent.step))

    def UpdateRun(self, request: Any, context: grpc.ServicerContext) -> pb.Run:
        changes = {name: getattr(request, name) for name in ("name", "notes", "priority") if request.HasField(name)}
        return self._answer(request, context, tags=request.add_tags, **changes)

    def ArchiveRun(self, request: Any, context: grpc.ServicerContext) -> pb.Run:
        return self._answer(request, context, archived=request.archived)

    def DeleteRun(self, request: Any, context: grpc.ServicerContext) -> pb.DeleteRunResponse:
        self.runs.remove(self._answer(request, context))
        return pb.DeleteRunResponse(freed_bytes=2048)

    def ExportRun(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.ArchiveChunk]:
        self._find(request.run_id, context)
        yield from (pb.ArchiveChunk(data=data) for data in (b"one", b"two"))

    def ImportRun(self, chunks: Iterator[pb.ArchiveChunk], context: grpc.ServicerContext) -> pb.Run:
        return self.add(name=b"".join(chunk.data for chunk in chunks).decode())

    def ListWorkers(self, request: Any, context: grpc.ServicerContext) -> pb.ListWorkersResponse:
        described = [
            pb.Worker(
                name=spec.name,
                display_name=spec.display_name,
                version=spec.version,
                origin="entry point",
                spec_json=json.dumps(spec.to_json()),
            )
            for spec in self.workers
        ]
        broken = pb.Worker(name="broken", display_name="Broken", origin="worker.json", problem="it does not start")
        return pb.ListWorkersResponse(workers=[*described, broken])

    def SaveFilter(self, request: pb.SavedFilter, context: grpc.ServicerContext) -> pb.SavedFilter:
        self.filters[request.name] = request.query_json
        return request

    def ListFilters(self, request: Any, context: grpc.ServicerContext) -> pb.ListFiltersResponse:
        saved = [pb.SavedFilter(name=name, query_json=query) for name, query in self.filters.items()]
        return pb.ListFiltersResponse(filters=saved)

    def GetHealth(self, request: Any, context: grpc.ServicerContext) -> pb.Health:
        return pb.Health(version="0.1.0", pid=os.getpid(), home="here", cpus_total=2, cpus_free=1.5)


class _Tokens(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, details: Any) -> Any:
        if ("authorization", f"Bearer {TOKEN}") in details.invocation_metadata:
            return continuation(details)

        def refuse(_request: Any, context: grpc.ServicerContext) -> None:
            context.set_trailing_metadata((("mosaic-error", "NotAllowed"),))
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture
def fake_trainer(home: Home) -> Iterator[FakeTrainer]:
    """The stand-in, serving the test's home: clients find it as they find a daemon."""
    home.create()
    home.token.write_text(TOKEN)
    trainer = FakeTrainer()
    with ThreadPoolExecutor(max_workers=12) as threads:
        server = grpc.server(threads, interceptors=[_Tokens()])
        add_TrainerServiceServicer_to_server(trainer, server)
        server.add_insecure_port(f"unix:{home.socket}")
        server.start()
        identity = ProcessIdentity.of(os.getpid())
        record = {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
        write_json_atomically(home.daemon_record, {**record, "version": "0.1.0", "unix": f"unix:{home.socket}"})
        yield trainer
        trainer.closing.set()
        server.stop(grace=0.5).wait()


# ---------------------------------------------------------------- a run of the real W&B, offline

_WANDB_RUN = """
import os, sys, wandb

run = wandb.init(
    project="demo", name="hand made", dir=sys.argv[1], mode="offline", tags=["a", "b"],
    config={"lr": 2.5e-4, "net": {"sizes": [64, 64], "act": "tanh"}, "none": None},
)
run.define_metric("global_step")
run.define_metric("charts/*", step_metric="global_step")
for row in range(1500):  # half a megabyte: many blocks, and records that cross them
    values = {"global_step": 10 * row, "charts/episodic_return": row / 2}
    if row % 3 == 0:
        values["losses/value_loss"] = 1 / (row + 1)
    if row % 500 == 0:
        values["nested"] = {"a": row, "b": {"c": 2 * row}}
    run.log(values)
run.log({"text": "x" * 70_000, "never": float("nan"), "flag": True})
run.config.update({"late": 1})
run.summary["best"] = 12.5
run.finish()
"""


@pytest.fixture(scope="session")
def real_wandb_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`wandb/` with one offline run, written by the real package."""
    from mosaic_extras.testing import interpreter_with

    folder = tmp_path_factory.mktemp("real-wandb")
    variables = {**os.environ, "WANDB_SILENT": "true", "HOME": str(folder), "WANDB_ERROR_REPORTING": "false"}
    done = subprocess.run(
        [str(interpreter_with("wandb")), "-c", _WANDB_RUN, str(folder)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "wandb"
