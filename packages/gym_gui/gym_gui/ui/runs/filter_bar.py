"""The bar above the list of runs: search text, facets, saved filters, grouping and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mosaic_wire.worker_spec import nearest
from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QInputDialog,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QToolButton,
    QVBoxLayout,
    QWidget,
    QWidgetAction,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.filtering import FIELD_NAMES, Facet, RunFilter, parse
from gym_gui.ui.runs.model import RunsModel
from gym_gui.ui.runs.rows import state_text
from gym_gui.ui.widgets.parts import fill, named, push_button

_MAX_LINES = 14


class FacetButton(QToolButton):
    """A menu of checkable values with their number of runs, computed when it opens."""

    ticked_changed = Signal(object)  # frozenset[str]

    def __init__(
        self,
        name: str,
        title: str,
        counts: Callable[[], Mapping[str, int]],
        format_value: Callable[[str], str] = str,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName(f"facet_{name}")
        self._title, self._counts, self._facts_text = title, counts, format_value
        self.ticked: frozenset[str] = frozenset()
        self._is_filling = False
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.setAutoRaise(True)
        self.list = named(QListWidget(), f"facet_{name}_values", title)
        self.list.itemChanged.connect(self._item_changed)
        self.list.itemClicked.connect(self._item_clicked)
        self._pressed_state: Qt.CheckState | None = None
        self.list.itemPressed.connect(self._item_pressed)
        self._everything = push_button(f"facet_{name}_all", self.tr("Show all"), lambda: self._choose(frozenset()))
        page = QWidget()
        fill(QVBoxLayout(page), self.list, self._everything, margins=4)
        menu = QMenu(self)
        holder = QWidgetAction(menu)
        holder.setDefaultWidget(page)
        menu.addAction(holder)
        menu.aboutToShow.connect(self.fill)
        self.setMenu(menu)
        self._show_selection()

    def set_ticked(self, values: Iterable[str]) -> None:
        """Check these values without emitting a signal."""
        self.ticked = frozenset(values)
        self._show_selection()

    def fill(self) -> None:
        """Fill the list with current values and counts; checked values without runs stay."""
        counts = dict(self._counts())
        for value in self.ticked:
            counts.setdefault(value, 0)
        self._is_filling = True
        self.list.clear()
        for value, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            item = QListWidgetItem(f"{self._facts_text(value)}  ({count:,})")
            item.setData(Qt.ItemDataRole.UserRole, value)
            item.setFlags(Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsUserCheckable)
            item.setCheckState(Qt.CheckState.Checked if value in self.ticked else Qt.CheckState.Unchecked)
            self.list.addItem(item)
        if not counts:
            item = QListWidgetItem(self.tr("No values"))
            item.setFlags(Qt.ItemFlag.NoItemFlags)
            self.list.addItem(item)
        self._is_filling = False
        self._everything.setEnabled(bool(self.ticked))
        lines = min(_MAX_LINES, max(1, self.list.count()))
        height = self.list.sizeHintForRow(0) * lines + 2 * self.list.frameWidth() + 4
        width = self.list.sizeHintForColumn(0) + self.list.verticalScrollBar().sizeHint().width() + 24
        self.list.setFixedSize(max(width, self.fontMetrics().averageCharWidth() * 22), height)

    def _item_pressed(self, item: QListWidgetItem) -> None:
        self._pressed_state = item.checkState()

    def _item_clicked(self, item: QListWidgetItem) -> None:
        """Toggle on a click on the text, too; a click on the box has already toggled it."""
        if item.flags() & Qt.ItemFlag.ItemIsUserCheckable and item.checkState() == self._pressed_state:
            is_checked = item.checkState() == Qt.CheckState.Checked
            item.setCheckState(Qt.CheckState.Unchecked if is_checked else Qt.CheckState.Checked)

    def _item_changed(self) -> None:
        if self._is_filling:
            return
        items = (self.list.item(at) for at in range(self.list.count()))
        ticked = (item.data(Qt.ItemDataRole.UserRole) for item in items if item.checkState() == Qt.CheckState.Checked)
        self._choose(frozenset(value for value in ticked if value is not None))

    def _choose(self, values: frozenset[str]) -> None:
        if values == self.ticked:
            return
        self.ticked = values
        self._show_selection()
        if not values:
            self.fill()
        self._everything.setEnabled(bool(values))
        self.ticked_changed.emit(values)

    def _show_selection(self) -> None:
        chosen = sorted(self._facts_text(value) for value in self.ticked)
        text = self._title
        if len(chosen) == 1:
            text = (
                f"{self._title}: {self.fontMetrics().elidedText(chosen[0], Qt.TextElideMode.ElideMiddle, self._room())}"
            )
        elif chosen:
            text = f"{self._title}: {len(chosen)}"
        self.setText(f"{text} ")
        font = self.font()
        font.setBold(bool(chosen))
        self.setFont(font)
        what = ", ".join(chosen) if chosen else self.tr("all")
        self.setToolTip(f"{self._title}: {what}")
        self.setAccessibleName(self.tr("Filter by {0}: {1}").format(self._title, what))

    def _room(self) -> int:
        return self.fontMetrics().averageCharWidth() * 16


class SavedFilters(QMenu):
    """Choose, save or delete a filter."""

    chosen = Signal(object)  # RunFilter
    reported = Signal(str, str)

    def __init__(self, link: DaemonLink, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("saved_filters_menu")
        self._link = link
        self._saved: dict[str, RunFilter] = {}
        self.present = RunFilter()
        """The current filter, to be saved"""
        self.aboutToShow.connect(self._fill)
        link.state_changed.connect(lambda: self.load())
        self.load()

    @property
    def names(self) -> list[str]:
        return sorted(self._saved, key=str.lower)

    def load(self) -> None:
        """Load the saved filters from the daemon."""
        if self._link.is_connected:
            self._call(lambda client: None)

    def save(self, name: str) -> None:
        """Save the current filter, replacing one of the same name."""
        query = self.present.to_query()
        self._call(
            lambda client: client.save_filter(name.strip(), query), self.tr("The filter “{0}” was saved.").format(name)
        )

    def forget(self, name: str) -> None:
        self._call(lambda client: client.delete_filter(name), self.tr("The filter “{0}” was removed.").format(name))

    def _call(self, change: Any, text: str = "") -> None:
        def work(client: TrainerClient) -> dict[str, dict[str, Any]]:
            change(client)
            return client.filters()

        def done(saved: dict[str, dict[str, Any]]) -> None:
            self._saved = {name: RunFilter.from_query(query) for name, query in saved.items()}
            if text:
                self.reported.emit(text, "info")

        self._link.call(work, owner=self, done=done, failed=lambda problem: self.reported.emit(problem, "bad"))

    def _fill(self) -> None:
        self.clear()
        for name in self.names:
            kept = self._saved[name]
            action = self.addAction(name.replace("&", "&&"))
            action.setToolTip(kept.text)
            action.setCheckable(True)
            action.setChecked(kept == self.present)
            action.triggered.connect(lambda checked=False, kept=kept: self.chosen.emit(kept))
        if not self._saved:
            self.addAction(self.tr("No saved filters yet")).setEnabled(False)
        self.addSeparator()
        save = self.addAction(self.tr("&Save this filter…"))
        save.setObjectName("save_filter")
        save.setEnabled(self.present.is_active)
        if not self.present.is_active:
            save.setToolTip(self.tr("Enter a filter or check a value first"))
        save.triggered.connect(lambda: self._ask_name())
        if self._saved:
            removal = self.addMenu(self.tr("&Remove"))
            for name in self.names:
                removal.addAction(name.replace("&", "&&")).triggered.connect(
                    lambda checked=False, name=name: self.forget(name)
                )
        self.setToolTipsVisible(True)

    def _ask_name(self) -> None:
        dialog = named(QInputDialog(self.parentWidget()), "save_filter_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setWindowTitle(self.tr("Save filter"))
        dialog.setLabelText(self.tr("Name of the filter:"))
        dialog.textValueSelected.connect(lambda name: self.save(name) if name.strip() else None)
        dialog.open()


class FilterBar(QWidget):
    """Holds the filter; emits `filter_changed` for each change by the user."""

    filter_changed = Signal(object)  # RunFilter
    grouping_changed = Signal(bool)
    left = Signal()  # Down or Return in the field: move the focus to the table
    reported = Signal(str, str)

    def __init__(self, link: DaemonLink, model: RunsModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.filter = RunFilter()
        self._model = model
        self.field = named(QLineEdit(), "runs_filter", self.tr("Filter runs"), tip=self._help())
        self.field.setPlaceholderText(self.tr("Filter: text, algo:ppo status:running tag:x seed:1-5 return:>195"))
        self.field.setClearButtonEnabled(True)
        self.field.textChanged.connect(self._text_changed)
        self.field.installEventFilter(self)
        self.saved = SavedFilters(link, self)
        self.saved.chosen.connect(self._apply_saved)
        self.saved.reported.connect(self.reported)
        saved = self._menu_button("saved_filters", self.tr("Saved"), self.saved, self.tr("Saved filters"))
        view = self._menu_button("runs_view_options", self.tr("View"), self._view_menu(), self.tr("Groups, columns"))
        self.facets = {facet: self._facet(facet) for facet in Facet}
        self.hint = named(QLabel(wordWrap=True), "runs_filter_hint", role="caption")
        self.hint.hide()
        self.clear_button = named(QToolButton(), "clear_filter", self.tr("Clear the filter"))
        self.clear_button.setText(self.tr("Clear"))
        self.clear_button.setAutoRaise(True)
        self.clear_button.clicked.connect(
            lambda: self._change(RunFilter(show_archived=self.filter.show_archived), show=True)
        )
        self.clear_button.hide()
        first, second = QHBoxLayout(), QHBoxLayout()
        first.addWidget(self.field, 1)
        first.addWidget(saved)
        first.addWidget(view)
        for button in self.facets.values():
            second.addWidget(button)
        second.addWidget(self.clear_button)
        second.addStretch(1)
        fill(QVBoxLayout(self), first, second, self.hint, margins=0, spacing=2)

    # ------------------------------------------------------------------ parts

    def _menu_button(self, name: str, text: str, menu: QMenu, tip: str) -> QToolButton:
        button = named(QToolButton(), name, tip, tip=tip)
        button.setText(f"{text} ")
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        button.setMenu(menu)
        return button

    def _view_menu(self) -> QMenu:
        menu = named(QMenu(self), "runs_view_menu")
        self.group_action = menu.addAction(self.tr("&Group by configuration"))
        self.group_action.setObjectName("group_runs")
        self.group_action.setCheckable(True)
        self.group_action.setToolTip(self.tr("Runs that differ only in their seed, with mean and spread"))
        self.group_action.toggled.connect(self.grouping_changed)
        self.archived_action = menu.addAction(self.tr("Show &archived runs"))
        self.archived_action.setObjectName("show_archived")
        self.archived_action.setCheckable(True)
        self.archived_action.toggled.connect(self._archived_toggled)
        menu.addSeparator()
        self.columns_menu = menu.addMenu(self.tr("&Columns"))
        self.columns_menu.setObjectName("view_columns_menu")
        menu.setToolTipsVisible(True)
        return menu

    def _facet(self, facet: Facet) -> FacetButton:
        titles = {
            Facet.STATUS: self.tr("Status"),
            Facet.ALGORITHM: self.tr("Algorithm"),
            Facet.ENVIRONMENT: self.tr("Environment"),
            Facet.WORKER: self.tr("Worker"),
            Facet.TAG: self.tr("Tag"),
        }
        button = FacetButton(
            facet.value,
            titles[facet],
            lambda: self._model.facet_counts(facet),
            state_text if facet is Facet.STATUS else str,
        )
        button.ticked_changed.connect(lambda values: self._change(self.filter.with_facet(facet, values)))
        return button

    def _help(self) -> str:
        return self.tr(
            "Plain terms are searched in name, algorithm, environment, worker, tags, notes, state and id.\n"
            "A field: algo:ppo,dqn   status:running   env:*Pole*   tag:paper   seed:1-5   return:>=195   is:archived\n"
            "-term or -field:value leaves out what fits; algo:=ppo means exactly ppo.\n"
            "Fields: {0}"
        ).format(", ".join(FIELD_NAMES))

    # ------------------------------------------------------------------ for the owner

    def focus(self) -> None:
        self.field.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.field.selectAll()

    def show_filter(self, requested: RunFilter) -> None:
        """Show this filter without emitting a signal."""
        self.filter = requested
        was_blocked = self.field.blockSignals(True)
        self.field.setText(requested.text)
        self.field.blockSignals(was_blocked)
        was_blocked = self.archived_action.blockSignals(True)
        self.archived_action.setChecked(requested.show_archived)
        self.archived_action.blockSignals(was_blocked)
        for facet, button in self.facets.items():
            button.set_ticked(requested.facets.get(facet, ()))
        self._show_helpers()

    def show_grouping(self, grouped: bool) -> None:
        blocked = self.group_action.blockSignals(True)
        self.group_action.setChecked(grouped)
        self.group_action.blockSignals(blocked)

    # ------------------------------------------------------------------ user input

    def _text_changed(self, text: str) -> None:
        self._change(self.filter.with_text(text))

    def _archived_toggled(self, shown: bool) -> None:
        self._change(RunFilter(self.filter.text, self.filter.facets, shown))

    def _apply_saved(self, kept: RunFilter) -> None:
        self._change(kept, show=True)

    def _change(self, requested: RunFilter, *, show: bool = False) -> None:
        if show:
            self.show_filter(requested)
        self.filter = requested
        self._show_helpers()
        self.filter_changed.emit(requested)

    def _show_helpers(self) -> None:
        self.saved.present = self.filter
        self.clear_button.setVisible(self.filter.is_active)
        unknown = parse(self.filter.text).unknown
        close = [(name, nearest(name.lower(), FIELD_NAMES)) for name in unknown]
        meant = [(name, field) for name, field in close if field]
        self.hint.setVisible(bool(meant))
        if meant:
            name, field = meant[0]
            self.hint.setText(self.tr("There is no field “{0}:”; did you mean “{1}:”?").format(name, field))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.field and event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            if event.key() in (Qt.Key.Key_Down, Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.left.emit()
                return True
            if event.key() == Qt.Key.Key_Escape and self.field.text():
                self.field.clear()
                return True
        return super().eventFilter(watched, event)
