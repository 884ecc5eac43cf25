"""The Disk use page: sizes, suggestions, and deletion after a confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mosaic_wire.paths import Home
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QPushButton, QSpinBox, QSplitter, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, RunNotFound, TrainerError
from gym_gui.services.trainer.run_files import delete_run_files
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.management.disk_survey import (
    CannotPrune,
    DiskSurvey,
    RunUse,
    Suggestion,
    SuggestionKind,
    remove_spare_checkpoints,
    survey,
)
from gym_gui.ui.management.sets_table import SetsProblem, SetsProgram
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import confirm, fill, named, styled
from gym_gui.ui.widgets.tables import ColumnSpec, RowsTable, TableRow
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

_WORTH_PRUNING = 16 << 20
"""Minimal size of unused environments worth a suggestion"""


def with_environments(found: DiskSurvey, client: TrainerClient, home: Home) -> DiskSurvey:
    """Add the unused environments of requirement sets if they are large enough."""
    venvs = home.trainer / "venvs"
    taken = next((share.bytes for share in found.shares if share.path == str(venvs)), 0)
    if taken < _WORTH_PRUNING:
        return found
    try:
        sets = SetsProgram.of(client.workers(), home).list_sets()
    except (SetsProblem, TrainerError):
        return found
    spare = taken - sum(entry.bytes for entry in sets)
    if spare < max(_WORTH_PRUNING, taken // 20):
        return found
    suggestion = Suggestion(
        SuggestionKind.ENVIRONMENTS,
        QCoreApplication.translate("DiskUse", "Environments that are not in use"),
        QCoreApplication.translate(
            "DiskUse", "of requirement sets: superseded, incomplete or merged ones; those that runs use are kept"
        ),
        spare,
        path=str(venvs),
    )
    suggestions = sorted((*found.suggestions, suggestion), key=lambda entry: entry.bytes, reverse=True)
    return replace(found, suggestions=tuple(suggestions), suggestions_in_all=found.suggestions_in_all + 1)


def delete_all(client: TrainerClient, home: Home | None, chosen: Sequence[Suggestion]) -> tuple[int, list[str]]:
    """Delete in the background; return the freed bytes and the errors. A failure does not stop the rest."""
    freed, problems = 0, []
    for suggestion in chosen:
        try:
            freed += _ACTIONS[suggestion.kind](client, home, suggestion)
        except DaemonUnreachable:
            raise
        except (TrainerError, CannotPrune, SetsProblem, OSError) as error:
            problems.append(f"{suggestion.title}: {error}")
    return freed, problems


def _delete_run(client: TrainerClient, _home: Home | None, suggestion: Suggestion) -> int:
    return client.delete(suggestion.run_id)


def _delete_checkpoints(client: TrainerClient, _home: Home | None, suggestion: Suggestion) -> int:
    if client.get(suggestion.run_id).status != RunStatus.TERM:
        raise CannotPrune("it has not finished")
    freed = remove_spare_checkpoints(Path(suggestion.path))
    client.update(suggestion.run_id)  # refresh its size
    return freed


def _delete_orphan(client: TrainerClient, home: Home | None, suggestion: Suggestion) -> int:
    if home is None:
        return 0
    try:
        client.get(suggestion.run_id)
    except RunNotFound:
        return delete_run_files(home, suggestion.run_id)
    raise CannotPrune("a run with this id exists")


def _prune_environments(client: TrainerClient, home: Home | None, _suggestion: Suggestion) -> int:
    if home is None:
        return 0
    result = SetsProgram.of(client.workers(), home).prune().run(lambda _progress: None)
    if not result.succeeded and not result.freed_bytes:
        raise SetsProblem(result.message)
    return result.freed_bytes


_ACTIONS: dict[SuggestionKind, Callable[[TrainerClient, Home | None, Suggestion], int]] = {
    SuggestionKind.RUN: _delete_run,
    SuggestionKind.CHECKPOINTS: _delete_checkpoints,
    SuggestionKind.ORPHAN: _delete_orphan,
    SuggestionKind.ENVIRONMENTS: _prune_environments,
}


OLD_DAYS = 7
_ACTION = 3


class DiskUse(QWidget):
    """Scans when it is first shown and on request, in the background because a scan takes a while."""

    surveyed = Signal()
    run_opened = Signal(str)

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("disk_use")
        self._link, self._background, self._home = link, background, home
        self._survey: DiskSurvey | None = None
        self._suggestions: dict[str, Suggestion] = {}
        self._is_polling = self._polls_again = False
        self._build()
        link.state_changed.connect(self._link_changed)

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.total = named(QLabel(self.tr("–")), "disk_total", role="figure")
        self.free = named(QLabel(), "disk_free", role="caption")
        self.bar = named(QProgressBar(textVisible=True), "disk_bar", self.tr("Disk usage"))
        self.bar.setFixedWidth(self.fontMetrics().horizontalAdvance("m") * 16)
        self.bar.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.refresh_button = named(QPushButton(self.tr("&Refresh")), "refresh_disk")
        self.refresh_button.setAccessibleName(self.tr("Scan the disk again"))
        self.refresh_button.clicked.connect(self.poll)
        head = fill(QHBoxLayout(), self.total, (self.free, 1), self.bar, self.refresh_button)
        layout = fill(QVBoxLayout(self), self.banner, head, margins=12, spacing=10)
        parts = QSplitter(Qt.Orientation.Vertical, childrenCollapsible=False)
        parts.addWidget(self._suggestions_part())
        below = QSplitter(Qt.Orientation.Horizontal, childrenCollapsible=False)
        below.addWidget(self._shares_part())
        below.addWidget(self._runs_part())
        below.setStretchFactor(0, 2)
        below.setStretchFactor(1, 3)
        parts.addWidget(below)
        parts.setStretchFactor(0, 1)
        parts.setStretchFactor(1, 1)
        layout.addWidget(parts, 1)

    def _suggestions_part(self) -> QWidget:
        self.suggestions_title = named(QLabel(self.tr("Can be freed")), "suggestions_title")
        self.older_than = named(QSpinBox(), "older_than", self.tr("Failed runs older than this many days"))
        self.older_than.setRange(0, 3650)
        self.older_than.setValue(OLD_DAYS)
        self.older_than.setSuffix(self.tr(" days"))
        self.older_than.editingFinished.connect(self._days_changed)
        self._days = OLD_DAYS
        label = styled(QLabel(self.tr("&Failed runs older than")), "caption")
        label.setBuddy(self.older_than)
        self.remove_button = named(QPushButton(self.tr("&Delete selected…")), "delete_chosen")
        self.remove_button.setAccessibleName(self.tr("Delete the selected entries"))
        self.remove_button.clicked.connect(self._ask_about_chosen)
        head = fill(QHBoxLayout(), (self.suggestions_title, 1), label, self.older_than, self.remove_button)
        self.suggestions = RowsTable(
            [
                ColumnSpec(self.tr("What"), 30),
                ColumnSpec(self.tr("Why"), 40),
                ColumnSpec(self.tr("Size"), 8, right=True),
                ColumnSpec("", 10),
            ],
            name="suggestions_table",
            accessible=self.tr("Can be freed"),
            stretch=1,
            multiple=True,
        )
        self.suggestions.itemSelectionChanged.connect(
            lambda: self.remove_button.setEnabled(bool(self.suggestions.chosen()))
        )
        self.remove_button.setEnabled(False)
        return _part(head, self.suggestions)

    def _shares_part(self) -> QWidget:
        title = QLabel(self.tr("Content of the home"))
        title.setMinimumHeight(self.remove_button.sizeHint().height())  # align with the title that has a button
        head = fill(QHBoxLayout(), title)
        self.shares = RowsTable(
            [ColumnSpec(self.tr("Part"), 20), ColumnSpec(self.tr("Size"), 8, right=True)],
            name="shares_table",
            accessible=self.tr("Parts of the home"),
            stretch=0,
        )
        return _part(head, self.shares)

    def _runs_part(self) -> QWidget:
        self.runs_title = QLabel(self.tr("Largest runs"))
        head = fill(QHBoxLayout(), (self.runs_title, 1))
        self.delete_run_button = named(QPushButton(self.tr("Delete &run…")), "delete_run")
        self.delete_run_button.setAccessibleName(self.tr("Delete the selected run"))
        self.delete_run_button.setEnabled(False)
        self.delete_run_button.clicked.connect(self._ask_to_delete_run)
        head.addWidget(self.delete_run_button)
        self.runs = RowsTable(
            [
                ColumnSpec(self.tr("Run"), 8),
                ColumnSpec(self.tr("What"), 20),
                ColumnSpec(self.tr("Ended"), 8),
                ColumnSpec(self.tr("Size"), 8, right=True),
            ],
            name="largest_runs",
            accessible=self.tr("Largest runs"),
            stretch=1,
        )
        self.runs.itemSelectionChanged.connect(self._offer_run)
        self.runs.itemActivated.connect(lambda item: self.run_opened.emit(self.runs.key_of(item.row()) or ""))
        return _part(head, self.runs, indent=8)

    # ------------------------------------------------------------------ scanning

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._survey is None:
            self.poll()

    def _link_changed(self, _state: object) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED and self.isVisible() and self._survey is None:
            self.poll()

    def _days_changed(self) -> None:
        if self.older_than.value() != self._days:
            self._days = self.older_than.value()
            self.poll()

    def poll(self) -> None:
        """Scan in the background."""
        if self._is_polling:
            self._polls_again = True
            return
        self._is_polling = True
        self.refresh_button.setEnabled(False)
        if self._survey is None:
            self.banner.set_message(self.tr("Scanning the disk…"))
        home, days = self._home, float(self._days)

        def poll(client: TrainerClient) -> DiskSurvey:
            found = survey(client, home, older_than_days=days)
            return found if home is None else with_environments(found, client, home)

        self._link.call(poll, owner=self, done=self._show, failed=self._failed)

    def _failed(self, text: str) -> None:
        self._is_polling = False
        self.refresh_button.setEnabled(True)
        self.banner.set_message(text, "bad", action=self.tr("Retry"), on_action=self.poll)

    def _show(self, found: DiskSurvey) -> None:
        self._is_polling = False
        self.refresh_button.setEnabled(True)
        if self._survey is None:
            self.banner.clear()
        self._survey = found
        self._show_total(found)
        self._suggestions = {_key(suggestion): suggestion for suggestion in found.suggestions}
        self.suggestions.fill(
            TableRow(
                _key(entry), [self._title(entry), entry.reason, formats.size(entry.bytes), ""], tip=self._tip(entry)
            )
            for entry in found.suggestions
        )
        for row, entry in enumerate(found.suggestions):
            self.suggestions.setCellWidget(row, _ACTION, self._row_button(entry))
        self.suggestions_title.setText(self._freeable_text(found))
        self.shares.fill(
            TableRow(share.title, [share.title, formats.size(share.bytes)], tip=share.path) for share in found.shares
        )
        self.runs.fill(
            TableRow(
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
        self.surveyed.emit()
        if self._polls_again:
            self._polls_again = False
            self.poll()

    def _show_total(self, found: DiskSurvey) -> None:
        self.total.setText(formats.size(found.used_bytes))
        if self._home is None:
            self.free.setText(self.tr("of runs, as the remote daemon reports"))
            self.bar.hide()
            return
        self.free.setText(
            self.tr("in {home}; {free} free").format(home=self._home.root, free=formats.size(found.free_bytes))
        )
        if found.disk_bytes:
            self.bar.setValue(round(100 * (1 - found.free_bytes / found.disk_bytes)))
            self.bar.setFormat(self.tr("disk %p% full"))

    def _freeable_text(self, found: DiskSurvey) -> str:
        if not found.suggestions:
            return self.tr("Nothing to delete: no old failed run, no spare checkpoint, no unused folder")
        size = formats.size(found.freeable_bytes)
        if found.suggestions_in_all > len(found.suggestions):
            return self.tr("{size} can be freed (the {shown} largest of {all})").format(
                shown=len(found.suggestions), all=formats.count(found.suggestions_in_all), size=size
            )
        return self.tr("{} can be freed").format(size)

    def _ended(self, run: RunUse) -> str:
        return self.tr("{} ago").format(formats.age(run.finished_at)) if run.is_over else self.tr("running")

    def _title(self, suggestion: Suggestion) -> str:
        templates = {
            SuggestionKind.RUN: self.tr("Run {}"),
            SuggestionKind.CHECKPOINTS: self.tr("Checkpoints of {}"),
            SuggestionKind.ORPHAN: "{}",
            SuggestionKind.ENVIRONMENTS: "{}",
        }[suggestion.kind]
        named = suggestion.kind in (SuggestionKind.RUN, SuggestionKind.CHECKPOINTS)
        return templates.format(suggestion.title) + (f"  {short_id(suggestion.run_id)}" if named else "")

    def _tip(self, suggestion: Suggestion) -> str:
        return "\n".join(filter(None, (suggestion.title, suggestion.reason, suggestion.path)))

    def _row_button(self, suggestion: Suggestion) -> QPushButton:
        button = QPushButton(
            self.tr("Tidy up…") if suggestion.kind is SuggestionKind.ENVIRONMENTS else self.tr("Delete…")
        )
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
            self.tr("Delete this permanently?")
            if len(chosen) == 1
            else self.tr("Delete these {} permanently?").format(len(chosen))
        )
        confirm(
            self,
            what,
            "\n".join([*shown, "", self.tr("This frees {}. It cannot be undone.").format(size)]),
            yes=self.tr("Delete"),
            on_yes=lambda: self._delete(chosen),
        )

    def _ask_about_chosen(self) -> None:
        self._ask(self.suggestions.chosen())

    def _offer_run(self) -> None:
        uses = {run.run_id: run for run in self._survey.runs} if self._survey is not None else {}
        chosen = [uses[key] for key in self.runs.chosen() if key in uses]
        self.delete_run_button.setEnabled(bool(chosen) and all(run.is_over for run in chosen))

    def _ask_to_delete_run(self) -> None:
        uses = {run.run_id: run for run in self._survey.runs} if self._survey is not None else {}
        chosen = [
            Suggestion(SuggestionKind.RUN, uses[key].name or uses[key].title, "", uses[key].bytes, key)
            for key in self.runs.chosen()
            if key in uses
        ]
        for suggestion in chosen:
            self._suggestions.setdefault(_key(suggestion), suggestion)
        self._ask([_key(suggestion) for suggestion in chosen])

    def _delete(self, chosen: Sequence[Suggestion]) -> None:
        self.banner.set_message(self.tr("Deleting…"))
        self.remove_button.setEnabled(False)
        home = self._home
        self._link.call(
            lambda client: delete_all(client, home, chosen), owner=self, done=self._deleted, failed=self._failed
        )

    def _deleted(self, outcome: tuple[int, list[str]]) -> None:
        freed, problems = outcome
        text = self.tr("{} freed.").format(formats.size(freed))
        if problems:
            self.banner.set_message("\n".join([text, *problems[:5]]), "bad")
        else:
            self.banner.set_message(text)
        self.poll()


def _part(head: QHBoxLayout, table: QWidget, *, indent: int = 0) -> QWidget:
    part = QWidget()
    fill(QVBoxLayout(part), head, (table, 1), margins=(indent, 0, 0, 0), spacing=6)
    return part


def _key(suggestion: Suggestion) -> str:
    return f"{suggestion.kind.value}:{suggestion.run_id or suggestion.path}"
