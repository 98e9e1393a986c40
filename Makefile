# Every target does its own set-up. `make help` explains them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo up test sabotage check format lint types imports bench bench-quick eval chaos soak clean

help: ## Explain every target
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jiyi needs Python 3.11 or later; name one: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing jiyi and its development tools into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[server]" --group dev
	@touch $@

demo: $(INSTALLED) ## Set up, then run the whole pipeline once on example memories and show what it finds
	@$(BIN)/python examples/demo.py

up: $(INSTALLED) ## Run the service until Ctrl-C; the data stay
	@$(BIN)/jiyi up

test: $(INSTALLED) ## Run the whole test suite on real servers (JOBS= processes, two by default; each has servers of its own)
	@$(BIN)/python -m pytest --numprocesses $(if $(JIYI_TEST_REDIS_URL),0,$(or $(JOBS),2)) --dist loadfile

sabotage: $(INSTALLED) ## Plant defects, one at a time, in copies of the code, and require a test to notice each (ONLY=, JOBS=)
	@$(BIN)/python -m faults.sabotage $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS))

check: format lint types imports ## What CI runs before the tests: formatting, lint, types, import layers

format: $(INSTALLED) ## Check the formatting (ruff format . mends it)
	@$(BIN)/ruff format --check --quiet .

lint: $(INSTALLED) ## Check the lint rules
	@$(BIN)/ruff check --quiet .

types: $(INSTALLED) ## Check the types, strictly
	@$(BIN)/mypy

imports: $(INSTALLED) ## Check the import layers
	@$(BIN)/lint-imports --no-logo

bench: $(INSTALLED) ## Measure jiyi and its peers at 10,000, 100,000 and 500,000 documents, for docs/benchmarks.md (DOCUMENTS=)
	@$(BIN)/python -m benchmarks.peers
	@$(BIN)/python -m benchmarks.bench --publish --documents $(or $(DOCUMENTS),10000 100000 500000)

bench-quick: $(INSTALLED) ## The same at 20,000 documents, about five minutes; the report goes to build/
	@$(BIN)/python -m benchmarks.peers
	@$(BIN)/python -m benchmarks.bench --documents 20000

eval: $(INSTALLED) ## Measure on judged sets how well the right documents are found, beside what people build today (SETS=)
	@$(BIN)/python -m benchmarks.peers
	@$(BIN)/python -m benchmarks.quality $(SETS)

chaos: $(INSTALLED) ## Break a running service at random for minutes and prove that nothing is lost (SEED=, SECONDS=, WORKERS=)
	@$(BIN)/python -m faults.chaos $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(WORKERS),--workers $(WORKERS))

soak: $(INSTALLED) ## The same for as long as you say, an hour by default, with a check every 30 s (SECONDS=)
	@$(BIN)/python -m faults.chaos --soak --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED)) $(if $(WORKERS),--workers $(WORKERS))

clean: ## Remove the virtual environment and everything built
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
