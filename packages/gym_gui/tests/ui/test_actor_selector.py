"""Who acts: the named workers, a line, the others; what is not installed is grayed with its command."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from gym_gui.ui.shell.main_menu import ActorSelector
from gym_gui.ui.workers import catalog
from mosaic_wire.capabilities import Lane, WorkerCapabilities
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import WorkerSpec
from PySide6.QtCore import Qt

CLEANRL = WorkerSpec("cleanrl", "CleanRL Worker", "1", WorkerCapabilities("cleanrl"), "cleanrl_worker.cli")
OTHER = replace(
    CLEANRL, name="mine", display_name="My worker", capabilities=WorkerCapabilities("mine", lane=Lane.HYBRID)
)
HIDDEN = replace(CLEANRL, name="random", display_name="Random", hidden=True)


def entries(*specs: WorkerSpec) -> tuple[catalog.WorkerEntry, ...]:
    workers = [pb.Worker(name=spec.name, spec_json=json.dumps(spec.to_json())) for spec in specs]
    return catalog.entries_from(workers, with_hidden=True)


@pytest.fixture
def selector(qtbot, themed) -> ActorSelector:
    selector = ActorSelector()
    qtbot.addWidget(selector)
    return selector


def texts(selector: ActorSelector) -> list[str]:
    return [selector.combo.itemText(place) for place in range(selector.combo.count())]


def test_before_anybody_was_asked_the_named_ones_are_there(selector: ActorSelector) -> None:
    assert texts(selector) == ["Human-Only", "Spade BDI Worker", "LLM Multi-Step Worker", "CleanRL Worker"]
    assert selector.current_name() == "cleanrl"


def test_what_is_not_installed_is_grayed_with_its_command(selector: ActorSelector) -> None:
    selector.set_entries(entries(CLEANRL, OTHER, HIDDEN))
    shown = texts(selector)
    assert (shown[3], shown[-1], len(shown)) == ("CleanRL Worker", "My worker", 6)
    assert selector.combo.itemData(4, Qt.ItemDataRole.AccessibleDescriptionRole) == "separator"
    assert not any("Random" in text for text in shown)
    model = selector.combo.model()
    enabled = [model.item(place).isEnabled() for place in (0, 1, 2, 3, 5)]
    assert enabled == [False, False, False, True, True]
    assert "pip install" in shown[1]
    assert "pip install" in selector.combo.itemData(1, Qt.ItemDataRole.ToolTipRole)


def test_what_was_chosen_is_chosen_the_next_time(qtbot, selector: ActorSelector) -> None:
    selector.set_entries(entries(CLEANRL, OTHER))
    with qtbot.waitSignal(selector.worker_chosen) as chosen:
        selector.combo.setCurrentIndex(selector.combo.findData("mine", Qt.ItemDataRole.UserRole))
    assert chosen.args[0].name == "mine"
    assert "live and analytics" in selector.combo.toolTip()
    another = ActorSelector()
    qtbot.addWidget(another)
    another.set_entries(entries(CLEANRL, OTHER))
    assert another.current_name() == "mine"
    another.set_entries(entries(CLEANRL))  # uninstalled meanwhile
    assert another.current_name() == "cleanrl"


def test_with_no_worker_at_all_nothing_is_chosen(selector: ActorSelector) -> None:
    selector.set_entries(entries())
    assert selector.current_name() == ""
    assert selector.current_entry() is None
