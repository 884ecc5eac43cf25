"""The Overview tab: figures as they move, why a run failed, how it was made, what it takes, and broken folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.overview_tab import HeadlineCard, OverviewTab
from gym_gui.ui.run_page.run_details import Lineage
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton

WAIT = 30_000
RUN, CHILD = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> OverviewTab:
    tab = OverviewTab(link)
    qtbot.addWidget(tab)
    tab.resize(1100, 800)
    tab.show()
    tab.set_active(True)
    yield tab
    tab.set_active(False)


def running(folder: Path, **fields: object) -> pb.Run:
    values = {"run_id": RUN, "status": "EXEC", "total": 1000, "step": 100, "run_dir": str(folder), "attempt": 1}
    return pb.Run(**{**values, **fields})


def pairs(tab: OverviewTab, name: str) -> dict[str, str]:
    section, table = tab._tables[name]
    return dict(table.pairs()) if section.isVisibleTo(tab) else {}


def card(tab: OverviewTab, name: str) -> str:
    found = tab.findChild(HeadlineCard, f"card_{name}")
    assert found is not None
    return found.value


def test_figures_move_with_the_record(tab: OverviewTab, tmp_path: Path) -> None:
    tab.show_run(running(tmp_path, metrics={"mean_return_100": 10.0}))
    assert tab.cards["step"].value == "100"
    tab.refresh(running(tmp_path, step=250, sps=99.0, metrics={"mean_return_100": 12.5}))
    assert {key: tab.cards[key].value for key in ("step", "mean_return_100", "sps")} == {
        "step": "250",
        "mean_return_100": "12.5",
        "sps": "99",
    }
    assert tab.progress.value() == 250
    assert "250 of 1,000" in tab.progress.format()


def test_how_it_was_made_comes_from_the_manifest(qtbot, tab: OverviewTab, tmp_path: Path) -> None:
    AnalyticsManifest(
        RUN,
        versions={"python": "3.11.7", "torch": "2.13"},
        requirements=("base",),
        host={"name": "vm", "cpus": 2},
        argv=("python", "-m", "x", "--env id"),
        evaluation={"mean_return": 499.5, "episodes": 20},
        hyperparameters={"gamma": 0.99, "lr": 0.001, "target_kl": None, "batch_size": 512},
        checkpoints=(CheckpointEntry("checkpoints/step-9000", 9000, "0" * 64, "last"),),
        videos=("videos/a.mp4",),
        extra={"video_steps": {"videos/a.mp4": 7}},
    ).write(tmp_path / "analytics.json")
    tab.show_run(running(tmp_path, extras_json='{"algo_params": {"lr": 0.001}}', tags=["a", "b"]))
    qtbot.waitUntil(lambda: pairs(tab, "versions").get("torch") == "2.13", timeout=WAIT)
    assert pairs(tab, "host")["name"] == "vm"
    expected = {"lr": "0.001", "gamma": "0.99", "target_kl": "null", "batch_size": "512"}
    assert list(pairs(tab, "parameters").items()) == list(expected.items()), "those that were given come first"
    assert pairs(tab, "files") == {"last, step 9,000": "checkpoints/step-9000", "video, step 7": "videos/a.mp4"}
    assert card(tab, "evaluation_mean_return") == "499.5"
    assert pairs(tab, "facts")["Tags"] == "a, b"
    tab.command.button.click()
    assert QGuiApplication.clipboard().text() == "python -m x '--env id'"


@pytest.mark.parametrize(("content", "tone"), [("{", "warning"), (None, "info")])
def test_a_manifest_that_cannot_be_read_is_reported(
    qtbot, tab: OverviewTab, tmp_path: Path, content: str | None, tone: str
) -> None:
    if content is not None:
        (tmp_path / "analytics.json").write_text(content)
    tab.show_run(running(tmp_path))
    qtbot.waitUntil(lambda: "analytics.json" in tab.banner.text, timeout=WAIT)
    assert tab.banner.tone == tone
    assert tab.cards["step"].value == "100"
    AnalyticsManifest(RUN).write(tmp_path / "analytics.json")
    tab.refresh(running(tmp_path, status="TERM", outcome="completed"))  # the final one is whole
    qtbot.waitUntil(lambda: tab.banner.text == "", timeout=WAIT)


def test_the_family_is_shown_and_leads_there(qtbot, tab: OverviewTab, tmp_path: Path) -> None:
    lineage = Lineage.of([pb.Run(run_id=CHILD, status="EXEC", name="longer", parent=pb.ParentRun(run_id=RUN))])
    tab.set_lineage(lineage)
    tab.show_run(running(tmp_path))
    target: list[str] = []
    tab.run_requested.connect(target.append)
    button = tab.findChild(QPushButton, f"relative_{CHILD}")
    assert button is not None
    assert button.text().startswith("longer")
    button.click()
    assert target == [CHILD]


def test_why_a_real_run_failed(qtbot, tab: OverviewTab, window_daemon: RunningDaemon) -> None:
    script = """
        session = open_session()
        import sys
        print("loading", file=sys.stderr, flush=True)
        raise ModuleNotFoundError("No module named 'ale_py'")
    """
    install_scripted_worker(window_daemon.home, "breaker", script)
    run = window_daemon.client.submit(scripted_config("breaker")).run
    run = window_daemon.wait_for(run.run_id, "TERM")
    assert run.outcome == "failed"
    asked: list[str] = []
    tab.tab_requested.connect(asked.append)
    tab.show_run(run)
    qtbot.waitUntil(lambda: "No module named 'ale_py'" in tab.failure.lines.toPlainText(), timeout=WAIT)
    assert tab.failure.isVisibleTo(tab)
    assert run.reason in tab.failure.reason.text()
    assert "requirement set" in tab.failure.advice.text()
    tab.failure.logs_button.click()
    assert asked == ["logs"]
    tab.show_run(running(Path(run.run_dir)))
    assert not tab.failure.isVisibleTo(tab)


def test_what_it_takes_of_the_machine_is_plotted(qtbot, tab: OverviewTab, tmp_path: Path) -> None:
    tab.show_run(running(tmp_path))
    times = [1000.0 + 5 * number for number in range(20)]
    curves = [
        pb.MetricCurve(tag=f"system/{name}", steps=range(20), wall_times=times, values=[float(n) for n in range(20)])
        for name in ("cpu_percent", "memory_mb", "gpu0_percent", "threads")
    ]
    tab._apply_curves(RUN, [pb.RunMetrics(curves=curves)])
    qtbot.waitUntil(lambda: tab._plots is not None and len(tab._plots.views) == 3, timeout=WAIT)
    assert list(tab._plots.views) == ["cpu_percent", "memory_mb", "gpu0_percent"]
    assert tab._plots.views["memory_mb"].toolTip().startswith("Memory: now 19.0 MiB")
    more = pb.MetricCurve(tag="system/memory_mb", steps=[20], wall_times=[1100.0], values=[512.0])
    tab._apply_curves(RUN, [pb.RunMetrics(curves=[more])])
    assert "now 512.0 MiB" in tab._plots.views["memory_mb"].toolTip()
    assert not tab.grab().isNull()
    tab.show_run(running(tmp_path, run_id=CHILD))
    assert tab._plots.views == {}
