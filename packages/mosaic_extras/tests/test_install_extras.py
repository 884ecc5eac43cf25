"""Installing requirement sets for real: real pip, real overlays, small wheels made here; no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from mosaic_extras import install_extras
from mosaic_extras.errors import InstallFailed, SetInUse, SetNotReady
from mosaic_extras.install_extras import list_sets, prune
from mosaic_extras.installation import InstallStep, Phase, Wheelhouse, clear, install
from mosaic_extras.overlays import Base, SetState, check_sets, hold, interpreter_for, is_locked, make_plan
from mosaic_extras.pins import Pin
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

PATIENCE_S = 120.0
OVERRIDDEN = "iniconfig"
"""A small package of the base (pytest needs it) that the set `alpha` has in another version."""

GATED_SMOKE = """
import os, time, tiny_two
gate = os.environ.get("MOSAIC_TEST_GATE")
if gate:
    open(gate + "-reached", "w").close()
while gate and not os.path.exists(gate):
    time.sleep(0.02)
"""


def make_wheel(folder: Path, name: str, version: str, *, source: str = "", requires: str = "") -> Path:
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{module}/__init__.py": source or f"version = {version!r}\n",
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels, which is all pip may look at."""
    folder = tmp_path_factory.mktemp("wheels")
    make_wheel(folder, "tiny-one", "1.0", requires="tiny-two")
    make_wheel(folder, "tiny-two", "2.0")
    make_wheel(folder, "tiny-two", "2.1")
    make_wheel(folder, "tiny-three", "3.0")
    make_wheel(folder, "picky", "1.0", requires="tiny-two<2")
    make_wheel(folder, OVERRIDDEN, "99.0")
    return folder


@pytest.fixture(autouse=True)
def _offline(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    return write_lists(tmp_path / "lists")


def write_lists(folder: Path, *, two: str = "2.0") -> Path:
    (folder / "sets").mkdir(parents=True, exist_ok=True)
    sets = {
        "alpha": ["tiny-one==1.0", f"tiny-two=={two}", f"{OVERRIDDEN}==99.0"],
        "beta": ["tiny-three==3.0"],
        "absent": ["nobody-has-this==1.0"],
        "quarrel": ["picky==1.0", "tiny-two==2.0"],
        "huge": ["tiny-three==3.0"],
        "useless": ["tiny-three==3.0"],
    }
    for name, pins in sets.items():
        (folder / "sets" / f"{name}.txt").write_text("\n".join([*pins, *BASE_PINS]) + "\n")
    about = {
        "alpha": f'purpose = "a test"\nsmoke = """{GATED_SMOKE}"""\n',
        "huge": "size_mb = 999999999\n",
        "useless": 'smoke = "import tiny_three, no_such_module"\n',
    }
    (folder / "sets.toml").write_text("".join(f"[{name}]\n{text}" for name, text in about.items()))
    return folder


BASE_PINS = [f"torch=={importlib.metadata.version('torch').partition('+')[0]}"]


@pytest.fixture(scope="module")
def installed_once(index: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Path]:
    """A home with `alpha` installed, to be copied."""
    folder = tmp_path_factory.mktemp("pristine")
    lists = write_lists(folder / "lists")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(index)}.items():
            patch.setenv(f"PIP_{name}", value)
        install(Home(folder / "home"), "alpha", lists=lists)
    return Home(folder / "home"), lists


@pytest.fixture
def installed(installed_once: tuple[Home, Path], tmp_path: Path) -> tuple[Home, Path]:
    """A home of this test with `alpha` installed, and its lists."""
    pristine, lists = installed_once
    shutil.copytree(pristine.root, tmp_path / "home", symlinks=True)
    shutil.copytree(lists, tmp_path / "lists")
    return Home(tmp_path / "home"), tmp_path / "lists"


def state_of(home: Home, lists: Path, *sets: str) -> SetState:
    return check_sets(home, sets or ("alpha",), lists=lists).state


def ask(python: Path, program: str) -> str:
    argv = [str(python), "-I", "-c", textwrap.dedent(program)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command(home: Home, lists: Path, *flags: str) -> list[str]:
    module = ["-m", "mosaic_extras.install_extras"]
    return [sys.executable, *module, "--home", str(home.root), "--lists", str(lists), *flags]


# ---------------------------------------------------------------- a finished installation


def test_an_overlay_brings_its_pins_over_the_base_and_the_base_stays_as_it_was(installed):
    home, lists = installed
    before = importlib.metadata.version(OVERRIDDEN)
    python = interpreter_for(home, ["alpha"], lists=lists)
    seen = ask(
        python,
        f"""
        import importlib.metadata as m, {OVERRIDDEN}, tiny_one, tiny_two
        import cleanrl_worker, mosaic_wire                       # our own editable packages
        from mosaic_extras.overlays import Base    # a process in an overlay knows the base
        print({OVERRIDDEN}.version, tiny_two.version, m.version("{OVERRIDDEN}"), m.version("torch"))
        print(Base.current().prefix)
        """,
    )
    assert seen.split() == ["99.0", "2.0", "99.0", importlib.metadata.version("torch"), sys.prefix]
    assert importlib.metadata.version(OVERRIDDEN) == before != "99.0"


def test_what_was_installed_is_recorded_with_hashes(installed, index):
    home, lists = installed
    plan = make_plan(home, "alpha", lists=lists)
    marker = json.loads(plan.ready_file.read_text())
    digest = hashlib.sha256((index / "tiny_two-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    assert marker["files"]["tiny-two==2.0"] == ["tiny_two-2.0-py3-none-any.whl", digest]
    assert f"tiny-two==2.0 --hash=sha256:{digest}" in (plan.generation / "lock.txt").read_text()
    assert "torch" not in [name.split("-")[0] for name in marker["own"]]
    answer = check_sets(home, ["alpha"], lists=lists)
    assert answer.versions["tiny-one"] == "1.0"
    assert answer.versions["torch"] == importlib.metadata.version("torch")


def test_the_path_file_is_plain_ascii_and_names_the_base(installed):
    home, lists = installed
    text = (make_plan(home, "alpha", lists=lists).site / "_mosaic_base.pth").read_bytes().decode("ascii")
    (site,) = Base.current().site
    assert text.splitlines() == [str(site), f"import site; site.addsitedir({str(site)!r})"]


def test_installing_again_finds_it_ready(installed, monkeypatch):
    home, lists = installed
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    events: list[InstallStep] = []
    install(home, "alpha", lists=lists, report=events.append)
    assert [event.phase for event in events] == [Phase.READY]


@pytest.mark.slow  # a damaged overlay is built anew in every CI
def test_a_damaged_wheel_in_the_cache_is_fetched_again(installed):
    home, lists = installed
    clear(make_plan(home, "alpha", lists=lists).generation)
    wheel = Wheelhouse(home).find(Pin("tiny-two", "2.0"))
    assert wheel is not None
    wheel.write_bytes(wheel.read_bytes()[:100])
    install(home, "alpha", lists=lists)
    assert ask(interpreter_for(home, ["alpha"], lists=lists), "import tiny_two; print(tiny_two.version)") == "2.0"


@pytest.mark.slow  # the window's first hour uses two sets in every CI
def test_several_sets_are_seen_as_one_even_in_a_folder_with_an_odd_name(installed_once, tmp_path):
    home, lists = Home(tmp_path / "höme"), installed_once[1]
    shutil.copytree(installed_once[0].root, home.root, symlinks=True)
    install(home, "beta", lists=lists)
    python = interpreter_for(home, ["beta", "alpha"], lists=lists)
    argv = [str(python), "-I", "-c", "import tiny_one, tiny_three, iniconfig, mosaic_wire; print(iniconfig.version)"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True, env=environment)
    assert done.stdout.strip() == "99.0"
    assert interpreter_for(home, ["alpha", "beta"], lists=lists) == python
    held = hold(python)
    try:
        assert len(held) == 2
        kept = prune(home, ["alpha", "beta"], all_generations=True, lists=lists).kept
        assert len(kept) == 2
    finally:
        for descriptor in held:
            os.close(descriptor)
    removed = prune(home, all_generations=True, lists=lists).removed
    assert len(removed) == 3, "two overlays and the joint environment"
    assert not python.exists()


# ---------------------------------------------------------------- tampering


def break_package_missing(plan):
    shutil.rmtree(plan.site / "tiny_one-1.0.dist-info")


def break_package_changed(plan):
    (plan.site / "tiny_one-1.0.dist-info" / "RECORD").write_text("")


def break_package_unexpected(plan):
    (plan.site / "intruder-1.0.dist-info").mkdir()


def break_interpreter_gone(plan):
    for link in (plan.generation / "bin").glob("python*"):
        link.unlink()


def break_marker_unreadable(plan):
    text = plan.ready_file.read_text()
    plan.ready_file.write_text(text.replace('"tiny-two": "2.0"', '"tiny-two": "2.9"'))


def break_incomplete(plan):
    plan.ready_file.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        break_package_missing,
        break_package_changed,
        break_package_unexpected,
        break_interpreter_gone,
        break_marker_unreadable,
        break_incomplete,
    ],
)
def test_damage_is_named_and_such_an_overlay_is_not_used(installed, damage):
    home, lists = installed
    assert state_of(home, lists) is SetState.READY
    damage(make_plan(home, "alpha", lists=lists))
    expected = SetState[damage.__name__.removeprefix("break_").upper()]
    answer = check_sets(home, ["alpha"], lists=lists)
    assert answer.state is expected
    assert "mosaic extras install alpha" in answer.message
    with pytest.raises(SetNotReady):
        interpreter_for(home, ["alpha"], lists=lists)


@pytest.mark.parametrize("damage", [pytest.param("removed", marks=pytest.mark.slow), "changed"])
def test_a_file_that_was_removed_or_changed_is_found_by_check_and_repaired_by_install(installed, capsys, damage):
    home, lists = installed
    module = make_plan(home, "alpha", lists=lists).site / "tiny_one" / "__init__.py"
    whole = module.read_bytes()
    if damage == "removed":
        module.unlink()
    else:
        module.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    arguments = ["--home", str(home.root), "--lists", str(lists), "--set", "alpha"]
    assert install_extras.main([*arguments, "--check"]) == 1
    said = capsys.readouterr().out
    assert f"damaged: {module}" in said
    assert "mosaic extras install alpha" in said
    assert install_extras.main(arguments) == 0
    assert install_extras.main([*arguments, "--check"]) == 0
    assert module.read_bytes() == whole


def test_a_marker_cut_at_any_byte_is_never_believed(installed):
    home, lists = installed
    marker = make_plan(home, "alpha", lists=lists).ready_file
    whole = marker.read_bytes()
    for length in range(0, len(whole.rstrip()), 7):
        marker.write_bytes(whole[:length])
        assert state_of(home, lists) is SetState.MARKER_UNREADABLE
    marker.write_bytes(whole)
    assert state_of(home, lists) is SetState.READY


@pytest.mark.slow  # a changed file is repaired in every CI
def test_a_damaged_overlay_is_built_anew_from_kept_wheels_without_the_index(installed, monkeypatch):
    home, lists = installed
    plan = make_plan(home, "alpha", lists=lists)
    break_package_missing(plan)
    (plan.generation / "left-over").write_text("of the old one")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    install(home, "alpha", lists=lists)
    assert state_of(home, lists) is SetState.READY
    assert not (plan.generation / "left-over").exists()


# ---------------------------------------------------------------- failures


def test_an_unavailable_package_fails_with_the_command_to_repeat(tmp_path, lists):
    home = Home(tmp_path / "home")
    with pytest.raises(InstallFailed, match=r"No file of nobody-has-this==1.0 fits[\s\S]*extras install absent --home"):
        install(home, "absent", lists=lists)
    assert state_of(home, lists, "absent") is SetState.INCOMPLETE


def test_an_index_that_cannot_be_reached_is_called_that(tmp_path, lists, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(InstallFailed, match="index cannot be reached"):
        install(Home(tmp_path / "home"), "absent", lists=lists)


def test_too_small_a_disk_is_reported_before_anything_is_fetched(tmp_path, lists):
    home = Home(tmp_path / "home")
    with pytest.raises(InstallFailed, match="needs about 1499999998 MB of disk"):
        install(home, "huge", lists=lists)
    assert not home.cache.exists()


@pytest.mark.slow  # a set that does not work is not ready in every CI
def test_pins_that_contradict_each_other_are_not_called_ready(tmp_path, lists):
    home = Home(tmp_path / "home")
    with pytest.raises(InstallFailed, match=r"contradict each other.*picky 1\.0 has requirement tiny-two<2"):
        install(home, "quarrel", lists=lists)
    assert state_of(home, lists, "quarrel") is SetState.INCOMPLETE


@pytest.mark.slow  # a set that contradicts itself is refused in every CI
def test_a_set_whose_smoke_test_fails_is_not_called_ready(tmp_path, lists):
    home = Home(tmp_path / "home")
    with pytest.raises(InstallFailed, match=r"does not work here[\s\S]*no_such_module"):
        install(home, "useless", lists=lists)
    assert state_of(home, lists, "useless") is SetState.INCOMPLETE


# ---------------------------------------------------------------- generations, runs, pruning


@pytest.mark.slow  # an overlay in use is left alone in every CI
def test_new_pins_make_a_new_overlay_beside_the_one_a_run_uses(installed):
    home, lists = installed
    old = interpreter_for(home, ["alpha"], lists=lists)
    (descriptor,) = hold(old)
    # The run's process inherits the mark; this one gives it up.
    program = "import sys, tiny_two; print(tiny_two.version, flush=True); sys.stdin.read(); import tiny_one"
    run = subprocess.Popen(
        [str(old), "-I", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[descriptor], text=True
    )
    os.close(descriptor)
    assert run.stdout is not None
    assert run.stdout.readline() == "2.0\n"
    write_lists(lists, two="2.1")
    assert state_of(home, lists) is SetState.STALE
    install(home, "alpha", lists=lists)
    new = interpreter_for(home, ["alpha"], lists=lists)
    assert new != old
    refused = prune(home, lists=lists)
    assert refused.removed == []
    assert "a run uses" in refused.kept[0]
    run.communicate("", timeout=PATIENCE_S)
    assert run.returncode == 0, "its packages were there to the end"
    pruned = prune(home, lists=lists)
    assert pruned.removed == [old.parent.parent]
    assert pruned.bytes > 0
    assert ask(new, "import tiny_two; print(tiny_two.version)") == "2.1"
    assert Wheelhouse(home).find(Pin("tiny-two", "2.1")) is not None
    assert Wheelhouse(home).find(Pin("tiny-one", "1.0")) is not None


def test_an_overlay_in_use_is_neither_rebuilt_nor_cleared(installed):
    home, lists = installed
    plan = make_plan(home, "alpha", lists=lists)
    (descriptor,) = hold(plan.python)
    try:
        with pytest.raises(SetInUse, match="a run uses"):
            clear(plan.generation)
        assert state_of(home, lists) is SetState.READY
        break_package_unexpected(plan)
        with pytest.raises(SetInUse):
            install(home, "alpha", lists=lists)
    finally:
        os.close(descriptor)


def test_a_run_that_comes_too_late_is_reported_so(installed):
    home, lists = installed
    python = interpreter_for(home, ["alpha"], lists=lists)
    make_plan(home, "alpha", lists=lists).ready_file.unlink()
    with pytest.raises(SetNotReady, match="removed or rebuilt"):
        hold(python)
    assert hold(Path(sys.executable)) == (), "the base needs no mark"


def test_pruning_keeps_what_is_ready_and_removes_what_is_half_made(installed):
    home, lists = installed
    plan = make_plan(home, "alpha", lists=lists)
    half_made = plan.generation.with_name("0123456789ab")
    half_made.mkdir()
    assert prune(home, lists=lists).removed == [half_made]
    assert state_of(home, lists) is SetState.READY


# ---------------------------------------------------------------- killed, and at the same time


class Installer:
    """The command as a process of its own session, and its output."""

    def __init__(self, home: Home, lists: Path, *, gate: Path | None = None) -> None:
        environment = {**os.environ, **({"MOSAIC_TEST_GATE": str(gate)} if gate else {})}
        self.process = subprocess.Popen(
            command(home, lists, "--set", "alpha", "--progress-json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def read_until(self, phase: str, message: str = "") -> list[dict]:
        events = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            events.append(json.loads(line))
            if events[-1].get("phase") == phase and message in events[-1]["message"]:
                return events
        raise AssertionError(f"it ended without {phase}: {events}")

    def kill(self, *, whole_group: bool) -> None:
        if whole_group:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            os.kill(self.process.pid, signal.SIGKILL)
        self.finish()

    def finish(self) -> list[dict]:
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return [json.loads(line) for line in output.splitlines()]


@pytest.mark.slow  # a terminated one is tried in every CI
def test_an_installation_killed_at_any_moment_is_never_ready_and_the_next_one_succeeds(tmp_path, lists):
    home, gate = Home(tmp_path / "home"), tmp_path / "gate"
    for phase, message, whole_group in [
        ("preparing", "", True),
        ("fetching", "", False),
        ("fetching", "", True),
        ("installing", "", True),
        ("checking", "smoke", True),
    ]:
        installer = Installer(home, lists, gate=gate)
        installer.read_until(phase, message)
        installer.kill(whole_group=whole_group)
        assert state_of(home, lists) in NOT_READY
    assert_the_next_one_succeeds(home, lists, gate)


NOT_READY = (SetState.NOT_INSTALLED, SetState.INCOMPLETE, SetState.INSTALLING)


def assert_the_next_one_succeeds(home: Home, lists: Path, gate: Path) -> None:
    gate.touch()
    assert Installer(home, lists, gate=gate).finish()[-1]["ready"]
    python = interpreter_for(home, ["alpha"], lists=lists)
    assert ask(python, "import tiny_one, tiny_two; print(tiny_two.version)") == "2.0"


@pytest.mark.fault
def test_thirty_installations_killed_at_random_leave_nothing_that_is_trusted(tmp_path, lists):
    home, gate = Home(tmp_path / "home"), tmp_path / "gate"
    chance = random.Random(7)
    for attempt in range(30):
        installer = Installer(home, lists, gate=gate)
        with suppress(subprocess.TimeoutExpired):
            installer.process.wait(chance.uniform(0.05, 3.0))
        installer.kill(whole_group=chance.random() < 0.7)
        assert state_of(home, lists) in NOT_READY
        if attempt % 5 == 4:
            wait_until(lambda: not is_locked(make_plan(home, "alpha", lists=lists).lock_file), timeout_s=PATIENCE_S)
            shutil.rmtree(home.cache, ignore_errors=True)  # so that there is something to fetch again
    assert_the_next_one_succeeds(home, lists, gate)


def test_a_pip_that_outlives_its_installer_keeps_the_lock(tmp_path, lists):
    home, gate = Home(tmp_path / "home"), tmp_path / "gate"
    installer = Installer(home, lists, gate=gate)
    assert wait_until((tmp_path / "gate-reached").exists, timeout_s=PATIENCE_S)
    installer.kill(whole_group=False)  # the smoke test goes on, as pip would
    lock = make_plan(home, "alpha", lists=lists).lock_file
    assert is_locked(lock)
    assert state_of(home, lists) is SetState.INSTALLING
    assert "being installed now" in prune(home, lists=lists).kept[0]
    gate.touch()
    assert wait_until(lambda: not is_locked(lock), timeout_s=PATIENCE_S)
    assert state_of(home, lists) is SetState.INCOMPLETE


def test_a_terminated_installer_takes_its_children_along(tmp_path, lists):
    home = Home(tmp_path / "home")
    installer = Installer(home, lists)
    installer.read_until("preparing")  # pip is about to be started, or was
    installer.process.terminate()
    installer.finish()
    assert installer.process.returncode == install_extras.EXIT_INTERRUPTED
    assert not is_locked(make_plan(home, "alpha", lists=lists).lock_file)
    assert state_of(home, lists) in NOT_READY


@pytest.mark.slow  # the lock is tried in every CI
def test_of_several_installers_one_works_and_the_others_wait_for_it(tmp_path, lists):
    home, gate = Home(tmp_path / "home"), tmp_path / "gate"
    first = Installer(home, lists, gate=gate)
    first.read_until("preparing")
    others = [Installer(home, lists, gate=gate) for _ in range(2)]
    reported = [other.read_until("waiting") for other in others]
    assert all(str(first.process.pid) in events[-1]["message"] for events in reported)
    gate.touch()
    endings = [installer.finish() for installer in (first, *others)]
    assert all(events[-1]["ready"] for events in endings)
    assert [event["phase"] for events in endings[1:] for event in events[:-1]] == ["ready", "ready"]
    assert state_of(home, lists) is SetState.READY


# ---------------------------------------------------------------- the command


def test_the_command_lists_checks_and_removes(installed, capsys):
    home, lists = installed
    flags = ["--home", str(home.root), "--lists", str(lists)]
    assert install_extras.main([*flags, "--list"]) == 0
    shown = capsys.readouterr().out
    assert any(line.split()[:2] == ["alpha", "ready"] and "a test" in line for line in shown.splitlines())
    assert {listing.name: listing.state for listing in list_sets(home, lists=lists)}["beta"] is SetState.NOT_INSTALLED
    assert install_extras.main([*flags, "--check", "--set", "alpha", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sets"][0]["state"] == "ready"
    assert install_extras.main([*flags, "--check", "--set", "alpha,beta"]) == install_extras.EXIT_NOT_READY
    assert "'beta' is not installed" in capsys.readouterr().out
    assert install_extras.main([*flags, "--remove", "--set", "alpha", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 1
    assert state_of(home, lists) is SetState.NOT_INSTALLED


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [(["--set", "alfa"], "Did you mean 'alpha'"), ([], "nothing to do"), (["--remove"], "--remove needs the sets")],
)
def test_bad_input_is_answered_with_words_and_2(tmp_path, lists, capsys, flags, arguments):
    code = install_extras.main(["--home", str(tmp_path / "home"), "--lists", str(lists), *flags])
    assert code == install_extras.EXIT_BAD_INPUT
    assert arguments in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_a_set_that_fails_does_not_keep_the_others_from_being_installed(tmp_path, lists, capsys):
    home = Home(tmp_path / "home")
    code = install_extras.main(
        ["--home", str(home.root), "--lists", str(lists), "--set", "absent,beta", "--progress-json"]
    )
    assert code == install_extras.EXIT_NOT_READY
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {result["set"]: result["ready"] for result in lines[-1]["sets"]} == {"absent": False, "beta": True}
    assert {"absent", "beta"} <= {line["set"] for line in lines[:-1]}
    steps = [line for line in lines if line.get("set") == "beta" and line.get("phase") == "installing"]
    assert steps[-1]["done"] == steps[-1]["total"] == 1


# ---------------------------------------------------------------- a real set


@pytest.mark.slow
def test_minigrid_is_installed_and_runs(tmp_path, monkeypatch):
    monkeypatch.undo()  # the real index
    home = Home(tmp_path / "home")
    install(home, "minigrid")
    program = """
        import gymnasium as gym, minigrid, torch
        gym.register_envs(minigrid)
        env = gym.make("MiniGrid-DoorKey-5x5-v0")
        env.reset(seed=0)
        for _ in range(100):
            env.step(env.action_space.sample())
        print(torch.__file__)
    """
    used = Path(ask(interpreter_for(home, ["minigrid"]), program))
    assert used.is_relative_to(Base.current().site[0]), "torch is the base's"
