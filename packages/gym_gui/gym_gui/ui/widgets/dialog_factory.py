"""Which dialog a person gets: chosen from the worker's catalog entry and the kind of form, by two tables.

    form = open_form("train", entry, link=link, background=background, home=home, parent=window)
    form.submitted.connect(…)            ids of the runs that were queued

A worker with a form of its own adds a row to `FORMS` (or calls `register_forms`) and names it in its catalog entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtWidgets import QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.workers.registry import PresenterRegistry
from gym_gui.ui.turns import in_a_later_turn
from gym_gui.ui.widgets.cleanrl_policy_form import CleanRlPolicyForm
from gym_gui.ui.widgets.cleanrl_resume_form import CleanRlResumeForm
from gym_gui.ui.widgets.cleanrl_script_form import CleanRlScriptForm
from gym_gui.ui.widgets.cleanrl_train_form import CleanRlTrainForm
from gym_gui.ui.widgets.run_form import RunForm
from gym_gui.ui.widgets.sweep_form import SweepForm
from gym_gui.ui.widgets.train_form import TrainForm
from gym_gui.ui.workers.catalog import SCHEMA_FORM, SWEEP_FORM, WorkerEntry
from gym_gui.wording.run_view import parsed

Make = Callable[..., RunForm]

FORMS: dict[str, dict[str, Make]] = {
    SCHEMA_FORM: {
        "train": TrainForm,
        "clone": TrainForm,
        "resume": CleanRlResumeForm,
        "extend": CleanRlResumeForm,
        "sweep": SweepForm,
    },
    "cleanrl": {
        "train": CleanRlTrainForm,
        "clone": CleanRlTrainForm,
        "resume": CleanRlResumeForm,
        "extend": CleanRlResumeForm,
        "evaluate": CleanRlPolicyForm,
        "script": CleanRlScriptForm,
        "sweep": SweepForm,
    },
    # A new sweep is the form of the worker that runs its trials; how it goes on its own checkpoint says.
    SWEEP_FORM: {"resume": CleanRlResumeForm, "extend": CleanRlResumeForm},
}
"""By the entry's `form`, then by kind"""

_presenters = PresenterRegistry()


class NoSuchForm(LookupError):
    """This worker has no form of this kind; the words are for people."""


def register_forms(name: str, forms: Mapping[str, Make]) -> None:
    """Offer forms under the name that catalog entries use."""
    FORMS[name] = dict(forms)


def can_open(kind: str, entry: WorkerEntry) -> bool:
    return entry.is_usable and kind in FORMS.get(entry.form, {})


def _cloned_as(run: pb.Run) -> str:
    """An evaluation is cloned into the form that evaluates, a script into the one that runs scripts."""
    extras = parsed(run.extras_json) or {}
    if extras.get("mode") == "policy_eval":
        return "evaluate"
    return "script" if extras.get("script_path") else "clone"


def open_form(
    kind: str,
    entry: WorkerEntry,
    *,
    link: DaemonLink,
    background: Background,
    home: Home | None,
    parent: QWidget | None = None,
    run: pb.Run | None = None,
    presenters: PresenterRegistry | None = None,
    in_turns: bool = False,
) -> RunForm:
    """The dialog, shown and not modal; raise NoSuchForm with what to say when there is none.

    `in_turns`: it is made now, and filled and shown in the next turn of the window's loop. All at once holds it up.
    """
    if not entry.is_usable:
        raise NoSuchForm(entry.remedy)
    is_clone = kind == "clone" and run is not None
    make = FORMS.get(entry.form, {}).get(_cloned_as(run) if is_clone and run is not None else kind)
    if make is None:
        raise NoSuchForm(f"{entry.display_name} has no form to {kind} a run with")
    presenter = (presenters or _presenters).for_entry(entry)
    about = None if is_clone else run
    form = make(entry, presenter, link=link, background=background, home=home, parent=parent, run=about)
    form.setProperty("kind", kind)

    def present() -> None:
        if is_clone and run is not None:
            form.clone(run)
        form.show()
        form.raise_()
        form.activateWindow()

    if in_turns:
        in_a_later_turn(form, present)
    else:
        present()
    return form
