"""`CleanRlTrainForm`: a training of the CleanRL worker, with FastLane, TensorBoard, W&B and requirement sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mosaic_wire.paths import Home
from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.analytics.wandb_access import HTTP_NAMES, HTTPS_NAMES, WANDB_ADDRESS, Fallback, fallback, probe
from gym_gui.ui.background import Background
from gym_gui.ui.forms.schema_form import FieldForm
from gym_gui.ui.forms.train_form import TrainForm
from gym_gui.ui.presenters.workers.train_request import (
    FASTLANE_EXTRAS,
    FASTLANE_MODES,
    WANDB_EXTRAS,
    WANDB_PARAMETERS,
    FastLaneChoice,
    TrainRequest,
    WandbChoice,
)
from gym_gui.ui.widgets.parts import caption, fill, named
from gym_gui.ui.workers.requirement_sets import (
    ExtrasFailed,
    InstallProgress,
    JobResult,
    RequirementSet,
    SetsJob,
    install_job,
    list_sets,
)
from gym_gui.wording.formats import size


class RequirementSetsBox(QWidget):
    """One check box per requirement set. Checked: the run gets the set even if it seems unnecessary."""

    changed = Signal()
    installed = Signal()
    """A set was installed: environments that could not be previewed may work now"""

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("requirement_sets")
        self._background = background
        self._program: tuple[str, ...] = ()
        self._home: Home | None = None
        self._sets: tuple[RequirementSet, ...] = ()
        self._needed: tuple[str, ...] = ()
        self._requested: set[str] = set()
        self._installation: SetsJob | None = None
        self._was_asked = False
        self._ticks: dict[str, QCheckBox] = {}
        self._states: dict[str, QLabel] = {}
        self._buttons: dict[str, QPushButton] = {}
        self._summary = named(QLabel(self, wordWrap=True), "requirement_summary", role="caption")
        self._everything = named(QCheckBox(self.tr("Show all sets"), self), "requirement_show_all")
        self._everything.setAccessibleName(self._everything.text())
        self._everything.toggled.connect(self._show_rows)
        self._progress = named(QProgressBar(self), "requirement_progress", self.tr("Progress of the installation"))
        self._progress.hide()
        self._stop = named(QPushButton(self.tr("Stop the installation"), self), "requirement_stop")
        self._stop.setAccessibleName(self._stop.text())
        self._stop.clicked.connect(self.cancel)
        self._stop.hide()
        self._status = QLabel(self, wordWrap=True, textInteractionFlags=Qt.TextInteractionFlag.TextSelectableByMouse)
        self._status.setObjectName("requirement_status")
        self._status.hide()
        self.install_missing = QCheckBox(self.tr("Install missing sets before the run starts"), self)
        self.install_missing.setObjectName("install_missing")
        self.install_missing.setAccessibleName(self.install_missing.text())
        self.install_missing.toggled.connect(self.changed)
        self._lay_out()
        application = QCoreApplication.instance()
        if application is not None:  # the background waits for running jobs on exit: cancel downloads
            application.aboutToQuit.connect(self.cancel)

    def _lay_out(self) -> None:
        self._grid = QGridLayout()
        self._grid.setColumnStretch(1, 1)
        self._grid.setVerticalSpacing(3)
        layout = fill(QVBoxLayout(self), self._summary, self._grid, margins=(8, 2, 0, 6), spacing=4)
        for widget in (self._progress, self._status, self._stop, self._everything, self.install_missing):
            layout.addWidget(widget)

    # ------------------------------------------------------------------ selection

    def set_program(self, program: Sequence[str], home: Home) -> None:
        """Set the program that lists and installs sets."""
        self._program, self._home = tuple(program), home
        if not program:
            self._summary.setText(self.tr("This worker has no requirement sets."))
        self._everything.setVisible(bool(program))

    def ensure_listed(self) -> None:
        """List the sets once; deferred until needed, because it starts a process."""
        if not self._was_asked:
            self.refresh()

    def set_needed(self, names: Iterable[str]) -> None:
        """Set which sets the run of this form needs."""
        if tuple(names) != self._needed:
            self._needed = tuple(names)
            if self._needed:
                self.ensure_listed()
            self._show_rows()

    @property
    def requested(self) -> tuple[str, ...]:
        """Return the checked sets."""
        return tuple(sorted(self._requested))

    def set_asked(self, names: Iterable[str]) -> None:
        self._requested = set(names) - {"base"}
        for name, tick in self._ticks.items():
            tick.blockSignals(True)
            tick.setChecked(name in self._requested)
            tick.blockSignals(False)
        self._show_rows()

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the needed or checked sets that are known and not installed."""
        requested = {*self._needed, *self._requested}
        return tuple(entry.name for entry in self._sets if entry.name in requested and not entry.is_ready)

    # ------------------------------------------------------------------ listing

    def refresh(self) -> None:
        """List the sets and their state."""
        if not self._program or self._home is None:
            return
        self._was_asked = True
        program, home = self._program, self._home
        self._summary.setText(self.tr("Checking which sets are installed …"))
        self._background.run(
            lambda: list_sets(program, home), owner=self, done=self._show_sets, failed=self._show_problem
        )

    def _show_sets(self, sets: tuple[RequirementSet, ...]) -> None:
        self._sets = tuple(entry for entry in sets if entry.name != "base")
        for row, entry in enumerate(self._sets):
            if entry.name not in self._ticks:
                self._add_row(row, entry)
            self._show_state(entry)
        self._show_rows()

    def _add_row(self, row: int, entry: RequirementSet) -> None:
        tick = named(QCheckBox(entry.name, self), f"set_{entry.name}", tip=entry.purpose)
        tick.setAccessibleName(self.tr("Requirement set {name}").format(name=entry.name))
        tick.setChecked(entry.name in self._requested)
        tick.toggled.connect(lambda on, name=entry.name: self._tick(name, on))
        state = caption(wraps=True)
        button = named(QPushButton(self.tr("Install"), self), f"install_{entry.name}")
        button.setAccessibleName(self.tr("Install the requirement set {name}").format(name=entry.name))
        button.clicked.connect(lambda _=False, name=entry.name: self.install(name))
        self._grid.addWidget(tick, row, 0)
        self._grid.addWidget(state, row, 1)
        self._grid.addWidget(button, row, 2)
        self._ticks[entry.name], self._states[entry.name], self._buttons[entry.name] = tick, state, button

    def _show_state(self, entry: RequirementSet) -> None:
        if entry.in_base:
            text = self.tr("installed (part of the base)")
        elif entry.is_ready:
            text = self.tr("installed, {size}").format(size=size(entry.bytes))
        else:
            text = self.tr("not installed ({count} MB)").format(count=entry.expected_mb)
        self._states[entry.name].setText(text)
        self._states[entry.name].setToolTip(entry.detail)
        self._buttons[entry.name].setVisible(not entry.is_ready)

    def _show_rows(self) -> None:
        for entry in self._sets:
            needed = entry.name in self._needed
            shown = needed or entry.name in self._requested or self._everything.isChecked()
            tick = self._ticks[entry.name]
            tick.setText(self.tr("{name} (needed)").format(name=entry.name) if needed else entry.name)
            tick.setVisible(shown)
            self._states[entry.name].setVisible(shown)
            self._buttons[entry.name].setVisible(shown and not entry.is_ready)
            self._buttons[entry.name].setEnabled(self._installation is None)
        if self._sets:
            self._summary.setText(self._summary_text())

    def _summary_text(self) -> str:
        if missing := self.missing:
            return self.tr("Not installed yet: {names}. The run cannot start without them.").format(
                names=", ".join(missing)
            )
        if self._needed:
            return self.tr("Everything this run needs is installed.")
        return self.tr("This run needs nothing beyond the base.")

    def _tick(self, name: str, on: bool) -> None:
        (self._requested.add if on else self._requested.discard)(name)
        self._show_rows()
        self.changed.emit()

    # ------------------------------------------------------------------ installing

    def install(self, name: str) -> None:
        """Install one set in the background."""
        if self._installation is not None or self._home is None:
            return
        installation = self._installation = install_job(self._program, self._home, [name])
        self._progress.setRange(0, 0)
        self._progress.show()
        self._stop.show()
        self._set_status(self.tr("Installing {name} …").format(name=name))
        self._show_rows()
        background = self._background

        def report(progress: InstallProgress) -> None:
            background.in_window(lambda: self._show_progress(progress), owner=self)

        background.run(lambda: installation.run(report), owner=self, done=lambda result: self._end(name, result))

    def cancel(self) -> None:
        """Cancel a running installation."""
        if self._installation is not None:
            self._installation.cancel()

    def _show_progress(self, progress: InstallProgress) -> None:
        self._progress.setRange(0, progress.total)
        self._progress.setValue(progress.done)
        self._set_status(f"{progress.set}: {progress.message}")

    def _end(self, name: str, result: JobResult) -> None:
        self._installation = None
        self._progress.hide()
        self._stop.hide()
        if result.was_cancelled:
            self._set_status(self.tr("The installation was cancelled; the incomplete environment is not used."))
        elif result.succeeded:
            self._set_status(self.tr("{name} is installed.").format(name=name))
        else:
            self._set_status(result.message, is_problem=True)
        self.refresh()
        self.installed.emit()

    def _show_problem(self, error: Exception) -> None:
        if not isinstance(error, ExtrasFailed):
            raise error
        self._summary.setText(self.tr("The sets cannot be listed: {why}").format(why=error))

    def _set_status(self, text: str, *, is_problem: bool = False) -> None:
        self._status.setText(text)
        self._status.setProperty("role", "problem" if is_problem else "caption")
        self._status.style().unpolish(self._status)
        self._status.style().polish(self._status)
        self._status.setVisible(bool(text))


_WANDB_FIELDS = {**WANDB_PARAMETERS, **WANDB_EXTRAS}
_PROXIES = {name: field for name, field in WANDB_EXTRAS.items() if "proxy" in name}
_DETAILS = (*(field for name, field in _WANDB_FIELDS.items() if name not in _PROXIES), "wandb_use_vpn_proxy")


class WandbBox(QWidget):
    """W&B settings, returned by `choice()`; empty proxy fields default to those in `.env`."""

    changed = Signal()

    def __init__(
        self, background: Background, form: FieldForm, folders: Sequence[Path] = (), parent: QWidget | None = None
    ) -> None:
        """`form` gets the fields; it may already have others of the same section."""
        super().__init__(parent)
        self.setObjectName("wandb_box")
        self._background = background
        self._address = WANDB_ADDRESS
        self._fallbacks = {"wandb_http_proxy": Fallback(), "wandb_https_proxy": Fallback()}
        self.form = form
        self.form.add(self.tr("Log to W&&B"), "track_wandb", "bool", False, self.tr("log this run to Weights & Biases"))
        self._probe = named(QPushButton(self.tr("Test the connection"), self), "wandb_probe")
        self._probe.setAccessibleName(self.tr("Test whether Weights & Biases can be reached"))
        self._probe.clicked.connect(self.probe)
        self._answer = named(QLabel(self, wordWrap=True), "wandb_answer")
        layout = fill(QVBoxLayout(self), self.form, margins=0)
        self._below = QWidget(self)
        fill(QHBoxLayout(self._below), self._probe, (self._answer, 1), margins=(8, 0, 0, 0))
        layout.addWidget(self._below)
        self.form.changed.connect(self._on_change)
        background.run(lambda: _fallbacks(folders), owner=self, done=self._show_fallbacks)
        self._show_rows()

    def _add_details(self) -> None:
        """Add the other fields when W&B is first enabled: most runs do not use it."""
        add = self.form.add
        add(self.tr("Project"), "wandb_project_name", "str", "", self.tr("cleanRL when it is empty"))
        add(self.tr("Entity"), "wandb_entity", "str", "", self.tr("your team or user; empty: your default one"))
        add(self.tr("Run name"), "wandb_run_name", "str", "")
        add(self.tr("E-mail"), "wandb_email", "str", "")
        add(
            self.tr("API key"),
            "wandb_api_key",
            "str",
            "",
            self.tr("stored in the secret store, never in a config, preset or log"),
            shown_as="secret",
            hint=self.tr(
                "Stored in the secret store. Empty: the key of `wandb login`, if any; else the run logs offline."
            ),
        )
        add(self.tr("VPN proxy"), "wandb_use_vpn_proxy", "bool", False, self.tr("reach W&B through a proxy"))
        add(self.tr("HTTP proxy"), "wandb_http_proxy", "str", "")
        add(self.tr("HTTPS proxy"), "wandb_https_proxy", "str", "")
        self._show_placeholders()

    def choice(self, *, with_fallback: bool = True) -> WandbChoice:
        """Return the choice; by default with the proxies in `.env` as fallback."""
        values = self.form.values()
        if not values["track_wandb"]:
            return WandbChoice()
        named = {name: values[field] for name, field in _WANDB_FIELDS.items()}
        for name, field in _PROXIES.items():
            fallback = self._fallbacks[field].value if with_fallback else ""
            named[name] = (values[field] or fallback) if values["wandb_use_vpn_proxy"] else ""
        return WandbChoice(True, use_proxy=values["wandb_use_vpn_proxy"], **named)

    def set_choice(self, choice: WandbChoice) -> None:
        """Show a choice; a proxy equal to the fallback leaves its field empty."""
        values = {field: getattr(choice, name) for name, field in _WANDB_FIELDS.items()}
        for field in _PROXIES.values():
            if values[field] == self._fallbacks[field].value:
                values[field] = ""
        self.form.set_values({"track_wandb": choice.enabled, "wandb_use_vpn_proxy": choice.use_proxy, **values})
        self._show_rows()

    def probe(self) -> None:
        """Test the connection in the background."""
        choice = self.choice()
        proxy = (choice.https_proxy or choice.http_proxy) if choice.use_proxy else ""
        address = self._address
        self._probe.setEnabled(False)
        self._set_status(self.tr("Testing …"))
        self._background.run(lambda: probe(address, proxy=proxy), owner=self, done=self._show_answer)

    def _show_answer(self, problem: str) -> None:
        self._probe.setEnabled(True)
        text = self.tr("W&B is reachable.") if not problem else self.tr("Not reachable: {why}").format(why=problem)
        self._set_status(text, is_problem=bool(problem))

    def _set_status(self, text: str, *, is_problem: bool = False) -> None:
        self._answer.setText(text)
        self._answer.setProperty("role", "problem" if is_problem else "caption")
        self._answer.style().unpolish(self._answer)
        self._answer.style().polish(self._answer)

    def _show_fallbacks(self, found: dict[str, Fallback]) -> None:
        self._fallbacks = found
        self._show_placeholders()
        self.changed.emit()

    def _show_placeholders(self) -> None:
        for name, known in self._fallbacks.items():
            if (row := self.form.row(name)) is not None:
                text = known.shown or self.tr("http://host:port")
                row.editor.widget.setPlaceholderText(text)  # type: ignore[attr-defined]

    def _on_change(self) -> None:
        self._show_rows()
        self.changed.emit()

    def _show_rows(self) -> None:
        tracked = bool(self.form.values()["track_wandb"])
        self._below.setVisible(tracked)
        if self.form.row(_DETAILS[0]) is None:
            if not tracked:
                return
            self._add_details()
        values = self.form.values()
        for name in _DETAILS:
            self.form[name].set_visible(tracked)
        for name in _PROXIES.values():
            self.form[name].set_visible(tracked and bool(values["wandb_use_vpn_proxy"]))


def _fallbacks(folders: Sequence[Path]) -> dict[str, Fallback]:
    return {"wandb_http_proxy": fallback(HTTP_NAMES, folders), "wandb_https_proxy": fallback(HTTPS_NAMES, folders)}


class CleanRlTrainForm(TrainForm):
    """Training on the left, monitoring and logging on the right."""

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
        column.addWidget(self._section(self.tr("Monitoring"), "section_watching", self.watching))
        analytics = FieldForm(self)
        analytics.add(
            self.tr("TensorBoard"),
            "tensorboard",
            "bool",
            True,
            self.tr("write event files; the charts of this window also need them"),
        )
        self.wandb = WandbBox(self.background, analytics, self.dotenv_folders(), self)
        column.addWidget(self._section(self.tr("Analytics"), "section_analytics", self.wandb))
        for part in (self.watching, self.wandb):
            part.changed.connect(self._analytics_changed)
        super()._fill_analytics(column)

    def _fill_watching(self, form: FieldForm) -> None:
        form.add(
            self.tr("FastLane"),
            "fastlane_enabled",
            "bool",
            True,
            self.tr("render the environment while the run is watched"),
        )
        form.add(
            self.tr("View"),
            "fastlane_video_mode",
            "str",
            "single",
            self.tr("one environment, or several as tiles"),
            choices=FASTLANE_MODES,
        )
        form.add(self.tr("Environment no."), "fastlane_slot", "int", 0, self.tr("the one to render"), minimum=0)
        form.add(
            self.tr("Maximum tiles"),
            "fastlane_grid_limit",
            "int",
            4,
            self.tr("maximum number of tiles"),
            minimum=1,
            maximum=64,
        )
        form.add(
            self.tr("Frame interval"),
            "fastlane_interval_ms",
            "int",
            33,
            self.tr("minimum milliseconds between two frames"),
            minimum=1,
        )
        form.add(
            self.tr("Longest side"),
            "fastlane_max_dim",
            "int",
            0,
            self.tr("pixels; larger frames are scaled down (0: never)"),
            minimum=0,
        )
        form.add(
            self.tr("Minimal live telemetry"),
            "minimal_telemetry",
            "bool",
            False,
            self.tr("send each episode's return and length to the daemon"),
        )
        about = caption(
            "",
            self.tr(
                "CleanRL runs skip the live-telemetry lane: they send no steps, so that training is not slowed down. "
                "Curves, TensorBoard and the FastLane frames are still live. Minimal telemetry sends one line "
                "for each episode."
            ),
            wraps=True,
        )
        about.setObjectName("telemetry_help")
        form.add_widget(about)

    def _begin(self) -> None:
        super()._begin()
        self.sets.set_program(self.link.extras_program(self.spec), self.program_home)
        self._show_watching()

    # ------------------------------------------------------------------ values

    def request(self) -> TrainRequest:
        seen = self.watching.values()
        return replace(
            super().request(),
            requirements=self.sets.requested,
            install_missing=self.sets.install_missing.isChecked(),
            fastlane=FastLaneChoice(
                seen["fastlane_enabled"], **{name: seen[extra] for name, extra in FASTLANE_EXTRAS.items()}
            ),
            minimal_telemetry=seen["minimal_telemetry"],
            tensorboard=self.wandb.form.values()["tensorboard"],
            wandb=self.wandb.choice(),
        )

    def set_request(self, request: TrainRequest) -> None:
        super().set_request(request)
        self.sets.set_asked(request.requirements)
        self.sets.install_missing.setChecked(request.install_missing)
        self.watching.set_values(
            {
                "fastlane_enabled": request.fastlane.enabled,
                **{extra: getattr(request.fastlane, name) for name, extra in FASTLANE_EXTRAS.items()},
                "minimal_telemetry": request.minimal_telemetry,
            }
        )
        self.wandb.form.set_values({"tensorboard": request.tensorboard})
        self.wandb.set_choice(request.wandb)
        self._show_watching()

    def field_forms(self) -> Sequence[FieldForm]:
        return (*super().field_forms(), self.watching, self.wandb.form)

    # ------------------------------------------------------------------ dependent fields

    def refresh(self) -> None:
        super().refresh()
        request = self.request()
        needed = self.presenter.requirement_sets(self.algorithm.algorithm(), request.env_id, request)
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
        self._poll(self.environment.combo.currentText().strip())

    def done(self, result: int) -> None:
        self.sets.cancel()  # the installation ends with its form
        super().done(result)
