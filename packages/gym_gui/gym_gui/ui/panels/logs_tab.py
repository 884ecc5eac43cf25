"""Logs of a run: what its worker and its training process wrote, and its lifecycle events; of any size."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSettings, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.log_feeds import FileFeed, RemoteFeed
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.presenters.log_index import LogLevel, LogLine
from gym_gui.ui.presenters.log_sources import (
    LIFECYCLE,
    MEMORY_BYTES,
    STREAMS,
    Decorate,
    FileLines,
    FixedLines,
    FoundLogs,
    HitLines,
    LogSource,
    find_logs,
    usual_log,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.log_toolbar import LogToolbar
from gym_gui.ui.widgets.log_view import LogView
from gym_gui.wording import formats
from gym_gui.wording.log_lines import lifecycle_line

FOLLOW_MS = 500
_MOST_COPIED = 20_000
_SETTINGS = "logs_tab"


class LogsTab(RunTab):
    """A list of logs, a search, and a view that reads only what it shows."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("logs_tab")
        self._settings = QSettings("MOSAIC", "mosaic")
        self._found: FoundLogs | None = None
        self._asked = 0
        """Counts questions: what a thread brings for an earlier one is dropped"""
        self.file: FileFeed | None = None
        self.remote: RemoteFeed | None = None
        self._is_missing = False
        self._hits: Sequence[int] = ()
        """Rows of the whole log that match"""
        self._hit = -1
        self._source: LogSource = FixedLines(())
        self.banner = Banner(parent=self)
        self.toolbar = LogToolbar()
        self.view = LogView()
        self.status = QLabel()
        self.status.setObjectName("log_status")
        self.status.setProperty("role", "caption")
        self.status.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 8, 8, 4)
        layout.setSpacing(6)
        layout.addWidget(self.banner)
        layout.addWidget(self.toolbar)
        layout.addWidget(self.view, 1)
        layout.addWidget(self.status)
        self._connect()
        self._timer = QTimer(self)
        self._timer.setInterval(FOLLOW_MS)
        self._timer.timeout.connect(self._tick)

    def _connect(self) -> None:
        self.toolbar.stream_chosen.connect(self._on_stream_chosen)
        self.toolbar.search_changed.connect(self._search)
        self.toolbar.hit_wanted.connect(self._go_to_hit)
        self.toolbar.follow_toggled.connect(self.view.set_follows)
        self.toolbar.start_wanted.connect(self._go_to_start)
        self.toolbar.end_wanted.connect(self._go_to_end)
        self.view.wanted.connect(self._read)
        self.view.copy_wanted.connect(self._copy)
        self.view.follow_changed.connect(self.toolbar.follow_box.setChecked)
        self.view.row_activated.connect(self._show_in_context)
        for keys, act in (
            (QKeySequence(QKeySequence.StandardKey.Find), self.toolbar.focus_search),
            (QKeySequence("F3"), lambda: self._go_to_hit(1)),
            (QKeySequence("Shift+F3"), lambda: self._go_to_hit(-1)),
            (QKeySequence("Ctrl+Home"), self._go_to_start),
            (QKeySequence("Ctrl+End"), self._go_to_end),
        ):
            shortcut = QShortcut(keys, self)
            shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            shortcut.activated.connect(act)

    # ------------------------------------------------------------------ RunTab

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._close()
        self._found = None
        if self.is_active:
            self._look()

    def refresh(self, run: pb.Run) -> None:
        was_over = self.run is not None and self.run.status == "TERM"
        super().refresh(run)
        if self.is_active and run.status == "TERM" and not was_over and self.file is not None:
            self.file.look_for_more()  # what it wrote last

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if not active:
            self._timer.stop()
            if self.remote is not None:
                self._close()
            return
        self._timer.start()
        if self.file is None:
            self._look()
        else:
            self.file.look_for_more()

    # ------------------------------------------------------------------ which logs there are

    def _look(self) -> None:
        run = self.run
        if run is None:
            return
        self._asked += 1
        asked, run_dir, logs_dir = self._asked, run.run_dir, run.logs_dir
        self.link.background.run(
            lambda: find_logs(run_dir, logs_dir),
            owner=self,
            done=lambda found: self._show_found(found) if asked == self._asked else None,
        )

    def _show_found(self, found: FoundLogs) -> None:
        run = self.run
        if run is None:
            return
        self._found = found
        has_failed = run.outcome == "failed" or run.status == "FAULT"
        key = usual_log(found, has_failed=has_failed)
        remembered = str(self._settings.value(f"{_SETTINGS}/stream", ""))
        file = found.file(remembered)
        if remembered and not has_failed and (not found.is_here or (file is not None and file.size)):
            key = remembered
        self.toolbar.show_streams(self._named(found), key)
        self._open(self.toolbar.stream)

    def _named(self, found: FoundLogs) -> list[tuple[str, str]]:
        names = {
            "stdout": self.tr("Worker output"),
            "stderr": self.tr("Worker errors"),
            "training_stdout": self.tr("Training output"),
            "training_stderr": self.tr("Training errors"),
            LIFECYCLE: self.tr("Lifecycle events"),
        }
        named = []
        for file in found.files:
            base, _, part = file.key.partition(".")
            name = names[base] + (self.tr(", older part") if part else "")
            if found.is_here:
                name += " · " + (formats.size(file.size) if file.size else self.tr("empty"))
            elif file.key not in STREAMS:
                continue  # the daemon sends these four
            named.append((name, file.key))
        return named

    def _on_stream_chosen(self, key: str) -> None:
        self._settings.setValue(f"{_SETTINGS}/stream", key)
        self._open(key)

    # ------------------------------------------------------------------ opening one

    def _close(self) -> None:
        for feed in (self.file, self.remote):
            if feed is not None:
                feed.close()
        self.file = self.remote = None
        self._is_missing = False
        self._hits, self._hit = (), -1
        self.banner.clear()
        self.toolbar.hits_label.clear()
        self.status.clear()
        self._show_source(FixedLines(()))

    def _open(self, key: str) -> None:
        self._close()
        run, found = self.run, self._found
        file = found.file(key) if found is not None else None
        if run is None or found is None or file is None:
            return
        self.view.set_follows(True)
        if not found.is_here:
            self._open_remote(run, key)
        elif file.size is None:
            self._say_nothing_is_there(run)
        else:
            self.file = FileFeed(self.link.background, file.path, self)
            self.file.opened.connect(self._show_file)
            self.file.grew.connect(self._take_growth)
            self.file.failed.connect(self._complain)
            self.file.open()

    def _show_source(self, source: LogSource) -> None:
        self._source = source
        self.view.reset(source.count)

    def _say_nothing_is_there(self, run: pb.Run) -> None:
        self._is_missing = True
        if run.status == "TERM":
            self.banner.say(self.tr("This run wrote no such log."))
        elif run.status == "INIT":
            self.banner.say(self.tr("Nothing is written until the worker starts. The run is still queued."))
        else:
            self.banner.say(self.tr("Nothing has been written yet. New lines appear here by themselves."))

    def _complain(self, words: str) -> None:
        self.banner.say(
            self.tr("This log cannot be read: {why}. Check that {path} is there and may be read.").format(
                why=words, path=self.file.path if self.file is not None else ""
            ),
            "warning",
            action=self.tr("Look again"),
            on_action=self._look,
        )

    # ------------------------------------------------------------------ a file of this machine

    @property
    def _decorate(self) -> Decorate:
        return lifecycle_line if self.toolbar.stream.startswith((LIFECYCLE, "stdout")) else str

    def _show_file(self) -> None:
        feed = self.file
        if feed is None:
            return
        self.banner.clear()
        if feed.is_counted:
            self._show_all_lines()
        else:
            self._show_source(FixedLines([LogLine(None, self._decorate(line.text)) for line in feed.tail]))
        self._say_status()
        self._search()

    def _show_all_lines(self) -> None:
        if self.file is not None and self.file.index is not None:
            self._show_source(FileLines(self.file.index, self._decorate))

    def _tick(self) -> None:
        feed, is_over = self.file, self.run is not None and self.run.status == "TERM"
        if feed is not None and not (is_over and feed.is_counted and feed.is_found):
            feed.look_for_more()
        elif feed is None and self._is_missing and not is_over:
            self._look()  # it may be there by now

    def _take_growth(self, was_cut: bool) -> None:
        feed = self.file
        if feed is None or feed.index is None:
            return
        if was_cut:
            self.banner.say(self.tr("The log outgrew its limit and was begun anew; the older part is kept beside it."))
            self._show_all_lines()
            self._search()
        elif isinstance(self._source, FileLines | HitLines):
            if self._source.count != self.view.count:
                self.view.set_count(self._source.count)
                self.view.forget_pages()  # the last line may have been half written, or blotted out since
        elif feed.is_counted:
            self._change_to_counted()
        if feed.finder is not None:
            self._say_hits()
        self._say_status()

    def _change_to_counted(self) -> None:
        """The end was shown while the lines were counted; stay at the same line."""
        from_end, follows = self._source.count - self.view.first_row, self.view.follows
        self._show_all_lines()
        if not follows:
            self.view.set_follows(False)
            self.view.verticalScrollBar().setValue(max(0, self._source.count - from_end))

    def _say_status(self) -> None:
        feed = self.file
        if feed is None or feed.index is None:
            return
        index = feed.index
        parts = [str(feed.path)]
        if feed.is_counted:
            parts.append(self.tr("{count} lines").format(count=formats.count(index.lines)))
        parts.append(formats.size(index.size) if index.size else self.tr("empty"))
        if not feed.is_counted and index.size:
            percent = 100 * index.scanned / index.size
            parts.append(self.tr("counting lines: {percent:.0f} %").format(percent=percent))
        self.status.setText("  ·  ".join(parts))

    # ------------------------------------------------------------------ a log of another machine

    def _open_remote(self, run: pb.Run, key: str) -> None:
        self.status.setText(self.tr("Asking the daemon for the end of this log …"))
        self.remote = RemoteFeed(self.link, run, key, self)
        self.remote.grew.connect(self._take_received)
        self.remote.ended.connect(self._end_remote)

    def _take_received(self) -> None:
        if self.remote is None:
            return
        received = self.remote.received
        if self._source is not received:
            self._show_source(received)
        self.view.set_count(received.count)
        self.view.forget_pages()
        words = self.tr("The files of this run lie on the daemon's machine.")
        if received.begins_inside:
            words += " " + self.tr("The last {size} of the log are shown.").format(size=formats.size(MEMORY_BYTES))
        self.status.setText(words)
        self._search()

    def _end_remote(self, words: str) -> None:
        if words:
            self.banner.say(words, "warning", action=self.tr("Ask again"), on_action=self._look)
        elif self.remote is not None and self.remote.received.count == 0 and self.run is not None:
            self.status.clear()
            self.banner.say(
                self.tr(
                    "There is no such log. If the daemon runs on this machine, the run's folder is gone: {path}"
                ).format(path=self.run.logs_dir or "?")
            )

    # ------------------------------------------------------------------ rows for the view

    def _read(self, generation: int, first: int, rows: int) -> None:
        source = self._source
        self.link.background.run(
            lambda: source.read(first, rows),
            owner=self,
            done=lambda lines: self.view.provide(generation, first, lines),
            failed=self._complain_about,
        )

    def _complain_about(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            raise error
        self._complain(error.strerror or str(error))

    def _copy(self, first: int, rows: int) -> None:
        source, count = self._source, min(rows, _MOST_COPIED)

        def put(lines: list[LogLine]) -> None:
            QGuiApplication.clipboard().setText("\n".join(line.text for line in lines))
            words = self.tr("{count} lines copied").format(count=formats.count(len(lines)))
            if rows > count:
                words += " " + self.tr("(of {count}; more are not copied at once)").format(count=formats.count(rows))
            self.status.setText(words)

        self.link.background.run(
            lambda: source.read(first, count), owner=self, done=put, failed=self._complain_about
        )  # fmt: skip

    def _go_to_start(self) -> None:
        if isinstance(self._source, FixedLines) and not self.toolbar.shows_hits:
            self._show_all_lines()  # as far as they are counted
        self.view.set_follows(False)
        self.view.verticalScrollBar().setValue(0)

    def _go_to_end(self) -> None:
        if self.file is not None and not self.file.is_counted and not self.toolbar.shows_hits:
            self._open(self.toolbar.stream)  # its last lines, before the others are counted
        self.view.set_follows(True)

    # ------------------------------------------------------------------ searching

    def _search(self) -> None:
        """Begin anew with what the fields say."""
        level, text = self.toolbar.level, self.toolbar.text
        self._hits, self._hit = (), -1
        self.view.highlight(text)
        self.toolbar.hits_label.clear()
        if self.remote is not None:
            received = self.remote.received
            rows = received.rows_with(level, text) if text or level is not LogLevel.ALL else []
            self._hits = array("Q", rows)
            if self.toolbar.shows_hits:
                lines = received.read(0, received.count)
                self._show_source(FixedLines([lines[row] for row in rows]))
            elif self._source is not received:
                self._show_source(received)
            if text or level is not LogLevel.ALL:
                self._say_hits()
        elif self.file is not None and self.file.index is not None:
            self.file.search(level, text)
            if (finder := self.file.finder) is not None:
                self._hits = finder.hits.numbers
                self.toolbar.hits_label.setText(self.tr("searching …"))
            if finder is not None and self.toolbar.shows_hits:
                self._show_source(HitLines(finder.hits, self._decorate))
            elif isinstance(self._source, HitLines):
                self._show_all_lines()

    def _say_hits(self) -> None:
        finder = self.file.finder if self.file is not None else None
        count = len(self._hits)
        shown = formats.count(count) + ("+" if finder is not None and finder.hits.is_cut else "")
        if self._hit >= 0:
            words = self.tr("{number} of {count}").format(number=formats.count(self._hit + 1), count=shown)
        elif count:
            words = self.tr("{count} matches").format(count=shown) if count > 1 else self.tr("1 match")
        else:
            words = self.tr("no match") if self.file is None or self.file.is_found else self.tr("searching …")
        if self.file is not None and not self.file.is_found and self.file.index is not None and finder is not None:
            words += f" ({100 * finder.scanned / max(1, self.file.index.size):.0f} %)"
        self.toolbar.hits_label.setText(words)

    def _go_to_hit(self, direction: int) -> None:
        if self.toolbar.is_typing:
            self.toolbar.search_now()
        count = len(self._hits)
        if not count:
            return
        self._hit = (self._hit + direction) % count if self._hit >= 0 else (0 if direction > 0 else count - 1)
        if not self.toolbar.shows_hits and isinstance(self._source, FixedLines):
            self._show_all_lines()  # the hit may lie before the end that was shown
        self.view.set_follows(False)
        self.view.scroll_to(self._hit if self.toolbar.shows_hits else int(self._hits[self._hit]))
        self._say_hits()

    def _show_in_context(self, row: int) -> None:
        """A line of a filtered view, among its neighbours."""
        if not self.toolbar.shows_hits or row >= len(self._hits):
            return
        number = int(self._hits[row])
        self.toolbar.show_all_lines()
        self._search()
        self.view.set_follows(False)
        self.view.scroll_to(number)
