"""Where a run comes from and what came of it: a line for each, with a button that goes there."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from gym_gui.ui.presenters.run_lineage import Kinship, Relative
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

_MOST = 20


class LineageView(QWidget):
    """Parent first, then children in their order."""

    run_wanted = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("lineage")
        self._shown: object = None
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(2)

    def show_family(self, origin: tuple[str, Kinship, int] | None, children: Sequence[Relative]) -> None:
        """The run this one came from (id, how, at which step) and those that came from it."""
        if (wanted := (origin, tuple(children))) == self._shown:
            return
        self._shown = wanted
        while (item := self._layout.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.deleteLater()
        if origin is not None:
            run_id, kinship, step = origin
            words = self.tr("Evaluates") if kinship is Kinship.EVALUATES else self.tr("Continues")
            note = self.tr("from step {step}").format(step=formats.count(step)) if step else ""
            self._add(words, run_id, "", note)
        for relative in children[:_MOST]:
            words = self.tr("Evaluated by") if relative.kinship is Kinship.EVALUATES else self.tr("Continued by")
            self._add(words, relative.run_id, relative.title, relative.state)
        if len(children) > _MOST:
            self._layout.addWidget(QLabel(self.tr("… and {count} more").format(count=len(children) - _MOST)))

    def _add(self, words: str, run_id: str, title: str, note: str) -> None:
        line = QWidget()
        row = QHBoxLayout(line)
        row.setContentsMargins(0, 0, 0, 0)
        caption = QLabel(words)
        caption.setProperty("role", "caption")
        caption.setMinimumWidth(self.fontMetrics().averageCharWidth() * 14)
        button = QPushButton(f"{title} · {short_id(run_id)}" if title else short_id(run_id))
        button.setObjectName(f"relative_{run_id}")
        button.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        button.setAccessibleName(self.tr("{words} run {run}: open it").format(words=words, run=run_id))
        button.setToolTip(run_id)
        button.clicked.connect(lambda: self.run_wanted.emit(run_id))
        about = QLabel(note)
        about.setProperty("role", "caption")
        for widget in (caption, button, about):
            row.addWidget(widget)
        row.addStretch(1)
        self._layout.addWidget(line)
