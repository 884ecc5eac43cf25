"""Tokens: 256 random bits; only their digests are ever stored, except the daemon's own 0600 file."""

from __future__ import annotations

import hashlib
import re
import secrets
import stat
from pathlib import Path

from mosaic_wire.files import NotAPlainFile, chosen_file, read_plain_file, write_bytes_atomically

from gym_gui.services.trainer.errors import NotAllowed


def new_token() -> str:
    return secrets.token_hex(32)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def load_or_create_token(path: Path) -> str:
    """The daemon's token; made on first use, refused when others could read it."""
    if path.exists():
        return read_token(path)
    token = new_token()
    # Whole or not at all: the daemon holds the home's lock, but the disk may be full, or the power fail.
    write_bytes_atomically(path, f"{token}\n".encode(), mode=0o600)
    return token


def read_token(path: Path) -> str:
    """Read the token file, insisting that only this user can."""
    status = path.stat()
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise NotAllowed(f"{path} can be read by others; run `chmod 600 {path}`, or delete it for a new token")
    try:
        token = read_plain_file(path, opener=chosen_file).strip().decode("ascii", "replace")
    except NotAPlainFile as error:
        raise NotAllowed(f"{path} holds no token: {error.strerror}; delete it for a new one") from None
    if re.fullmatch("[0-9a-f]{64}", token) is None:
        raise NotAllowed(f"{path} does not hold a token; delete it, and the daemon makes a new one")
    return token
