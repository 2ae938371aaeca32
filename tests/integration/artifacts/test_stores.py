"""What both kinds of store promise."""

import asyncio

import pytest

from services.files import sha256_bytes, sha256_file
from services.object_stores import LocalStore, open_store
from shared.errors import (
    ConflictError,
    DiskFullError,
    EnvironmentFault,
    ForbiddenPathError,
    IntegrityError,
    NotFoundError,
    TooLargeError,
    UpstreamError,
    UserError,
)
from tests.helpers.small_disks import mounted_small_disk


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.bin"
    path.write_bytes(b"0123456789" * 1000)
    return path


async def test_what_is_put_is_there(store, source):
    num_bytes, sha256 = sha256_file(source)
    seen = []
    await store.put_file(source, "a/b c/ü.bin", sha256=sha256, on_bytes=seen.append)
    assert sum(seen) == num_bytes
    assert (await store.head("a/b c/ü.bin")).num_bytes == num_bytes
    assert await store.digest("a/b c/ü.bin") == (num_bytes, sha256)
    assert await store.read_bytes("a/b c/ü.bin") == source.read_bytes()
    with pytest.raises(TooLargeError):
        await store.read_bytes("a/b c/ü.bin", max_bytes=10)


async def test_an_empty_file_is_a_file(store, tmp_path):
    (tmp_path / "empty").touch()
    await store.put_file(tmp_path / "empty", "empty", sha256=sha256_bytes(b""))
    assert await store.digest("empty") == (0, sha256_bytes(b""))


async def test_nothing_is_overwritten_unless_asked(store, source):
    await store.put_bytes("a", b"theirs")
    _, sha256 = sha256_file(source)
    with pytest.raises(ConflictError, match="not overwritten"):
        await store.put_file(source, "a", sha256=sha256)
    with pytest.raises(ConflictError):
        await store.put_bytes("a", b"ours", replace=False)
    assert await store.read_bytes("a") == b"theirs"
    await store.put_file(source, "a", sha256=sha256, replace=True)
    assert await store.read_bytes("a") == source.read_bytes()


async def test_of_two_writers_at_once_one_wins(store):
    results = await asyncio.gather(
        *(store.put_bytes("a", bytes([n]) * 9, replace=False) for n in range(2)),
        return_exceptions=True,
    )
    lost = [result for result in results if result is not None]
    assert [type(error) for error in lost] == [ConflictError]
    winner = results.index(None)
    assert await store.read_bytes("a") == bytes([winner]) * 9


async def test_a_file_that_changed_since_its_sum_is_refused(store, source):
    with pytest.raises(IntegrityError, match="changed while"):
        await store.put_file(source, "a", sha256="0" * 64)
    assert await store.head("a") is None


async def test_listing_is_complete_and_keeps_to_its_prefix(store):
    keys = {"a.b", "a/x", "a0", "p2/y", "p/1", "p/q/2"}
    for key in keys:
        await store.put_bytes(key, key.encode())
    found = [(info.key, info.num_bytes) async for info in store.objects()]
    assert sorted(found) == sorted((key, len(key)) for key in keys)
    assert [info.key async for info in store.objects("a")] == ["a/x"]
    assert [info.key async for info in store.objects("nothing")] == []


async def test_a_folder_of_more_than_a_page_is_listed_whole(tmp_path):
    for n in range(1203):
        (tmp_path / f"{n:04d}").touch()
    keys = [info.key async for info in LocalStore(tmp_path).objects()]
    assert keys == [f"{n:04d}" for n in range(1203)]


@pytest.mark.s3
async def test_listing_follows_the_pages_of_s3(s3_url, monkeypatch):
    async with open_store(s3_url) as store:
        for n in range(5):
            await store.put_bytes(f"k{n}", b"x")
        whole = store._client.list_objects_v2
        monkeypatch.setattr(store._client, "list_objects_v2", lambda **a: whole(**a, MaxKeys=2))
        assert [info.key async for info in store.objects()] == [f"k{n}" for n in range(5)]


async def test_what_is_not_there(store):
    assert await store.head("a") is None
    await store.delete("a")
    with pytest.raises(NotFoundError):
        await store.read_bytes("a")
    await store.put_bytes("a", b"x")
    await store.delete("a")
    assert await store.head("a") is None


@pytest.mark.parametrize("key", ["../a", "/a", "a/../../b", "a\x00"])
async def test_keys_that_climb_are_refused(store, key):
    with pytest.raises(UserError):
        await store.put_bytes(key, b"x")
    with pytest.raises(UserError):
        await store.read_bytes(key)


async def test_a_link_in_the_folder_leads_nowhere(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("not ours")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "file")
    store = LocalStore(root)
    with pytest.raises(ForbiddenPathError):
        await store.put_bytes("folder/new", b"x")
    with pytest.raises(ForbiddenPathError):
        await store.read_bytes("folder/file")
    assert [info.key async for info in store.objects()] == []
    assert await store.head("file") is None
    await store.put_bytes("file", b"ours")
    assert (outside / "file").read_text() == "not ours"


async def test_a_full_disk_leaves_nothing_half(tmp_path, source):
    source.write_bytes(b"x" * 500_000)
    with mounted_small_disk(tmp_path / "disk", 256 * 1024) as disk:
        store = LocalStore(disk)
        with pytest.raises(DiskFullError):
            await store.put_file(source, "a/big", sha256=sha256_file(source)[1])
        assert [p for p in disk.rglob("*") if p.is_file()] == []


@pytest.mark.s3
async def test_wrong_credentials_are_an_answer_not_an_outage(s3_url, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-wrong-secret")
    async with open_store(s3_url) as store:
        with pytest.raises(UpstreamError, match="refused the credentials") as caught:
            await store.put_bytes("a", b"x")
    assert not caught.value.retryable
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.s3
async def test_without_credentials_the_error_says_what_to_set(s3_url, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with open_store(s3_url) as store:
        with pytest.raises(EnvironmentFault, match="set AWS_ACCESS_KEY_ID"):
            await store.put_bytes("a", b"x")
