"""Widgets that are garbage die in the window's thread, whoever allocates meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
from gym_gui.app import GarbageCollection
from PySide6.QtCore import QObject


class Loop:
    """A cycle that holds something of Qt's, as widgets with lambdas do."""

    died_in: list[threading.Thread] = []

    def __init__(self) -> None:
        self.itself = self
        self.part = QObject()

    def __del__(self) -> None:
        Loop.died_in.append(threading.current_thread())


@pytest.fixture
def collection(qapp) -> Iterator[GarbageCollection]:
    was_on = gc.isenabled()
    collection = GarbageCollection()
    collection.start()
    yield collection
    collection.stop()
    if not was_on:
        gc.disable()


def allocate_much() -> None:
    kept = [[] for _ in range(200_000)]
    del kept


def test_garbage_is_freed_in_the_windows_thread_alone(collection: GarbageCollection) -> None:
    Loop.died_in.clear()
    for _ in range(5):
        Loop()
    other = threading.Thread(target=allocate_much)
    other.start()
    other.join()
    assert Loop.died_in == []
    for _ in range(60):
        collection.collect_if_due()
    assert Loop.died_in == [threading.current_thread()] * 5


def test_python_collects_itself_again_afterwards(collection: GarbageCollection) -> None:
    assert not gc.isenabled()
    collection.stop()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
