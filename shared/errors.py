"""One error hierarchy for the whole mesh.

    MeshError                      500  internal
    +-- UserError                  400  bad-request            (what was given is wrong)
    |   +-- ConfigError            422  invalid-configuration  (every wrong field at once)
    |   +-- DataError              422  invalid-data           (file, line, cause)
    |   +-- TargetModelError       422  unusable-target        (folder, tokenizer, template, shape)
    |   +-- DrafterError           422  unusable-drafter       (missing, extra, misshapen tensors)
    |   +-- ForbiddenPathError     403  forbidden-destination
    |   +-- AuthenticationError    401  unauthenticated
    |   +-- ForbiddenOriginError   403  forbidden-origin
    |   +-- NotFoundError          404  not-found
    |   +-- ConflictError          409  conflict
    |   |   +-- IllegalTransition  409  illegal-transition     (current state, allowed actions)
    |   |   +-- SupersededError    409  superseded-worker      (a newer incarnation is registered)
    |   +-- IdempotencyError       422  idempotency-key-reused
    |   +-- TooLargeError          413  body-too-large
    +-- EnvironmentFault           503  environment            (disk, port, permission, GPU)
    |   +-- DiskFullError          507  disk-full
    |   +-- DatabaseFault          503  database
    |   +-- ExhaustedFault         503  exhausted              retry helps (files, memory)
    |   +-- StorageFault           503  storage                (what we keep may not be touched)
    |       +-- ReadOnlyError      503  read-only              retry helps (the disk does not write)
    |   +-- InUseError             503  in-use                 retry helps (another process ends)
    +-- UpstreamError              502  upstream               (a server we call)
    |   +-- UpstreamTimeout        504  upstream-timeout       retry helps
    |   +-- UnreachableError       502  upstream-unreachable   retry helps
    |   +-- WrongModelError        502  upstream-wrong-model
    +-- LinkError                  503  link                   retry helps
    |   +-- ChannelClosed          503  link-closed            retry helps (dial again)
    +-- GateBlocked                409  quality-gate           (a person must look)
    +-- IntegrityError             500  integrity              (a checksum or size does not match)
    +-- TrainingDiverged           500  training-diverged      (loss or gradients went wrong)

Every class has a `slug` (the last part of the problem type), an HTTP `status`, and `retryable`:
whether the same call may succeed later without a change. A message says what was wrong, where
(file, line, field), and what to do. `errors` lists single fields for configuration-like failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class FieldError:
    """One wrong field: its dotted path, what is wrong, and, where there is one, a suggestion."""

    field: str
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        hint = f" (did you mean {self.suggestion!r}?)" if self.suggestion else ""
        return f"{self.field}: {self.message}{hint}"


class MeshError(Exception):
    """Root of all errors the mesh raises on purpose."""

    slug: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors: tuple[FieldError, ...] = tuple(errors)

    def __str__(self) -> str:
        if not self.errors:
            return self.detail
        return "\n".join([self.detail, *(f"  - {error}" for error in self.errors)])


class UserError(MeshError):
    slug, status, title = "bad-request", 400, "Bad request"


class ConfigError(UserError):
    """The configuration is wrong; `errors` names every wrong field at once."""

    slug, status, title = "invalid-configuration", 422, "Invalid configuration"


class DataError(UserError):
    """A prompts or data-set file is wrong; the message names file, line and cause."""

    slug, status, title = "invalid-data", 422, "Invalid data"


class TargetModelError(UserError):
    slug, status, title = "unusable-target", 422, "Unusable target model"


class DrafterError(UserError):
    slug, status, title = "unusable-drafter", 422, "Unusable drafter"


class ForbiddenPathError(UserError):
    slug, status, title = "forbidden-destination", 403, "Destination not allowed"


class AuthenticationError(UserError):
    slug, status, title = "unauthenticated", 401, "Authentication required"


class ForbiddenOriginError(UserError):
    slug, status, title = "forbidden-origin", 403, "Host or origin not allowed"


class NotFoundError(UserError):
    slug, status, title = "not-found", 404, "Not found"


class ConflictError(UserError):
    slug, status, title = "conflict", 409, "Conflict"


class IllegalTransition(ConflictError):
    """The run's state does not allow the action; the message lists the actions it does allow."""

    slug, title = "illegal-transition", "Action not allowed in this state"


class SupersededError(ConflictError):
    """A newer incarnation of the same worker has registered; the caller must exit."""

    slug, title = "superseded-worker", "Superseded worker"


class IdempotencyError(UserError):
    slug, status, title = "idempotency-key-reused", 422, "Idempotency key reused"


class TooLargeError(UserError):
    slug, status, title = "body-too-large", 413, "Request body too large"


class EnvironmentFault(MeshError):
    slug, status, title = "environment", 503, "Environment fault"


class DiskFullError(EnvironmentFault):
    slug, status, title = "disk-full", 507, "Disk full"
    retryable = True


class DatabaseFault(EnvironmentFault):
    slug, title = "database", "Database fault"


class ExhaustedFault(EnvironmentFault):
    """The machine has no open file, process or memory left for us now."""

    slug, title = "exhausted", "Machine exhausted"
    retryable = True


class StorageFault(EnvironmentFault):
    """A file or folder of ours may not be read or written any more."""

    slug, title = "storage", "Storage fault"


class ReadOnlyError(StorageFault):
    """The file system takes no writes, or the disk fails: the files are as they were."""

    slug, title = "read-only", "Storage cannot be written"
    retryable = True


class InUseError(EnvironmentFault):
    """Another process holds what only one may have."""

    slug, title, retryable = "in-use", "In use by another process", True


class UpstreamError(MeshError):
    slug, status, title = "upstream", 502, "Upstream server failed"


class UpstreamTimeout(UpstreamError):
    slug, status, title = "upstream-timeout", 504, "Upstream server timed out"
    retryable = True


class UnreachableError(UpstreamError):
    """No connection could be made, or it broke before an answer came."""

    slug, title = "upstream-unreachable", "Upstream server cannot be reached"
    retryable = True


class WrongModelError(UpstreamError):
    slug, title = "upstream-wrong-model", "Upstream server serves another model"


class LinkError(MeshError):
    slug, status, title = "link", 503, "Link failed"
    retryable = True


class ChannelClosed(LinkError):
    """The channel has ended, by either end or because the peer is gone; a new dial may help."""

    slug, title = "link-closed", "Link channel closed"


class GateBlocked(MeshError):
    slug, status, title = "quality-gate", 409, "Blocked by a quality gate"


class IntegrityError(MeshError):
    slug, status, title = "integrity", 500, "Integrity check failed"


class TrainingDiverged(MeshError):
    """Too many steps were not finite, or the loss diverges and the run is to stop then."""

    slug, status, title = "training-diverged", 500, "Training diverged"
