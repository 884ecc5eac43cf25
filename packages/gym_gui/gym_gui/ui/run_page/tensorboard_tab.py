"""The TensorBoard tab: its server runs while the tab is open.

The page is shown in the window if QtWebEngine is installed, else in the browser. The Charts tab draws the same curves
without either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.services.analytics.configurations import configuration_of
from gym_gui.services.analytics.web_servers import ServerProblem, TensorBoardServer, interpreters_of
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.tensorboard_session import TensorBoardSession
from gym_gui.ui.widgets import web_view
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import CopyLine, fill, named, push_button, timer
from gym_gui.ui.widgets.run_tab import RunTab

_COMMAND_CHARS = 110


class BrowserOffer(QWidget):
    """A message (`set_message`), or a page to open in the browser (`offer`); the Charts tab is always offered."""

    browser_requested = Signal()
    charts_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("browser_offer")
        self.message = named(QLabel(alignment=Qt.AlignmentFlag.AlignCenter, wordWrap=True), "tensorboard_message")
        self.open_button = named(QPushButton(self.tr("Open in browser")), "tensorboard_open", role="primary")
        self.open_button.setAccessibleName(self.tr("Open TensorBoard in the browser"))
        self.open_button.clicked.connect(self.browser_requested)
        self.charts_button = named(QPushButton(self.tr("Show the charts of this window")), "tensorboard_charts")
        self.charts_button.setAccessibleName(self.tr("Show the Charts tab, which needs no TensorBoard"))
        self.charts_button.clicked.connect(self.charts_requested)
        self.engine_text = QLabel(self.tr("To show it in this window, install QtWebEngine (175 MB) and restart:"))
        self.engine_text.setProperty("role", "caption")
        self.engine_text.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.engine_command = CopyLine("tensorboard_engine", self.tr("Command that installs QtWebEngine"))
        self.engine_command.show_text(web_view.INSTALL)
        self.engine_command.setMaximumWidth(self.fontMetrics().averageCharWidth() * _COMMAND_CHARS)
        layout = fill(QVBoxLayout(self), 2, self.message, _centered(self.open_button, self.charts_button), spacing=10)
        layout.addSpacing(12)
        fill(layout, self.engine_text, _centered(self.engine_command, stretch=4), 3)
        self.set_message("")

    def set_message(self, text: str) -> None:
        """Show a message and no page to open."""
        self.message.setText(text)
        for widget in (self.open_button, self.engine_text, self.engine_command):
            widget.hide()

    def offer(self, text: str, *, has_engine: bool) -> None:
        """Offer the page; without QtWebEngine, also explain how to install it."""
        self.message.setText(text)
        self.open_button.show()
        for widget in (self.engine_text, self.engine_command):
            widget.setVisible(not has_engine)


def _centered(*widgets: QWidget, stretch: int = 0) -> QHBoxLayout:
    line = fill(QHBoxLayout(), 1)
    for widget in widgets:
        line.addWidget(widget, stretch)
    line.addStretch(1)
    return line


KEEP_ALIVE_MS = 60_000
"""How long the server outlives the visible tab: users often switch to another tab and back"""
_POLL_EVERY_MS = 2000
_MAX_RUNS = 200


class TensorBoardTab(RunTab):
    """One server at a time, for the shown run and the runs added to it."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("tensorboard_tab")
        self.session = TensorBoardSession()
        self.destroyed.connect(self.session.drop)
        self._view: web_view.WebView | None = None
        self._is_starting = False
        self._is_polling = False
        self._gave_up = False
        """The start failed: wait for the user before retrying"""
        self._build()
        self._clock = timer(self, self._poll, _POLL_EVERY_MS)
        self._keep_alive_timer = timer(self, self._drop, KEEP_ALIVE_MS, single_shot=True)

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.state = named(QLabel(), "tensorboard_state")
        self.state.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        menu = named(QMenu(self), "tensorboard_add_menu")
        for name, text, choose in (
            ("seeds", self.tr("Other &seeds of this configuration"), self._same_configuration),
            ("tags", self.tr("Runs with the same &tags"), self._same_tags),
            ("chosen", self.tr("Runs &selected in the list"), self._chosen),
        ):
            action = menu.addAction(text)
            action.setObjectName(f"tensorboard_add_{name}")
            action.triggered.connect(lambda _checked=False, choose=choose: self._add(choose))
        self.add_button = named(
            QPushButton(self.tr("&Add runs")), "tensorboard_add", self.tr("Show more runs in TensorBoard")
        )
        self.add_button.setMenu(menu)
        self.reload_button = push_button(
            "tensorboard_reload", self.tr("&Reload"), self._reload, self.tr("Load the page again")
        )
        self.browser_button = push_button(
            "tensorboard_browser",
            self.tr("Open in &browser"),
            self._open_in_browser,
            self.tr("Open TensorBoard in the browser"),
        )
        bar = fill(QHBoxLayout(), (self.state, 1), spacing=6)
        for button in (self.add_button, self.reload_button, self.browser_button):
            button.setEnabled(False)
            bar.addWidget(button)
        self.stack = QStackedWidget()
        self.offer = BrowserOffer()
        self.offer.browser_requested.connect(self._open_in_browser)
        self.offer.charts_requested.connect(lambda: self.tab_requested.emit("charts"))
        self.stack.addWidget(self.offer)
        fill(QVBoxLayout(self), bar, self.banner, (self.stack, 1), margins=8, spacing=6)

    # ------------------------------------------------------------------ RunTab

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._drop()
        if self.is_active:
            self._poll()

    def on_status_changed(self) -> None:
        self._poll()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active:
            self._keep_alive_timer.stop()
            self._clock.start()
            self._poll()
        else:
            self._clock.stop()
            self._keep_alive_timer.start()

    # ------------------------------------------------------------------ lifecycle of the server

    def _poll(self) -> None:
        """Start the server if needed; check whether it still runs."""
        run = self.run
        if run is None or self._is_starting or self._is_polling or self._gave_up:
            return
        server = self.session.server
        if server is not None:
            if not server.is_running:
                self._fail(self.tr("TensorBoard has exited. {output}").format(output=server.last_output()))
            return
        if not self.link.is_home_here:
            self._show_remote(run)
            return
        self._is_polling = True
        run_id = run.run_id
        self.link.background.run(
            lambda: self.session.has_events(run),
            owner=self,
            done=lambda has_events: self._apply_scan(run_id, has_events),
        )

    def _apply_scan(self, run_id: str, has_events: bool) -> None:
        self._is_polling = False
        run = self.run
        if run is None or run.run_id != run_id:
            self._poll()
        elif not has_events:
            self._show_nothing_yet(run)
        elif self.is_active:
            self._start(run)

    def _start(self, run: pb.Run) -> None:
        self._is_starting = True
        self.banner.clear()
        self.offer.set_message(self.tr("Starting TensorBoard …"))
        run_id, generation = run.run_id, self.session.generation
        # The workers' environments are searched only if TensorBoard is missing in our own; the request is cheap.
        self.link.call(
            lambda client: interpreters_of(client, run.worker_type),
            owner=self,
            done=lambda pythons: self._start_with(run_id, generation, pythons),
            failed=lambda _error: self._start_with(run_id, generation, []),
        )

    def _start_with(self, run_id: str, generation: int, pythons: Sequence[str]) -> None:
        run = self.run
        if run is None or run.run_id != run_id:
            self._is_starting = False
            self._poll()
            return

        def failed(error: Exception) -> None:
            if not isinstance(error, ServerProblem):
                raise error
            self._is_starting = False
            if self.run is not None and self.run.run_id == run_id:
                self._fail(str(error))
            else:
                self._poll()

        self.link.background.run(
            lambda: self.session.start([run], generation, pythons),
            owner=self,
            done=lambda server: self._show_server(run_id, server),
            failed=failed,
        )

    def _show_server(self, run_id: str, server: TensorBoardServer) -> None:
        self._is_starting = False
        if self.run is None or self.run.run_id != run_id:  # another run was chosen meanwhile
            self._drop()
            self._poll()
            return
        if not self.is_active:
            self._keep_alive_timer.start()
        self._show_address()
        for button in (self.add_button, self.browser_button):
            button.setEnabled(True)
        if web_view.is_installed():
            self._show_page(server.address)
        else:
            self._offer_browser(has_engine=False)

    def _drop(self) -> None:
        """End the server and free the page."""
        self._keep_alive_timer.stop()
        self.session.drop()
        self._gave_up = False
        self.banner.clear()
        self._free_page()
        for button in (self.add_button, self.browser_button, self.reload_button):
            button.setEnabled(False)
        self.state.clear()
        self.offer.set_message("")

    def _fail(self, text: str) -> None:
        self._drop()
        self._gave_up = True
        self.offer.set_message(self.tr("The charts of this window need no TensorBoard."))
        self.banner.set_message(text, "bad", action=self.tr("Try again"), on_action=self._try_again)

    def _try_again(self) -> None:
        self._gave_up = False
        self.banner.clear()
        self._poll()

    # ------------------------------------------------------------------ the page

    def _show_page(self, address: str) -> None:
        try:
            if self._view is None:
                self._view = web_view.make_view(self, self._discard_page)
                self.stack.addWidget(self._view.widget)
        except web_view.WebViewProblem as problem:
            self.banner.set_message(str(problem), "warning")
            self._offer_browser(has_engine=True)
            return
        self.stack.setCurrentWidget(self._view.widget)
        self.reload_button.setEnabled(True)
        self._view.open(f"{address}?darkMode=true" if theme.colors().is_dark else address)

    def _discard_page(self) -> None:
        """Handle the exit of QtWebEngine's process: the server remains available to a browser."""
        self._free_page()
        self.reload_button.setEnabled(False)
        self.banner.set_message(self.tr("The page could not be shown inside the window."), "warning")
        self._offer_browser(has_engine=True)

    def _free_page(self) -> None:
        view, self._view = self._view, None
        self.stack.setCurrentIndex(0)
        if view is not None:
            self.stack.removeWidget(view.widget)
            view.close()

    def _offer_browser(self, *, has_engine: bool) -> None:
        self.offer.offer(self.tr("TensorBoard is running on this machine."), has_engine=has_engine)

    def _reload(self) -> None:
        if self._view is not None:
            self._view.reload()

    def _open_in_browser(self) -> None:
        server = self.session.server
        if server is not None and not web_view.open_in_browser(server.address):
            self.banner.set_message(
                self.tr("No browser could be opened. The address is {address}").format(address=server.address),
                "warning",
            )

    # ------------------------------------------------------------------ adding runs

    def _same_configuration(self, run: pb.Run, other: pb.Run) -> bool:
        return configuration_of(other).family == configuration_of(run).family

    def _same_tags(self, run: pb.Run, other: pb.Run) -> bool:
        return bool(set(run.tags) & set(other.tags))

    def _chosen(self, _run: pb.Run, other: pb.Run) -> bool:
        return other.run_id in self.chosen_runs

    def _add(self, belongs: Callable[[pb.Run, pb.Run], bool]) -> None:
        run, session = self.run, self.session
        if run is None or session.server is None:
            return

        def add(client: TrainerClient) -> int:
            fitting = [other for other in client.list().runs if other.run_id != run.run_id and belongs(run, other)]
            return session.add(fitting[:_MAX_RUNS])

        self.link.call(add, owner=self, done=self._on_added)

    def _on_added(self, added: int) -> None:
        if added == 0:
            self.banner.set_message(self.tr("There are no other such runs with event files."))
            return
        self.banner.set_message(
            self.tr("{count} more: TensorBoard shows them within seconds, or after a reload of its page.").format(
                count=added
            )
        )
        self._show_address()

    # ------------------------------------------------------------------ messages

    def _show_address(self) -> None:
        server = self.session.server
        if server is not None:
            count = len(self.session.runs)
            runs = self.tr("1 run") if count == 1 else self.tr("{count} runs").format(count=count)
            self.state.setText(f"{runs}  ·  {server.address}")

    def _show_nothing_yet(self, run: pb.Run) -> None:
        if run.status == RunStatus.INIT:
            text = self.tr(
                "Not available yet: this run is queued. TensorBoard opens after the first events are written."
            )
        elif run.status == RunStatus.TERM:
            text = self.tr("This run left no TensorBoard event files.")
        else:
            text = self.tr("Not available yet: there are no event files. TensorBoard opens when the run writes them.")
        self.banner.set_message(text)
        self.offer.set_message("")

    def _show_remote(self, run: pb.Run) -> None:
        self.banner.set_message(
            self.tr(
                "The event files are on the daemon's machine ({target}), in {path}. There: mosaic tensorboard "
                "{run}. The Charts tab shows the curves here."
            ).format(target=self.link.state.target, path=run.run_dir, run=run.run_id)
        )
        self.offer.set_message("")
