"""Links between workers: bounded, checked, replay-friendly channels over ZeroMQ.

    dialer                                                     listener
    dial() --------- hello: identity, limits, host ----------> Listener.bind()
           <-------- welcome: identity, limits, plane --------
    Channel.send ---- data: envelope + frames, or shm slot --> Channel.receive / Listener.receive
           <-------- credit: message released ---------------- Received.release

Both ends of a channel send and receive; each direction has its own credit in messages and bytes,
so a sender waits for its receiver and memory stays bounded. A channel never comes back: when the
peer ends, falls silent or restarts, it closes with `ChannelClosed`, and a new dial makes a new
one. What was in flight is lost with the channel; the streams on top are replayable.
"""

from services.links.channel import Channel, Received
from services.links.dialer import dial
from services.links.frames import Frame
from services.links.identity import LinkIdentity, LinkLimits, LinkTimeouts, Plane
from services.links.listener import Listener
from services.links.security import LinkSecurity, make_link_keys
from services.links.shm import remove_stale_segments
from services.links.stats import LinkStats
from shared.errors import ChannelClosed, LinkError

__all__ = [
    "Channel",
    "ChannelClosed",
    "Frame",
    "LinkError",
    "LinkIdentity",
    "LinkLimits",
    "LinkSecurity",
    "LinkStats",
    "LinkTimeouts",
    "Listener",
    "Plane",
    "Received",
    "dial",
    "make_link_keys",
    "remove_stale_segments",
]
