"""Optuna's studies, opened read-only and without Optuna: SQLite files of every version, and journals."""

from gym_gui.services.analytics.studies.opening import (
    SeveralStudies,
    StudyFile,
    is_url,
    open_file,
    open_study,
    path_of,
)
from gym_gui.services.analytics.studies.study import (
    Direction,
    NoStudyYet,
    Parameter,
    Study,
    StudyError,
    StudySummary,
    Trial,
    TrialState,
)

__all__ = [
    "Direction", "NoStudyYet", "Parameter", "SeveralStudies", "Study", "StudyError", "StudyFile", "StudySummary",
    "Trial", "TrialState", "is_url", "open_file", "open_study", "path_of",
]  # fmt: skip
