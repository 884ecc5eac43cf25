"""Colours and fonts of the window, light and dark: Fusion with palettes of our own.

A widget asks `theme.colours()` when it paints and again on `QEvent.Type.PaletteChange`; nothing else holds a colour.
Curves and states use the palette of Okabe and Ito, which people with any kind of colour vision can tell apart; a state
is never told by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from gym_gui.services.analytics import palette


class ThemeChoice(Enum):
    LIGHT = "light"
    DARK = "dark"
    SYSTEM = "system"


@dataclass(frozen=True)
class Colours:
    """Every colour the window uses, by what it is for."""

    is_dark: bool
    window: str
    surface: str
    """Tables, cards, fields: what lies on the window"""
    raised: str
    """Headers, hovered rows, buttons"""
    border: str
    text: str
    muted: str
    """Captions, units, what is not available"""
    accent: str
    on_accent: str
    good: str
    warning: str
    bad: str
    info: str
    series: tuple[str, ...]
    """Curves, in the order they appear"""

    def curve(self, index: int) -> QColor:
        return QColor(self.series[index % len(self.series)])


LIGHT = Colours(
    is_dark=False,
    window="#f4f5f7",
    surface="#ffffff",
    raised="#e9ebef",
    border="#d3d7de",
    text="#1c2430",
    muted="#5d6878",
    accent="#0067a3",
    on_accent="#ffffff",
    good="#00795a",
    warning="#9a6200",
    bad="#b83a00",
    info="#0067a3",
    series=palette.LIGHT_SERIES,
)
DARK = Colours(
    is_dark=True,
    window="#171b22",
    surface="#1e242d",
    raised="#29313c",
    border="#38424f",
    text="#e4e8ee",
    muted="#98a4b3",
    accent="#4fb0ea",
    on_accent="#0d1218",
    good="#35c496",
    warning="#eaa63c",
    bad="#ff8a57",
    info="#4fb0ea",
    series=palette.DARK_SERIES,
)

_STATES = {"INIT": "muted", "HSHK": "info", "RDY": "info", "EXEC": "accent", "PAUSE": "warning", "FAULT": "bad"}
_OUTCOMES = {"completed": "good", "failed": "bad", "cancelled": "muted"}


def colours() -> Colours:
    """Those of the palette in use."""
    return DARK if QGuiApplication.palette().color(QPalette.ColorRole.Window).lightness() < 128 else LIGHT


def colour_of(run: pb.Run) -> QColor:
    """The colour of a run's state; the words say the same."""
    name = _OUTCOMES.get(run.outcome, "muted") if run.status == "TERM" else _STATES.get(run.status, "muted")
    return QColor(getattr(colours(), name))


def apply(application: QApplication, choice: ThemeChoice) -> None:
    """Dress the whole application; widgets hear of it by PaletteChange."""
    chosen = _system_is_dark() if choice is ThemeChoice.SYSTEM else choice is ThemeChoice.DARK
    wanted = DARK if chosen else LIGHT
    application.setStyle("Fusion")
    application.setPalette(_palette(wanted))
    application.setStyleSheet(_style_sheet(wanted))


def monospace() -> QFont:
    font = QFont("DejaVu Sans Mono")
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setPointSizeF(QApplication.font().pointSizeF() * 0.95)
    return font


def _system_is_dark() -> bool:
    return QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark


def _palette(wanted: Colours) -> QPalette:
    palette = QPalette()
    role = QPalette.ColorRole
    for name, colour in {
        role.Window: wanted.window,
        role.WindowText: wanted.text,
        role.Base: wanted.surface,
        role.AlternateBase: wanted.window,
        role.Text: wanted.text,
        role.PlaceholderText: wanted.muted,
        role.Button: wanted.raised,
        role.ButtonText: wanted.text,
        role.BrightText: wanted.bad,
        role.ToolTipBase: wanted.raised,
        role.ToolTipText: wanted.text,
        role.Highlight: wanted.accent,
        role.HighlightedText: wanted.on_accent,
        role.Link: wanted.accent,
        role.LinkVisited: wanted.accent,
        role.Light: wanted.raised,
        role.Midlight: wanted.raised,
        role.Mid: wanted.border,
        role.Dark: wanted.border,
        role.Shadow: wanted.border,
    }.items():
        palette.setColor(name, QColor(colour))
    for name in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, name, QColor(wanted.muted))
    palette.setColor(QPalette.ColorGroup.Disabled, role.Highlight, QColor(wanted.border))
    palette.setColor(QPalette.ColorGroup.Disabled, role.HighlightedText, QColor(wanted.text))
    return palette


def _style_sheet(wanted: Colours) -> str:
    """Only what a palette cannot say. Widgets set the property `role`: caption, title, figure, card, banner, …"""
    heading = QApplication.font().pointSizeF() * 1.6  # grows with the letters when they are zoomed
    return f"""
    /* Tooltips and labels are text, whatever names people gave their runs: Qt takes what looks like HTML for HTML. */
    QToolTip, QLabel[textFormat="AutoText"] {{ qproperty-textFormat: PlainText; }}
    QToolTip {{ background: {wanted.raised}; color: {wanted.text}; border: 1px solid {wanted.border}; padding: 4px; }}
    QLabel[role="caption"] {{ color: {wanted.muted}; }}
    QLabel[role="title"] {{ font-size: {heading:.1f}pt; font-weight: 600; }}
    QLabel[role="figure"] {{ font-size: {heading:.1f}pt; font-weight: 600; }}
    QLabel[role="problem"] {{ color: {wanted.bad}; }}
    QFrame[role="card"] {{ background: {wanted.surface}; border: 1px solid {wanted.border}; border-radius: 6px; }}
    QFrame[role="banner"] {{ background: {wanted.raised}; border-left: 4px solid {wanted.info}; border-radius: 3px; }}
    QFrame[role="banner"][tone="bad"] {{ border-left-color: {wanted.bad}; }}
    QFrame[role="banner"][tone="warning"] {{ border-left-color: {wanted.warning}; }}
    QFrame[role="toast"] {{
        background: {wanted.raised}; border: 1px solid {wanted.border}; border-left: 4px solid {wanted.info};
        border-radius: 4px;
    }}
    QFrame[role="toast"][tone="bad"] {{ border-left-color: {wanted.bad}; }}
    QPushButton[role="primary"] {{
        background: {wanted.accent}; color: {wanted.on_accent}; border: 2px solid {wanted.accent}; border-radius: 4px;
        padding: 4px 14px;
        font-weight: 600;
    }}
    QPushButton[role="primary"]:disabled {{
        background: {wanted.border}; color: {wanted.muted}; border-color: {wanted.border};
    }}
    QPushButton[role="primary"]:focus {{ border-color: {wanted.text}; }}
    QHeaderView::section {{
        background: {wanted.raised}; color: {wanted.muted}; border: none; border-right: 1px solid {wanted.border};
        padding: 4px 6px;
    }}
    QTableView, QTreeView, QListView, QPlainTextEdit, QTextBrowser {{ border: 1px solid {wanted.border}; }}
    QTableView {{ gridline-color: {wanted.border}; }}
    #runs_table {{ selection-background-color: transparent; }}  /* its delegate marks the chosen rows itself */
    QSplitter::handle {{ background: {wanted.border}; }}
    QCheckBox::indicator:unchecked, QRadioButton::indicator:unchecked, QAbstractItemView::indicator:unchecked {{
        border: 1px solid {wanted.muted}; background: {wanted.surface}; width: 11px; height: 11px; border-radius: 3px;
    }}
    QRadioButton::indicator:unchecked {{ border-radius: 6px; }}
    QCheckBox::indicator:unchecked:focus, QRadioButton::indicator:unchecked:focus {{ border-color: {wanted.accent}; }}
    QToolBar {{
        background: {wanted.window}; border: none; border-bottom: 1px solid {wanted.border}; padding: 4px; spacing: 4px;
    }}
    QToolBar QToolButton {{ border: 1px solid transparent; border-radius: 4px; padding: 4px 10px; }}
    QToolBar QToolButton:hover {{ background: {wanted.raised}; }}
    QToolBar QToolButton:focus {{ border-color: {wanted.accent}; }}
    QToolBar QToolButton:checked {{ background: {wanted.raised}; border-color: {wanted.border}; font-weight: 600; }}
    QStatusBar {{ background: {wanted.raised}; }}
    QStatusBar::item {{ border: none; }}
    """
