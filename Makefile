# make setup   a virtual environment in .venv with the pinned requirements
# make test    lint, types, tests: what CI runs
# make drill   20 rounds of random faults of whole nodes, seeded: CI runs them, too
# make demo    trains a real model, breaks it before your eyes and shows that it ends as if nothing had happened
# make bench   every bar of bench/, in its quick form

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.set-up
TESTS  ?= tests
ROUNDS ?= 20

.PHONY: setup lint types test drill demo bench clean

setup: $(STAMP)

$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "closeranks needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 --dist loadfile $(TESTS)

drill: setup
	@why_not=$$($(BIN)/python -c 'from closeranks.drill.nodes.namespaces import why_not; print(why_not())') || why_not="see the error above"; \
	command -v etcd > /dev/null || why_not="etcd not found (Debian: etcd-server)"; \
	[ -z "$$why_not" ] || echo "links between nodes are not cut: $$why_not"; \
	links=$$([ -n "$$why_not" ] || echo --namespaces); \
	$(BIN)/closeranks drill-nodes --rounds $(ROUNDS) --seed 1 $$links -- tests/cluster/toy.py 40 50

demo: setup
	$(BIN)/python examples/demo.py

bench: setup
	@failed=0; for script in bench/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script --quick || failed=1; done; exit $$failed

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
