"""Keep this name importable; the form is in `ui/forms`."""

from gym_gui.ui.forms.spade_bdi_train_form import SpadeBdiTrainForm as SpadeBdiTrainForm
