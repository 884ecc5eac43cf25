"""Controls around charts: how they are drawn, which curves, the legend, saving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import (
    QAbstractTableModel,
    QItemSelectionModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QSignalBlocker,
    Qt,
    Signal,
)
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QSlider,
    QTableView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.analytics.curves import Axis, Smoothing, load_curves
from gym_gui.services.analytics.drawing import FORMATS, save_figure
from gym_gui.services.analytics.exporting import MissingPackage, write_csv, write_parquet
from gym_gui.services.analytics.figure import Band, Figure
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.charts.curves import ChartChoice, Entry, loaded_tags
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.parts import caption, fill, named, push_button, search_field
from gym_gui.ui.widgets.tables import show_as_rows
from gym_gui.wording import formats

_EMA_STEPS = 99
_WINDOWS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1_000)
_LINES = "lines"


class ChartControls(QWidget):
    """A row of controls; `changed` carries the choice."""

    changed = Signal(object)  # ChartChoice
    reset_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("chart_controls")
        axes = {
            Axis.STEP: self.tr("over steps"),
            Axis.TIME: self.tr("over time"),
            Axis.EPISODE: self.tr("over episodes"),
        }
        self.axis = self._combo("chart_axis", self.tr("Horizontal axis"), axes)
        groups = {
            _LINES: self.tr("each run"),
            Band.STD: self.tr("groups: mean ± std"),
            Band.CI: self.tr("groups: mean, 95 % bootstrap"),
            Band.IQM: self.tr("groups: IQM, 95 % bootstrap"),
            Band.NONE: self.tr("groups: mean alone"),
        }
        self.groups = self._combo("chart_groups", self.tr("Lines or groups of runs"), groups)
        self.groups.setToolTip(self.tr("Runs that differ only in their seed can be one line with a band around it"))
        kinds = {"ema": self.tr("EMA"), "window": self.tr("window")}
        self.kind = self._combo("chart_smoothing_kind", self.tr("Kind of smoothing"), kinds)
        self.kind.setToolTip(self.tr("An exponential moving average, or the mean of the last points"))
        self.amount = named(QSlider(Qt.Orientation.Horizontal), "chart_smoothing", self.tr("Smoothing"))
        char_width = self.fontMetrics().averageCharWidth()
        self.amount.setMinimumWidth(char_width * 12)
        self.amount.setMaximumWidth(char_width * 26)
        label = QLabel(self.tr("S&moothing"))
        label.setBuddy(self.amount)
        self._amount_text = caption()
        self._amount_text.setMinimumWidth(self.fontMetrics().horizontalAdvance("0.000"))
        self.log_x = named(QCheckBox(self.tr("log &x")), "chart_log_x", self.tr("Logarithmic horizontal axis"))
        self.log_y = named(QCheckBox(self.tr("log &y")), "chart_log_y", self.tr("Logarithmic vertical axis"))
        tip = self.tr("Drag to move; Ctrl and the wheel, or the right button, zoom. This shows the whole curves again")
        self.reset = push_button("chart_reset", self.tr("Reset zoom"), self.reset_requested.emit, tip=tip)
        smoothing = (label, self.kind, self.amount, self._amount_text)
        parts = (self.axis, self.groups, *smoothing, self.log_x, self.log_y)
        self._row = fill(QHBoxLayout(self), *parts, 1, self.reset, margins=0)
        self._set_range()
        self.axis.currentIndexChanged.connect(self._emit)
        self.groups.currentIndexChanged.connect(self._emit)
        self.kind.currentIndexChanged.connect(self._change_kind)
        self.amount.valueChanged.connect(self._emit)
        self.log_x.toggled.connect(self._emit)
        self.log_y.toggled.connect(self._emit)

    def add_in_front(self, *widgets: QWidget) -> None:
        """Add controls of the page that these belong to."""
        for place, widget in enumerate(widgets):
            self._row.insertWidget(place, widget)

    @property
    def choice(self) -> ChartChoice:
        grouping = str(self.groups.currentData())
        return ChartChoice(
            axis=Axis(self.axis.currentData()),
            smoothing=self._smoothing(),
            is_grouped=grouping != _LINES,
            band=Band.STD if grouping == _LINES else Band(grouping),
            log_x=self.log_x.isChecked(),
            log_y=self.log_y.isChecked(),
        )

    def show_choice(self, choice: ChartChoice) -> None:
        """Set everything without emitting `changed`."""
        controls = (self.axis, self.groups, self.kind, self.amount, self.log_x, self.log_y)
        blockers = [QSignalBlocker(control) for control in controls]
        self.axis.setCurrentIndex(max(0, self.axis.findData(choice.axis.value)))
        self.groups.setCurrentIndex(max(0, self.groups.findData(choice.band.value if choice.is_grouped else _LINES)))
        self.kind.setCurrentIndex(1 if choice.smoothing.kind == "window" else 0)
        self._set_range()
        amount = choice.smoothing.amount
        if choice.smoothing.kind == "window":
            self.amount.setValue(min(range(len(_WINDOWS)), key=lambda place: abs(_WINDOWS[place] - amount)))
        else:
            self.amount.setValue(round(100 * amount))
        self.log_x.setChecked(choice.log_x)
        self.log_y.setChecked(choice.log_y)
        self._show_amount()
        del blockers

    def _smoothing(self) -> Smoothing:
        value: int = self.amount.value()
        return Smoothing.window(_WINDOWS[value]) if self._is_window() else Smoothing.ema(value / 100)

    def _is_window(self) -> bool:
        return bool(self.kind.currentData() == "window")

    def _set_range(self) -> None:
        self.amount.setRange(0, len(_WINDOWS) - 1 if self._is_window() else _EMA_STEPS)

    def _change_kind(self) -> None:
        with QSignalBlocker(self.amount):
            was_on = self.amount.value() > 0
            self._set_range()
            self.amount.setValue(0 if not was_on else 5 if self._is_window() else 90)
        self._emit()

    def _emit(self) -> None:
        self._show_amount()
        self.changed.emit(self.choice)

    def _show_amount(self) -> None:
        smoothing = self._smoothing()
        self._amount_text.setText(self.tr("off") if not smoothing.is_on else f"{smoothing.amount:g}")
        window = self.tr("How many points the mean is taken over")
        self.amount.setToolTip(window if self._is_window() else self.tr("Weight of the past in the average"))

    def _combo(self, name: str, accessible: str, items: Mapping[Any, str]) -> QComboBox:
        combo = named(QComboBox(), name, accessible)
        combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        for data, text in items.items():
            combo.addItem(text, str(data))
        return combo


# ---------------------------------------------------------------------- which curves


class TagList(QWidget):
    """All curves of the runs in a list with check boxes and a search field."""

    checked_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("tag_list")
        self.search = search_field("tag_search", self.tr("Search among the curves"), self.tr("Search curves"))
        self.list = named(QListWidget(), "tag_boxes", self.tr("Curves; Space shows or removes a chart"))
        self.list.setUniformItemSizes(True)
        self.list.setSpacing(1)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        fill(QVBoxLayout(self), self.search, (self.list, 1), margins=0, spacing=4)
        self.setMinimumWidth(self.fontMetrics().averageCharWidth() * 20)
        self.search.textChanged.connect(self._filter)
        self.search.returnPressed.connect(self._toggle_only_match)
        self.list.itemChanged.connect(lambda _: self.checked_changed.emit())
        self.list.itemActivated.connect(_toggle)

    def show_tags(self, tags: Iterable[str], checked: Iterable[str]) -> None:
        """List these tags; emits nothing."""
        shown = set(checked)
        known = sorted({*tags, *shown})
        with QSignalBlocker(self.list):
            if known != self.tags():
                self.list.clear()
                for tag in known:
                    item = QListWidgetItem(tag, self.list)
                    item.setToolTip(tag)
            for item in self._items():
                item.setCheckState(Qt.CheckState.Checked if item.text() in shown else Qt.CheckState.Unchecked)
        self._filter(self.search.text())

    def tags(self) -> list[str]:
        return [item.text() for item in self._items()]

    def checked(self) -> list[str]:
        return [item.text() for item in self._items() if item.checkState() == Qt.CheckState.Checked]

    def _items(self) -> list[QListWidgetItem]:
        return [self.list.item(row) for row in range(self.list.count())]

    def _filter(self, text: str) -> None:
        parts = text.lower().split()
        for item in self._items():
            item.setHidden(not all(part in item.text().lower() for part in parts))

    def _toggle_only_match(self) -> None:
        left = [item for item in self._items() if not item.isHidden()]
        if len(left) == 1:
            _toggle(left[0])


def _toggle(item: QListWidgetItem) -> None:
    is_on = item.checkState() == Qt.CheckState.Checked
    item.setCheckState(Qt.CheckState.Unchecked if is_on else Qt.CheckState.Checked)


# ---------------------------------------------------------------------- legend

Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
_LINE, _VALUE = 0, 1
_Role = Qt.ItemDataRole


class LegendModel(QAbstractTableModel):
    """Entries of figures; values are looked up when a row is painted, so that a thousand cost nothing."""

    hidden_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.entries: list[Entry] = []
        self.hidden: set[str] = set()
        self.value_of: Callable[[str], str] = lambda key: ""
        """The text beside an entry's name"""

    def show_entries(self, entries: Sequence[Entry]) -> None:
        same = [(entry.key, entry.label, entry.short, entry.color) for entry in entries] == [
            (entry.key, entry.label, entry.short, entry.color) for entry in self.entries
        ]
        if same:
            self.entries = list(entries)
            self.refresh_values()
            return
        self.beginResetModel()
        self.entries = list(entries)
        self.endResetModel()

    def refresh_values(self) -> None:
        if self.entries:
            self.dataChanged.emit(self.index(0, _VALUE), self.index(len(self.entries) - 1, _VALUE))

    def set_all(self, shown: bool) -> None:
        self.hidden = set() if shown else {entry.key for entry in self.entries}
        if self.entries:
            self.dataChanged.emit(self.index(0, _LINE), self.index(len(self.entries) - 1, _LINE))
        self.hidden_changed.emit()

    def row_of(self, key: str) -> int | None:
        return next((row for row, entry in enumerate(self.entries) if entry.key == key), None)

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.entries)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else 2

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _Role.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == _Role.DisplayRole:
            return (self.tr("Line"), self.tr("Value"))[section]
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        item_flags = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
        return item_flags | Qt.ItemFlag.ItemIsUserCheckable if index.column() == _LINE else item_flags

    def data(self, index: Index, role: int = _Role.DisplayRole) -> Any:
        entry = self.entries[index.row()]
        if index.column() == _VALUE:
            if role == _Role.DisplayRole:
                return self.value_of(entry.key)
            right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            return right if role == _Role.TextAlignmentRole else None
        if role == _Role.DisplayRole:
            return entry.short
        if role == _Role.ToolTipRole:
            runs = len(entry.run_ids)
            return f"{entry.label}\n{self.tr('{0} runs').format(runs)}" if runs > 1 else entry.label
        if role == _Role.CheckStateRole:
            return Qt.CheckState.Unchecked if entry.key in self.hidden else Qt.CheckState.Checked
        return theme.colors().curve(entry.color) if role == _Role.DecorationRole else None

    def setData(self, index: Index, value: Any, role: int = _Role.EditRole) -> bool:
        if role != _Role.CheckStateRole:
            return False
        key = self.entries[index.row()].key
        is_shown = Qt.CheckState(value) == Qt.CheckState.Checked
        self.hidden = self.hidden - {key} if is_shown else self.hidden | {key}
        self.dataChanged.emit(index, index)
        self.hidden_changed.emit()
        return True


class ChartLegend(QWidget):
    """A check box for each line to hide it, its color, its name, and its value under the crosshair.

    Selecting a line brings it to the front of every chart: colors repeat after eight, the selected line stands out.
    """

    changed = Signal()
    """Lines were hidden or shown, or another one was selected"""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("chart_legend")
        self.model = LegendModel(self)
        self.view = named(QTableView(), "chart_legend_table", self.tr("Lines of the charts; Space hides one"))
        self.view.setModel(self.model)
        show_as_rows(self.view, line_height=1.5, striped=False)
        header = self.view.horizontalHeader()
        header.setSectionResizeMode(_LINE, QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(_VALUE, QHeaderView.ResizeMode.Interactive)
        header.resizeSection(_VALUE, self.fontMetrics().averageCharWidth() * 9)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self._buttons = QWidget()
        foot = QHBoxLayout(self._buttons)
        foot.setContentsMargins(0, 0, 0, 0)
        show, hide = self.tr("Show all"), self.tr("Hide all")
        show_all, hide_all = self.tr("Show all lines"), self.tr("Hide all lines")
        foot.addWidget(push_button("legend_show_all", show, lambda: self.model.set_all(True), show_all))
        foot.addWidget(push_button("legend_hide_all", hide, lambda: self.model.set_all(False), hide_all))
        fill(QVBoxLayout(self), (self.view, 1), self._buttons, margins=0, spacing=4)
        self.setMinimumWidth(self.fontMetrics().averageCharWidth() * 22)
        self.model.hidden_changed.connect(self.changed)
        self.view.selectionModel().selectionChanged.connect(lambda *_: self.changed.emit())

    def show_entries(self, entries: Mapping[str, Entry]) -> None:
        selected = self.selected
        self.model.show_entries(list(entries.values()))
        self._buttons.setVisible(len(entries) > 2)
        if selected and selected != self.selected:
            self.select(selected)

    @property
    def hidden(self) -> frozenset[str]:
        return frozenset(self.model.hidden)

    @property
    def selected(self) -> str:
        """The key of the line in front; empty when none is selected."""
        rows = self.view.selectionModel().selectedRows()
        return self.model.entries[rows[0].row()].key if rows and rows[0].row() < len(self.model.entries) else ""

    def select(self, key: str) -> None:
        """Bring a line to the front; empty: none."""
        row = self.model.row_of(key) if key else None
        if row is None:
            self.view.clearSelection()
        else:
            flags = QItemSelectionModel.SelectionFlag
            self.view.selectionModel().select(self.model.index(row, 0), flags.ClearAndSelect | flags.Rows)
            self.view.scrollTo(self.model.index(row, 0))

    def reset(self) -> None:
        """Show all lines and select none."""
        self.model.hidden.clear()
        self.view.clearSelection()


# ---------------------------------------------------------------------- saving


class ChartExport(QObject):
    """Save charts and their data: ask where to, write in a thread, report the result."""

    reported = Signal(str, str)  # message, info | bad

    def __init__(self, link: DaemonLink, window: QWidget) -> None:
        super().__init__(window)
        self._link, self._window = link, window

    def button(self, tag: str, figure: Callable[[], Figure], runs: Callable[[], Sequence[pb.Run]]) -> QToolButton:
        """Return a button for the head of a chart that saves what the chart shows when it is pressed."""
        button = named(QToolButton(), "chart_save", self.tr("Save the chart or its data"))
        button.setText(self.tr("Save"))
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        menu = QMenu(button)
        menu.addAction(self.tr("&Image (PNG, SVG, PDF)…"), lambda: self.ask_for_image(tag, figure()))
        menu.addAction(self.tr("&Data as CSV…"), lambda: self.ask_for_data(tag, runs(), ".csv"))
        menu.addAction(self.tr("Data as Par&quet…"), lambda: self.ask_for_data(tag, runs(), ".parquet"))
        button.setMenu(menu)
        return button

    def ask_for_image(self, tag: str, figure: Figure) -> None:
        filters = (self.tr("PNG image (*.png)"), self.tr("SVG drawing (*.svg)"), self.tr("PDF page (*.pdf)"))
        dialog = self._dialog(self.tr("Save chart"), f"{_file_name(tag)}.png", ";;".join(filters))
        dialog.fileSelected.connect(
            lambda name: self.save_image(figure, _with_suffix(Path(name), dialog.selectedNameFilter(), FORMATS))
        )
        dialog.open()

    def save_image(self, figure: Figure, path: Path) -> None:
        """Save the figure that the window shows, as `mosaic plot` draws it."""
        dark = theme.colors().is_dark
        saved = self.tr("The chart was saved as {0}").format(path)
        self._link.background.run(
            lambda: save_figure(figure, path, dark=dark),
            owner=self,
            done=lambda _: self.reported.emit(saved, "info"),
            failed=self._fail,
        )

    def ask_for_data(self, tag: str, runs: Sequence[pb.Run], suffix: str) -> None:
        kind = self.tr("Table (*.csv)") if suffix == ".csv" else self.tr("Parquet table (*.parquet)")
        dialog = self._dialog(self.tr("Save data"), f"{_file_name(tag)}{suffix}", kind)
        saved = list(runs)
        dialog.fileSelected.connect(
            lambda name: self.save_data(tag, saved, _with_suffix(Path(name), kind, (suffix.removeprefix("."),)))
        )
        dialog.open()

    def save_data(self, tag: str, runs: Sequence[pb.Run], path: Path) -> None:
        """Save every point of these runs' curves, not only those on the screen."""
        write = write_parquet if path.suffix == ".parquet" else write_csv

        def save(client: TrainerClient) -> tuple[str, str]:
            curves = load_curves(client, runs, loaded_tags([tag]), max_points=None)
            try:
                points = write(path, curves, runs)
            except MissingPackage as missing:
                return str(missing), "bad"
            return self.tr("{0} points were saved as {1}").format(formats.count(points), path), "info"

        self._link.call(
            save,
            owner=self,
            done=lambda answer: self.reported.emit(*answer),
            failed=lambda error: self.reported.emit(self.tr("The data were not saved: {0}").format(error), "bad"),
        )

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, OSError | ValueError):
            raise error
        self.reported.emit(self.tr("The chart was not saved: {0}").format(error), "bad")

    def _dialog(self, title: str, name: str, kinds: str) -> QFileDialog:
        dialog = named(QFileDialog(self._window, title), "chart_save_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilter(kinds)
        dialog.selectFile(name)
        return dialog


def _file_name(tag: str) -> str:
    """`charts/episodic_return` → `episodic_return`"""
    name = tag.rpartition("/")[2]
    return "".join(char_width if char_width.isalnum() or char_width in "-_" else "_" for char_width in name) or "chart"


def _with_suffix(path: Path, selected: str, known: Sequence[str]) -> Path:
    """Return the name as it was typed; without one of the known suffixes, with that of the selected kind."""
    if path.suffix.removeprefix(".").lower() in known:
        return path
    suffix = next((suffix for suffix in known if f"*.{suffix}" in selected), known[0])
    return path.with_name(f"{path.name}.{suffix}")
