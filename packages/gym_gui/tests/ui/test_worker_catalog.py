"""The catalog, the presenters and what forms are made of; no window is needed for any of it."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from gym_gui.cli.flags import parse_flags
from gym_gui.services.analytics.wandb_access import HTTP_NAMES, fallback, probe, read_dotenv
from gym_gui.ui.presenters.evaluation_result import bars_of, table_of
from gym_gui.ui.presenters.workers.registry import (
    CleanRlWorkerPresenter,
    PresenterRegistry,
    SpadeBdiWorkerPresenter,
    WorkerPresenter,
    grouped,
)
from gym_gui.ui.presenters.workers.train_request import (
    FastLaneChoice,
    NotAConfig,
    TrainRequest,
    WandbChoice,
    command_of,
    configs_of,
    request_of,
    saved_text,
    seeds_text,
    without_secrets,
)
from gym_gui.ui.workers import catalog
from gym_gui.ui.workers.environments import environments_of, family_of, fits
from mosaic_wire.capabilities import Lane, WorkerCapabilities
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

PPO = AlgorithmSpec(
    "ppo",
    "proximal policy optimization",
    (
        FieldSpec("env_id", "str", "CartPole-v1"),
        FieldSpec("learning_rate", "float", 2.5e-4, minimum=0),
        FieldSpec("anneal_lr", "bool", True),
        FieldSpec("num_envs", "int", 4, minimum=1),
        FieldSpec("batch_size", "int", 0, "computed: num_envs × num_steps"),
        FieldSpec("target_kl", "float", None, nullable=True),
        FieldSpec("track", "bool", False),
        FieldSpec("odd_one", "int", 0),
    ),
    action_spaces=("discrete",),
    observation_spaces=("vector",),
)
ROOT = Path(__file__).resolve().parents[4]
SPEC = WorkerSpec(
    "cleanrl",
    "CleanRL Worker",
    "1",
    WorkerCapabilities("cleanrl"),
    "cleanrl_worker.cli",
    ("/usr/bin/python3", "-m"),
    (PPO,),
    ("CartPole-v0", "CartPole-v1", "Pendulum-v1", "Mine-v0"),
    ("ALE/*", "*NoFrameskip-v[0-9]*"),
)

EVERYTHING = TrainRequest(
    worker_type="cleanrl",
    algo="ppo",
    env_id="CartPole-v1",
    seeds=(1, 2, 3, 7),
    total_timesteps=2000,
    run_name="mine",
    tags=("a", "b"),
    agent_id="agent-1",
    worker_id="w-1",
    cpus=2.5,
    gpus=1,
    gpus_mandatory=1,
    memory_mb=512,
    max_wallclock_minutes=90.0,
    priority=-3,
    retries=2,
    parameters={"learning_rate": 1e-3, "anneal_lr": False},
    requirements=("atari",),
    install_missing=True,
    fastlane=FastLaneChoice(mode="grid", grid_limit=9),
    minimal_telemetry=True,
    tensorboard=False,
    wandb=WandbChoice(True, "p", "e", "n", "me@example.org", "", True, "http://proxy:1", "http://proxy:2"),
    notes="why",
    other_extras={"curriculum_schedule": [{"env_id": "CartPole-v1"}]},
)


def offered(*specs: WorkerSpec, **problems: str) -> tuple[catalog.WorkerEntry, ...]:
    workers = [
        pb.Worker(name=spec.name, display_name=spec.display_name, version="1", spec_json=json.dumps(spec.to_json()))
        for spec in specs
    ]
    workers += [pb.Worker(name=name, problem=problem) for name, problem in problems.items()]
    return catalog.entries_from(workers)


# ---------------------------------------------------------------- catalog and presenters


def test_the_named_workers_stand_in_front_in_their_order_and_others_behind_them() -> None:
    other = replace(SPEC, name="mine", display_name="My worker")
    hidden = replace(SPEC, name="random", display_name="Random", hidden=True)
    entries = offered(other, hidden, SPEC, broken="it cannot be started")
    assert [entry.display_name for entry in entries] == [
        "Human-Only",
        "Spade BDI Worker",
        "LLM Multi-Step Worker",
        "CleanRL Worker",
        "broken",
        "My worker",
    ]
    assert [entry.lane for entry in entries[:4]] == [Lane.TELEMETRY, Lane.TELEMETRY, Lane.HYBRID, Lane.ANALYTICS]
    cleanrl = entries[3]
    assert (cleanrl.requires_live_telemetry, cleanrl.provides_fast_analytics) == (False, True)
    assert (cleanrl.form, cleanrl.presenter, cleanrl.is_usable) == ("cleanrl", "cleanrl", True)
    assert (entries[0].is_usable, "pip install" in entries[0].remedy) == (False, True)
    assert (entries[4].is_usable, "it cannot be started" in entries[4].remedy) == (False, True)
    for missing in entries[1:3]:
        assert f"Install it with: {missing.install_command}" in missing.remedy
        assert (ROOT / missing.install_command.split()[-1]).is_file()
    assert (entries[5].form, entries[5].spec) == ("schema", other)


def test_a_worker_is_found_by_its_older_name() -> None:
    found = catalog.find(catalog.BUILTIN, "spade_bdi_rl_worker")
    assert found is not None
    assert found.name == "spade_bdi"


def test_the_lane_decides_which_tabs_a_run_has() -> None:
    presenters = PresenterRegistry()
    cleanrl = presenters.for_entry(offered(SPEC)[3])
    assert isinstance(cleanrl, CleanRlWorkerPresenter)
    assert cleanrl.tabs() == cleanrl.bootstrap_analytics_tabs()
    assert isinstance(presenters.for_run(pb.Run(worker_type="spade_bdi_worker")), SpadeBdiWorkerPresenter)

    class Apart(WorkerPresenter):
        def bootstrap_live_tabs(self):
            return ("overview", "live")

        def bootstrap_analytics_tabs(self):
            return ("overview", "charts", "files")

    assert Apart(Lane.TELEMETRY).tabs() == ("overview", "live")
    assert Apart(Lane.ANALYTICS).tabs() == ("overview", "charts", "files")
    assert Apart(Lane.HYBRID).tabs() == ("overview", "live", "charts", "files")


def test_a_worker_without_a_presenter_uses_its_description() -> None:
    presenters = PresenterRegistry()
    run = pb.Run(worker_type="stranger", capabilities_json=json.dumps({"lane": "telemetry"}))
    assert presenters.for_run(run).lane is Lane.TELEMETRY
    assert presenters.for_run(pb.Run(worker_type="stranger", capabilities_json="{")).lane is Lane.ANALYTICS


# ---------------------------------------------------------------- requests and configs


@pytest.mark.parametrize(
    "train_request",
    [
        TrainRequest(worker_type="cleanrl", algo="ppo", env_id="CartPole-v1", total_timesteps=5),
        EVERYTHING,
        replace(EVERYTHING, seeds=(4,), fastlane=FastLaneChoice(enabled=False), wandb=WandbChoice()),
    ],
)
def test_what_is_saved_and_loaded_is_the_same_request(train_request: TrainRequest) -> None:
    assert request_of(json.loads(saved_text(configs_of(train_request, SPEC)))) == train_request


def test_a_config_a_form_writes_is_what_the_daemon_accepts() -> None:
    presenter = CleanRlWorkerPresenter()
    (config,) = presenter.configs(replace(EVERYTHING, seeds=(1,), requirements=()), SPEC)
    expected = {"wandb_project_name", "wandb_entity"}  # this small description has no such flags
    assert {problem.path.rpartition(".")[2] for problem in presenter.problems(config, SPEC)} == expected
    config["resources"]["cpus"]["requested"] = -1
    config["metadata"]["worker"]["config"]["algo"] = "pppo"
    problems = {problem.path: problem for problem in presenter.problems(config, SPEC)}
    assert "resources.cpus.requested" in problems
    assert problems["metadata.worker.config.algo"].suggestion == "ppo"


def test_no_secret_is_saved() -> None:
    secret = replace(EVERYTHING, wandb=replace(EVERYTHING.wandb, api_key="k" * 40, http_proxy="http://me:pw@proxy:1"))
    text = saved_text(configs_of(secret, SPEC))
    assert "k" * 40 not in text
    assert "pw" not in text
    assert "http://proxy:2" in text
    assert without_secrets({"extras": {"wandb_api_key": {"secret_ref": "x"}}}) == {"extras": {}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (3, "JSON object"),
        ({}, "names no algorithm"),
        ([], "no run config"),
        ([{"algo": "a"}, {"algo": "b"}], "different"),
    ],
)
def test_what_is_no_config_is_reported(document, message: str) -> None:
    with pytest.raises(NotAConfig, match=message):
        request_of(document)


def test_a_flat_worker_config_is_read_too() -> None:
    request = request_of({"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "total_timesteps": 10, "extras": {"x": 1}})
    assert (request.algo, request.seeds, request.total_timesteps, request.other_extras) == ("ppo", (3,), 10, {"x": 1})


def test_the_command_line_says_the_same_as_the_form() -> None:
    command = command_of(EVERYTHING, PPO)
    flags = list(command.argv[4:])
    own = {
        "--total-timesteps",
        "--seeds",
        "--cpus",
        "--gpus",
        "--memory-mb",
        "--max-wallclock",
        "--retries",
        "--name",
        "--notes",
        "--tag",
    }
    rest = []
    while flags:
        word = flags.pop(0)
        if word in own:
            flags.pop(0)
        elif word not in ("--install-missing", "--priority=-3"):
            rest.append(word)
    given = parse_flags(rest, replace(PPO, open_flags=True))
    assert given.problems == []
    wandb = {"wandb_project_name": "p", "wandb_entity": "e", "track": True}
    assert given.parameters == {**EVERYTHING.parameters, **wandb}
    assert {"agent_id", "worker_id", "requirements", "fastlane", "tensorboard", "wandb_proxy"} < set(
        command.only_in_json
    )
    assert command.text.replace(" \\\n ", "").split()[:4] == ["mosaic", "train", "ppo", "CartPole-v1"]
    assert seeds_text([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"


def test_parameters_stand_under_headings_and_computed_ones_are_left_out() -> None:
    fields = grouped(PPO.fields)
    assert [(field.name, field.group) for field in fields] == [
        ("learning_rate", "Learning"),
        ("anneal_lr", "Learning"),
        ("target_kl", "Learning"),
        ("num_envs", "Rollouts and batches"),
        ("odd_one", "More"),
    ]
    own = grouped(
        [FieldSpec("b", "int", group="Theirs"), FieldSpec("gamma", "float"), FieldSpec("a", "int", group="Theirs")]
    )
    assert [field.name for field in own] == ["b", "a", "gamma"]


# ---------------------------------------------------------------- environments


def test_environments_are_offered_by_family() -> None:
    assert family_of("BreakoutNoFrameskip-v4").title == "Atari"
    assert family_of("my_module:CartPole-v1").title == "Classic control"
    offered_ids = environments_of(SPEC)
    assert offered_ids["Classic control"] == ("CartPole-v1", "CartPole-v0", "Pendulum-v1")
    assert offered_ids["Other"] == ("Mine-v0",)
    assert "ALE/Pong-v5" in offered_ids["Atari"]
    assert "Procgen" not in offered_ids
    assert environments_of(replace(SPEC, environments=None)) == {}


def test_an_algorithm_fits_where_its_spaces_are() -> None:
    assert fits(PPO, "discrete", "vector")
    assert fits(PPO, "discrete", "")
    assert not fits(PPO, "continuous", "vector")
    assert not fits(PPO, "discrete", "image")


# ---------------------------------------------------------------- evaluations


def test_figures_are_over_all_episodes_and_by_batch() -> None:
    rows = table_of([1.0, 3.0, 5.0, 7.0], per_batch=2)
    assert [(row.title, row.episodes, row.mean, row.median) for row in rows] == [
        ("", 4, 4.0, 4.0),
        ("1", 2, 2.0, 2.0),
        ("2", 2, 6.0, 6.0),
    ]
    assert rows[0].std == pytest.approx(5**0.5)
    assert table_of([], 5) == []


@pytest.mark.parametrize(
    "returns", [[1.0], [2.0] * 30, [float(value) for value in range(100)], [float("nan"), 1.0, 2.0]]
)
def test_every_episode_is_in_one_bar(returns: list[float]) -> None:
    bars = bars_of(returns)
    assert sum(bars.counts) == sum(value == value for value in returns)
    assert len(bars.starts) == len(bars.counts) <= 24


# ---------------------------------------------------------------- the way to Weights & Biases


def test_a_proxy_comes_from_the_environment_or_from_a_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "# all\nexport WANDB_VPN_HTTP_PROXY='http://me:geheim@vpn:3128'\nHTTP_PROXY=http://plain:1 # all\nnonsense\n"
    )
    assert read_dotenv(tmp_path / ".env")["HTTP_PROXY"] == "http://plain:1"
    found = fallback(HTTP_NAMES, [tmp_path], {})
    assert found.value == "http://me:geheim@vpn:3128"
    assert "geheim" not in found.shown
    assert fallback(HTTP_NAMES, [tmp_path], {"WANDB_VPN_HTTP_PROXY": "http://env:1"}).value == "http://env:1"
    assert fallback(HTTP_NAMES, [tmp_path / "nowhere"], {}).value == ""


class Proxy:
    """Answers one CONNECT with a line."""

    def __init__(self, answer: str) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://me:pw@127.0.0.1:{self._server.getsockname()[1]}"
        self.asked = b""
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        with connection:
            self.asked = connection.recv(4096)
            connection.sendall(self._answer.encode())

    def close(self) -> None:
        self._thread.join(10)
        self._server.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("HTTP/1.1 200 Connection established\r\n\r\n", ""),
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407 Proxy Authentication Required"),
        ("SSH-2.0-OpenSSH\r\n", "is no HTTP proxy"),
    ],
)
def test_the_way_through_a_proxy_is_tried(answer: str, message: str) -> None:
    proxy = Proxy(answer)
    try:
        reported = probe("https://api.wandb.ai", proxy=proxy.address)
    finally:
        proxy.close()
    assert (message in reported) if message else reported == ""
    assert "pw" not in reported
    assert proxy.asked.startswith(b"CONNECT api.wandb.ai:443")
    assert b"Proxy-Authorization: Basic " in proxy.asked


def test_a_closed_door_is_an_answer() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    server.close()
    assert "cannot be reached" in probe(f"http://127.0.0.1:{port}")
    assert "no address of a proxy" in probe(proxy="http://")
