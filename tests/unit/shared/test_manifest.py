"""Manifests: a stable form, and what is refused when one comes from outside."""

import json

import pytest
from pydantic import ValidationError

from shared.errors import IntegrityError
from shared.manifest import Manifest, ManifestFile, parse_manifest


def entry(path, part="logs", **more):
    return ManifestFile(path=path, num_bytes=3, sha256="a" * 64, part=part, **more)


def manifest(files):
    return Manifest(
        run_id="run-1",
        run_name="demo",
        config_sha256="c" * 64,
        program_version="1",
        created_at=1.0,
        files=files,
    )


def test_order_does_not_depend_on_the_order_of_arrival():
    files = [
        entry("checkpoints/x", "checkpoints"),
        entry("logs/b"),
        entry("logs/a"),
        entry("run.json", "metadata"),
    ]
    one, other = manifest(files), manifest(files[::-1])
    assert one.to_bytes() == other.to_bytes()
    assert [file.path for file in one.files] == ["run.json", "logs/a", "logs/b", "checkpoints/x"]
    assert one.total_bytes == 12
    assert parse_manifest(one.to_bytes(), source="here") == one


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", ".", "a\n", "./a"])
def test_paths_that_climb_are_refused(path):
    with pytest.raises(ValidationError):
        entry(path)
    with pytest.raises(ValidationError):
        entry("a", stored_as=path)


def test_one_place_is_listed_once():
    with pytest.raises(ValidationError, match="twice"):
        manifest([entry("a"), entry("b", stored_as="a")])


@pytest.mark.parametrize(
    "change",
    [{"format": "other"}, {"files": [{"path": "a"}]}, {"surprise": 1}, {"run_id": None}],
)
def test_what_is_no_manifest_is_named(change):
    tree = json.loads(manifest([entry("a")]).to_bytes()) | change
    with pytest.raises(IntegrityError, match=r"manifest\.json at s3://b is not a usable manifest"):
        parse_manifest(json.dumps(tree).encode(), source="manifest.json at s3://b")
    with pytest.raises(IntegrityError):
        parse_manifest(b"\xff{", source="x")
