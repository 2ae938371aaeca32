"""What went wrong at S3, in our own errors; and which calls are worth repeating.

An outage (no connection, a timeout, 429, 5xx) is repeated with growing, jittered pauses and then
becomes UnreachableError or UpstreamTimeout, which are retryable. Everything else is final at once.
No message carries an address with its query, a header or a credential: only the error code and
what we were doing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from shared.errors import (
    ConflictError,
    EnvironmentFault,
    IntegrityError,
    MeshError,
    NotFoundError,
    UnreachableError,
    UpstreamError,
    UpstreamTimeout,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

_TRANSIENT_CODES = frozenset(
    {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "Throttling"}
    | {"ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "OperationAborted"}
)
_REFUSED_CODES = frozenset(
    {"AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken", "Forbidden"}
    | {"InvalidToken", "TokenRefreshRequired", "AllAccessDisabled"}
)


@dataclass(frozen=True)
class RetryPolicy:
    """How long an outage is waited out within one call."""

    attempts: int = 5
    first_pause_s: float = 0.5
    max_pause_s: float = 15.0

    def pause_s(self, failures: int) -> float:
        """Pause after so many failures (from 1): doubled each time, half of it random."""
        longest = min(self.max_pause_s, self.first_pause_s * 2.0 ** (failures - 1))
        return longest * (0.5 + 0.5 * random.random())


async def with_retries(call: Callable[[], Awaitable[T]], doing: str, policy: RetryPolicy) -> T:
    """Await `call()`, again while it fails for a passing reason; raises MeshError only."""
    failures = 0
    while True:
        try:
            return await call()
        except (ClientError, BotoCoreError, aiohttp.ClientError, TimeoutError, OSError) as error:
            translated = translate(error, doing)
            failures += 1
            # What the network garbled is worth sending again, like what it lost.
            passing = translated.retryable or isinstance(translated, IntegrityError)
            if not passing or failures >= policy.attempts:
                raise translated from error
            pause_s = policy.pause_s(failures)
            logger.warning("%s; trying again in %.1f s", translated.detail, pause_s)
            await asyncio.sleep(pause_s)


def translate(error: Exception, doing: str) -> MeshError:
    """Our error for one of the client's; `doing` reads like 'storing a/b at s3://bucket'."""
    if isinstance(error, ClientError):
        return _translate_answer(error, doing)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return EnvironmentFault(
            f"{doing}: no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE, where the control plane runs"
        )
    passing = ConnectionError | HTTPClientError | aiohttp.ClientError | TimeoutError | OSError
    if isinstance(error, passing):
        return UnreachableError(
            f"{doing}: the object store cannot be reached ({type(error).__name__}): check the "
            "network and AWS_ENDPOINT_URL"
        )
    return UpstreamError(f"{doing}: the S3 client failed ({type(error).__name__})")


def error_code(error: ClientError) -> str:
    """The S3 error code ('NoSuchKey', ...), or the HTTP status where there is none."""
    return str(error.response.get("Error", {}).get("Code", "")) or str(_status(error))


def is_missing(error: ClientError) -> bool:
    """Whether the answer means that the object does not exist."""
    return error_code(error) in ("NoSuchKey", "NotFound", "404")


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _translate_answer(error: ClientError, doing: str) -> MeshError:
    code, status = error_code(error), _status(error)
    if code == "NoSuchBucket":
        return NotFoundError(f"{doing}: the bucket does not exist: make it, or name another")
    if code == "NoSuchUpload":
        # The unfinished upload is gone (a lifecycle rule, or another process gave it up).
        return UpstreamTimeout(f"{doing}: the unfinished upload is gone: start it again")
    if is_missing(error):
        return NotFoundError(f"{doing}: there is no such object")
    if code in ("PreconditionFailed", "ConditionalRequestConflict") or status == 412:
        return ConflictError(f"{doing}: the object exists already and is not overwritten")
    if code in ("BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "InvalidPart"):
        return IntegrityError(f"{doing}: what arrived is not what was sent ({code}): send it again")
    if code in _REFUSED_CODES or status in (401, 403):
        return UpstreamError(
            f"{doing}: the object store refused the credentials or the access ({code}): check the "
            "key, its rights on the bucket, and this machine's clock"
        )
    if code in _TRANSIENT_CODES or status == 429 or status >= 500:
        return UpstreamTimeout(f"{doing}: the object store is not available ({code})")
    return UpstreamError(f"{doing}: the object store answered {code} (HTTP {status})")
