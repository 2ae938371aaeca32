"""Addresses of stores: what is one, what is refused, what is allowed."""

from pathlib import Path

import pytest

from services.object_stores import FileUrl, S3Url, check_key, ensure_allowed, parse_store_url
from shared.errors import ForbiddenPathError, UserError


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("file:///data/out", FileUrl(Path("/data/out"))),
        ("file://localhost/data/a%20b", FileUrl(Path("/data/a b"))),
        ("s3://bucket", S3Url("bucket", "")),
        ("s3://my-bucket/a/b/", S3Url("my-bucket", "a/b")),
    ],
)
def test_addresses(url, parsed):
    assert parse_store_url(url) == parsed
    assert parse_store_url(str(parsed)) == parsed


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/data/out",
        "out",
        "http://host/x",
        "file://host/x",
        "file:///a/../../etc",
        "s3://",
        "s3://UPPER/x",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "s3://bucket/x?versionId=1",
        "file:///a%00b",
        "s3://[",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(UserError):
        parse_store_url(url)


def test_credentials_in_an_address_are_refused_and_not_repeated():
    with pytest.raises(UserError) as caught:
        parse_store_url("s3://AKIAEXAMPLE:verysecret@bucket/x")
    assert "verysecret" not in str(caught.value)
    assert "AKIAEXAMPLE" not in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\nb", "k" * 1025])
def test_keys_that_climb_or_confuse_are_refused(key):
    with pytest.raises(UserError):
        check_key(key)


def test_a_link_does_not_lead_out_of_the_allowed_roots(tmp_path):
    root, outside = tmp_path / "exports", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    ensure_allowed(f"file://{root}/new/folder", [root])
    ensure_allowed("s3://bucket/x", [])
    for url in (f"file://{outside}", f"file://{root}/link/x", f"file://{root}-other"):
        with pytest.raises(ForbiddenPathError, match="--export-root"):
            ensure_allowed(url, [root])
