"""Keep this name importable; the form is in `ui/forms`."""

from gym_gui.ui.forms.cleanrl_script_form import CleanRlScriptForm as CleanRlScriptForm
