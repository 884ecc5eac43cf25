"""The parts a game is played with: the view that takes keys, buttons and sliders, the key editor, the configuration."""

from __future__ import annotations

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play.action_keypad import ActionBars, ActionKeypad
from gym_gui.ui.play.actions import Binding, default_key_map, read_space
from gym_gui.ui.play.catalog import GameArgument, Playable
from gym_gui.ui.play.game_config import EnvironmentPicker, GameConfig
from gym_gui.ui.play.game_view import GameView, PaceBox
from gym_gui.ui.play.human_panel import HumanPanel, keep_key_map, key_map_of
from gym_gui.ui.play.key_map_editor import KeyMapEditor
from gym_gui.ui.play.policy_panel import PolicyPanel
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QSlider,
    QSpinBox,
    QWidget,
)

POLE = read_space({"action_space": {"type": "Discrete", "shape": [], "n": 2, "start": 0}}, "CartPole-v1")
CAR = read_space({"action_space": {"type": "Box", "shape": [3], "low": [-1, 0, 0], "high": [1, 1, 1]}}, "CarRacing-v3")
Key = Qt.Key


def test_the_view_reports_keys_by_name_and_ignores_those_of_the_window(qtbot, themed) -> None:
    view = GameView()
    qtbot.addWidget(view)
    view.show()
    view.setFocus()
    pressed, released = [], []
    view.key_pressed.connect(pressed.append)
    view.key_released.connect(released.append)
    for key in (Key.Key_Left, Key.Key_Space, Key.Key_A, Key.Key_Enter, Key.Key_Tab, Key.Key_F5, Key.Key_Shift):
        qtbot.keyPress(view, key)
    qtbot.keyClick(view, Key.Key_S, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyRelease(view, Key.Key_Left)
    assert pressed == ["Left", "Space", "A", "Return"]
    assert "Left" in released


def test_the_view_says_when_the_keyboard_is_missing(qtbot, themed) -> None:
    view, other = GameView(), QLineEdit()
    for widget in (view, other):
        qtbot.addWidget(widget)
        widget.show()
    view.activateWindow()
    view.setFocus()
    qtbot.waitUntil(view.hasFocus)
    with qtbot.waitSignal(view.keys_lost):
        other.activateWindow()
        other.setFocus()


def test_the_view_shows_frames_text_and_both(qtbot, themed) -> None:
    view = GameView()
    qtbot.addWidget(view)
    view.resize(300, 200)
    view.show()
    image = QImage(60, 40, QImage.Format.Format_RGB888)
    image.fill(QColor("#ff0000"))
    view.show_image(image)
    middle = view.grab().toImage().pixelColor(150, 100)
    assert (middle.red(), middle.green()) == (255, 0)
    view.set_message("Episode over")
    assert view.findChild(QLabel, "game_message").isVisible()
    view.show_text("Starting")
    assert view.frame_view.notice == "Starting"
    assert view.message == ""


def test_buttons_say_their_keys_and_are_held_like_keys(qtbot, themed) -> None:
    pad = ActionKeypad()
    qtbot.addWidget(pad)
    pad.show_space(POLE, default_key_map(POLE))
    pad.show()
    events: list[object] = []
    pad.pressed.connect(events.append)
    pad.released.connect(lambda: events.append("up"))
    left = pad.buttons[0]
    assert left.text() == "push left\nLeft / A"
    qtbot.mouseClick(left, Qt.MouseButton.LeftButton)
    assert events == [0, "up"]
    assert left.focusPolicy() == Qt.FocusPolicy.TabFocus  # a click leaves the keyboard with the game


def test_sliders_make_a_vector(qtbot, themed) -> None:
    pad = ActionKeypad()
    qtbot.addWidget(pad)
    pad.show_space(CAR, default_key_map(CAR))
    seen = []
    pad.vector_changed.connect(seen.append)
    assert pad.vector() == [0.0, 0.0, 0.0]
    pad.sliders[0].setValue(0)
    pad.sliders[1].setValue(100)
    assert seen[-1] == [-1.0, 0.5, 0.0]
    pad.rest()
    assert pad.vector() == [0.0, 0.0, 0.0]


def test_a_space_that_cannot_be_played_by_hand_reports_it(qtbot, themed) -> None:
    pad = ActionKeypad()
    qtbot.addWidget(pad)
    odd = read_space({"action_space": {"type": "Dict", "shape": None}}, "X-v0")
    pad.show_space(odd, default_key_map(odd))
    assert "cannot be chosen by hand" in pad.widget().findChild(QLabel).text()


def test_keys_are_changed_by_pressing_them_and_remembered(qtbot, themed) -> None:
    editor = KeyMapEditor(POLE, default_key_map(POLE))
    qtbot.addWidget(editor)
    editor.show()
    editor.changed.connect(lambda key_map: keep_key_map(POLE, key_map))
    editor.table.selectRow(1)
    qtbot.mouseClick(editor.capture, Qt.MouseButton.LeftButton)
    assert editor.capture.is_listening
    for key in (Key.Key_J, Key.Key_K):
        qtbot.keyPress(editor.capture, key)
    qtbot.keyRelease(editor.capture, Key.Key_J)
    assert editor.capture.is_listening  # one is still down
    qtbot.keyRelease(editor.capture, Key.Key_K)
    assert Binding(("J", "K"), 1) in editor.key_map.bindings
    assert editor.table.item(1, 1).text() == "Right,  D,  J+K"
    assert key_map_of(POLE) == editor.key_map
    editor.remove.click()
    assert editor.table.item(1, 1).text() == "–"
    editor.restore.click()
    assert key_map_of(POLE) == default_key_map(POLE)
    qtbot.mouseClick(editor.capture, Qt.MouseButton.LeftButton)
    qtbot.keyClick(editor.capture, Key.Key_Escape)
    assert not editor.capture.is_listening
    assert editor.isVisible()  # Esc left the listening, not the dialog


def test_keys_of_a_vector_have_a_value(qtbot, themed) -> None:
    editor = KeyMapEditor(CAR, default_key_map(CAR))
    qtbot.addWidget(editor)
    rows = [editor.table.item(row, 0).text() for row in range(editor.table.rowCount())]
    assert {"steering = -1", "steering = 1", "brake = 0.8", "brake = 1"} <= set(rows)
    editor.table.selectRow(rows.index("brake = 1"))
    editor.capture.captured.emit(("B",))
    assert Binding(("B",), component=2, value=1.0) in editor.key_map.bindings


ARGUMENTS = (
    GameArgument("is_slippery", "bool", True),
    GameArgument("size", "int", 8),
    GameArgument("success_rate", "float", 1 / 3),
    GameArgument("map_name", "str", "4x4", ("4x4", "8x8")),
    GameArgument("title", "str", "lake"),
    GameArgument("desc", "json", None),
)


def test_only_what_was_changed_is_configured(qtbot, themed) -> None:
    config = GameConfig()
    qtbot.addWidget(config)
    config.show_arguments(ARGUMENTS)
    assert config.values() == {}  # also a third, which no field can show
    body = config.widget()
    body.findChild(QCheckBox, "argument_is_slippery").setChecked(False)
    body.findChild(QSpinBox, "argument_size").setValue(5)
    body.findChild(QDoubleSpinBox, "argument_success_rate").setValue(0.5)
    body.findChild(QComboBox, "argument_map_name").setCurrentIndex(1)
    body.findChild(QLineEdit, "argument_title").setText("pond")
    body.findChild(QLineEdit, "argument_desc").setText('["SF", "HG"]')
    expected = {
        "is_slippery": False,
        "size": 5,
        "success_rate": 0.5,
        "map_name": "8x8",
        "title": "pond",
        "desc": ["SF", "HG"],
    }
    assert config.values() == expected
    assert config.problems() == []
    config.show_arguments(ARGUMENTS, expected)
    assert config.values() == expected
    config.reset()
    assert config.values() == {}


def test_a_value_that_is_no_json_is_named_beside_its_field(qtbot, themed) -> None:
    config = GameConfig()
    qtbot.addWidget(config)
    config.show_arguments(ARGUMENTS)
    config.widget().findChild(QLineEdit, "argument_desc").setText("[1,")
    assert len(config.problems()) == 1
    assert config.problems()[0].startswith("desc: expected a JSON value")
    assert "desc" not in config.values()
    config.show_arguments(())
    assert "nothing to configure" in config.widget().findChild(QLabel).text()


def test_environments_are_picked_from_the_list_or_written(qtbot, themed) -> None:
    picker = EnvironmentPicker()
    qtbot.addWidget(picker)
    picker.set_playables(
        [
            Playable("Acrobot-v1", "Classic control"),
            Playable("CartPole-v1", "Classic control"),
            Playable("ALE/Pong-v5", "Atari", needs="atari"),
        ]
    )
    chosen: list[str] = []
    picker.chosen.connect(chosen.append)
    qtbot.keyClicks(picker.filter, "cart")
    assert [entry.env_id for entry in picker.model.shown] == ["CartPole-v1"]
    qtbot.keyClick(picker.filter, Key.Key_Return)
    assert chosen == ["CartPole-v1"]
    picker.filter.setText("my_games:Maze-v0")
    qtbot.keyClick(picker.filter, Key.Key_Return)
    assert picker.env_id == "my_games:Maze-v0"
    picker.filter.clear()
    texts = [picker.model.data(picker.model.index(row)) for row in range(picker.model.rowCount())]
    assert "ALE/Pong-v5 (not installed)" in texts


def test_slider_and_figure_say_the_same_pace(qtbot, themed) -> None:
    pace = PaceBox("pace")
    qtbot.addWidget(pace)
    with qtbot.waitSignal(pace.changed) as reported:
        pace.slider.setValue(42)
    assert reported.args == [42]
    assert pace.spin.value() == pace.rate == 42
    pace.set_rate(1000)
    assert pace.rate == 60


@pytest.mark.parametrize("values", [[0.1, 0.9], [-2.0, 3.5], [0.0, 0.0]])
def test_bars_are_drawn_for_probabilities_and_values(qtbot, themed, values: list[float]) -> None:
    bars = ActionBars()
    qtbot.addWidget(bars)
    bars.resize(300, 60)
    assert bars.isHidden()
    bars.show_values(("left", "right"), values, 1, are_probabilities=values[0] == 0.1)
    bars.grab()
    assert bars.values == tuple(values)
    assert bars.accessibleDescription().startswith("left ")


# -- the panels as a whole


@pytest.fixture(params=[HumanPanel, PolicyPanel])
def elsewhere(request, qtbot, themed, background: Background) -> QWidget:
    """A panel of a window that is connected to another machine; nothing answers there."""

    def unreachable() -> TrainerClient:
        raise DaemonUnreachable("no daemon is there")

    panel = request.param(DaemonLink(unreachable, background), background, None)
    qtbot.addWidget(panel)
    panel.resize(1100, 700)
    panel.show()
    return panel


def test_on_another_machine_it_says_where_to_go(elsewhere: QWidget) -> None:
    assert "on another machine" in elsewhere.banner.text
    name = "start_game" if isinstance(elsewhere, HumanPanel) else "load_policy"
    assert not elsewhere.findChild(QPushButton, name).isEnabled()


def test_everything_has_a_name_and_can_be_reached(elsewhere: QWidget) -> None:
    kinds = (QAbstractButton, QLineEdit, QComboBox, QAbstractSpinBox, QSlider, QAbstractItemView)
    found = [child for kind in kinds for child in elsewhere.findChildren(kind)]
    # Parts that Qt makes for itself: the line of a spin box, the list of a combo box, headers, scroll bars.
    own = [
        child
        for child in found
        if child.isVisible()
        and not isinstance(child, QHeaderView)
        and not child.objectName().startswith("qt_")
        and not isinstance(child.parent(), QAbstractSpinBox | QComboBox | QAbstractItemView | QLineEdit)
        and type(child.parent()).__name__ != "QComboBoxPrivateContainer"
        and child.metaObject().className() not in ("QTableCornerButton", "QComboBoxListView")
    ]
    assert len(own) >= 10
    assert [child for child in own if not child.accessibleName() or not child.objectName()] == []
    assert [child.objectName() for child in own if child.focusPolicy() == Qt.FocusPolicy.NoFocus] == []
