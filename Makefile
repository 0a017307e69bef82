# Everything here sets up what it needs: a Debian machine with python3 (3.11 or later), python3-venv and make is enough.
PYTHON ?= python3
VENV ?= .venv
ENGINES ?= .engines
BIN := $(VENV)/bin
DEMO_HOST ?= sim:rtx6000x8-k26
DEMO_TARGET ?= 1000tps@32

# Some machines set it; then each of thousands of short-lived processes compiles all sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint types style light docs engines test-engines test-scenarios test-slow dev clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo          install, tune a simulated 8-GPU box, print the journal of what was done and why'
	@echo 'make test          lint, types, import contracts and tests; needs no GPU and no engine'
	@echo 'make test-slow     whole studies with kills, signals and broken links'
	@echo 'make test-scenarios  whole studies on the four simulated boxes, about three minutes'
	@echo 'make engines       install real SGLang with its router, vLLM and llama.cpp for this CPU into $(ENGINES) (6 GB, about two minutes)'
	@echo 'make test-engines  tune those real engines'
	@echo 'make lint          ruff, mypy, import contracts, knowledge files'
	@echo 'make docs          the documents as a site in site/, every link checked'
	@echo 'make clean         remove $(VENV) and caches; keeps $(ENGINES) and runs/'

demo: $(VENV)/.installed
	@mkdir -p runs
	@$(BIN)/optimize run --host $(DEMO_HOST) --target $(DEMO_TARGET) --yes --json > runs/.demo.json; status=$$?; \
	study=$$($(BIN)/python -c 'import json; print(json.load(open("runs/.demo.json"))["study"])') || exit $$status; \
	echo; echo "What it did, and why (optimize journal $$study):"; echo; \
	$(BIN)/optimize journal "$$study" && exit $$status

# The types are checked on one core while the other begins with the rest.
test: dev
	@$(MAKE) --no-print-directory --jobs=2 types light

lint: dev
	@$(MAKE) --no-print-directory --jobs=2 types style

types: dev
	$(BIN)/mypy

style: dev
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/optimize lint

light: style
	$(BIN)/python -m pytest -q -n 3 --dist worksteal --durations=25

# Not --quiet: with it, --strict counts no warning. The variable silences an advertisement of the theme.
docs: $(VENV)/.installed-docs
	$(BIN)/python scripts/docs/errors_table.py --check
	$(BIN)/python scripts/docs/metrics_table.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'site/index.html'

engines:
	PYTHON=$(PYTHON) scripts/engines/install.sh $(ENGINES)

# Four at a time: a study keeps a third of a core busy, and the engines are installed beside it in CI. One test is handed out after the other, the longest first (tests/longest.py).
test-slow: dev
	$(BIN)/python -m pytest -q -m slow -n 4 --dist load --maxschedchunk 1 --durations=25

# Whole studies on the four simulated boxes, two at a time: each keeps less than half a core busy, and measures. Two follow each
# other in the order of their file: the two that are handed out together take as long as the other two.
test-scenarios: dev
	$(BIN)/python -m pytest -q -m scenarios -n 2 --dist load --durations=25

# Two at a time what reads and counts, in groups that share a server; then one at a time what measures.
test-engines: dev
	@for engine in vllm sglang llamacpp router; do \
	  test -x $(ENGINES)/$$engine/bin/python || { echo "No $$engine in $(ENGINES): run make engines first." >&2; exit 1; }; \
	done
	@export OPTIMIZER_ENGINES=$(abspath $(ENGINES)); status=0; set -x; \
	$(BIN)/python -m pytest -q -m 'engines and not measures' -n 2 --dist loadgroup --durations=25 tests/engines || status=$$?; \
	$(BIN)/python -m pytest -q -m 'engines and measures' -p no:xdist --durations=25 tests/engines || status=$$?; \
	exit $$status

dev: $(VENV)/.installed-dev

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is missing or older than 3.11. On Debian 12: apt-get install python3 python3-venv; or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@echo "Installing optimize into $(VENV)"
	@scripts/install.sh $(VENV)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml
	@echo "Installing optimize and its development tools into $(VENV)"
	@scripts/install.sh $(VENV) dev
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(VENV)/.made pyproject.toml
	@echo "Installing what makes the documents' site into $(VENV)"
	@scripts/install.sh $(VENV) docs
	@touch $@

clean:
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find optimizer tests -name __pycache__ -type d -prune -exec rm -rf {} +
