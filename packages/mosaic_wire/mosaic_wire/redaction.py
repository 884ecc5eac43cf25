"""Secrets: which keys hold one, and how text is cleaned of them.

Used by the daemon before anything is stored and by workers before anything is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "•••"

_SECRET_KEY = re.compile(
    r"(^|[_-])(api[_-]?key|secret|token|password|passwd|credential|private[_-]?key|auth)s?($|[_-])", re.IGNORECASE
)
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)
_BEARER = re.compile(r"(bearer\s+)[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE)


def is_secret_key(key: str) -> bool:
    """Tell whether a config key of this name holds a secret (`wandb_api_key`, `openai-token`, `password` …)."""
    return _SECRET_KEY.search(key) is not None


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Remove known secret values, and what looks like credentials in a URL or header."""
    for secret in secrets:
        if len(secret) >= 4:  # shorter ones would eat ordinary words
            text = text.replace(secret, REDACTED)
    text = _URL_CREDENTIALS.sub(rf"\g<scheme>{REDACTED}@", text)
    return _BEARER.sub(rf"\1{REDACTED}", text)


def redact_document(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Copy a JSON value with every secret replaced, by key and by value."""
    known = tuple(secrets)
    if isinstance(value, Mapping):
        return {
            key: REDACTED if is_secret_key(str(key)) and item else redact_document(item, known)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_document(item, known) for item in value]
    return redact_text(value, known) if isinstance(value, str) else value
