# `make demo` and `make test` work on a machine that has nothing but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# DeepSpeed and Megatron-core, which other libraries behave differently beside: only their own tests look there.
FRAMEWORKS := $(VENV)/frameworks
# Pinned for development: the newest torch pulls gigabytes of CUDA. The package itself takes torch >= 2.6.
TORCH := torch==2.13.0

.PHONY: setup demo test test-all test-platforms lint docs dist bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/dev-requirements scripts/framework-requirements
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . -r scripts/dev-requirements
	$(PYTHON) -m venv $(FRAMEWORKS)
	echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
	  > $$($(FRAMEWORKS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check setuptools wheel
	DS_BUILD_OPS=0 $(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
	  -r scripts/framework-requirements || echo "no DeepSpeed and Megatron-core for this Python: their tests are skipped"
	touch $@

demo: setup
	$(BIN)/python examples/demo.py

# Without the tests that are long and seldom the first to fail; test-all runs those as well.
test: setup
	./scripts/install-system-packages
	$(BIN)/python -m pytest -n 3 --dist worksteal --ignore=tests/platforms -m "not thorough" $(ARGS)

test-all: setup
	./scripts/install-system-packages
	$(BIN)/python -m pytest -n 3 --dist worksteal --ignore=tests/platforms $(ARGS)

# Real platforms. Each has scripts/install-NAME, which installs what is missing, and tests/platforms/test_NAME_*.py or tests/platforms/NAME/.
PLATFORMS ?= slurm k8s browser tensorflow ray

test-platforms: setup $(addprefix test-platform-,$(PLATFORMS))

test-platform-%: setup
	./scripts/install-system-packages
	./scripts/install-$*
	$(BIN)/python -m pytest $(wildcard tests/platforms/test_$*_*.py tests/platforms/$*) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site has an environment of its own: it imports nothing of ours.
DOCS := $(VENV)/docs

$(DOCS)/.ready: scripts/docs-requirements
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	$(PYTHON) scripts/check-site build/site

dist:
	./scripts/build-dist

bench: setup
	$(BIN)/python benchmarks/control_plane.py
	$(BIN)/python benchmarks/idle_agent.py
	$(BIN)/python benchmarks/node_loss.py
	$(BIN)/python benchmarks/recovery.py

clean:
	rm -rf $(VENV) build dist
