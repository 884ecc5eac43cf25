# MOSAIC. `make` lists the targets; everything is installed into .venv/ and nowhere else.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin

# ---------------------------------------------------------------- what the targets do; override on the command line

# Flags of the reference training; more of them: make train ARGS="--seed 3 --total-timesteps 200000"
TRAIN_FLAGS := --eval-episodes 20 --expect-return 475
ARGS :=

# Flags of pytest; fewer tests: make test PYTEST_ARGS="-k registry"
PYTEST_ARGS :=
# Four processes for two cores, because tests of daemons mostly wait. loadfile keeps the tests of one module in one
# process; in which order the modules come conftest.py says (the longest first), and xdist is not to change it.
JOBS := 4
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Bytecode of our own sources is kept, whatever the shell says: without it each of the thousand processes that the tests
# start would compile them again (0.2 s of CPU for a daemon).
unexport PYTHONDONTWRITEBYTECODE

# A checkout of CleanRL that our algorithms are measured against: make bench UPSTREAM=~/cleanrl
export UPSTREAM ?=

TYPED := conftest.py packages/mosaic_wire/mosaic_wire packages/mosaic_extras/mosaic_extras packages/gym_gui/gym_gui \
  workers/random_worker/random_worker workers/cleanrl_worker/cleanrl_worker workers/human_worker/human_worker \
  workers/llm_worker/llm_worker workers/spade_bdi_worker/spade_bdi_worker workers/sweep_worker/sweep_worker

PROTO_OUT := packages/mosaic_wire

# ---------------------------------------------------------------- installation

# A stamp is younger than what it was made from exactly when nothing has to be installed.
MADE := $(VENV)/.made
TRAIN_READY := $(VENV)/.train-ready
GUI_READY := $(VENV)/.gui-ready
TEST_READY := $(VENV)/.test-ready
# Where tests look for requirement sets (cleanrl_worker/testing.py); one they miss they install themselves.
TEST_SETS := $(VENV)/test-sets
PROJECTS := $(wildcard packages/*/pyproject.toml workers/*/pyproject.toml)

# setuptools comes first and is pinned, so that no build has to fetch a build environment of its own.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
PIP_INSTALL := $(PIP) install --no-build-isolation

FIND_PYTHON = for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python); do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then echo "$$candidate"; exit; fi; done

$(MADE):
	@python="$$($(FIND_PYTHON))"; if [ -z "$$python" ]; then \
	  echo "MOSAIC needs Python 3.11 or newer with its venv module; install it, or name one: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; fi; \
	echo "Making $(VENV) with $$("$$python" --version) …"; \
	"$$python" -m venv $(VENV)
	@$(PIP) install -c requirements/constraints.txt setuptools
	@touch $@

$(TRAIN_READY): $(MADE) $(addprefix requirements/,constraints.txt base.txt cleanrl_worker.txt sweep_worker.txt llm_worker.txt) $(PROJECTS)
	@echo "Installing what training needs into $(VENV) (about 1 GB, a minute or two) …"
	@$(PIP_INSTALL) -r requirements/cleanrl_worker.txt -r requirements/sweep_worker.txt \
	  -r requirements/llm_worker.txt
	@touch $@

$(GUI_READY): $(TRAIN_READY) requirements/gui.txt tools/qt_libraries.sh
	@tools/qt_libraries.sh
	@echo "Installing Qt and what else the window needs into $(VENV) (550 MB) …"
	@$(PIP_INSTALL) -r requirements/gui.txt
	@touch $@

$(TEST_READY): $(GUI_READY) requirements/dev.txt
	@tools/qt_libraries.sh --tests
	@echo "Installing the test and lint tools into $(VENV) …"
	@$(PIP_INSTALL) -r requirements/dev.txt
	@$(BIN)/python -m pip check
	@echo "Installing the requirement sets that tests use into $(TEST_SETS) (775 MB) …"
	@$(BIN)/python -m mosaic_extras.install_extras --home $(TEST_SETS) --set agentspeak,atari,llama_cpp,minigrid,mujoco,spade,video,wandb
	@touch $@

# ---------------------------------------------------------------- targets

.PHONY: help train gui test test-all check format bench proto clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

train: $(TRAIN_READY) ## train PPO on CartPole-v1 through the daemon, evaluate it, fail below 475 (ARGS="more flags")
	@$(BIN)/mosaic train ppo CartPole-v1 $(TRAIN_FLAGS) $(ARGS)

gui: $(GUI_READY) ## open the window (ARGS="--theme dark", ARGS="--connect host:port --tls-ca ca.pem --token-file token")
	@$(BIN)/mosaic gui $(ARGS)

test: check ## what CI runs: lint, types, import contracts, spelling, the quick tests (PYTEST_ARGS="more flags")
	@$(PYTEST) -m "not slow and not fault and not gpu" $(PYTEST_ARGS)

test-all: check ## the same with the slow tests and the long fault tests
	@$(PYTEST) -m "not gpu" $(PYTEST_ARGS)

check: $(TEST_READY) ## lint, types, import contracts, spelling
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/codespell

format: $(TEST_READY) ## format the code and repair what ruff can
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

bench: $(TEST_READY) ## run every benchmark; each prints one table of ratios (UPSTREAM=a checkout of CleanRL)
	@for script in $$(grep -l __main__ benchmarks/*.py); do echo "== $$script"; $(BIN)/python "$$script"; done

proto: $(TEST_READY) ## regenerate the protocol stubs from trainer.proto
	@$(BIN)/python -m grpc_tools.protoc -Ipackages/mosaic_wire \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=$(PROTO_OUT) --grpc_python_out=$(PROTO_OUT) --mypy_out=quiet:$(PROTO_OUT) --mypy_grpc_out=quiet:$(PROTO_OUT) \
	  mosaic_wire/proto/trainer.proto

clean: ## remove .venv and caches; var/ (runs and their results) stays
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -path ./var -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
