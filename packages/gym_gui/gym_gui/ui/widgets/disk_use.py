"""Disk use of a home: what takes how much, and what could go. Nothing is deleted before it was confirmed."""

from __future__ import annotations

from collections.abc import Sequence

from mosaic_wire.paths import Home
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSpinBox,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.management.clean_up import delete_all, with_environments
from gym_gui.ui.management.disk_survey import DiskSurvey, Kind, RunUse, Suggestion, survey
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.confirm import confirm
from gym_gui.ui.widgets.rows_table import ColumnSpec, Row, RowsTable
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

OLD_DAYS = 7
_ACTION = 3


class DiskUse(QWidget):
    """Looks when it is first seen and on request: walking through a home takes a while, in the background."""

    looked = Signal()
    run_opened = Signal(str)

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("disk_use")
        self._link, self._background, self._home = link, background, home
        self._survey: DiskSurvey | None = None
        self._suggestions: dict[str, Suggestion] = {}
        self._is_looking = self._looks_again = False
        self._build()
        link.state_changed.connect(self._link_changed)

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.total = QLabel(self.tr("–"))
        self.total.setObjectName("disk_total")
        self.total.setProperty("role", "figure")
        self.free = QLabel()
        self.free.setObjectName("disk_free")
        self.free.setProperty("role", "caption")
        self.bar = QProgressBar()
        self.bar.setObjectName("disk_bar")
        self.bar.setAccessibleName(self.tr("How full the disk is"))
        self.bar.setTextVisible(True)
        self.bar.setFixedWidth(self.fontMetrics().horizontalAdvance("m") * 16)
        self.bar.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.refresh_button = QPushButton(self.tr("&Look again"))
        self.refresh_button.setObjectName("refresh_disk")
        self.refresh_button.setAccessibleName(self.tr("Look at the disk again"))
        self.refresh_button.clicked.connect(self.look)
        head = QHBoxLayout()
        head.addWidget(self.total)
        head.addWidget(self.free, 1)
        head.addWidget(self.bar)
        head.addWidget(self.refresh_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(10)
        layout.addWidget(self.banner)
        layout.addLayout(head)
        parts = QSplitter(Qt.Orientation.Vertical)
        parts.setChildrenCollapsible(False)
        parts.addWidget(self._suggestions_part())
        below = QSplitter(Qt.Orientation.Horizontal)
        below.setChildrenCollapsible(False)
        below.addWidget(self._shares_part())
        below.addWidget(self._runs_part())
        below.setStretchFactor(0, 2)
        below.setStretchFactor(1, 3)
        parts.addWidget(below)
        parts.setStretchFactor(0, 1)
        parts.setStretchFactor(1, 1)
        layout.addWidget(parts, 1)

    def _suggestions_part(self) -> QWidget:
        self.suggestions_title = QLabel(self.tr("Can be freed"))
        self.suggestions_title.setObjectName("suggestions_title")
        self.older_than = QSpinBox()
        self.older_than.setObjectName("older_than")
        self.older_than.setAccessibleName(self.tr("Failed runs older than so many days"))
        self.older_than.setRange(0, 3650)
        self.older_than.setValue(OLD_DAYS)
        self.older_than.setSuffix(self.tr(" days"))
        self.older_than.editingFinished.connect(self._days_changed)
        self._days = OLD_DAYS
        label = QLabel(self.tr("&Failed runs older than"))
        label.setProperty("role", "caption")
        label.setBuddy(self.older_than)
        self.remove_button = QPushButton(self.tr("&Delete chosen…"))
        self.remove_button.setObjectName("delete_chosen")
        self.remove_button.setAccessibleName(self.tr("Delete what is chosen"))
        self.remove_button.clicked.connect(self._ask_about_chosen)
        head = QHBoxLayout()
        head.addWidget(self.suggestions_title, 1)
        head.addWidget(label)
        head.addWidget(self.older_than)
        head.addWidget(self.remove_button)
        self.suggestions = RowsTable(
            [
                ColumnSpec(self.tr("What"), 30), ColumnSpec(self.tr("Why"), 40),
                ColumnSpec(self.tr("Size"), 8, right=True), ColumnSpec("", 10),
            ],
            name="suggestions_table", accessible=self.tr("Can be freed"), stretch=1, multiple=True,
        )  # fmt: skip
        self.suggestions.itemSelectionChanged.connect(
            lambda: self.remove_button.setEnabled(bool(self.suggestions.chosen()))
        )
        self.remove_button.setEnabled(False)
        return _part(head, self.suggestions)

    def _shares_part(self) -> QWidget:
        title = QLabel(self.tr("What the home holds"))
        title.setMinimumHeight(self.remove_button.sizeHint().height())  # as high as its neighbour with a button
        head = QHBoxLayout()
        head.addWidget(title)
        self.shares = RowsTable(
            [ColumnSpec(self.tr("Part"), 20), ColumnSpec(self.tr("Size"), 8, right=True)],
            name="shares_table", accessible=self.tr("Parts of the home"), stretch=0,
        )  # fmt: skip
        return _part(head, self.shares)

    def _runs_part(self) -> QWidget:
        self.runs_title = QLabel(self.tr("Largest runs"))
        head = QHBoxLayout()
        head.addWidget(self.runs_title, 1)
        self.delete_run_button = QPushButton(self.tr("Delete &run…"))
        self.delete_run_button.setObjectName("delete_run")
        self.delete_run_button.setAccessibleName(self.tr("Delete the chosen run"))
        self.delete_run_button.setEnabled(False)
        self.delete_run_button.clicked.connect(self._ask_to_delete_run)
        head.addWidget(self.delete_run_button)
        self.runs = RowsTable(
            [
                ColumnSpec(self.tr("Run"), 8), ColumnSpec(self.tr("What"), 20), ColumnSpec(self.tr("Ended"), 8),
                ColumnSpec(self.tr("Size"), 8, right=True),
            ],
            name="largest_runs", accessible=self.tr("Largest runs"), stretch=1,
        )  # fmt: skip
        self.runs.itemSelectionChanged.connect(self._offer_run)
        self.runs.itemActivated.connect(lambda item: self.run_opened.emit(self.runs.key_of(item.row()) or ""))
        return _part(head, self.runs, indent=8)

    # ------------------------------------------------------------------ looking

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._survey is None:
            self.look()

    def _link_changed(self, _state: object) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED and self.isVisible() and self._survey is None:
            self.look()

    def _days_changed(self) -> None:
        if self.older_than.value() != self._days:
            self._days = self.older_than.value()
            self.look()

    def look(self) -> None:
        """Ask and walk, in the background."""
        if self._is_looking:
            self._looks_again = True
            return
        self._is_looking = True
        self.refresh_button.setEnabled(False)
        if self._survey is None:
            self.banner.say(self.tr("Looking at the disk…"))
        home, days = self._home, float(self._days)

        def look(client: TrainerClient) -> DiskSurvey:
            found = survey(client, home, older_than_days=days)
            return found if home is None else with_environments(found, client, home)

        self._link.call(look, owner=self, done=self._show, failed=self._failed)

    def _failed(self, words: str) -> None:
        self._is_looking = False
        self.refresh_button.setEnabled(True)
        self.banner.say(words, "bad", action=self.tr("Try again"), on_action=self.look)

    def _show(self, found: DiskSurvey) -> None:
        self._is_looking = False
        self.refresh_button.setEnabled(True)
        if self._survey is None:
            self.banner.clear()
        self._survey = found
        self._show_total(found)
        self._suggestions = {_key(suggestion): suggestion for suggestion in found.suggestions}
        self.suggestions.fill(
            Row(_key(entry), [self._title(entry), entry.reason, formats.size(entry.bytes), ""], tip=self._tip(entry))
            for entry in found.suggestions
        )
        for row, entry in enumerate(found.suggestions):
            self.suggestions.setCellWidget(row, _ACTION, self._row_button(entry))
        self.suggestions_title.setText(self._gain(found))
        self.shares.fill(
            Row(share.title, [share.title, formats.size(share.bytes)], tip=share.path) for share in found.shares
        )
        self.runs.fill(
            Row(
                run.run_id,
                [short_id(run.run_id), run.name or run.title, self._ended(run), formats.size(run.bytes)],
                tip=run.title,
            )
            for run in found.runs
        )
        self.runs_title.setText(
            self.tr("The {shown} largest of {all} runs").format(
                shown=len(found.runs), all=formats.count(found.runs_in_all)
            )
        )
        self.looked.emit()
        if self._looks_again:
            self._looks_again = False
            self.look()

    def _show_total(self, found: DiskSurvey) -> None:
        self.total.setText(formats.size(found.used_bytes))
        if self._home is None:
            self.free.setText(self.tr("of runs, as the daemon on the other machine says"))
            self.bar.hide()
            return
        self.free.setText(
            self.tr("in {home}; {free} free").format(home=self._home.root, free=formats.size(found.free_bytes))
        )
        if found.disk_bytes:
            self.bar.setValue(round(100 * (1 - found.free_bytes / found.disk_bytes)))
            self.bar.setFormat(self.tr("disk %p% full"))

    def _gain(self, found: DiskSurvey) -> str:
        if not found.suggestions:
            return self.tr("Nothing needs to go: no old failed run, no spare checkpoint, nobody's folder")
        size = formats.size(found.bytes_to_gain)
        if found.suggestions_in_all > len(found.suggestions):
            return self.tr("{size} can be freed (the {shown} largest of {all})").format(
                shown=len(found.suggestions), all=formats.count(found.suggestions_in_all), size=size
            )
        return self.tr("{} can be freed").format(size)

    def _ended(self, run: RunUse) -> str:
        return self.tr("{} ago").format(formats.age(run.finished_at)) if run.is_over else self.tr("goes on")

    def _title(self, suggestion: Suggestion) -> str:
        words = {
            Kind.RUN: self.tr("Run {}"), Kind.CHECKPOINTS: self.tr("Checkpoints of {}"), Kind.ORPHAN: "{}",
            Kind.ENVIRONMENTS: "{}",
        }[suggestion.kind]  # fmt: skip
        named = suggestion.kind in (Kind.RUN, Kind.CHECKPOINTS)
        return words.format(suggestion.title) + (f"  {short_id(suggestion.run_id)}" if named else "")

    def _tip(self, suggestion: Suggestion) -> str:
        return "\n".join(filter(None, (suggestion.title, suggestion.reason, suggestion.path)))

    def _row_button(self, suggestion: Suggestion) -> QPushButton:
        button = QPushButton(self.tr("Tidy up…") if suggestion.kind is Kind.ENVIRONMENTS else self.tr("Delete…"))
        button.setObjectName("suggestion_button")
        button.setAccessibleName(self.tr("Delete {}").format(self._title(suggestion)))
        key = _key(suggestion)
        button.clicked.connect(lambda: self._ask([key]))
        return button

    # ------------------------------------------------------------------ deleting

    def _ask(self, keys: Sequence[str]) -> None:
        chosen = [self._suggestions[key] for key in keys if key in self._suggestions]
        if not chosen:
            return
        size = formats.size(sum(suggestion.bytes for suggestion in chosen))
        shown = [f"{self._title(entry)} ({formats.size(entry.bytes)})" for entry in chosen[:8]]
        if len(chosen) > len(shown):
            shown.append(self.tr("and {} more").format(len(chosen) - len(shown)))
        what = (
            self.tr("Delete this for good?")
            if len(chosen) == 1
            else self.tr("Delete these {} for good?").format(len(chosen))
        )
        confirm(
            self, what, "\n".join([*shown, "", self.tr("This frees {}. It cannot be undone.").format(size)]),
            yes=self.tr("Delete"), on_yes=lambda: self._delete(chosen),
        )  # fmt: skip

    def _ask_about_chosen(self) -> None:
        self._ask(self.suggestions.chosen())

    def _offer_run(self) -> None:
        uses = {run.run_id: run for run in self._survey.runs} if self._survey is not None else {}
        chosen = [uses[key] for key in self.runs.chosen() if key in uses]
        self.delete_run_button.setEnabled(bool(chosen) and all(run.is_over for run in chosen))

    def _ask_to_delete_run(self) -> None:
        uses = {run.run_id: run for run in self._survey.runs} if self._survey is not None else {}
        chosen = [
            Suggestion(Kind.RUN, uses[key].name or uses[key].title, "", uses[key].bytes, key)
            for key in self.runs.chosen() if key in uses
        ]  # fmt: skip
        for suggestion in chosen:
            self._suggestions.setdefault(_key(suggestion), suggestion)
        self._ask([_key(suggestion) for suggestion in chosen])

    def _delete(self, chosen: Sequence[Suggestion]) -> None:
        self.banner.say(self.tr("Deleting…"))
        self.remove_button.setEnabled(False)
        home = self._home
        self._link.call(
            lambda client: delete_all(client, home, chosen), owner=self, done=self._deleted, failed=self._failed
        )

    def _deleted(self, outcome: tuple[int, list[str]]) -> None:
        freed, problems = outcome
        words = self.tr("{} became free.").format(formats.size(freed))
        if problems:
            self.banner.say("\n".join([words, *problems[:5]]), "bad")
        else:
            self.banner.say(words)
        self.look()


def _part(head: QHBoxLayout, table: QWidget, *, indent: int = 0) -> QWidget:
    part = QWidget()
    layout = QVBoxLayout(part)
    layout.setContentsMargins(indent, 0, 0, 0)
    layout.setSpacing(6)
    layout.addLayout(head)
    layout.addWidget(table, 1)
    return part


def _key(suggestion: Suggestion) -> str:
    return f"{suggestion.kind.value}:{suggestion.run_id or suggestion.path}"
