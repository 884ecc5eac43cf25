"""`CleanRlTrainForm`: a training of the CleanRL worker, with FastLane, TensorBoard, Weights & Biases and sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QLabel, QVBoxLayout

from gym_gui.ui.forms.field_form import FieldForm
from gym_gui.ui.forms.requirement_sets_box import RequirementSetsBox
from gym_gui.ui.forms.wandb_box import WandbBox
from gym_gui.ui.presenters.workers.order import FASTLANE_EXTRAS, FASTLANE_MODES, FastLaneChoice, TrainOrder
from gym_gui.ui.widgets.run_form import Document
from gym_gui.ui.widgets.train_form import TrainForm
from gym_gui.ui.workers.words import PRESENTERS


class CleanRlTrainForm(TrainForm):
    """Core in the first column, analytics in the second."""

    KIND = "cleanrl_train"
    _sets_shown_for: tuple[str, ...] = ()

    def _fill_core(self, column: QVBoxLayout) -> None:
        super()._fill_core(column)
        self.sets = RequirementSetsBox(self.background, self)
        self.sets.changed.connect(self.changed)
        self.sets.installed.connect(self._something_was_installed)
        self.sets_section = self._section(self.tr("Requirement sets"), "section_sets", self.sets, is_open=False)
        self.sets_section.opened.connect(self.sets.ensure_listed)
        column.addWidget(self.sets_section)

    def _fill_analytics(self, column: QVBoxLayout) -> None:
        self.watching = FieldForm(self)
        self._fill_watching(self.watching)
        column.addWidget(self._section(self.tr("Watching it"), "section_watching", self.watching))
        analytics = FieldForm(self)
        analytics.add(
            FieldSpec(
                "tensorboard", "bool", True, self.tr("write event files; the window's charts are made of them, too")
            ),
            self.tr("TensorBoard"),
        )
        self.wandb = WandbBox(self.background, analytics, self.dotenv_folders(), self)
        column.addWidget(self._section(self.tr("Analytics"), "section_analytics", self.wandb))
        for part in (self.watching, self.wandb):
            part.changed.connect(self._analytics_changed)
        super()._fill_analytics(column)

    def _fill_watching(self, form: FieldForm) -> None:
        form.add(
            FieldSpec(
                "fastlane_enabled", "bool", True, self.tr("draw the environment while somebody looks at the run")
            ),
            self.tr("FastLane"),
        )
        form.add(
            FieldSpec("fastlane_video_mode", "str", "single", self.tr("one environment, or several as tiles"),
                      choices=FASTLANE_MODES),
            self.tr("Picture"),
        )  # fmt: skip
        form.add(
            FieldSpec("fastlane_slot", "int", 0, self.tr("which one is drawn"), minimum=0), self.tr("Environment no.")
        )
        form.add(
            FieldSpec("fastlane_grid_limit", "int", 4, self.tr("tiles at most"), minimum=1, maximum=64),
            self.tr("Tiles at most"),
        )
        form.add(
            FieldSpec(
                "fastlane_interval_ms", "int", 33, self.tr("milliseconds between two frames, at least"), minimum=1
            ),
            self.tr("Frame interval"),
        )
        form.add(
            FieldSpec(
                "fastlane_max_dim", "int", 0, self.tr("pixels; larger frames are shrunk (0: as drawn)"), minimum=0
            ),
            self.tr("Longest side"),
        )
        form.add(
            FieldSpec(
                "minimal_telemetry", "bool", False, self.tr("send each episode's return and length to the daemon")
            ),
            self.tr("Minimal live telemetry"),
        )
        about = QLabel(
            self.tr(
                "CleanRL runs skip the live-telemetry lane: they send no steps, so that training is not slowed down. "
                "Curves, TensorBoard and the FastLane picture are live all the same. Minimal telemetry sends one line "
                "for each episode."
            ),
            form,
        )
        about.setObjectName("telemetry_help")
        about.setProperty("role", "caption")
        about.setWordWrap(True)
        form.add_widget(about)

    def _begin(self) -> None:
        super()._begin()
        self.sets.set_program(self.presenter.extras_program(self.spec), self.home)
        self._show_watching()

    # ------------------------------------------------------------------ values

    def order(self) -> TrainOrder:
        seen = self.watching.values()
        return replace(
            super().order(),
            requirements=self.sets.asked,
            install_missing=self.sets.install_missing.isChecked(),
            fastlane=FastLaneChoice(
                seen["fastlane_enabled"], **{name: seen[extra] for name, extra in FASTLANE_EXTRAS.items()}
            ),
            minimal_telemetry=seen["minimal_telemetry"],
            tensorboard=self.wandb.form.values()["tensorboard"],
            wandb=self.wandb.choice(),
        )

    def set_order(self, order: TrainOrder) -> None:
        super().set_order(order)
        self.sets.set_asked(order.requirements)
        self.sets.install_missing.setChecked(order.install_missing)
        self.watching.set_values(
            {
                "fastlane_enabled": order.fastlane.enabled,
                **{extra: getattr(order.fastlane, name) for name, extra in FASTLANE_EXTRAS.items()},
                "minimal_telemetry": order.minimal_telemetry,
            }
        )  # fmt: skip
        self.wandb.form.set_values({"tensorboard": order.tensorboard})
        self.wandb.set_choice(order.wandb)
        self._show_watching()

    def field_forms(self) -> Sequence[FieldForm]:
        return (*super().field_forms(), self.watching, self.wandb.form)

    def builtin_presets(self) -> Mapping[str, Document]:
        known = {algorithm.name for algorithm in self.spec.algorithms if not algorithm.unavailable}
        return {
            QCoreApplication.translate(PRESENTERS, title): self.presenter.configs(
                replace(order, worker_type=self.entry.name), self.spec
            )
            for title, order in self.presenter.presets().items()
            if order.algo in known
        }

    # ------------------------------------------------------------------ what depends on what

    def refresh(self) -> None:
        super().refresh()
        order = self.order()
        needed = self.presenter.requirement_sets(self.algorithm.algorithm(), order.env_id, order)
        self.sets.set_needed(needed)
        if needed and needed != self._sets_shown_for:
            self.sets_section.set_open(True)
        self._sets_shown_for = needed

    def _analytics_changed(self) -> None:
        self._show_watching()
        self.changed()

    def _show_watching(self) -> None:
        seen = self.watching.values()
        drawn, mode = bool(seen["fastlane_enabled"]), seen["fastlane_video_mode"]
        for extra in ("fastlane_video_mode", "fastlane_interval_ms", "fastlane_max_dim"):
            self.watching[extra].set_visible(drawn)
        self.watching["fastlane_slot"].set_visible(drawn and mode == "single")
        self.watching["fastlane_grid_limit"].set_visible(drawn and mode == "grid")

    def _something_was_installed(self) -> None:
        self._look(self.environment.combo.currentText().strip())

    def done(self, result: int) -> None:
        self.sets.cancel()  # an installation belongs to the form that shows it
        super().done(result)
