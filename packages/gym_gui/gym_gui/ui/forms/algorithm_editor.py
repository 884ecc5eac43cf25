"""Choosing an algorithm: typed or picked, those that fit the environment first and alone, unless all are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from mosaic_wire.worker_spec import AlgorithmSpec
from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QCheckBox, QComboBox, QCompleter, QLabel, QVBoxLayout, QWidget

from gym_gui.ui.forms.editors import ComboBox, Editor


class AlgorithmEditor(Editor):
    """A searchable list; `value()` is the name."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._all: tuple[AlgorithmSpec, ...] = ()
        self._fitting: tuple[AlgorithmSpec, ...] = ()
        self.widget = QWidget()
        self.combo = ComboBox()
        self.combo.setObjectName("algo_choice")
        self.combo.setAccessibleName(self.tr("Algorithm"))
        self.combo.setEditable(True)
        self.combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.combo.setMaxVisibleItems(20)
        self._model = QStandardItemModel(self.combo)
        self.combo.setModel(self._model)
        completer = QCompleter(self._model, self.combo)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        completer.setCompletionMode(QCompleter.CompletionMode.PopupCompletion)
        self.combo.setCompleter(completer)
        self.show_all = QCheckBox(self.tr("Show all algorithms"))
        self.show_all.setObjectName("algo_show_all")
        self.show_all.setToolTip(self.tr("Also those that do not fit the environment"))
        self.show_all.setAccessibleName(self.show_all.text())
        self._about = QLabel()
        self._about.setObjectName("algo_about")
        self._about.setProperty("role", "caption")
        self._about.setWordWrap(True)
        layout = QVBoxLayout(self.widget)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        for part in (self.combo, self._about, self.show_all):
            layout.addWidget(part)
        self.widget.setFocusProxy(self.combo)
        self.combo.currentTextChanged.connect(self._on_text)
        self.show_all.toggled.connect(lambda: self._fill())

    def set_algorithms(self, known: Sequence[AlgorithmSpec], fitting: Sequence[AlgorithmSpec]) -> None:
        """All of the worker's, and those among them that fit the environment; what is chosen stays chosen."""
        if (tuple(known), tuple(fitting)) == (self._all, self._fitting):
            return
        self._all, self._fitting = tuple(known), tuple(fitting)
        self.show_all.setVisible(len(self._fitting) < len(self._all))
        self._fill()

    def algorithm(self) -> AlgorithmSpec | None:
        """What is chosen, when there is such a thing."""
        name = self.combo.currentText().strip()
        return next((known for known in self._all if known.name == name), None)

    def value(self) -> str:
        text = self.combo.currentText().strip()
        if not text:
            raise ValueError(self.tr("choose an algorithm"))
        return text

    def set_value(self, value: object) -> None:
        text = str(value or "")
        if text != self.combo.currentText():
            place = self.combo.findText(text, Qt.MatchFlag.MatchExactly)
            if place >= 0:
                self.combo.setCurrentIndex(place)
            else:
                self.combo.setEditText(text)

    def _fill(self) -> None:
        chosen = self.combo.currentText()
        shown = self._all if self.show_all.isChecked() else self._fitting
        self.combo.blockSignals(True)
        self._model.clear()
        for known in sorted(shown, key=lambda algorithm: bool(algorithm.unavailable)):
            item = QStandardItem(known.name)
            item.setToolTip(known.unavailable or known.help)
            if known.unavailable:
                item.setFlags(item.flags() & ~Qt.ItemFlag.ItemIsEnabled)
            self._model.appendRow(item)
        place = self.combo.findText(chosen, Qt.MatchFlag.MatchExactly)
        self.combo.setCurrentIndex(place)
        if place < 0:
            self.combo.setEditText(chosen)
        self.combo.blockSignals(False)
        self._describe()

    def _on_text(self) -> None:
        self._describe()
        self.changed.emit()

    def _describe(self) -> None:
        known = self.algorithm()
        if known is None:
            words = self.tr("Algorithms that fit this environment: {count}")
            self._about.setText(words.format(count=len(self._fitting)))
            return
        spaces = " · ".join(
            filter(None, (known.help, ", ".join(known.action_spaces), ", ".join(known.observation_spaces)))
        )
        self._about.setText(spaces)
