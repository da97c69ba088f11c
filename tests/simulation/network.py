"""The network between the hosts of a simulation: connections in memory, and their faults.

Theory of operation
-------------------
A link leads from one host to another, in one direction. It says how long a chunk takes, and until when nothing passes.
Connections go over two links. What is on its way when a partition begins is sent again when it ends, as TCP does; a
process notices nothing but the delay, unless its own time limits end the wait.

==================  ================================================================================================
fault               what both sides see
==================  ================================================================================================
``delay``           chunks of the link take longer
``partition``       nothing passes for a while; then everything arrives, in order; connecting waits, two minutes at most
``cut``             what is on its way arrives, then a reset
``half_open``       nothing arrives any more, and no error comes
``lose_next``       the next request, or the reply to it, is lost, and the connection is reset
``refuse``          nobody listens for a while
==================  ================================================================================================

**Invariants**

- A connection to a frozen host is made, and its kernel keeps what arrives.
- A machine without power refuses nothing and answers nothing.
- Host names and literal addresses are all that is known; addresses of no host belong to the world.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import zlib
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from tests.simulation.host import HOST, Host, HostState
from tests.simulation.transport import Address, SimulatedSocket, SimulatedTransport

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

WORLD: Final = "10.0.0.1"
"""The address from which the world's own code connects."""

_LATENCY: Final = (0.0001, 0.001)  # seconds
_CONNECTING: Final = 127.0  # seconds until Linux gives up
_FIRST_PORT: Final = 32_768
_LAST_PORT: Final = 60_999
_HERE: Final = frozenset({"", "localhost", "127.0.0.1", "0.0.0.0", "::", "::1"})  # noqa: S104 -- names, not bound

What = Literal["request", "reply"]
Named = Host | str | None
"""A host, its name, or None: the world."""


class Link:
    """One direction between two hosts.

    Attributes:
        low: the least seconds that a chunk takes.
        high: the most.
        closed_until: nothing passes before that time of the loop.
        watched: whether a request is waited for that is lost, or whose reply is.
        losing: which of them, and the bytes by which the request is known.
    """

    __slots__ = ("_random", "closed_until", "high", "losing", "low", "network", "watched")

    def __init__(self, network: Network, random: Callable[[], float]) -> None:
        self.network = network
        self.low, self.high = _LATENCY
        self.closed_until = 0.0
        self.watched = False
        self.losing: tuple[What, bytes] | None = None
        self._random = random

    def arrival(self, now: float) -> float:
        """When a chunk arrives that is sent now."""
        start = max(now, self.closed_until)
        return start + self.low + self._random() * (self.high - self.low)

    def loses(self, end: SimulatedTransport, data: Any) -> bool:
        """Whether what a client writes now is the request that is lost; if it is the reply, its server is told."""
        if self.losing is None or not end.is_client or self.losing[1] not in bytes(data):
            return False
        what, self.losing, self.watched = self.losing[0], None, False
        end.peer.loses = what == "reply"
        return what == "request"


class SimulatedServer(asyncio.AbstractServer):
    """A listener."""

    def __init__(self, network: Network, factory: Callable[[], asyncio.BaseProtocol], own: Address) -> None:
        self.factory = factory
        self.context = copy_context()
        self.host = HOST.get()
        self._own = own
        self._network = network
        self._sockets: tuple[SimulatedSocket, ...] = (SimulatedSocket(own),)

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        """Its only socket; none when it is closed."""
        return self._sockets

    def close(self) -> None:
        """Take no more connections."""
        self._sockets = ()
        self._network.unlisten(self._own, self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return bool(self._sockets)

    async def start_serving(self) -> None:
        """Do nothing: it serves already."""

    async def serve_forever(self) -> None:
        """Serve until cancelled."""
        try:
            await self._network.loop.create_future()
        finally:
            self.close()

    async def wait_closed(self) -> None:
        """Do nothing: closing takes no time."""


class Network:
    """All connections.

    Attributes:
        kernel: the context of what no process does.
        observe: is called with sender, receiver and each chunk that arrives; None: nothing is.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.kernel = Context()
        self.observe: Callable[[SimulatedTransport, SimulatedTransport, bytes], None] | None = None
        self._random = loop.random
        self._hosts: dict[str, Host] = {}  # by address
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, SimulatedServer] = {}
        self._refusing: dict[str, float] = {}
        self._ends: dict[SimulatedTransport, None] = {}
        self._connected: WeakKeyDictionary[socket.socket, SimulatedTransport] = WeakKeyDictionary()
        self._port = _FIRST_PORT

    # Hosts and links.

    def add(self, host: Host) -> None:
        """Give a host its address."""
        self._hosts[host.address] = host

    def link(self, source: Named, target: Named) -> Link:
        """The link from one host to another."""
        key = _name(source), _name(target)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = Link(self, self._random.random)
        return found

    def connections(self, a: Named = None, b: Named = None) -> list[SimulatedTransport]:
        """The connections that ``a`` has made to ``b``, by their ends at ``a``, in the order of their beginning."""
        wanted = _name(a), _name(b)
        return [end for end in self._ends if end.is_client and (_name(end.host), _name(end.peer.host)) == wanted]

    # Faults.

    def delay(self, a: Named, b: Named, low: float, high: float) -> None:
        """Let chunks between two hosts take so many seconds from now on."""
        for link in (self.link(a, b), self.link(b, a)):
            link.low, link.high = low, high

    def partition(self, a: Named, b: Named, seconds: float, *, both: bool = True) -> None:
        """Let nothing pass for so long; ``both``: in both directions, else only from ``a`` to ``b``."""
        self.loop.report(None, f"partition of {_name(a)} and {_name(b)} for {seconds:.3f} s")
        for link in (self.link(a, b), self.link(b, a))[: 1 + both]:
            link.closed_until = self.loop.time() + seconds

    def cut(self, a: Named, b: Named) -> None:
        """Reset all connections between two hosts."""
        for end in [*self.connections(a, b), *(self.connections(b, a) if _name(a) != _name(b) else ())]:
            self.reset(end)

    def reset(self, end: SimulatedTransport) -> None:
        """Reset a connection: what is on its way arrives, then the reset."""
        self.loop.report(end.host, f"reset {describe(end)}")
        end.break_off()

    def half_open(self, end: SimulatedTransport) -> None:
        """Let nothing arrive on this connection any more, at either end."""
        self.loop.report(end.host, f"half-open {describe(end)}")
        end.silent = end.peer.silent = True

    def lose_next(self, a: Named, b: Named, what: What, *, holding: bytes = b"") -> None:
        """Lose the next request of ``a`` to ``b`` that holds these bytes, or its reply, and reset the connection."""
        link = self.link(a, b)
        link.losing, link.watched = (what, holding), True

    def refuse(self, host: Named, seconds: float) -> None:
        """Refuse connections to a host for so long."""
        self._refusing[_name(host)] = self.loop.time() + seconds

    def host_died(self, host: Host) -> None:
        """Cut all that a dead host has."""
        for own, server in list(self._listeners.items()):
            if server.host is host:
                del self._listeners[own]
        for end in [one for one in self._ends if one.host is host]:
            del self._ends[end]
            if host.has_power:
                end.die(self._random)
            end.vanish()

    # Names.

    def getaddrinfo(self, host: Any, port: Any, **_wishes: int) -> list[tuple[Any, ...]]:
        """The address of a host by its name."""
        address = self.address_of(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    def address_of(self, name: Any) -> str:
        """The address that a name or a literal address means to the current host.

        Raises:
            OSError: there is no such name.
        """
        text = name.decode() if isinstance(name, bytes) else str(name or "")
        current = HOST.get()
        if text in _HERE:
            return current.address if current else WORLD
        known = self.loop.hosts.get(text)
        if known is not None:
            return known.address
        try:
            return str(ip_address(text))
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None

    # Servers.

    def create_server(
        self, factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **more: Any
    ) -> SimulatedServer:
        """Listen at an address of the current host; without port, at a free one."""
        _plain(more)
        host = host[0] if isinstance(host, Sequence) and not isinstance(host, str) else host
        own = self.free(*((host, port) if sock is None else sock.getsockname()[:2]))
        server = self._listeners[own] = SimulatedServer(self, factory, own)
        return server

    def free(self, host: Any, port: Any) -> Address:
        """The address of the current host at which it may listen; with any free port if none is given.

        Raises:
            OSError: it listens there already.
        """
        current = HOST.get()
        address = current.address if current else self.address_of(host)
        own = address, int(port or 0) or self._free_port(address)
        if own in self._listeners:
            raise OSError(errno.EADDRINUSE, f"error while attempting to bind on address {own}: address already in use")
        return own

    def unlisten(self, own: Address, server: SimulatedServer) -> None:
        """Forget a listener."""
        if self._listeners.get(own) is server:
            del self._listeners[own]

    def _free_port(self, address: str) -> int:
        self._port = self._port + 1 if self._port < _LAST_PORT else _FIRST_PORT
        return self._port if (address, self._port) not in self._listeners else self._free_port(address)

    # Connections.

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **more: Any
    ) -> tuple[SimulatedTransport, Any]:
        """Connect, or take a connected socket."""
        _plain(more)
        if sock is not None:
            end = self._connected.pop(sock)
            sock.close()
        else:
            end = await self._connect((self.address_of(host), int(port)))
        protocol = factory()
        end.attach(protocol, copy_context())
        return end, protocol

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect a socket."""
        self._connected[sock] = await self._connect((self.address_of(address[0]), int(address[1])))

    async def _connect(self, target: Address) -> SimulatedTransport:
        loop, source = self.loop, HOST.get()
        connected: asyncio.Future[SimulatedTransport] = loop.create_future()
        link = self.link(source, self._hosts.get(target[0]))
        if source is None or source.state is not HostState.DEAD:
            own = source.address if source else WORLD, self._free_port("")
            loop.call_at(link.arrival(loop.time()), self._arrive, connected, source, own, target, context=self.kernel)
        limit = loop.call_later(_CONNECTING, _give_up, connected, context=self.kernel)
        try:
            return await connected
        finally:
            limit.cancel()

    def _arrive(
        self, connected: asyncio.Future[SimulatedTransport], source: Host | None, own: Address, target: Address
    ) -> None:
        """The kernel of the target sees a connection being made."""
        loop = self.loop
        host = self._hosts.get(target[0])
        if host is not None and not host.has_power:
            return
        there, back = self.link(source, host), self.link(host, source)
        returned = back.arrival(loop.time())
        server = self._listeners.get(target)
        if server is None or self._refusing.get(_name(host), 0.0) > loop.time():
            loop.call_at(returned, _refuse, connected, context=self.kernel)
            return
        client = SimulatedTransport(loop, source, there, own, target, is_client=True)
        end = SimulatedTransport(loop, host, back, target, own, is_client=False)
        client.peer, end.peer = end, client
        self._ends[client] = self._ends[end] = None
        loop.report(source, f"connected {describe(client)}")
        loop.call_at(returned, _connected, connected, client, context=self.kernel)
        end.accept(server)

    def closed(self, end: SimulatedTransport) -> None:
        """Forget an end."""
        self._ends.pop(end, None)

    def sent(self, end: SimulatedTransport, data: bytes) -> None:
        """Note a chunk that has arrived."""
        self.loop.report(end.host, f"{_name(end.host)} > {_name(end.peer.host)} {len(data)} {zlib.crc32(data):08x}")
        if self.observe is not None:
            self.observe(end, end.peer, data)

    def close(self) -> None:
        """Forget everything."""
        for end in list(self._ends):
            end.forget()
        self._ends.clear()
        self._listeners.clear()


def describe(end: SimulatedTransport) -> str:
    """A connection in words."""
    own, other = end.socket.getsockname(), end.socket.getpeername()
    return f"{_name(end.host)}:{own[1]} - {_name(end.peer.host)}:{other[1]}"


def _name(host: Named) -> str:
    return host.name if isinstance(host, Host) else host or "-"


def _plain(more: dict[str, Any]) -> None:
    if more.get("ssl"):
        raise NotImplementedError("the network of the simulation has no TLS")


def _connected(connected: asyncio.Future[SimulatedTransport], end: SimulatedTransport) -> None:
    if connected.done():
        end.close()
    else:
        connected.set_result(end)


def _refuse(connected: asyncio.Future[SimulatedTransport]) -> None:
    if not connected.done():
        connected.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))


def _give_up(connected: asyncio.Future[SimulatedTransport]) -> None:
    if not connected.done():
        connected.set_exception(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
