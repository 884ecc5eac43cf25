"""The page for a home without runs: one button that trains something, and other ways to start."""

from __future__ import annotations

from typing import Any

from mosaic_wire.run_request import run_request
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.theme import application_icon
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import fill, named, push_button, styled

FIRST_TIMESTEPS = 500_000
"""Enough for PPO to balance the pole, and short: 15 to 60 seconds"""


def first_config() -> dict[str, Any]:
    """Return a config for PPO on CartPole with the algorithm's defaults."""
    return run_request(
        "cleanrl",
        module="cleanrl_worker.cli",
        algo="ppo",
        env_id="CartPole-v1",
        seed=1,
        total_timesteps=FIRST_TIMESTEPS,
        run_name="My first run",
        resources={"cpus": {"requested": 1}},
    )


class FirstStartPage(QWidget):
    """Welcomes the user and starts a first run with one click."""

    run_started = Signal(str)  # run id
    form_requested = Signal()
    play_requested = Signal()
    import_requested = Signal()

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("first_start_page")
        self._link = link
        self.banner = Banner()
        self.train_button = self._make_train_button()
        card = styled(QFrame(), "card")
        card.setMaximumWidth(self.fontMetrics().averageCharWidth() * 110)
        self._fill(QVBoxLayout(card))
        row = fill(QHBoxLayout(), 1, (card, 6), 1)
        fill(QVBoxLayout(self), 2, row, 3)

    def _fill(self, inside: QVBoxLayout) -> None:
        inside.setContentsMargins(36, 30, 36, 30)
        inside.setSpacing(16)
        icon_label = _centered(QLabel())
        icon_label.setPixmap(application_icon().pixmap(64, 64))
        inside.addWidget(icon_label)
        inside.addWidget(_centered(QLabel(self.tr("Welcome to MOSAIC")), role="title"))
        text = self.tr(
            "MOSAIC trains reinforcement-learning agents, shows them while they learn, and stores their checkpoints. "
            "The trainer daemon, a background process, runs them: they keep running when you close this window."
        )
        inside.addWidget(_centered(QLabel(text)))
        inside.addSpacing(6)
        inside.addWidget(self.train_button, 0, Qt.AlignmentFlag.AlignHCenter)
        what = self.tr(
            "An agent learns to balance a pole on a cart (PPO, {steps} steps, less than a minute on most machines). "
            "You see its curve and its frames while it learns."
        ).format(steps=f"{FIRST_TIMESTEPS:,}")
        inside.addWidget(_centered(QLabel(what), role="caption"))
        inside.addWidget(self.banner)
        inside.addSpacing(6)
        inside.addLayout(self._make_other_ways())

    def _make_train_button(self) -> QPushButton:
        button = named(QPushButton(self.tr("&Train CartPole now")), "train_cartpole", role="primary")
        button.setAccessibleName(self.tr("Train CartPole now"))
        large = button.font()
        large.setPointSizeF(large.pointSizeF() * 1.25)
        button.setFont(large)
        button.setDefault(True)
        button.clicked.connect(self.train)
        return button

    def _make_other_ways(self) -> QHBoxLayout:
        others = fill(QHBoxLayout(), 1)
        for name, text, signal in (
            ("first_new_run", self.tr("&New run…"), self.form_requested),
            ("first_play", self.tr("&Play an environment yourself"), self.play_requested),
            ("first_import", self.tr("&Import runs…"), self.import_requested),
        ):
            button = push_button(name, text, signal, text.replace("&", ""))
            others.addWidget(button)
        others.addStretch(1)
        return others

    def train(self) -> None:
        """Submit the first run; show an error if that fails."""
        self.train_button.setEnabled(False)
        self.banner.clear()
        self._link.call(
            lambda client: client.submit(first_config()).run.run_id,
            owner=self,
            done=self._started,
            failed=self._show_problem,
        )

    def _started(self, run_id: str) -> None:
        self.train_button.setEnabled(True)
        self.run_started.emit(run_id)

    def _show_problem(self, text: str) -> None:
        self.train_button.setEnabled(True)
        self.banner.set_message(self.tr("The run was not queued: {reason}").format(reason=text), "bad")


def _centered(label: QLabel, role: str = "") -> QLabel:
    label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
    label.setWordWrap(True)
    if role:
        label.setProperty("role", role)
    return label
