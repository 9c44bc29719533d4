# Every target sets up .venv by itself from a bare python3.
#   make conform                        the recorded experiments, then the specification and its fast twin judged
#   make conform ENGINE=transformers    the same with Hugging Face transformers (installs torch)
#   make test                           linters, types, tests, goldens, byte-for-byte regeneration
PYTHON ?= python3
ENGINE ?= fast
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check

.PHONY: conform test regen bench lint clean

conform: $(VENV)/.base $(if $(filter transformers,$(ENGINE)),$(VENV)/.transformers)
	$(RUN) -m reference batching
	$(RUN) -m reference sweep
	$(RUN) -m reference speculation
	$(RUN) -m reference check --engine spec --engine $(ENGINE)

test: lint
	$(RUN) -m pytest tests -n 2 --cov --cov-report=term --cov-fail-under=95
	$(RUN) -m pytest golden -q
	$(RUN) -m pytest golden -q --engine fast
	$(RUN) -m pytest golden -q --engine fast64
	$(RUN) tools/check_bytes.py

lint: $(VENV)/.dev
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

regen: $(VENV)/.base
	$(RUN) tools/regen.py

bench: $(VENV)/.bench $(VENV)/.transformers
	$(RUN) tools/bench.py

clean:
	rm -rf $(VENV)

$(VENV)/.base: setup.cfg
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev $(VENV)/.bench $(VENV)/.transformers: $(VENV)/.%: $(VENV)/.base
	$(PIP) --constraint .ci/constraints.txt --editable '.[$*]'
	touch $@
