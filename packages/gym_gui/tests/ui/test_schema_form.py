"""Forms made from fields: what is typed is read, marked and refused beside its field."""

from __future__ import annotations

from datetime import datetime

import pytest
from gym_gui.ui.forms.environment_editor import EnvironmentEditor
from gym_gui.ui.forms.run_form import MAX_RECENT, SavedConfigs
from gym_gui.ui.forms.schema_form import FieldForm, ParsedEditor, SchemaForm
from gym_gui.ui.forms.train_form import AlgorithmEditor, NotesPanel
from gym_gui.ui.workers.environments import EnvironmentPreview
from gym_gui.wording.formats import parse_seeds
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QLineEdit, QToolButton

FIELDS = (
    FieldSpec("learning_rate", "float", 2.5e-4, "step size", minimum=0, group="Learning"),
    FieldSpec("anneal_lr", "bool", True, "let it fall", group="Learning"),
    FieldSpec("target_kl", "float", None, "early stop", nullable=True, group="Learning"),
    FieldSpec("num_envs", "int", 4, "environments", minimum=1, group="Batches"),
    FieldSpec("agent", "str", "auto", "network", choices=("auto", "mlp"), group="Batches"),
    FieldSpec("teacher", "str", "", "a name", group="Batches"),
    FieldSpec("schedule", "json", [1, 2], "stages", group="Batches"),
)


@pytest.fixture
def form(qtbot, themed) -> SchemaForm:
    form = SchemaForm(FIELDS)
    qtbot.addWidget(form)
    form.show()
    qtbot.waitUntil(lambda: form.findChild(QLineEdit, "learning_rate") is not None, timeout=10_000)
    return form


def type_into(form: SchemaForm, name: str, text: str) -> None:
    row = form.row(name)
    assert row is not None
    assert isinstance(row.editor.widget, QLineEdit)
    row.editor.widget.setText(text)


def test_a_closed_group_is_not_built_and_counts_all_the_same(form: SchemaForm) -> None:
    assert form.findChild(QLineEdit, "num_envs") is None
    form.set_values({"num_envs": 8, "learning_rate": 1e-3})
    assert form.findChild(QLineEdit, "num_envs") is None
    assert form.changed_values() == {"learning_rate": 1e-3, "num_envs": 8}
    form.set_values({"num_envs": 0})
    assert form.problems() == {"num_envs": "must be at least 1, got 0"}
    form.show_problem("num_envs", "must be at least 1")
    assert form.findChild(QLineEdit, "num_envs").text() == "0"


def test_what_is_typed_stays_as_it_was_typed_and_is_marked(form: SchemaForm) -> None:
    type_into(form, "learning_rate", "1e-3")
    row = form.row("learning_rate")
    assert form.findChild(QLineEdit, "learning_rate").text() == "1e-3"
    assert form.changed_values() == {"learning_rate": 0.001}
    assert row.label.text() == "learning_rate •"
    assert row.label.font().bold()
    reset = form.findChild(QToolButton, "learning_rate_reset")
    assert reset.isVisible()
    reset.click()
    assert form.changed_values() == {}
    assert row.label.text() == "learning_rate"
    assert not reset.isVisible()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("learning_rate", "fast", "expected float, got 'fast'"),
        ("learning_rate", "", "a value is missing (a number)"),
        ("learning_rate", "-1", "must be at least 0"),
        ("learning_rate", "nan", "finite"),
        ("num_envs", "2.5", "expected int"),
        ("schedule", "[1,", "expected json"),
    ],
)
def test_what_is_wrong_stands_beside_the_field(form: SchemaForm, name: str, text: str, message: str) -> None:
    type_into(form, name, text)
    label = form.findChild(QLabel, f"{name}_problem")
    assert label.isVisible()
    assert message in label.text()
    assert set(form.problems()) == {name}
    assert name not in form.changed_values()


def test_an_empty_field_that_may_be_none_is_none(form: SchemaForm) -> None:
    type_into(form, "target_kl", "0.02")
    assert form.changed_values() == {"target_kl": 0.02}
    type_into(form, "target_kl", "")
    assert form.changed_values() == {}
    assert form.problems() == {}


def test_searching_shows_the_fields_that_match_and_opens_their_group(qtbot, form: SchemaForm) -> None:
    search = form.findChild(QLineEdit, "parameter_search")
    qtbot.keyClicks(search, "environ")
    assert form.findChild(QLineEdit, "num_envs").isVisible()
    assert not form.findChild(QLineEdit, "learning_rate").isVisible()
    search.clear()
    assert form.findChild(QLineEdit, "learning_rate").isVisible()


def test_another_algorithm_keeps_what_was_changed_and_fits(form: SchemaForm) -> None:
    form.set_values({"learning_rate": 1e-3, "num_envs": 8})
    form.set_fields((FieldSpec("learning_rate", "float", 3e-4, group="Learning"), FieldSpec("tau", "float", 1.0)))
    assert form.changed_values() == {"learning_rate": 1e-3}


def test_defaults_of_a_run_that_is_continued_count_as_unchanged(form: SchemaForm) -> None:
    form.set_defaults({"learning_rate": 1e-3, "num_envs": 8, "unknown": 1})
    assert form.changed_values() == {}
    type_into(form, "num_envs", "4")
    assert form.changed_values() == {"num_envs": 4}


def test_a_field_with_a_grammar_of_its_own(qtbot, themed) -> None:
    form = FieldForm()
    qtbot.addWidget(form)
    editor = ParsedEditor(lambda text: tuple(parse_seeds(text)), lambda seeds: ",".join(map(str, seeds)), empty=...)
    form.add("Seeds", "seeds", "json", (1,), editor=editor)
    form.show()
    editor.line.setText("1-5")
    assert form.values()["seeds"] == (1, 2, 3, 4, 5)
    editor.line.setText("5-1")
    assert "empty" in form.problems()["seeds"]
    editor.line.setText("")
    assert "expected seeds" in form.problems()["seeds"]


def test_every_field_has_a_name_for_those_who_do_not_see_it(form: SchemaForm) -> None:
    for field in FIELDS:
        widget = form.row(field.name).editor.widget
        assert widget.accessibleName() == field.name
        assert widget.accessibleDescription() == field.help
        assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus


PPO = AlgorithmSpec("ppo", "for discrete actions", action_spaces=("discrete",))
SAC = AlgorithmSpec("sac", "for continuous actions", action_spaces=("continuous",))
OLD = AlgorithmSpec("old", "gone", unavailable="it needs JAX")


def test_algorithms_that_do_not_fit_are_shown_on_request(qtbot, themed) -> None:
    editor = AlgorithmEditor()
    qtbot.addWidget(editor.widget)
    editor.set_algorithms((PPO, SAC, OLD), (PPO, OLD))
    assert [editor.combo.itemText(place) for place in range(editor.combo.count())] == ["ppo", "old"]
    assert not editor.combo.model().item(1).isEnabled()
    editor.set_value("ppo")
    editor.show_all.setChecked(True)
    assert editor.combo.count() == 3
    assert (editor.value(), editor.algorithm()) == ("ppo", PPO)
    editor.combo.setEditText("pp")
    assert (editor.value(), editor.algorithm()) == ("pp", None)
    editor.combo.setEditText("")
    with pytest.raises(ValueError, match="choose an algorithm"):
        editor.value()


def test_an_environment_is_found_by_family_and_shows_its_spaces(qtbot, themed) -> None:
    editor = EnvironmentEditor()
    qtbot.addWidget(editor.widget)
    editor.widget.show()
    editor.set_environments({"Classic control": ("CartPole-v1", "Pendulum-v1"), "Atari": ("PongNoFrameskip-v4",)})
    editor.set_value("CartPole-v1")
    assert editor.family.currentData() == "Classic control"
    editor.family.setCurrentIndex(editor.family.findData("Atari"))
    assert editor.value() == "PongNoFrameskip-v4"
    assert (editor.actions, editor.observations, editor.is_known) == ("discrete", "image", False)
    with qtbot.waitSignal(editor.preview_requested, timeout=5000) as asked:
        editor.combo.setEditText("CartPole-v1")
    assert asked.args == ["CartPole-v1"]
    editor.show_preview(
        EnvironmentPreview("Pendulum-v1", "continuous", "vector", "Box(1,)", "Box(3,)")
    )  # came too late
    assert not editor.is_known
    look = EnvironmentPreview("CartPole-v1", "discrete", "vector", "Discrete(2)", "Box(4,)", bytes(2 * 3 * 3), 2, 3)
    editor.show_preview(look)
    assert (editor.actions, editor.is_known) == ("discrete", True)
    assert "Discrete(2)" in editor.widget.findChild(QLabel, "env_spaces").text()
    assert editor.widget.findChild(QLabel, "env_frame").isVisible()


def test_checks_are_kept_apart_from_the_notes(qtbot, themed) -> None:
    panel = NotesPanel()
    qtbot.addWidget(panel)
    panel.set_notes("why")
    panel.add_check("Dry run", "all is well", datetime(2026, 11, 15, 16, 0, 1))
    assert panel.notes == "why"
    assert panel.checks == "[2026-11-15 16:00:01] Dry run\nall is well"


def test_presets_and_recent_configs_are_kept_without_secrets(qapp) -> None:
    saved_configs = SavedConfigs("test")
    config = {"metadata": {"worker": {"config": {"algo": "ppo", "extras": {"wandb_api_key": "k" * 40, "x": 1}}}}}
    saved_configs.save_preset("mine", [config])
    saved_configs.remember("ppo", [config, config], when=1.0)
    for number in range(MAX_RECENT + 3):
        saved_configs.remember(f"run {number}", [{"n": number}])
    again = SavedConfigs("test")
    assert again.presets() == {"mine": {"metadata": {"worker": {"config": {"algo": "ppo", "extras": {"x": 1}}}}}}
    assert len(again.recent()) == MAX_RECENT
    assert again.recent()[0].title == f"run {MAX_RECENT + 2}"
    again.remember("again", [{"n": 5}])
    assert [entry.document for entry in again.recent()].count({"n": 5}) == 1
    again.delete_preset("mine")
    assert SavedConfigs("test").presets() == {}
