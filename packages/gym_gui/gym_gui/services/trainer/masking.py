"""Secrets that a worker printed or wrote itself are blotted out of its files.

Workers write straight to files, so a key that one prints is on disk before the daemon sees it. What can be read as
text is cleaned: output while the run goes on, everything else when an attempt has ended. Checkpoints are left alone:
their hashes would no longer fit, and they are written from configs that hold references only.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic_wire.files import (
    SEAL,
    checksum_of,
    json_bytes,
    open_plain,
    parse_json,
    read_plain_file,
    walk,
    write_bytes_atomically,
)
from mosaic_wire.paths import Home
from mosaic_wire.redaction import redact_document, redact_text, spellings_of

logger = logging.getLogger(__name__)

_PIECE = 1 << 20
_MOST_ENTRIES = 200_000
_SEALED = ("lifecycle.jsonl", "exit.json", "analytics.json")
_TEXT_SUFFIXES = frozenset(
    {
        "", ".1", ".log", ".out", ".err", ".txt", ".md", ".rst", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini",
        ".cfg", ".conf", ".csv", ".tsv", ".xml", ".html", ".py", ".sh", ".env",
    }
)  # fmt: skip


class SecretMask:
    """The secrets of one run, and how far its growing files were cleaned of them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._texts = spellings_of(secrets)
        self._patterns = [text.encode("utf-8", "surrogateescape") for text in self._texts]
        self._overlap = max(map(len, self._patterns), default=1) - 1
        self._cleaned: dict[Path, int] = {}

    def text(self, text: str) -> str:
        return redact_text(text, self._texts)

    def document(self, value: Any) -> Any:
        return redact_document(value, self._texts)

    def follow(self, path: Path, *, anew: bool = False) -> None:
        """Blot out what was added to a file since the last call. Its length stays: somebody may be appending."""
        if self._patterns:
            # Not there yet, or not a file that a worker could have printed to
            with suppress(OSError):
                self._cleaned[path] = self._blot(path, 0 if anew else self._cleaned.get(path, 0))

    def clean_run(self, home: Home, run_id: str) -> None:
        """Clean every text file of a run whose processes are gone."""
        if not self._patterns:
            return
        folder = home.run_folder(run_id)
        for path in (*_text_files(home.run_logs(run_id)), *_text_files(folder.root, leave_out=folder.checkpoints)):
            try:
                if path.parent == folder.root and path.name in _SEALED:
                    self._reseal(path)
                self._blot(path, 0)
            except OSError as error:
                logger.error("run %s: %s may still hold a secret: %s", run_id, path, error)

    def _blot(self, path: Path, start: int) -> int:
        """Overwrite secrets with asterisks from this byte on; return up to where no secret can begin any more."""
        with open_plain(path, "r+b") as stream:
            descriptor = stream.fileno()
            offset = start if start <= os.fstat(descriptor).st_size else 0  # it was cut meanwhile
            kept = bytearray()
            while piece := os.pread(descriptor, _PIECE, offset):
                offset += len(piece)
                kept += piece
                self._blot_piece(descriptor, kept, offset - len(kept))
                del kept[: max(0, len(kept) - self._overlap)]
            return offset - len(kept)

    def _blot_piece(self, descriptor: int, data: bytearray, base: int) -> None:
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                blot = b"*" * len(pattern)
                os.pwrite(descriptor, blot, base + at)
                data[at : at + len(pattern)] = blot
                at = data.find(pattern, at + len(pattern))

    def _reseal(self, path: Path) -> None:
        """Clean a file whose checksums must fit afterwards."""
        try:
            data = read_plain_file(path)
        except ValueError:
            return  # too large to be one of them
        if not any(pattern in data for pattern in self._patterns):
            return
        parts = data.splitlines(keepends=True) if path.suffix == ".jsonl" else [data]
        clean = b"".join(self._resealed(part, lines=path.suffix == ".jsonl") for part in parts)
        write_bytes_atomically(path, clean, mode=stat.S_IMODE(path.stat().st_mode))

    def _resealed(self, data: bytes, *, lines: bool) -> bytes:
        try:
            document = parse_json(data)
        except ValueError:
            return data  # damaged anyway; what is secret in it is overwritten afterwards
        if not isinstance(document, dict) or not any(pattern in data for pattern in self._patterns):
            return data
        clean = {key: self.document(value) for key, value in document.items() if key != SEAL}
        if not lines:
            return json_bytes(clean, sealed=SEAL in document)
        if SEAL in document:
            clean[SEAL] = checksum_of(clean)
        return json.dumps(clean, separators=(",", ":")).encode() + b"\n"


def _text_files(folder: Path, *, leave_out: Path | None = None) -> Iterator[Path]:
    if folder.is_symlink():
        return  # what lies elsewhere is not ours to change
    for entry in walk(folder, most=_MOST_ENTRIES, enter=lambda entry: Path(entry.path) != leave_out):
        if entry.is_file(follow_symlinks=False) and (path := Path(entry.path)).suffix.lower() in _TEXT_SUFFIXES:
            yield path
