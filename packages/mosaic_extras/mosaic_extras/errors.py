"""Errors of requirement sets. Their messages are for users and name the remedy.

RequirementSetError
├── BadRequest       flags that make no sense (exit code 2)
│   └── UnknownSet   no set of that name
├── BadPinList       a requirement list of this package or of the user cannot be read
├── SetsDisagree     two sets pin the same package differently and cannot be in one run
├── BaseUnfit        the base environment lacks what no overlay may install (torch)
├── SetNotReady      an interpreter was requested whose set is not installed
├── SetInUse         a run uses the environment that was to be removed or rebuilt
└── InstallFailed    pip, the checks or the smoke test failed; nothing was marked ready
"""

from __future__ import annotations

from mosaic_wire.errors import WireError


class RequirementSetError(WireError):
    """Root of what can go wrong with requirement sets."""


class BadRequest(RequirementSetError):
    """Flags of the installer that do not go together."""


class UnknownSet(BadRequest):
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
