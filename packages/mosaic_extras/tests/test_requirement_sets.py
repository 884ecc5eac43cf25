"""Requirement sets as far as nothing has to be installed: lists, plans, environments."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest
from mosaic_extras.environments import sets_of_environment
from mosaic_extras.errors import BadPinList, BaseUnfit, SetNotReady, SetsDisagree, UnknownSet
from mosaic_extras.installation import clean_environment, failure
from mosaic_extras.overlays import Base, SetState, check_sets, interpreter_for, make_plan
from mosaic_extras.pins import LISTS, check_agreement, describe, normalized, parse_sets, pins_of, read_pins, set_names
from mosaic_wire.paths import Home

CONSTRAINTS = Path(__file__).resolve().parents[3] / "requirements" / "constraints.txt"
NAMED_BY_THE_ISSUE = """
    base box2d atari minigrid mujoco dm_control procgen envpool pettingzoo curriculum jax wandb optuna video upstream
"""


def fake_lists(folder: Path, **sets: str) -> Path:
    (folder / "sets").mkdir(parents=True, exist_ok=True)
    for name, text in sets.items():
        (folder / "sets" / f"{name}.txt").write_text(text)
    return folder


def fake_base(folder: Path, *distributions: str) -> Base:
    site = folder / "lib" / "site-packages"
    for name in distributions:
        (site / f"{name}.dist-info").mkdir(parents=True)
        (site / f"{name}.dist-info" / "RECORD").write_text("")
    site.mkdir(parents=True, exist_ok=True)
    return Base(folder, Path(sys.executable), (site,))


# ---------------------------------------------------------------- the lists of this package


def test_every_set_of_the_issue_is_there():
    assert set(NAMED_BY_THE_ISSUE.split()) <= set(set_names())
    assert set_names()[0] == "base"


@pytest.mark.parametrize("name", set_names())
def test_a_set_is_pinned_described_and_never_brings_torch(name):
    pins = pins_of(name)
    assert pins["torch"].version == pins_of("base")["torch"].version
    assert not [key for key in pins if key.startswith(("nvidia-", "cuda-")) or key == "triton"]
    about = describe(name)
    assert about.purpose
    if name != "base":
        assert about.smoke
        assert about.size_mb > 0
        compile(about.smoke, name, "exec")


@pytest.mark.parametrize("name", set_names())
def test_what_people_edit_is_covered_by_the_pins(name):
    pins = pins_of(name)
    lines = (LISTS / f"requirements-{name}.txt").read_text().splitlines()
    target = [line for line in lines if line and not line.startswith(("#", "-r"))]
    assert target
    for line in target:
        package = normalized(re.split(r"[\s<>=!~;\[]", line)[0])
        assert package in pins, f"{line} has no pin in sets/{name}.txt"
        exact = re.search(r"==(\S+)", line)
        assert exact is None or pins[package].version == exact[1]


def test_the_base_is_never_asked_for_another_protobuf():
    # Two of them mix, for `google` is a namespace package.
    versions = {pins["protobuf"].version for name in set_names() if "protobuf" in (pins := pins_of(name))}
    assert len(versions) == 1


def test_sets_of_one_generation_agree_so_that_runs_can_combine_them():
    apart = {"base", "procgen", "upstream", "upstream_full"}
    for pair in itertools.combinations(sorted(set(set_names()) - apart), 2):
        check_agreement(pair)
    check_agreement(("procgen", "wandb"))
    with pytest.raises(SetsDisagree, match=r"numpy==2\.4\.6 \(atari\) and numpy==1\.26\.4 \(procgen\)"):
        check_agreement(("atari", "procgen"))


def test_pins_agree_with_the_constraints_of_the_repository():
    constraints = read_pins(CONSTRAINTS)
    for name in set(set_names()) - {"procgen", "upstream", "upstream_full"}:
        for key, pin in pins_of(name).items():
            assert key not in constraints or constraints[key].version == pin.version, f"{name}: {pin}"


# ---------------------------------------------------------------- reading lists


@pytest.mark.parametrize(
    ("text", "problem"),
    [("numpy>=2\n", "is not a pin"), ("numpy==2\nNumPy==3\n", "pinned twice"), ("-e ../x\n", "is not a pin")],
)
def test_a_list_that_does_not_pin_is_refused_with_its_line(tmp_path, text, problem):
    path = tmp_path / "set.txt"
    path.write_text(text)
    with pytest.raises(BadPinList, match=problem) as caught:
        read_pins(path)
    assert "set.txt:" in str(caught.value)


def test_a_changed_list_is_read_again(tmp_path):
    path = tmp_path / "set.txt"
    path.write_text("a==1\n")
    assert read_pins(path)["a"].version == "1"
    path.write_text("a==1.5  # newer\n\n")
    assert read_pins(path)["a"].version == "1.5"


def test_names_are_read_as_people_write_them():
    assert parse_sets("atari, dm-control,,ATARI") == ("atari", "dm_control")
    assert parse_sets(["video", "atari"]) == ("atari", "video")


@pytest.mark.parametrize("name", ["../etc", "atari/x", "", "joined"])
def test_a_name_that_is_no_set_never_reaches_a_path(tmp_path, name):
    with pytest.raises(UnknownSet):
        check_sets(Home(tmp_path), [name])


def test_an_unknown_set_is_reported_the_nearest(tmp_path):
    with pytest.raises(UnknownSet, match="Did you mean 'mujoco'"):
        check_sets(Home(tmp_path), ["mujoko"])


# ---------------------------------------------------------------- plans


def test_any_build_of_a_pinned_version_satisfies_it(tmp_path):
    lists = fake_lists(tmp_path / "lists", extra="torch==2.13.0\nthing==1.0\n")
    base = fake_base(tmp_path / "base", "torch-2.13.0+cpu", "thing-2.0")
    plan = make_plan(Home(tmp_path / "home"), "extra", lists=lists, base=base)
    assert [str(pin) for pin in plan.own] == ["thing==1.0"]
    assert plan.versions() == {"torch": "2.13.0+cpu", "thing": "1.0"}


def test_two_versions_side_by_side_satisfy_nothing(tmp_path):
    lists = fake_lists(tmp_path / "lists", extra="thing==1.0\n")
    base = fake_base(tmp_path / "base", "thing-1.0", "thing-2.0")
    assert make_plan(Home(tmp_path / "home"), "extra", lists=lists, base=base).own


def test_the_key_changes_with_pins_and_base_and_with_nothing_else(tmp_path):
    lists = fake_lists(tmp_path / "lists", extra="thing==1.0\n")
    home, base = Home(tmp_path / "home"), fake_base(tmp_path / "base")
    first = make_plan(home, "extra", lists=lists, base=base).key
    (base.site[0] / "unrelated-1.0.dist-info").mkdir()
    assert make_plan(home, "extra", lists=lists, base=base).key == first
    fake_lists(lists, extra="thing==1.0\nother==1\n")
    second = make_plan(home, "extra", lists=lists, base=base).key
    (base.site[0] / "other-1.dist-info").mkdir()
    third = make_plan(home, "extra", lists=lists, base=base).key
    assert len({first, second, third}) == 3


@pytest.mark.parametrize("package", ["torch", "triton", "nvidia-cudnn-cu13", "protobuf"])
def test_what_only_the_base_may_bring_is_asked_of_the_base(tmp_path, package):
    lists = fake_lists(tmp_path / "lists", extra=f"{package}==9.0\n")
    base = fake_base(tmp_path / "base", f"{package.replace('-', '_')}-1.0")
    plan = make_plan(Home(tmp_path / "home"), "extra", lists=lists, base=base)
    with pytest.raises(BaseUnfit, match=rf"lacks {package}==9.0 \(it has 1.0\).*pip install {package}==9.0"):
        plan.check_base()
    answer = check_sets(Home(tmp_path / "home"), ["extra"], lists=lists, base=base)
    assert answer.state is SetState.BASE_LACKS


def test_a_set_that_the_base_satisfies_needs_no_overlay(tmp_path):
    lists = fake_lists(tmp_path / "lists", extra="thing==1.0\n")
    base = fake_base(tmp_path / "base", "Thing-1.0")
    answer = check_sets(Home(tmp_path / "home"), ["extra"], lists=lists, base=base)
    assert answer.is_ready
    assert answer.python == base.python
    assert answer.versions == {"thing": "1.0"}
    assert not (tmp_path / "home").exists(), "a check writes nothing"


def test_no_sets_means_the_base(tmp_path):
    home = Home(tmp_path)
    assert interpreter_for(home, ()) == interpreter_for(home, ("base",)) == Path(sys.executable)


def test_a_set_that_is_not_installed_names_the_one_command(tmp_path):
    home = Home(tmp_path / "my home")
    answer = check_sets(home, ["minigrid", "atari"])
    assert answer.state is SetState.NOT_INSTALLED
    assert answer.command.startswith("mosaic extras install atari minigrid --home ")
    assert f"{answer.command} (about 200 MB)" in answer.message
    with pytest.raises(SetNotReady, match="mosaic extras install atari minigrid"):
        interpreter_for(home, ["minigrid", "atari"])


def test_sets_that_disagree_are_refused_before_anything_is_looked_at(tmp_path):
    answer = check_sets(Home(tmp_path), ["procgen", "jax"])
    assert answer.state is SetState.SETS_DISAGREE
    assert "numpy" in answer.message


# ---------------------------------------------------------------- which sets a run needs


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("CartPole-v1", ()),
        ("FrozenLake-v1", ()),
        ("ALE/Pong-v5", ("atari",)),
        ("ale_py:ALE/Breakout-v5", ("atari",)),
        ("BreakoutNoFrameskip-v4", ("atari",)),
        ("Pong-ramDeterministic-v0", ("atari",)),
        ("MsPacman-v4", ("atari",)),
        ("Pong", ()),
        ("MiniGrid-DoorKey-8x8-v0", ("minigrid",)),
        ("BabyAI-GoToLocal-v0", ("minigrid",)),
        ("dm_control/walker-walk-v0", ("dm_control",)),
        ("HalfCheetah-v4", ("mujoco",)),
        ("Walker2d-v5", ("mujoco",)),
        ("LunarLanderContinuous-v3", ("box2d",)),
        ("CarRacing-v3", ("box2d",)),
        ("procgen-coinrun-v0", ("procgen",)),
        ("starpilot", ("procgen",)),
        ("phys2d/CartPole-v1", ("jax",)),
        ("pong_v3", ("pettingzoo",)),
        ("my_module:Own-v0", ()),
    ],
)
def test_an_environment_id_determines_its_set(env_id, expected):
    assert sets_of_environment(env_id) == expected


# ---------------------------------------------------------------- pip's environment and its failures


def test_variables_that_divert_pip_are_dropped_and_the_users_index_stays(tmp_path, monkeypatch):
    for name in ("PIP_TARGET", "PIP_USER", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PIP_INDEX_URL", "file:///mine")
    environment = clean_environment(tmp_path)
    assert not {"PIP_TARGET", "PIP_USER", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME"} & set(environment)
    assert environment["PIP_INDEX_URL"] == "file:///mine"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "cannot be reached"),
        ("ERROR: No matching distribution found for nothing==1.0", "No file of nothing==1.0 fits"),
        ("error: something else", "last lines"),
    ],
)
def test_a_failure_names_its_likely_cause_and_what_to_do(tmp_path, line, cause):
    log = tmp_path / "pip.log"
    log.write_text("".join(f"line {number}\n" for number in range(500)) + line + "\n")
    text = str(failure("could not be installed", log, "do it again"))
    assert cause in text
    assert line in text
    assert "repeat: do it again" in text
    assert "line 100" not in text
    assert str(log) in text
