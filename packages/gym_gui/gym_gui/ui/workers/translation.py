"""Texts of the catalog and of presenters: English here, translated by the widget that shows them."""

from __future__ import annotations

from functools import partial

PRESENTERS = "presenters"
"""The translation context of texts that presenters mark"""


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:
    """Mark a text for translation and return it unchanged."""
    return text


marked = partial(QT_TRANSLATE_NOOP, PRESENTERS)
