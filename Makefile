# make demo   train three models, decode with their ensemble    make test      the fast tests
# make lint   ruff, mypy, and the workflows of hosted CI         make test-slow, make test-all  the slow ones; all
# make package  build the sdist and the wheel, check them, and install the wheel elsewhere
# make docs   the pages as a site; a link that leads nowhere is an error
# make fuzz   1,000 damaged and malicious inputs of each reader; make fuzz FUZZ="text cases=100"
# make mutants  plant small faults in copies of the code, which the fast tests must find
# make soak   kill a job of 200,000 lines 100 times; its output must not change
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check

# cpu: PyTorch without the CUDA libraries of several GB, which only a machine with an NVIDIA GPU needs
TORCH ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
TORCH_INDEX = $(if $(filter cpu,$(TORCH)),--retries 2 --timeout 20 --extra-index-url https://download.pytorch.org/whl/cpu)

.PHONY: install demo test test-slow test-all fuzz mutants soak lint docs package clean

install: $(VENV)/installed

# torch goes first and alone: the versions that follow must not make pip look for another build of it
$(VENV)/package: setup.py constraints.txt
	@echo "installing PyTorch ($(TORCH)) and seqgen into $(VENV): about a minute"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH_INDEX) --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed: $(VENV)/package
	@echo "installing what the tests need: about two minutes"
	$(PIP) install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

demo: $(VENV)/package
	$(BIN)/python examples/demo.py

# a process for each core, in which PyTorch has one thread
TESTS = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

test: install
	$(TESTS) -m "not slow and not nightly"

test-slow: install
	$(TESTS) -m "slow and not nightly"

test-all: install
	$(TESTS)

# tests/fuzzing/__init__.py explains the arguments
fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzzing $(FUZZ)

# make mutants ONLY=finished.py plants only the faults whose file, reason or tests contain the word
mutants: install
	nice -n 5 $(BIN)/python -m tests.mutants $(ONLY)

# about half an hour on two cores; make soak SOAK="kills=20 lines=20000"
soak: install
	OMP_NUM_THREADS=1 nice -n 5 $(BIN)/python -m tests.addons.jobs.soak $(SOAK)

# mypy finds models/, tasks/ and cli/ as parts of seqgen only in a copy that is not installed as editable; it sees nothing
# of the checkout, so that a package which the installation leaves out is an error
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build && $(PIP) install --quiet --no-deps --no-build-isolation --target build/lint .
	cp -r examples build/lint
	$(BIN)/zizmor --offline --quiet .github/workflows
	cd build/lint && ../../$(BIN)/mypy --config-file ../../pyproject.toml \
		--python-executable ../../$(BIN)/python -p seqgen -p examples
	rm -rf build

docs: $(VENV)/package
	$(PIP) install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/mkdocs build --quiet --strict --site-dir site
	@echo "open site/index.html"

# TORCH_INDEX is used again, because nothing of .venv is
package:
	rm -rf build dist && mkdir -p build
	$(PYTHON) -m venv build/tools && build/tools/bin/python -m pip install --quiet build twine
	build/tools/bin/python -m build --quiet . && build/tools/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/elsewhere
	build/elsewhere/bin/python -m pip install --quiet $(TORCH_INDEX) --constraint constraints.txt torch
	build/elsewhere/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && elsewhere/bin/seqgen-generate --version && elsewhere/bin/python -c "import seqgen; seqgen.Translator"
	rm -rf build

clean:
	rm -rf $(VENV) build dist site *.egg-info
