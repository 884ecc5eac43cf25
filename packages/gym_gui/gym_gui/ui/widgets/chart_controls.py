"""How charts are drawn: axis, smoothing, groups with their bands, logarithmic axes. Tells what was chosen, no more."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QHBoxLayout, QLabel, QPushButton, QSlider, QWidget

from gym_gui.services.analytics.aggregate import Band
from gym_gui.services.analytics.curves import Axis
from gym_gui.services.analytics.smoothing import Smoothing
from gym_gui.ui.presenters.charts import ChartChoice

_EMA_STEPS = 99
_WINDOWS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1_000)
_LINES = "lines"


class ChartControls(QWidget):
    """A row of controls; `changed` carries the choice."""

    changed = Signal(object)  # ChartChoice
    reset_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("chart_controls")
        self.axis = self._combo("chart_axis", self.tr("Horizontal axis"))
        for axis, text in (
            (Axis.STEP, self.tr("over steps")),
            (Axis.TIME, self.tr("over time")),
            (Axis.EPISODE, self.tr("over episodes")),
        ):
            self.axis.addItem(text, axis.value)
        self.groups = self._combo("chart_groups", self.tr("Lines or groups of runs"))
        self.groups.setToolTip(self.tr("Runs that differ only in their seed can be one line with a band around it"))
        self.groups.addItem(self.tr("each run"), _LINES)
        for band, text in (
            (Band.STD, self.tr("groups: mean ± std")),
            (Band.CI, self.tr("groups: mean, 95 % bootstrap")),
            (Band.IQM, self.tr("groups: IQM, 95 % bootstrap")),
            (Band.NONE, self.tr("groups: mean alone")),
        ):
            self.groups.addItem(text, band.value)
        self.kind = self._combo("chart_smoothing_kind", self.tr("Kind of smoothing"))
        self.kind.addItem(self.tr("EMA"), "ema")
        self.kind.addItem(self.tr("window"), "window")
        self.kind.setToolTip(self.tr("An exponential moving average, or the mean of the last points"))
        self.amount = QSlider(Qt.Orientation.Horizontal)
        self.amount.setObjectName("chart_smoothing")
        self.amount.setAccessibleName(self.tr("Smoothing"))
        self.amount.setMinimumWidth(self.fontMetrics().averageCharWidth() * 12)
        self.amount.setMaximumWidth(self.fontMetrics().averageCharWidth() * 26)
        label = QLabel(self.tr("S&moothing"))
        label.setBuddy(self.amount)
        self._amount_text = QLabel()
        self._amount_text.setProperty("role", "caption")
        self._amount_text.setMinimumWidth(self.fontMetrics().horizontalAdvance("0.000"))
        self.log_x = self._box("chart_log_x", self.tr("log &x"), self.tr("Logarithmic horizontal axis"))
        self.log_y = self._box("chart_log_y", self.tr("log &y"), self.tr("Logarithmic vertical axis"))
        self.reset = QPushButton(self.tr("Reset zoom"))
        self.reset.setObjectName("chart_reset")
        self.reset.setAccessibleName(self.tr("Show the whole curves again"))
        self.reset.setToolTip(
            self.tr(
                "Drag to move; turn the wheel with Ctrl, or drag with the right button, to look closer. This shows all"
            )
        )
        self.reset.clicked.connect(self.reset_wanted)
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(0, 0, 0, 0)
        smoothing = (label, self.kind, self.amount, self._amount_text)
        for widget in (self.axis, self.groups, *smoothing, self.log_x, self.log_y):
            self._row.addWidget(widget)
        self._row.addStretch(1)
        self._row.addWidget(self.reset)
        self._set_range()
        self.axis.currentIndexChanged.connect(self._tell)
        self.groups.currentIndexChanged.connect(self._tell)
        self.kind.currentIndexChanged.connect(self._change_kind)
        self.amount.valueChanged.connect(self._tell)
        self.log_x.toggled.connect(self._tell)
        self.log_y.toggled.connect(self._tell)

    def add(self, widget: QWidget, *, in_front: bool = False) -> None:
        """A control of whoever uses these."""
        self._row.insertWidget(0 if in_front else self._row.count() - 1, widget)

    @property
    def choice(self) -> ChartChoice:
        grouping = str(self.groups.currentData())
        return ChartChoice(
            axis=Axis(self.axis.currentData()),
            smoothing=self._smoothing(),
            is_grouped=grouping != _LINES,
            band=Band.STD if grouping == _LINES else Band(grouping),
            log_x=self.log_x.isChecked(),
            log_y=self.log_y.isChecked(),
        )

    def show_choice(self, choice: ChartChoice) -> None:
        """Set everything without telling."""
        controls = (self.axis, self.groups, self.kind, self.amount, self.log_x, self.log_y)
        blockers = [QSignalBlocker(control) for control in controls]
        self.axis.setCurrentIndex(max(0, self.axis.findData(choice.axis.value)))
        self.groups.setCurrentIndex(max(0, self.groups.findData(choice.band.value if choice.is_grouped else _LINES)))
        self.kind.setCurrentIndex(1 if choice.smoothing.kind == "window" else 0)
        self._set_range()
        amount = choice.smoothing.amount
        if choice.smoothing.kind == "window":
            self.amount.setValue(min(range(len(_WINDOWS)), key=lambda place: abs(_WINDOWS[place] - amount)))
        else:
            self.amount.setValue(round(100 * amount))
        self.log_x.setChecked(choice.log_x)
        self.log_y.setChecked(choice.log_y)
        self._write_amount()
        del blockers

    def _smoothing(self) -> Smoothing:
        value: int = self.amount.value()
        if self.kind.currentData() == "window":
            return Smoothing.window(_WINDOWS[value])
        return Smoothing.ema(value / 100)

    def _set_range(self) -> None:
        self.amount.setRange(0, len(_WINDOWS) - 1 if self.kind.currentData() == "window" else _EMA_STEPS)

    def _change_kind(self) -> None:
        with QSignalBlocker(self.amount):
            was_on = self.amount.value() > 0
            self._set_range()
            self.amount.setValue(0 if not was_on else 5 if self.kind.currentData() == "window" else 90)
        self._tell()

    def _tell(self) -> None:
        self._write_amount()
        self.changed.emit(self.choice)

    def _write_amount(self) -> None:
        smoothing = self._smoothing()
        text = self.tr("off") if not smoothing.is_on else f"{smoothing.amount:g}"
        self._amount_text.setText(text)
        words = self.tr("How much of the past a smoothed curve carries along")
        if self.kind.currentData() == "window":
            words = self.tr("Over how many points a smoothed curve takes the mean")
        self.amount.setToolTip(words)

    def _combo(self, name: str, accessible: str) -> QComboBox:
        combo = QComboBox()
        combo.setObjectName(name)
        combo.setAccessibleName(accessible)
        combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        return combo

    def _box(self, name: str, text: str, accessible: str) -> QCheckBox:
        box = QCheckBox(text)
        box.setObjectName(name)
        box.setAccessibleName(accessible)
        return box
