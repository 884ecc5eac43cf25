"""Choosing an environment: by family or by typing, with its spaces and a picture of it."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QCoreApplication, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QImage, QPixmap
from PySide6.QtWidgets import QComboBox, QCompleter, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gym_gui.ui.forms.editors import ComboBox, Editor
from gym_gui.ui.workers.environment_families import FAMILIES, family_of
from gym_gui.ui.workers.environment_look import EnvironmentLook
from gym_gui.ui.workers.words import PRESENTERS

_PAUSE_MS = 400
"""Nobody is asked about an id while it is still being typed"""
_LINE = 44


class EnvironmentEditor(Editor):
    """`value()` is the id. Whoever holds the editor answers `look_wanted` with `show_look`."""

    look_wanted = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._environments: dict[str, tuple[str, ...]] = {}
        self.look = EnvironmentLook("")
        self.widget = QWidget()
        self.family = ComboBox()
        self.family.setObjectName("env_family")
        self.family.setAccessibleName(self.tr("Family of environments"))
        self.combo = ComboBox()
        self.combo.setObjectName("env_choice")
        self.combo.setAccessibleName(self.tr("Environment"))
        self.combo.setEditable(True)
        self.combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.combo.setMaxVisibleItems(20)
        self._spaces = QLabel()
        self._spaces.setObjectName("env_spaces")
        self._spaces.setProperty("role", "caption")
        self._spaces.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._picture = QLabel()
        self._picture.setObjectName("env_picture")
        self._picture.setAccessibleName(self.tr("Picture of the environment"))
        self._picture.hide()
        self.widget.setFocusProxy(self.combo)
        layout = QVBoxLayout(self.widget)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(3)
        layout.addWidget(self.family)
        layout.addWidget(self.combo)
        below = QHBoxLayout()
        below.setSpacing(8)
        below.addWidget(self._picture, 0, Qt.AlignmentFlag.AlignTop)
        below.addWidget(self._spaces, 1, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(below)
        self._pause = QTimer(self)
        self._pause.setSingleShot(True)
        self._pause.setInterval(_PAUSE_MS)
        self._pause.timeout.connect(self._ask)
        self.family.currentIndexChanged.connect(self._choose_family)
        self.combo.currentTextChanged.connect(self._on_text)

    def set_environments(self, environments: Mapping[str, tuple[str, ...]]) -> None:
        """Ids by the title of their family; what is chosen stays chosen."""
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

    def show_look(self, look: EnvironmentLook) -> None:
        """What was found out about an id; an answer that came too late is passed over."""
        if look.env_id != self.combo.currentText().strip():
            return
        self.look = look
        if look.action_text:
            lines = [
                self.tr("Actions: {space}").format(space=look.action_text),
                self.tr("Observations: {space}").format(space=look.observation_text),
            ]
        else:
            lines = self._guess(look)
        # Not wrapped: a label of changing height is cut in a form. What is too long is in the tooltip.
        self._spaces.setText("\n".join(line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in lines))
        self._spaces.setToolTip("\n".join(lines))
        if look.picture:
            stride = 3 * look.width
            image = QImage(look.picture, look.width, look.height, stride, QImage.Format.Format_RGB888)
            side = self._picture.fontMetrics().height() * 5
            self._picture.setPixmap(
                QPixmap.fromImage(image).scaled(
                    QSize(round(side * 1.6), side),
                    Qt.AspectRatioMode.KeepAspectRatio,
                    Qt.TransformationMode.SmoothTransformation,
                )
            )
        self._picture.setVisible(bool(look.picture))

    def _guess(self, look: EnvironmentLook) -> list[str]:
        """What is known of the family, when the environment itself cannot be made here."""
        family = family_of(look.env_id)
        lines = []
        if family.actions and family.observations:
            lines.append(
                self.tr("Actions: {actions}, observations: {observations}").format(
                    actions=family.actions, observations=family.observations
                )
            )
        if family.requirement_set:
            lines.append(self.tr("Needs the requirement set {name}.").format(name=family.requirement_set))
        if not lines and look.problem:
            lines.append(self.tr("It cannot be looked at: {why}").format(why=look.problem))
        return lines or [self.tr("Its spaces are not known.")]

    @property
    def is_known(self) -> bool:
        """Whether the environment itself was asked; else only its family tells."""
        return self.look.env_id == self.combo.currentText().strip() and bool(self.look.actions)

    @property
    def actions(self) -> str:
        """discrete, continuous …; empty when not even the family tells."""
        return self._known()[0]

    @property
    def observations(self) -> str:
        return self._known()[1]

    def _known(self) -> tuple[str, str]:
        chosen = self.combo.currentText().strip()
        if self.look.env_id == chosen and self.look.actions:
            # Other observations (a dict, a number) are made into one of these before an algorithm sees them.
            seen = self.look.observations
            return self.look.actions, seen if seen in ("vector", "image") else ""
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
        """Another family: its first environment, unless the chosen one belongs to it."""
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
        self._spaces.setText(self.tr("Looking at it …") if self.combo.currentText().strip() else "")
        self._picture.hide()
        self._pause.start()
        self.changed.emit()

    def _ask(self) -> None:
        if chosen := self.combo.currentText().strip():
            self.look_wanted.emit(chosen)
