"""Atomic writes, faults of the disk, sums."""

import errno
import hashlib

import pytest

from services.files import (
    atomic_writer,
    disk_faults,
    remove_temporaries,
    sha256_file,
    write_file,
    write_json,
)
from shared.errors import DiskFullError, ExhaustedFault, ReadOnlyError, StorageFault
from tests.helpers.small_disks import fill, mounted_small_disk


def test_write_replaces_whole_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_file(path, "first")
    write_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_failing_writer_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_file(path, "old")
    with pytest.raises(RuntimeError), atomic_writer(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_json_refuses_what_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not (tmp_path / "a.json").exists()


def test_a_full_disk_has_a_name_and_harms_nothing(tmp_path):
    with mounted_small_disk(tmp_path / "disk", 256 * 1024) as disk:
        write_file(disk / "kept.txt", "old")
        ballast = fill(disk, leave_bytes=8192)
        with pytest.raises(DiskFullError, match=r"no space left for .*kept.txt"):
            write_file(disk / "kept.txt", b"x" * 100_000)
        assert (disk / "kept.txt").read_text() == "old"
        assert sorted(p.name for p in disk.iterdir()) == ["ballast", "kept.txt"]
        ballast.unlink()
        write_file(disk / "kept.txt", b"x" * 100_000)
        assert (disk / "kept.txt").stat().st_size == 100_000


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EACCES, StorageFault),
        (errno.EROFS, ReadOnlyError),
        (errno.EMFILE, ExhaustedFault),
        (errno.ENOENT, FileNotFoundError),
    ],
)
def test_faults_are_told_apart(number, kind):
    with pytest.raises(kind) as caught, disk_faults("/somewhere/file"):
        raise OSError(number, "fault")
    assert type(caught.value) is kind


def test_a_prefix_has_a_sum_of_its_own(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    assert sha256_file(path, num_bytes=4) == (4, hashlib.sha256(b"0123").hexdigest())
    assert sha256_file(path, num_bytes=99) == (10, hashlib.sha256(b"0123456789").hexdigest())
    assert sha256_file(path) == (10, hashlib.sha256(b"0123456789").hexdigest())


def test_temporaries_of_killed_writers_go_and_nothing_else(tmp_path):
    (tmp_path / ".a.txt.0123456789ab.tmp").write_text("half")
    (tmp_path / "a.tmp").write_text("a file of somebody")
    removed = remove_temporaries(tmp_path)
    assert [p.name for p in removed] == [".a.txt.0123456789ab.tmp"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.tmp"]
