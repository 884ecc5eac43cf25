"""Colors, fonts, text size and icon of the window, light and dark: Fusion with our own palettes.

A widget asks `theme.colors()` when it paints and again on `QEvent.Type.PaletteChange`; nothing else holds a color.
Curves and states use the palette of Okabe and Ito, which users with any kind of color vision can distinguish; a state
is never shown by color alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFont, QGuiApplication, QIcon, QPainter, QPalette, QPixmap
from PySide6.QtWidgets import QApplication

from gym_gui.services.analytics import palette
from gym_gui.ui.settings import stored
from gym_gui.wording.run_view import state_of


class ThemeChoice(Enum):
    LIGHT = "light"
    DARK = "dark"
    SYSTEM = "system"


@dataclass(frozen=True)
class Colors:
    """Every color the window uses, by what it is for."""

    is_dark: bool
    window: str
    surface: str
    """Tables, cards, fields"""
    raised: str
    """Headers, hovered rows, buttons"""
    border: str
    text: str
    muted: str
    """Captions, units, unavailable items"""
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


LIGHT = Colors(
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
DARK = Colors(
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

_STATES_BY_COLOR = {
    "muted": "queued cancelled finished",
    "info": "starting",
    "accent": "running",
    "good": "completed",
    "warning": "pausing paused released cancelling",
    "bad": "stalled faulted failed",
}
STATE_COLORS = {state: color for color, states in _STATES_BY_COLOR.items() for state in states.split()}
"""State of a run, as `state_of` returns it → field of `Colors`"""


def colors() -> Colors:
    """Return the colors of the current palette."""
    return DARK if QGuiApplication.palette().color(QPalette.ColorRole.Window).lightness() < 128 else LIGHT


def color_of(run: pb.Run) -> QColor:
    """Return the color of a run's state; a label always repeats it."""
    name = STATE_COLORS.get(state_of(run), "muted")
    return QColor(getattr(colors(), name))


def apply(application: QApplication, choice: ThemeChoice) -> None:
    """Apply the theme to the whole application; widgets receive PaletteChange."""
    chosen = _system_is_dark() if choice is ThemeChoice.SYSTEM else choice is ThemeChoice.DARK
    shades = DARK if chosen else LIGHT
    application.setStyle("Fusion")
    application.setPalette(_palette(shades))
    application.setStyleSheet(_style_sheet(shades))


def monospace() -> QFont:
    font = QFont("DejaVu Sans Mono")
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setPointSizeF(QApplication.font().pointSizeF() * 0.95)
    return font


def _system_is_dark() -> bool:
    return QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark


def _palette(shades: Colors) -> QPalette:
    palette = QPalette()
    role = QPalette.ColorRole
    for name, color in {
        role.Window: shades.window,
        role.WindowText: shades.text,
        role.Base: shades.surface,
        role.AlternateBase: shades.window,
        role.Text: shades.text,
        role.PlaceholderText: shades.muted,
        role.Button: shades.raised,
        role.ButtonText: shades.text,
        role.BrightText: shades.bad,
        role.ToolTipBase: shades.raised,
        role.ToolTipText: shades.text,
        role.Highlight: shades.accent,
        role.HighlightedText: shades.on_accent,
        role.Link: shades.accent,
        role.LinkVisited: shades.accent,
        role.Light: shades.raised,
        role.Midlight: shades.raised,
        role.Mid: shades.border,
        role.Dark: shades.border,
        role.Shadow: shades.border,
    }.items():
        palette.setColor(name, QColor(color))
    for name in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, name, QColor(shades.muted))
    palette.setColor(QPalette.ColorGroup.Disabled, role.Highlight, QColor(shades.border))
    palette.setColor(QPalette.ColorGroup.Disabled, role.HighlightedText, QColor(shades.text))
    return palette


def _style_sheet(shades: Colors) -> str:
    """Return what a palette cannot express. Widgets set the property `role`: caption, title, figure, card, banner, …"""
    heading = QApplication.font().pointSizeF() * 1.6  # grows with the text size
    return f"""
    /* Tooltips and labels are text, whatever names people gave their runs: Qt takes what looks like HTML for HTML. */
    QToolTip, QLabel[textFormat="AutoText"] {{ qproperty-textFormat: PlainText; }}
    QToolTip {{ background: {shades.raised}; color: {shades.text}; border: 1px solid {shades.border}; padding: 4px; }}
    QLabel[role="caption"] {{ color: {shades.muted}; }}
    QLabel[role="title"] {{ font-size: {heading:.1f}pt; font-weight: 600; }}
    QLabel[role="figure"] {{ font-size: {heading:.1f}pt; font-weight: 600; }}
    QLabel[role="problem"] {{ color: {shades.bad}; }}
    QFrame[role="card"] {{ background: {shades.surface}; border: 1px solid {shades.border}; border-radius: 6px; }}
    QFrame[role="banner"] {{ background: {shades.raised}; border-left: 4px solid {shades.info}; border-radius: 3px; }}
    QFrame[role="banner"][tone="bad"] {{ border-left-color: {shades.bad}; }}
    QFrame[role="banner"][tone="warning"] {{ border-left-color: {shades.warning}; }}
    QFrame[role="toast"] {{
        background: {shades.raised}; border: 1px solid {shades.border}; border-left: 4px solid {shades.info};
        border-radius: 4px;
    }}
    QFrame[role="toast"][tone="bad"] {{ border-left-color: {shades.bad}; }}
    QPushButton[role="primary"] {{
        background: {shades.accent}; color: {shades.on_accent}; border: 2px solid {shades.accent}; border-radius: 4px;
        padding: 4px 14px;
        font-weight: 600;
    }}
    QPushButton[role="primary"]:disabled {{
        background: {shades.border}; color: {shades.muted}; border-color: {shades.border};
    }}
    QPushButton[role="primary"]:focus {{ border-color: {shades.text}; }}
    QHeaderView::section {{
        background: {shades.raised}; color: {shades.muted}; border: none; border-right: 1px solid {shades.border};
        padding: 4px 6px;
    }}
    QTableView, QTreeView, QListView, QPlainTextEdit, QTextBrowser {{ border: 1px solid {shades.border}; }}
    QTableView {{ gridline-color: {shades.border}; }}
    #runs_table {{ selection-background-color: transparent; }}  /* its delegate marks the chosen rows itself */
    QSplitter::handle {{ background: {shades.border}; }}
    QCheckBox::indicator:unchecked, QRadioButton::indicator:unchecked, QAbstractItemView::indicator:unchecked {{
        border: 1px solid {shades.muted}; background: {shades.surface}; width: 11px; height: 11px; border-radius: 3px;
    }}
    QRadioButton::indicator:unchecked {{ border-radius: 6px; }}
    QCheckBox::indicator:unchecked:focus, QRadioButton::indicator:unchecked:focus {{ border-color: {shades.accent}; }}
    QToolBar {{
        background: {shades.window}; border: none; border-bottom: 1px solid {shades.border}; padding: 4px; spacing: 4px;
    }}
    QToolBar QToolButton {{ border: 1px solid transparent; border-radius: 4px; padding: 4px 10px; }}
    QToolBar QToolButton:hover {{ background: {shades.raised}; }}
    QToolBar QToolButton:focus {{ border-color: {shades.accent}; }}
    QToolBar QToolButton:checked {{ background: {shades.raised}; border-color: {shades.border}; font-weight: 600; }}
    QStatusBar {{ background: {shades.raised}; }}
    QStatusBar::item {{ border: none; }}
    """


ZOOM_STEPS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6, 1.8, 2.0)


class Appearance(QObject):
    """Applies the theme and the text size, and changes them on request."""

    changed = Signal()

    def __init__(
        self, application: QApplication, *, choice: ThemeChoice | None = None, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._application = application
        self._default_points = application.font().pointSizeF()
        settings = stored("appearance")
        self.choice = choice or _choice_from(settings.value("theme"))
        self.zoom = _zoom_from(settings.value("zoom"))
        self._apply()
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._system_changed)

    def choose(self, choice: ThemeChoice) -> None:
        self.choice = choice
        stored("appearance").setValue("theme", choice.value)
        self._apply()

    def zoom_in(self) -> None:
        self._zoom_to(min((step for step in ZOOM_STEPS if step > self.zoom), default=ZOOM_STEPS[-1]))

    def zoom_out(self) -> None:
        self._zoom_to(max((step for step in ZOOM_STEPS if step < self.zoom), default=ZOOM_STEPS[0]))

    def reset_zoom(self) -> None:
        self._zoom_to(1.0)

    def _zoom_to(self, zoom: float) -> None:
        if zoom != self.zoom:
            self.zoom = zoom
            stored("appearance").setValue("zoom", zoom)
            self._apply()

    def _apply(self) -> None:
        font = self._application.font()
        if font.pointSizeF() != self._default_points * self.zoom:
            font.setPointSizeF(self._default_points * self.zoom)
            self._application.setFont(font)
        apply(self._application, self.choice)
        self.changed.emit()

    def _system_changed(self) -> None:
        if self.choice is ThemeChoice.SYSTEM:
            self._apply()


def _choice_from(value: object) -> ThemeChoice:
    return ThemeChoice(value) if value in [choice.value for choice in ThemeChoice] else ThemeChoice.SYSTEM


def _zoom_from(value: object) -> float:
    """Return a valid zoom: the settings file may have been edited by hand."""
    try:
        zoom = float(str(value))
    except ValueError:
        return 1.0
    return min(ZOOM_STEPS, key=lambda step: abs(step - zoom)) if 0 < zoom < 10 else 1.0


_TILES = (0, 5, 2, 4, 1, 0, 2, 3, 6)
"""Color of each tile of the icon, row by row"""


def application_icon() -> QIcon:
    icon = QIcon()
    for side in (16, 32, 64, 128):
        icon.addPixmap(_draw(side))
    return icon


def _draw(side: int) -> QPixmap:
    pixmap = QPixmap(side, side)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    gap = side / 16
    stone = (side - 4 * gap) / 3
    for number, color in enumerate(_TILES):
        row, column = divmod(number, 3)
        painter.setBrush(QColor(LIGHT.series[color]))
        place = QRectF(gap + column * (stone + gap), gap + row * (stone + gap), stone, stone)
        painter.drawRoundedRect(place, stone / 6, stone / 6)
    painter.end()
    return pixmap
