"""A process's birth: the same for whoever asks, and free of the machine's clock."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from services import process_birth as module
from services.process_birth import process_birth


def test_the_birth_stays_when_the_boot_time_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = process_birth(os.getpid())
    shifted = psutil.boot_time() + 5
    monkeypatch.setattr(psutil, "boot_time", lambda: shifted)
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: shifted, raising=False)
    assert process_birth(os.getpid()) == before
    assert before is not None and before.count("/") == 1


@pytest.mark.parametrize("portable", [False, True])
def test_processes_differ_and_who_has_ended_has_none(
    portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if portable:
        monkeypatch.setattr(module, "_read_boot_id", lambda: None)
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        birth = process_birth(child.pid)
        assert birth is not None
        assert birth != process_birth(os.getpid())
        assert process_birth(child.pid) == birth
        child.communicate(b"\n")
    assert process_birth(child.pid) is None
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_birth(child.pid) is None  # a zombie
