"""TensorBoard of a run: its server is started when the tab is opened and ended when the tab is left.

The page is shown here where QtWebEngine is installed; else in the browser, and the Charts tab draws the same curves
without either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.services.analytics.configurations import configuration_of
from gym_gui.services.analytics.tensorboard_runs import interpreters_of
from gym_gui.services.analytics.tensorboard_server import TensorBoardProblem, TensorBoardServer
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.presenters.tensorboard_session import TensorBoardSession
from gym_gui.ui.replay.locality import is_on_this_machine
from gym_gui.ui.widgets import web_view
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.browser_offer import BrowserOffer
from gym_gui.ui.widgets.command_button import named_button

LINGER_MS = 60_000
"""How long the server stays when the tab goes to the back: who only looks into the log comes back to it"""
_LOOK_EVERY_MS = 2000
_MOST_RUNS = 200


class TensorBoardTab(RunTab):
    """One server at a time, for the shown run and those that were added."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("tensorboard_tab")
        self.session = TensorBoardSession()
        self.destroyed.connect(self.session.drop)
        self._view: web_view.WebView | None = None
        self._is_starting = False
        self._is_looking = False
        self._gave_up = False
        """It went wrong: not tried again before somebody asks"""
        self._build()
        self._clock = QTimer(self)
        self._clock.setInterval(_LOOK_EVERY_MS)
        self._clock.timeout.connect(self._look)
        self._linger = QTimer(self)
        self._linger.setSingleShot(True)
        self._linger.setInterval(LINGER_MS)
        self._linger.timeout.connect(self._drop)

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.state = QLabel()
        self.state.setObjectName("tensorboard_state")
        self.state.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        menu = QMenu(self)
        menu.setObjectName("tensorboard_add_menu")
        for name, text, choose in (
            ("seeds", self.tr("Other &seeds of this configuration"), self._same_configuration),
            ("tags", self.tr("Runs with the same &tags"), self._same_tags),
            ("chosen", self.tr("Runs &chosen in the list"), self._chosen),
        ):
            action = menu.addAction(text)
            action.setObjectName(f"tensorboard_add_{name}")
            action.triggered.connect(lambda _checked=False, choose=choose: self._add(choose))
        self.add_button = named_button(
            "tensorboard_add", self.tr("&Add runs"), self.tr("Show more runs in TensorBoard")
        )
        self.add_button.setMenu(menu)
        self.reload_button = named_button("tensorboard_reload", self.tr("&Reload"), self.tr("Load the page again"))
        self.reload_button.clicked.connect(self._reload)
        self.browser_button = named_button(
            "tensorboard_browser", self.tr("Open in &browser"), self.tr("Open TensorBoard in the browser")
        )
        self.browser_button.clicked.connect(self._open_in_browser)
        bar = QHBoxLayout()
        bar.setSpacing(6)
        bar.addWidget(self.state, 1)
        for button in (self.add_button, self.reload_button, self.browser_button):
            button.setEnabled(False)
            bar.addWidget(button)
        self.stack = QStackedWidget()
        self.offer = BrowserOffer()
        self.offer.browser_wanted.connect(self._open_in_browser)
        self.offer.charts_wanted.connect(lambda: self.tab_wanted.emit("charts"))
        self.stack.addWidget(self.offer)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 8, 8, 8)
        layout.setSpacing(6)
        layout.addLayout(bar)
        layout.addWidget(self.banner)
        layout.addWidget(self.stack, 1)

    # ------------------------------------------------------------------ RunTab

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._drop()
        if self.is_active:
            self._look()

    def on_status_changed(self) -> None:
        self._look()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active:
            self._linger.stop()
            self._clock.start()
            self._look()
        else:
            self._clock.stop()
            self._linger.start()

    # ------------------------------------------------------------------ the server's life

    def _look(self) -> None:
        """Start what is missing; see whether what runs still does."""
        run = self.run
        if run is None or self._is_starting or self._is_looking or self._gave_up:
            return
        server = self.session.server
        if server is not None:
            if not server.is_running:
                self._fail(self.tr("TensorBoard has ended. {words}").format(words=server.last_words()))
            return
        if not is_on_this_machine(self.link.state.target, run.run_dir):
            self._say_remote(run)
            return
        self._is_looking = True
        run_id = run.run_id
        self.link.background.run(
            lambda: self.session.has_events(run),
            owner=self,
            done=lambda has_events: self._take_look(run_id, has_events),
        )

    def _take_look(self, run_id: str, has_events: bool) -> None:
        self._is_looking = False
        run = self.run
        if run is None or run.run_id != run_id:
            self._look()
        elif not has_events:
            self._say_nothing_yet(run)
        elif self.is_active:
            self._start(run)

    def _start(self, run: pb.Run) -> None:
        self._is_starting = True
        self.banner.clear()
        self.offer.say(self.tr("Starting TensorBoard …"))
        run_id = run.run_id
        # Which workers there are is worth a question only when TensorBoard is not beside us; the answer is cheap.
        self.link.call(
            lambda client: interpreters_of(client, run.worker_type),
            owner=self,
            done=lambda pythons: self._start_with(run_id, pythons),
            failed=lambda _words: self._start_with(run_id, []),
        )

    def _start_with(self, run_id: str, pythons: Sequence[str]) -> None:
        run = self.run
        if run is None or run.run_id != run_id:
            self._is_starting = False
            self._look()
            return

        def failed(error: Exception) -> None:
            if not isinstance(error, TensorBoardProblem):
                raise error
            self._is_starting = False
            if self.run is not None and self.run.run_id == run_id:
                self._fail(str(error))
            else:
                self._look()

        self.link.background.run(
            lambda: self.session.start([run], pythons),
            owner=self,
            done=lambda server: self._show_server(run_id, server),
            failed=failed,
        )

    def _show_server(self, run_id: str, server: TensorBoardServer) -> None:
        self._is_starting = False
        if self.run is None or self.run.run_id != run_id:  # another run was chosen meanwhile
            self._drop()
            self._look()
            return
        if not self.is_active:
            self._linger.start()
        self._tell_address()
        for button in (self.add_button, self.browser_button):
            button.setEnabled(True)
        if web_view.is_installed():
            self._show_page(server.address)
        else:
            self._offer_browser(has_engine=False)

    def _drop(self) -> None:
        """End the server and free the page."""
        self._linger.stop()
        self.session.drop()
        self._gave_up = False
        self.banner.clear()
        self._free_page()
        for button in (self.add_button, self.browser_button, self.reload_button):
            button.setEnabled(False)
        self.state.clear()
        self.offer.say("")

    def _fail(self, words: str) -> None:
        self._drop()
        self._gave_up = True
        self.offer.say(self.tr("The charts of this window need no TensorBoard."))
        self.banner.say(words, "bad", action=self.tr("Try again"), on_action=self._try_again)

    def _try_again(self) -> None:
        self._gave_up = False
        self.banner.clear()
        self._look()

    # ------------------------------------------------------------------ the page

    def _show_page(self, address: str) -> None:
        try:
            if self._view is None:
                self._view = web_view.make_view(self, self._lose_page)
                self.stack.addWidget(self._view.widget)
        except web_view.WebViewProblem as problem:
            self.banner.say(str(problem), "warning")
            self._offer_browser(has_engine=True)
            return
        self.stack.setCurrentWidget(self._view.widget)
        self.reload_button.setEnabled(True)
        self._view.open(f"{address}?darkMode=true" if theme.colours().is_dark else address)

    def _lose_page(self) -> None:
        """The engine's process died: the server is still there for a browser."""
        self._free_page()
        self.reload_button.setEnabled(False)
        self.banner.say(self.tr("The page could not be shown inside the window."), "warning")
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
            self.banner.say(
                self.tr("No browser could be opened. The address is {address}").format(address=server.address),
                "warning",
            )

    # ------------------------------------------------------------------ more runs

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
            return session.add(fitting[:_MOST_RUNS])

        self.link.call(add, owner=self, done=self._tell_added)

    def _tell_added(self, added: int) -> None:
        if added == 0:
            self.banner.say(self.tr("There are no other runs of that kind with event files."))
            return
        self.banner.say(
            self.tr("{count} more: TensorBoard shows them within seconds, or when its page is loaded again.").format(
                count=added
            )
        )
        self._tell_address()

    # ------------------------------------------------------------------ words

    def _tell_address(self) -> None:
        server = self.session.server
        if server is not None:
            count = len(self.session.runs)
            runs = self.tr("1 run") if count == 1 else self.tr("{count} runs").format(count=count)
            self.state.setText(f"{runs}  ·  {server.address}")

    def _say_nothing_yet(self, run: pb.Run) -> None:
        if run.status == "INIT":
            words = self.tr(
                "Not available yet: this run is queued. TensorBoard opens when it has written its first events."
            )
        elif run.status == "TERM":
            words = self.tr("This run left no TensorBoard event files.")
        else:
            words = self.tr("Not available yet: there are no event files. TensorBoard opens when the run writes them.")
        self.banner.say(words)
        self.offer.say("")

    def _say_remote(self, run: pb.Run) -> None:
        self.banner.say(
            self.tr("The event files lie on the daemon's machine ({target}), in {path}. There: mosaic tensorboard "
                    "{run}. The Charts tab shows the curves here.").format(
                target=self.link.state.target, path=run.run_dir, run=run.run_id)
        )  # fmt: skip
        self.offer.say("")
