"""Choose an environment by family or id; show its spaces and an image of it."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QCoreApplication, QObject, QSize, Qt, Signal
from PySide6.QtGui import QImage, QPixmap
from PySide6.QtWidgets import QComboBox, QCompleter, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gym_gui.ui.forms.editors import ComboBox, Editor
from gym_gui.ui.widgets.parts import fill, named, timer
from gym_gui.ui.workers.environments import FAMILIES, EnvironmentPreview, family_of
from gym_gui.ui.workers.translation import PRESENTERS

_PAUSE_MS = 400
"""Delay before the preview of a typed id"""
_LINE = 44


class EnvironmentEditor(Editor):
    """`value()` is the id. The owner answers `preview_requested` with `show_preview`."""

    preview_requested = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._environments: dict[str, tuple[str, ...]] = {}
        self.preview = EnvironmentPreview("")
        self.widget = QWidget()
        self.family = named(ComboBox(), "env_family", self.tr("Family of environments"))
        self.combo = named(ComboBox(), "env_choice", self.tr("Environment"))
        self.combo.setEditable(True)
        self.combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.combo.setMaxVisibleItems(20)
        self._spaces = named(QLabel(), "env_spaces", role="caption")
        self._spaces.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._image = named(QLabel(), "env_frame", self.tr("Frames of the environment"))
        self._image.hide()
        self.widget.setFocusProxy(self.combo)
        layout = fill(QVBoxLayout(self.widget), self.family, self.combo, margins=0, spacing=3)
        below = QHBoxLayout()
        below.setSpacing(8)
        below.addWidget(self._image, 0, Qt.AlignmentFlag.AlignTop)
        below.addWidget(self._spaces, 1, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(below)
        self._pause = timer(self, self._ask, _PAUSE_MS, single_shot=True)
        self.family.currentIndexChanged.connect(self._choose_family)
        self.combo.currentTextChanged.connect(self._on_text)

    def set_environments(self, environments: Mapping[str, tuple[str, ...]]) -> None:
        """Set the ids by family title; keep the selection."""
        self._environments = dict(environments)
        chosen = self.combo.currentText()
        self.family.blockSignals(True)
        self.family.clear()
        self.family.addItem(self.tr("All families"), "")
        for title in self._environments:
            self.family.addItem(QCoreApplication.translate(PRESENTERS, title), title)
        self.family.blockSignals(False)
        self._fill(chosen)
        self._follow_family()

    def value(self) -> str:
        text = self.combo.currentText().strip()
        if not text:
            raise ValueError(self.tr("choose an environment, or type its id"))
        return text

    def set_value(self, value: object) -> None:
        text = str(value or "")
        if text != self.combo.currentText():
            self.combo.setEditText(text)
            self._follow_family()

    def show_preview(self, preview: EnvironmentPreview) -> None:
        """Show the preview of an id; ignore an outdated one."""
        if preview.env_id != self.combo.currentText().strip():
            return
        self.preview = preview
        if preview.action_text:
            lines = [
                self.tr("Actions: {space}").format(space=preview.action_text),
                self.tr("Observations: {space}").format(space=preview.observation_text),
            ]
        else:
            lines = self._guess(preview)
        # Not wrapped: forms clip labels of changing height. The tool tip has the whole text.
        self._spaces.setText("\n".join(line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in lines))
        self._spaces.setToolTip("\n".join(lines))
        if preview.pixels:
            stride = 3 * preview.width
            image = QImage(preview.pixels, preview.width, preview.height, stride, QImage.Format.Format_RGB888)
            side = self._image.fontMetrics().height() * 5
            self._image.setPixmap(
                QPixmap.fromImage(image).scaled(
                    QSize(round(side * 1.6), side),
                    Qt.AspectRatioMode.KeepAspectRatio,
                    Qt.TransformationMode.SmoothTransformation,
                )
            )
        self._image.setVisible(bool(preview.pixels))

    def _guess(self, preview: EnvironmentPreview) -> list[str]:
        """Describe the family if the environment cannot be constructed here."""
        family = family_of(preview.env_id)
        lines = []
        if family.actions and family.observations:
            lines.append(
                self.tr("Actions: {actions}, observations: {observations}").format(
                    actions=family.actions, observations=family.observations
                )
            )
        if family.requirement_set:
            lines.append(self.tr("Needs the requirement set {name}.").format(name=family.requirement_set))
        if not lines and preview.problem:
            lines.append(self.tr("It cannot be previewed: {why}").format(why=preview.problem))
        return lines or [self.tr("Its spaces are not known.")]

    @property
    def is_known(self) -> bool:
        """Return whether the environment was inspected; else only its family is known."""
        return self.preview.env_id == self.combo.currentText().strip() and bool(self.preview.actions)

    @property
    def actions(self) -> str:
        """Return discrete, continuous …; empty if unknown."""
        return self._known()[0]

    @property
    def observations(self) -> str:
        return self._known()[1]

    def _known(self) -> tuple[str, str]:
        chosen = self.combo.currentText().strip()
        if self.preview.env_id == chosen and self.preview.actions:
            # Other observations (a dict, a number) are converted to one of these before an algorithm sees them.
            seen = self.preview.observations
            return self.preview.actions, seen if seen in ("vector", "image") else ""
        family = family_of(chosen)
        return family.actions, family.observations

    def _fill(self, chosen: str) -> None:
        title = self.family.currentData() or ""
        ids = self._environments.get(title) if title else None
        shown = ids if ids is not None else [env_id for group in self._environments.values() for env_id in group]
        self.combo.blockSignals(True)
        self.combo.clear()
        self.combo.addItems(list(shown))
        completer = QCompleter(self.combo.model(), self.combo)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.combo.setCompleter(completer)
        self.combo.setCurrentIndex(self.combo.findText(chosen, Qt.MatchFlag.MatchExactly))
        self.combo.setEditText(chosen)
        self.combo.blockSignals(False)

    def _choose_family(self) -> None:
        """Select the first environment of the new family, unless the current one belongs to it."""
        title = self.family.currentData() or ""
        ids = self._environments.get(title, ())
        chosen = self.combo.currentText()
        self._fill(chosen if not ids or chosen in ids else ids[0])
        if self.combo.currentText() != chosen:
            self._on_text()

    def _follow_family(self) -> None:
        family = family_of(self.combo.currentText())
        place = self.family.findData(family.title) if family in FAMILIES else 0
        if place > 0 and place != self.family.currentIndex():
            self.family.blockSignals(True)
            self.family.setCurrentIndex(place)
            self.family.blockSignals(False)
            self._fill(self.combo.currentText())

    def _on_text(self) -> None:
        self._spaces.setText(self.tr("Loading the preview …") if self.combo.currentText().strip() else "")
        self._image.hide()
        self._pause.start()
        self.changed.emit()

    def _ask(self) -> None:
        if chosen := self.combo.currentText().strip():
            self.preview_requested.emit(chosen)
