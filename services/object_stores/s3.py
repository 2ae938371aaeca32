"""S3 and what speaks its language, by aiobotocore.

    small file -> one PUT with Content-MD5         large file -> multipart upload (s3_multipart)

Credentials come from the environment or the standard AWS files, the endpoint from
DFLASH_MESH_S3_ENDPOINT_URL or AWS_ENDPOINT_URL; neither is ever part of an address, an error or a
log line. The store checks each PUT and part against its MD5; the object carries its SHA-256 as
metadata. Nothing is overwritten without `replace`: a HEAD before, If-None-Match with the write.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import botocore.session
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from services.files import sha256_bytes
from services.object_stores.base import (
    READ_CHUNK_BYTES,
    ObjectInfo,
    ObjectStore,
    OnBytes,
    ignore_bytes,
)
from services.object_stores.s3_errors import RetryPolicy, error_code, translate, with_retries
from services.object_stores.s3_multipart import MultipartUploads
from services.object_stores.s3_parts import MIB, content_md5
from services.object_stores.urls import S3Url, check_key
from shared.errors import (
    ConflictError,
    EnvironmentFault,
    IntegrityError,
    NotFoundError,
    UpstreamError,
)

T = TypeVar("T")


def endpoint_url() -> str | None:
    """The S3 endpoint from the environment, None for Amazon's own; EnvironmentFault if unusable."""
    for name in ("DFLASH_MESH_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        value = os.environ.get(name)
        if value:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
                raise EnvironmentFault(
                    f"{name} is not an endpoint: write http(s)://host:port, without credentials"
                )
            return value
    return None


def require_credentials(url: str) -> None:
    """EnvironmentFault when no credentials are found where the client looks for them. Blocks.

    It looks in the environment, the AWS files and, on a machine of theirs, asks for its role.
    """
    endpoint_url()
    try:
        found = botocore.session.get_session().get_credentials()
    except BotoCoreError as error:
        raise translate(error, f"writing to {url}") from error
    if found is None:
        raise translate(NoCredentialsError(), f"writing to {url}")


class S3Store(ObjectStore):
    """Objects below a bucket's prefix. Open it with `async with`."""

    def __init__(
        self, url: S3Url, *, part_bytes: int = 16 * MIB, policy: RetryPolicy | None = None
    ) -> None:
        self.url = str(url)
        self._bucket = url.bucket
        self._prefix = f"{url.prefix}/" if url.prefix else ""
        self._part_bytes = part_bytes
        self._policy = policy or RetryPolicy()
        self._stack = AsyncExitStack()
        self._client: Any = None

    async def __aenter__(self) -> Self:
        endpoint = endpoint_url()
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        config = AioConfig(
            signature_version="s3v4",
            s3={"addressing_style": "path" if endpoint else "auto"},
            # Retries are ours: one policy, and errors that say what was being done.
            retries={"mode": "standard", "total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=16,
        )
        try:
            self._client = await self._stack.enter_async_context(
                get_session().create_client(
                    "s3", endpoint_url=endpoint, region_name=region or "us-east-1", config=config
                )
            )
        except BotoCoreError as error:
            raise translate(error, f"opening {self.url}") from error
        self._uploads = MultipartUploads(self._client, self._bucket, self.url, self._call)
        return self

    async def close(self) -> None:
        await self._stack.aclose()

    async def put_file(
        self,
        path: Path,
        key: str,
        *,
        sha256: str,
        replace: bool = False,
        on_bytes: OnBytes = ignore_bytes,
    ) -> None:
        num_bytes = path.stat().st_size
        if not replace and await self.head(key) is not None:
            raise ConflictError(f"{key} at {self.url} exists already and is not overwritten")
        if num_bytes <= 2 * self._part_bytes:
            data = await asyncio.to_thread(path.read_bytes)
            if sha256_bytes(data) != sha256:
                raise IntegrityError(f"{path} changed while it was sent: send it again")
            await self._put(key, data, sha256, replace)
            on_bytes(num_bytes)
        else:
            ready = await self._uploads.send(
                path,
                self._key(key),
                sha256=sha256,
                part_bytes=self._part_bytes,
                on_bytes=on_bytes,
            )
            await self._appear("complete_multipart_upload", ready, key, sha256, replace)
        stored = await self.head(key)
        if stored is None or stored.num_bytes != num_bytes:
            raise IntegrityError(
                f"{key} at {self.url} has {stored.num_bytes if stored else 'no'} bytes after "
                f"{num_bytes} were sent: send it again"
            )

    async def put_bytes(self, key: str, data: bytes, *, replace: bool = True) -> None:
        await self._put(key, data, sha256_bytes(data), replace)

    async def read(self, key: str, *, start: int = 0) -> AsyncIterator[bytes]:
        doing = f"reading {key} at {self.url}"
        arguments = {"Bucket": self._bucket, "Key": self._key(key)}
        if start:
            arguments["Range"] = f"bytes={start}-"
        answer = await self._call(lambda: self._client.get_object(**arguments), doing)
        async with answer["Body"] as body:
            try:
                while chunk := await body.read(READ_CHUNK_BYTES):
                    yield chunk
            except (BotoCoreError, aiohttp.ClientError, TimeoutError, OSError) as error:
                raise translate(error, doing) from error

    async def objects(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        arguments = {
            "Bucket": self._bucket,
            "Prefix": self._prefix + (f"{check_key(prefix)}/" if prefix else ""),
        }
        while True:
            page = await self._call(
                lambda: self._client.list_objects_v2(**arguments), f"listing {self.url}"
            )
            for item in page.get("Contents", []):
                key = item["Key"][len(self._prefix) :]
                if not key.endswith("/"):  # the marker of an empty folder
                    yield ObjectInfo(key, item["Size"], item["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    async def head(self, key: str) -> ObjectInfo | None:
        try:
            answer = await self._head(key)
        except NotFoundError:
            return None
        return ObjectInfo(key, answer["ContentLength"], answer["LastModified"].timestamp())

    async def delete(self, key: str) -> None:
        await self._call(
            lambda: self._client.delete_object(Bucket=self._bucket, Key=self._key(key)),
            f"removing {key} at {self.url}",
        )

    async def discard_unfinished(self) -> int:
        return await self._uploads.discard(self._prefix)

    def _key(self, key: str) -> str:
        return self._prefix + check_key(key)

    async def _call(self, call: Callable[[], Awaitable[T]], doing: str) -> T:
        return await with_retries(call, doing, self._policy)

    async def _head(self, key: str) -> dict[str, Any]:
        answer: dict[str, Any] = await self._call(
            lambda: self._client.head_object(Bucket=self._bucket, Key=self._key(key)),
            f"looking up {key} at {self.url}",
        )
        return answer

    async def _put(self, key: str, data: bytes, sha256: str, replace: bool) -> None:
        arguments = {
            "Bucket": self._bucket,
            "Key": self._key(key),
            "Body": data,
            "ContentMD5": content_md5(data),
            "Metadata": {"sha256": sha256},
        }
        await self._appear("put_object", arguments, key, sha256, replace)

    async def _appear(
        self, operation: str, arguments: dict[str, Any], key: str, sha256: str, replace: bool
    ) -> None:
        """The one call that makes an object visible, conditional unless it may replace."""
        condition: dict[str, str] = {} if replace else {"IfNoneMatch": "*"}
        method = getattr(self._client, operation)
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            try:
                await method(**arguments, **condition)
            except ClientError as error:
                if not condition or error_code(error) not in ("NotImplemented", "501"):
                    raise
                condition.clear()  # an older store: the HEAD before the upload has to do
                await method(**arguments)

        try:
            await self._call(attempt, f"storing {key} at {self.url}")
        except (ConflictError, UpstreamError):
            # An attempt whose answer was lost may have worked; its repetition then fails.
            if attempts == 1 or not await self._is_there(key, sha256):
                raise

    async def _is_there(self, key: str, sha256: str) -> bool:
        try:
            answer = await self._head(key)
        except NotFoundError:
            return False
        return bool(answer.get("Metadata", {}).get("sha256") == sha256)
