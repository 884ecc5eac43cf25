"""The curves of one run: what is taken, what is taken back, and what a hub with too much to do says."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from pathlib import Path

import pytest
from gym_gui.services.trainer.metrics import hub as hub_module
from gym_gui.services.trainer.metrics import store
from gym_gui.services.trainer.metrics.hub import MetricHub
from gym_gui.services.trainer.metrics.series import Points
from gym_gui.services.trainer.metrics.store import CurveValues, Folder, RunMetrics, run_statistics
from gym_gui.services.trainer.records import RunStatistics
from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home


def news(tag: str, *values: float, first: int = 0, **options: object) -> Folder:
    points = Points()
    for index, value in enumerate(values):
        points.add(first + index, float(index), value)
    return Folder(columns={tag: points}, **options)  # type: ignore[arg-type]


def values_of(metrics: RunMetrics, tag: str) -> list[float]:
    return list(metrics.since(tag, 0, 0).values)


def test_updates_that_do_not_begin_where_the_last_ended_are_refused(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    assert metrics.ingest([news("a", 1, 2)], None, "p1")
    assert not metrics.ingest([news("a", 1, 2)], None, "p1")
    assert metrics.ingest([news("a", 3, first=2)], "p1", "p2")
    assert values_of(metrics, "a") == [1, 2, 3]
    metrics.flush()
    again = RunMetrics(tmp_path / "metrics")
    assert again.position == "p2"
    assert values_of(again, "a") == [1, 2, 3]


def test_what_was_not_flushed_is_asked_for_again(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.ingest([news("a", 1, 2)], None, "p1")
    metrics.flush()
    metrics.ingest([news("a", 3, first=2)], "p1", "p2")
    again = RunMetrics(tmp_path / "metrics")  # the first one was killed
    assert again.position == "p1"
    assert again.ingest([news("a", 3, first=2)], "p1", "p2")
    assert values_of(again, "a") == [1, 2, 3]


def test_a_resumed_run_writes_some_steps_again(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.ingest([news("charts/episodic_return", *range(300))], None, "p1")
    before = metrics.epoch
    metrics.ingest([news("charts/episodic_return", 7, first=50, drop_from=50)], "p1", "p2")
    assert values_of(metrics, "charts/episodic_return") == [*range(50), 7]
    assert metrics.epoch > before
    assert metrics.last_values()[store.MEAN_RETURN] == pytest.approx((sum(range(50)) + 7) / 51)


def test_a_reset_of_one_folder_leaves_the_others(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.ingest([news("a/b", 1, 2), news("b", 5, name="a")], None, "p1")
    metrics.ingest([news("a/b", 9, is_reset=True)], "p1", "p2")
    assert values_of(metrics, "a/b") == [9]
    assert values_of(metrics, "a:b") == [5]


def test_a_script_s_own_folder_is_not_part_of_its_tags(tmp_path: Path) -> None:
    """CleanRL's scripts write to `runs/<env>__<name>__<seed>__<time>`: people look for `charts/SPS`."""
    metrics = RunMetrics(tmp_path / "metrics")
    first, second = "CartPole-v1__ppo__1__1700000000", "CartPole-v1__ppo__1__1700000099"
    metrics.ingest([news("cpu_percent", 7, name="system")], None, "p1")
    metrics.ingest(
        [news("charts/SPS", 900, 950, name=first), news("charts/episodic_return", 20, name=first)], "p1", "p2"
    )
    assert metrics.tags() == {"system/cpu_percent": 1, "charts/SPS": 2, "charts/episodic_return": 1}
    assert metrics.last_values() == {"charts/SPS": 950, "charts/episodic_return": 20, "mean_return_100": 20}
    assert metrics.last_step() == 1
    # A second attempt writes to another folder: its curves are apart, its figures are the run's.
    metrics.ingest([news("charts/SPS", 10, name=second, first=5)], "p2", "p3")
    assert values_of(metrics, "charts/SPS") == [900, 950]
    assert values_of(metrics, f"{second}/charts/SPS") == [10]
    assert (metrics.last_values()["charts/SPS"], metrics.last_step()) == (10, 5)
    metrics.flush()
    again = RunMetrics(tmp_path / "metrics")
    assert again.tags() == metrics.tags()
    again.ingest([news("charts/SPS", 11, name=first, first=2)], "p3", "p4")
    assert values_of(again, "charts/SPS") == [900, 950, 11]


@pytest.mark.expects_log("more than 3 tags; such curves are skipped")
def test_a_flood_of_tags_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_TAGS", 3)
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.ingest([news(f"tag{index}", 1) for index in range(10)], None, "p1")
    assert len(metrics.tags()) == 3


@pytest.mark.expects_log("is rebuilt from the event files")
def test_an_index_that_is_not_ours_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    hostile = {"file": "../../escape", "folder": "", "count": 4, "sorted": True, "last": 0}
    for document in ({"version": 99}, {"version": 1, "tags": {"a": hostile}, "returns": [], "position": None}, []):
        (folder / "index.json").write_text(json.dumps(document))
        assert RunMetrics(folder).tags() == {}
        folder.mkdir(exist_ok=True)


@pytest.mark.expects_log("is rebuilt from the event files")
def test_an_index_cut_or_with_a_flipped_bit_is_never_believed(tmp_path: Path) -> None:
    """Fault 7: the curves come back whole from the event files, which are the only copy."""
    folder, events, dice = tmp_path / "metrics", tmp_path / "events", random.Random(5)
    writer = ScalarEventWriter(events)
    for step in range(300):
        writer.add_scalars({"losses/a": step * 0.5, "charts/b": -step}, step)
    writer.close()
    metrics = RunMetrics(folder)
    metrics.catch_up(events)
    metrics.flush()
    whole = (folder / "index.json").read_bytes()
    for number in range(150):
        damaged = bytearray(whole)
        if number % 3 == 0:
            del damaged[dice.randrange(len(whole) - 1) :]
        else:
            damaged[dice.randrange(len(whole) - 1)] ^= 1 << dice.randrange(8)
        folder.mkdir(exist_ok=True)
        (folder / "index.json").write_bytes(damaged)
        again = RunMetrics(folder)
        assert again.tags() == {}, number
        again.catch_up(events)
        again.flush()
        assert values_of(again, "losses/a") == [step * 0.5 for step in range(300)]
        assert values_of(again, "charts/b") == [-step for step in range(300)]


def test_a_hub_with_too_much_to_do_sends_workers_away_and_shows_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "_MAX_WAITING", 2)
    run_id, held = new_run_id(), threading.Event()

    async def scenario() -> None:
        hub = MetricHub(Home(tmp_path))
        blocked = asyncio.create_task(hub._in_thread(held.wait))
        waiting = [asyncio.create_task(hub.publish(run_id, [news("a", 1)], None, "p1")) for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await hub.publish(run_id, [news("a", 1)], None, "p1")
        assert (refused.accepted, refused.credits) == (False, 0)
        assert refused.retry_after_s > 0
        assert hub.is_throttled(run_id)
        held.set()
        await blocked
        assert [answer.accepted for answer in await asyncio.gather(*waiting)] == [True, False]  # the second came twice
        assert (await hub.publish(run_id, [news("a", 2, first=1)], "p1", "p2")).accepted
        await hub.close()

    asyncio.run(scenario())
    assert values_of(RunMetrics(Home(tmp_path).run_folder(run_id).metrics), "a") == [1, 2]


# ---------------------------------------------------------------------- where a run's statistics come from

TOLD = RunStatistics(step=40, total=100, episodic_return=3.0, sps=7.0, seconds_since_step=0.5)


def test_curves_are_the_source_of_a_run_s_statistics() -> None:
    curves = CurveValues({store.MEAN_RETURN: 9.0, store.SPS_TAG: 900.0, "losses/x": 1.0}, step=60)
    found = run_statistics(TOLD, curves)
    assert (found.step, found.episodic_return, found.sps) == (60, 9.0, 900.0)
    assert (found.total, found.seconds_since_step) == (100, 0.5)
    assert found.metrics == curves.last


@pytest.mark.parametrize("curves", [None, CurveValues({}, 0)])
def test_a_worker_without_curves_is_believed(curves: CurveValues | None) -> None:
    assert run_statistics(TOLD, curves) == TOLD


def test_what_curves_lack_the_heartbeat_fills_in() -> None:
    found = run_statistics(TOLD, CurveValues({"losses/x": 1.0}, step=10))
    assert (found.step, found.episodic_return, found.sps) == (40, 3.0, 7.0)


def test_the_step_is_the_furthest_that_is_known_and_can_be() -> None:
    assert run_statistics(TOLD, CurveValues({}, 60), checkpoint_step=80).step == 80
    assert run_statistics(TOLD, CurveValues({}, 10**9), checkpoint_step=10**9).step == 40  # a script may write anything
