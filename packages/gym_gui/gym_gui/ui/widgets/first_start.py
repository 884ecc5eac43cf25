"""What a person sees who has no run yet: one button that trains something, and the other ways to begin."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.app_icon import application_icon
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.banner import Banner

FIRST_TIMESTEPS = 500_000
"""Enough for PPO to balance the pole for good, and short enough to watch: a quarter of a minute to a minute"""


def first_config() -> dict[str, Any]:
    """PPO on CartPole, with the algorithm's own defaults."""
    worker_config = {
        "run_id": "${RUN_ID}",
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": FIRST_TIMESTEPS,
        "extras": {},
    }
    return {
        "run_name": "My first run",
        "resources": {"cpus": {"requested": 1}},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": worker_config}},
    }


class FirstStartPage(QWidget):
    """Greets, explains in three lines, and starts a first run with one click."""

    run_started = Signal(str)  # run id
    form_wanted = Signal()
    play_wanted = Signal()
    import_wanted = Signal()

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("first_start_page")
        self._link = link
        self.banner = Banner()
        self.train_button = self._make_train_button()
        card = QFrame()
        card.setProperty("role", "card")
        card.setMaximumWidth(self.fontMetrics().averageCharWidth() * 110)
        self._fill(QVBoxLayout(card))
        row = QHBoxLayout()
        row.addStretch(1)
        row.addWidget(card, 6)
        row.addStretch(1)
        layout = QVBoxLayout(self)
        layout.addStretch(2)
        layout.addLayout(row)
        layout.addStretch(3)

    def _fill(self, inside: QVBoxLayout) -> None:
        inside.setContentsMargins(36, 30, 36, 30)
        inside.setSpacing(16)
        picture = _centred(QLabel())
        picture.setPixmap(application_icon().pixmap(64, 64))
        inside.addWidget(picture)
        inside.addWidget(_centred(QLabel(self.tr("Welcome to MOSAIC")), role="title"))
        words = self.tr(
            "Here you train reinforcement-learning agents, watch them learn, and keep what they learned. "
            "A program in the background, the trainer daemon, owns your runs: they go on when you close this window."
        )
        inside.addWidget(_centred(QLabel(words)))
        inside.addSpacing(6)
        inside.addWidget(self.train_button, 0, Qt.AlignmentFlag.AlignHCenter)
        what = self.tr(
            "An agent learns to balance a pole on a cart (PPO, {steps} steps, less than a minute on most machines). "
            "You see its curve and its picture while it learns."
        ).format(steps=f"{FIRST_TIMESTEPS:,}")
        inside.addWidget(_centred(QLabel(what), role="caption"))
        inside.addWidget(self.banner)
        inside.addSpacing(6)
        inside.addLayout(self._make_other_ways())

    def _make_train_button(self) -> QPushButton:
        button = QPushButton(self.tr("&Train CartPole now"))
        button.setObjectName("train_cartpole")
        button.setAccessibleName(self.tr("Train CartPole now"))
        button.setProperty("role", "primary")
        large = button.font()
        large.setPointSizeF(large.pointSizeF() * 1.25)
        button.setFont(large)
        button.setDefault(True)
        button.clicked.connect(self.train)
        return button

    def _make_other_ways(self) -> QHBoxLayout:
        others = QHBoxLayout()
        others.addStretch(1)
        for name, text, signal in (
            ("first_new_run", self.tr("&Choose what to train…"), self.form_wanted),
            ("first_play", self.tr("&Play an environment yourself"), self.play_wanted),
            ("first_import", self.tr("&Import runs…"), self.import_wanted),
        ):
            button = QPushButton(text)
            button.setObjectName(name)
            button.setAccessibleName(text.replace("&", ""))
            button.clicked.connect(signal)
            others.addWidget(button)
        others.addStretch(1)
        return others

    def train(self) -> None:
        """Queue the first run; say so if it cannot be."""
        self.train_button.setEnabled(False)
        self.banner.clear()
        self._link.call(
            lambda client: client.submit(first_config()).run.run_id,
            owner=self,
            done=self._started,
            failed=self._complain,
        )

    def _started(self, run_id: str) -> None:
        self.train_button.setEnabled(True)
        self.run_started.emit(run_id)

    def _complain(self, words: str) -> None:
        self.train_button.setEnabled(True)
        self.banner.say(self.tr("The run was not queued: {reason}").format(reason=words), "bad")


def _centred(label: QLabel, role: str = "") -> QLabel:
    label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
    label.setWordWrap(True)
    if role:
        label.setProperty("role", role)
    return label
