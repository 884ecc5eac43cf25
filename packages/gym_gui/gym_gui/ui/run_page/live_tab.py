"""The Live tab of a run: the newest frame, and beside it what a telemetry or hybrid worker sends step by step.

A run of the analytics lane sends no steps; a banner explains that, and a line below the frame names its metrics.
"""

from __future__ import annotations

from pathlib import Path

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.fastlane_view import FastLaneView
from gym_gui.ui.run_page.telemetry_tab import Flow, TelemetryTab, flow_of, no_live_telemetry, tr
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import AdaptiveSplitter, caption
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording.run_view import short_id


class LiveTab(RunTab):
    """The frame, and the telemetry if there is any; both streams stop while the tab is hidden."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("live_tab")
        self._is_visible = False
        self._flow = Flow.UNKNOWN
        self.banner = Banner(parent=self)
        self.fastlane = FastLaneView(link)
        self._telemetry: TelemetryTab | None = None
        self._telemetry_place = QWidget()
        QVBoxLayout(self._telemetry_place).setContentsMargins(0, 0, 0, 0)
        self._telemetry_place.hide()
        self.split = AdaptiveSplitter(
            self.fastlane, self._telemetry_place, beside_from=70, beside=(2, 3), above=(1, 1), settings="live_tab"
        )
        self.split.setObjectName("live_split")
        self.places = caption("live_places", wraps=True)
        self.places.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        layout = QVBoxLayout(self)
        layout.addWidget(self.banner)
        layout.addWidget(self.split, 1)
        layout.addWidget(self.places)

    @property
    def telemetry(self) -> TelemetryTab:
        """Return the telemetry view, built when a run with telemetry is first shown."""
        if self._telemetry is None:
            self._telemetry = TelemetryTab(self.link)
            layout = self._telemetry_place.layout()
            assert layout is not None
            layout.addWidget(self._telemetry)
        return self._telemetry

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self.fastlane.show_run(run)
        self._show_flow(run)
        if self._flow.has_telemetry:
            self.telemetry.show_run(run)
        self._update_active()

    def refresh(self, run: pb.Run) -> None:
        super().refresh(run)
        self.fastlane.refresh(run)
        if flow_of(run) is not self._flow:
            self.show_run(run)
        elif self._flow.has_telemetry:
            self.telemetry.refresh(run)

    def _show_flow(self, run: pb.Run) -> None:
        """Show the telemetry of a worker that sends it; for others show where the metrics are."""
        self._flow = flow_of(run)
        self._telemetry_place.setVisible(self._flow.has_telemetry)
        self.places.setVisible(self._flow is Flow.NOTHING)
        if self._flow is Flow.NOTHING:
            self.banner.set_message(
                no_live_telemetry(run),
                action=self.tr("Open ch&arts"),
                on_action=lambda: self.tab_requested.emit("charts"),
            )
            self._find_places(run)
        elif self._flow is Flow.UNKNOWN:
            self.banner.set_message(self.tr("Telemetry is available only after the worker has started."))
        else:
            self.banner.clear()

    def _find_places(self, run: pb.Run) -> None:
        self.places.setText(places_of(run, None))

        def read() -> tuple[str, str]:
            try:
                here = self.link.local(run, "run/analytics.json")
                manifest = AnalyticsManifest.read(RunFolder(Path(here.run_dir)).manifest)
            except (OSError, ValueError):  # not written yet, or damaged: the default locations are named
                return "", ""
            return run.run_id, places_of(run, manifest)

        def show(answer: tuple[str, str]) -> None:
            if self.run is not None and self.run.run_id == answer[0]:
                self.places.setText(answer[1])

        self.link.background.run(read, owner=self, done=show)

    # -- following

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        self._update_active()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._is_visible = True
        self._update_active()

    def hideEvent(self, event: QHideEvent) -> None:
        """Stop following, also when the window is minimized: a run must not render without a viewer."""
        super().hideEvent(event)
        self._is_visible = False
        self._update_active()

    def _update_active(self) -> None:
        is_followed = self.is_active and self._is_visible
        self.fastlane.set_active(is_followed)
        if self._telemetry is not None:
            self._telemetry.set_active(is_followed and self._flow.has_telemetry)


def places_of(run: pb.Run, manifest: AnalyticsManifest | None) -> str:
    """Return where the metrics of a run are; `manifest` is None when it cannot be read from here."""
    folder = RunFolder(Path(run.run_dir))
    places = {tr("Curves"): tr("the Charts tab, live and afterwards")}
    tensorboard = manifest.tensorboard_dir if manifest is not None else "tensorboard"
    if tensorboard:
        places[tr("TensorBoard files")] = str(folder.root / tensorboard)
    if manifest is not None and manifest.wandb_run_id:
        places[tr("Weights & Biases")] = manifest.wandb_run_path or manifest.wandb_run_id
    if manifest is not None and manifest.optuna_db_path:
        places[tr("Optuna")] = str(folder.root / manifest.optuna_db_path)
    places[tr("In a terminal")] = f"mosaic metrics {short_id(run.run_id)}"
    return "   ·   ".join(f"{what}: {where}" for what, where in places.items())
