"""The curves of one run: what is taken, what is taken back, and what a hub with too much to do says."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from gym_gui.services.trainer.metrics import hub as hub_module
from gym_gui.services.trainer.metrics import store
from gym_gui.services.trainer.metrics.hub import MetricHub
from gym_gui.services.trainer.metrics.series import Points
from gym_gui.services.trainer.metrics.store import Folder, RunMetrics
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home


def news(tag: str, *values: float, first: int = 0, **options: object) -> Folder:
    points = Points()
    for index, value in enumerate(values):
        points.add(first + index, float(index), value)
    return Folder(columns={tag: points}, **options)  # type: ignore[arg-type]


def values_of(metrics: RunMetrics, tag: str) -> list[float]:
    return list(metrics.since(tag, 0, 0).values)


def test_news_that_do_not_begin_where_the_last_ended_are_refused(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    assert metrics.take([news("a", 1, 2)], None, "p1")
    assert not metrics.take([news("a", 1, 2)], None, "p1")
    assert metrics.take([news("a", 3, first=2)], "p1", "p2")
    assert values_of(metrics, "a") == [1, 2, 3]
    metrics.flush()
    again = RunMetrics(tmp_path / "metrics")
    assert again.position == "p2"
    assert values_of(again, "a") == [1, 2, 3]


def test_what_was_not_flushed_is_asked_for_again(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.take([news("a", 1, 2)], None, "p1")
    metrics.flush()
    metrics.take([news("a", 3, first=2)], "p1", "p2")
    again = RunMetrics(tmp_path / "metrics")  # the first one was killed
    assert again.position == "p1"
    assert again.take([news("a", 3, first=2)], "p1", "p2")
    assert values_of(again, "a") == [1, 2, 3]


def test_a_resumed_run_writes_some_steps_again(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.take([news("charts/episodic_return", *range(300))], None, "p1")
    before = metrics.epoch
    metrics.take([news("charts/episodic_return", 7, first=50, drop_from=50)], "p1", "p2")
    assert values_of(metrics, "charts/episodic_return") == [*range(50), 7]
    assert metrics.epoch > before
    assert metrics.headline()[store.MEAN_RETURN] == pytest.approx((sum(range(50)) + 7) / 51)


def test_a_reset_of_one_folder_leaves_the_others(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.take([news("a/b", 1, 2), news("b", 5, name="a")], None, "p1")
    metrics.take([news("a/b", 9, is_reset=True)], "p1", "p2")
    assert values_of(metrics, "a/b") == [9]
    assert values_of(metrics, "a:b") == [5]


@pytest.mark.expects_log("further ones are left out")
def test_a_flood_of_tags_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_TAGS", 3)
    metrics = RunMetrics(tmp_path / "metrics")
    metrics.take([news(f"tag{index}", 1) for index in range(10)], None, "p1")
    assert len(metrics.tags()) == 3


@pytest.mark.expects_log("is made again from the event files")
def test_an_index_that_is_not_ours_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    hostile = {"file": "../../escape", "folder": "", "count": 4, "sorted": True, "last": 0}
    for document in ({"version": 99}, {"version": 1, "tags": {"a": hostile}, "returns": [], "position": None}, []):
        (folder / "index.json").write_text(json.dumps(document))
        assert RunMetrics(folder).tags() == {}
        folder.mkdir(exist_ok=True)


def test_a_hub_with_too_much_to_do_sends_workers_away_and_shows_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "_MOST_WAITING", 2)
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
