"""`settings.toml`: defaults, every problem at once, the nearest name."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from gym_gui.config.settings import Settings, SlurmSettings, load_settings
from hypothesis import given
from hypothesis import strategies as st
from mosaic_wire.errors import ConfigProblems


def problems_in(path, text, **kwargs):
    path.write_text(text)
    with pytest.raises(ConfigProblems) as caught:
        load_settings(path, **kwargs)
    return {problem.path: problem for problem in caught.value.problems}


def test_without_a_file_the_defaults_hold(tmp_path):
    settings = load_settings(tmp_path / "settings.toml")
    assert settings == Settings()
    assert (settings.heartbeat_s, settings.silence_s, settings.grace_s, settings.port) == (5, 120, 30, 50055)
    assert settings.listen == ""  # TCP only when asked for


def test_the_file_lies_in_the_config_folder(home, tmp_path):
    (tmp_path / "config" / "settings.toml").write_text("grace_s = 7")
    assert load_settings().grace_s == 7


def test_every_default_passes_its_own_check(tmp_path):
    overrides = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}
    assert load_settings(tmp_path / "none", overrides=overrides) == Settings()


def test_values_are_read(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('heartbeat_s = 1\ncpus = 3\nmemory_mb = 4096\non_end_command = ["echo", "a b"]\nlisten = "::1"\n')
    settings = load_settings(path)
    assert (settings.heartbeat_s, settings.cpus, settings.memory_mb) == (1, 3, 4096)
    assert settings.on_end_command == ("echo", "a b")
    assert settings.listen == "::1"


def test_overrides_win_over_the_file_and_are_checked(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("port = 4000")
    assert load_settings(path, overrides={"port": 0}).port == 0
    assert "port" in problems_in(path, "", overrides={"port": 70000})


def test_all_problems_are_reported_at_once_with_the_nearest_name(tmp_path):
    found = problems_in(
        tmp_path / "s.toml",
        'heartbeats = 3\nport = "http"\ncpus = -1\non_end_command = "rm -rf /"\ngrace_s = true\n'
        'on_end_webhook = "ftp://x"\nmax_processes = 1.5\nlisten = "example"\n',
    )
    assert set(found) == {
        "heartbeats",
        "port",
        "cpus",
        "on_end_command",
        "grace_s",
        "on_end_webhook",
        "max_processes",
        "listen",
    }
    assert found["heartbeats"].suggestion == "heartbeat_s"


def test_an_address_that_is_not_loopback_needs_certificates(tmp_path):
    assert "tls_cert" in problems_in(tmp_path / "s.toml", 'listen = "0.0.0.0"')["listen"].message
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("")
    both = f'listen = "0.0.0.0"\ntls_cert = "{tmp_path}/cert.pem"\n'
    assert "tls_key" in problems_in(tmp_path / "s.toml", both)
    (tmp_path / "s.toml").write_text(both + f'tls_key = "{tmp_path}/key.pem"\n')
    assert load_settings(tmp_path / "s.toml").listen == "0.0.0.0"
    assert "tls_key" in problems_in(tmp_path / "s.toml", both + 'tls_key = "/nowhere"')


def test_a_silence_shorter_than_two_beats_is_refused(tmp_path):
    assert "silence_s" in problems_in(tmp_path / "s.toml", "heartbeat_s = 10\nsilence_s = 5")


@pytest.mark.parametrize("text", ["port = ", "[table", "a = 1\na = 2", "port = 1" + "0" * 5000])
def test_broken_toml_is_one_clear_problem(tmp_path, text):
    assert problems_in(tmp_path / "s.toml", text)


def test_a_file_that_is_not_text_is_a_problem(tmp_path):
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigProblems, match="not valid TOML"):
        load_settings(tmp_path / "s.toml")
    with pytest.raises(ConfigProblems, match="cannot be read"):
        load_settings(tmp_path)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.text(max_size=5))


def test_a_cluster_is_read_with_its_defaults(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('[executors.a100]\ntype = "slurm"\npartition = "gpu"\noptions = ["--constraint=avx512"]\n')
    cluster = load_settings(path).executors["a100"]
    assert cluster == SlurmSettings(partition="gpu", options=("--constraint=avx512",))
    assert (cluster.gres, cluster.max_submitted) == ("gpu", 200)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('[executors.a]\npartition = "gpu"', r"\[executors.a\] needs type = \"slurm\""),
        ('[executors.a]\ntype = "ray"', "there is no other type yet"),
        ('[executors.local]\ntype = "slurm"', "needs another name.*local is the daemon's own machine"),
        ('[executors.a]\ntype = "slurm"\npartiton = "gpu"', "no setting 'partiton'; did you mean 'partition'"),
        ('[executors.a]\ntype = "slurm"\nqos = "--wrap=x"', "qos: expected a name as Slurm knows it"),
        ('[executors.a]\ntype = "slurm"\noptions = ["--exp=ALL"]', "--exp cannot be given here: MOSAIC sets it itself"),
        ('[executors.a]\ntype = "slurm"\noptions = ["-p", "gpu"]', "expected long options of sbatch in one piece"),
        ('[executors.a]\ntype = "slurm"\nmax_submitted = 0', "max_submitted: must lie between 1"),
    ],
)
def test_a_wrong_cluster_says_what_is_wrong_with_it(tmp_path, table, expected):
    problem = problems_in(tmp_path / "settings.toml", table)["executors"]
    assert re.search(expected, problem.message)


@given(st.dictionaries(st.sampled_from([field.name for field in fields(Settings)]) | st.text(max_size=10), VALUES))
def test_whatever_the_values_are_only_problems_are_raised(tmp_path_factory, values):
    try:
        load_settings(tmp_path_factory.getbasetemp() / "no-such-settings.toml", overrides=values)
    except ConfigProblems as error:
        assert error.problems  # noqa: PT017 -- right or refused, both are fine here
