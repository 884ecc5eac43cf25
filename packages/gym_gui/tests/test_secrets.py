"""Secrets leave the config, survive a restart outside the home, and come back only in an environment."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import sys

import pytest
from gym_gui.services.trainer.errors import InvalidConfig, SecretStoreError
from gym_gui.services.trainer.keyring_process import Keyring
from gym_gui.services.trainer.secrets import SecretStore, split_secrets, to_environment
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home

CANARY = "canary-9f8e7d6c5b4a"


def config(**extras):
    return {
        "run_name": "x",
        "metadata": {"worker": {"type": "cleanrl", "config": {"algo": "ppo", "env_id": "E", "extras": extras}}},
    }


def extras_of(document):
    return document["metadata"]["worker"]["config"]["extras"]


def test_a_secret_key_becomes_a_reference_and_an_environment_variable():
    document = config(wandb_api_key=CANARY, track_wandb=True)
    clean, secrets = split_secrets(document)
    assert extras_of(clean) == {"wandb_api_key": {"secret_ref": "wandb_api_key"}, "track_wandb": True}
    assert to_environment(secrets) == {"WANDB_API_KEY": CANARY}
    assert extras_of(document)["wandb_api_key"] == CANARY  # the caller's copy is his own


@pytest.mark.parametrize(
    "extras",
    [
        {"algo_params": {"openai-api-key": CANARY}},
        {"agents": [{"password": CANARY}, {"name": "b"}]},
        {"credentials": {"user": CANARY, "nested": [CANARY]}},
        {"wandb_http_proxy": f"http://me:{CANARY}@proxy.example:8080"},
        {"source": f"https://{CANARY}@host.example/repo"},
        {"wandb_api_key": CANARY, "notes": f"my key is {CANARY}!"},
        {"notes": f"see http://me:{CANARY}@proxy.example for more"},
        {"env_kwargs": {"authToken": CANARY}},
    ],
)
def test_a_secret_is_found_wherever_it_hides(extras):
    clean, _ = split_secrets(config(**extras))
    assert CANARY not in json.dumps(clean)


def test_a_secret_repeated_in_the_run_name_is_blotted_out():
    document = {**config(wandb_api_key=CANARY), "run_name": f"run {CANARY}", "tags": [CANARY]}
    clean, _ = split_secrets(document)
    assert CANARY not in json.dumps(clean)


def test_the_proxy_reaches_the_worker_under_its_known_name():
    _, secrets = split_secrets(config(wandb_https_proxy="http://u:pw@h:1", wandb_http_proxy="http://h:1"))
    assert to_environment(secrets) == {"WANDB_HTTPS_PROXY": "http://u:pw@h:1"}


def test_numbers_that_only_sound_secret_stay():
    extras = {"max_tokens": 512, "token_limit": 5, "use_auth": True, "api_key": None, "password": ""}
    clean, secrets = split_secrets(config(**extras))
    assert extras_of(clean) == extras
    assert secrets == {}
    _, secrets = split_secrets(config(password=1234567890123456))
    assert secrets == {"password": "1234567890123456"}


@pytest.mark.parametrize("value", ["step", "completed", "hush", 12345678, "CartPole-v1", "algo_params", "batch size 4"])
def test_a_secret_that_would_be_redacted_in_ordinary_text_is_refused_and_not_reported(value):
    document = config(wandb_api_key=value, algo_params={"batch size 4": 1})
    document["metadata"]["worker"]["config"]["env_id"] = "ns/CartPole-v1"
    with pytest.raises(InvalidConfig, match="too ordinary for a secret") as caught:
        split_secrets(document)
    assert str(value) not in str(caught.value)


def test_the_placeholders_of_local_servers_are_no_secrets():
    extras = {"algo_params": {"api_key": "ollama", "other_api_key": "EMPTY"}}
    clean, secrets = split_secrets(config(**extras))
    assert extras_of(clean) == extras
    assert secrets == {}


@pytest.mark.parametrize("value", ["sk-ключ-1234567890", "sk-abc\ndef1234567890"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_reported(value):
    with pytest.raises(InvalidConfig, match="api_key: a key is printable ASCII") as caught:
        split_secrets(config(wandb_api_key=value))
    assert value not in str(caught.value)


def test_two_secrets_under_one_key_get_two_names():
    document = config(
        one={"api_key": "first-secret"}, two={"api_key": "other-secret"}, three={"api_key": "first-secret"}
    )
    clean, secrets = split_secrets(document)
    assert sorted(secrets.values()) == ["first-secret", "other-secret"]
    assert len(to_environment(secrets)) == 2
    for name, value in (("one", "first-secret"), ("two", "other-secret"), ("three", "first-secret")):
        assert secrets[extras_of(clean)[name]["api_key"]["secret_ref"]] == value


def test_a_clean_config_stays_as_it_is():
    clean, secrets = split_secrets(config(wandb_api_key=CANARY))
    again, none = split_secrets(clean)
    assert again == clean
    assert none == {}
    assert secrets


def test_a_flat_worker_config_is_cleaned_too():
    clean, secrets = split_secrets({"algo": "ppo", "extras": {"wandb_api_key": CANARY}})
    assert CANARY not in json.dumps(clean)
    assert secrets == {"wandb_api_key": CANARY}


def test_a_config_cannot_choose_the_variables_that_the_daemon_and_python_use():
    names = to_environment({"mosaic_run_token": "a", "pythonpath": "b", "ld_preload": "c", "0auth": "d", "path": "e"})
    assert set(names) == {
        "SECRET_MOSAIC_RUN_TOKEN",
        "SECRET_PYTHONPATH",
        "SECRET_LD_PRELOAD",
        "SECRET_0AUTH",
        "SECRET_PATH",
    }


@pytest.mark.parametrize("value", ["a\0b", "x" * 100_000])
def test_a_secret_that_no_environment_can_hold_is_a_problem_and_is_not_reported(value):
    with pytest.raises(InvalidConfig) as caught:
        split_secrets(config(wandb_api_key=value))
    assert value not in str(caught.value)


# ---------------------------------------------------------------- the store


def test_secrets_survive_in_a_private_file_and_can_be_deleted(tmp_path):
    folder, run_id, other = tmp_path / "config", new_run_id(), new_run_id()
    SecretStore(folder).put(run_id, {"wandb_api_key": CANARY})
    SecretStore(folder).put(other, {"k": "v"})
    assert SecretStore(folder).get(run_id) == {"wandb_api_key": CANARY}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "secrets.json").stat().st_mode) == 0o600
    SecretStore(folder).delete(run_id)
    assert SecretStore(folder).get(run_id) == {}
    assert SecretStore(folder).runs() == [other]
    assert CANARY not in (folder / "secrets.json").read_text()


def test_reading_and_deleting_without_a_file_makes_none(tmp_path):
    store = SecretStore(tmp_path / "config")
    assert store.get(new_run_id()) == {}
    store.delete(new_run_id())
    store.put(new_run_id(), {})
    assert not (tmp_path / "config").exists()


def test_a_config_folder_inside_the_home_is_refused(tmp_path):
    with pytest.raises(SecretStoreError, match="is inside"):
        SecretStore(tmp_path / "var" / "config", home=Home(tmp_path / "var"))


def test_a_damaged_file_is_refused_and_not_overwritten(tmp_path):
    folder, run_id = tmp_path / "config", new_run_id()
    SecretStore(folder).put(run_id, {"k": CANARY})
    whole = (folder / "secrets.json").read_bytes()
    for cut in range(len(whole) - 1):
        (folder / "secrets.json").write_bytes(whole[:cut])
        with pytest.raises(SecretStoreError):
            SecretStore(folder).get(run_id)
        with pytest.raises(SecretStoreError):
            SecretStore(folder).put(run_id, {"k": "other"})
        assert (folder / "secrets.json").read_bytes() == whole[:cut]


def _put_many(folder, run_ids):
    store = SecretStore(folder)
    for run_id in run_ids:
        store.put(run_id, {"k": run_id})


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    groups = [[new_run_id() for _ in range(8)] for _ in range(3)]
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_many, args=(tmp_path / "config", group)) for group in groups]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    store = SecretStore(tmp_path / "config")
    assert store.runs() == sorted(run_id for group in groups for run_id in group)


# ---------------------------------------------------------------- the keyring, as a real process

BACKEND = """
import json, os, pathlib, time
from keyring.backend import KeyringBackend
FILE = pathlib.Path(os.environ["TEST_KEYRING_FILE"])
class Keyring(KeyringBackend):
    priority = 1
    def _all(self):
        return json.loads(FILE.read_text()) if FILE.exists() else {}
    def get_password(self, service, name):
        if os.environ.get("TEST_KEYRING_HANGS"):
            time.sleep(600)
        return self._all().get(name)
    def set_password(self, service, name, value):
        if os.environ.get("TEST_KEYRING_REFUSES"):
            raise RuntimeError("locked, will not keep " + value)
        FILE.write_text(json.dumps({**self._all(), name: value}))
    def delete_password(self, service, name):
        FILE.write_text(json.dumps({k: v for k, v in self._all().items() if k != name}))
"""


@pytest.fixture
def os_keyring(tmp_path, monkeypatch):
    """A keyring backend that the keyring library finds as it finds the system's."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "kept_in_a_file.py").write_text(BACKEND)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "kept_in_a_file.Keyring")
    monkeypatch.setenv("TEST_KEYRING_FILE", str(tmp_path / "keyring.json"))
    return tmp_path / "keyring.json"


def test_a_usable_keyring_keeps_the_values_and_the_file_only_reports_it(tmp_path, os_keyring):
    folder, run_id = tmp_path / "config", new_run_id()
    SecretStore(folder).put(run_id, {"wandb_api_key": CANARY})
    assert CANARY not in (folder / "secrets.json").read_text()
    assert CANARY in os_keyring.read_text()
    store = SecretStore(folder)
    assert store.get(run_id) == {"wandb_api_key": CANARY}
    store.delete(run_id)
    assert CANARY not in os_keyring.read_text()
    assert store.get(run_id) == {}


def test_a_keyring_that_never_answers_does_not_hang_the_daemon(tmp_path, os_keyring, monkeypatch):
    monkeypatch.setenv("TEST_KEYRING_HANGS", "1")
    folder, run_id = tmp_path / "config", new_run_id()
    SecretStore(folder, keyring=Keyring(timeout_s=2)).put(run_id, {"k": CANARY})
    assert SecretStore(folder).get(run_id) == {"k": CANARY}  # the file took it


def test_a_locked_keyring_gives_way_to_the_file(tmp_path, os_keyring, monkeypatch):
    monkeypatch.setenv("TEST_KEYRING_REFUSES", "1")
    store, run_id = SecretStore(tmp_path / "config"), new_run_id()
    store.put(run_id, {"k": CANARY})
    assert store.get(run_id) == {"k": CANARY}


def test_secrets_in_a_keyring_that_is_missing_are_a_clear_error(tmp_path, os_keyring, monkeypatch):
    store, run_id = SecretStore(tmp_path / "config"), new_run_id()
    store.put(run_id, {"k": CANARY})
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    with pytest.raises(SecretStoreError, match=run_id):
        store.get(run_id)


def test_without_a_keyring_no_process_is_started_to_find_out(monkeypatch):
    monkeypatch.delenv("PYTHON_KEYRING_BACKEND", raising=False)
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    if not os.path.exists(f"/run/user/{os.getuid()}/bus"):
        assert not Keyring().is_usable()
