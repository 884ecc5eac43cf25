"""How the window looks: theme and size of its letters, kept between sessions."""

from __future__ import annotations

from PySide6.QtCore import QObject, QSettings, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from gym_gui.ui import theme
from gym_gui.ui.theme import ThemeChoice

ZOOM_STEPS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6, 1.8, 2.0)


class Appearance(QObject):
    """Dresses the application and changes its dress on request."""

    changed = Signal()

    def __init__(
        self, application: QApplication, *, choice: ThemeChoice | None = None, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._application = application
        self._usual_points = application.font().pointSizeF()
        settings = _settings()
        self.choice = choice or _choice_from(settings.value("theme"))
        self.zoom = _zoom_from(settings.value("zoom"))
        self._apply()
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._system_changed)

    def choose(self, choice: ThemeChoice) -> None:
        self.choice = choice
        _settings().setValue("theme", choice.value)
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
            _settings().setValue("zoom", zoom)
            self._apply()

    def _apply(self) -> None:
        font = self._application.font()
        if font.pointSizeF() != self._usual_points * self.zoom:
            font.setPointSizeF(self._usual_points * self.zoom)
            self._application.setFont(font)
        theme.apply(self._application, self.choice)
        self.changed.emit()

    def _system_changed(self) -> None:
        if self.choice is ThemeChoice.SYSTEM:
            self._apply()


def _settings() -> QSettings:
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup("appearance")
    return settings


def _choice_from(value: object) -> ThemeChoice:
    return ThemeChoice(value) if value in [choice.value for choice in ThemeChoice] else ThemeChoice.SYSTEM


def _zoom_from(value: object) -> float:
    """A file of settings can be edited by hand: what is no size of ours is none."""
    try:
        zoom = float(str(value))
    except ValueError:
        return 1.0
    return min(ZOOM_STEPS, key=lambda step: abs(step - zoom)) if 0 < zoom < 10 else 1.0
