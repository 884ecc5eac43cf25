"""Weights & Biases in a form: where a run is logged, the key, the way through a proxy, whether it can be reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.services.connectivity import HTTP_NAMES, HTTPS_NAMES, WANDB_ADDRESS, Fallback, fallback, probe
from gym_gui.ui.background import Background
from gym_gui.ui.forms.editors import editor_for
from gym_gui.ui.forms.field_form import FieldForm
from gym_gui.ui.presenters.workers.order import WandbChoice

_DETAILS = (
    "wandb_project_name", "wandb_entity", "wandb_run_name", "wandb_email", "wandb_api_key", "wandb_use_vpn_proxy",
)  # fmt: skip
_PROXIES = ("wandb_http_proxy", "wandb_https_proxy")


class WandbBox(QWidget):
    """`choice()` is what the person said; empty proxy fields are filled from `.env` when the box is ticked."""

    changed = Signal()

    def __init__(
        self, background: Background, form: FieldForm, folders: Sequence[Path] = (), parent: QWidget | None = None
    ) -> None:
        """`form` gets the fields; it may hold others of the same section already."""
        super().__init__(parent)
        self.setObjectName("wandb_box")
        self._background = background
        self._address = WANDB_ADDRESS
        self._fallbacks = {"wandb_http_proxy": Fallback(), "wandb_https_proxy": Fallback()}
        self.form = form
        self.form.add(
            FieldSpec("track_wandb", "bool", False, self.tr("log this run to Weights & Biases")), self.tr("Log to W&&B")
        )
        self._probe = QPushButton(self.tr("Test the connection"), self)
        self._probe.setObjectName("wandb_probe")
        self._probe.setAccessibleName(self.tr("Test whether Weights & Biases can be reached"))
        self._probe.clicked.connect(self.probe)
        self._answer = QLabel(self)
        self._answer.setObjectName("wandb_answer")
        self._answer.setWordWrap(True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.form)
        self._below = QWidget(self)
        below = QHBoxLayout(self._below)
        below.setContentsMargins(8, 0, 0, 0)
        below.addWidget(self._probe)
        below.addWidget(self._answer, 1)
        layout.addWidget(self._below)
        self.form.changed.connect(self._on_change)
        background.run(lambda: _fallbacks(folders), owner=self, done=self._show_fallbacks)
        self._show_rows()

    def _add_details(self) -> None:
        """Most runs are not logged there: these fields are made when one is."""
        add = self.form.add
        add(FieldSpec("wandb_project_name", "str", "", self.tr("cleanRL when it is empty")), self.tr("Project"))
        add(
            FieldSpec("wandb_entity", "str", "", self.tr("your team or user; empty: your default one")),
            self.tr("Entity"),
        )
        add(FieldSpec("wandb_run_name", "str", ""), self.tr("Run name"))
        add(FieldSpec("wandb_email", "str", ""), self.tr("E-mail"))
        key = FieldSpec(
            "wandb_api_key", "str", "", self.tr("kept in the secret store, never in a config, preset or log")
        )
        add(
            key, self.tr("API key"), editor=editor_for(key, kind="secret"),
            hint=self.tr("Goes to the secret store. Empty: the key of `wandb login`, if there is one; else the run "
                         "logs offline."),
        )  # fmt: skip
        add(
            FieldSpec("wandb_use_vpn_proxy", "bool", False, self.tr("reach W&B through a proxy")),
            self.tr("VPN proxy"),
        )
        add(FieldSpec("wandb_http_proxy", "str", ""), self.tr("HTTP proxy"))
        add(FieldSpec("wandb_https_proxy", "str", ""), self.tr("HTTPS proxy"))
        self._show_placeholders()

    def choice(self, *, with_fallback: bool = True) -> WandbChoice:
        """What is chosen; for what is sent, with the proxies that stand in `.env`."""
        values = self.form.values()
        if not values["track_wandb"]:
            return WandbChoice()
        proxies = {
            name: values[name] or (self._fallbacks[name].value if with_fallback else "") for name in _PROXIES
        }  # fmt: skip
        use_proxy = values["wandb_use_vpn_proxy"]
        return WandbChoice(
            True, values["wandb_project_name"], values["wandb_entity"], values["wandb_run_name"],
            values["wandb_email"], values["wandb_api_key"], use_proxy,
            proxies["wandb_http_proxy"] if use_proxy else "", proxies["wandb_https_proxy"] if use_proxy else "",
        )  # fmt: skip

    def set_choice(self, choice: WandbChoice) -> None:
        """Show a choice; a proxy that is the fallback anyway leaves its field empty."""
        proxies = {"wandb_http_proxy": choice.http_proxy, "wandb_https_proxy": choice.https_proxy}
        self.form.set_values(
            {
                "track_wandb": choice.enabled, "wandb_project_name": choice.project, "wandb_entity": choice.entity,
                "wandb_run_name": choice.run_name, "wandb_email": choice.email, "wandb_api_key": choice.api_key,
                "wandb_use_vpn_proxy": choice.use_proxy,
                **{name: "" if value == self._fallbacks[name].value else value for name, value in proxies.items()},
            }
        )  # fmt: skip
        self._show_rows()

    def probe(self) -> None:
        """Ask the network, off the window's thread."""
        choice = self.choice()
        proxy = (choice.https_proxy or choice.http_proxy) if choice.use_proxy else ""
        address = self._address
        self._probe.setEnabled(False)
        self._say(self.tr("Asking …"))
        self._background.run(lambda: probe(address, proxy=proxy), owner=self, done=self._show_answer)

    def _show_answer(self, problem: str) -> None:
        self._probe.setEnabled(True)
        words = self.tr("W&B can be reached.") if not problem else self.tr("Not reachable: {why}").format(why=problem)
        self._say(words, is_problem=bool(problem))

    def _say(self, words: str, *, is_problem: bool = False) -> None:
        self._answer.setText(words)
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
                words = known.shown or self.tr("http://host:port")
                row.editor.widget.setPlaceholderText(words)  # type: ignore[attr-defined]

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
        for name in _PROXIES:
            self.form[name].set_visible(tracked and bool(values["wandb_use_vpn_proxy"]))


def _fallbacks(folders: Sequence[Path]) -> dict[str, Fallback]:
    return {
        "wandb_http_proxy": fallback(HTTP_NAMES, folders),
        "wandb_https_proxy": fallback(HTTPS_NAMES, folders),
    }
