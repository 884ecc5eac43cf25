"""`--prepare`: install the requirement sets a run lacks, and tell the daemon how far it is."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from mosaic_wire.paths import Home

from cleanrl_worker.errors import WorkerError
from cleanrl_worker.requirement_sets import preflight
from cleanrl_worker.requirement_sets.pins import BASE
from cleanrl_worker.requirement_sets.progress import Phase, Progress

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def install_missing(home: Home, sets: Sequence[str]) -> int:
    """Install what is not ready; one JSON object a line, the last one says how it went."""
    from cleanrl_worker.requirement_sets.overlay import install

    signal.signal(signal.SIGTERM, _interrupt)  # ends pip too, as Ctrl-C would
    try:
        for name in sets:
            if name != BASE and not preflight(home, [name]).is_ready:
                install(home, name, report=_tell)
    except WorkerError as error:
        _tell(Progress(name, Phase.FAILED, str(error)))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    _tell(Progress(",".join(sets), Phase.READY, f"ready: {', '.join(sets) or BASE}"))
    return 0


def _tell(progress: Progress) -> None:
    sys.stdout.write(json.dumps(progress.to_json()) + "\n")
    sys.stdout.flush()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
