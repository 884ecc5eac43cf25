"""The points behind a figure as a table: run, name, algo, env, seed, tag, step, wall_time, value."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_gui.services.analytics.curves import Curve

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

COLUMNS = ("run", "name", "algo", "env", "seed", "tag", "step", "wall_time", "value")
Curves = Mapping[str, Mapping[str, Curve]]


class MissingPackage(Exception):
    """A file of this kind needs a package that is not installed."""


def write_csv(path: Path, curves: Curves, runs: Sequence[pb.Run] = ()) -> int:
    """Write every point of these curves; return how many."""
    facts = _facts(runs)
    written = 0
    with _unfinished(path) as place, place.open("w", newline="", encoding="utf-8") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(COLUMNS)
        for run_id, curve in _each(curves):
            about = (run_id, *facts.get(run_id, ("", "", "", "")), curve.tag)
            steps = curve.steps.astype("int64").tolist()
            rows = zip(steps, curve.times.tolist(), curve.values.tolist(), strict=True)
            out.writerows((*about, *row) for row in rows)
            written += len(curve)
    return written


def write_parquet(path: Path, curves: Curves, runs: Sequence[pb.Run] = ()) -> int:
    """The same as Parquet, a row group for each curve; raise MissingPackage without pyarrow."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage("Parquet files need pyarrow: pip install pyarrow, or write a .csv") from None
    facts = _facts(runs)
    words = arrow.dictionary(arrow.int32(), arrow.string())
    kinds = (words, words, words, words, arrow.int64(), words, arrow.int64(), arrow.float64(), arrow.float64())
    schema = arrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    written = 0
    with _unfinished(path) as place, parquet.ParquetWriter(place, schema) as out:
        for run_id, curve in _each(curves):
            name, algo, env, seed = facts.get(run_id, ("", "", "", ""))
            same = (run_id, name, algo, env, None if seed == "" else seed, curve.tag)
            columns: list[Any] = [
                arrow.array([value] * len(curve), type=arrow.int64()) if kind == arrow.int64()
                else arrow.array([value] * len(curve), type=arrow.string()).dictionary_encode()
                for value, kind in zip(same, kinds, strict=False)
            ]  # fmt: skip
            columns += [arrow.array(curve.steps.astype("int64")), arrow.array(curve.times), arrow.array(curve.values)]
            out.write_table(arrow.Table.from_arrays(columns, schema=schema))
            written += len(curve)
    return written


def _facts(runs: Sequence[pb.Run]) -> dict[str, tuple[str, str, str, int | str]]:
    return {run.run_id: (run.name, run.algo, run.env_id, run.seed if run.HasField("seed") else "") for run in runs}


def _each(curves: Curves) -> Iterator[tuple[str, Curve]]:
    for run_id, own in curves.items():
        for tag in sorted(own):
            yield run_id, own[tag]


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A place beside the file that becomes it when everything is written."""
    place = path.with_name(f".{path.name}.part")
    try:
        yield place
        os.replace(place, path)
    finally:
        place.unlink(missing_ok=True)
