"""Secrets of a run: removed from its config, stored outside the home, passed to the worker in its environment.

`split_secrets` cleans a config, `lend_secrets` fills in those of another run; `SecretStore` keeps the values in the OS
keyring or, where there is none, in a 0600 file of the user's config folder; `to_environment` names the variables the
worker finds them in.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mosaic_wire import env, redaction
from mosaic_wire.errors import Problem, WireError
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.ids import check_run_id, is_run_id
from mosaic_wire.paths import Home, make_private_folder
from mosaic_wire.redaction import SECRET_REF, is_secret_key, is_secret_ref, redact_text, secret_variable, spellings_of

from gym_gui.services.trainer.errors import InvalidConfig, SecretStoreError
from gym_gui.services.trainer.keyring_process import Keyring, KeyringFailed

logger = logging.getLogger(__name__)

_MAX_SECRET_CHARACTERS = 64 * 1024  # one environment variable holds 128 KiB
_WORKER_CONFIG = ("metadata", "worker", "config")

# user:password@ or a long token as the user; `git@host` is an address, not a credential
_URL_WITH_CREDENTIALS = re.compile(r"[a-z][a-z0-9+.-]*://([^/\s:@]*:[^/\s@]+|[^/\s:@]{16,})@\S*", re.IGNORECASE)
_TOO_ORDINARY = (
    "too ordinary for a secret: redacting it would damage the run's files. Use at least 8 characters (16 where all are "
    "letters or all digits) that are no part of a key, algorithm or environment of this config"
)
_PLACEHOLDERS = frozenset(
    {"ollama", "empty", "none", "no-key", "not-needed", "lm-studio", "sk-no-key-required", "dummy"}
)
"""What users of local servers write where a client requires a key: no secrets, and common in logs"""
_SENT_IN_HEADERS = re.compile(r"api[_-]?key$", re.IGNORECASE)
_COUNTED = re.compile(r"token|auth", re.IGNORECASE)


def referred_secrets(value: Any) -> set[str]:
    """Return the names of the secrets that a config refers to."""
    if is_secret_ref(value):
        return {value[SECRET_REF]}
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return set[str]().union(*map(referred_secrets, items))


def naming_run(value: Any, run_id: str) -> Any:
    """Return a stored config for another submission: its references also name the run whose secrets they are."""
    if is_secret_ref(value):
        return {SECRET_REF: f"{run_id}/{value[SECRET_REF]}"}
    if isinstance(value, Mapping):
        return {key: naming_run(item, run_id) for key, item in value.items()}
    return [naming_run(item, run_id) for item in value] if isinstance(value, list | tuple) else value


def lend_secrets(value: Any, secrets_of: Callable[[str], Mapping[str, str]], missing: list[str]) -> Any:
    """Return a submitted config with the secrets in place of references that name a run.

    What is not stored is left out, and its reference added to `missing`.
    """
    if is_secret_ref(value):
        run_id, slash, name = value[SECRET_REF].rpartition("/")
        if not slash:
            return value
        secret = secrets_of(run_id).get(name) if is_run_id(run_id) else None
        missing += [value[SECRET_REF]] if secret is None else []
        return secret
    if isinstance(value, Mapping):
        lent = {key: lend_secrets(item, secrets_of, missing) for key, item in value.items()}
        return {key: item for key, item in lent.items() if item is not None or value[key] is None}
    if isinstance(value, list | tuple):
        return [lend_secrets(item, secrets_of, missing) for item in value]
    return value


def split_secrets(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the config with a reference in place of each secret, and the secrets by name.

    Secrets are all texts under a key that names one, anywhere in the worker's part, and URLs with a password.
    The same text elsewhere (a key pasted into the notes) is redacted. The document itself is not changed.
    """
    found = _Found(_names_in(document))
    # In a flat worker config everything is the worker's part.
    nested = all(isinstance(part, Mapping) for part in _along(document))
    clean = _replace_at(document, _WORKER_CONFIG, found) if nested else found.clean(document, ())
    if found.problems:
        raise InvalidConfig(found.problems)
    redacted = _redact(clean, spellings_of(found.secrets.values()))
    assert isinstance(redacted, dict)
    return redacted, found.secrets


def to_environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for these secrets: `wandb_api_key` becomes `WANDB_API_KEY`."""
    return {secret_variable(name): value for name, value in secrets.items()}


class _Found:
    """Copies a document without its secrets and collects them."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.secrets: dict[str, str] = {}
        self.problems: list[Problem] = []

    def clean(self, value: Any, path: tuple[str, ...], *, inside_secret: bool = False) -> Any:
        if is_secret_ref(value):
            return dict(value)
        if isinstance(value, Mapping):
            return {
                key: self.clean(item, (*path, str(key)), inside_secret=inside_secret or is_secret_key(str(key)))
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                self.clean(item, (*path, str(index)), inside_secret=inside_secret) for index, item in enumerate(value)
            ]
        if isinstance(value, str) and value and value.lower() not in _PLACEHOLDERS:
            if inside_secret or _URL_WITH_CREDENTIALS.fullmatch(value):
                return self._extract(value, path)
        elif inside_secret and type(value) in (int, float) and not _COUNTED.search(path[-1]):
            return self._extract(str(value), path)  # a password of digits; `token_limit: 5` stays a number
        return value

    def _extract(self, value: str, path: tuple[str, ...]) -> dict[str, str]:
        where = ".".join(path)
        if "\0" in value or len(value) > _MAX_SECRET_CHARACTERS:
            self.problems.append(
                Problem(where, f"a secret must be text of at most {_MAX_SECRET_CHARACTERS} characters without NUL")
            )
            return {SECRET_REF: ""}
        if _SENT_IN_HEADERS.search(path[-1]) and not (value.isascii() and value.isprintable()):
            self.problems.append(
                Problem(where, "a key is printable ASCII; is there a line break or a dash of another kind in it?")
            )
        if redaction.is_ordinary(value) or any(value in name for name in self._names):
            self.problems.append(Problem(where, _TOO_ORDINARY))
        name = self._name(value, path)
        self.secrets[name] = value
        return {SECRET_REF: name}

    def _name(self, value: str, path: tuple[str, ...]) -> str:
        """Return the key, prefixed with as much of its path as makes it unique."""
        variables = {variable: text for name in self.secrets for variable, text in self._variable(name).items()}
        parts = [re.sub(r"[^A-Za-z0-9_]", "_", part)[:100] for part in path]
        for length in range(1, len(parts) + 1):
            name = "_".join(parts[-length:])
            if not name.strip("_0123456789"):
                continue  # a mere index
            taken = variables.get(next(iter(to_environment({name: ""}))))
            if taken is None or taken == value:
                return name
        return f"{'_'.join(parts)}_{len(self.secrets)}"

    def _variable(self, name: str) -> dict[str, str]:
        return to_environment({name: self.secrets[name]})


def _along(document: Mapping[str, Any]) -> Iterator[Any]:
    node: Any = document
    for key in _WORKER_CONFIG:
        node = node.get(key) if isinstance(node, Mapping) else None
        yield node


def _names_in(value: Any, key: str = "") -> set[str]:
    """Return every key of a document, and the algorithm, environment and worker that it names."""
    if isinstance(value, Mapping):
        return {*map(str, value)}.union(*(_names_in(item, str(key)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return set[str]().union(*map(_names_in, value))
    return {value} if key in ("algo", "env_id", "type") and isinstance(value, str) else set()


def _replace_at(document: Mapping[str, Any], keys: tuple[str, ...], found: _Found) -> dict[str, Any]:
    copy = dict(document)
    if len(keys) == 1:
        copy[keys[0]] = found.clean(document[keys[0]], _WORKER_CONFIG)
    else:
        copy[keys[0]] = _replace_at(document[keys[0]], keys[1:], found)
    return copy


def _redact(value: Any, secrets: list[str]) -> Any:
    if is_secret_ref(value):
        return value
    if isinstance(value, Mapping):
        return {key: _redact(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(item, secrets) for item in value]
    return redact_text(value, secrets) if isinstance(value, str) else value


class SecretStore:
    """Stores the secrets of runs, readable by this user only, until they are deleted."""

    def __init__(self, config_home: Path, *, home: Home | None = None, keyring: Keyring | None = None) -> None:
        if home is not None and config_home.absolute().is_relative_to(home.root.absolute()):
            raise SecretStoreError(
                f"the config folder {config_home} is inside {home.root}: archives and backups of runs would contain"
                f" secrets; set {env.MOSAIC_CONFIG_HOME} to another place"
            )
        self._folder = config_home
        self._file = config_home / "secrets.json"
        self._keyring = Keyring() if keyring is None else keyring

    def put(self, run_id: str, secrets: Mapping[str, str]) -> None:
        """Store a run's secrets, replacing earlier ones."""
        check_run_id(run_id)
        if not secrets:
            self.delete(run_id)
            return
        with self._locked() as runs:
            runs[run_id] = self._keep(run_id, dict(secrets))
            self._write(runs)

    def get(self, run_id: str) -> dict[str, str]:
        """Return a run's secrets; empty when it has none."""
        check_run_id(run_id)
        if not self._file.exists():
            return {}
        entry = self._read().get(run_id)
        if entry is None:
            return {}
        values = entry.get("values")
        if entry.get("store") == "keyring":
            try:
                values = json.loads(self._keyring.get(run_id) or "null")
            except (KeyringFailed, ValueError, RecursionError) as error:
                raise SecretStoreError(f"the keyring does not return the secrets of run {run_id}: {error}") from error
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise SecretStoreError(f"the secrets of run {run_id} are missing or damaged; submit the run again")
        return values

    def known(self, run_id: str) -> dict[str, str]:
        """Return a run's secrets as far as they can be read, to redact texts."""
        try:
            return self.get(run_id)
        except SecretStoreError as error:
            logger.error("run %s: %s", run_id, error)
            return {}

    def delete(self, run_id: str) -> None:
        """Delete a run's secrets, if any."""
        check_run_id(run_id)
        if not self._file.exists():
            return
        with self._locked() as runs:
            entry = runs.pop(run_id, None)
            if entry is None:
                return
            if entry.get("store") == "keyring":
                try:
                    self._keyring.delete(run_id)
                except KeyringFailed as error:
                    raise SecretStoreError(
                        f"the keyring does not delete the secrets of run {run_id}: {error}"
                    ) from error
            self._write(runs)

    def runs(self) -> list[str]:
        """Return the runs that have secrets here."""
        return sorted(self._read()) if self._file.exists() else []

    def _keep(self, run_id: str, secrets: dict[str, str]) -> dict[str, Any]:
        if self._keyring.is_usable():
            try:
                self._keyring.set(run_id, json.dumps(secrets))
            except KeyringFailed:
                pass  # locked or removed meanwhile: use the file instead
            else:
                return {"store": "keyring"}
        return {"store": "file", "values": secrets}

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Hold a file lock, so that concurrent processes do not lose each other's entries."""
        try:
            make_private_folder(self._folder)
            descriptor = os.open(self._folder / "secrets.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (OSError, WireError) as error:
            raise SecretStoreError(f"secrets cannot be stored in {self._folder}: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._read() if self._file.exists() else {}
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, Any]:
        try:
            document = read_json_object(self._file)
        except (OSError, ValueError) as error:
            raise SecretStoreError(f"{error}; repair or remove {self._file}") from error
        runs = document.get("runs")
        if not isinstance(runs, dict) or not all(isinstance(entry, dict) for entry in runs.values()):
            raise SecretStoreError(f"{self._file} is damaged; repair or remove it")
        return runs

    def _write(self, runs: Mapping[str, Any]) -> None:
        try:
            write_json_atomically(self._file, {"version": 1, "runs": dict(runs)}, mode=0o600, sealed=True)
        except OSError as error:
            raise SecretStoreError(f"secrets cannot be stored in {self._file}: {error.strerror}") from error
