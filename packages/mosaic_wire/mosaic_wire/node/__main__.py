"""The node process: `python -m mosaic_wire.node BOOTSTRAP`. It ends with the worker's exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import SessionError
from mosaic_wire.exit_record import BAD_INPUT
from mosaic_wire.files import parse_json, read_json_object
from mosaic_wire.node import Bootstrap, process_tree

_MAX_BOOTSTRAP_BYTES = 1 << 20


def read_bootstrap(source: str) -> Bootstrap:
    """Return the bootstrap in a file of this user only, or on standard input (`-`)."""
    if source == "-":
        try:
            document = parse_json(sys.stdin.buffer.read(_MAX_BOOTSTRAP_BYTES))
        except ValueError as error:
            raise SessionError(f"the bootstrap on standard input cannot be used: {error}") from None
        return Bootstrap.from_json(document)
    path = Path(source)
    try:
        if path.stat().st_mode & 0o077:
            raise SessionError(f"other users can read {path}, which holds the run's token; run `chmod 600` on it")
        return Bootstrap.from_json(read_json_object(path, max_bytes=_MAX_BOOTSTRAP_BYTES))
    except (OSError, ValueError) as error:
        raise SessionError(f"the bootstrap {path} cannot be used: {error}") from None


def _private_folder_in_memory() -> Path:
    """Return a folder in shared memory if there is a file system for it."""
    with suppress(OSError):
        return Path(tempfile.mkdtemp(prefix="mosaic-node-", dir="/dev/shm"))
    return Path(tempfile.mkdtemp(prefix="mosaic-node-"))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m mosaic_wire.node`."""
    parser = argparse.ArgumentParser(prog="python -m mosaic_wire.node", description=__doc__)
    parser.add_argument("bootstrap", help="file that an executor wrote, mode 0600; -: standard input")
    arguments: Any = parser.parse_args(argv)
    try:
        bootstrap, shared = read_bootstrap(arguments.bootstrap), _private_folder_in_memory()
        process_tree.guard(bootstrap.mark, shared)
        process_tree.adopt_orphans()
        # Only now: the guard is a copy of this process, which has to be small and without threads.
        from mosaic_wire.node.attempt import Node

        os.environ[env.MOSAIC_FRAMES_DIR] = str(shared)  # where this process finds the worker's
        node = Node(bootstrap, Path(tempfile.mkdtemp(prefix="mosaic-node-")), shared)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, node.request_stop)
        return node.run()
    except (SessionError, OSError) as error:
        print(f"mosaic node: {error}", file=sys.stderr)  # noqa: T201 - the engine's log of this process
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
