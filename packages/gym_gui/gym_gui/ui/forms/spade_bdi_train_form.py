"""The form of the Spade BDI worker: any worker's training form, and the behaviour's source to read and edit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import (
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.forms.train_form import TrainForm
from gym_gui.ui.widgets.parts import caption, fill, named, push_button
from gym_gui.validations.worker_questions import ask_worker


class BehaviourEditor(QWidget):
    """The AgentSpeak of a behaviour, one agent at a time. What comes along is read-only: a copy of it is edited."""

    check_requested = Signal()
    copy_requested = Signal(object)  # the folder

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("behaviour_editor")
        self._paths: dict[str, Path] = {}
        self._texts: dict[str, str] = {}
        self._read_texts: dict[str, str] = {}
        """As they were read: what differs was typed here"""
        self._is_own = False
        self.agents = named(QComboBox(), "behaviour_agent", self.tr("Agent"))
        self.agents.currentTextChanged.connect(self._show_agent)
        self.text = named(QPlainTextEdit(), "behaviour_text", self.tr("AgentSpeak of the agent"))
        self.text.setFont(theme.monospace())
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setTabChangesFocus(True)
        self.text.setMinimumHeight(self.fontMetrics().lineSpacing() * 14)
        self.text.textChanged.connect(self._keep_text)
        self.copy_button = push_button("behaviour_copy", self.tr("Edit a copy …"), self._choose_folder)
        self.save_button = push_button("behaviour_save", self.tr("Save"), self.save)
        self.reload_button = push_button("behaviour_reload", self.tr("Reload"), self.check_requested)
        self.check_button = push_button("behaviour_check", self.tr("Check"), self._save_and_check)
        self.problems = named(QListWidget(), "behaviour_problems", self.tr("What is wrong with the behaviour"))
        self.problems.setWordWrap(True)
        self.problems.setMaximumHeight(self.fontMetrics().lineSpacing() * 5)
        self.problems.itemActivated.connect(self._go_to)
        self.problems.itemClicked.connect(self._go_to)
        self.status = caption("behaviour_status", wraps=True)
        tools = (self.copy_button, self.reload_button, self.save_button, self.check_button)
        buttons = fill(QHBoxLayout(), self.agents, 1, *tools)
        fill(QVBoxLayout(self), buttons, self.text, self.problems, self.status, margins=(8, 2, 0, 6), spacing=4)
        self.show_sources({}, is_own=False)

    # ------------------------------------------------------------------ sources

    @property
    def is_changed(self) -> bool:
        """Return whether something is not saved."""
        return self._is_own and self._texts != self._read_texts

    def show_sources(self, sources: Mapping[str, Mapping[str, str]], *, is_own: bool) -> None:
        """Show the sources of a behaviour: by agent its path and its text."""
        before = self.agents.currentText()
        self._paths = {name: Path(source["path"]) for name, source in sources.items()}
        self._texts = {name: source["text"] for name, source in sources.items()}
        self._read_texts = dict(self._texts)
        self._is_own = is_own
        self.agents.blockSignals(True)
        self.agents.clear()
        self.agents.addItems(list(sources))
        self.agents.setCurrentText(before)
        self.agents.blockSignals(False)
        self.agents.setVisible(len(sources) > 1)
        self.text.setReadOnly(not is_own)
        self.copy_button.setEnabled(bool(sources))
        self.reload_button.hide()
        self.save_button.setVisible(is_own)
        self._show_agent(self.agents.currentText())

    def show_problems(self, problems: list[str], status: str = "") -> None:
        """Show what is wrong, one line each; a click goes to its place."""
        self.problems.clear()
        self.problems.addItems(problems)
        self.problems.setVisible(bool(problems))
        self.status.setText(status)

    def save(self) -> bool:
        """Write what was typed here; return whether that succeeded. What another program has written is kept."""
        if not self.is_changed:
            return True
        typed = [name for name, text in self._texts.items() if text != self._read_texts[name]]
        if foreign := [name for name in typed if _read(self._paths[name]) != self._read_texts[name]]:
            files = ", ".join(self._paths[name].name for name in foreign)
            text = self.tr("Not saved: {files} changed on disk since it was read. Reload it, or edit a copy of yours.")
            self.show_problems([], text.format(files=files))
            self.reload_button.show()
            return False
        try:
            for name in typed:
                self._paths[name].write_text(self._texts[name], encoding="utf-8")
                self._read_texts[name] = self._texts[name]
        except OSError as error:
            self.show_problems([], self.tr("Not saved: {why}").format(why=error.strerror or error))
            return False
        self.status.setText(self.tr("Saved."))
        return True

    def copy_to(self, folder: Path) -> None:
        """Write the shown sources into a folder, to be edited there; existing files are not replaced."""
        taken = [path.name for path in self._paths.values() if (folder / path.name).exists()]
        if taken:
            text = self.tr("{folder} already has {names}; choose another folder").format(
                folder=folder, names=", ".join(taken)
            )
            self.show_problems([], text)
            return
        try:
            for name, path in self._paths.items():
                (folder / path.name).write_text(self._texts[name], encoding="utf-8")
        except OSError as error:
            self.show_problems([], self.tr("Not copied: {why}").format(why=error.strerror or error))
            return
        files = [folder / path.name for path in self._paths.values()]
        self.copy_requested.emit(files[0] if len(files) == 1 else folder)

    def _choose_folder(self) -> None:
        dialog = named(QFileDialog(self, self.tr("A folder for the copy")), "behaviour_folder")
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(lambda path: self.copy_to(Path(path)))
        dialog.open()

    def _save_and_check(self) -> None:
        if self.save():
            self.check_requested.emit()

    def _show_agent(self, name: str) -> None:
        self.text.blockSignals(True)
        self.text.setPlainText(self._texts.get(name, ""))
        self.text.blockSignals(False)

    def _keep_text(self) -> None:
        if (name := self.agents.currentText()) in self._texts:
            self._texts[name] = self.text.toPlainText()

    def _go_to(self, item: QListWidgetItem) -> None:
        """Move the cursor to `file:line:column` at the beginning of a problem."""
        file, *numbers = item.text().split(":")[:3]
        name = next((name for name, path in self._paths.items() if path.name == Path(file).name), "")
        if not name or not all(number.strip().isdigit() for number in numbers):
            return
        self.agents.setCurrentText(name)
        line, column = (*map(int, numbers), 1, 1)[:2]
        block = self.text.document().findBlockByNumber(line - 1)
        cursor = QTextCursor(block)
        cursor.movePosition(QTextCursor.MoveOperation.Right, n=min(column - 1, max(0, block.length() - 1)))
        self.text.setTextCursor(cursor)
        self.text.setFocus()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


class SpadeBdiTrainForm(TrainForm):
    """Behaviour, engine and account, environment and learning parameters."""

    KIND = "spade_bdi_train"
    _shown: tuple[str, str] | None = None

    def _fill_analytics(self, column: QVBoxLayout) -> None:
        self.behaviour = BehaviourEditor(self)
        self.behaviour.check_requested.connect(self._ask_for_sources)
        self.behaviour.copy_requested.connect(lambda path: self._set_path(path))
        column.addWidget(self._section(self.tr("Behaviour"), "section_behaviour", self.behaviour))
        super()._fill_analytics(column)

    def _set_path(self, path: Path) -> None:
        if (row := self.parameters.row("behaviour_path")) is not None:
            row.set_value(str(path))
            row.changed.emit()

    def _chosen(self) -> tuple[str, str]:
        values = self.request().parameters
        return str(values.get("behaviour", "")), str(values.get("behaviour_path", ""))

    def refresh(self) -> None:
        super().refresh()
        if self._chosen() != self._shown:
            self._ask_for_sources()

    def _ask_for_sources(self) -> None:
        """Ask the worker for the sources of the chosen behaviour and what is wrong with them."""
        self._shown = chosen = self._chosen()
        (config, *_), spec, home = self.configs(), self.link.startable(self.spec), self.program_home

        def show(answer: tuple[bool, str]) -> None:
            if chosen == self._chosen():
                self._show_answer(*answer, is_own=bool(chosen[1]))

        self.behaviour.status.setText(self.tr("Checking …"))
        self.background.run(lambda: ask_worker(spec, config, "--sources", home=home), owner=self, done=show)

    def _show_answer(self, succeeded: bool, text: str, *, is_own: bool) -> None:
        answer = _parsed(text) if succeeded else {}
        if "agents" not in answer:
            self.behaviour.show_sources({}, is_own=False)
            self.behaviour.show_problems([], text)
            return
        self.behaviour.show_sources(answer["agents"], is_own=is_own)
        problems = list(map(str, answer["problems"]))
        status = str(answer.get("note") or "") or ("" if problems else self.tr("Nothing is wrong with it."))
        self.behaviour.show_problems(problems, status)

    def check(self) -> bool:
        return self.behaviour.save() and super().check()


def _parsed(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
