"""A prefix of a real S3 server, one server for the whole session."""

import uuid

import pytest

from tests.helpers.s3_server import run_s3_server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3_server, monkeypatch):
    """A prefix of its own on the server, with the environment that reaches it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.bucket}/{uuid.uuid4().hex}"
