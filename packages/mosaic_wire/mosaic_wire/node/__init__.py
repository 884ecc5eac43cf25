"""A run on a node: a machine without the home's disk, where a small process runs the worker and sends what it writes.

    python -m mosaic_wire.node BOOTSTRAP            a file that only this user can read, or - for standard input

    with_worker = Bootstrap.of(environment_of_the_worker, address, authority)
    write_json_atomically(path, with_worker.to_json(), mode=0o600)        what an executor hands to the node

The bootstrap holds the run's token, and nothing else that is secret: config, checkpoint and the run's secrets come over
TLS once the daemon has accepted the node. On the node the worker has a home of its own and reports to a socket there,
which is relayed; its code is the same as on the daemon's machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from mosaic_wire import env
from mosaic_wire.decoding import from_json
from mosaic_wire.errors import SessionError, SpecError
from mosaic_wire.ids import check_run_id

INSTANCE_PREFIX = "node-"
"""How the instance of a node process begins, which the daemon stores as that of the run's worker"""


@dataclass(frozen=True)
class Bootstrap:
    """What a node process has to know before it reaches the daemon."""

    address: str
    """HOST:PORT"""
    authority: str
    """The certificate that the daemon's certificate is checked with, as PEM"""
    run_id: str
    attempt: int
    run_token: str = field(repr=False)
    mark: str
    """The mark of the worker's processes on the node"""

    @classmethod
    def of(cls, variables: Mapping[str, str], address: str, authority: str) -> Self:
        """Return the bootstrap of an attempt from the environment that its worker would get on the daemon's machine."""
        return cls(
            address,
            authority,
            variables[env.MOSAIC_RUN_ID],
            int(variables[env.MOSAIC_RUN_ATTEMPT]),
            variables[env.MOSAIC_RUN_TOKEN],
            # Not the run's own mark: a process of the engine on this machine has that one.
            f"{variables[env.MOSAIC_RUN_MARK]}.node",
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return a bootstrap; raise SessionError for a document that is none."""
        try:
            bootstrap = from_json(cls, document, "bootstrap")
            check_run_id(bootstrap.run_id)
            host, _, port = bootstrap.address.rpartition(":")
            if not (host and port.isascii() and port.isdigit()):
                raise SpecError(f"the address {bootstrap.address!r} is not HOST:PORT")
        except (SpecError, TypeError, ValueError) as error:
            raise SessionError(f"the bootstrap of this node cannot be used: {error}") from None
        return bootstrap

    def to_json(self) -> dict[str, Any]:
        """Return the document; keep it from other users, because it holds the token."""
        return asdict(self)

    @property
    def host(self) -> str:
        """The daemon's name or address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The daemon's port for nodes."""
        return int(self.address.rpartition(":")[2])
