"""Lines of a log without loading it: counted in stretches, read anywhere, searched; the same as splitting it all."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from gym_gui.ui.run_page import log_index
from gym_gui.ui.run_page.log_index import MAX_LINE_BYTES, STRIDE, Finder, LineIndex, LogLevel, as_shown, read_tail


def counted(path: Path, budget: int = 1 << 20) -> LineIndex:
    index = LineIndex(path)
    while not index.extend(budget):
        pass
    return index


def texts(index: LineIndex, first: int, count: int) -> list[str]:
    return [line.text for line in index.read(first, count)]


def search(path: Path, level: LogLevel = LogLevel.ALL, text: str = "", **options: int) -> Finder:
    finder = Finder(path, level, text, **options)
    while not finder.extend(1 << 20):
        pass
    return finder


@pytest.mark.parametrize("ends", ["\n", ""])
def test_every_line_is_found_where_it_lies(tmp_path: Path, ends: str) -> None:
    path = tmp_path / "log"
    lines = [f"line {number}" for number in range(5 * STRIDE + 17)]
    path.write_text("\n".join(lines) + ends)
    index = counted(path, budget=1000)
    assert index.lines == len(lines)
    assert texts(index, 0, 3) == lines[:3]
    assert texts(index, STRIDE - 1, 3) == lines[STRIDE - 1 : STRIDE + 2]
    assert texts(index, len(lines) - 2, 10) == lines[-2:]
    assert index.read(len(lines), 10) == []
    assert index.read(300, 1)[0].number == 301


def test_blocks_of_any_size_count_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    path = tmp_path / "log"
    pieces = [
        b"x" * rng.choice([0, 1, 7, MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 50_000]) for _ in range(300)
    ]
    path.write_bytes(b"\n".join(pieces))
    whole = counted(path, 1 << 30)
    expected = whole.read(0, whole.lines)
    assert b"".join(line.text.encode() for line in expected) == b"".join(pieces)  # nothing lost, nothing twice
    for block in (997, 16 * 1024, 70_000):
        monkeypatch.setattr(log_index, "BLOCK_BYTES", block)
        index = counted(path, 33_333)
        assert index.lines == whole.lines
        for first in range(0, whole.lines, 97):
            assert index.read(first, 5) == expected[first : first + 5]


def test_a_file_without_line_ends_is_no_worse_than_others(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * (3 * MAX_LINE_BYTES + 5))
    index = counted(path)
    assert index.lines == 4
    assert [len(text) for text in texts(index, 0, 9)] == [MAX_LINE_BYTES] * 3 + [5]


def test_it_grows_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nhal")
    index = counted(path)
    assert texts(index, 0, 9) == ["one", "two", "hal"]
    with path.open("a") as stream:
        stream.write("f\nthree\n")
    assert index.extend()
    assert texts(index, 0, 9) == ["one", "two", "half", "three"]
    assert index.generation == 0


def test_a_file_that_was_cut_is_counted_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n" * 1000)
    index = counted(path)
    path.write_text("new\n")
    assert index.extend()
    assert (index.lines, index.generation, texts(index, 0, 5)) == (1, 1, ["new"])
    replacement = tmp_path / "other"
    replacement.write_text("a\nb\nc\n")
    os.replace(replacement, path)
    index.extend()
    assert (index.lines, index.generation) == (3, 2)


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    index = counted(path)
    assert (index.lines, index.read(0, 5)) == (0, [])
    assert read_tail(path) == []


def test_the_tail_of_an_uncounted_file_has_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    tail = read_tail(path, 10)
    assert [line.text for line in tail] == [f"line {number}" for number in range(99_990, 100_000)]
    assert {line.number for line in tail} == {None}


def test_a_search_finds_what_grep_finds_whatever_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    lines = [("Needle" if number % 97 == 0 else "straw") + f" {number}" for number in range(20_000)]
    path.write_text("\n".join(lines))
    monkeypatch.setattr(log_index, "BLOCK_BYTES", 1013)
    hits = search(path, text="nEEdle").hits
    assert list(hits.numbers) == list(range(0, 20_000, 97))
    assert [(line.number, line.text) for line in hits.read(2, 2)] == [(195, "Needle 194"), (292, "Needle 291")]


def test_a_level_and_a_text_must_both_fit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "INFO all well\n"
        "WARNING: slow disk\n"
        "ERROR: no disk\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "ValueError: bad disk\n"
        "UserWarning: slow gpu\n"
        'LOG503 | it failed | extra={}\n{"event":"run_failed","run_id":"x"}\nno ERRORS here\n'
    )
    assert list(search(path, LogLevel.ERRORS).hits.numbers) == [2, 3, 5, 7, 8]
    assert list(search(path, LogLevel.WARNINGS).hits.numbers) == [1, 2, 3, 5, 6, 7, 8]
    assert list(search(path, LogLevel.WARNINGS, "DISK").hits.numbers) == [1, 2, 5]
    assert list(search(path, LogLevel.STRUCTURED).hits.numbers) == [7, 8]


def test_a_search_continues_where_the_file_grows_and_knows_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("hit\nmiss\n")
    finder = search(path, text="hit")
    with path.open("a") as stream:
        stream.write("miss\nhit\n")
    finder.extend()
    assert list(finder.hits.numbers) == [0, 3]
    path.write_text("hit\n" * 50)
    bounded = search(path, text="hit", max_hits=20)
    assert (len(bounded.hits), bounded.hits.is_cut) == (20, True)


def test_hits_in_long_lines_are_numbered_as_the_index_does(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * (5 * MAX_LINE_BYTES) + b"needle\nend\nneedle\n")
    index, hits = counted(path), search(path, text="needle").hits
    assert [texts(index, number, 1)[0] for number in hits.numbers] == ["needle", "needle"]


def test_a_search_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("hit\n" * 1000)
    finder = Finder(path, LogLevel.ALL, "hit")
    assert not finder.extend(stopped=lambda: True)
    assert finder.scanned == 0


def test_what_a_terminal_would_show() -> None:
    assert as_shown(b"\x1b[31mred\x1b[0m\tend\r\n") == "red end"
    assert as_shown(b" 10%\r 50%\r100%\n") == "100%"
    assert as_shown(b"bad \xff byte \x00\n") == "bad � byte �"
