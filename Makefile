# `make test` and `make demo` set up what they need, in an environment of their own, on a machine with Python and make.

PYTHON ?= python3
VENV ?= .venv
# processes that share the tests
WORKERS ?= 2
# damaged traces in `make fuzz`, about a hundred a second
CASES ?= 200000
# for `make test-oldest`: torch 2.4 has no builds for Python 3.13 and later
PYTHON_OLDEST ?= $(shell python3.10 --version >/dev/null 2>&1 && echo python3.10 || echo $(PYTHON))

BIN := $(VENV)/bin
OLDEST := .venv-oldest
READY := .perfhooks-ready

.DEFAULT_GOAL := help
.PHONY: help setup test demo lint types bench fuzz test-oldest clean distclean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "%-12s %s\n", $$1, $$2 }'

setup: $(VENV)/$(READY)  ## make the environment (about 6 GB, mostly torch); done once, and again when pyproject.toml changes

test: setup  ## run the tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

demo: setup  ## profile a ResNet-18 trained by Lightning
	$(BIN)/python examples/lightning_resnet18.py

lint: setup  ## check style and form
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## check types
	$(BIN)/mypy

bench: setup  ## measure what profiling costs, beside the peers
	$(BIN)/python benchmarks/run.py

fuzz: setup  ## damage traces in CASES ways: reading them never fails but with a TraceError
	$(BIN)/python benchmarks/fuzz.py --cases $(CASES)

test-oldest: $(OLDEST)/$(READY)  ## run the tests with the oldest torch that is supported
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal

clean:  ## remove what the tools leave behind, but no environment
	rm -rf dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## remove the environments as well
	rm -rf .venv $(OLDEST)

# The stamp is written last, so an installation that was interrupted is taken up again.
$(VENV)/$(READY): pyproject.toml
	$(call environment,$(PYTHON),$(VENV))
	$(BIN)/python -m pip install --editable '.[all]' --group dev
	touch $@

$(OLDEST)/$(READY): pyproject.toml
	$(call environment,$(PYTHON_OLDEST),$(OLDEST))
	$(OLDEST)/bin/python -m pip install --editable '.[all]' --group test 'torch==2.4.*' 'torchvision==0.19.*' 'numpy<2'
	touch $@

# $(call environment,python,folder): an empty environment, unless there is one. Dependency groups need pip 25.1.
define environment
@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "perfhooks needs Python 3.10 or later; see make PYTHON=...")'
test -x $(2)/bin/python || $(1) -m venv $(2)
$(2)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
endef
