"""Mail through SPADE: every agent has an XMPP account, on an embedded server or on one of the user's.

The embedded server listens on 127.0.0.1 only, on ports that are free, without its upload service and the HTTP API for
administrators that comes with it. SPADE runs in a thread of its own; the agents think in the main thread.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loguru
import pyjabber
import pyjabber.server
import spade.agent
import spade.behaviour
import spade.container
from agentspeak import Literal
from pyjabber.server_parameters import Parameters
from spade.message import Message as XmppMessage
from spade.template import Template

from spade_bdi_worker.reasoner import BehaviourError, parse_term
from spade_bdi_worker.society import FORCES, Message

_START_S = 30.0
_DELIVERY_S = 30.0
_REACH_S = 10.0
_UPLOAD = "urn:xmpp:http:upload:0"
_NUMBER = "number"


@dataclass(frozen=True)
class Account:
    """Where the agents have their accounts."""

    host: str = ""
    """Host of the user's server; empty: the embedded one"""
    port: int = 5222
    jid: str = ""
    """JID of the acting agent; the others append their name to its first part"""
    password: str = ""
    verify: bool = True
    """Whether the certificate of the user's server is checked"""

    @property
    def is_embedded(self) -> bool:
        return not self.host


class SpadeMail:
    """Carries messages as SPADE agents; those of this run arrive in the order in which they were sent."""

    def __init__(self, names: Sequence[str], actor: str, account: Account, report: Any) -> None:
        self._names, self._account, self._report = names, account, report
        self._arrived: queue.SimpleQueue[Message | BehaviourError] = queue.SimpleQueue()
        self._outside: list[Message | BehaviourError] = []
        self._sent = 0
        self._unanswered: dict[str, None] = {}
        self._server: _EmbeddedServer | None = None
        self._agents: dict[str, _Courier] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="spade", daemon=True)
        for logger in ("spade", "slixmpp", "SPADE"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        loguru.logger.remove()
        self._thread.start()
        try:
            if not account.is_embedded:
                _check_reachable(account)
            self.jids = self._call(self._start(actor), _START_S)
        except BaseException:
            self.close()
            raise

    def _call(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            where = f"{self._account.host}:{self._account.port}" if self._account.host else "the embedded server"
            raise BehaviourError(f"{where} gave no answer to SPADE within {timeout_s:g} s") from None

    # ------------------------------------------------------------ in the thread of SPADE

    async def _start(self, actor: str) -> dict[str, str]:
        account = self._account
        if account.is_embedded:
            self._server = _EmbeddedServer()
            port = await self._server.start()
            account = Account("localhost", port, f"{actor}@localhost", secrets.token_hex(16), verify=False)
        node, _, domain = account.jid.partition("@")
        jids = {name: f"{node if name == actor else f'{node}-{name}'}@{domain}" for name in self._names}
        if account is not self._account:
            jids = {name: f"{name}@{domain}" for name in self._names}
        by_jid = {jid: name for name, jid in jids.items()}
        for name, jid in jids.items():
            courier = _Courier(jid, account.password, port=account.port, verify_security=account.verify)
            courier.xmpp_host = account.host
            inbox = _Inbox(name, by_jid, self._arrived, is_private=self._account.is_embedded)
            courier.add_behaviour(inbox, Template(metadata={"performative": "BDI"}))
            try:
                await courier.start(auto_register=True)
            except (spade.agent.AuthenticationFailure, spade.agent.DisconnectedException) as error:
                raise BehaviourError(f"{jid} cannot log in at {account.host}:{account.port}: {error}") from None
            self._agents[name] = courier
        return jids

    async def _send(self, messages: Sequence[tuple[Message, str, int]]) -> None:
        for message, jid, number in messages:
            courier = self._agents[message.sender]
            facts = {"performative": "BDI", "ilf_type": message.force, _NUMBER: str(number)}
            body = message.content.asl_repr()
            await courier.behaviours[0].send(XmppMessage(to=jid, body=body, metadata=facts))

    async def _stop(self) -> None:
        await asyncio.gather(*(courier.stop() for courier in self._agents.values()))
        if self._server is not None:
            await self._server.stop()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # ------------------------------------------------------------ in the main thread

    def exchange(self, messages: Sequence[Message]) -> list[Message]:
        """Send messages; return those to agents of this run, and whatever else has arrived."""
        addressed = []
        expected = 0
        for message in messages:
            inside = message.receiver in self.jids
            if not inside and "@" not in message.receiver:
                known = ", ".join(self._names)
                raise BehaviourError(
                    f"{message.sender} sends to {message.receiver!r}, but the agents are {known}; "
                    'one elsewhere has a JID in quotes: "name@host"'
                )
            if not inside:
                self._unanswered[message.receiver.partition("/")[0]] = None
            addressed.append((message, self.jids.get(message.receiver, message.receiver), self._sent))
            self._sent += 1
            expected += inside
        self._call(self._send(addressed), _DELIVERY_S)
        return self._collect(expected)

    def _collect(self, expected: int) -> list[Message]:
        """Wait for the messages between agents of this run; order them by their numbers."""
        inside: list[tuple[int, Message]] = []
        deadline = time.monotonic() + _DELIVERY_S
        while len(inside) < expected:
            try:
                arrived = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                lost = expected - len(inside)
                raise BehaviourError(
                    f"{lost} messages between the agents did not arrive within {_DELIVERY_S:g} s"
                ) from None
            if isinstance(arrived, _Numbered):
                inside.append((arrived.number, arrived.message))
            else:
                self._outside.append(arrived)
        return [*(message for _, message in sorted(inside, key=lambda pair: pair[0])), *self._take_outside()]

    def wait(self, timeout_s: float) -> list[Message]:
        """Return messages from outside, after waiting for one."""
        with suppress(queue.Empty):
            self._outside.append(self._arrived.get(timeout=timeout_s))
        return self._take_outside()

    def _take_outside(self) -> list[Message]:
        found = []
        for arrived in self._outside:
            if isinstance(arrived, BehaviourError):
                self._report(str(arrived))
            else:
                self._unanswered.pop(arrived.sender, None)
                found.append(arrived)
        self._outside.clear()
        return found

    @property
    def expects_answer(self) -> str:
        """Return the agent outside that has not answered yet."""
        return next(iter(self._unanswered), "")

    def close(self) -> None:
        """Log out, end the server and the thread."""
        if self._thread.is_alive():
            try:
                self._call(self._stop(), _START_S)
            except BehaviourError as error:
                self._report(str(error))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_START_S)
        if self._server is not None:
            self._server.remove_files()


@dataclass(frozen=True)
class _Numbered:
    """A message between agents of this run."""

    number: int
    message: Message


class _Courier(spade.agent.Agent):  # type: ignore[misc]  # untyped
    """The account of an agent."""

    xmpp_host = ""

    async def _async_connect(self) -> None:
        connect = self.client.connect  # SPADE would connect to the domain of the JID
        self.client.connect = lambda host, port: connect(host=self.xmpp_host, port=port)
        await super()._async_connect()


class _Inbox(spade.behaviour.CyclicBehaviour):  # type: ignore[misc]  # untyped
    """Hands messages over to the main thread."""

    def __init__(self, name: str, names: Mapping[str, str], arrived: Any, *, is_private: bool) -> None:
        super().__init__()
        self._name, self._names, self._arrived, self._is_private = name, names, arrived, is_private

    async def run(self) -> None:
        message = await self.receive(timeout=3600)
        if message is not None:
            self._arrived.put(self._read(message))

    def _read(self, message: Any) -> Any:
        jid = str(message.sender).partition("/")[0]
        force = message.get_metadata("ilf_type")
        try:
            if self._is_private and jid not in self._names:  # another user of this machine
                raise ValueError("the embedded server is for agents of this run only")
            if force not in FORCES:
                raise ValueError(f"the force {force!r} is none of {', '.join(FORCES)}")
            content: Literal = parse_term(message.body)
        except ValueError as error:
            return BehaviourError(f"a message of {jid} was left out: {error}")
        sender = self._names.get(jid, jid)
        known = Message(sender, self._name, force, content)
        number = message.get_metadata(_NUMBER)
        return _Numbered(int(number), known) if jid in self._names and number else known


def _check_reachable(account: Account) -> None:
    """Raise BehaviourError at once where SPADE would try again and again."""
    try:
        socket.create_connection((account.host, account.port), timeout=_REACH_S).close()
    except OSError as error:
        where = f"the XMPP server {account.host}:{account.port}"
        raise BehaviourError(f"{where} cannot be reached: {error.strerror or error}") from None


class _EmbeddedServer:
    """pyjabber on two free loopback ports, with certificates and accounts of this run only."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mosaic-xmpp-"))
        authority = Path(pyjabber.__file__).with_name("network") / "certs"
        for name in ("ca_cert.pem", "ca_key.pem"):
            shutil.copy(authority / name, self._folder)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        """Listen; return the port for clients."""
        module: Any = pyjabber.server
        module.setup_query_local_ip = lambda: None  # it would listen on the machine's address, too
        module.ProcessPoolExecutor = ThreadPoolExecutor  # hashing passwords needs no processes
        port, peers = _free_ports(2)
        usual = Parameters()
        parameters = Parameters(
            host="localhost",
            client_port=port,
            server_port=peers,
            database_in_memory=True,
            cert_path=str(self._folder),
            plugins=[name for name in usual.plugins if name != _UPLOAD],
            items={name: value for name, value in usual.items.items() if name != "upload.$"},
        )
        server = module.Server(parameters)
        # Not `server.start()`: it replaces the handlers of signals.
        work = (module.queue_worker(), module.server_connection_worker(), server.run_server())
        self._tasks = [asyncio.create_task(each) for each in work]
        ready = asyncio.create_task(server.ready.wait())
        done, _ = await asyncio.wait([ready, *self._tasks], timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        if ready not in done:
            ready.cancel()
            raise BehaviourError("the embedded XMPP server did not start; choose engine agentspeak, or another server")
        self.remove_files()  # they are read; a worker that is killed must not leave keys behind
        return port

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def remove_files(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Return loopback ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
