"""Weights & Biases of a run: its hosted page when it is online, what W&B keeps in the run's folder when it is not.

The folder is read without W&B's package and without a network, also while the file grows. An offline run can be sent
from here; the key that needs is entered once and kept in the secret store.
"""

from __future__ import annotations

from dataclasses import dataclass

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.services.analytics.wandb_access import page_of
from gym_gui.services.analytics.wandb_sync import SyncFailed, SyncJob
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.presenters.analytics_artefacts import asks_for_wandb, extras_of
from gym_gui.ui.presenters.wandb_tasks import Access, look_at_access, prepare_sync
from gym_gui.ui.presenters.wandb_view import WandbReader, WandbShown
from gym_gui.ui.replay.locality import is_on_this_machine
from gym_gui.ui.widgets import web_view
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.command_button import named_button
from gym_gui.ui.widgets.sync_strip import SyncStrip
from gym_gui.ui.widgets.wandb_key import WandbKeyEntry
from gym_gui.ui.widgets.wandb_offline import WandbOffline
from gym_gui.wording import formats

READ_EVERY_MS = 2000
_STALE_MS = 300


@dataclass(frozen=True)
class _SyncSaid:
    """How sending a run ended."""

    run_id: str
    failure: str = ""
    url: str = ""


class WandbTab(RunTab):
    """Buttons, a banner, and below it the files' content or the hosted page."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("wandb_tab")
        self._reader: WandbReader | None = None
        self._chosen = ""
        self._is_reading = False
        self.shown: WandbShown | None = None
        """What was read of the shown run; None before"""
        self._access = Access()
        self._job: SyncJob | None = None
        self._view: web_view.WebView | None = None
        self._said: _SyncSaid | None = None
        """How the last sync ended"""
        self._build()
        self._update_buttons()
        self._clock = QTimer(self)
        self._clock.setInterval(READ_EVERY_MS)
        self._clock.timeout.connect(self._read)

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.state = QLabel()
        self.state.setObjectName("wandb_state")
        self.state.setWordWrap(True)
        self.page_button = named_button("wandb_page", self.tr("&Hosted page"), self.tr("Show the run's page at W&B"))
        self.page_button.clicked.connect(self._toggle_page)
        self.browser_button = named_button(
            "wandb_browser", self.tr("Open in &browser"), self.tr("Open the run's page at W&B")
        )
        self.browser_button.clicked.connect(self._open_in_browser)
        self.sync_button = named_button("wandb_sync", self.tr("S&ync now"), self.tr("Send this offline run to W&B"))
        self.sync_button.clicked.connect(self.sync)
        self.key_button = named_button("wandb_enter_key", self.tr("Enter a &key"), self.tr("Enter the API key of W&B"))
        self.key_button.clicked.connect(self._enter_key)
        bar = QHBoxLayout()
        bar.setSpacing(6)
        bar.addWidget(self.state, 1)
        for button in (self.sync_button, self.key_button, self.page_button, self.browser_button):
            bar.addWidget(button)
        self.key_entry = WandbKeyEntry(self.link.background)
        self.key_entry.kept.connect(self._on_key_kept)
        self.key_entry.forgotten.connect(self._look_at_access)
        self.progress = SyncStrip()
        self.progress.stopped.connect(self._stop_sync)
        self.banner = Banner(parent=self)
        self.offline = WandbOffline(self.link.background)
        self.offline.run_chosen.connect(self._choose)
        self.offline.hide()
        self.stack = QStackedWidget()
        holder = QWidget()
        inside = QVBoxLayout(holder)
        inside.setContentsMargins(0, 0, 0, 0)
        inside.addWidget(self.offline, 1)
        inside.addStretch(0)
        self.stack.addWidget(holder)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 8, 8, 8)
        layout.setSpacing(6)
        layout.addLayout(bar)
        for widget in (self.key_entry, self.progress, self.banner):
            layout.addWidget(widget)
        layout.addWidget(self.stack, 1)

    # ------------------------------------------------------------------ RunTab

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._reader, self._chosen, self.shown = WandbReader(run.run_dir), "", None
        self.key_entry.close_entry()
        self.banner.clear()
        self._free_page()
        self.sync_button.setEnabled(False)
        # Hiding and showing draws everything twice; most files are read before anybody could read what is stale.
        QTimer.singleShot(_STALE_MS, self, self._hide_what_is_stale)
        if self.is_active:
            self._begin()

    def _hide_what_is_stale(self) -> None:
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
        self._look_at_access()
        self._read()
        if run.status == "TERM":
            self._clock.stop()
        else:
            self._clock.start()

    # ------------------------------------------------------------------ reading

    def _read(self) -> None:
        run, reader = self.run, self._reader
        if run is None or reader is None or self._is_reading:
            return
        if not is_on_this_machine(self.link.state.target, run.run_dir):
            self._explain()
            return
        self._is_reading = True
        run_id, chosen = run.run_id, self._chosen
        self.link.background.run(
            lambda: reader.read(chosen), owner=self, done=lambda shown: self._take(run_id, chosen, shown)
        )

    def _take(self, run_id: str, chosen: str, shown: WandbShown) -> None:
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

    # ------------------------------------------------------------------ words

    def page_address(self) -> str:
        """The run's page at W&B; empty while it has none."""
        manifest = self.artefacts.manifest if self.artefacts is not None else None
        if manifest is not None and isinstance(url := manifest.extra.get("wandb_url"), str) and url:
            return url
        shown = self.shown
        was_there = shown is not None and (not shown.is_offline or not shown.unsent) and bool(shown.folders)
        known = (manifest.wandb_run_path if manifest is not None else "") or (shown.run_path if shown else "")
        mode = manifest.extra.get("wandb_mode") if manifest is not None else None
        return page_of(known) if known and (was_there or mode == "online") else ""

    def _explain(self) -> None:
        run, shown = self.run, self.shown
        if run is None:
            return
        self._update_buttons()
        manifest = self.artefacts.manifest if self.artefacts is not None else None
        trouble = str(manifest.extra.get("wandb_problem") or "") if manifest is not None else ""
        said = self._said if self._said is not None and self._said.run_id == run.run_id else None
        if not is_on_this_machine(self.link.state.target, run.run_dir):
            self.banner.say(
                self.tr("What W&B kept lies on the daemon's machine ({target}), in {path}/wandb.").format(
                    target=self.link.state.target, path=run.run_dir
                )
            )
        elif said is not None and said.failure:
            has_key = bool(self._access.key_place)
            action = self.tr("Try again") if has_key else self.tr("Enter a key")
            self.banner.say(said.failure, "bad", action=action, on_action=self.sync if has_key else self._enter_key)
        elif said is not None:
            self.banner.say(
                self.tr("Sent to W&B."),
                action=self.tr("Open in browser") if said.url else "",
                on_action=lambda: web_view.open_in_browser(said.url),
            )
        elif shown is not None and shown.problem:
            self.banner.say(shown.problem, "bad", action=self.tr("Read again"), on_action=self._read)
        elif shown is not None and not shown.folders:
            self._say_nothing_yet(run, trouble)
        elif shown is not None and shown.snapshot.skipped_bytes:
            self.banner.say(
                self.tr("The file of W&B is damaged: {size} could not be read. Everything else is shown.").format(
                    size=formats.size(shown.snapshot.skipped_bytes)
                ),
                "warning",
            )
        elif trouble:
            self.banner.say(self.tr("W&B had trouble with this run: {why}").format(why=trouble), "warning")
        else:
            self.banner.clear()
        self.state.setText(self._state_words(shown))

    def _say_nothing_yet(self, run: pb.Run, trouble: str) -> None:
        if trouble:
            self.banner.say(self.tr("W&B had trouble with this run: {why}").format(why=trouble), "warning")
        elif run.status == "TERM":
            self.banner.say(
                self.tr("This run left no files of W&B.")
                if asks_for_wandb(run)
                else self.tr("This run was not logged to W&B.")
            )
        else:
            self.banner.say(
                self.tr("Not available yet: W&B has written nothing. Its files appear when the run begins.")
            )

    def _state_words(self, shown: WandbShown | None) -> str:
        if shown is None or not shown.folders:
            return self.page_address()
        if shown.unsent:
            return self.tr("Offline: kept in the run's folder, not sent to W&B")
        if shown.is_offline:
            return self.tr("Offline run, sent to W&B")
        return self.tr("Online")

    def _update_buttons(self) -> None:
        run, shown = self.run, self.shown
        has_page = bool(self.page_address())
        self.page_button.setVisible(has_page and web_view.is_installed())
        self.page_button.setText(self.tr("What lies &here") if self._view is not None else self.tr("&Hosted page"))
        self.browser_button.setVisible(has_page)
        unsent = shown.unsent if shown is not None else ()
        self.sync_button.setVisible(bool(unsent))
        has_ended = run is not None and run.status == "TERM"
        self.sync_button.setEnabled(has_ended and self._job is None)
        self.sync_button.setToolTip("" if has_ended else self.tr("When the run has ended, it can be sent."))
        self.key_button.setVisible(bool(unsent))
        self.key_button.setText(self.tr("Change the &key") if self._access.key_place else self.tr("Enter a &key"))

    # ------------------------------------------------------------------ the key

    def _look_at_access(self) -> None:
        run = self.run
        if run is not None:
            run_id, run_dir, extras = run.run_id, run.run_dir, extras_of(run)
            self.link.background.run(
                lambda: look_at_access(run_dir, extras), owner=self, done=lambda access: self._know(run_id, access)
            )

    def _know(self, run_id: str, access: Access) -> None:
        if self.run is not None and self.run.run_id == run_id:
            self._access = access
            self._update_buttons()

    def _enter_key(self) -> None:
        self.key_entry.open_entry(self._access.key_place)

    def _on_key_kept(self) -> None:
        self._said = None
        self._look_at_access()
        self._explain()

    # ------------------------------------------------------------------ sending

    def sync(self) -> None:
        """Send what is offline; progress and failure are shown here."""
        run, shown = self.run, self.shown
        if run is None or shown is None or not shown.unsent or self._job is not None:
            return
        run_id, run_dir, extras, folders = run.run_id, run.run_dir, extras_of(run), shown.unsent
        manifest = self.artefacts.manifest if self.artefacts is not None else None
        trained_with = manifest.argv if manifest is not None else ()
        self._said = None
        self.banner.clear()
        self.sync_button.setEnabled(False)
        self.progress.begin(self.tr("Looking for the key and for the package wandb …"))

        def failed(error: Exception) -> None:
            if not isinstance(error, SyncFailed):
                raise error
            self._end_sync(_SyncSaid(run_id, failure=str(error)))

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
            background.in_window(lambda: self.progress.tell(line), owner=self)

        def failed(error: Exception) -> None:
            if not isinstance(error, SyncFailed):
                raise error
            self._end_sync(_SyncSaid(run_id, failure=str(error)))

        background.run(
            lambda: job.run(report),
            owner=self,
            done=lambda result: self._end_sync(_SyncSaid(run_id, url=result.url)),
            failed=failed,
        )

    def _stop_sync(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _end_sync(self, said: _SyncSaid) -> None:
        self._job = None
        self.progress.hide()
        self._said = said
        self._explain()
        self._read()

    # ------------------------------------------------------------------ the hosted page

    def _toggle_page(self) -> None:
        if self._view is not None:
            self._free_page()
            self._update_buttons()
            return
        try:
            self._view = web_view.make_view(self, self._lose_page)
        except web_view.WebViewProblem as problem:
            self.banner.say(str(problem), "warning")
            return
        web_view.use_proxy(self._access.proxy)
        self.stack.addWidget(self._view.widget)
        self.stack.setCurrentWidget(self._view.widget)
        self._view.open(self.page_address())
        self._update_buttons()

    def _lose_page(self) -> None:
        self._free_page()
        self._update_buttons()
        self.banner.say(self.tr("The page could not be shown inside the window; a browser can."), "warning")

    def _free_page(self) -> None:
        view, self._view = self._view, None
        self.stack.setCurrentIndex(0)
        if view is not None:
            self.stack.removeWidget(view.widget)
            view.close()

    def _open_in_browser(self) -> None:
        address = self.page_address()
        if address and not web_view.open_in_browser(address):
            self.banner.say(self.tr("No browser could be opened. The address is {0}").format(address), "warning")
