"""CURVE on links: keys of a run, and the doorkeeper that lets only them in.

Listeners hold the run's server pair, dialers its client pair. CURVE alone proves the server to
the client and encrypts; the doorkeeper (a ZAP handler, ZeroMQ RFC 27) answers for the other
direction: a client whose public key is not the run's is turned away before its first message.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

import zmq
import zmq.asyncio
from zmq.utils import z85

from shared.api.workers import LinkKeys
from shared.errors import EnvironmentFault

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"dflash-mesh"
_ZAP_REQUEST_PARTS = 7  # version, id, domain, address, routing id, mechanism, client key


@dataclass(frozen=True)
class LinkSecurity:
    """Keys of a run, z85 bytes; secrets stay out of its repr."""

    server_public: bytes
    client_public: bytes
    server_secret: bytes = field(repr=False)
    client_secret: bytes = field(repr=False)

    @classmethod
    def from_keys(cls, keys: LinkKeys) -> LinkSecurity:
        """ValueError when a key is not 40 characters of z85."""
        for name, value in keys.model_dump().items():
            if len(value) != 40:
                raise ValueError(f"link key {name} has {len(value)} characters instead of 40")
        return cls(
            server_public=keys.server_public.encode(),
            client_public=keys.client_public.encode(),
            server_secret=keys.server_secret.encode(),
            client_secret=keys.client_secret.encode(),
        )

    def secure_listener(self, socket: zmq.asyncio.Socket) -> None:
        """Before bind: `socket` takes encrypted connections only."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self.server_secret)
        socket.set(zmq.CURVE_PUBLICKEY, self.server_public)
        socket.set(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)

    def secure_dialer(self, socket: zmq.asyncio.Socket) -> None:
        """Before connect: `socket` talks only to the holder of the run's server secret."""
        socket.set(zmq.CURVE_SERVERKEY, self.server_public)
        socket.set(zmq.CURVE_SECRETKEY, self.client_secret)
        socket.set(zmq.CURVE_PUBLICKEY, self.client_public)


def make_link_keys() -> LinkKeys:
    """Fresh keys of a run; EnvironmentFault when this libzmq has no CURVE."""
    if not zmq.has("curve"):
        raise EnvironmentFault(
            "this libzmq was built without CURVE: install pyzmq's own wheel, or set "
            "links.encrypt to false on a network you trust"
        )
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    return LinkKeys(
        server_public=server_public.decode(),
        server_secret=server_secret.decode(),
        client_public=client_public.decode(),
        client_secret=client_secret.decode(),
    )


class Doorkeeper:
    """ZAP handler of one listener's context; admits exactly one client key.

    It must be bound before the listener's socket, and `serve` must run for anybody to get in.
    """

    def __init__(self, context: zmq.asyncio.Context, security: LinkSecurity) -> None:
        self._allowed = z85.decode(security.client_public)
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        self.num_refused = 0

    async def serve(self) -> None:
        """Answer until cancelled."""
        while True:
            request = await self._socket.recv_multipart()
            await self._socket.send_multipart(self._answer(request))

    def _answer(self, request: list[bytes]) -> list[bytes]:
        request_id = request[1] if len(request) > 1 else b""
        admitted = (
            len(request) == _ZAP_REQUEST_PARTS
            and request[5] == b"CURVE"
            and hmac.compare_digest(request[6], self._allowed)
        )
        if not admitted:
            self.num_refused += 1
            return [b"1.0", request_id, b"400", b"not a key of this run", b"", b""]
        return [b"1.0", request_id, b"200", b"OK", b"run", b""]

    def close(self) -> None:
        self._socket.close()
