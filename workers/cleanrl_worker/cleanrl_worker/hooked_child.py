"""Imported by multiprocessing's fork server before it makes environment processes: they get the script's hooks."""

from __future__ import annotations

import os

from cleanrl_worker import sitecustomize

if text := os.environ.get(sitecustomize.MARK):
    sitecustomize.install_in_child(text)
