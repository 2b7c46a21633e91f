# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test check native classes lint types format bench slow matrix torture interop suites guard docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-8s %s\n' "$$name" "$$what"; done

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' # a Python that the pins do not know
	@touch $@

setup: $(VENV)/.ready ## make the virtual environment and install shardmill in it

demo: $(VENV)/.ready ## mill the bundled sample and check the result
	@$(BIN)/python tools/demo.py

test: check lint types ## everything: lint, types and all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs

check: $(VENV)/.ready native

native: ## compile what is written in C, if there is a compiler
	@$(PYTHON) hatch_build.py

lint: $(VENV)/.ready ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready ## mypy --strict
	$(BIN)/mypy

format: $(VENV)/.ready ## let ruff format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready native ## measure speed and memory; BENCH_TEXT=file.txt for a text of your own
	$(BIN)/python tools/bench.py $(BENCH_TEXT)

slow: $(VENV)/.ready ## the tests that take minutes
	$(BIN)/python -m pytest -m slow -rs

matrix: $(VENV)/.ready native ## options two at a time against an oracle; CELLS=20000 SEED=1 for more and others
	$(BIN)/python tools/matrix.py --cells $(or $(CELLS),1000) --seed $(or $(SEED),0)

torture: $(VENV)/.ready ## kill jobs a thousand times and compare every byte; KILLS=10000 SEED=1 for more and others
	$(BIN)/python tools/torture.py --kills $(or $(KILLS),1000) --seed $(or $(SEED),0)

interop: $(VENV)/.ready ## let the real readers of every format read our files; installs each, some gigabytes, under .interop
	$(BIN)/python tools/interop.py

suites: $(VENV)/.ready ## JSONTestSuite and parquet-testing: JSON_SUITE=folder PARQUET_SUITE=folder
	$(BIN)/python tools/suites.py $(if $(JSON_SUITE),--json $(JSON_SUITE)) $(if $(PARQUET_SUITE),--parquet $(PARQUET_SUITE))

classes: $(VENV)/.ready ## write which class each character has for the installed tiktoken
	$(BIN)/python tools/make_classes.py

guard: $(VENV)/.ready native ## compute anew the table of code points on which the engines differ
	$(BIN)/python tools/make_guard.py

docs: $(VENV)/.ready ## write docs/cli.md from the commands' help
	$(BIN)/python tools/make_cli_docs.py

lock: $(VENV)/.ready ## write constraints.txt from what is installed
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^shardmill' > constraints.txt

clean: ## remove what make made
	rm -rf $(VENV) demo-data bench-results .mypy_cache .ruff_cache .pytest_cache .hypothesis
