"""Coded log lines: what is written can be read back, whatever stands in it."""

from __future__ import annotations

import logging

import pytest
from gym_gui.logging_config import log_constants
from gym_gui.logging_config.log_constants import (
    ALL_CODES,
    LOG_UI_MAINWINDOW_INVALID_CONFIG,
    format_line,
    log_code,
    parse_structured_line,
)
from hypothesis import given
from hypothesis import strategies as st

JSON_OBJECTS = st.dictionaries(
    st.text(max_size=8), st.text(max_size=30) | st.integers(-999, 999) | st.none(), max_size=4
)


def test_log705_is_the_code_of_a_rejected_config():
    assert LOG_UI_MAINWINDOW_INVALID_CONFIG.number == 705
    assert LOG_UI_MAINWINDOW_INVALID_CONFIG.code == "LOG705"


def test_each_number_is_used_once_and_each_code_has_a_constant():
    assert len({code.number for code in ALL_CODES}) == len(ALL_CODES)
    constants = [name for name in vars(log_constants) if name.startswith("LOG_")]
    assert [getattr(log_constants, name) for name in constants] == list(ALL_CODES)


def test_a_line_has_the_format_operators_know():
    line = format_line(LOG_UI_MAINWINDOW_INVALID_CONFIG, "rejected", {"path": "artifacts"})
    assert line == 'LOG705 | rejected | extra={"path": "artifacts"}'


@given(message=st.text(max_size=80), extra=JSON_OBJECTS)
def test_what_is_written_is_read_back(message, extra):
    line = format_line(LOG_UI_MAINWINDOW_INVALID_CONFIG, message, extra)
    assert len(line.splitlines()) == 1
    read = parse_structured_line(line + "\n")
    assert read is not None
    assert read.extra == extra
    assert read.code is LOG_UI_MAINWINDOW_INVALID_CONFIG


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    parse_structured_line(text)
    parse_structured_line("LOG705 | " + text)


@pytest.mark.parametrize(
    "line", ["", "step 5", "LOG | x", "LOG12 x", "LOGGER | x", "LOG1234567 | x", "LOG705 | " + "x" * 100_000]
)
def test_an_ordinary_line_is_not_structured(line):
    assert parse_structured_line(line) is None


def test_a_broken_extra_is_part_of_the_message():
    read = parse_structured_line("LOG900 | tells | extra={broken")
    assert read is not None
    assert (read.message, read.extra, read.level, read.code) == ("tells | extra={broken", {}, logging.INFO, None)


def test_a_logged_code_carries_its_number(caplog):
    logger = logging.getLogger("test")
    with caplog.at_level(logging.INFO):
        log_code(logger, LOG_UI_MAINWINDOW_INVALID_CONFIG, "two\nlines", run="x")
    assert caplog.records[0].log_code == 705
    assert caplog.records[0].getMessage() == 'LOG705 | two ⏎ lines | extra={"run": "x"}'
