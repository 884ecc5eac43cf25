"""The form of the LLM worker: any worker's training form, the endpoint to try out, and the prompt to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.forms.train_form import TrainForm
from gym_gui.ui.widgets.parts import caption, fill, named, push_button
from gym_gui.ui.workers.translation import PRESENTERS, marked
from gym_gui.validations.worker_questions import ask_worker
from gym_gui.wording import formats

ENDPOINTS: dict[str, dict[str, Any]] = {
    marked("SmolLM2 on this machine, offline"): {"model": "smollm2", "base_url": "", "api": "openai"},
    marked("llama.cpp server"): {"model": "", "base_url": "http://127.0.0.1:8080/v1", "api": "openai"},
    marked("Ollama"): {"model": "", "base_url": "http://127.0.0.1:11434/v1", "api": "openai"},
    marked("vLLM"): {"model": "", "base_url": "http://127.0.0.1:8000/v1", "api": "openai"},
    marked("LM Studio"): {"model": "", "base_url": "http://127.0.0.1:1234/v1", "api": "openai"},
    marked("OpenAI"): {"model": "", "base_url": "https://api.openai.com/v1", "api": "openai"},
    marked("Anthropic"): {"model": "", "base_url": "", "api": "anthropic"},
}
"""Where models are usually served; the fields of the form may differ from all of them"""


class LlmTrainForm(TrainForm):
    """Endpoint and model, prompt, budgets, environment."""

    KIND = "llm_train"
    _asked_address: Any = None
    """The base URL that the models and the status are of"""

    def _fill_analytics(self, column: QVBoxLayout) -> None:
        column.addWidget(self._section(self.tr("Endpoint"), "section_endpoint", self._endpoint()))
        column.addWidget(self._section(self.tr("Prompt"), "section_prompt", self._prompt(), is_open=False))
        super()._fill_analytics(column)

    def _endpoint(self) -> QWidget:
        self.preset = named(QComboBox(), "endpoint_preset", self.tr("Usual endpoints"))
        self.preset.addItem(self.tr("Choose an endpoint …"))
        for title, values in ENDPOINTS.items():
            self.preset.addItem(QCoreApplication.translate(PRESENTERS, title), values)
        self.preset.activated.connect(lambda _: self._use(self.preset.currentData()))
        self.models_button = push_button("endpoint_models", self.tr("List its models"), self.list_models)
        self.models = named(QComboBox(), "endpoint_model", self.tr("Models of the endpoint"))
        self.models.activated.connect(lambda _: self._use({"model": self.models.currentText()}))
        self.models.hide()
        self.test_button = push_button("endpoint_test", self.tr("Test"), self.test, self.tr("Test the endpoint"))
        self.endpoint_status = caption("endpoint_status", wraps=True)
        buttons = fill(QHBoxLayout(), self.models_button, self.test_button, 1)
        part = QWidget(self)
        rows = (self.preset, buttons, self.models, self.endpoint_status)
        fill(QVBoxLayout(part), *rows, margins=(8, 2, 0, 6), spacing=4)
        self.parameters.changed.connect(self._forget_models)
        return part

    def _forget_models(self) -> None:
        """Hide the models and the answer of an endpoint that is no longer the chosen one."""
        row = self.parameters.row("base_url")
        if row is not None and row.value() != self._asked_address:
            self._asked_address = row.value()
            self.models.clear()
            self.models.hide()
            self.endpoint_status.clear()

    def _prompt(self) -> QWidget:
        self.preview_button = push_button("prompt_refresh", self.tr("Show the first prompt"), self.show_prompt)
        self.prompt_status = caption("prompt_status", wraps=True)
        self.prompt = named(QPlainTextEdit(readOnly=True), "prompt_preview", self.tr("The first prompt of a run"))
        self.prompt.setFont(theme.monospace())
        self.prompt.setMinimumHeight(self.fontMetrics().lineSpacing() * 12)
        self.template = named(QPlainTextEdit(), "prompt_template", self.tr("Instructions of your own"))
        self.template.setPlaceholderText(
            self.tr("Empty: the usual instructions. Places: {environment} {goal} {actions} {format}")
        )
        self.template.setTabChangesFocus(True)
        self.template.setFixedHeight(self.fontMetrics().lineSpacing() * 5)
        self.template.textChanged.connect(lambda: self._use({"prompt": self.template.toPlainText()}, asks=False))
        self.parameters.changed.connect(self._show_template)
        part = QWidget(self)
        line = fill(QHBoxLayout(), self.preview_button, (self.prompt_status, 1))
        fill(QVBoxLayout(part), self.template, line, (self.prompt, 1), margins=(8, 2, 0, 6), spacing=4)
        return part

    def _show_template(self) -> None:
        """Show the instructions of the request that the form was filled with."""
        row = self.parameters.row("prompt")
        if row is not None and row.value() != self.template.toPlainText():
            self.template.setPlainText(str(row.value()))

    # ------------------------------------------------------------------ the endpoint

    def _use(self, values: Mapping[str, Any] | None, *, asks: bool = True) -> None:
        for name, value in (values or {}).items():
            if (row := self.parameters.row(name)) is not None:
                row.set_value(value)
                row.changed.emit()
        if asks and values and not values.get("model"):
            self.list_models()

    def list_models(self) -> None:
        """Fill the list of models with those of the endpoint."""
        self._ask("--models", self._show_models, self.endpoint_status)

    def _show_models(self, answer: Mapping[str, Any]) -> None:
        names = list(map(str, answer.get("models", ())))
        self.models.clear()
        self.models.addItems(names)
        self.models.setVisible(bool(names))
        row = self.parameters.row("model")
        if len(names) == 1 or (row is not None and names and row.value() not in names):
            self._use({"model": names[0]})
        self.endpoint_status.setText(formats.plural(len(names), self.tr("model")))

    def test(self) -> None:
        """Ask the endpoint for one constrained answer."""
        self._ask("--probe", self._show_probe, self.endpoint_status)

    def _show_probe(self, answer: Mapping[str, Any]) -> None:
        how = {
            "json_schema": self.tr("It answers, and keeps to legal actions by a JSON schema."),
            "grammar": self.tr("It answers, and keeps to legal actions by a grammar."),
            "text": self.tr("It answers in free text: an answer that names no legal action is asked for once more."),
        }
        self.endpoint_status.setText(how.get(str(answer.get("constraint")), str(answer)))

    def show_prompt(self) -> None:
        """Show the prompt for a first observation of the environment."""
        self._ask("--preview", self._show_messages, self.prompt_status)

    def _show_messages(self, answer: Mapping[str, Any]) -> None:
        messages = [message for message in answer.get("messages", ()) if isinstance(message, dict)]
        self.prompt.setPlainText("\n\n".join(f"── {each.get('role')}\n{each.get('content')}" for each in messages))
        self.prompt_status.setText(self.tr("about {count} tokens").format(count=answer.get("estimated_tokens", "?")))

    def _ask(self, flag: str, show: Callable[[Mapping[str, Any]], None], status: Any) -> None:
        """Ask the worker about the settings of the form; its messages about failures are shown."""
        (config, *_), spec, home = self.configs(), self.link.startable(self.spec), self.program_home
        buttons = (self.models_button, self.test_button, self.preview_button)

        def answered(answer: tuple[bool, str]) -> None:
            for button in buttons:
                button.setEnabled(True)
            succeeded, text = answer
            status.setText("" if succeeded else text)
            if succeeded:
                show(json.loads(text))

        for button in buttons:
            button.setEnabled(False)
        status.setText(self.tr("Asking …"))
        self.background.run(lambda: ask_worker(spec, config, flag, home=home), owner=self, done=answered)
