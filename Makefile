# Each target sets up everything it needs in .venv, from nothing.
PY     ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# pip may be configured with a folder of local wheels (a CPU build of torch, say);
# uv does not read pip's settings, so hand that one on. Empty on most machines.
FIND_LINKS := $(or $(PIP_FIND_LINKS),$(shell $(PY) -m pip config get global.find-links 2>/dev/null))
UVFLAGS := $(addprefix --find-links=,$(FIND_LINKS))
UV      = $(BIN)/uv pip install -q --python $(BIN)/python $(UVFLAGS) -c constraints.txt
# Two threads spinning for one free core make torch some 17 times slower.
export OMP_WAIT_POLICY ?= PASSIVE
export RAY_USAGE_STATS_ENABLED ?= 0
export MPLBACKEND ?= Agg

.PHONY: openrecon demo test test-deepinv test-wheel lint bench docs release clean

$(VENV)/.uv:
	$(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -q uv==0.13.7
	@touch $@

$(VENV)/.demo: $(VENV)/.uv pyproject.toml constraints.txt
	$(UV) -e '.[demo]'
	@touch $@

# Compiled at once: tests start processes by the hundred; a demo imports a fraction of it, once.
$(VENV)/.test: $(VENV)/.uv pyproject.toml constraints.txt
	$(UV) --compile-bytecode -e '.[demo,ray,slurm,tensorboard,nifti,dicom,mrd,test,oracle,lint,docs]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/taskuq demo -o runs/demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two tests at a time; each computes with one thread, as does what it starts.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --durations=20

bench: $(VENV)/.test
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m benchmarks

docs: $(VENV)/.test
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html

# The deepinv adapter in an environment of its own: deepinv needs torchvision.
test-deepinv: $(VENV)/.uv
	$(PY) -m venv $(VENV)-deepinv
	$(BIN)/uv pip install -q --python $(VENV)-deepinv/bin/python $(UVFLAGS) -c constraints.txt -e '.[mri,deepinv,test]'
	$(VENV)-deepinv/bin/python -m pytest -q tests/test_deepinv.py tests/measure/test_tomography.py \
		"tests/test_examples.py::test_example_runs[deepinv]"

# The built wheel alone, in an empty environment and far from the sources. Without the removal of
# build/lib, setuptools would pack what an earlier build left there.
test-wheel: $(VENV)/.uv
	rm -rf build/lib build/wheel $(VENV)-wheel
	$(BIN)/uv build -q --wheel --python $(BIN)/python $(UVFLAGS) -o build/wheel .
	$(PY) -m venv $(VENV)-wheel
	$(BIN)/uv pip install -q --python $(VENV)-wheel/bin/python $(UVFLAGS) \
		-c constraints.txt "$$(ls build/wheel/*.whl)[demo]"
	mkdir -p build/wheel/elsewhere
	cd build/wheel/elsewhere && $(abspath $(VENV))-wheel/bin/taskuq demo --fast -o demo
	test -s build/wheel/elsewhere/demo/report.html

# The checklist of a release, in an environment of its own; uploads nothing.
release: $(VENV)/.uv
	$(PY) -m venv $(VENV)-release
	$(BIN)/uv pip install -q --python $(VENV)-release/bin/python -c constraints.txt 'build>=1.2' 'twine>=6' uv==0.13.7
	$(VENV)-release/bin/python -m studies.release

# OpenRecon's package: an image that carries the label, its archive, and both in one zip.
OPENRECON := OpenRecon_taskuq_taskuq_V0.1.0
openrecon: $(VENV)/.demo
	@command -v docker >/dev/null || { echo "make openrecon needs docker"; exit 1; }
	mkdir -p dist/openrecon
	docker build -f deploy/Containerfile -t $(shell echo $(OPENRECON) | tr A-Z a-z) --label \
		"com.siemens-healthineers.magneticresonance.openrecon.metadata:1.1.0=$$(base64 -w0 deploy/OpenReconLabel.json)" .
	docker save -o dist/openrecon/$(OPENRECON).tar $(shell echo $(OPENRECON) | tr A-Z a-z)
	$(BIN)/python deploy/manual.py docs/how-to/service.md dist/openrecon/$(OPENRECON).pdf
	cd dist/openrecon && $(PY) -m zipfile -c $(OPENRECON).zip $(OPENRECON).tar $(OPENRECON).pdf

clean:
	rm -rf $(VENV) build dist docs/_build docs/_made .pytest_cache .mypy_cache .ruff_cache
