"""What holds for every algorithm there is: its file can be read without running it, and says what a dry run needs."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import zipfile
from pathlib import Path

import pytest
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.declarations import Flags
from cleanrl_worker.preflight import check_run
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, AlgorithmEntry
from cleanrl_worker.training.envs import PIPELINES
from mosaic_extras.testing import lend_sets
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home

ENTRIES = [entry for entry in DEFAULT_ALGO_REGISTRY.values() if entry.module]
EVERYWHERE = {"base", "atari", "minigrid", "mujoco"}
"""Sets that the quick tests have, too"""
FACTS = {"obs_size": 84 * 84 * 4, "obs_bytes": 84 * 84 * 4, "actions": 6}
SMALL = {"buffer_size": 1000}
"""Where the default asks for more memory than a small machine has"""

NEEDED_FLAGS = {"qdagger_dqn_atari_impalacnn": ["teacher_checkpoint"]}
"""What cannot have a default that works"""

of_every_algorithm = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def defaults_of(entry: AlgorithmEntry) -> dict:
    return {field.name: field.default for field in entry.spec().fields}


def numbers_in(values: dict) -> dict:
    return {name: value for name, value in values.items() if type(value) in (int, float)}


@of_every_algorithm
def test_its_rules_hold_for_its_defaults_and_are_about_its_flags(entry: AlgorithmEntry) -> None:
    values, declared = defaults_of(entry), entry.declaration
    assert declared.rules
    assert declared.problems(values) == []
    for rule in declared.rules:
        assert rule(Flags(values)) is None  # which raises where a flag is not the algorithm's


@of_every_algorithm
def test_a_broken_rule_names_a_flag(entry: AlgorithmEntry) -> None:
    """For every rule some combination of odd values breaks it, and the sentence says which flag to change."""
    values = numbers_in(defaults_of(entry))
    for rule in entry.declaration.rules:
        rule(flags := Flags(values))
        said = {
            rule(Flags({**values, **dict(zip(sorted(flags.read), odd, strict=True))}))
            for odd in itertools.product([-1, 1, 3, 10**9], repeat=len(flags.read))
        } - {None}
        assert said
        assert all("--" in sentence for sentence in said)


@of_every_algorithm
def test_memory_and_checkpoints_can_be_computed_from_its_flags(entry: AlgorithmEntry) -> None:
    flags, declared = Flags({**numbers_in(defaults_of(entry)), **FACTS}), entry.declaration
    sizes = [size(flags) for size in declared.memory.values()]
    assert min(sizes) >= 0
    assert sum(sizes) > 0
    assert declared.checkpoint(flags) > 0
    assert all(min(shape) > 0 for shape in declared.shapes(flags).values())


@of_every_algorithm
def test_a_checkpoint_of_another_environment_is_refused(entry: AlgorithmEntry) -> None:
    assert {"env_id", "env_kwargs"} <= set(entry.declaration.resume_needs) <= defaults_of(entry).keys()


@of_every_algorithm
def test_reading_its_flags_and_running_the_file_give_the_same(entry: AlgorithmEntry) -> None:
    module = importlib.import_module(entry.module)
    fields = dataclasses.fields(getattr(module, entry.preset))
    assert {field.name: field.default for field in fields} == defaults_of(entry)
    assert defaults_of(entry)["exp_name"] == entry.name
    assert [field.name for field in entry.spec().fields if not field.help] == []
    assert callable(module.train)
    assert callable(module.make_policy)
    assert entry.pipeline in PIPELINES


@pytest.fixture(scope="module")
def lending_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """What one dry run finds out about an environment the next one need not ask again."""
    home = Home(tmp_path_factory.mktemp("every") / "home")
    home.create()
    return home


def _with_sets(entry: AlgorithmEntry) -> object:
    marks = [] if set(entry.requirement_sets) <= EVERYWHERE else [pytest.mark.slow, pytest.mark.timeout(900)]
    return pytest.param(entry, id=entry.name, marks=marks)


@pytest.mark.parametrize("entry", [_with_sets(entry) for entry in ENTRIES])
def test_a_dry_run_of_its_defaults_finds_nothing_wrong(entry: AlgorithmEntry, lending_home: Home) -> None:
    values = defaults_of(entry)
    parameters = {name: value for name, value in SMALL.items() if name in values}
    run = CleanRLWorkerConfig(
        new_run_id(), entry.name, values["env_id"], values["total_timesteps"], 1, {"algo_params": parameters}
    )
    folder = lending_home.run_folder(run.run_id)
    needed = check_run(run, folder, lending_home, probe=False).sets
    lend_sets(lending_home, *needed)
    found = check_run(run, folder, lending_home)
    assert [problem.path for problem in found.problems] == NEEDED_FLAGS.get(entry.name, []), found.problems
    assert found.needs is not None
    assert found.needs.memory
    assert found.needs.checkpoint > 0


@of_every_algorithm
def test_the_smoke_command_is_accepted(entry: AlgorithmEntry, lending_home: Home, tmp_path: Path) -> None:
    """`--total-timesteps 2048` and nothing else: less than many defaults need to learn anything, which is a note."""
    values = defaults_of(entry)
    parameters = {name: value for name, value in SMALL.items() if name in values}
    for name in NEEDED_FLAGS.get(entry.name, ()):
        parameters[name] = str(tmp_path / "teacher.cleanrl_model")
        with zipfile.ZipFile(parameters[name], "w") as model:  # what torch writes is one; its content is read later
            model.writestr("teacher/data.pkl", b"")
    run = CleanRLWorkerConfig(new_run_id(), entry.name, values["env_id"], 2048, 1, {"algo_params": parameters})
    folder = lending_home.run_folder(run.run_id)
    found = check_run(run, folder, lending_home, probe=False)
    assert [each for each in found.problems if each.path != "extras.install_missing"] == []  # a set may not be there
    learns = values.get("learning_starts", 0) < 2048 + values.get("offline_steps", 0)
    batch = values.get("num_steps", 0) * values.get("local_num_envs", values["num_envs"]) * values.get("n_iteration", 1)
    assert bool(found.notes) == (not learns or batch > 2048)
