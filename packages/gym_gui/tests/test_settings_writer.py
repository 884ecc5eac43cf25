"""Single settings are changed; what a person wrote around them stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from gym_gui.config.settings import Settings, change_settings, changed_text, load_settings
from mosaic_wire.errors import ConfigProblems

BEFORE = """\
# our machine
silence_s = 600  # slow disks
cpus = 6
"""


def test_a_line_is_changed_where_it_stands() -> None:
    assert (
        changed_text(BEFORE, {"cpus": 4, "port": 0})
        == "# our machine\nsilence_s = 600  # slow disks\ncpus = 4\nport = 0\n"
    )


def test_back_to_the_default_removes_the_line() -> None:
    assert changed_text(BEFORE, {"cpus": None, "port": None}) == "# our machine\nsilence_s = 600  # slow disks\n"


def test_a_value_over_several_lines_is_replaced_as_a_whole() -> None:
    before = 'on_end_command = [\n  "a",\n  "b = 1",\n]\ncpus = 2\n'
    assert changed_text(before, {"on_end_command": ["c"]}) == 'on_end_command = ["c"]\ncpus = 2\n'


def test_what_was_no_toml_is_replaced() -> None:
    assert changed_text("cpus = = 3", {"cpus": 3}) == "cpus = 3\n"


def test_it_is_written_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    strange = 'quote " back \\ line\nend é'
    settings = change_settings({"grace_s": 2.5, "on_end_command": ["echo", strange], "max_processes": 99}, file)
    assert settings == load_settings(file)
    assert (settings.grace_s, settings.on_end_command, settings.max_processes) == (2.5, ("echo", strange), 99)
    assert file.stat().st_mode & 0o777 == 0o600
    assert change_settings({"grace_s": None, "on_end_command": None, "max_processes": None}, file) == Settings()


def test_nothing_is_written_unless_all_of_it_is_right(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(BEFORE)
    with pytest.raises(ConfigProblems) as refused:
        change_settings({"heartbeat_s": 500, "listen": "0.0.0.0"}, file)
    assert {problem.path for problem in refused.value.problems} == {"silence_s", "listen"}
    assert file.read_text() == BEFORE
    assert [path.name for path in tmp_path.iterdir()] == ["settings.toml"]
