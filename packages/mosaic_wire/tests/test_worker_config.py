"""Worker configs: two formats, flags that win, all problems at once."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.files import write_json_atomically
from mosaic_wire.worker_config import WorkerConfig, add_worker_arguments, daemon_target, overrides_from, run_folder_of

RUN_ID = "01M7F8P2TF767091SW55X7DC97"
FLAT: dict[str, Any] = {
    "run_id": RUN_ID,
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 500,
    "seed": 3,
    "worker_id": "w1",
    "extras": {"track_wandb": False, "learning_rate": 0.1, "algo_params": {"gamma": 0.9}},
}


def _nested(**changes: Any) -> dict[str, Any]:
    return {
        "run_name": "n",
        "resources": {},
        "metadata": {"worker": {"type": "cleanrl", "config": {**FLAT, **changes}}},
    }


def _problems(document: dict[str, Any], overrides: dict[str, Any] | None = None) -> dict[str, str]:
    with pytest.raises(ConfigProblems) as caught:
        WorkerConfig.from_json(document, overrides)
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_both_formats_say_the_same() -> None:
    flat, nested = WorkerConfig.from_json(FLAT), WorkerConfig.from_json(_nested())
    assert flat == WorkerConfig(RUN_ID, "ppo", "CartPole-v1", 500, 3, FLAT["extras"], "w1", FLAT)
    assert nested.raw == _nested()
    assert [getattr(flat, name) for name in FLAT] == [getattr(nested, name) for name in FLAT]


def test_the_workers_id_may_stand_beside_its_config() -> None:
    document = _nested()
    del document["metadata"]["worker"]["config"]["worker_id"]
    document["metadata"]["worker"]["worker_id"] = "beside"
    assert WorkerConfig.from_json(document).worker_id == "beside"


def test_parameters_are_the_extras_that_are_not_about_the_worker() -> None:
    assert WorkerConfig.from_json(FLAT).parameters == {"learning_rate": 0.1, "gamma": 0.9}


def test_flags_win_over_the_file() -> None:
    config = WorkerConfig.from_json(FLAT, {"seed": 9, "algo": "dqn", "env_id": None})
    assert (config.seed, config.algo, config.env_id) == (9, "dqn", "CartPole-v1")


def test_both_formats_in_one_file_are_refused() -> None:
    problems = _problems({**_nested(), "algo": "dqn"})
    assert set(problems) == {"algo"}
    assert "metadata.worker.config" in problems["algo"]


def test_all_problems_are_reported_at_once_with_their_paths() -> None:
    problems = _problems(_nested(run_id="nope", total_timesteps=-5, seed=True, algo="", extras=[], envid="x"))
    prefix = "metadata.worker.config."
    assert set(problems) == {prefix + name for name in ("run_id", "total_timesteps", "seed", "algo", "extras", "envid")}
    assert "Did you mean 'env_id'?" in problems[prefix + "envid"]
    assert "ULID" in problems[prefix + "run_id"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"run_id": "../../etc/passwd"}, "run_id"),
        ({"run_id": 5}, "run_id"),
        ({"total_timesteps": 0}, "total_timesteps"),
        ({"total_timesteps": 1.5}, "total_timesteps"),
        ({"total_timesteps": 10**400}, "total_timesteps"),
        ({"seed": -1}, "seed"),
        ({"env_id": ["CartPole-v1"]}, "env_id"),
        ({"algo": "x" * 10_000}, "algo"),
        ({"extras": "fast"}, "extras"),
        ({"extras": {"algo_params": [1]}}, "extras.algo_params"),
        ({"extras": {"checkpoint_path": 5}}, "extras.checkpoint_path"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], path: str) -> None:
    assert list(_problems({**FLAT, **change})) == [path]


def test_a_wrong_flag_is_named_as_the_flag() -> None:
    assert list(_problems(FLAT, {"total_timesteps": -1})) == ["--total-timesteps"]


def test_what_is_missing_is_named() -> None:
    assert set(_problems({})) == {"run_id", "algo", "env_id", "total_timesteps"}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"metadata": None}, "metadata"),
        ({"metadata": {}}, "metadata.worker"),
        ({"metadata": {"worker": []}}, "metadata.worker"),
        ({"metadata": {"worker": {"type": "x"}}}, "metadata.worker.config"),
    ],
)
def test_a_nested_file_without_the_workers_part_is_named(document: dict[str, Any], path: str) -> None:
    assert path in _problems(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["metadata", "worker", "config", *FLAT]), inner, max_size=4)
        ),
    )
)
def test_no_document_crashes_the_loader(document: Any) -> None:
    if isinstance(document, dict):
        with suppress(ConfigProblems):
            WorkerConfig.from_json(document)


def test_a_draft_gets_a_run_id_of_its_own() -> None:
    for draft in ({**FLAT, "run_id": "${RUN_ID}"}, {key: value for key, value in FLAT.items() if key != "run_id"}):
        assert WorkerConfig.from_json(draft, make_run_id=lambda: RUN_ID).run_id == RUN_ID
        assert "run_id" in _problems(draft)


def test_unreadable_files_are_reported_in_a_sentence(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigProblems, match=message):
            WorkerConfig.load(path)
    (tmp_path / "half.json").write_text(json.dumps(FLAT)[:40])
    with pytest.raises(ConfigProblems, match=r"half\.json is not valid JSON.*half-written"):
        WorkerConfig.load(tmp_path / "half.json")


def test_a_sealed_file_is_read_and_an_edited_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    write_json_atomically(path, FLAT, sealed=True)
    assert WorkerConfig.load(path).algo == "ppo"
    path.write_text(path.read_text().replace("500", "501"))
    with pytest.raises(ConfigProblems, match="checksum"):
        WorkerConfig.load(path)


def test_secrets_are_not_in_the_repr() -> None:
    assert "canary" not in repr(WorkerConfig.from_json({**FLAT, "extras": {"wandb_api_key": "canary"}}))


def test_resuming_needs_the_mode_and_the_path() -> None:
    def resumes(**extras: Any) -> Path | None:
        return WorkerConfig.from_json({**FLAT, "extras": extras}).checkpoint_to_resume

    assert resumes(mode="resume_training", checkpoint_path="/c/step-5") == Path("/c/step-5")
    assert resumes(checkpoint_path="/c/step-5") is None
    assert resumes(mode="resume_training") is None


def test_the_command_line_feeds_the_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_worker_arguments(parser)
    arguments = parser.parse_args(["--seed", "4", "--grpc", "--grpc-target", "unix:/x"])
    assert WorkerConfig.from_json(FLAT, overrides_from(arguments)).seed == 4
    assert daemon_target(arguments) == "unix:/x"
    assert daemon_target(parser.parse_args([])) is None
    monkeypatch.setenv(env.MOSAIC_RUN_DIR, str(tmp_path))
    assert run_folder_of(RUN_ID).root == tmp_path
    monkeypatch.delenv(env.MOSAIC_RUN_DIR)
    monkeypatch.setenv(env.MOSAIC_HOME, str(tmp_path))
    assert run_folder_of(RUN_ID).root == tmp_path / "trainer" / "runs" / RUN_ID
