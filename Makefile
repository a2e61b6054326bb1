# From nothing, with python3 (3.11 or later) and make: `make quickstart` or `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TRITON := $(VENV)/.triton

.PHONY: quickstart test lint format bench clean

quickstart: $(INSTALLED)
	$(BIN)/splash quickstart

# One thread a worker: two workers of two threads would fight for the same cores.
test: lint $(TRITON)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/splash bench

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "splash-units needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0])'
	@echo "Setting up $(VENV); the first time this fetches torch and takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[lab,plot,onnx,dev]"
# The dash: without a C++ compiler everything still works, only slower.
	-@$(BIN)/python -m splash_units.kernels.native
	@touch $@

# For tests of the GPU kernel, in Triton's interpreter; too large a download for a quick start.
$(TRITON): $(INSTALLED) requirements/triton.txt
	$(BIN)/python -m pip install -qq --no-deps --requirement requirements/triton.txt
	@touch $@
