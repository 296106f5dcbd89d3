# `make demo` shows what Voxelocity does, `make test` proves it, `make test-all` adds the long trials and our own
# benchmarks, and `make check` is the quick look before a commit.
# Each makes .venv when it is missing or older than a pyproject.toml or constraints.txt, and spends no time on it otherwise.
PYTHON ?= python3
# make demo SEEDS=5: the careful race in place of the demo of two minutes, this many trainings of each side.
SEEDS ?=
VENV := .venv
BIN := $(VENV)/bin
# Processes that run the tests: most of them keep one core busy.
PROCESSES ?= 2
STAMP := $(VENV)/.installed
PROJECTS := $(wildcard packages/*/pyproject.toml)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e packages/voxelocity-observe -e packages/voxelocity

.PHONY: demo test test-all check docs wheels loops clean

demo: loops
	$(BIN)/voxelocity demo $(if $(SEEDS),--seeds $(SEEDS))

test: check loops
	$(BIN)/pytest -n $(PROCESSES) --dist loadfile

# -m "" runs the tests marked nightly too.
test-all: check loops
	VOXELOCITY_THOROUGH=1 $(BIN)/pytest -n $(PROCESSES) --dist loadfile -m ""

docs: $(STAMP)
	@test -x $(BIN)/mkdocs || $(INSTALL) -e 'packages/voxelocity-lab[dev,docs]'
	$(BIN)/mkdocs build --quiet --strict

# Installs each wheel into a fresh environment and uses it there.
wheels: $(STAMP)
	$(BIN)/python packages/voxelocity-lab/benchmarks/wheels.py

# Compiles the C loops again if their sources changed since the installation.
loops: $(STAMP)
	@$(BIN)/python -m voxelocity.core.build_loops

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(STAMP): $(PROJECTS) constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v[:2] < (3, 14) else f"make: {sys.executable} is Python {v[0]}.{v[1]}; Voxelocity needs 3.11 to 3.13: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e 'packages/voxelocity-lab[dev]'
	@touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
