"""S3 without a server: parts, errors, retries, endpoints."""

import hashlib
import itertools

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from hypothesis import given
from hypothesis import strategies as st

from services.object_stores.s3 import S3Store, endpoint_url
from services.object_stores.s3_errors import RetryPolicy, translate, with_retries
from services.object_stores.s3_parts import MIB, MIN_PART_BYTES, StoredPart, plan_parts
from services.object_stores.urls import S3Url
from shared.errors import (
    ConflictError,
    EnvironmentFault,
    IntegrityError,
    NotFoundError,
    UnreachableError,
    UpstreamError,
    UpstreamTimeout,
)

FAST = RetryPolicy(attempts=3, first_pause_s=0.001, max_pause_s=0.002)


def answer(code, status):
    return ClientError(
        {
            "Error": {"Code": code, "Message": "secret text"},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "PutObject",
    )


@given(num_bytes=st.integers(1, 6 * 2**40))
def test_parts_cover_the_file_within_the_limits(num_bytes):
    parts = plan_parts(num_bytes, part_bytes=512 * MIB)
    assert len(parts) <= 10_000
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert parts[0].offset == 0
    assert all(a.offset + a.num_bytes == b.offset for a, b in itertools.pairwise(parts))
    assert parts[-1].offset + parts[-1].num_bytes == num_bytes
    assert all(MIN_PART_BYTES <= part.num_bytes <= 5 * 2**30 for part in parts[:-1])


def test_a_stored_part_is_believed_only_when_it_is_the_same():
    etag = f'"{hashlib.md5(b"data").hexdigest()}"'
    assert StoredPart(4, etag).holds(b"data")
    assert not StoredPart(4, etag).holds(b"date")
    assert not StoredPart(4, '"not-an-md5"').holds(b"data")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("NoSuchBucket", 404), NotFoundError),
        (answer("404", 404), NotFoundError),
        (answer("PreconditionFailed", 412), ConflictError),
        (answer("BadDigest", 400), IntegrityError),
        (answer("SignatureDoesNotMatch", 403), UpstreamError),
        (answer("AccessDenied", 403), UpstreamError),
        (answer("SlowDown", 503), UpstreamTimeout),
        (answer("InternalError", 500), UpstreamTimeout),
        (answer("InvalidRequest", 400), UpstreamError),
        (EndpointConnectionError(endpoint_url="http://user:pw@host"), UnreachableError),
        (TimeoutError(), UnreachableError),
        (NoCredentialsError(), EnvironmentFault),
    ],
)
def test_errors_have_our_names_and_say_no_secrets(error, kind):
    translated = translate(error, "storing a/b at s3://bucket")
    assert type(translated) is kind
    assert str(translated).startswith("storing a/b at s3://bucket")
    assert "secret text" not in str(translated)
    assert "user:pw" not in str(translated)


async def test_an_outage_is_waited_out():
    failures = [answer("SlowDown", 503), EndpointConnectionError(endpoint_url="x")]

    async def call():
        if failures:
            raise failures.pop()
        return "stored"

    assert await with_retries(call, "storing", FAST) == "stored"


@pytest.mark.parametrize(
    ("error", "calls"),
    [(answer("SlowDown", 503), 3), (answer("BadDigest", 400), 3), (answer("AccessDenied", 403), 1)],
)
async def test_only_what_may_pass_is_repeated(error, calls):
    made = []

    async def call():
        made.append(1)
        raise error

    with pytest.raises((UpstreamError, IntegrityError)):
        await with_retries(call, "storing", FAST)
    assert len(made) == calls


@pytest.mark.parametrize("value", ["host:9000", "ftp://host", "http://key:secret@host:9000"])
def test_an_unusable_endpoint_is_named_and_not_repeated(monkeypatch, value):
    monkeypatch.setenv("DFLASH_MESH_S3_ENDPOINT_URL", value)
    with pytest.raises(EnvironmentFault, match="DFLASH_MESH_S3_ENDPOINT_URL") as caught:
        endpoint_url()
    assert "secret" not in str(caught.value)


async def test_nobody_listens(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a" * 12)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b" * 12)
    monkeypatch.setenv("DFLASH_MESH_S3_ENDPOINT_URL", "http://127.0.0.1:1")
    async with S3Store(S3Url("bucket", ""), policy=FAST) as store:
        with pytest.raises(UnreachableError, match="cannot be reached"):
            await store.put_bytes("a", b"b")
