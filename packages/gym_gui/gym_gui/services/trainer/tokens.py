"""Tokens of 256 random bits; only their digests are stored, except in the daemon's own file (mode 0600)."""

from __future__ import annotations

import hashlib
import re
import secrets
import stat
from pathlib import Path

from mosaic_wire.files import NotAPlainFile, chosen_file, read_plain_file, write_bytes_atomically

from gym_gui.services.trainer.errors import NotAllowed


def new_token() -> str:
    """Return a fresh random token."""
    return secrets.token_hex(32)


def digest(token: str) -> str:
    """Return the SHA-256 of a token, which is all that is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


def load_or_create_token(path: Path) -> str:
    """Return the daemon's token, creating it on first use; raise NotAllowed when other users could read it."""
    if path.exists():
        return read_token(path)
    token = new_token()
    # Atomically, because the disk may be full or the power may fail.
    write_bytes_atomically(path, f"{token}\n".encode(), mode=0o600)
    return token


def read_token(path: Path) -> str:
    """Return the token of a file that only this user can read."""
    status = path.stat()
    if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077:
        raise NotAllowed(f"{path} can be read by other users; run `chmod 600 {path}`, or delete it for a new token")
    try:
        token = read_plain_file(path, opener=chosen_file).strip().decode("ascii", "replace")
    except (NotAPlainFile, ValueError) as error:
        raise NotAllowed(f"{path} holds no token: {error}; delete it for a new one") from None
    if re.fullmatch("[0-9a-f]{64}", token) is None:
        raise NotAllowed(f"{path} does not hold a token; delete it, and the daemon makes a new one")
    return token
