"""Object stores: one interface over a local folder and S3.

`open_store(url)` gives the store of an address; `urls` says which addresses there are.
"""

from __future__ import annotations

from services.object_stores.base import ObjectInfo, ObjectStore
from services.object_stores.blocking import BlockingStore
from services.object_stores.local import LocalStore
from services.object_stores.urls import FileUrl, S3Url, check_key, ensure_allowed, parse_store_url

__all__ = [
    "BlockingStore",
    "FileUrl",
    "LocalStore",
    "ObjectInfo",
    "ObjectStore",
    "S3Url",
    "check_credentials",
    "check_key",
    "ensure_allowed",
    "open_store",
    "parse_store_url",
]


def check_credentials(url: str) -> None:
    """EnvironmentFault when the store of `url` needs credentials or an endpoint that lack. Blocks.

    Whether the store accepts them only a call shows.
    """
    if isinstance(parse_store_url(url), FileUrl):
        return
    from services.object_stores.s3 import require_credentials

    require_credentials(url)


def open_store(url: str) -> ObjectStore:
    """The store of `url`, to be used as `async with open_store(url) as store`.

    Raises UserError for an address that is none. Whether a `file://` address is allowed is for
    `ensure_allowed`, which the process that took the request calls.
    """
    parsed = parse_store_url(url)
    if isinstance(parsed, FileUrl):
        return LocalStore(parsed.path)
    # The S3 client takes a third of a second to import, so only its users pay for it.
    from services.object_stores.s3 import S3Store

    return S3Store(parsed)
