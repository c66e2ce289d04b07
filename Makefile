# `make test` and `make demo` set up what they need, in an environment of their own, on a machine with Python and make.

PYTHON ?= python3
VENV ?= .venv
# processes that share the tests: three on two cores, because many tests wait for processes that they have started
WORKERS ?= 3
# damaged traces in `make fuzz`, about three hundred a second
CASES ?= 200000
# and of what instead of traces and run folders: "baselines calls requests"
OF ?=
# windows of `make endurance`
WINDOWS ?= 10000
# mutants in `make mutants`: how many, of which room (all of them if empty), which ones, and how many at once
N ?= 100
ROOM ?=
SEED ?= 0
JOBS ?= 2
# anything: find out again which test enters which line
MAP ?=
# for `make test-oldest`: torch 2.4 has no builds for Python 3.13 and later
PYTHON_OLDEST ?= $(shell python3.10 --version >/dev/null 2>&1 && echo python3.10 || echo $(PYTHON))

# what `make dist` runs without torch: reading, showing and reporting
TORCHLESS := $(addprefix tests/test_,trace.py kernels.py collectives.py waits.py \
	intervals.py nesting.py cli_show.py flame.py ranks.py without_torch.py)
TORCHLESS_NEEDS := 'pytest>=9,<10' 'hypothesis>=6.120,<7'

BIN := $(VENV)/bin
OLDEST := .venv-oldest
READY := .perfhooks-ready

.DEFAULT_GOAL := help
.PHONY: help setup check test nightly durations demo lint types pages docs dist bench fuzz endurance mutants drop-in test-oldest clean distclean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "%-12s %s\n", $$1, $$2 }'

setup: $(VENV)/$(READY)  ## make the environment (about 6 GB, mostly torch); done once, and again when pyproject.toml changes

check: setup lint types  ## lint, types and all tests that start nothing, in a minute
	$(BIN)/python -m pytest --level check -n $(WORKERS) --dist worksteal

test: setup  ## everything that must pass on your machine
	$(BIN)/python -m pytest --level test -n $(WORKERS) --dist worksteal

nightly: setup  ## simulations, clusters, object stores, many random ends, the tools themselves
	$(BIN)/python -m pytest --level nightly -n $(WORKERS) --dist worksteal

durations: setup  ## the durations of all tests, by kind and file
	mkdir -p dist
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --junitxml dist/durations.xml; \
	$(BIN)/python benchmarks/durations.py dist/durations.xml

demo: setup  ## profile a ResNet-18 trained by Lightning
	$(BIN)/python examples/lightning_resnet18.py

lint: setup  ## check style and form
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## check types
	$(BIN)/mypy

pages: setup  ## renew the generated parts of the documentation
	$(BIN)/python docs/generated.py

docs: setup  ## build the documentation site into dist/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

dist: setup  ## build the wheel and try it in an empty environment, without torch
	rm -rf dist/*.whl dist/*.tar.gz dist/venv
	$(BIN)/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl $(TORCHLESS_NEEDS)
	! dist/venv/bin/python -c 'import torch' 2>/dev/null
	cd dist && venv/bin/perfhooks --help >/dev/null && venv/bin/perfhooks schedule "wait=1 warmup=1 active=2" >/dev/null
	dist/venv/bin/python -m pytest -q -p no:cacheprovider --override-ini addopts=--strict-markers $(TORCHLESS)

bench: setup  ## measure what profiling costs, beside the peers
	$(BIN)/python benchmarks/run.py

fuzz: setup  ## damage traces and run folders (or OF others) in CASES ways: all is made of them, or one line says why not
	$(BIN)/python benchmarks/fuzz.py --cases $(CASES) $(if $(OF),--of $(OF))

endurance: setup  ## disturb and kill a training of WINDOWS windows at random: results, exit codes and windows are as they should be
	$(BIN)/python benchmarks/endurance.py --windows $(WINDOWS) --seed $(SEED)

mutants: $(VENV)/.mutants-ready  ## change N things (of ROOM), one at a time, and list the changes that no test notices
	$(BIN)/python benchmarks/mutants.py --count $(N) --seed $(SEED) --jobs $(JOBS) $(if $(ROOM),--room $(ROOM)) $(if $(MAP),--map-again)

drop-in: setup  ## the same code with torch's profiler and with ours; TORCH_TESTS=.../test_profiler.py: its own tests as well
	$(BIN)/python -m pytest tests/test_torch_parity.py tests/test_torch_face.py
	$(if $(TORCH_TESTS),$(BIN)/python benchmarks/drop_in.py $(TORCH_TESTS))

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
	$(call first,$(VENV))
	touch $@

$(VENV)/.mutants-ready: $(VENV)/$(READY)
	$(BIN)/python -m pip install --quiet --group mutants
	touch $@

$(OLDEST)/$(READY): pyproject.toml
	$(call environment,$(PYTHON_OLDEST),$(OLDEST))
	$(OLDEST)/bin/python -m pip install --editable '.[all]' --group test 'torch==2.4.*' 'torchvision==0.19.*' 'numpy<2' \
		'transformers==4.48.*' 'trl<1' 'polars==1.24.*' 'msgspec==0.19.*' 'plotly==6.0.*' 'rich==13.7.*' \
		'typer==0.15.*' 'fsspec==2024.2.*' 'filelock==3.12.*' 'psutil==6.0.*'
	$(call first,$(OLDEST))
	touch $@

# $(call first,folder): what only one process may be the first to import. yapf, which mmengine needs, then keeps its grammar
# in a file, and another process that reads the half of it fails.
define first
$(1)/bin/python -c 'import yapf'
endef

# $(call environment,python,folder): an empty environment, unless there is one. Dependency groups need pip 25.1.
define environment
@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "perfhooks needs Python 3.10 or later; see make PYTHON=...")'
test -x $(2)/bin/python || $(1) -m venv $(2)
$(2)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
endef
