"""The head of the run page: name, state, key figures, and what can be done with the run now."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QMenu, QToolButton, QVBoxLayout, QWidget

from gym_gui.ui.widgets.elided_label import ElidedLabel
from gym_gui.ui.widgets.figure_card import StateChip

MAIN_ACTIONS = ("run_pause", "run_resume", "run_cancel", "run_extend", "run_evaluate", "run_clone")
"""Those that get a button while they are possible; all others stand in the menu"""


class RunHeader(QWidget):
    """Two lines; the buttons stay the same objects, so that the keyboard does not lose its place."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("run_header")
        self.chip = StateChip()
        self.title = ElidedLabel()
        self.title.setObjectName("run_title")
        self.title.setProperty("role", "title")
        self.subtitle = ElidedLabel()
        self.subtitle.setObjectName("run_subtitle")
        self.subtitle.setProperty("role", "caption")
        self._actions: dict[str, QAction] = {}
        self.buttons = {name: self._button(name) for name in MAIN_ACTIONS}
        self.menu = QMenu(self)
        self.menu.setToolTipsVisible(True)
        self.more_button = QToolButton()
        self.more_button.setObjectName("run_more")
        self.more_button.setText(self.tr("More"))
        self.more_button.setAccessibleName(self.tr("Everything that can be done with this run"))
        self.more_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.more_button.setMenu(self.menu)
        top = QHBoxLayout()
        top.setSpacing(8)
        top.addWidget(self.chip)
        top.addWidget(self.title, 1)
        for button in (*self.buttons.values(), self.more_button):
            top.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 12, 6)
        layout.setSpacing(2)
        layout.addLayout(top)
        layout.addWidget(self.subtitle)

    def _button(self, name: str) -> QToolButton:
        button = QToolButton()
        button.setObjectName(f"header_{name}")
        button.clicked.connect(lambda: self._trigger(name))
        button.hide()
        return button

    def _trigger(self, name: str) -> None:
        if (action := self._actions.get(name)) is not None:
            action.trigger()

    def show_state(self, run: pb.Run, chip: str, title: str, subtitle: str) -> None:
        self.chip.show_state(run, chip)
        self.title.show_text(title)
        self.subtitle.show_text(subtitle)

    def show_actions(self, actions: list[QAction]) -> None:
        """What is possible now; those of before may be deleted afterwards."""
        self._actions = {action.objectName(): action for action in actions if action.objectName()}
        for name, button in self.buttons.items():
            action = self._actions.get(name)
            button.setVisible(action is not None and action.isEnabled())
            if action is not None:
                button.setText(action.text().replace("&", ""))
                button.setToolTip(action.toolTip())
                button.setAccessibleName(action.text().replace("&", ""))
        self.menu.clear()
        self.menu.addActions([action for action in actions if action.objectName() != "run_open"])
