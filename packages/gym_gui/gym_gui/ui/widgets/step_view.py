"""One recorded step: what was observed (picture, grid, values or text), what was done, what came of it."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFormLayout,
    QHeaderView,
    QLabel,
    QPlainTextEdit,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.replay.observations import Look, StepLook
from gym_gui.ui.widgets.adaptive_splitter import AdaptiveSplitter
from gym_gui.ui.widgets.live_picture import LivePicture
from gym_gui.ui.widgets.pairs_table import PairsTable
from gym_gui.ui.widgets.video_player import SHARP_BELOW, to_image
from gym_gui.wording import formats

MOST_CELLS = 1_600
"""Of a table; a larger grid is shown as text, which is drawn at once"""


class StepView(QWidget):
    """The observation, and facts beside or below it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("step_view")
        self.picture = LivePicture()
        self.picture.setObjectName("observation_picture")
        self.picture.setAccessibleName(self.tr("Observation as a picture"))
        self.grid = QTableWidget()
        self.grid.setObjectName("observation_grid")
        self.grid.setAccessibleName(self.tr("Observation as a grid"))
        self.grid.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.grid.setTabKeyNavigation(False)
        self.grid.horizontalHeader().hide()
        self.grid.verticalHeader().hide()
        self.values = PairsTable(self.tr("Name"), self.tr("Value"), accessible=self.tr("Observation as values"))
        self.values.setObjectName("observation_values")
        self.text = QPlainTextEdit()
        self.text.setObjectName("observation_text")
        self.text.setAccessibleName(self.tr("Observation as text"))
        self.text.setReadOnly(True)
        self.text.setFont(theme.monospace())
        self._stack = QStackedWidget()
        for widget in (self.picture, self.grid, self.values, self.text):
            self._stack.addWidget(widget)
        self._note = QLabel()
        self._note.setProperty("role", "caption")
        left = QWidget()
        box = QVBoxLayout(left)
        box.setContentsMargins(0, 0, 0, 0)
        box.addWidget(self._stack, 1)
        box.addWidget(self._note)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(AdaptiveSplitter(left, self._facts(), beside_from=44, beside=(3, 2), above=(3, 2)))
        self.clear()

    def _facts(self) -> QWidget:
        self.action, self.reward, self.total, self.ending, self.agent = (QLabel() for _ in range(5))
        for name, label in (
            ("step_action", self.action), ("step_reward", self.reward), ("step_return", self.total),
            ("step_ending", self.ending), ("step_agent", self.agent),
        ):  # fmt: skip
            label.setObjectName(name)
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._form = QFormLayout()
        self._form.setContentsMargins(4, 0, 0, 0)
        for title, label in (
            (self.tr("Action"), self.action), (self.tr("Reward"), self.reward),
            (self.tr("Return so far"), self.total), (self.tr("Episode"), self.ending), (self.tr("Agent"), self.agent),
        ):  # fmt: skip
            caption = QLabel(title)
            caption.setProperty("role", "caption")
            self._form.addRow(caption, label)
        self.beside = PairsTable(
            self.tr("Observation"), self.tr("Value"), accessible=self.tr("Rest of the observation")
        )
        self.beside.setObjectName("observation_rest")
        self.info = PairsTable(self.tr("Info"), self.tr("Value"), accessible=self.tr("Info of the step"))
        self.info.setObjectName("step_info")
        right = QWidget()
        box = QVBoxLayout(right)
        box.setContentsMargins(8, 0, 0, 0)
        box.addLayout(self._form)
        box.addWidget(self.beside, 1)
        box.addWidget(self.info, 1)
        return right

    def clear(self, words: str = "") -> None:
        """Nothing to show, and why."""
        self.picture.show_words(words)
        self._stack.setCurrentWidget(self.picture)
        self._note.hide()
        for label in (self.action, self.reward, self.total, self.ending, self.agent):
            label.clear()
        self._form.setRowVisible(self.agent, False)
        self.beside.hide()
        self.info.show_pairs(())

    def show_step(self, look: StepLook, *, reward: float, total: float, ending: str, agent: str) -> None:
        self._show_observation(look.observation)
        self.action.setText(look.action)
        self.reward.setText(formats.quantity(reward))
        self.total.setText(formats.quantity(total))
        self.ending.setText(ending)
        self.agent.setText(agent)
        self._form.setRowVisible(self.agent, bool(agent))
        self.info.show_pairs(look.info)

    def _show_observation(self, look: Look) -> None:
        self._note.setText(look.note)
        self._note.setVisible(bool(look.note))
        is_beside = look.picture is not None or bool(look.grid)
        self.beside.setVisible(is_beside and bool(look.values))
        if look.picture is not None:
            self.picture.set_smooth(min(look.picture.shape[:2]) >= SHARP_BELOW)
            self.picture.show_image(to_image(look.picture))
            self._stack.setCurrentWidget(self.picture)
        elif len(look.grid) * len(look.grid[0] if look.grid else ()) > MOST_CELLS:
            self.text.setPlainText("\n".join("  ".join(row) for row in look.grid))
            self._stack.setCurrentWidget(self.text)
        elif look.grid:
            self._show_grid(look.grid)
            self._stack.setCurrentWidget(self.grid)
        elif look.text:
            self.text.setPlainText(look.text)
            self._stack.setCurrentWidget(self.text)
        elif look.values:
            self.values.show_pairs(look.values)
            self._stack.setCurrentWidget(self.values)
        else:
            self.picture.show_words(self.tr("No observation was recorded with this step."))
            self._stack.setCurrentWidget(self.picture)
        if is_beside:
            self.beside.show_pairs(look.values)

    def _show_grid(self, grid: tuple[tuple[str, ...], ...]) -> None:
        rows, columns = len(grid), max(map(len, grid))
        if (self.grid.rowCount(), self.grid.columnCount()) != (rows, columns):
            self.grid.setRowCount(rows)
            self.grid.setColumnCount(columns)
            self.grid.setFont(theme.monospace())
            longest = max(len(cell) for row in grid for cell in row)
            metrics = self.grid.fontMetrics()
            # Square cells where there is room: a board is recognised by its shape.
            side = min(self.grid.viewport().width() // columns, self.grid.viewport().height() // rows)
            side = max(round(metrics.height() * 1.5), min(side, metrics.height() * 4))
            self.grid.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
            self.grid.horizontalHeader().setDefaultSectionSize(
                max(side, metrics.horizontalAdvance("0" * (longest + 1)))
            )
            self.grid.verticalHeader().setDefaultSectionSize(side)
        empty = QColor(theme.colours().muted)
        for row, cells in enumerate(grid):
            for column, cell in enumerate(cells):
                item = self.grid.item(row, column)
                if item is None:
                    item = QTableWidgetItem()
                    item.setTextAlignment(Qt.AlignmentFlag.AlignCenter)
                    self.grid.setItem(row, column, item)
                if item.text() != cell:
                    item.setText(cell)
                    # What is empty steps back.
                    item.setData(Qt.ItemDataRole.ForegroundRole, empty if set(cell) <= {"0", ","} else None)
