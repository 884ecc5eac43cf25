"""Errors of the worker. Their messages are for users and name the remedy.

WorkerError
├── BadInput             the request cannot be run; nothing was started (exit code 2)
├── TrainingStopped      training cannot continue, for a reason worth one sentence (exit code 1)
└── RequirementSetError
    ├── UnknownSet       no set of that name (also a BadInput)
    ├── BadPinList       a requirement list of this package or of the user cannot be read
    ├── SetsDisagree     two sets pin the same package differently and cannot be in one run
    ├── BaseUnfit        the base environment lacks what no overlay may install (torch)
    ├── SetNotReady      an interpreter was requested whose set is not installed
    ├── SetInUse         a run uses the environment that was to be removed or rebuilt
    └── InstallFailed    pip, the checks or the smoke test failed; nothing was marked ready
"""

from __future__ import annotations


class WorkerError(Exception):
    """Root of every error this package raises on purpose."""


class BadInput(WorkerError):
    """A config, flag, environment or checkpoint that cannot be used."""


class TrainingStopped(WorkerError):
    """Training ran and cannot continue (NaN losses, no space for a checkpoint …)."""


class RequirementSetError(WorkerError):
    """Root of what can go wrong with requirement sets."""


class UnknownSet(RequirementSetError, BadInput):
    """No requirement set of that name."""


class BadPinList(RequirementSetError):
    """A requirement list cannot be read."""


class SetsDisagree(RequirementSetError):
    """Two sets pin the same package differently."""


class BaseUnfit(RequirementSetError):
    """The base environment lacks a package that must be installed there and never in an overlay."""


class SetNotReady(RequirementSetError):
    """A run needs sets that are not installed, or no longer intact."""


class SetInUse(RequirementSetError):
    """A run still uses this environment."""


class InstallFailed(RequirementSetError):
    """A set could not be installed; whatever was made of it is not marked ready."""
