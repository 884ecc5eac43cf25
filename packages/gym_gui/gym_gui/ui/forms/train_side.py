"""Beside a training form: about the algorithm, and what would be sent, as JSON and as a command line."""

from __future__ import annotations

from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec
from PySide6.QtWidgets import QTabWidget, QTextBrowser, QWidget

from gym_gui.ui.forms.config_preview import TextPreview, shown_json
from gym_gui.ui.presenters.workers.base import WorkerPresenter
from gym_gui.ui.presenters.workers.order import TrainOrder


class TrainSide(QTabWidget):
    """Only the tab that is looked at is filled."""

    def __init__(self, presenter: WorkerPresenter, spec: WorkerSpec, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._presenter, self._spec = presenter, spec
        self._shown_help: str | None = None
        self.setObjectName("side_tabs")
        self.setAccessibleName(self.tr("Help and preview"))
        self.help = QTextBrowser(self)
        self.help.setObjectName("algorithm_help")
        self.help.setAccessibleName(self.tr("About the algorithm"))
        self.help.setOpenExternalLinks(True)
        self.json_preview = TextPreview("json_preview", self.tr("the config"), self)
        self.command_preview = TextPreview("command_preview", self.tr("the command line"), self)
        self.addTab(self.help, self.tr("About"))
        self.addTab(self.json_preview, self.tr("JSON"))
        self.addTab(self.command_preview, self.tr("Command"))

    def show_order(self, order: TrainOrder, algorithm: AlgorithmSpec | None) -> None:
        shown = self.currentWidget()
        if shown is self.help:
            self._show_help(algorithm)
        elif shown is self.json_preview:
            self._show_json(order)
        else:
            self._show_command(order)

    def _show_help(self, algorithm: AlgorithmSpec | None) -> None:
        name = algorithm.name if algorithm is not None else ""
        if self._shown_help != name:
            self._shown_help = name
            self.help.setHtml(self._presenter.help_page(algorithm) if algorithm is not None else "")

    def _show_json(self, order: TrainOrder) -> None:
        configs = self._presenter.configs(order, self._spec)
        more = len(configs) - 1
        remark = self.tr("And {count} more, for the other seeds. ").format(count=more) if more else ""
        self.json_preview.show_text(shown_json(configs), remark + self.tr("Secrets are not shown."))

    def _show_command(self, order: TrainOrder) -> None:
        command = self._presenter.command(order, self._spec)
        remark = ""
        if command.only_in_json:
            words = self.tr("No flag says: {names}. Save the JSON and use `mosaic submit FILE` for these.")
            remark = words.format(names=", ".join(command.only_in_json))
        self.command_preview.show_text(command.text, remark)
