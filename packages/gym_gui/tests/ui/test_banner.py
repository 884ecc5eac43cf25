"""A banner says one thing, in words and with an icon, and offers at most one way out."""

from __future__ import annotations

from gym_gui.ui.widgets.banner import Banner
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton


def test_it_is_hidden_until_it_has_a_message(qtbot, themed) -> None:
    banner = Banner()
    qtbot.addWidget(banner)
    assert banner.isHidden()
    banner.set_message("The file is gone.", "warning")
    assert not banner.isHidden()
    assert (banner.text, banner.tone, banner.accessibleName()) == ("The file is gone.", "warning", "The file is gone.")
    banner.clear()
    assert banner.isHidden()
    assert banner.text == ""


def test_a_text_at_once_is_shown_at_once(qtbot, themed) -> None:
    banner = Banner("Broken.", "bad")
    qtbot.addWidget(banner)
    assert not banner.isHidden()
    assert banner.property("tone") == "bad"


def test_the_button_does_what_the_last_message_offered(qtbot, themed) -> None:
    banner, done = Banner(), []
    qtbot.addWidget(banner)
    button = banner.findChild(QPushButton, "banner_action")
    banner.set_message("Gone.", "bad", action="Refresh", on_action=lambda: done.append("looked"))
    banner.show()
    assert button.isVisible()
    with qtbot.waitSignal(banner.action_clicked):
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert done == ["looked"]
    banner.set_message("Still gone.")
    assert not button.isVisible()


def test_what_a_stranger_wrote_is_shown_as_text(qtbot, themed) -> None:
    """A run's reason may hold anything; it must not become a picture or a link."""
    banner = Banner("<b>bold</b> <img src='x'>")
    qtbot.addWidget(banner)
    assert banner.text == "<b>bold</b> <img src='x'>"
    assert banner._label.textFormat() is Qt.TextFormat.PlainText
