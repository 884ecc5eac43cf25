"""The Replay tab: a run's videos and its recorded episodes."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QTabWidget,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.background import defer
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.replay.episode_player import EpisodePlayer
from gym_gui.ui.replay.video_file import RunVideo, Videos, find_videos
from gym_gui.ui.replay.video_player import VideoPlayer
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import AdaptiveSplitter, fill, named, timer
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording import formats
from gym_gui.wording.run_view import parsed

REFRESH_MS = 2_000
"""Interval of scans for new videos of a live run"""
_PATH = Qt.ItemDataRole.UserRole


class ReplayTab(RunTab):
    """Two pages: videos and recorded episodes; the page with content comes first."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("replay_tab")
        self._found = Videos()
        self._is_polling = False
        self._has_chosen_page = False
        self._timer = timer(self, self._poll, REFRESH_MS)
        self.banner = Banner(parent=self)
        self.player = VideoPlayer(link.background)
        self._episodes: EpisodePlayer | None = None
        self.list = self._make_list()
        splitter = AdaptiveSplitter(self.list, self.player, beside_from=60, beside=(3, 7), above=(1, 3))
        videos = QWidget()
        fill(QVBoxLayout(videos), splitter, margins=8)
        self.pages = named(QTabWidget(documentMode=True), "replay_pages")
        self.pages.addTab(videos, self.tr("&Videos"))
        self._episodes_place = QWidget()
        self.pages.addTab(self._episodes_place, self.tr("&Recorded episodes"))
        self.pages.currentChanged.connect(lambda _page: self.player.pause())
        self.pages.tabBarClicked.connect(lambda _page: self._page_was_chosen())
        fill(QVBoxLayout(self), self.banner, (self.pages, 1), margins=0)

    @property
    def episodes(self) -> EpisodePlayer:
        """Return the episode player, built after the videos: both at once would block the window."""
        if self._episodes is None:
            self._episodes = EpisodePlayer(self.link)
            self._episodes.episodes_changed.connect(self._count_episodes)
            fill(QVBoxLayout(self._episodes_place), self._episodes, margins=8)
        return self._episodes

    def _make_list(self) -> QTreeWidget:
        tree = named(QTreeWidget(), "videos_list", self.tr("Videos of this run"))
        tree.setHeaderLabels([self.tr("Video"), self.tr("Size"), self.tr("Made")])
        tree.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        tree.setRootIsDecorated(False)
        tree.setIndentation(self.fontMetrics().horizontalAdvance("m"))
        tree.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        header = tree.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        unit = self.fontMetrics().horizontalAdvance("m")
        for column, width in ((1, 6), (2, 6)):
            header.resizeSection(column, unit * width)
        tree.currentItemChanged.connect(lambda item, _before: self._choose(item))
        tree.itemActivated.connect(lambda _item, _column: self.player.play())
        return tree

    # ------------------------------------------------------------------ RunTab

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._found = Videos()
        self._has_chosen_page = False
        self.pages.setCurrentIndex(0)
        self.list.clear()
        self.player.load(None)
        self.banner.clear()
        self.pages.setTabText(0, self.tr("&Videos"))
        self._count_episodes(0)
        if self._episodes is not None:
            self._episodes.leave()
        if self.is_active:
            self._begin()

    def refresh(self, run: pb.Run) -> None:
        was_over = self.run is not None and self.run.status == RunStatus.TERM
        super().refresh(run)
        if self._episodes is not None:
            self._episodes.set_live(_is_live(run))
        if self.is_active and run.status == RunStatus.TERM and not was_over:
            self._timer.stop()
            self._poll()  # the last video appears when the run ends

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active:
            self._begin()
        else:
            self._timer.stop()
            self.player.pause()
            if self._episodes is not None:
                self._episodes.leave()

    # ------------------------------------------------------------------ videos

    def _begin(self) -> None:
        run = self.run
        if run is None:
            return
        defer(self, self._begin_episodes)
        self._poll()
        if run.status != RunStatus.TERM:
            self._timer.start()

    def _begin_episodes(self) -> None:
        run = self.run
        if run is None or not self.is_active:
            return
        if self.episodes.run_id == run.run_id:
            self.episodes.come_back()
        else:
            self.episodes.show_run(run.run_id, is_live=_is_live(run), run=run)

    def _poll(self) -> None:
        """Scan the folder in the background, one scan at a time."""
        run = self.run
        if run is None or self._is_polling:
            return
        self._is_polling = True
        self.link.background.run(
            lambda: find_videos(Path(self.link.local(run, "run/analytics.json", listed=("run/videos/*",)).run_dir)),
            owner=self,
            done=lambda found: self._show_found(run.run_id, found),
        )

    def _show_found(self, run_id: str, found: Videos) -> None:
        self._is_polling = False
        if self.run is None or self.run.run_id != run_id:
            self._poll()  # another run was selected meanwhile
        else:
            self._show(run_id, found)

    def _show(self, run_id: str, found: Videos) -> None:
        if found.problem:
            self.banner.set_message(found.problem, "warning")
        elif found.missing:
            names = ", ".join(found.missing[:3]) + ("…" if len(found.missing) > 3 else "")
            self.banner.set_message(
                self.tr("Videos of this run that are no longer in its folder: {}").format(names), "warning"
            )
        else:
            self.banner.clear()
        if found.videos == self._found.videos and (found.videos or self.list.topLevelItemCount()):
            return
        self._found = found
        self.pages.setTabText(
            0, self.tr("&Videos ({})").format(len(found.videos)) if found.videos else self.tr("&Videos")
        )
        self._fill()
        if found.videos and not self._has_chosen_page:
            self.pages.setCurrentIndex(0)
            self._has_chosen_page = True

    def _fill(self) -> None:
        chosen = self.player.path
        self.list.blockSignals(True)
        self.list.clear()
        to_select: QTreeWidgetItem | None = None
        for title, videos in groupby(self._found.videos, key=self._group_of):
            group = QTreeWidgetItem([title])
            group.setFlags(Qt.ItemFlag.ItemIsEnabled)
            font = QFont(self.font())
            font.setBold(True)
            group.setFont(0, font)
            group.setSizeHint(0, self._row_size())
            self.list.addTopLevelItem(group)
            group.setFirstColumnSpanned(True)
            for video in videos:
                item = QTreeWidgetItem(
                    [
                        self._name_of(video),
                        formats.size(video.bytes),
                        self.tr("{} ago").format(formats.age(video.modified_at)),
                    ]
                )
                item.setData(0, _PATH, video.path)
                item.setToolTip(0, str(video.path))
                item.setToolTip(2, formats.moment(video.modified_at))
                item.setTextAlignment(1, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
                item.setSizeHint(0, self._row_size())
                group.addChild(item)
                if video.path == chosen or (chosen is None and to_select is None):
                    to_select = item
            group.setExpanded(True)
        if not self._found.videos:
            self._show_empty()
        self.list.blockSignals(False)
        if to_select is not None:
            self.list.setCurrentItem(to_select)
        if chosen is not None and self.player.is_refused:
            self.player.load(chosen)  # it may be complete by now

    def _row_size(self) -> QSize:
        return QSize(0, round(self.fontMetrics().height() * 1.6))

    def _group_of(self, video: RunVideo) -> str:
        if video.step is not None:
            return self.tr("Step {}").format(formats.count(video.step))
        if video.evaluation is not None:
            return self.tr("Evaluation")
        return self.tr("Unknown step")

    def _name_of(self, video: RunVideo) -> str:
        if video.evaluation is not None:
            return self.tr("Batch {}").format(video.evaluation + 1)
        if video.episode is not None:
            return self.tr("After episode {}").format(formats.count(video.episode))
        return video.path.name

    def _show_empty(self) -> None:
        run = self.run
        if run is not None and run.status != RunStatus.TERM:
            text = self.tr("No video yet. Videos appear here if the run records them (--capture-video).")
        else:
            text = self.tr("This run has no videos. Evaluate it with video, or train with --capture-video.")
        item = QTreeWidgetItem([self.tr("No videos")])
        item.setFlags(Qt.ItemFlag.NoItemFlags)
        item.setSizeHint(0, self._row_size())
        self.list.addTopLevelItem(item)
        if self.player.path is None:
            self.player.view.show_text(text)

    def _choose(self, item: QTreeWidgetItem | None) -> None:
        path = item.data(0, _PATH) if item is not None else None
        run = self.run
        if path is None or path == self.player.path or run is None:
            return
        if self.link.is_home_here:
            self.player.load(path)
            return
        self.player.view.show_text(self.tr("Fetching the video from the daemon's machine …"))
        self.link.background.run(lambda: self.link.fetched(run, path), owner=self, done=self._load_fetched)

    def _load_fetched(self, path: Path) -> None:
        item = self.list.currentItem()
        if item is not None and item.data(0, _PATH) == path:  # no other one was chosen meanwhile
            self.player.load(path)

    # ------------------------------------------------------------------ episodes

    def _count_episodes(self, count: int) -> None:
        text = (
            self.tr("&Recorded episodes ({})").format(formats.count(count)) if count else self.tr("&Recorded episodes")
        )
        self.pages.setTabText(1, text)
        if count and not self._has_chosen_page and not self._found.videos:
            self.pages.setCurrentIndex(1)
            self._has_chosen_page = True

    def _page_was_chosen(self) -> None:
        self._has_chosen_page = True


def _is_live(run: pb.Run) -> bool:
    """Return whether the run may add videos or episodes."""
    capabilities = parsed(run.capabilities_json)
    lane = capabilities.get("lane") if isinstance(capabilities, dict) else None
    return run.status in (RunStatus.RDY, RunStatus.EXEC, RunStatus.PAUSE) and lane in ("telemetry", "hybrid")
