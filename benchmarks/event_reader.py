"""A large event file of scalars, read whole, checksums checked: CPU of ours against TensorBoard's EventAccumulator."""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import Sample, alternate, print_table
from mosaic_wire.event_files import EventFileReader
from mosaic_wire.event_records import frame

TAGS = [
    *(f"charts/{name}" for name in ("episodic_return", "episodic_length", "SPS", "learning_rate", "lives", "epsilon")),
    *(f"losses/{name}" for name in ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac")),
    *(f"losses/{name}" for name in ("explained_variance", "grad_norm", "q_values")),
    *(f"system/{name}" for name in ("cpu", "memory", "gpu", "gpu_memory", "disk")),
]

Summary = dict[str, list[float]]
"""Per tag: points, sum of the values, sum of the steps, sum of the wall times"""


def write_events(path: Path, megabytes: float) -> int:
    """Write a file like that of a long training: one scalar per record, twenty tags alternately."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    source, step, wall_time, size, count = random.Random(1), 0, 1.7e9, 0, 0
    with path.open("wb") as stream:
        stream.write(frame(event_pb2.Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString()))
        while size < megabytes * 1e6:
            step += source.randrange(1, 200)
            for tag in TAGS:
                wall_time += 0.001
                value = summary_pb2.Summary.Value(tag=tag, simple_value=source.gauss(0, 1))
                summary = summary_pb2.Summary(value=[value])
                event = event_pb2.Event(wall_time=wall_time, step=step, summary=summary)
                size += stream.write(frame(event.SerializeToString()))
                count += 1
    return count


def read_ours(path: Path, *, bulk: bool = True) -> Callable[[], Summary]:
    batches = []
    reader = EventFileReader(path, bulk=bulk)
    while True:
        batches.append(reader.read())
        if not reader.has_more:
            break

    def summarize() -> Summary:
        if any(batch.problems for batch in batches):
            raise SystemExit("the file came out damaged")
        columns = {tag: [batch.columns[tag] for batch in batches if tag in batch.columns] for tag in TAGS}
        return {
            tag: sums(
                (x for part in parts for x in part.values),
                (x for part in parts for x in part.steps),
                (x for part in parts for x in part.wall_times),
            )
            for tag, parts in columns.items()
        }

    return summarize


def read_peer(path: Path) -> Callable[[], Summary]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # 0 keeps everything; the default keeps 10,000 points of each tag.
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()

    def summarize() -> Summary:
        curves = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
        return {
            tag: sums((p.value for p in curve), (p.step for p in curve), (p.wall_time for p in curve))
            for tag, curve in curves.items()
        }

    return summarize


def sums(values: Iterator[float], steps: Iterator[float], wall_times: Iterator[float]) -> list[float]:
    every_value = list(values)
    return [len(every_value), math.fsum(every_value), math.fsum(steps), math.fsum(wall_times)]


READERS: dict[str, Callable[[Path], Callable[[], Summary]]] = {
    "ours": read_ours,
    "ours without numpy": lambda path: read_ours(path, bulk=False),
    "EventAccumulator": read_peer,
}


def measure_here(name: str, path: Path) -> None:
    """In a process of its own: read, print CPU seconds (numpy's import included, TensorBoard's not) and the sums."""
    if name == "EventAccumulator":
        import tensorboard.backend.event_processing.event_accumulator  # noqa: F401
    before = time.process_time()
    summarize = READERS[name](path)
    cpu = time.process_time() - before
    print(json.dumps({"cpu": cpu, "sums": summarize()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--measure", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure_here(arguments.measure[0], Path(arguments.measure[1]))
        return
    found: list[Summary] = []
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
        path = Path(folder) / "events.out.tfevents.1700000000.host.1.0"
        points = write_events(path, arguments.megabytes)

        def measure(name: str) -> float:
            argv = [sys.executable, __file__, "--measure", name, str(path)]
            answer = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
            found.append(answer["sums"])
            return float(answer["cpu"])

        ours, peer = alternate(lambda: measure("ours"), lambda: measure("EventAccumulator"), pairs=arguments.pairs)
        careful = Sample((measure("ours without numpy"),))
    if any(summary != found[0] for summary in found) or sum(row[0] for row in found[0].values()) != points:
        raise SystemExit("the readers do not agree on what the file holds")
    ratios = Sample(tuple(theirs / mine for mine, theirs in zip(ours.values, peer.values, strict=True)))
    print_table(
        f"{points} scalars, {arguments.megabytes:.0f} MB (CPU seconds; counts and sums of all readers are equal)",
        [
            ("EventAccumulator, scalars=all", str(peer)),
            ("ours", str(ours)),
            ("ratio (to reach: 10, better: 17)", f"{ratios} ×"),
            ("ours without numpy, once", f"{careful}  {peer.median / careful.median:.1f} ×"),
        ],
    )


if __name__ == "__main__":
    main()
