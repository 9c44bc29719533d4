# Every target sets up what it needs by itself from a bare python3.
#   make conform                    the recorded experiments, then the specification and its fast twin judged
#   make conform ENGINE=NAME        the same with transformers, llama.cpp, mlx, ctranslate2 or onnxruntime-genai, in all
#                                   their variants; each is installed into an environment of its own below .venvs/
#   make test                       linters, types, tests, goldens, byte-for-byte regeneration
#   make mutants                    the kill matrix: every known defect against every record
PYTHON ?= python3
ENGINE ?= fast
REPORT ?=
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check

# Folder below reference/conformance/adapters of an engine that is installed apart.
FOLDER_transformers := transformers_hf
FOLDER_llama.cpp := llama_cpp
FOLDER_mlx := mlx
FOLDER_ctranslate2 := ctranslate2
FOLDER_onnxruntime-genai := onnxruntime_genai
FOLDER_openvino-genai := openvino_genai
FOLDER := $(FOLDER_$(ENGINE))

.PHONY: conform test mutants regen bench lint clean

conform: $(VENV)/.base $(if $(REPORT),$(VENV)/.report) $(if $(FOLDER),.venvs/$(FOLDER)/.ready)
	$(RUN) -m reference batching
	$(RUN) -m reference sweep
	$(RUN) -m reference speculation
	$(RUN) -m reference check --engine spec --engine '$(ENGINE)*' $(if $(REPORT),--report $(REPORT))

test: lint
	$(RUN) -m pytest tests -n 2 --cov --cov-report=term --cov-fail-under=95
	$(RUN) -m pytest golden -q
	$(RUN) -m pytest golden -q --engine fast
	$(RUN) -m pytest golden -q --engine fast64
	$(RUN) -m pytest golden -q -n 2 --engine hosted-spec
	$(RUN) -m pytest golden -q -n 2 --engine hosted-fast
	$(RUN) tools/check_bytes.py
	$(RUN) tools/rules_page.py --check
	$(RUN) tools/mutants_page.py --check
	$(RUN) tools/tolerances.py --check

# Every mutant against every record, and what the docs say of it; make test only looks whether the pages are true.
mutants: $(VENV)/.dev
	$(RUN) tools/mutate.py
	$(RUN) tools/rules_page.py
	$(RUN) tools/mutants_page.py
	$(RUN) tools/tolerances.py

lint: $(VENV)/.dev
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

regen: $(VENV)/.base
	$(RUN) tools/regen.py

bench: $(VENV)/.bench $(VENV)/.transformers .venvs/llama_cpp/.ready
	$(RUN) tools/bench.py

clean:
	rm -rf $(VENV) .venvs

$(VENV)/.base: setup.cfg
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev $(VENV)/.report $(VENV)/.bench $(VENV)/.transformers: $(VENV)/.%: $(VENV)/.base
	$(PIP) --constraint .ci/constraints.txt --editable '.[$*]'
	touch $@

.venvs/%/.ready: reference/conformance/adapters/%/requirements.txt
	$(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@
