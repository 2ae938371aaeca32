"""The hardware record: figures of this machine, GPU rows from nvidia-smi, no secrets."""

import json
import os

from services.hardware import probe, summary

NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *query-gpu*) echo "0, NVIDIA H200, 143771, 570.86.15, 9.0, 700.00, 5, 16"
               echo "1, NVIDIA H200, 143771, 570.86.15, 9.0, [N/A], 5, 16" ;;
  *) echo "| NVIDIA-SMI 570.86.15   Driver Version: 570.86.15   CUDA Version: 12.8 |" ;;
esac
"""


def _install(folder, monkeypatch, text):
    tool = folder / "nvidia-smi"
    tool.write_text(text)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_record_of_this_machine_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "hardware-secret-value")
    record = probe(tmp_path / "not-there-yet")
    assert record["memory"]["total_bytes"] > 0
    assert record["cpu"]["usable_cores"] >= 1
    assert record["disk"]["free_bytes"] > 0
    assert record["python"]["packages"]["pydantic"]
    assert "hardware-secret-value" not in json.dumps(record)
    assert "GB RAM" in summary(record)


def test_gpus_and_cuda_come_from_nvidia_smi(tmp_path, monkeypatch):
    _install(tmp_path, monkeypatch, NVIDIA_SMI)
    record = probe(tmp_path)
    assert [gpu["index"] for gpu in record["gpus"]] == [0, 1]
    assert record["gpus"][0]["memory_mib"] == 143771
    assert record["gpus"][0]["power_limit_w"] == 700.0
    assert record["gpus"][1]["power_limit_w"] is None
    assert record["cuda_driver_version"] == "12.8"
    assert summary(record).startswith("2 x NVIDIA H200")


def test_a_broken_tool_gives_no_gpus(tmp_path, monkeypatch):
    _install(tmp_path, monkeypatch, "#!/bin/sh\nexit 9\n")
    assert probe(tmp_path)["gpus"] == []
