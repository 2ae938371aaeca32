"""Sign-in of the status page: a cookie that proves knowledge of the token for some days.

The value is `expiry.mac`, the mac keyed with the token, so it needs no storage, survives a
restart, and every session ends when the token changes.
"""

from __future__ import annotations

import hashlib
import hmac

COOKIE = "dflash_mesh_session"
LIFETIME_S = 7 * 24 * 3600


def make_session(token: str, now: float) -> str:
    expiry = str(int(now) + LIFETIME_S)
    return f"{expiry}.{_mac(token, expiry)}"


def is_valid_session(value: str, token: str, now: float) -> bool:
    expiry, _, mac = value.partition(".")
    genuine = hmac.compare_digest(mac.encode("latin-1", "replace"), _mac(token, expiry).encode())
    return genuine and expiry.isascii() and expiry.isdigit() and now < int(expiry)


def is_token(given: str, token: str) -> bool:
    """Whether `given` is the token, in constant time; `given` as it came in a header or body."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())


def _mac(token: str, expiry: str) -> str:
    key = hashlib.sha256(b"dflash-mesh session\0" + token.encode()).digest()
    return hmac.new(key, expiry.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
