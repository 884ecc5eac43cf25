"""Keep this name importable; the form is in `ui/forms`."""

from gym_gui.ui.forms.cleanrl_resume_form import CleanRlResumeForm as CleanRlResumeForm
