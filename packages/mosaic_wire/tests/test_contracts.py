"""The small contracts: specs, capabilities, manifests, redaction, paths, ids, atomic files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mosaic_wire import env
from mosaic_wire.capabilities import Lane, WorkerCapabilities
from mosaic_wire.errors import InvalidRunId, SpecError, WireError
from mosaic_wire.files import read_json_object, write_bytes_atomically, write_json_atomically
from mosaic_wire.ids import check_run_id, is_run_id, new_run_id
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry, earlier_checkpoints
from mosaic_wire.paths import Home, find_home, make_private_folder, user_path
from mosaic_wire.redaction import REDACTED, is_secret_key, redact_document, redact_text, secret_values
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice

RUN_ID = "01M7F8P2TF767091SW55X7DC97"
SPEC = WorkerSpec(
    name="toy",
    display_name="Toy",
    version="1",
    capabilities=WorkerCapabilities("toy", lane=Lane.HYBRID),
    module="toy.cli",
    algorithms=(
        AlgorithmSpec(
            "ppo", fields=(FieldSpec("gamma", "float", 0.9, minimum=0, maximum=1), FieldSpec("anneal", "bool"))
        ),
        AlgorithmSpec("gone", unavailable="install the extra"),
    ),
    environments=("CartPole-v1", "Acrobot-v1"),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


# -- worker specs


def test_a_spec_survives_json() -> None:
    assert WorkerSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


@given(data=st.data())
def test_a_spec_with_any_value_in_any_place_is_read_or_refused(data: Any) -> None:
    document = json.loads(json.dumps(SPEC.to_json()))
    for holder in (
        document,
        document["capabilities"],
        document["algorithms"][0],
        document["algorithms"][0]["fields"][0],
    ):
        if data.draw(st.booleans()):
            holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(JSON_VALUES)
    try:
        spec = WorkerSpec.from_json(document)
    except SpecError:
        return
    spec.to_json()
    check_algorithm_choice(spec, "ppo", "CartPole-v1", {"gamma": 0.5})


def test_every_wrong_choice_is_named_with_the_nearest_right_one() -> None:
    problems = check_algorithm_choice(SPEC, "pppo", "CartPol-v1", {})
    assert [problem.suggestion for problem in problems] == ["ppo", "CartPole-v1"]
    problems = check_algorithm_choice(SPEC, "ppo", "CartPole-v1", {"gama": 1, "gamma": 2, "anneal": "yes"}, path="p")
    assert [problem.path for problem in problems] == ["p.gama", "p.gamma", "p.anneal"]
    assert "install the extra" in str(check_algorithm_choice(SPEC, "gone", "CartPole-v1", {})[0])


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), True, "1", None, [1]])
def test_a_field_refuses_what_is_not_its_number(value: Any) -> None:
    assert FieldSpec("gamma", "float", minimum=0, maximum=1).problem_with(value)


def test_fields_read_command_line_text() -> None:
    assert FieldSpec("n", "int").parse("1_000") == 1000
    assert FieldSpec("b", "bool").parse("False") is False
    assert FieldSpec("k", "float", nullable=True).parse("none") is None
    assert FieldSpec("j", "json").parse("[1]") == [1]
    with pytest.raises(ValueError, match="--learning-rate: expected float, got 'fast'"):
        FieldSpec("learning_rate", "float").parse("fast")


def test_capabilities_ignore_newer_keys_and_refuse_wrong_types() -> None:
    assert WorkerCapabilities.from_json({"worker_type": "x", "teleports": True}).worker_type == "x"
    for wrong in ({}, {"worker_type": 5}, {"worker_type": "x", "max_agents": True}, {"worker_type": "x", "lane": "?"}):
        with pytest.raises(SpecError):
            WorkerCapabilities.from_json(wrong)


# -- manifests


def test_a_manifest_survives_and_keeps_a_newer_writers_keys(tmp_path: Path) -> None:
    path = tmp_path / "analytics.json"
    manifest = AnalyticsManifest(
        RUN_ID,
        "cleanrl",
        "ppo",
        "CartPole-v1",
        3,
        "completed",
        tensorboard_dir="tensorboard",
        wandb_entity="me",
        checkpoints=(CheckpointEntry("checkpoints/step-5", 5, "ab"),),
        videos=("v.mp4",),
        extra={"later": [1]},
    )
    manifest.write(path)
    assert AnalyticsManifest.read(path) == manifest
    assert read_json_object(path)["artifacts"]["tensorboard"] == {"enabled": True, "relative_path": "tensorboard"}


@pytest.mark.parametrize("path", ["/etc", "../x", "checkpoints/../../x"])
def test_a_manifest_whose_checkpoint_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    file = tmp_path / "analytics.json"
    write_json_atomically(file, {"run_id": RUN_ID, "checkpoints": [{"path": path, "step": 1, "sha256": ""}]})
    with pytest.raises(ValueError, match="leaves the run folder"):
        AnalyticsManifest.read(file)


def test_a_later_attempt_keeps_only_what_it_continues_from(tmp_path: Path) -> None:
    entries = tuple(CheckpointEntry(f"checkpoints/step-{step}", step, "ab") for step in (5, 10, 15))
    AnalyticsManifest(RUN_ID, checkpoints=entries).write(tmp_path / "analytics.json")
    assert earlier_checkpoints(tmp_path / "analytics.json", up_to_step=10) == entries[:2]
    assert earlier_checkpoints(tmp_path / "none.json", up_to_step=10) == ()


# -- redaction


@pytest.mark.parametrize(
    "key", ["wandb_api_key", "WANDB_API_KEY", "openai-token", "password", "apiKey", "openaiApiKey", "auth"]
)
def test_keys_that_hold_a_secret(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key", ["max_tokens", "maxTokens", "max_new_tokens", "author", "tokenizer", "keyboard", "passive"]
)
def test_keys_that_do_not(key: str) -> None:
    assert not is_secret_key(key)


def test_secrets_are_found_and_removed() -> None:
    document = {"a": [{"api_key": "sesame-1", "password": {"x": "sesame-2"}}], "wandb_api_key": {"secret_ref": "wandb"}}
    assert secret_values(document) == {"sesame-1", "sesame-2"}
    clean = redact_document(
        {**document, "text": "say sesame-1", "url": "https://me:pw12@host/x"}, secret_values(document)
    )
    assert "sesame" not in json.dumps(clean)
    assert clean["text"] == f"say {REDACTED}"
    assert clean["url"] == f"https://{REDACTED}@host/x"
    assert redact_text("Bearer abcdefghijklmnopqrst") == f"Bearer {REDACTED}"


# -- ids, paths, files


def test_run_ids_are_checked_before_they_touch_a_path(tmp_path: Path) -> None:
    assert check_run_id(new_run_id())
    for wrong in (
        "",
        "..",
        "../" + RUN_ID,
        RUN_ID + "\n",
        RUN_ID.lower(),
        RUN_ID[:-1] + "U",
        5,
        None,
        "8" + RUN_ID[1:],
    ):
        assert not is_run_id(wrong)
        with pytest.raises(InvalidRunId):
            Home(tmp_path).run_folder(wrong)  # type: ignore[arg-type]


def test_the_home_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(env.MOSAIC_HOME, str(tmp_path))
    assert find_home() == Home(tmp_path)
    monkeypatch.delenv(env.MOSAIC_HOME)
    assert find_home().root.is_absolute()
    assert find_home().root != Path.cwd()


def test_a_run_folder_knows_its_home(tmp_path: Path) -> None:
    assert Home(tmp_path).run_folder("01J9Z3K8Q4V6W2X7Y5B1C0D8EF").home == Home(tmp_path)


def test_the_socket_fits_the_kernel_whatever_the_homes_length(tmp_path: Path) -> None:
    assert len(os.fsencode(Home(tmp_path / ("x" * 200)).socket)) <= 100


def test_a_private_folder_is_private_and_ours(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(WireError):
        make_private_folder(tmp_path / "link")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_json_atomically(path, {"a": 1}, mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: .{path}"):
        write_bytes_atomically(path, b"new")
    assert read_json_object(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["file.json"]


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_a_sealed_object_is_read_back(tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]) -> None:
    document.pop("checksum", None)
    text = json.dumps(document)
    if "NaN" in text or "Infinity" in text:
        return
    path = tmp_path_factory.mktemp("sealed") / "x.json"
    write_json_atomically(path, document, sealed=True)
    assert read_json_object(path) == document


def test_a_path_of_an_unknown_user_stays_a_name(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/runs") == tmp_path / "runs"
    assert user_path("~nobody-of-this-name/runs").parts[-2:] == ("~nobody-of-this-name", "runs")
