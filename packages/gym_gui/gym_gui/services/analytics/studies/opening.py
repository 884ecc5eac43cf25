"""Opens a study, whatever Optuna wrote it into.

study = open_study("sweep/study.journal")
study = open_study("sqlite:///cleanrl_hpopt.db", "tuner_1700000000")

file = open_file(path)              kept, to read again what has changed since
file.summaries(); file.read(name)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from mosaic_wire.files import open_chosen

from gym_gui.services.analytics.studies.journal_reader import JournalFile
from gym_gui.services.analytics.studies.sqlite_reader import MAGIC, SqliteFile
from gym_gui.services.analytics.studies.study import NoStudyYet, Study, StudyError, StudySummary


class StudyFile(Protocol):
    """A file with studies; not to be asked by two threads at once."""

    path: Path

    def summaries(self) -> tuple[StudySummary, ...]: ...

    def read(self, name: str) -> Study: ...


class SeveralStudies(StudyError):
    """The file holds more than one study and nobody said which."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        super().__init__(f"{path} holds {len(names)} studies, name one of them: {listed}")
        self.names = names


def is_url(address: str) -> bool:
    """A database server's address; a path, or `sqlite:///` and a path, is a file."""
    return "://" in address and not address.startswith(("sqlite:", "file:"))


def path_of(address: str | Path) -> Path:
    """The file that an address names; StudyError for one that names a server."""
    text = os.fspath(address)
    if "://" not in text:
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme.partition("+")[0] not in ("sqlite", "file") or parts.netloc:
        raise StudyError(f"{parts.scheme} is a database server, not a file")
    # SQLAlchemy's way: three slashes before a relative path, four before an absolute one.
    path = parts.path[1:] if parts.scheme.startswith("sqlite") else parts.path
    return Path(unquote(path))


def open_file(address: str | Path) -> StudyFile:
    """The file's reader, chosen by how it begins."""
    path = path_of(address)
    try:
        with open_chosen(path) as stream:
            head = stream.read(len(MAGIC))
    except FileNotFoundError:
        raise NoStudyYet(f"{path} is not there") from None
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror or error}") from None
    if head == MAGIC:
        return SqliteFile(path)
    if not head:
        raise NoStudyYet(f"{path} is empty: no study was written to it yet")
    if head.lstrip()[:1] != b"{":
        raise StudyError(f"{path} is neither an SQLite database nor a journal of Optuna")
    return JournalFile(path)


def open_study(address: str | Path, name: str | None = None) -> Study:
    """The study in this file; with several, the one of this name."""
    file = open_file(address)
    if name is None:
        names = tuple(summary.name for summary in file.summaries())
        if not names:
            raise NoStudyYet(f"{file.path} holds no study")
        if len(names) > 1:
            raise SeveralStudies(file.path, names)
        name = names[0]
    return file.read(name)
