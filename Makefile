# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
INSTALL := $(PIP) -e '.[hub,s3,gcs]' --group dev

.DEFAULT_GOAL := help
.PHONY: help setup demo test check native classes lint types format coverage pythons sanitize fuzz neon bench bench-cores bench-tokenizers compare picture slow matrix torture interop suites docs faces bench-feed dist wheels docker-steps lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-8s %s\n' "$$name" "$$what"; done

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1' # the first that knows dependency groups
	$(INSTALL) -c constraints.txt || $(INSTALL) # the pins are for one Python; others get what fits them
	@touch $@

setup: $(VENV)/.ready ## create the virtual environment and install shardmill in it

demo: $(VENV)/.ready ## tokenize the bundled sample and check the result
	@$(BIN)/python tools/demo.py

test: check lint types ## lint, types and all fast tests
	$(BIN)/python -m pytest -n 3 --dist worksteal -rs

check: $(VENV)/.ready native

native: ## compile the C sources
	@$(PYTHON) hatch_build.py

lint: $(VENV)/.ready ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready ## mypy --strict
	$(BIN)/mypy

format: $(VENV)/.ready ## format the code with ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

slow: $(VENV)/.ready native ## the tests that take minutes
	$(BIN)/python -m pytest -m slow -rs

coverage: $(VENV)/.ready native ## the lines that the fast tests do not run; TESTS="tests/test_cli.py ..." for some of them
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

pythons: native ## the fast tests on each of Python 3.10 to 3.13 that is installed; TESTS="..." for some of them
	@$(PYTHON) tools/pythons.py $(TESTS)

sanitize: $(VENV)/.ready ## run the C under AddressSanitizer, UBSan and ThreadSanitizer; SECONDS_EACH=300 SEED=1 for more
	$(BIN)/python tools/sanitize.py --seconds $(or $(SECONDS_EACH),60) --seed $(or $(SEED),0)

fuzz: $(VENV)/.ready native ## random texts through the native engine, against the references; SECONDS_EACH=600 SEED=1 for more
	$(BIN)/python tools/fuzz_engine.py --seconds $(or $(SECONDS_EACH),60) --seed $(or $(SEED),0)

neon: $(VENV)/.ready native ## the engine for 64-bit ARM in an emulator, against the one of this machine; TEXTS=1000 SEED=1 for more
	$(BIN)/python tools/neon.py --texts $(or $(TEXTS),100) --seed $(or $(SEED),0)

matrix: $(VENV)/.ready native ## pairs of options against an oracle; CELLS=20000 SEED=1 for more and different cells
	$(BIN)/python tools/matrix.py --cells $(or $(CELLS),1000) --seed $(or $(SEED),0)

torture: $(VENV)/.ready ## kill jobs a thousand times and compare every byte; KILLS=10000 SEED=1 for more and different kills
	$(BIN)/python tools/torture.py --kills $(or $(KILLS),1000) --seed $(or $(SEED),0)

interop: $(VENV)/.ready faces ## read our files with each format's own reader, and run faces; installs some gigabytes under .interop
	$(BIN)/python tools/interop.py

suites: $(VENV)/.ready ## JSONTestSuite and parquet-testing: JSON_SUITE=folder PARQUET_SUITE=folder
	$(BIN)/python tools/suites.py $(if $(JSON_SUITE),--json $(JSON_SUITE)) $(if $(PARQUET_SUITE),--parquet $(PARQUET_SUITE))

faces: native ## torch, torchdata, Grain, datasets, transformers and TRL on our files, and the example trainer; installs them under .faces
	test -x .faces/bin/python || $(PYTHON) -m venv .faces
	.faces/bin/python -m pip install -qq --disable-pip-version-check -e . torch torchdata grain datasets transformers accelerate trl hypothesis pytest
	.faces/bin/python -m pytest tests/faces -rs

bench-feed: $(VENV)/.ready native ## measure the loader and the packer; with torch installed, nanoGPT's get_batch too
	$(BIN)/python tools/bench_feed.py

bench: $(VENV)/.ready native ## measure speed and memory; BENCH_TEXT=file.txt TOKENIZER=tokenizer.json for your own
	$(BIN)/python tools/bench.py $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(BENCH_TEXT)

bench-cores: $(VENV)/.ready native ## measure what keeps more cores from helping; BENCH_TEXT=file.txt TOKENIZER=tokenizer.json for your own; SCALE=1,2,4,8 for the speed of each number of workers; AGAINST=../before to compare with another checkout
	$(BIN)/python tools/bench_cores.py $(if $(SCALE),--scale $(SCALE),$(if $(AGAINST),--against $(AGAINST),--write)) $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(BENCH_TEXT)

bench-tokenizers: $(VENV)/.ready native ## measure every tokenizer beside gigatoken: TOKENIZERS=folder or names, TEXTS=folder
	$(BIN)/python tools/bench_tokenizers.py $(TOKENIZERS) $(TEXTS)
	$(BIN)/python tools/bad_cases.py $(TOKENIZERS) $(TEXTS)

compare: $(VENV)/.ready native ## measure what people use instead, too: BENCH_TEXT=file.txt; installs each under .compare
	$(BIN)/python tools/compare.py --write $(BENCH_TEXT)

picture: $(VENV)/.ready native ## draw docs/images/run.svg from a real run; BENCH_TEXT=file.txt for a text of your own
	$(BIN)/python tools/make_picture.py $(BENCH_TEXT)

classes: $(VENV)/.ready native ## add the installed tiktoken and tokenizers to the tables of character classes
	$(BIN)/python tools/make_classes.py

docs: $(VENV)/.ready ## write docs/cli.md from the commands' help
	$(BIN)/python tools/make_cli_docs.py

dist: $(VENV)/.ready ## build the sdist and the wheel in dist/ and check them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

wheels: ## build a wheel for each kind of machine in dist/ with zig, and check them
	$(PYTHON) tools/wheels.py

docker-steps: $(VENV)/.ready ## the steps of the Dockerfile without Docker, in empty folders
	$(BIN)/python tools/docker_steps.py

lock: $(VENV)/.ready ## write constraints.txt from the installed packages
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^shardmill' > constraints.txt

clean: ## remove everything that make created
	rm -rf $(VENV) .pythons .wheels build demo-data bench-results dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
