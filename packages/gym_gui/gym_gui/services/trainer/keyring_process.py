"""Access to the OS keyring in separate processes.

A locked keyring prompts its user for a password and may never answer, for which the daemon must not wait, and the
keyring's modules are slow to import. So each request is a short process with a time limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SERVICE = "mosaic"

_TIMEOUT_S = 20.0

_SCRIPT = """
import json, sys
request = json.load(sys.stdin)
import keyring
from keyring.backends import chainer, fail, null
backend = keyring.get_keyring()
empty_chain = isinstance(backend, chainer.ChainerBackend) and not backend.backends
if isinstance(backend, (fail.Keyring, null.Keyring)) or empty_chain:
    print(json.dumps({"error": "there is no keyring"})); sys.exit()
service, name, value = request["service"], request["name"], request.get("value")
try:
    if request["do"] == "set":
        backend.set_password(service, name, value)
    elif request["do"] == "delete":
        if backend.get_password(service, name) is not None:
            backend.delete_password(service, name)
    value = backend.get_password(service, name)
except Exception as error:
    message = str(error).replace(value, "…") if value else str(error)
    print(json.dumps({"error": f"{type(error).__name__}: {message[:200]}"})); sys.exit()
print(json.dumps({"value": value}))
"""


class KeyringFailed(Exception):
    """A request to the keyring failed; the message never contains a secret."""


class Keyring:
    """Gets, sets and deletes entries of the user's keyring, each with a time limit."""

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._usable: bool | None = None

    def is_usable(self) -> bool:
        """Return whether there is a keyring that stores values; tested once with a dummy value."""
        if self._usable is None:
            self._usable = _may_have_keyring() and self._stores_a_value()
        return self._usable

    def get(self, name: str) -> str | None:
        """Return a secret, or None."""
        return self._request("get", name)

    def set(self, name: str, value: str) -> None:
        """Store a secret."""
        if self._request("set", name, value) != value:
            raise KeyringFailed("it did not store the value")

    def delete(self, name: str) -> None:
        """Remove a secret."""
        self._request("delete", name)

    def _stores_a_value(self) -> bool:
        name = f"probe-{os.getpid()}"
        try:
            self.set(name, "probe")
            self.delete(name)
        except KeyringFailed:
            return False
        return True

    def _request(self, do: str, name: str, value: str | None = None) -> str | None:
        request = {"do": do, "service": SERVICE, "name": name, "value": value}
        try:
            # The request goes through stdin, because all users can read command lines.
            answer = subprocess.run(
                [sys.executable, "-c", _SCRIPT],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=False,
                start_new_session=True,  # without a terminal it cannot prompt
            )
            document = json.loads(answer.stdout)
        except subprocess.TimeoutExpired:
            self._usable = False
            raise KeyringFailed(f"no answer within {self._timeout_s:g} s; is it locked?") from None
        except (OSError, ValueError):
            raise KeyringFailed("it cannot be used") from None
        if "error" in document:
            raise KeyringFailed(document["error"])
        kept: str | None = document["value"]
        return kept


def _may_have_keyring() -> bool:
    """Return False without starting a process where no keyring can exist, as on most servers."""
    chosen = os.environ.get("PYTHON_KEYRING_BACKEND", "")
    if chosen.startswith(("keyring.backends.fail.", "keyring.backends.null.")):
        return False
    if chosen or sys.platform != "linux":
        return True
    bus = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
    return bool(bus) or Path(f"/run/user/{os.getuid()}/bus").exists()
