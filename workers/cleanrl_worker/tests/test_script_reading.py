"""A script read as text: parameters, defaults, the way it wants booleans; nothing of it runs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from cleanrl_worker.errors import BadInput
from cleanrl_worker.scripts.reading import ScriptStyle, read_script
from mosaic_wire.worker_spec import ScriptSpec

SCRIPTS = Path(__file__).with_name("scripts")
TYRO, ARGPARSE = SCRIPTS / "reinforce_tyro.py", SCRIPTS / "walk_argparse.py"


@pytest.fixture
def read(tmp_path):
    def read(text: str):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return read_script(path)

    return read


def field_of(script, name):
    parameter = script.parameter(name)
    assert parameter is not None, f"{name} was not read; there are {[p.field.name for p in script.parameters]}"
    return parameter.field


# -- both styles


def test_the_fields_of_a_tyro_script_have_kinds_defaults_and_help():
    script = read_script(TYRO)
    assert script.style is ScriptStyle.TYRO
    assert not script.open_flags
    assert field_of(script, "exp_name").default == "reinforce_tyro"
    assert field_of(script, "total_timesteps").default == 10_000
    assert field_of(script, "learning_rate").kind == "float"
    assert field_of(script, "hidden").nullable
    assert field_of(script, "optimizer").choices == ("sgd", "adam")
    assert field_of(script, "env_id").help == "the id of the environment"
    assert script.summary.startswith("A small policy gradient")
    assert {"torch", "gymnasium", "tyro"} <= script.imports


def test_the_fields_of_an_argparse_script_have_kinds_defaults_and_help():
    script = read_script(ARGPARSE)
    assert script.style is ScriptStyle.ARGPARSE
    assert not script.open_flags
    assert field_of(script, "exp_name").default == "walk_argparse"
    assert (field_of(script, "quick").kind, field_of(script, "quick").default) == ("bool", True)
    assert field_of(script, "fail_at").help == "fall into a ditch at this step"
    assert field_of(script, "deaf").default is False


def test_booleans_are_written_as_each_script_declares_them():
    values = {"seed": 3}
    tyro = read_script(TYRO).argv({**values, "cuda": False, "track": True})
    assert tyro == ["--seed", "3", "--no-cuda", "--track"]
    older = read_script(ARGPARSE).argv({**values, "capture_video": False, "quick": False, "deaf": True})
    assert older == ["--seed", "3", "--capture_video", "False", "--quick", "False", "--deaf"]
    assert read_script(ARGPARSE).argv({"deaf": False}) == []


def test_a_script_says_which_of_its_flags_means_the_environment():
    script = read_script(ARGPARSE)
    assert script.parameter_for("env_id").flag == "--gym-id"
    assert script.parameter_for("total_timesteps").flag == "--total-timesteps"
    assert read_script(TYRO).parameter_for("seed").field.name == "seed"


def test_the_description_survives_the_wire():
    script = read_script(TYRO)
    spec = ScriptSpec.from_json(script.spec(("base",)).to_json())
    assert spec.algorithm.name == "reinforce_tyro"
    assert spec.sha256 == script.sha256
    assert spec.algorithm.field("optimizer").choices == ("sgd", "adam")


# -- defaults


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("int(1e6)", 1_000_000),
        ("32 * 512 * 10", 163_840),
        ("-2**3", -8),
        ("__import__('os').getpid()", None),
        ("os.system('touch /tmp/never')", None),
        ("9**9**9", None),
        ("STEPS // 2", 50),
        ("UNKNOWN", None),
    ],
)
def test_a_default_is_computed_only_when_that_is_harmless(read, written, value):
    script = read(
        f"""
        import os, tyro
        from dataclasses import dataclass
        STEPS = 100
        @dataclass
        class Args:
            steps: int = {written}
            "how many"
        tyro.cli(Args)
        """
    )
    found = field_of(script, "steps")
    assert found.default == value
    if value is None:
        assert written.replace(" ", "") in found.help.replace(" ", "")


@pytest.mark.parametrize(
    "written",
    [
        "Path(__file__).stem",
        "os.path.splitext(os.path.basename(__file__))[0]",
        'os.path.basename(__file__).replace(".py", "")',
    ],
)
def test_the_name_of_the_file_is_known_however_it_is_taken(read, written):
    script = read(
        f"""
        import os, tyro
        from pathlib import Path
        from dataclasses import dataclass
        @dataclass
        class Args:
            name: str = {written}
        args = tyro.cli(Args)
        """
    )
    assert field_of(script, "name").default == "script"


# -- corners of both parsers


def test_nested_inherited_and_listed_fields_of_a_dataclass(read):
    script = read(
        """
        import tyro
        from dataclasses import dataclass, field
        from typing import Sequence, Union, List
        @dataclass
        class Optimizer:
            lr: float = 1e-3
        @dataclass
        class Base:
            seed: int = 1
        @dataclass
        class Args(Base):
            optim: Optimizer = field(default_factory=Optimizer)
            devices: List[int] = field(default_factory=lambda: [])
            sizes: Sequence[int] = (16, 32)
            rate: "int | float" = 1
            must: bool
            hidden: int = field(default=3, init=False)
            _private: int = 1
        tyro.cli(Args)
        """
    )
    assert [p.field.name for p in script.parameters] == ["seed", "optim.lr", "devices", "sizes", "rate", "must"]
    assert script.parameter("must").is_required
    assert script.argv({"must": True, "sizes": [1, 2]}) == ["--must", "True", "--sizes", "1", "2"]
    assert field_of(script, "rate").kind == "float"


def test_a_function_given_to_tyro_is_read_like_a_class(read):
    script = read(
        """
        from tyro import cli
        def train(env_id: str = "CartPole-v1", *, lr: float = 3e-4): ...
        cli(train)
        """
    )
    assert [p.field.name for p in script.parameters] == ["env_id", "lr"]
    assert not script.open_flags


def test_actions_and_positions_of_argparse(read):
    script = read(
        """
        import argparse
        p = argparse.ArgumentParser()
        p.add_argument("env")
        p.add_argument("-l", "--layers", type=int, nargs="+", default=[64, 64])
        p.add_argument("--no-cuda", dest="cuda", action="store_false")
        p.add_argument("--video", action=argparse.BooleanOptionalAction, default=False)
        p.add_argument("--really", type=bool, default=True)
        p.add_argument("--size", type=int, choices=[1, 2], required=True)
        p.parse_args()
        """
    )
    values = {"env": "Walk-v0", "layers": [8, 8], "cuda": False, "video": False, "really": False, "size": 2}
    assert script.argv(values) == [
        "--layers",
        "8",
        "8",
        "--no-cuda",
        "--no-video",
        "--really",
        "",
        "--size",
        "2",
        "--",
        "Walk-v0",
    ]
    assert script.argv({"cuda": True}) == []
    assert [p.field.name for p in script.parameters if p.is_required] == ["env", "size"]


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nprint(sys.argv)",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x')\np.parse_known_args()",
        "import argparse\np = argparse.ArgumentParser()\nfor n in 'ab':\n    p.add_argument('--' + n)",
        "import tyro\nfrom elsewhere import Args\ntyro.cli(Args)",
    ],
)
def test_a_script_that_reports_not_everything_takes_other_flags_too(read, text):
    script = read(text)
    assert script.open_flags
    assert script.argv({"lr": 0.1})[:2] == ["--lr", "0.1"]


@pytest.mark.parametrize("text", ["def broken(:", "x = '\0'"])
def test_what_is_no_python_is_refused_with_the_reason(read, text):
    with pytest.raises(BadInput, match="is not a Python script"):
        read(text)


def test_a_script_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no script"):
        read_script(tmp_path / "nothing.py")
