"""How fast a game goes: a slider and a figure that say the same."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QSlider, QSpinBox, QWidget

SLOWEST, FASTEST = 1, 60


class PaceBox(QWidget):
    """Steps a second."""

    changed = Signal(int)

    def __init__(self, name: str, rate: int = 15, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setObjectName("pace_slider")
        self.slider.setAccessibleName(name)
        self.spin = QSpinBox()
        self.spin.setObjectName("pace_spin")
        self.spin.setAccessibleName(name)
        self.spin.setSuffix(self.tr(" steps/s"))
        for part in (self.slider, self.spin):
            part.setRange(SLOWEST, FASTEST)
            part.setValue(rate)
            part.valueChanged.connect(self._set)
        self.setFocusProxy(self.slider)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.slider, 1)
        layout.addWidget(self.spin)

    @property
    def rate(self) -> int:
        return self.spin.value()

    def set_rate(self, rate: int) -> None:
        self._set(max(SLOWEST, min(FASTEST, rate)))

    def _set(self, rate: int) -> None:
        with QSignalBlocker(self.slider), QSignalBlocker(self.spin):
            self.slider.setValue(rate)
            self.spin.setValue(rate)
        self.changed.emit(rate)
