"""The W&B tab: the hosted page of an online run, or what W&B stored in the run's folder.

The folder is read without the wandb package or a network, also while files grow. An offline run can be synced from
here; the API key is entered once and kept in the secret store.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QProgressBar,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.analytics.wandb_access import SyncFailed, SyncJob, page_of
from gym_gui.services.trainer.errors import SecretStoreError
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.run_files import asks_for_wandb
from gym_gui.ui.run_page.wandb_view import (
    Access,
    WandbReader,
    WandbShown,
    check_access,
    history_keys,
    prepare_sync,
    system_keys,
)
from gym_gui.ui.widgets import web_view
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import AdaptiveSplitter, CodeFont, ElidedLabel, fill, named, push_button, timer
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.ui.widgets.tables import PairsTable
from gym_gui.wording import formats
from gym_gui.wording.run_view import extras_of

if TYPE_CHECKING:
    from gym_gui.ui.charts.board import CurveBoard

_BAR_CHARS = 20


class SyncBar(QWidget):
    """Progress of a sync, hidden until `begin`; wandb does not report a total, so the bar is indeterminate."""

    stopped = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("wandb_sync_strip")
        bar = named(QProgressBar(), "wandb_sync_bar", self.tr("Sending to W&B"))
        bar.setRange(0, 0)
        bar.setMaximumWidth(self.fontMetrics().averageCharWidth() * _BAR_CHARS)
        self.message = named(ElidedLabel(), "wandb_sync_message")
        stop = push_button("wandb_sync_stop", self.tr("Stop"), self.stopped, self.tr("Stop sending to W&B"))
        fill(QHBoxLayout(self), bar, (self.message, 1), stop, margins=0)
        self.hide()

    def begin(self, text: str) -> None:
        self.message.show_text(text)
        self.show()

    def set_message(self, text: str) -> None:
        self.message.show_text(text)


class WandbKeyEntry(QFrame):
    """A field for the API key with Keep and Forget; emits `saved` after a key was stored."""

    saved = Signal()
    forgotten = Signal()

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "wandb_key_entry", role="card")
        self._background = background
        self.field = named(QLineEdit(), "wandb_key", self.tr("API key of Weights & Biases"))
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.setPlaceholderText(self.tr("API key, from wandb.ai/authorize"))
        self.field.setMaxLength(4096)
        self.field.returnPressed.connect(self._keep)
        self.keep_button = push_button(
            "wandb_key_keep", self.tr("Keep"), self._keep, self.tr("Store the key in the secret store")
        )
        self.keep_button.setEnabled(False)
        self.field.textChanged.connect(lambda text: self.keep_button.setEnabled(bool(text.strip())))
        self.forget_button = push_button(
            "wandb_key_forget", self.tr("For&get the key"), self._forget, self.tr("Remove the stored key")
        )
        self.close_button = push_button(
            "wandb_key_close", self.tr("Close"), self.close_entry, self.tr("Close without storing a key")
        )
        self.message = named(QLabel(wordWrap=True), "wandb_key_message", role="caption")
        line = fill(QHBoxLayout(), (self.field, 1), self.keep_button, self.forget_button, self.close_button)
        fill(QVBoxLayout(self), line, self.message, margins=(10, 8, 10, 8))
        self.hide()

    def open_entry(self, place: str) -> None:
        """Show the field; `place` names where a key was found, empty: no key."""
        self.field.clear()
        found = self.tr("A key was found in {place}; one entered here takes precedence.").format(place=place)
        self._set_message(
            (f"{found} " if place else "")
            + self.tr(
                "It is stored in the keyring or, without one, in a file that only you can read; never with your runs."
            )
        )
        self.show()
        self.field.setFocus()

    def close_entry(self) -> None:
        self.field.clear()
        self.hide()

    def _keep(self) -> None:
        key = self.field.text().strip()
        if not key:
            return
        self.field.clear()
        self.setEnabled(False)
        self._run(lambda: UserSecrets().put(WANDB_API_KEY, key), self._on_saved)

    def _on_saved(self) -> None:
        self.hide()
        self.saved.emit()

    def _forget(self) -> None:
        self.setEnabled(False)
        self._run(lambda: UserSecrets().delete(WANDB_API_KEY), self._forgotten)

    def _forgotten(self) -> None:
        self._set_message(self.tr("The stored key was removed."))
        self.forgotten.emit()

    def _run(self, do: Callable[[], None], done: Callable[[], None]) -> None:
        def finish(_result: object) -> None:
            self.setEnabled(True)
            done()

        def failed(error: Exception) -> None:
            if not isinstance(error, SecretStoreError):
                raise error
            self.setEnabled(True)
            self._set_message(str(error), is_problem=True)

        self._background.run(do, owner=self, done=finish, failed=failed)

    def _set_message(self, text: str, *, is_problem: bool = False) -> None:
        self.message.setText(text)
        self.message.setProperty("role", "problem" if is_problem else "caption")
        self.message.style().unpolish(self.message)
        self.message.style().polish(self.message)


class WandbOffline(QWidget):
    """Charts on the left, tables on the right; call `show_shown` whenever the files grew."""

    run_chosen = Signal(str)
    """Id of the selected W&B run, if there are several"""

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("wandb_offline")
        self._background = background
        self._shown = WandbShown()
        self.grids: dict[str, CurveBoard] = {}
        """Return `history` and `system`, once they are loaded."""
        self._build()

    def _build(self) -> None:
        self.facts = named(QLabel(wordWrap=True), "wandb_facts", role="caption")
        self.runs_box = named(QComboBox(), "wandb_runs", self.tr("Which of the W&B runs is shown"))
        self.runs_box.activated.connect(lambda: self.run_chosen.emit(self.runs_box.currentText()))
        self.runs_box.hide()
        head = fill(QHBoxLayout(), (self.facts, 1), self.runs_box)
        self.charts = named(QTabWidget(documentMode=True), "wandb_charts", self.tr("Curves that W&B stored"))
        self._places: dict[str, QWidget] = {}
        for name, title in (("history", self.tr("Histo&ry")), ("system", self.tr("S&ystem"))):
            place = QWidget()
            QVBoxLayout(place).setContentsMargins(0, 0, 0, 0)
            self._places[name] = place
            self.charts.addTab(place, title)
        self.summary = self._table("summary", self.tr("Summary of the W&B run"))
        self.config = self._table("config", self.tr("Config of the W&B run"))
        self.console = named(QPlainTextEdit(), "wandb_console", self.tr("Console output that W&B stored"))
        self.console.setReadOnly(True)
        CodeFont(self.console)
        self.tables = named(QTabWidget(), "wandb_tables", self.tr("Summary, config and console that W&B stored"))
        self.tables.setDocumentMode(True)
        self.tables.addTab(self.summary, self.tr("Su&mmary"))
        self.tables.addTab(self.config, self.tr("Con&fig"))
        self.tables.addTab(self.console, self.tr("Co&nsole"))
        split = AdaptiveSplitter(self.charts, self.tables, beside_from=70, beside=(5, 3), above=(3, 2))
        split.setObjectName("wandb_split")
        fill(QVBoxLayout(self), head, (split, 1), margins=0, spacing=4)

    def _table(self, name: str, accessible: str) -> PairsTable:
        table = named(PairsTable(self.tr("Key"), self.tr("Value"), accessible=accessible), f"wandb_{name}")
        table.horizontalHeader().resizeSection(0, table.fontMetrics().averageCharWidth() * 28)
        return table

    def show_shown(self, shown: WandbShown) -> None:
        """Show the current content of the files."""
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
        if self.grids:
            self._draw()
        else:
            self._background.run(
                lambda: importlib.import_module("gym_gui.ui.charts.board"),
                owner=self,
                done=lambda _module: self._make_grids(),
            )

    def _make_grids(self) -> None:
        from gym_gui.ui.charts.board import CurveBoard

        if not self.grids:
            self.grids = {
                "history": CurveBoard("wandb_history", history_keys),
                "system": CurveBoard("wandb_system", system_keys, has_steps=False),
            }
            for name, grid in self.grids.items():
                layout = self._places[name].layout()
                assert layout is not None
                layout.addWidget(grid)
        self._draw()

    def _draw(self) -> None:
        self.grids["history"].show_curves(
            self._shown.history, self.tr("No history yet. It appears when the run logs its first values.")
        )
        self.grids["system"].show_curves(
            self._shown.system, self.tr("No system metrics yet. W&B samples them every 15 seconds.")
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


READ_EVERY_MS = 2000
_STALE_MS = 300


@dataclass(frozen=True)
class _SyncResult:
    """The outcome of a sync."""

    run_id: str
    failure: str = ""
    url: str = ""


class WandbTab(RunTab):
    """Buttons, a banner, and below them the content of the files or the hosted page."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("wandb_tab")
        self._reader: WandbReader | None = None
        self._chosen = ""
        self._is_reading = False
        self.shown: WandbShown | None = None
        """The content of the shown run's files; None before the first read"""
        self._access = Access()
        self._job: SyncJob | None = None
        self._view: web_view.WebView | None = None
        self._sync_result: _SyncResult | None = None
        """The outcome of the last sync"""
        self._build()
        self._update_buttons()
        self._clock = timer(self, self._read, READ_EVERY_MS)

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.state = named(QLabel(wordWrap=True), "wandb_state")
        self.page_button = push_button(
            "wandb_page", self.tr("Hoste&d page"), self._toggle_page, self.tr("Show the run's page at W&B")
        )
        self.browser_button = push_button(
            "wandb_browser", self.tr("Open in &browser"), self._open_in_browser, self.tr("Open the run's page at W&B")
        )
        self.sync_button = push_button(
            "wandb_sync", self.tr("&Sync now"), self.sync, self.tr("Send this offline run to W&B")
        )
        self.key_button = push_button(
            "wandb_enter_key", self.tr("Enter a &key"), self._enter_key, self.tr("Enter the API key of W&B")
        )
        bar = fill(QHBoxLayout(), (self.state, 1), spacing=6)
        for button in (self.sync_button, self.key_button, self.page_button, self.browser_button):
            bar.addWidget(button)
        self.key_entry = WandbKeyEntry(self.link.background)
        self.key_entry.saved.connect(self._on_key_saved)
        self.key_entry.forgotten.connect(self._check_access)
        self.progress = SyncBar()
        self.progress.stopped.connect(self._stop_sync)
        self.banner = Banner(parent=self)
        self.offline = WandbOffline(self.link.background)
        self.offline.run_chosen.connect(self._choose)
        self.offline.hide()
        self.stack = QStackedWidget()
        holder = QWidget()
        fill(QVBoxLayout(holder), (self.offline, 1), 0, margins=0)
        self.stack.addWidget(holder)
        fill(QVBoxLayout(self), bar, self.key_entry, self.progress, self.banner, (self.stack, 1), margins=8, spacing=6)

    # ------------------------------------------------------------------ RunTab

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._reader, self._chosen, self.shown = WandbReader(run.run_dir), "", None
        self.key_entry.close_entry()
        self.banner.clear()
        self._free_page()
        self.sync_button.setEnabled(False)
        # Hiding and showing again draws twice; usually the new files are read before a user notices the old content.
        QTimer.singleShot(_STALE_MS, self, self._hide_stale)
        if self.is_active:
            self._begin()

    def _hide_stale(self) -> None:
        if self.shown is None:
            self.offline.hide()
            self.state.clear()
            self._update_buttons()

    def on_status_changed(self) -> None:
        self._begin()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active and self.run is not None:
            self._begin()
        elif not active:
            self._clock.stop()

    def _begin(self) -> None:
        run = self.run
        assert run is not None
        self._check_access()
        self._read()
        if run.status == RunStatus.TERM:
            self._clock.stop()
        else:
            self._clock.start()

    # ------------------------------------------------------------------ reading

    def _read(self) -> None:
        run, reader = self.run, self._reader
        if run is None or reader is None or self._is_reading:
            return
        self._is_reading = True
        run_id, chosen = run.run_id, self._chosen

        def read() -> WandbShown:
            reader.move(self.link.local(run, "run/wandb/*").run_dir)
            return reader.read(chosen)

        self.link.background.run(read, owner=self, done=lambda shown: self._apply_shown(run_id, chosen, shown))

    def _apply_shown(self, run_id: str, chosen: str, shown: WandbShown) -> None:
        self._is_reading = False
        if self.run is None or self.run.run_id != run_id or chosen != self._chosen:
            self._read()
            return
        self.shown = shown
        if not shown.snapshot.is_empty:
            self.offline.show_shown(shown)
        if self.offline.isHidden() is not shown.snapshot.is_empty:
            self.offline.setVisible(not shown.snapshot.is_empty)
        self._explain()

    def _choose(self, wandb_id: str) -> None:
        self._chosen = wandb_id
        self._read()

    # ------------------------------------------------------------------ messages

    def page_address(self) -> str:
        """Return the run's page at W&B; empty if it has none."""
        manifest = self.artifacts.manifest if self.artifacts is not None else None
        if manifest is not None and isinstance(url := manifest.extra.get("wandb_url"), str) and url:
            return url
        shown = self.shown
        had_runs = shown is not None and (not shown.is_offline or not shown.unsent) and bool(shown.folders)
        known = (manifest.wandb_run_path if manifest is not None else "") or (shown.run_path if shown else "")
        mode = manifest.extra.get("wandb_mode") if manifest is not None else None
        return page_of(known) if known and (had_runs or mode == "online") else ""

    def _explain(self) -> None:
        run, shown = self.run, self.shown
        if run is None:
            return
        self._update_buttons()
        manifest = self.artifacts.manifest if self.artifacts is not None else None
        trouble = str(manifest.extra.get("wandb_problem") or "") if manifest is not None else ""
        synced = self._sync_result if self._sync_result is not None and self._sync_result.run_id == run.run_id else None
        if not self.link.is_home_here and shown is not None and shown.unsent:
            self.banner.set_message(
                self.tr("It was logged offline. Send it from the daemon's machine: wandb sync {path}").format(
                    path=f"{run.run_dir}/wandb/offline-*"
                )
            )
        elif synced is not None and synced.failure:
            has_key = bool(self._access.key_place)
            action = self.tr("Try again") if has_key else self.tr("Enter a key")
            self.banner.set_message(
                synced.failure, "bad", action=action, on_action=self.sync if has_key else self._enter_key
            )
        elif synced is not None:
            self.banner.set_message(
                self.tr("Sent to W&B."),
                action=self.tr("Open in browser") if synced.url else "",
                on_action=lambda: web_view.open_in_browser(synced.url),
            )
        elif shown is not None and shown.problem:
            self.banner.set_message(shown.problem, "bad", action=self.tr("Retry"), on_action=self._read)
        elif shown is not None and not shown.folders:
            self._show_nothing_yet(run, trouble)
        elif shown is not None and shown.snapshot.skipped_bytes:
            self.banner.set_message(
                self.tr("The W&B file is damaged: {size} could not be read. The rest is shown.").format(
                    size=formats.size(shown.snapshot.skipped_bytes)
                ),
                "warning",
            )
        elif trouble:
            self.banner.set_message(
                self.tr("W&B reported a problem with this run: {why}").format(why=trouble), "warning"
            )
        else:
            self.banner.clear()
        self.state.setText(self._state_text(shown))

    def _show_nothing_yet(self, run: pb.Run, trouble: str) -> None:
        if trouble:
            self.banner.set_message(
                self.tr("W&B reported a problem with this run: {why}").format(why=trouble), "warning"
            )
        elif run.status == RunStatus.TERM:
            self.banner.set_message(
                self.tr("This run left no W&B files.")
                if asks_for_wandb(run)
                else self.tr("This run was not logged to W&B.")
            )
        else:
            self.banner.set_message(
                self.tr("Not available yet: W&B has written nothing. Its files appear when the run starts.")
            )

    def _state_text(self, shown: WandbShown | None) -> str:
        if shown is None or not shown.folders:
            return self.page_address()
        if shown.unsent:
            return self.tr("Offline: stored in the run's folder, not sent to W&B")
        if shown.is_offline:
            return self.tr("Offline run, sent to W&B")
        return self.tr("Online")

    def _update_buttons(self) -> None:
        run, shown = self.run, self.shown
        has_page = bool(self.page_address())
        self.page_button.setVisible(has_page and web_view.is_installed())
        self.page_button.setText(self.tr("Loc&al files") if self._view is not None else self.tr("Hoste&d page"))
        self.browser_button.setVisible(has_page)
        unsent = shown.unsent if shown is not None else ()
        self.sync_button.setVisible(bool(unsent))
        has_ended = run is not None and run.status == RunStatus.TERM
        self.sync_button.setEnabled(has_ended and self._job is None and self.link.is_home_here)
        self.sync_button.setToolTip("" if has_ended else self.tr("The run can be sent after it has ended."))
        self.key_button.setVisible(bool(unsent))
        self.key_button.setText(self.tr("Change the &key") if self._access.key_place else self.tr("Enter a &key"))

    # ------------------------------------------------------------------ the key

    def _check_access(self) -> None:
        run = self.run
        if run is not None:
            run_id, run_dir, extras = run.run_id, run.run_dir, extras_of(run)
            self.link.background.run(
                lambda: check_access(run_dir, extras), owner=self, done=lambda access: self._know(run_id, access)
            )

    def _know(self, run_id: str, access: Access) -> None:
        if self.run is not None and self.run.run_id == run_id:
            self._access = access
            self._update_buttons()

    def _enter_key(self) -> None:
        self.key_entry.open_entry(self._access.key_place)

    def _on_key_saved(self) -> None:
        self._sync_result = None
        self._check_access()
        self._explain()

    # ------------------------------------------------------------------ syncing

    def sync(self) -> None:
        """Sync offline runs; show progress and failures."""
        run, shown = self.run, self.shown
        if run is None or shown is None or not shown.unsent or self._job is not None:
            return
        run_id, run_dir, extras, folders = run.run_id, run.run_dir, extras_of(run), shown.unsent
        manifest = self.artifacts.manifest if self.artifacts is not None else None
        trained_with = manifest.argv if manifest is not None else ()
        self._sync_result = None
        self.banner.clear()
        self.sync_button.setEnabled(False)
        self.progress.begin(self.tr("Searching for the API key and the wandb package …"))

        def failed(error: Exception) -> None:
            if not isinstance(error, SyncFailed):
                raise error
            self._end_sync(_SyncResult(run_id, failure=str(error)))

        self.link.background.run(
            lambda: prepare_sync(run_dir, extras, folders, trained_with),
            owner=self,
            done=lambda job: self._send(run_id, job),
            failed=failed,
        )

    def _send(self, run_id: str, job: SyncJob) -> None:
        self._job = job
        self.destroyed.connect(job.cancel)
        background = self.link.background

        def report(line: str) -> None:
            background.in_window(lambda: self.progress.set_message(line), owner=self)

        def failed(error: Exception) -> None:
            if not isinstance(error, SyncFailed):
                raise error
            self._end_sync(_SyncResult(run_id, failure=str(error)))

        background.run(
            lambda: job.run(report),
            owner=self,
            done=lambda result: self._end_sync(_SyncResult(run_id, url=result.url)),
            failed=failed,
        )

    def _stop_sync(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _end_sync(self, synced: _SyncResult) -> None:
        self._job = None
        self.progress.hide()
        self._sync_result = synced
        self._explain()
        self._read()

    # ------------------------------------------------------------------ the hosted page

    def _toggle_page(self) -> None:
        if self._view is not None:
            self._free_page()
            self._update_buttons()
            return
        try:
            self._view = web_view.make_view(self, self._discard_page)
        except web_view.WebViewProblem as problem:
            self.banner.set_message(str(problem), "warning")
            return
        web_view.use_proxy(self._access.proxy)
        self.stack.addWidget(self._view.widget)
        self.stack.setCurrentWidget(self._view.widget)
        self._view.open(self.page_address())
        self._update_buttons()

    def _discard_page(self) -> None:
        self._free_page()
        self._update_buttons()
        self.banner.set_message(self.tr("The page could not be shown inside the window; a browser can."), "warning")

    def _free_page(self) -> None:
        view, self._view = self._view, None
        self.stack.setCurrentIndex(0)
        if view is not None:
            self.stack.removeWidget(view.widget)
            view.close()

    def _open_in_browser(self) -> None:
        address = self.page_address()
        if address and not web_view.open_in_browser(address):
            self.banner.set_message(
                self.tr("No browser could be opened. The address is {0}").format(address), "warning"
            )
