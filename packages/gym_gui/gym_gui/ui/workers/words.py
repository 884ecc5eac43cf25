"""Words that people read, of the catalog and of presenters: English here, translated by the widget that shows them."""

from __future__ import annotations

PRESENTERS = "presenters"
"""The translation context of every marked text"""


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:
    """Mark a text for translation and return it as it is."""
    return text
