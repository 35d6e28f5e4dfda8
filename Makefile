# make demo   train, decode and score the built-in example      make test      the fast tests
# make lint   ruff and mypy                                      make test-all  the slow and the nightly ones too
# make fuzz   1,000 damaged and malicious inputs of each reader; make fuzz FUZZ="text cases=100"
# make mutants  plant small faults in copies of the code, which the fast tests must find
# make soak   kill a job of 200,000 lines 100 times; its output must not change
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install demo test test-all fuzz mutants soak lint clean

install: $(VENV)/installed

# torch goes first and alone: the versions that follow must not make pip look for another build of it
$(VENV)/installed: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

demo: install
	$(BIN)/python examples/demo.py

# a process for each core, in which PyTorch has one thread
TESTS = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

test: install
	$(TESTS) -m "not slow and not nightly"

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
	cd build/lint && ../../$(BIN)/mypy --config-file ../../pyproject.toml \
		--python-executable ../../$(BIN)/python -p seqgen -p examples
	rm -rf build

clean:
	rm -rf $(VENV) build *.egg-info
