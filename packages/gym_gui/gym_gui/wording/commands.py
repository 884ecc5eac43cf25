"""Commands in messages: which options make them reach the daemon that a message is about."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_COMMAND = re.compile(r"(?<![\w-])mosaic (?=[a-z]{2,}[ `\w])(?!daemon start)")


def connect_options(named: str, tls_ca: Path | None = None, token_file: Path | None = None) -> str:
    """Return the options that reach a daemon elsewhere, with a space behind; empty for the home's own."""
    options = [("--connect", named), ("--tls-ca", tls_ca), ("--token-file", token_file)] if named else []
    return "".join(f"{option} {shlex.quote(str(value))} " for option, value in options if value)


def with_options(text: str, options: str) -> str:
    """Return a message with these options in each of its `mosaic …` commands."""
    return _COMMAND.sub(lambda found: found[0] + options, text) if options else text
