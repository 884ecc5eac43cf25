"""A heading that opens and closes what is below it; what is below is built when it is first opened."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolButton, QVBoxLayout, QWidget


class Section(QWidget):
    """A titled part of a form."""

    opened = Signal()

    def __init__(
        self,
        title: str,
        name: str,
        parent: QWidget | None = None,
        *,
        build: Callable[[QWidget], None] | None = None,
        is_open: bool = True,
        is_nested: bool = False,
    ) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self._title = title
        self._build = build
        self._heading = QToolButton(self)
        self._heading.setObjectName(f"{name}_heading")
        self._heading.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._heading.setAutoRaise(True)
        self._heading.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._heading.setAccessibleName(title)
        font = self._heading.font()
        font.setBold(True)
        self._heading.setFont(font)
        self.body = QFrame(self)
        self.body.setObjectName(f"{name}_body")
        line = QFrame(self)
        line.setFrameShape(QFrame.Shape.HLine)
        line.setFrameShadow(QFrame.Shadow.Sunken)
        line.setVisible(not is_nested)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._heading)
        layout.addWidget(line)
        layout.addWidget(self.body)
        self._is_open = is_open
        self._heading.clicked.connect(lambda: self.set_open(not self._is_open))
        self.set_remark("")
        self._show(is_open)

    @property
    def heading(self) -> QToolButton:
        return self._heading

    @property
    def is_open(self) -> bool:
        return self._is_open

    def set_open(self, is_open: bool) -> None:
        if is_open != self._is_open:
            self._show(is_open)

    def set_remark(self, remark: str) -> None:
        """A few words behind the title: how many values differ, what is wrong below."""
        self._heading.setText(f"{self._title}   {remark}" if remark else self._title)
        self._remark = remark
        self._describe()

    def _describe(self) -> None:
        state = self.tr("open") if self._is_open else self.tr("closed")
        self._heading.setAccessibleDescription(f"{state} {self._remark}".strip())

    def _show(self, is_open: bool) -> None:
        self._is_open = is_open
        if is_open and self._build is not None:
            build, self._build = self._build, None
            build(self.body)
        self._heading.setArrowType(Qt.ArrowType.DownArrow if is_open else Qt.ArrowType.RightArrow)
        self.body.setVisible(is_open)
        self._describe()
        if is_open:
            self.opened.emit()
