"""Errors of the requirement sets; the messages are for people and name the remedy.

RequirementSetError
├── UnknownSet       no set of that name (also a BadInput)
├── BadPinList       a list of this package or of the user cannot be read
├── SetsDisagree     two sets pin the same package differently and cannot be in one run
├── BaseUnfit        the base environment lacks what no overlay may bring (torch)
├── SetNotReady      asked for an interpreter whose set is not installed
├── SetInUse         a run uses the environment that was to be removed or rebuilt
└── InstallFailed    pip, the checks or the smoke test did not succeed; nothing was marked ready
"""

from __future__ import annotations

from cleanrl_worker.errors import BadInput, WorkerError


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
