"""Keep this name importable; the class is in `ui/run_page`."""

from gym_gui.ui.run_page.page import AnalyticsTabManager as AnalyticsTabManager
