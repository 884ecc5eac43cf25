"""Errors of the worker.

WorkerError
├── BadInput          what a person asked for cannot be run; nothing was started (exit code 2)
└── TrainingStopped   training cannot go on, for a reason worth one sentence (exit code 1)
"""

from __future__ import annotations


class WorkerError(Exception):
    """Root of every error this package raises on purpose: the message is for people."""


class BadInput(WorkerError):
    """A config, flag, environment or checkpoint that cannot be used."""


class TrainingStopped(WorkerError):
    """Training ran and cannot go on (NaN losses, no space for a checkpoint …)."""
