"""Theme and size of the letters, and that they are kept."""

from __future__ import annotations

import pytest
from gym_gui.ui import theme
from gym_gui.ui.theme import ZOOM_STEPS, Appearance, ThemeChoice
from PySide6.QtCore import QPoint, QSettings, Qt
from PySide6.QtWidgets import QApplication, QLabel, QToolTip


@pytest.fixture
def appearance(qapp: QApplication):
    font = qapp.font()
    made = Appearance(qapp)
    yield made
    qapp.setFont(font)
    theme.apply(qapp, ThemeChoice.LIGHT)


def test_a_theme_is_applied_and_kept(qapp, appearance) -> None:
    appearance.choose(ThemeChoice.DARK)
    assert theme.colors().is_dark
    assert Appearance(qapp).choice is ThemeChoice.DARK
    appearance.choose(ThemeChoice.LIGHT)
    assert not theme.colors().is_dark


def test_letters_grow_shrink_and_stop_at_both_ends(qapp, appearance) -> None:
    usual = qapp.font().pointSizeF()
    appearance.zoom_in()
    assert qapp.font().pointSizeF() == pytest.approx(usual * 1.1)
    for _ in ZOOM_STEPS:
        appearance.zoom_in()
    assert appearance.zoom == ZOOM_STEPS[-1]
    for _ in ZOOM_STEPS:
        appearance.zoom_out()
    assert appearance.zoom == ZOOM_STEPS[0]
    appearance.reset_zoom()
    assert qapp.font().pointSizeF() == pytest.approx(usual)


def test_headings_grow_with_the_letters(qapp, appearance) -> None:
    before = qapp.styleSheet()
    appearance.zoom_in()
    assert qapp.styleSheet() != before


@pytest.mark.parametrize("nonsense", ["", "huge", "-3", "1e9", "nan"])
def test_settings_that_make_no_sense_are_not_believed(qapp, appearance, nonsense) -> None:
    settings = QSettings("MOSAIC", "mosaic")
    settings.setValue("appearance/zoom", nonsense)
    settings.setValue("appearance/theme", nonsense)
    fresh = Appearance(qapp)
    assert (fresh.zoom, fresh.choice) == (1.0, ThemeChoice.SYSTEM)


def test_tooltips_and_labels_are_text_whatever_it_looks_like(qapp, appearance) -> None:
    widget = QLabel("<b>ppo</b>")
    widget.ensurePolished()
    assert widget.textFormat() is Qt.TextFormat.PlainText
    QToolTip.showText(QPoint(1, 1), "<b>ppo</b> <img src='/etc/passwd'>", widget)
    tips = [shown for shown in qapp.topLevelWidgets() if shown.metaObject().className() == "QTipLabel"]
    assert [(tip.text(), tip.textFormat()) for tip in tips] == [
        ("<b>ppo</b> <img src='/etc/passwd'>", Qt.TextFormat.PlainText)
    ]
    QToolTip.hideText()
