"""The Logs tab: output of the worker and the training process, and lifecycle events; logs may have any size."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunOutcome, RunStatus
from PySide6.QtCore import QObject, QSettings, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.run_copies import LOGS
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.run_page.log_index import (
    LIFECYCLE,
    MEMORY_BYTES,
    STREAMS,
    Decorate,
    FileLines,
    Finder,
    FirstScan,
    FixedLines,
    FoundLogs,
    HitLines,
    LineIndex,
    LogLevel,
    LogLine,
    LogSource,
    ReceivedLines,
    default_log,
    find_logs,
    open_log,
)
from gym_gui.ui.run_page.log_view import LogView
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import fill, named, timer
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording import formats
from gym_gui.wording.run_view import lifecycle_line


class FileFeed(QObject):
    """Index and search one file; all reads happen in a thread, one chunk after the other."""

    opened = Signal()
    grew = Signal(bool)  # more lines or matches; True: the file was truncated
    failed = Signal(str)

    def __init__(self, background: Background, path: Path, parent: QObject) -> None:
        super().__init__(parent)
        self.path = path
        self.index: LineIndex | None = None
        self.is_counted = False
        self.tail: tuple[LogLine, ...] = ()
        """The last lines, while the preceding lines are not indexed"""
        self.finder: Finder | None = None
        self.is_found = True
        """The search has reached the end of the file"""
        self._background = background
        self._is_busy = False
        self._stop_search = threading.Event()
        self._is_closed = False

    def open(self) -> None:
        """Scan the file for the first time; emits `opened` or `failed`."""
        if not self._is_busy:
            self._is_busy = True
            self._background.run(
                lambda: open_log(self.path), owner=self, done=self._apply_first_scan, failed=self._show_problem
            )

    def close(self) -> None:
        """Stop; nothing is emitted afterwards."""
        self._is_closed = True
        self._stop_search.set()
        self.deleteLater()

    def poll(self) -> None:
        """Index and search the lines added since; of a long file, the next chunk."""
        index, finder, stop = self.index, self.finder, self._stop_search
        if self._is_busy or self._is_closed or index is None:
            return
        generation = index.generation

        def read_on() -> tuple[bool, bool]:
            is_counted = index.extend()
            if finder is None or index.generation != generation:
                return is_counted, True
            return is_counted, finder.extend(stopped=stop.is_set)

        self._is_busy = True
        self._background.run(
            read_on, owner=self, done=lambda both: self._on_polled(generation, finder, both), failed=self._show_problem
        )

    def search(self, level: LogLevel, text: str) -> None:
        """Start a search from the beginning of the file; an empty search ends the previous one."""
        self._stop_search.set()
        self._stop_search = threading.Event()
        wants = bool(text) or level is not LogLevel.ALL
        self.finder = Finder(self.path, level, text) if wants else None
        self.is_found = not wants
        if wants:
            self.poll()

    def _apply_first_scan(self, first: FirstScan) -> None:
        self._is_busy = False
        if self._is_closed:
            return
        self.index, self.is_counted, self.tail = first.index, first.is_counted, first.tail
        self.opened.emit()
        if not self.is_counted:
            self.poll()

    def _on_polled(self, generation: int, finder: Finder | None, both: tuple[bool, bool]) -> None:
        self._is_busy = False
        if self._is_closed or self.index is None:
            return
        self.is_counted = both[0]
        self.is_found = self.finder is None or (both[1] and finder is self.finder)
        was_cut = self.index.generation != generation
        if was_cut and self.finder is not None:
            self.is_found = False
        self.grew.emit(was_cut)
        if not (self.is_counted and self.is_found):
            QTimer.singleShot(0, self, self.poll)

    def _show_problem(self, error: Exception) -> None:
        self._is_busy = False
        if not isinstance(error, OSError):
            raise error
        if not self._is_closed:
            self.failed.emit(error.strerror or str(error))


class RemoteFeed(QObject):
    """The end of a log on the daemon's machine, followed as it grows."""

    grew = Signal()
    ended = Signal(str)

    def __init__(self, link: DaemonLink, run: pb.Run, key: str, parent: QObject) -> None:
        super().__init__(parent)
        self.received = ReceivedLines()
        run_id, follow = run.run_id, run.status != RunStatus.TERM
        self._stream: Subscription[pb.LogChunk] = link.stream(
            lambda client: client.logs(run_id, key, follow=follow, tail_bytes=MEMORY_BYTES),
            self._ingest,
            owner=self,
            ended=self.ended.emit,
        )

    def close(self) -> None:
        self._stream.cancel()
        self.deleteLater()

    def _ingest(self, chunks: list[pb.LogChunk]) -> None:
        for chunk in chunks:
            self.received.add(chunk)
        self.grew.emit()


_TYPING_MS = 300


class LogToolbar(QWidget):
    """The controls of the tab; it emits what the user chose and knows nothing of files."""

    stream_chosen = Signal(str)
    search_changed = Signal()
    hit_requested = Signal(int)  # 1: the next one, -1: the one before
    follow_toggled = Signal(bool)
    start_requested = Signal()
    end_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("log_toolbar")
        self._typing = timer(self, self.search_changed, _TYPING_MS, single_shot=True)
        self._make_choices()
        self._make_search()
        self.follow_box = named(QCheckBox(self.tr("&Follow")), "log_follow")
        self.follow_box.setAccessibleName(self.tr("Stay at the end while lines are added"))
        self.follow_box.setChecked(True)
        self.follow_box.toggled.connect(self.follow_toggled)
        self.start_button = self._button("log_start", "⇤", self.tr("Go to the beginning (Ctrl+Home)"))
        self.start_button.clicked.connect(self.start_requested)
        self.end_button = self._button("log_end", "⇥", self.tr("Go to the end (Ctrl+End)"))
        self.end_button.clicked.connect(self.end_requested)
        bar = fill(QHBoxLayout(self), self.stream_box, self.level_box, (self.search_field, 1), margins=0, spacing=6)
        for widget in (
            self.previous_button,
            self.next_button,
            self.hits_label,
            self.only_hits_box,
            self.follow_box,
            self.start_button,
            self.end_button,
        ):
            bar.addWidget(widget)

    def _make_choices(self) -> None:
        self.stream_box = named(QComboBox(), "log_stream", self.tr("Which log"))
        self.stream_box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.stream_box.activated.connect(lambda: self.stream_chosen.emit(self.stream))
        self.level_box = named(QComboBox(), "log_level", self.tr("Which lines"))
        for level, text in (
            (LogLevel.ALL, self.tr("All lines")),
            (LogLevel.WARNINGS, self.tr("Warnings and errors")),
            (LogLevel.ERRORS, self.tr("Errors only")),
            (LogLevel.STRUCTURED, self.tr("Structured lines")),
        ):
            self.level_box.addItem(text, level)
        self.level_box.currentIndexChanged.connect(self.search_changed)

    def _make_search(self) -> None:
        self.search_field = named(QLineEdit(), "log_search", self.tr("Search in the log"))
        self.search_field.setPlaceholderText(self.tr("Search (Ctrl+F)"))
        self.search_field.setClearButtonEnabled(True)
        self.search_field.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.search_field.textChanged.connect(lambda: self._typing.start())
        self.search_field.returnPressed.connect(lambda: self.hit_requested.emit(1))
        self.previous_button = self._button("log_previous", "↑", self.tr("Previous hit (Shift+F3)"))
        self.previous_button.clicked.connect(lambda: self.hit_requested.emit(-1))
        self.next_button = self._button("log_next", "↓", self.tr("Next hit (F3)"))
        self.next_button.clicked.connect(lambda: self.hit_requested.emit(1))
        self.hits_label = named(QLabel(), "log_hits", role="caption")
        self.only_hits_box = named(QCheckBox(self.tr("Only &matches")), "log_only_matches")
        self.only_hits_box.setAccessibleName(self.tr("Show only lines that match the search"))
        self.only_hits_box.toggled.connect(self.search_changed)

    def _button(self, name: str, sign: str, text: str) -> QToolButton:
        button = named(QToolButton(), name)
        button.setText(sign)  # the style's icons are black even in the dark theme
        button.setToolTip(text)
        button.setAccessibleName(text)
        button.setAutoRaise(True)
        return button

    # ------------------------------------------------------------------ state

    @property
    def stream(self) -> str:
        return str(self.stream_box.currentData() or "")

    @property
    def level(self) -> LogLevel:
        level = self.level_box.currentData()
        assert isinstance(level, LogLevel)
        return level

    @property
    def text(self) -> str:
        return self.search_field.text()

    @property
    def shows_hits(self) -> bool:
        """Return whether only matching lines are shown."""
        return self.level is not LogLevel.ALL or (self.only_hits_box.isChecked() and bool(self.text))

    @property
    def is_typing(self) -> bool:
        """Return whether the search text changed and `search_changed` was not emitted yet."""
        return self._typing.isActive()

    def search_now(self) -> None:
        self._typing.stop()
        self.search_changed.emit()

    def show_streams(self, streams: Iterable[tuple[str, str]], chosen: str) -> None:
        """Set the keys and names of the available logs."""
        self.stream_box.clear()
        for text, key in streams:
            self.stream_box.addItem(text, key)
        self.stream_box.setCurrentIndex(max(0, self.stream_box.findData(chosen)))

    def show_all_lines(self) -> None:
        """Reset the filter without emitting a signal."""
        for widget in (self.level_box, self.only_hits_box):
            widget.blockSignals(True)
        self.level_box.setCurrentIndex(0)
        self.only_hits_box.setChecked(False)
        for widget in (self.level_box, self.only_hits_box):
            widget.blockSignals(False)

    def focus_search(self) -> None:
        self.search_field.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search_field.selectAll()


FOLLOW_MS = 500
_MAX_COPIED = 20_000
_SETTINGS = "logs_tab"


class LogsTab(RunTab):
    """A list of logs, a search, and a view that reads only what it shows."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("logs_tab")
        self._settings = QSettings("MOSAIC", "mosaic")
        self._found: FoundLogs | None = None
        self._request_number = 0
        """Incremented with each request: answers to outdated ones are dropped"""
        self.file: FileFeed | None = None
        self.remote: RemoteFeed | None = None
        self._is_missing = False
        self._hits: Sequence[int] = ()
        """Matching rows of the whole log"""
        self._hit = -1
        self._source: LogSource = FixedLines(())
        self.banner = Banner(parent=self)
        self.toolbar = LogToolbar()
        self.view = LogView()
        self.status = named(QLabel(), "log_status", role="caption")
        self.status.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        fill(QVBoxLayout(self), self.banner, self.toolbar, (self.view, 1), self.status, margins=(8, 8, 8, 4), spacing=6)
        self._connect()
        self._timer = timer(self, self._tick, FOLLOW_MS)

    def _connect(self) -> None:
        self.toolbar.stream_chosen.connect(self._on_stream_chosen)
        self.toolbar.search_changed.connect(self._search)
        self.toolbar.hit_requested.connect(self._go_to_hit)
        self.toolbar.follow_toggled.connect(self.view.set_follows)
        self.toolbar.start_requested.connect(self._go_to_start)
        self.toolbar.end_requested.connect(self._go_to_end)
        self.view.requested.connect(self._read)
        self.view.copy_requested.connect(self._copy)
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
            self._poll()

    def refresh(self, run: pb.Run) -> None:
        was_over = self.run is not None and self.run.status == RunStatus.TERM
        super().refresh(run)
        if self.is_active and run.status == RunStatus.TERM and not was_over and self.file is not None:
            self.file.poll()  # its last output

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if not active:
            self._timer.stop()
            if self.remote is not None:
                self._close()
            return
        self._timer.start()
        if self.file is None:
            self._poll()
        else:
            self.file.poll()

    # ------------------------------------------------------------------ the list of logs

    def _poll(self) -> None:
        run = self.run
        if run is None:
            return
        self._request_number += 1
        requested = self._request_number

        def find() -> FoundLogs:
            here = self.link.local(run, "run/lifecycle.jsonl", listed=LOGS)
            found = find_logs(here.run_dir, here.logs_dir)
            return found if self.link.is_home_here else replace(found, is_here=False)

        self.link.background.run(
            find, owner=self, done=lambda found: self._show_found(found) if requested == self._request_number else None
        )

    def _show_found(self, found: FoundLogs) -> None:
        run = self.run
        if run is None:
            return
        self._found = found
        has_failed = run.outcome == RunOutcome.FAILED or run.status == RunStatus.FAULT
        key = default_log(found, has_failed=has_failed)
        remembered = str(self._settings.value(f"{_SETTINGS}/stream", ""))
        file = found.file(remembered)
        if remembered and not has_failed and file is not None and file.size:
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
            if not found.is_here and file.key not in (*STREAMS, LIFECYCLE):
                continue  # it is not fetched
            name += " · " + (formats.size(file.size) if file.size else self.tr("empty"))
            named.append((name, file.key))
        return named

    def _on_stream_chosen(self, key: str) -> None:
        self._settings.setValue(f"{_SETTINGS}/stream", key)
        self._open(key)

    # ------------------------------------------------------------------ opening a log

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
        if file.size is None:
            self._show_no_logs(run)
        elif not found.is_here and key in STREAMS:
            self._open_remote(run, key)
        else:
            self.file = FileFeed(self.link.background, file.path, self)
            self.file.opened.connect(self._show_file)
            self.file.grew.connect(self._on_grown)
            self.file.failed.connect(self._show_problem)
            self.file.open()

    def _show_source(self, source: LogSource) -> None:
        self._source = source
        self.view.reset(source.count)

    def _show_no_logs(self, run: pb.Run) -> None:
        self._is_missing = True
        if run.status == RunStatus.TERM:
            self.banner.set_message(self.tr("This run wrote no such log."))
        elif run.status == RunStatus.INIT:
            self.banner.set_message(self.tr("Nothing is written until the worker starts. The run is still queued."))
        else:
            self.banner.set_message(self.tr("Nothing has been written yet. New lines appear here automatically."))

    def _show_problem(self, text: str) -> None:
        self.banner.set_message(
            self.tr("This log cannot be read: {why}. Check that {path} is there and may be read.").format(
                why=text, path=self.file.path if self.file is not None else ""
            ),
            "warning",
            action=self.tr("Refresh"),
            on_action=self._poll,
        )

    # ------------------------------------------------------------------ a file on this machine

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
        self._show_status()
        self._search()

    def _show_all_lines(self) -> None:
        if self.file is not None and self.file.index is not None:
            self._show_source(FileLines(self.file.index, self._decorate))

    def _tick(self) -> None:
        feed, is_over = self.file, self.run is not None and self.run.status == RunStatus.TERM
        if feed is not None and not (is_over and feed.is_counted and feed.is_found):
            feed.poll()
        elif feed is None and self._is_missing and not is_over:
            self._poll()  # it may exist by now

    def _on_grown(self, was_cut: bool) -> None:
        feed = self.file
        if feed is None or feed.index is None:
            return
        if was_cut:
            self.banner.set_message(
                self.tr("The log outgrew its limit and was restarted; the older part is beside it.")
            )
            self._show_all_lines()
            self._search()
        elif isinstance(self._source, FileLines | HitLines):
            if self._source.count != self.view.count:
                self.view.set_count(self._source.count)
                self.view.forget_pages()  # the last line may have been incomplete, or redacted since
        elif feed.is_counted:
            self._change_to_counted()
        if feed.finder is not None:
            self._show_hits()
        self._show_status()

    def _change_to_counted(self) -> None:
        """Replace the tail by the indexed file without moving the visible line."""
        from_end, follows = self._source.count - self.view.first_row, self.view.follows
        self._show_all_lines()
        if not follows:
            self.view.set_follows(False)
            self.view.verticalScrollBar().setValue(max(0, self._source.count - from_end))

    def _show_status(self) -> None:
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

    # ------------------------------------------------------------------ a log on another machine

    def _open_remote(self, run: pb.Run, key: str) -> None:
        self.status.setText(self.tr("Asking the daemon for the end of this log …"))
        self.remote = RemoteFeed(self.link, run, key, self)
        self.remote.grew.connect(self._show_received)
        self.remote.ended.connect(self._end_remote)

    def _show_received(self) -> None:
        if self.remote is None:
            return
        received = self.remote.received
        if self._source is not received:
            self._show_source(received)
        self.view.set_count(received.count)
        self.view.forget_pages()
        text = self.tr("The files of this run are on the daemon's machine.")
        if received.begins_inside:
            text += " " + self.tr("The last {size} of the log are shown.").format(size=formats.size(MEMORY_BYTES))
        self.status.setText(text)
        self._search()

    def _end_remote(self, text: str) -> None:
        if text:
            self.banner.set_message(text, "warning", action=self.tr("Retry"), on_action=self._poll)
        elif self.remote is not None and self.remote.received.count == 0 and self.run is not None:
            self.status.setText(self.tr("empty"))

    # ------------------------------------------------------------------ rows for the view

    def _read(self, generation: int, first: int, rows: int) -> None:
        source = self._source
        self.link.background.run(
            lambda: source.read(first, rows),
            owner=self,
            done=lambda lines: self.view.provide(generation, first, lines),
            failed=self._show_file_problem,
        )

    def _show_file_problem(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            raise error
        self._show_problem(error.strerror or str(error))

    def _copy(self, first: int, rows: int) -> None:
        source, count = self._source, min(rows, _MAX_COPIED)

        def put(lines: list[LogLine]) -> None:
            QGuiApplication.clipboard().setText("\n".join(line.text for line in lines))
            text = self.tr("{count} lines copied").format(count=formats.count(len(lines)))
            if rows > count:
                text += " " + self.tr("(of {count}; this is the maximum)").format(count=formats.count(rows))
            self.status.setText(text)

        self.link.background.run(
            lambda: source.read(first, count), owner=self, done=put, failed=self._show_file_problem
        )

    def _go_to_start(self) -> None:
        if isinstance(self._source, FixedLines) and not self.toolbar.shows_hits:
            self._show_all_lines()  # as far as they are indexed
        self.view.set_follows(False)
        self.view.verticalScrollBar().setValue(0)

    def _go_to_end(self) -> None:
        if self.file is not None and not self.file.is_counted and not self.toolbar.shows_hits:
            self._open(self.toolbar.stream)  # its last lines, before the file is indexed
        self.view.set_follows(True)

    # ------------------------------------------------------------------ searching

    def _search(self) -> None:
        """Restart the search with the current text and level."""
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
                self._show_hits()
        elif self.file is not None and self.file.index is not None:
            self.file.search(level, text)
            if (finder := self.file.finder) is not None:
                self._hits = finder.hits.numbers
                self.toolbar.hits_label.setText(self.tr("searching …"))
            if finder is not None and self.toolbar.shows_hits:
                self._show_source(HitLines(finder.hits, self._decorate))
            elif isinstance(self._source, HitLines):
                self._show_all_lines()

    def _show_hits(self) -> None:
        finder = self.file.finder if self.file is not None else None
        count = len(self._hits)
        shown = formats.count(count) + ("+" if finder is not None and finder.hits.is_cut else "")
        if self._hit >= 0:
            text = self.tr("{number} of {count}").format(number=formats.count(self._hit + 1), count=shown)
        elif count:
            text = self.tr("{count} matches").format(count=shown) if count > 1 else self.tr("1 match")
        else:
            text = self.tr("no match") if self.file is None or self.file.is_found else self.tr("searching …")
        if self.file is not None and not self.file.is_found and self.file.index is not None and finder is not None:
            text += f" ({100 * finder.scanned / max(1, self.file.index.size):.0f} %)"
        self.toolbar.hits_label.setText(text)

    def _go_to_hit(self, direction: int) -> None:
        if self.toolbar.is_typing:
            self.toolbar.search_now()
        count = len(self._hits)
        if not count:
            return
        self._hit = (self._hit + direction) % count if self._hit >= 0 else (0 if direction > 0 else count - 1)
        if not self.toolbar.shows_hits and isinstance(self._source, FixedLines):
            self._show_all_lines()  # the match may precede the lines shown so far
        self.view.set_follows(False)
        self.view.scroll_to(self._hit if self.toolbar.shows_hits else int(self._hits[self._hit]))
        self._show_hits()

    def _show_in_context(self, row: int) -> None:
        """Show a line of the filtered view among its neighbors."""
        if not self.toolbar.shows_hits or row >= len(self._hits):
            return
        number = int(self._hits[row])
        self.toolbar.show_all_lines()
        self._search()
        self.view.set_follows(False)
        self.view.scroll_to(number)
