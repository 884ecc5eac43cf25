"""Charts and their data as files: asks where to, writes in a thread, says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QMenu, QToolButton, QWidget

from gym_gui.services.analytics.curves import load_curves
from gym_gui.services.analytics.drawing import FORMATS, save_figure
from gym_gui.services.analytics.exporting import MissingPackage, write_csv, write_parquet
from gym_gui.services.analytics.figure import Figure
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.charts import loaded_tags
from gym_gui.wording import formats


class ChartExport(QObject):
    """Saves what it is given; `said` carries words for people and their tone."""

    said = Signal(str, str)  # words, info | bad

    def __init__(self, link: DaemonLink, window: QWidget) -> None:
        super().__init__(window)
        self._link, self._window = link, window

    def button(self, tag: str, figure: Callable[[], Figure], runs: Callable[[], Sequence[pb.Run]]) -> QToolButton:
        """For the head of a chart: what it shows when it is pressed, in all ways to save it."""
        button = QToolButton()
        button.setObjectName("chart_save")
        button.setText(self.tr("Save"))
        button.setAccessibleName(self.tr("Save the chart or its data"))
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        menu = QMenu(button)
        ways: tuple[tuple[str, Callable[[], None]], ...] = (
            (self.tr("&Picture (PNG, SVG, PDF)…"), lambda: self.ask_for_picture(tag, figure())),
            (self.tr("&Data as CSV…"), lambda: self.ask_for_data(tag, runs(), ".csv")),
            (self.tr("Data as Par&quet…"), lambda: self.ask_for_data(tag, runs(), ".parquet")),
        )
        for text, save in ways:
            menu.addAction(text).triggered.connect(lambda _=False, save=save: save())
        button.setMenu(menu)
        return button

    # -- pictures

    def ask_for_picture(self, tag: str, figure: Figure) -> None:
        filters = (self.tr("PNG picture (*.png)"), self.tr("SVG drawing (*.svg)"), self.tr("PDF page (*.pdf)"))
        dialog = self._dialog(self.tr("Save chart"), f"{_file_name(tag)}.png", ";;".join(filters))
        dialog.fileSelected.connect(
            lambda name: self.save_picture(figure, _with_suffix(Path(name), dialog.selectedNameFilter(), FORMATS))
        )
        dialog.open()

    def save_picture(self, figure: Figure, path: Path) -> None:
        """The same figure that the window shows, as the command would draw it."""
        dark = theme.colours().is_dark
        self._link.background.run(
            lambda: save_figure(figure, path, dark=dark), owner=self, done=lambda _: self._tell(path), failed=self._fail
        )

    # -- data

    def ask_for_data(self, tag: str, runs: Sequence[pb.Run], suffix: str) -> None:
        kind = self.tr("Table (*.csv)") if suffix == ".csv" else self.tr("Parquet table (*.parquet)")
        dialog = self._dialog(self.tr("Save data"), f"{_file_name(tag)}{suffix}", kind)
        wanted = list(runs)
        dialog.fileSelected.connect(
            lambda name: self.save_data(tag, wanted, _with_suffix(Path(name), kind, (suffix.removeprefix("."),)))
        )
        dialog.open()

    def save_data(self, tag: str, runs: Sequence[pb.Run], path: Path) -> None:
        """Every point of these runs' curves, not only those on the screen."""
        write = write_parquet if path.suffix == ".parquet" else write_csv

        def save(client: TrainerClient) -> int | str:
            curves = load_curves(client, runs, loaded_tags([tag]), max_points=None)
            try:
                return write(path, curves, runs)
            except MissingPackage as missing:
                return str(missing)

        self._link.call(
            save,
            owner=self,
            done=lambda points: self.said.emit(points, "bad") if isinstance(points, str) else self._tell(path, points),
            failed=lambda words: self.said.emit(self.tr("The data were not saved: {0}").format(words), "bad"),
        )

    # -- words

    def _tell(self, path: Path, points: int | None = None) -> None:
        if points is None:
            self.said.emit(self.tr("The chart was saved as {0}").format(path), "info")
        else:
            self.said.emit(self.tr("{0} points were saved as {1}").format(formats.count(points), path), "info")

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, OSError | ValueError):
            raise error
        self.said.emit(self.tr("The chart was not saved: {0}").format(error), "bad")

    def _dialog(self, title: str, name: str, kinds: str) -> QFileDialog:
        dialog = QFileDialog(self._window, title)
        dialog.setObjectName("chart_save_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilter(kinds)
        dialog.selectFile(name)
        return dialog


def _file_name(tag: str) -> str:
    """`charts/episodic_return` → `episodic_return`"""
    name = tag.rpartition("/")[2]
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name) or "chart"


def _with_suffix(path: Path, chosen: str, known: Sequence[str]) -> Path:
    """The name as it was typed; without one of the known endings, that of the chosen kind."""
    if path.suffix.removeprefix(".").lower() in known:
        return path
    ending = next((suffix for suffix in known if f"*.{suffix}" in chosen), known[0])
    return path.with_name(f"{path.name}.{ending}")
