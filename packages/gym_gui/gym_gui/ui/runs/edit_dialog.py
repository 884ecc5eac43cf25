"""Name, tags and notes of a run; of several runs, tags to add and to remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QStringListModel, Qt, Signal
from PySide6.QtWidgets import (
    QCompleter,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.widgets.parts import fill, named, styled
from gym_gui.wording.run_view import short_id, title_of

_LONGEST_NAME, _LONGEST_TAG, _LONGEST_NOTE = 200, 64, 65_536


@dataclass(frozen=True)
class Change:
    """Requested changes; None and () mean unchanged."""

    name: str | None = None
    notes: str | None = None
    add_tags: tuple[str, ...] = ()
    remove_tags: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return self == Change()

    def apply(self, client: TrainerClient, run_id: str) -> pb.Run:
        return client.update(
            run_id, name=self.name, notes=self.notes, add_tags=self.add_tags, remove_tags=self.remove_tags
        )


def tags_in(text: str) -> tuple[str, ...]:
    """Return the distinct tags of `baseline, long run`."""
    return tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))


def change_of(run: pb.Run, name: str, tags: str, notes: str) -> Change:
    """Return what differs from the run's current values."""
    requested = tags_in(tags)
    return Change(
        name=name.strip() if name.strip() != run.name else None,
        notes=notes if notes != run.notes else None,
        add_tags=tuple(tag for tag in requested if tag not in run.tags),
        remove_tags=tuple(tag for tag in run.tags if tag not in requested),
    )


class EditDialog(QDialog):
    """Edits and validates; not modal. Emits the change."""

    changed = Signal(object)  # Change

    def __init__(self, runs: Sequence[pb.Run], known_tags: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("edit_run_dialog")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._runs = list(runs)
        self._is_single = len(self._runs) == 1
        run = self._runs[0]
        self.setWindowTitle(self.tr("Name, tags and notes") if self._is_single else self.tr("Tags"))
        title = (
            f"{title_of(run)} · {short_id(run.run_id)}" if self._is_single else self.tr("{0} runs").format(len(runs))
        )
        heading = styled(QLabel(title), "caption")
        form = QFormLayout()
        self.name = self._line("run_name", self.tr("Name"), run.name if self._is_single else "")
        self.name.setMaxLength(_LONGEST_NAME)
        self.tags = self._line("run_tags", self.tr("Tags"), ", ".join(run.tags) if self._is_single else "")
        self.tags.setPlaceholderText(self.tr("separated by commas: baseline, paper"))
        self.removed = self._line("run_tags_removed", self.tr("Tags to remove"), "")
        self.removed.setPlaceholderText(self.tr("separated by commas"))
        for field in (self.tags, self.removed):
            _complete(field, known_tags)
        self.notes = named(QPlainTextEdit(run.notes if self._is_single else ""), "run_notes", self.tr("Notes"))
        self.notes.setTabChangesFocus(True)
        if self._is_single:
            form.addRow(self.tr("&Name"), self.name)
            form.addRow(self.tr("&Tags"), self.tags)
            form.addRow(self.tr("N&otes"), self.notes)
            self.removed.hide()
        else:
            form.addRow(self.tr("&Add tags"), self.tags)
            form.addRow(self.tr("&Remove tags"), self.removed)
            self.name.hide()
            self.notes.hide()
        self.problem = styled(QLabel(wordWrap=True), "problem")
        self.problem.hide()
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Save | QDialogButtonBox.StandardButton.Cancel)
        buttons.accepted.connect(self._save)
        buttons.rejected.connect(self.reject)
        fill(QVBoxLayout(self), heading, form, self.problem, buttons)
        self.setMinimumWidth(self.fontMetrics().averageCharWidth() * 60)

    def _line(self, name: str, accessible: str, text: str) -> QLineEdit:
        return named(QLineEdit(text, self), name, accessible)

    def change(self) -> Change:
        """Return the change that the fields describe."""
        if self._is_single:
            return change_of(self._runs[0], self.name.text(), self.tags.text(), self.notes.toPlainText())
        return Change(add_tags=tags_in(self.tags.text()), remove_tags=tags_in(self.removed.text()))

    def _save(self) -> None:
        change = self.change()
        if text := self._problem_with(change):
            self.problem.setText(text)
            self.problem.show()
            return
        if not change.is_nothing:
            self.changed.emit(change)
        self.accept()

    def _problem_with(self, change: Change) -> str:
        if change.name == "":
            return self.tr("A run needs a name.")
        if long := next((tag for tag in change.add_tags if len(tag) > _LONGEST_TAG), ""):
            return self.tr("“{0}…” is too long for a tag: {1} characters at most.").format(long[:20], _LONGEST_TAG)
        if change.notes is not None and len(change.notes) > _LONGEST_NOTE:
            return self.tr("The note is too long: {0} characters at most.").format(f"{_LONGEST_NOTE:,}")
        return ""


def _complete(field: QLineEdit, known: Sequence[str]) -> None:
    """Complete the last tag of a list; the preceding ones stay."""
    completer = QCompleter(QStringListModel(list(known), field), field)
    completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
    completer.setWidget(field)

    def offer(text: str) -> None:
        tag = text.rpartition(",")[2].strip()
        completer.setCompletionPrefix(tag)
        if tag and completer.completionCount():
            completer.complete()
        elif (popup := completer.popup()) is not None:
            popup.hide()

    def insert_tag(tag: str) -> None:
        before, comma, _ = field.text().rpartition(",")
        field.setText(f"{before}{comma}{' ' if comma else ''}{tag}")

    field.textEdited.connect(offer)
    completer.activated.connect(insert_tag)
