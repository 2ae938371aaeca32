"""Stores to run against: a folder, and a prefix of a real S3 server."""

import pytest

from services.object_stores import open_store


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def store_url(request, tmp_path):
    """The same test against both kinds of store."""
    if request.param == "file":
        return f"file://{tmp_path / 'store'}"
    return request.getfixturevalue("s3_url")


@pytest.fixture
async def store(store_url):
    async with open_store(store_url) as store:
        yield store
