"""Large files to S3: parts, kill -9 in the middle, and going on without sending parts twice."""

import asyncio
import os
import subprocess
import sys

import pytest

from services.files import sha256_file
from services.object_stores.s3 import S3Store
from services.object_stores.s3_parts import MIN_PART_BYTES
from services.object_stores.urls import parse_store_url
from shared.errors import ConflictError

pytestmark = pytest.mark.s3
NUM_PARTS = 8

# Sends the file until three parts are there, says so, and then stands still until it is killed.
SENDER = """
import asyncio, sys
from pathlib import Path
from services.object_stores.s3 import S3Store
from services.object_stores.s3_parts import MIN_PART_BYTES
from services.object_stores.urls import parse_store_url

url, path, sha256 = sys.argv[1:]
there = []

def on_bytes(num_bytes):
    there.append(num_bytes)
    if len(there) == 3:
        print("three parts", flush=True)
        sys.stdin.read()

async def main():
    async with S3Store(parse_store_url(url), part_bytes=MIN_PART_BYTES) as store:
        await store.put_file(Path(path), "big.bin", sha256=sha256, on_bytes=on_bytes)

asyncio.run(main())
"""


@pytest.fixture
def big(tmp_path):
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom(MIN_PART_BYTES) * (NUM_PARTS - 1) + b"tail")
    return path


@pytest.fixture
async def store(s3_url):
    async with S3Store(parse_store_url(s3_url), part_bytes=MIN_PART_BYTES) as store:
        yield store


@pytest.fixture
def sent(store, monkeypatch):
    """Numbers of the parts that this process sends."""
    numbers = []
    upload_part = store._client.upload_part

    async def counted(**arguments):
        numbers.append(arguments["PartNumber"])
        return await upload_part(**arguments)

    monkeypatch.setattr(store._client, "upload_part", counted)
    return numbers


async def test_a_killed_upload_goes_on_where_it_was(store, s3_url, big, sent):
    sha256 = sha256_file(big)[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SENDER, s3_url, str(big), sha256),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert await process.stdout.readline() == b"three parts\n"
    process.kill()
    await process.communicate()
    assert await store.head("big.bin") is None
    ((full_key, upload_id),) = await store._uploads._list(store._prefix)
    there = set(await store._uploads._parts(full_key, upload_id))
    assert len(there) >= 3

    await store.put_file(big, "big.bin", sha256=sha256)
    assert sorted(sent) == sorted(set(range(1, NUM_PARTS + 1)) - there)
    assert await store.digest("big.bin") == (big.stat().st_size, sha256)
    assert await store._uploads._list(store._prefix) == []


async def test_parts_of_an_earlier_content_are_sent_again(store, s3_url, big, sent):
    target = {"Bucket": store._bucket, "Key": store._key("big.bin")}
    upload = await store._client.create_multipart_upload(**target)
    await store._client.upload_part(
        **target, UploadId=upload["UploadId"], PartNumber=1, Body=b"x" * MIN_PART_BYTES
    )
    sent.clear()
    sha256 = sha256_file(big)[1]
    await store.put_file(big, "big.bin", sha256=sha256)
    assert sorted(sent) == list(range(1, NUM_PARTS + 1))
    assert (await store.digest("big.bin"))[1] == sha256


async def test_a_large_file_overwrites_nothing_either(store, big, sent):
    await store.put_bytes("big.bin", b"theirs")
    with pytest.raises(ConflictError):
        await store.put_file(big, "big.bin", sha256=sha256_file(big)[1])
    assert sent == []
    assert await store.read_bytes("big.bin") == b"theirs"


async def test_an_object_that_appears_during_the_upload_is_kept(store, big, monkeypatch):
    complete = store._client.complete_multipart_upload

    async def somebody_was_faster(**arguments):
        await store.put_bytes("big.bin", b"theirs")
        return await complete(**arguments)

    monkeypatch.setattr(store._client, "complete_multipart_upload", somebody_was_faster)
    with pytest.raises(ConflictError):
        await store.put_file(big, "big.bin", sha256=sha256_file(big)[1])
    assert await store.read_bytes("big.bin") == b"theirs"


async def test_unfinished_uploads_can_be_given_up(store):
    await store._client.create_multipart_upload(Bucket=store._bucket, Key=store._key("a"))
    assert await store.discard_unfinished() == 1
    assert await store.discard_unfinished() == 0
