"""The line above the table: what to look for, what to tick, what was saved, and how to see it."""

from __future__ import annotations

from mosaic_wire.worker_spec import nearest
from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QMenu, QToolButton, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.facet_button import FacetButton
from gym_gui.ui.runs.filtering import FIELD_NAMES, Facet, RunFilter, parse
from gym_gui.ui.runs.model import RunsModel
from gym_gui.ui.runs.rows import state_text
from gym_gui.ui.runs.saved_filters import SavedFilters


class FilterBar(QWidget):
    """Holds the filter; `filter_changed` tells of each change a person makes."""

    filter_changed = Signal(object)  # RunFilter
    grouping_changed = Signal(bool)
    left = Signal()  # Down or Return in the field: into the table
    said = Signal(str, str)

    def __init__(self, link: DaemonLink, model: RunsModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.filter = RunFilter()
        self._model = model
        self.field = QLineEdit()
        self.field.setObjectName("runs_filter")
        self.field.setAccessibleName(self.tr("Filter runs"))
        self.field.setPlaceholderText(self.tr("Filter: words, algo:ppo status:running tag:x seed:1-5 return:>195"))
        self.field.setClearButtonEnabled(True)
        self.field.setToolTip(self._help())
        self.field.textChanged.connect(self._text_changed)
        self.field.installEventFilter(self)
        self.saved = SavedFilters(link, self)
        self.saved.chosen.connect(self._take_saved)
        self.saved.said.connect(self.said)
        saved = self._menu_button("saved_filters", self.tr("Saved"), self.saved, self.tr("Saved filters"))
        view = self._menu_button("runs_view_options", self.tr("View"), self._view_menu(), self.tr("Groups, columns"))
        self.facets = {facet: self._facet(facet) for facet in Facet}
        self.hint = QLabel()
        self.hint.setObjectName("runs_filter_hint")
        self.hint.setProperty("role", "caption")
        self.hint.setWordWrap(True)
        self.hint.hide()
        self.clear_button = QToolButton()
        self.clear_button.setObjectName("clear_filter")
        self.clear_button.setText(self.tr("Clear"))
        self.clear_button.setAutoRaise(True)
        self.clear_button.setAccessibleName(self.tr("Clear the filter"))
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
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        layout.addLayout(first)
        layout.addLayout(second)
        layout.addWidget(self.hint)

    # ------------------------------------------------------------------ parts

    def _menu_button(self, name: str, text: str, menu: QMenu, tip: str) -> QToolButton:
        button = QToolButton()
        button.setObjectName(name)
        button.setText(f"{text} ")
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        button.setMenu(menu)
        return button

    def _view_menu(self) -> QMenu:
        menu = QMenu(self)
        menu.setObjectName("runs_view_menu")
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
            "Words are looked for in name, algorithm, environment, worker, tags, notes, state and id.\n"
            "A field: algo:ppo,dqn   status:running   env:*Pole*   tag:paper   seed:1-5   return:>=195   is:archived\n"
            "-word or -field:value leaves out what fits; algo:=ppo means exactly ppo.\n"
            "Fields: {0}"
        ).format(", ".join(FIELD_NAMES))

    # ------------------------------------------------------------------ what others do

    def focus(self) -> None:
        self.field.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.field.selectAll()

    def show_filter(self, wanted: RunFilter) -> None:
        """Show this filter; tells nobody."""
        self.filter = wanted
        was_blocked = self.field.blockSignals(True)
        self.field.setText(wanted.text)
        self.field.blockSignals(was_blocked)
        was_blocked = self.archived_action.blockSignals(True)
        self.archived_action.setChecked(wanted.show_archived)
        self.archived_action.blockSignals(was_blocked)
        for facet, button in self.facets.items():
            button.set_ticked(wanted.facets.get(facet, ()))
        self._show_helpers()

    def show_grouping(self, grouped: bool) -> None:
        blocked = self.group_action.blockSignals(True)
        self.group_action.setChecked(grouped)
        self.group_action.blockSignals(blocked)

    # ------------------------------------------------------------------ what the person does

    def _text_changed(self, text: str) -> None:
        self._change(self.filter.with_text(text))

    def _archived_toggled(self, shown: bool) -> None:
        self._change(RunFilter(self.filter.text, self.filter.facets, shown))

    def _take_saved(self, kept: RunFilter) -> None:
        self._change(kept, show=True)

    def _change(self, wanted: RunFilter, *, show: bool = False) -> None:
        if show:
            self.show_filter(wanted)
        self.filter = wanted
        self._show_helpers()
        self.filter_changed.emit(wanted)

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
