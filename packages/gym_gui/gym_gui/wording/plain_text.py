"""Text of runs, archives and workers as it may be shown: it steers no terminal and turns no words around."""

from __future__ import annotations

import re

_NOT_SHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, lone surrogates, and marks that change the direction of the text around them"""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def printable(text: str) -> str:
    """Return the text with each control character replaced by `�`; line ends and tabs stay."""
    return text if text.isprintable() else _NOT_SHOWN.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return the text as one line, for a field that others stand beside."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def without_escapes(text: str) -> str:
    """Return the text of a log without the colours and cursor movements it was written with."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def json_escaped(document: str) -> str:
    """Return a JSON document in which each control character is escaped as JSON does."""
    return _NOT_SHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def is_utf8(text: str) -> bool:
    """Whether it has a UTF-8 form: file names and arguments of undecodable bytes have none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
