"""The limit of open files: each connection, log and lock of the control plane is one of them."""

from __future__ import annotations

import resource

ENOUGH = 1024
_MOST = 65_536  # beyond this, programs that go through all numbers take their time


def open_files_limit() -> int:
    """How many files this process may have open, as far as it matters."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def reachable_limit() -> int:
    """What `raise_limit` may raise the limit to."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)


def raise_limit() -> int:
    """Raise the soft limit to the hard one, for this process and its workers; the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = reachable_limit()
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_files_limit()
