"""Multipart uploads against S3: find what an earlier attempt left, send the rest.

`send` returns the arguments of the completing call; until that call nothing is visible under the
key. An upload is found again by listing the unfinished uploads of the key, so no state is kept on
this side and a process killed at any moment costs at most the parts that were on their way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from services.object_stores.base import OnBytes
from services.object_stores.s3_parts import (
    Part,
    StoredPart,
    content_md5,
    matching_size,
    plan_parts,
    read_part,
)
from services.task_groups import run_together

logger = logging.getLogger(__name__)

PARTS_AT_ONCE = 4


class Call(Protocol):
    """A call of the client with retries; `doing` goes into errors."""

    def __call__(self, call: Callable[[], Awaitable[Any]], doing: str) -> Awaitable[Any]: ...


class MultipartUploads:
    """The unfinished uploads of one bucket."""

    def __init__(self, client: Any, bucket: str, url: str, call: Call) -> None:
        self._client = client
        self._bucket = bucket
        self._url = url
        self._call = call

    async def send(
        self, path: Path, full_key: str, *, sha256: str, part_bytes: int, on_bytes: OnBytes
    ) -> dict[str, Any]:
        """Bring every part of `path` to the store; the arguments that complete the upload."""
        doing = f"storing {full_key} at s3://{self._bucket}"
        parts = plan_parts(path.stat().st_size, part_bytes=part_bytes)
        upload_id, stored = await self._find(full_key, parts)
        if upload_id is None:
            answer = await self._call(
                lambda: self._client.create_multipart_upload(
                    Bucket=self._bucket, Key=full_key, Metadata={"sha256": sha256}
                ),
                doing,
            )
            upload_id = str(answer["UploadId"])
        else:
            logger.info("%s: %d of %d parts are there already", doing, len(stored), len(parts))
        target = {"Bucket": self._bucket, "Key": full_key, "UploadId": upload_id}
        etags: dict[int, str] = {}
        permits = asyncio.Semaphore(PARTS_AT_ONCE)

        async def send_part(part: Part) -> None:
            async with permits:
                data = await asyncio.to_thread(read_part, path, part)
                held = stored.get(part.number)
                if held is not None and held.holds(data):
                    etags[part.number] = held.etag
                    on_bytes(part.num_bytes)
                    return
                arguments = {
                    **target,
                    "PartNumber": part.number,
                    "Body": data,
                    "ContentMD5": content_md5(data),
                }
                answer = await self._call(lambda: self._client.upload_part(**arguments), doing)
                etags[part.number] = answer["ETag"]
                on_bytes(part.num_bytes)

        # A failure leaves the parts that arrived for the next attempt.
        await run_together(send_part(part) for part in parts)
        listed = [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]
        return {**target, "MultipartUpload": {"Parts": listed}}

    async def discard(self, prefix: str) -> int:
        """Give up every unfinished upload below `prefix`; how many there were."""
        uploads = await self._list(prefix)
        for key, upload_id in uploads:
            arguments = {"Bucket": self._bucket, "Key": key, "UploadId": upload_id}
            await self._once(
                self._client.abort_multipart_upload, arguments, "giving up an unfinished upload"
            )
        return len(uploads)

    async def _find(
        self, full_key: str, parts: list[Part]
    ) -> tuple[str | None, dict[int, StoredPart]]:
        """The unfinished upload of this key with the most usable parts, if there is one."""
        best: tuple[str | None, dict[int, StoredPart]] = (None, {})
        for key, upload_id in await self._list(full_key):
            if key != full_key:
                continue
            stored = await self._parts(full_key, upload_id)
            if best[0] is None or matching_size(parts, stored) > matching_size(parts, best[1]):
                best = (upload_id, stored)
        return best

    async def _list(self, prefix: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        arguments = {"Bucket": self._bucket, "Prefix": prefix}
        while True:
            page = await self._once(
                self._client.list_multipart_uploads, arguments, "listing unfinished uploads"
            )
            found += [(item["Key"], item["UploadId"]) for item in page.get("Uploads", [])]
            if not page.get("IsTruncated"):
                return found
            arguments["KeyMarker"] = page["NextKeyMarker"]
            arguments["UploadIdMarker"] = page["NextUploadIdMarker"]

    async def _parts(self, full_key: str, upload_id: str) -> dict[int, StoredPart]:
        stored: dict[int, StoredPart] = {}
        arguments = {"Bucket": self._bucket, "Key": full_key, "UploadId": upload_id}
        while True:
            page = await self._once(
                self._client.list_parts, arguments, "listing the parts of an unfinished upload"
            )
            for item in page.get("Parts", []):
                stored[item["PartNumber"]] = StoredPart(item["Size"], item["ETag"])
            if not page.get("IsTruncated"):
                return stored
            arguments["PartNumberMarker"] = page["NextPartNumberMarker"]

    async def _once(
        self, operation: Callable[..., Awaitable[Any]], arguments: dict[str, Any], doing: str
    ) -> Any:
        return await self._call(lambda: operation(**arguments), f"{doing} at {self._url}")
