"""Event files, read back with TensorBoard's own readers: histograms, and the row in its HPARAMS tab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cleanrl_worker.training.envs import EpisodeLines
from cleanrl_worker.training.metrics import EventWriter
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups


def test_episodes_are_printed_as_cleanrl_does_the_first_at_once_then_a_few_a_second(capsys) -> None:
    now = 0.0
    lines = EpisodeLines(clock=lambda: now)
    for step in range(100):
        lines({"charts/episodic_return": 1 / 3, "charts/episodic_length": 9.0}, step)
        lines({"losses/value_loss": 1.0}, step)
        now += 0.0101
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "global_step=0, episodic_return=0.3333"
    assert 2 <= len(printed) <= 5


def written(folder: Path, *steps: Any) -> EventAccumulator:
    writer = EventWriter(folder)
    for step in steps:
        step(writer)
    writer.close()
    reader = EventAccumulator(str(folder), size_guidance={"histograms": 0, "tensors": 0, "scalars": 0})
    reader.Reload()
    return reader


def test_samples_become_a_histogram(tmp_path: Path) -> None:
    values = np.array([[0.0, 1.0], [1.0, np.nan], [3.0, np.inf]])
    reader = written(tmp_path, lambda writer: writer.add_histogram("spread", values, None, 7))
    (event,) = reader.Histograms("spread")
    histogram = event.histogram_value
    assert (event.step, histogram.min, histogram.max, histogram.num, histogram.sum) == (7, 0, 3, 4, 5)
    assert sum(histogram.bucket) == 4
    assert histogram.bucket_limit[-1] == 3


def test_a_distribution_over_points_becomes_a_histogram_with_its_mean(tmp_path: Path) -> None:
    atoms = np.linspace(-10, 10, 5).astype(np.float32)
    weights = np.array([0.0, 0.25, 0.5, 0.25, 0.0], dtype=np.float32)
    reader = written(tmp_path, lambda writer: writer.add_histogram("returns", atoms, weights, 3))
    histogram = reader.Histograms("returns")[0].histogram_value
    assert histogram.bucket_limit == [-7.5, -2.5, 2.5, 7.5, 10.0]  # each point in the bucket it stands in
    assert histogram.bucket == weights.tolist()
    assert (histogram.num, histogram.sum, histogram.sum_squares) == (1, 0, 12.5)


def test_nothing_at_all_is_no_error(tmp_path: Path) -> None:
    reader = written(tmp_path, lambda writer: writer.add_histogram("empty", np.array([np.nan]), None, 1))
    assert reader.Histograms("empty")[0].histogram_value.num == 0
    EventWriter(None).add_histogram("nowhere", np.ones(3), None, 1)


def rows_of_hparams_tab(folder: Path) -> list[Any]:
    multiplexer = EventMultiplexer(tensor_size_guidance={"hparams": 0, "scalars": 0})
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider, multiplexer=multiplexer))
    experiment = context.experiment_from_metadata(
        RequestContext(),
        "",
        include_metrics=True,
        hparams_run_to_tag_to_content=context.hparams_metadata(RequestContext(), ""),
        data_provider_hparams=[],
    )
    asked = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=[0, 1, 2, 3],
        col_params=[
            *(api_pb2.ColParams(hparam=info.name) for info in experiment.hparam_infos),
            *(api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos),
        ],
    )
    handler = list_session_groups.Handler(RequestContext(), context, "", asked)
    return list(handler.run().session_groups)


FLAGS = {"env_id": "CartPole-v1", "learning_rate": 2.5e-4, "num_envs": 4, "anneal_lr": False, "target_kl": None}


@pytest.mark.parametrize("completed", [True, False])
def test_a_run_has_a_row_in_the_hparams_tab(tmp_path: Path, completed: bool) -> None:
    writer = EventWriter(tmp_path / "run")
    writer.begin_session(FLAGS, ["charts/episodic_return"])
    writer.add_scalar("charts/episodic_return", 12, 100)
    writer.add_scalar("charts/episodic_return", 480, 200)
    writer.end_session(completed=completed)
    writer.close()
    (row,) = rows_of_hparams_tab(tmp_path)
    shown = {name: getattr(value, value.WhichOneof("kind")) for name, value in row.hparams.items()}
    assert shown == {**FLAGS, "target_kl": "None"}
    assert [(metric.name.tag, metric.value, metric.training_step) for metric in row.metric_values] == [
        ("charts/episodic_return", 480.0, 200)
    ]
    (session,) = row.sessions
    assert session.status == api_pb2.Status.Value("STATUS_SUCCESS" if completed else "STATUS_FAILURE")


@pytest.mark.expects_log("tensorboard: Detected out of order event.step")
def test_a_resumed_run_keeps_its_row_and_one_that_begins_anew_writes_it_again(tmp_path: Path) -> None:
    first = EventWriter(tmp_path / "run")
    assert not first.continues
    first.begin_session(FLAGS, ["x"])
    first.add_scalar("x", 1, 500)
    first.close()
    resumed = EventWriter(tmp_path / "run", resume_at=100)
    assert resumed.continues
    resumed.add_scalar("x", 2, 200)
    resumed.close()
    (row,) = rows_of_hparams_tab(tmp_path)
    assert [metric.value for metric in row.metric_values] == [2.0]
    anew = EventWriter(tmp_path / "run", resume_at=-1)
    assert not anew.continues
    anew.close()
    child = EventWriter(tmp_path / "child", resume_at=100)
    assert not child.continues
    child.close()
