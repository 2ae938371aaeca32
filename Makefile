# Everything a fresh clone needs: each target makes the environment first.
#
#   make demo          the whole job on the tiny target, CPU, about two minutes after set-up
#   make test          every test that needs no GPU
#   make test-serving  the exported drafter in a real vLLM server (CPU build, venv of its own)
#   make lint, format
#
# PYTHON      interpreter for the environment (default python3, 3.11 or newer)
# TORCH_INDEX optional index with CPU wheels of torch; without it pip's own configuration decides

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip
TORCH_OPTION := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX),)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_CONSTRAINT :=
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test test-fast test-serving lint format setup browser clean

setup: $(VENV)/.runtime

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet 'pip>=25.1'
	touch $@

$(VENV)/.runtime: pyproject.toml constraints.txt $(VENV)/.base
	@echo "installing into $(VENV): two or three minutes the first time"
	@# An editable build warns of itself by way of a long frame that reads like an error.
	PYTHONWARNINGS=ignore $(PIP) install --quiet --constraint constraints.txt $(TORCH_OPTION) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.runtime
	$(PIP) install --quiet --constraint constraints.txt --group test --group lint
	touch $@

demo: $(VENV)/.runtime
	$(VENV)/bin/dflash-mesh demo $(DEMO_ARGS)

browser: $(VENV)/.test
	bash tests/environment/browser.sh

# Unit tests with two processes, then what starts processes of its own, one at a time.
test: $(VENV)/.test browser
	$(VENV)/bin/python -m pytest tests/unit -n 2 --dist loadfile
	$(VENV)/bin/python -m pytest tests/integration tests/e2e

test-fast: $(VENV)/.test
	$(VENV)/bin/python -m pytest tests/unit -n 2 --dist loadfile

test-serving: $(VENV)/.test
	bash tests/environment/serving.sh
	$(VENV)/bin/python -m pytest tests/serving -m serving --timeout 900

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/hadolint docker/*.Dockerfile

format: $(VENV)/.test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) .venv-serving demo-run build dist *.egg-info
