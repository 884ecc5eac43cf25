"""The view of a log: asks for what it shows, keeps little, follows the end until the user scrolls."""

from __future__ import annotations

import pytest
from gym_gui.ui import theme
from gym_gui.ui.run_page.log_index import LogLine
from gym_gui.ui.run_page.log_view import PAGE, LogView
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest

MANY = 13_000_000


class Feeder:
    """Answers what the view asks for at once, and counts."""

    def __init__(self, view: LogView) -> None:
        self.view, self.asked = view, []
        view.requested.connect(self.answer)

    def answer(self, generation: int, first: int, rows: int) -> None:
        self.asked.append(first)
        self.view.provide(generation, first, [LogLine(row + 1, f"row {row}") for row in range(first, first + rows)])


@pytest.fixture
def view(qtbot, themed) -> LogView:
    view = LogView()
    qtbot.addWidget(view)
    view.resize(600, 400)
    view.show()
    return view


def test_thirteen_million_lines_are_a_few_pages(view: LogView) -> None:
    feeder = Feeder(view)
    view.reset(MANY)
    assert view.line(MANY - 1) == LogLine(MANY, f"row {MANY - 1}")  # it follows: the end is shown
    for place in range(0, MANY, MANY // 40):
        view.verticalScrollBar().setValue(place)
        assert view.line(place) == LogLine(place + 1, f"row {place}")
    assert sum(len(lines) for _, lines in view._pages.values()) <= 12 * PAGE  # memory is bounded
    assert len(feeder.asked) <= 90
    assert not view.grab().isNull()


def test_it_follows_until_the_user_scrolls_and_again_at_the_end(view: LogView) -> None:
    Feeder(view)
    view.reset(1000)
    end = view.verticalScrollBar().maximum()
    assert view.first_row == end
    view.set_count(1100)
    assert view.first_row == view.verticalScrollBar().maximum() == end + 100
    view.verticalScrollBar().setValue(10)
    assert not view.follows
    view.set_count(1200)
    assert view.first_row == 10
    view.verticalScrollBar().setValue(view.verticalScrollBar().maximum())
    assert view.follows


def test_late_answers_to_an_earlier_question_are_dropped(view: LogView) -> None:
    asked: list[tuple[int, int, int]] = []
    view.requested.connect(lambda *what: asked.append(what))
    view.reset(10)
    generation, first, _ = asked[-1]
    view.reset(10)
    view.provide(generation, first, [LogLine(1, "of the file before")] * 10)
    assert view.line(0) is None


def test_text_stays_in_sight_until_the_newer_one_is_there(view: LogView) -> None:
    asked: list[tuple[int, int, int]] = []
    view.requested.connect(lambda *what: asked.append(what))
    view.reset(1)
    view.provide(asked[-1][0], 0, [LogLine(1, "ha")])
    view.forget_pages()
    assert view.line(0) == LogLine(1, "ha")
    view.provide(asked[-1][0], 0, [LogLine(1, "half")])
    assert view.line(0) == LogLine(1, "half")


def test_lines_are_chosen_by_mouse_and_keys_and_copied(view: LogView) -> None:
    Feeder(view)
    view.reset(100)
    copied: list[tuple[int, int]] = []
    view.copy_requested.connect(lambda *what: copied.append(what))
    view.verticalScrollBar().setValue(0)
    height = view.fontMetrics().height() + 2
    QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(100, height * 2 + 2))
    QTest.mouseClick(
        view.viewport(), Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier, QPoint(100, height * 4 + 2)
    )
    QTest.keyClick(view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert copied == [(2, 3)]
    QTest.keyClick(view, Qt.Key.Key_Down)
    assert view.selected_rows() == (5, 1)
    QTest.keyClick(view, Qt.Key.Key_End, Qt.KeyboardModifier.ShiftModifier)
    assert view.selected_rows() == (5, 95)
    assert view.follows
    QTest.keyClick(view, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    assert view.selected_rows() == (0, 100)


def test_a_very_wide_line_can_be_scrolled_to(view: LogView) -> None:
    asked: list[tuple[int, int, int]] = []
    view.requested.connect(lambda *what: asked.append(what))
    view.reset(1)
    view.provide(asked[-1][0], 0, [LogLine(1, "x" * 3000)])
    assert view.horizontalScrollBar().maximum() > 3000
    assert not view.grab().isNull()


def test_its_letters_grow_with_the_window(view: LogView, themed) -> None:
    Feeder(view)
    view.reset(1000)
    rows, usual = view.rows_on_screen(), themed.font()
    larger = themed.font()
    larger.setPointSizeF(usual.pointSizeF() * 2)
    try:
        themed.setFont(larger)
        theme.apply(themed, theme.ThemeChoice.DARK)
        assert view.rows_on_screen() < rows * 0.7
        assert view.first_row == view.verticalScrollBar().maximum()
    finally:
        themed.setFont(usual)
        theme.apply(themed, theme.ThemeChoice.LIGHT)
