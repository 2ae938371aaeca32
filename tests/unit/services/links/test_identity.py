"""Identities, limits, hosts and the choice of a plane."""

import pytest

from services.links import identity
from services.links.identity import (
    LinkIdentity,
    LinkLimits,
    choose_plane,
    host_identity,
    require_plane,
)
from shared.errors import EnvironmentFault


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "-a", "a b"])
def test_a_run_id_that_is_no_file_name_is_refused(run_id):
    with pytest.raises(ValueError, match="run id"):
        LinkIdentity(run_id, "w", "batcher", 0, "abcd1234")


@pytest.mark.parametrize("incarnation", ["", "a-b", "a/b", "a.b"])
def test_an_incarnation_that_would_blur_a_segments_name_is_refused(incarnation):
    with pytest.raises(ValueError, match="incarnation"):
        LinkIdentity("run", "w", "batcher", 0, incarnation)


def test_limits_must_let_something_through():
    for messages, num_bytes in ((0, 1), (1, 0), (-1, 5)):
        with pytest.raises(ValueError, match="at least one message and one byte"):
            LinkLimits(messages, num_bytes)


def test_the_host_identity_is_stable_and_knows_its_mount(monkeypatch, tmp_path):
    here = host_identity()
    assert here == host_identity()
    monkeypatch.setattr(identity, "SHM_FOLDER", tmp_path / "none")
    assert host_identity() != here


@pytest.mark.parametrize(
    ("here", "there", "same_host", "plane"),
    [
        ("auto", "auto", True, "shm"),
        ("auto", "auto", False, "zmq"),
        ("auto", "shm", True, "shm"),
        ("zmq", "auto", True, "zmq"),
        ("auto", "zmq", True, "zmq"),
        ("shm", "zmq", True, "zmq"),
    ],
)
def test_the_plane_follows_from_both_ends(here, there, same_host, plane):
    assert choose_plane(here, there, same_host=same_host) == plane


def test_shared_memory_across_hosts_is_refused_with_the_remedy():
    for here, there in (("shm", "auto"), ("auto", "shm"), ("shm", "zmq")):
        with pytest.raises(ValueError, match=r"links\.plane to 'auto' or 'zmq'"):
            choose_plane(here, there, same_host=False)


def test_shared_memory_without_dev_shm_is_refused_with_the_remedy(monkeypatch, tmp_path):
    require_plane("shm")
    monkeypatch.setattr(identity, "SHM_FOLDER", tmp_path / "none")
    require_plane("auto")
    assert choose_plane("auto", "auto", same_host=True) == "zmq"
    with pytest.raises(EnvironmentFault, match=r"does not exist on this host: set links\.plane"):
        require_plane("shm")
