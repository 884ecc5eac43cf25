"""Between the thread that reads steps and the window: bounded, and what is passed over is counted."""

from __future__ import annotations

import threading

from gym_gui.ui.run_page.recent_telemetry import CELLS, RecentTelemetry, grid_image, ingest_steps
from mosaic_wire.proto import trainer_pb2 as pb


def batch(first: int, last: int, **fields) -> pb.RunSteps:
    return pb.RunSteps(steps=[pb.RunStep(seq=seq) for seq in range(first, last + 1)], **fields)


def test_what_does_not_fit_is_passed_over_and_counted() -> None:
    recent: RecentTelemetry[pb.RunStep] = RecentTelemetry(10)
    ingest_steps(recent, batch(101, 105))
    first = recent.drain()
    assert [step.seq for step in first.fresh] == [101, 102, 103, 104, 105]
    assert (first.passed_over, first.last_seq) == (0, 105)
    ingest_steps(recent, batch(106, 130))
    second = recent.drain()
    assert [step.seq for step in second.fresh] == list(range(121, 131))
    assert (second.received, second.passed_over) == (30, 15)


def test_what_the_daemon_left_out_is_counted_too_and_its_word_is_kept() -> None:
    recent: RecentTelemetry[pb.RunStep] = RecentTelemetry(100)
    ingest_steps(recent, batch(1, 5))
    ingest_steps(recent, batch(26, 30, skipped=20, control="STARVED"))
    news = recent.drain()
    assert (len(news.fresh), news.passed_over, news.left_out_by_daemon, news.control) == (10, 20, 20, "STARVED")
    ingest_steps(recent, batch(31, 31, control="RESUMED"))
    assert recent.drain().control == "RESUMED"


def test_what_comes_again_after_an_interruption_is_taken_once() -> None:
    recent: RecentTelemetry[pb.RunStep] = RecentTelemetry(100)
    ingest_steps(recent, batch(1, 5))
    ingest_steps(recent, batch(3, 8))
    assert [step.seq for step in recent.drain().fresh] == list(range(1, 9))
    assert recent.last_seq == 8


def test_two_threads_lose_nothing_between_them() -> None:
    recent: RecentTelemetry[pb.RunStep] = RecentTelemetry(50)
    last = 20_000

    def read() -> None:
        for first in range(1, last, 40):
            ingest_steps(recent, batch(first, first + 39))

    reader = threading.Thread(target=read)
    reader.start()
    shown = 0
    while reader.is_alive():
        shown += len(recent.drain().fresh)
    reader.join()
    end = recent.drain()
    shown += len(end.fresh)
    assert shown + end.passed_over == last


def test_a_board_of_kinds_gets_a_color_for_each_kind() -> None:
    image = grid_image((("1,0,0", "2,5,0"), ("1", "8")))
    assert image is not None
    assert image.shape == (2, 2, 3)
    assert tuple(image[0, 0]) == tuple(image[1, 0]) == CELLS[1]
    assert tuple(image[0, 1]) == CELLS[2]


def test_a_board_of_measures_gets_shades_and_a_board_of_words_no_image() -> None:
    shades = grid_image((("0.5", "1"), ("0.75", "0.5")))
    assert shades is not None
    assert (shades[0, 0, 0], shades[0, 1, 0]) == (0, 255)
    assert grid_image((("wall", "door"),)) is None
    assert grid_image((("1", "2"), ("1",))) is None
    assert grid_image(()) is None
