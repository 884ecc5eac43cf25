"""Why the agent acted: the titled parts that a reasoning worker sends with its steps."""

from __future__ import annotations

import html
from collections.abc import Sequence

from mosaic_wire.reasoning import Part
from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QLabel, QTextBrowser, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.widgets.parts import fill, named, styled
from gym_gui.wording.formats import printable


class ReasoningView(QWidget):
    """The parts of one step below each other; hidden until a step has some."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("reasoning_view")
        self._parts: Sequence[Part] = ()
        self.title = styled(QLabel(self.tr("Reasoning")), "caption")
        self.text = named(QTextBrowser(openLinks=False), "reasoning_text", self.tr("Why the agent acted"))
        fill(QVBoxLayout(self), self.title, (self.text, 1), margins=0, spacing=2)
        self.hide()

    def show_parts(self, parts: Sequence[Part]) -> None:
        """Show the parts of a step, at the same place of the text as before."""
        self.setVisible(bool(parts))
        if parts == self._parts:
            return
        self._parts = parts
        self._draw()

    def _draw(self) -> None:
        bar = self.text.verticalScrollBar()
        place = bar.value()
        self.text.setHtml(_html(self._parts))
        bar.setValue(place)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self._draw()


def _html(parts: Sequence[Part]) -> str:
    """Return the parts as HTML; nothing of their text is markup."""
    shades = theme.colors()
    signs = {"+": shades.good, "-": shades.bad}
    family = theme.monospace().family()

    def line(text: str) -> str:
        color = signs.get(text[:1], shades.text)
        return f'<span style="color:{color}">{_shown(text)}</span>'

    def body(part: Part) -> str:
        return "<br>".join(map(line, part.items)) if part.items else _shown(part.text)

    return "".join(
        f'<p style="color:{shades.muted};margin-bottom:0">{_shown(part.title)}</p>'
        f"<p style=\"font-family:'{family}';white-space:pre-wrap;margin-top:2px\">{body(part)}</p>"
        for part in parts
    )


def _shown(text: str) -> str:
    """Return what an agent or a model said as HTML: no markup, and no mark that hides or turns text around."""
    return html.escape(printable(text))
