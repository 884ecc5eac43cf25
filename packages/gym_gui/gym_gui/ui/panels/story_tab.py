"""The story of a run: every event the daemon noted, as it comes."""

from __future__ import annotations

from collections.abc import Iterable

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.panels.run_words import event_word
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.timeline import TimelineModel, TimelineView
from gym_gui.wording import formats


class StoryTab(RunTab):
    """Events below each other, newest at the end; they arrive by themselves."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("story_tab")
        self.banner = Banner(parent=self)
        self.model = TimelineModel(event_word, self)
        self.view = TimelineView(self.model)
        self.count_label = QLabel()
        self.count_label.setObjectName("story_count")
        self.count_label.setProperty("role", "caption")
        self.expand_button = QPushButton(self.tr("&Expand all"))
        self.expand_button.setObjectName("story_expand")
        self.expand_button.setAccessibleName(self.tr("Show what every event told"))
        self.expand_button.clicked.connect(self.view.expandAll)
        self.collapse_button = QPushButton(self.tr("C&ollapse all"))
        self.collapse_button.setObjectName("story_collapse")
        self.collapse_button.setAccessibleName(self.tr("Hide what events told"))
        self.collapse_button.clicked.connect(self.view.collapseAll)
        bar = QHBoxLayout()
        bar.addWidget(self.count_label, 1)
        bar.addWidget(self.expand_button)
        bar.addWidget(self.collapse_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 8, 8, 8)
        layout.setSpacing(6)
        layout.addWidget(self.banner)
        layout.addLayout(bar)
        layout.addWidget(self.view, 1)
        QShortcut(
            QKeySequence.StandardKey.Copy, self.view, self._copy, context=Qt.ShortcutContext.WidgetWithChildrenShortcut
        )
        link.happened.connect(self._on_happened)
        link.runs_loaded.connect(lambda _runs: self._ask())

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self.model.clear()
        self.banner.clear()
        self._say_count()
        self._ask()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        self._ask()

    def _ask(self) -> None:
        """Ask for what is missing: at first everything, after an absence of the daemon only what came since."""
        run = self.run
        if run is None or not self.is_active:
            return
        run_id, since = run.run_id, self.model.last_seq
        self.link.call(
            lambda client: list(client.story(run_id, since_seq=since)),
            owner=self,
            done=lambda events: self._take(run_id, events),
            failed=lambda words: self._complain(run_id, words),
        )

    def _on_happened(self, events: tuple[pb.StoryEvent, ...]) -> None:
        if self.run is not None and self.is_active:
            self._take(self.run.run_id, events)

    def _take(self, run_id: str, events: Iterable[pb.StoryEvent]) -> None:
        if self.run is None or run_id != self.run.run_id:
            return  # another run was chosen meanwhile
        self.banner.clear()
        bar = self.view.verticalScrollBar()
        was_at_end = bar.value() >= bar.maximum()
        own = [event for event in events if event.run_id == run_id]
        if self.model.add(own) and was_at_end and self.run.status != "TERM":
            self.view.scrollToBottom()
        self._say_count()

    def _complain(self, run_id: str, words: str) -> None:
        if self.run is not None and run_id == self.run.run_id:
            self.banner.say(
                self.tr("The history cannot be read: {why}").format(why=words),
                "warning",
                action=self.tr("Ask again"),
                on_action=self._ask,
            )

    def _say_count(self) -> None:
        count = self.model.rowCount()
        self.count_label.setText(
            self.tr("{events}; select and copy with Ctrl+C, open a row for what it told").format(
                events=formats.plural(count, "event")
            )
            if count
            else self.tr("No events yet")
        )

    def _copy(self) -> None:
        rows = self.view.selectionModel().selectedRows()
        text = "\n".join(
            self.model.text_of(index) for index in sorted(rows, key=lambda index: self.view.visualRect(index).top())
        )
        if text:
            QGuiApplication.clipboard().setText(text)
