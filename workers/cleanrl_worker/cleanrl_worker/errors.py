"""Errors of the worker. Their messages are for users and name the remedy.

WorkerError
├── BadInput             the request cannot be run; nothing was started (exit code 2)
└── TrainingStopped      training cannot continue, for a reason worth one sentence (exit code 1)
"""

from __future__ import annotations


class WorkerError(Exception):
    """Root of every error this package raises on purpose."""


class BadInput(WorkerError):
    """A config, flag, environment or checkpoint that cannot be used."""


class TrainingStopped(WorkerError):
    """Training ran and cannot continue (NaN losses, no space for a checkpoint …)."""
