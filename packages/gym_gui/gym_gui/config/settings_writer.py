"""Changes single settings in `settings.toml`; comments and everything else stay as a person wrote them."""

from __future__ import annotations

import json
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic_wire.files import chosen_file, read_plain_file
from mosaic_wire.paths import make_private_folder

from gym_gui.config.settings import Settings, load_settings, settings_file


def change_settings(changes: Mapping[str, Any], path: Path | None = None) -> Settings:
    """Write these (None: back to the default) and return all settings; ConfigProblems when they are not right.

    Nothing is written unless every setting of the result is right.
    """
    file = settings_file() if path is None else path
    try:
        before = read_plain_file(file, opener=chosen_file).decode()
    except FileNotFoundError:
        before = ""
    text = changed_text(before, changes)
    make_private_folder(file.parent)
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(6)}.tmp")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        settings = load_settings(unfinished)
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    return settings


def changed_text(text: str, changes: Mapping[str, Any]) -> str:
    """The file with these settings changed: each on its old line, new ones at the end."""
    try:
        wanted = {**tomllib.loads(text), **changes}
    except tomllib.TOMLDecodeError:
        wanted = dict(changes)
        text = ""  # it was of no use to anybody; what was typed in the form is
    wanted = {key: value for key, value in wanted.items() if value is not None}
    lines, done = [], set()
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
        if match is None or match[1] not in changes:
            lines.append(line)
        elif match[1] not in done:
            done.add(match[1])
            if changes[match[1]] is not None:
                lines.append(f"{match[1]} = {to_toml(changes[match[1]])}")
    for key, value in changes.items():
        if key not in done and value is not None:
            lines.append(f"{key} = {to_toml(value)}")
    result = "\n".join(lines) + "\n" if lines else ""
    try:
        if tomllib.loads(result) == _plain(wanted):
            return result
    except tomllib.TOMLDecodeError:
        pass
    # A value over several lines, or a table: written anew as a whole, without its comments.
    return "".join(f"{key} = {to_toml(value)}\n" for key, value in wanted.items())


def to_toml(value: Any) -> str:
    """A value of a flat setting."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_toml(entry) for entry in value) + "]"
    # A basic string of TOML escapes as JSON does, but for DEL, which it does not allow as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tomllib.loads(f"value = {to_toml(value)}")["value"] for key, value in values.items()}
