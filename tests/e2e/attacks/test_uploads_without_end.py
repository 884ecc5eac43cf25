"""What is uploaded as an archive never fills the disk under running trainings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from gym_gui.services.trainer import archives
from gym_gui.services.trainer.errors import ArchiveRefused
from gym_gui.testing import RunningDaemon
from mosaic_wire.proto import trainer_pb2 as pb

from tests.e2e.conftest import MakeDaemon


def uploads(daemon: RunningDaemon) -> list[Path]:
    return list(daemon.home.trainer.glob(f"{archives.UPLOAD_PREFIX}*"))


def test_what_is_no_archive_is_refused_at_its_first_bytes(shared_daemon: RunningDaemon) -> None:
    client, pieces, sent = shared_daemon.client, 1_000, []

    def chunks() -> Iterator[pb.ArchiveChunk]:
        for number in range(pieces):
            sent.append(number)
            yield pb.ArchiveChunk(data=bytes(256 << 10))

    with pytest.raises(grpc.RpcError, match=r"the archive is not a valid \.tar\.gz"):
        client._stub.ImportRun(chunks(), metadata=client._metadata)
    assert len(sent) < pieces
    assert not uploads(shared_daemon)


def test_an_upload_leaves_the_reserve_of_the_disk_alone(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(min_free_disk_mb=2**30)
    (tmp_path / "run.tar.gz").write_bytes(b"\x1f\x8b" + bytes(1 << 20))
    with pytest.raises(
        ArchiveRefused, match="the disk has no space for the archive: 1073741824 MB must stay free under"
    ):
        daemon.client.import_archive(tmp_path / "run.tar.gz")
    assert not uploads(daemon)
