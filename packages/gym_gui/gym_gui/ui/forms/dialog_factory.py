"""Choose the dialog for a worker's catalog entry and a kind of form.

    form = open_form("train", entry, link=link, background=background, home=home, parent=window)
    form.submitted.connect(…)            ids of the queued runs

A worker with its own form adds a row to `FORMS` (or calls `register_forms`) and names it in its catalog entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import Mode
from PySide6.QtWidgets import QWidget

from gym_gui.ui.background import Background, defer
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.cleanrl_policy_form import CleanRlPolicyForm
from gym_gui.ui.forms.cleanrl_resume_form import CleanRlResumeForm
from gym_gui.ui.forms.cleanrl_script_form import CleanRlScriptForm
from gym_gui.ui.forms.cleanrl_train_form import CleanRlTrainForm
from gym_gui.ui.forms.llm_train_form import LlmTrainForm
from gym_gui.ui.forms.run_form import RunForm
from gym_gui.ui.forms.spade_bdi_train_form import SpadeBdiTrainForm
from gym_gui.ui.forms.sweep_form import SweepForm
from gym_gui.ui.forms.train_form import TrainForm
from gym_gui.ui.presenters.workers.registry import PresenterRegistry
from gym_gui.ui.workers.catalog import SCHEMA_FORM, SWEEP_FORM, WorkerEntry
from gym_gui.wording.run_view import extras_of

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
    "spade_bdi": {
        "train": SpadeBdiTrainForm,
        "clone": SpadeBdiTrainForm,
        "resume": CleanRlResumeForm,
        "extend": CleanRlResumeForm,
        "evaluate": CleanRlPolicyForm,
        "sweep": SweepForm,
    },
    "llm": {
        "train": LlmTrainForm,
        "clone": LlmTrainForm,
        "resume": CleanRlResumeForm,
        "extend": CleanRlResumeForm,
        "evaluate": CleanRlPolicyForm,
        "sweep": SweepForm,
    },
    # A new sweep uses the form of the worker that runs its trials; its checkpoint defines how it continues.
    SWEEP_FORM: {"resume": CleanRlResumeForm, "extend": CleanRlResumeForm},
}
"""By the entry's `form`, then by kind"""

_presenters = PresenterRegistry()


class NoSuchForm(LookupError):
    """The worker has no form of this kind; the message is for users."""


def register_forms(name: str, forms: Mapping[str, Make]) -> None:
    """Register forms under the name that catalog entries use."""
    FORMS[name] = dict(forms)


def _cloned_as(run: pb.Run) -> str:
    """Return the kind of form that clones a run: evaluations and scripts have their own."""
    extras = extras_of(run)
    if extras.get("mode") == Mode.EVALUATE:
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
    is_deferred: bool = False,
) -> RunForm:
    """Open the dialog, not modal, and return it; raise NoSuchForm if there is none.

    `is_deferred`: it is made now, and filled and shown in the next event-loop iteration. All at once holds it up.
    """
    if not entry.is_usable:
        raise NoSuchForm(entry.remedy)
    is_clone = kind == "clone" and run is not None
    make = FORMS.get(entry.form, {}).get(_cloned_as(run) if is_clone and run is not None else kind)
    if make is None:
        raise NoSuchForm(f"{entry.display_name} has no form to {kind} a run with")
    presenter = _presenters.for_entry(entry)
    about = None if is_clone else run
    form = make(entry, presenter, link=link, background=background, home=home, parent=parent, run=about)
    form.setProperty("kind", kind)

    def present() -> None:
        if is_clone and run is not None:
            form.clone(run)
        form.show()
        form.raise_()
        form.activateWindow()

    if is_deferred:
        defer(form, present)
    else:
        present()
    return form
