"""Tokens: 256 random bits; only their digests are ever stored, except the daemon's own 0600 file."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

from gym_gui.services.trainer.errors import NotAllowed


def new_token() -> str:
    return secrets.token_hex(32)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def load_or_create_token(path: Path) -> str:
    """The daemon's token; made on first use, refused when others could read it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    with os.fdopen(descriptor, "w") as stream:
        token = new_token()
        stream.write(token + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    return token


def read_token(path: Path) -> str:
    """Read the token file, insisting that only this user can."""
    status = path.stat()
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise NotAllowed(f"{path} can be read by others; run `chmod 600 {path}`, or delete it for a new token")
    token = path.read_text().strip()
    if len(token) != 64:
        raise NotAllowed(f"{path} does not hold a token; delete it, and the daemon makes a new one")
    return token
