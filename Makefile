# One private environment, made from nothing: Python 3.11+, git, make and the package registries are enough.
PYTHON ?= python3
VENV := .venv
PARTS := .parts
BIN := $(VENV)/bin
# More than cores: many tests wait for a process, a timer or a socket.
JOBS ?= 4
# Tests start hundreds of Python processes: what is compiled once is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup test check bench demo docs conformance faults console clean

$(VENV)/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev --editable ".[all]"
	$(BIN)/python -m compileall -q src
	touch $@

# What is not on PyPI, without root, into a private folder. A part that cannot be had is reported by the tests as not run.
$(PARTS)/ready: $(VENV)/ready tests/parts/package.json tests/parts/npm.sh tests/parts/debian.sh
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/parts/npm.sh $(PARTS)
	tests/parts/debian.sh $(PARTS)
	touch $@

setup: $(VENV)/ready $(PARTS)/ready

# The types are checked while the parts are fetched.
test:
	@$(MAKE) --no-print-directory --jobs=2 setup check
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks

demo: $(VENV)/ready
	@echo "Two demo tokens: demo-customer may order, demo-keeper may restock and see everything. Open http://localhost:8000/,"
	@echo "or try in another shell:"
	@echo "  curl -s localhost:8000/functions/shop.items"
	@echo "  curl -s localhost:8000/functions/shop.order -H 'Authorization: Bearer demo-customer' \\"
	@echo "       -H 'Content-Type: application/json' -d '{\"item\": \"tea\", \"quantity\": 2}'"
	@echo "  curl -sN localhost:8000/functions/shop.events"
	$(BIN)/enfold serve examples/shop/app.py --tokens examples/shop/tokens.json --provenance

conformance: setup
	$(BIN)/python tests/conformance/suite.py
	$(BIN)/python -m tests.conformance.gateway
	$(BIN)/python -m tests.conformance.client_suite
	$(BIN)/python -m tests.conformance.typescript_clients
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.conformance.generators

faults: setup
	ENFOLD_FAULTS=1 REQUIRE_ALL=1 $(BIN)/python -m pytest --timeout=3600 -s tests/calls/test_fault_table.py \
		tests/calls/test_faults_by_seed.py tests/calls/test_rows_everywhere.py \
		tests/calls/test_attacks.py tests/calls/test_nats_store.py \
		tests/tasks/test_faults.py tests/tasks/test_attacks.py tests/tasks/test_served_tasks.py \
		tests/surfaces/mcp/test_task_methods.py
	$(BIN)/python -m tests.running.changes_under_load --changes 100
	$(BIN)/python -m tests.running.faults_under_load --seconds 600

# Chromium is Debian's: root installs it with its libraries (tests/parts/debian.sh); otherwise: sudo apt-get install chromium
console: setup
	ENFOLD_CONSOLE=1 REQUIRE_ALL=1 $(BIN)/python -m pytest -s tests/surfaces/console

# The site's tools are installed by the first `make docs`, and by nothing else.
$(VENV)/docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	touch $@

# Everything comes from this folder, also in the browser. A dead link or a page outside the menu ends it.
docs: $(VENV)/docs
	$(BIN)/python docs/build.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The site is in site/: $(BIN)/python -m http.server --directory site 8080"

clean:
	rm -rf $(VENV) $(PARTS) .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist site
