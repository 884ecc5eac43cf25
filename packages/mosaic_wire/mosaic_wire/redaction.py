"""Secrets: recognize keys that hold one, and redact text.

Used by the daemon before anything is stored and by workers before anything is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems, Problem

REDACTED = "•••"

_MIN_CHARACTERS = 4
"""Shorter secrets would match ordinary words"""

_SECRET_KEY = re.compile(
    r"(^|[_-])(api[_-]?key|secret|token|password|passwd|credential|private[_-]?key|auth)s?($|[_-])", re.IGNORECASE
)
# The scheme is bounded; otherwise a long line of letters would take quadratic time.
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,20}://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)
_TOKEN_COUNT = re.compile(r"(^|[_-])(max|min|num|n|total|new|prompt|completion)[_-]([a-z]+[_-])?tokens$", re.IGNORECASE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BEARER = re.compile(r"(bearer\s+)[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE)


def is_secret_key(key: str) -> bool:
    """Return whether a config key of this name holds a secret (`wandb_api_key`, `openai-token`, `password` …)."""
    spaced = _HUMP.sub("_", key)
    if _TOKEN_COUNT.search(spaced):  # a limit on tokens of a language model
        return False
    return _SECRET_KEY.search(spaced) is not None


def is_ordinary(secret: str) -> bool:
    """Return whether a secret is so short or plain (a word, a number) that redacting it would damage other text."""
    is_plain = secret.replace("_", "").isalpha() or secret.isdigit()
    return len(secret) < (16 if is_plain else 8)


def secret_values(document: Any) -> set[str]:
    """Return every text under a secret key in a JSON value."""
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
    """Return every spelling of these secrets, longest first, including the password alone of a URL."""
    found = set()
    for secret in secrets:
        for text in (secret, *(part for part in _password_in(secret) if not is_ordinary(part))):
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
    """Return text without known secrets and without credentials in URLs and headers."""
    for secret in secrets:
        if len(secret) >= _MIN_CHARACTERS:
            text = text.replace(secret, REDACTED)
    if "://" in text:
        text = _URL_CREDENTIALS.sub(rf"\g<scheme>{REDACTED}@", text)
    return _BEARER.sub(rf"\1{REDACTED}", text)


def redact_document(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return a JSON value with every secret replaced, by key and by value."""
    known = tuple(secrets)
    if isinstance(value, Mapping):
        return {
            key: REDACTED if is_secret_key(str(key)) and item else redact_document(item, known)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_document(item, known) for item in value]
    return redact_text(value, known) if isinstance(value, str) else value


# ---------------------------------------------------------------- references to secrets


SECRET_REF = "secret_ref"
"""`{"secret_ref": name}` replaces a secret in a config; `secret_variable` names its environment variable"""

_RESERVED_PREFIXES = ("MOSAIC_", "CLEANRL_", "PYTHON", "LD_", "DYLD_")
_RESERVED = frozenset({"PATH", "HOME", "SHELL", "IFS", env.CUDA_VISIBLE_DEVICES, *env.THREAD_COUNTS})


def is_secret_ref(value: Any) -> bool:
    """Return whether this is a reference to a secret."""
    return isinstance(value, Mapping) and set(value) == {SECRET_REF} and isinstance(value[SECRET_REF], str)


def secret_variable(name: str) -> str:
    """Return the environment variable of a secret: `wandb_api_key` becomes `WANDB_API_KEY`."""
    variable = re.sub(r"[^A-Z0-9_]", "_", name.upper())
    if variable.startswith(_RESERVED_PREFIXES) or variable in _RESERVED or not variable[:1].isalpha():
        # A config must not set the run token or Python's module path.
        variable = f"SECRET_{variable}"
    return variable


def with_secrets(document: Any, variables: Mapping[str, str]) -> Any:
    """Return a config with references replaced by secrets; raise ConfigProblems when one is missing."""
    missing = [name for name in _references(document) if secret_variable(name) not in variables]
    if missing:
        problems = [Problem(name, f"its secret is not in {secret_variable(name)}; submit it again") for name in missing]
        raise ConfigProblems("the worker config", problems)
    return _filled_in(document, variables)


def _references(value: Any) -> Iterator[str]:
    if is_secret_ref(value):
        yield value[SECRET_REF]
        return
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for item in items:
        yield from _references(item)


def _filled_in(value: Any, variables: Mapping[str, str]) -> Any:
    if is_secret_ref(value):
        return variables[secret_variable(value[SECRET_REF])]
    if isinstance(value, Mapping):
        return {key: _filled_in(item, variables) for key, item in value.items()}
    return [_filled_in(item, variables) for item in value] if isinstance(value, list | tuple) else value
