"""What W&B kept of a run on this machine: curves, system metrics, summary, config and console, without a network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QPlainTextEdit, QTabWidget, QVBoxLayout, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.presenters.wandb_view import WandbShown, history_keys, system_keys
from gym_gui.ui.widgets.adaptive_splitter import AdaptiveSplitter
from gym_gui.ui.widgets.code_font import CodeFont
from gym_gui.ui.widgets.pairs_table import PairsTable
from gym_gui.wording import formats

if TYPE_CHECKING:
    from gym_gui.ui.widgets.curve_grid import CurveGrid


class WandbOffline(QWidget):
    """Charts on the left, tables on the right; `show_shown` again and again while the file grows."""

    run_chosen = Signal(str)
    """Of several W&B runs: the id of the one to read"""

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("wandb_offline")
        self._background = background
        self._shown = WandbShown()
        self._grids: dict[str, CurveGrid] = {}
        self._build()

    def _build(self) -> None:
        self.facts = QLabel()
        self.facts.setObjectName("wandb_facts")
        self.facts.setWordWrap(True)
        self.facts.setProperty("role", "caption")
        self.runs_box = QComboBox()
        self.runs_box.setObjectName("wandb_runs")
        self.runs_box.setAccessibleName(self.tr("Which of the W&B runs is shown"))
        self.runs_box.activated.connect(lambda: self.run_chosen.emit(self.runs_box.currentText()))
        self.runs_box.hide()
        head = QHBoxLayout()
        head.addWidget(self.facts, 1)
        head.addWidget(self.runs_box)
        self.charts = QTabWidget()
        self.charts.setObjectName("wandb_charts")
        self.charts.setAccessibleName(self.tr("Curves that W&B kept"))
        self.charts.setDocumentMode(True)
        self._places: dict[str, QWidget] = {}
        for name, title in (("history", self.tr("&History")), ("system", self.tr("S&ystem"))):
            place = QWidget()
            QVBoxLayout(place).setContentsMargins(0, 0, 0, 0)
            self._places[name] = place
            self.charts.addTab(place, title)
        self.summary = self._table("summary", self.tr("Summary of the W&B run"))
        self.config = self._table("config", self.tr("Config of the W&B run"))
        self.console = QPlainTextEdit()
        self.console.setObjectName("wandb_console")
        self.console.setAccessibleName(self.tr("What the run printed, as W&B kept it"))
        self.console.setReadOnly(True)
        CodeFont(self.console)
        self.tables = QTabWidget()
        self.tables.setObjectName("wandb_tables")
        self.tables.setAccessibleName(self.tr("Summary, config and console that W&B kept"))
        self.tables.setDocumentMode(True)
        self.tables.addTab(self.summary, self.tr("Su&mmary"))
        self.tables.addTab(self.config, self.tr("Confi&g"))
        self.tables.addTab(self.console, self.tr("Co&nsole"))
        split = AdaptiveSplitter(self.charts, self.tables, beside_from=70, beside=(5, 3), above=(3, 2))
        split.setObjectName("wandb_split")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addLayout(head)
        layout.addWidget(split, 1)

    def _table(self, name: str, accessible: str) -> PairsTable:
        table = PairsTable(self.tr("Key"), self.tr("Value"), accessible=accessible)
        table.setObjectName(f"wandb_{name}")
        table.horizontalHeader().resizeSection(0, table.fontMetrics().averageCharWidth() * 28)
        return table

    @property
    def grids(self) -> dict[str, CurveGrid]:
        """`history` and `system`, once they were loaded."""
        return self._grids

    def show_shown(self, shown: WandbShown) -> None:
        """The newest state of the files."""
        if shown is self._shown:
            return
        self._shown = shown
        self.facts.setText(self._facts(shown))
        self._offer_runs(shown)
        for table, pairs in ((self.summary, shown.summary), (self.config, shown.config)):
            if table.pairs() != pairs:
                table.show_pairs(pairs)
        text = "\n".join(shown.snapshot.output)
        if text != self.console.toPlainText():
            self.console.setPlainText(text)
        self.tables.setTabVisible(2, bool(text))
        if self._grids:
            self._draw()
        else:
            self._background.run(
                lambda: importlib.import_module("gym_gui.ui.widgets.curve_grid"),
                owner=self,
                done=lambda _module: self._make_grids(),
            )

    def _make_grids(self) -> None:
        from gym_gui.ui.widgets.curve_grid import CurveGrid

        if not self._grids:
            self._grids = {
                "history": CurveGrid("wandb_history", history_keys),
                "system": CurveGrid("wandb_system", system_keys, has_steps=False),
            }
            for name, grid in self._grids.items():
                layout = self._places[name].layout()
                assert layout is not None
                layout.addWidget(grid)
        self._draw()

    def _draw(self) -> None:
        self._grids["history"].show_curves(
            self._shown.history, self.tr("No history yet. It appears when the run logs its first values.")
        )
        self._grids["system"].show_curves(
            self._shown.system, self.tr("No system metrics yet. W&B samples the machine every 15 seconds.")
        )

    def _offer_runs(self, shown: WandbShown) -> None:
        known = [self.runs_box.itemText(index) for index in range(self.runs_box.count())]
        if known != list(shown.run_ids):
            self.runs_box.clear()
            self.runs_box.addItems(list(shown.run_ids))
        if shown.folders:
            self.runs_box.setCurrentText(shown.folders[-1].run_id)
        self.runs_box.setVisible(len(shown.run_ids) > 1)

    def _facts(self, shown: WandbShown) -> str:
        known = shown.snapshot
        parts = [
            known.name,
            self.tr("project {0}").format(known.project) if known.project else "",
            self.tr("entity {0}").format(known.entity) if known.entity else "",
            self.tr("{0} rows").format(formats.count(known.rows)) if known.rows else "",
            self.tr("began {0}").format(formats.moment(known.started_at)) if known.started_at else "",
            self.tr("ended with exit code {0}").format(known.exit_code) if known.exit_code is not None else "",
        ]
        return "  ·  ".join(filter(None, parts))
