"""Secrets: which keys hold one, and how text is cleaned of them.

Used by the daemon before anything is stored and by workers before anything is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

REDACTED = "•••"

_MIN_CHARACTERS = 4
"""Shorter secrets would eat ordinary words"""

_SECRET_KEY = re.compile(
    r"(^|[_-])(api[_-]?key|secret|token|password|passwd|credential|private[_-]?key|auth)s?($|[_-])", re.IGNORECASE
)
# The scheme is bounded: without that, a long line of letters costs the square of its length.
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,20}://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)
_TOKEN_COUNT = re.compile(r"(^|[_-])(max|min|num|n|total|new|prompt|completion)[_-]([a-z]+[_-])?tokens$", re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BEARER = re.compile(r"(bearer\s+)[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE)


def is_secret_key(key: str) -> bool:
    """Tell whether a config key of this name holds a secret (`wandb_api_key`, `openai-token`, `password` …)."""
    words = _HUMP.sub("_", key)
    if _TOKEN_COUNT.search(words):  # how many words a language model may say
        return False
    return _SECRET_KEY.search(words) is not None


def secret_values(document: Any) -> set[str]:
    """Every text that stands under a secret key in a JSON value, to clean other texts of it."""
    if isinstance(document, Mapping):
        found = set[str]()
        for key, item in document.items():
            found |= _texts_in(item) if is_secret_key(str(key)) else secret_values(item)
        return found
    if isinstance(document, list | tuple):
        return set[str]().union(*map(secret_values, document))
    return set()


def _texts_in(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):  # {"secret_ref": name} is a name, not the secret
        return set[str]().union(*(_texts_in(item) for key, item in value.items() if key != "secret_ref"))
    if isinstance(value, list | tuple):
        return set[str]().union(*map(_texts_in, value))
    return set()


def spellings_of(secrets: Iterable[str]) -> list[str]:
    """Every way these secrets may be written down, longest first; of an address its password alone, too."""
    found = set()
    for secret in secrets:
        for text in (secret, *_password_in(secret)):
            if len(text) >= _MIN_CHARACTERS:
                found |= {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return sorted(found, key=len, reverse=True)


def _password_in(address: str) -> Iterator[str]:
    if "://" not in address:
        return
    from urllib.parse import quote, unquote, urlsplit  # few runs have one

    try:
        password = urlsplit(address).password
    except ValueError:
        return
    if password:
        yield from (password, unquote(password), quote(unquote(password), safe=""))


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Remove known secret values, and what looks like credentials in a URL or header."""
    for secret in secrets:
        if len(secret) >= _MIN_CHARACTERS:
            text = text.replace(secret, REDACTED)
    if "://" in text:
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
