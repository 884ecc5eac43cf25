"""Keep this name importable; the form is in `ui/forms`."""

from gym_gui.ui.forms.cleanrl_train_form import CleanRlTrainForm as CleanRlTrainForm
