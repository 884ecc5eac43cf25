"""Keep this name importable; the form is in `ui/forms`."""

from gym_gui.ui.forms.cleanrl_policy_form import CleanRlPolicyForm as CleanRlPolicyForm
