# Needs Python 3.11+, git and make. Everything else is installed into private directories; `make clean` removes them.
PYTHON ?= python3
VENV := .venv
PARTS := .parts
DEMO := .demo
BIN := $(VENV)/bin
# The port of `make demo`.
PORT ?= 8000
# More jobs than cores: many tests wait for a process, a timer or a socket.
JOBS ?= 4
# Tests start hundreds of Python processes: keep the bytecode, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: setup test check bench demo docs conformance faults console clean

$(VENV)/ready: pyproject.toml
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(BIN)/python $(PIP_INSTALL) --group dev --editable ".[all]"
	$(BIN)/python -m compileall -q src
	touch $@

# Test dependencies that are not on PyPI. The stamp is written only when everything arrived: what is missing is
# fetched again by the next `make`, and the tests that need it are skipped and listed.
$(PARTS)/npm.ready: $(VENV)/ready tests/parts/package.json tests/parts/npm.sh
	@if PATH="$(abspath $(BIN)):$$PATH" tests/parts/npm.sh $(PARTS); then touch $@; fi

$(PARTS)/debian.ready: tests/parts/debian.sh
	@if tests/parts/debian.sh $(PARTS); then touch $@; fi

setup: $(VENV)/ready $(PARTS)/npm.ready $(PARTS)/debian.ready

# Type checking runs while the parts are downloaded.
test:
	@$(MAKE) --no-print-directory --jobs=2 setup check
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python docs/phrases.py
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks

# The demo needs far less than the tests, so it has its own small environment.
$(DEMO)/ready: pyproject.toml
	@echo "Installing the demo into $(DEMO)/ ..."
	@$(PYTHON) -m venv --clear $(DEMO)
	@$(DEMO)/bin/python $(PIP_INSTALL) --editable ".[http,mcp]"
	@touch $@

define TRY
The shop is at http://127.0.0.1:$(PORT)/ (only this machine can reach it). Press Ctrl-C to stop it.

  Console   open http://127.0.0.1:$(PORT)/ in a browser, choose shop.price, and call it
  HTTP      curl -s http://127.0.0.1:$(PORT)/functions/shop.items
  MCP       $(DEMO)/bin/enfold call http://127.0.0.1:$(PORT)/mcp shop_price item=tea quantity=2
            in an editor: {"mcpServers": {"shop": {"type": "http", "url": "http://127.0.0.1:$(PORT)/mcp"}}}
  Shell     $(DEMO)/bin/enfold call examples/shop/app.py shop.price item=tea quantity=2

Orders need a token. There are two: demo-customer may order, demo-keeper may also restock and see every page of the console.

  curl -s http://127.0.0.1:$(PORT)/functions/shop.order -H 'Authorization: Bearer demo-customer' \
       -H 'Content-Type: application/json' -d '{"item": "tea", "quantity": 2}'

endef
export TRY

demo: $(DEMO)/ready
	@echo "$$TRY"
	@$(DEMO)/bin/enfold serve examples/shop/app.py --port $(PORT) --tokens examples/shop/tokens.json --provenance

conformance: setup
	$(BIN)/python tests/conformance/suite.py
	$(BIN)/python -m tests.conformance.gateway
	$(BIN)/python -m tests.conformance.client_suite
	$(BIN)/python -m tests.conformance.typescript_clients
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.conformance.generators

faults: setup
	ENFOLD_FAULTS=1 REQUIRE_ALL=1 $(BIN)/python -m pytest --timeout=3600 -s tests/calls/test_fault_table.py \
		tests/calls/test_faults_by_seed.py tests/calls/test_rows_everywhere.py \
		tests/calls/test_attacks.py tests/calls/test_nats_store.py \
		tests/tasks/test_faults.py tests/tasks/test_attacks.py tests/tasks/test_served_tasks.py \
		tests/surfaces/mcp/test_task_methods.py tests/idempotency/test_faults.py
	$(BIN)/python -m tests.running.changes_under_load --changes 100
	$(BIN)/python -m tests.running.faults_under_load --seconds 600

# Chromium comes from Debian. As root, tests/parts/debian.sh installs it; otherwise: sudo apt-get install chromium
console: setup
	ENFOLD_CONSOLE=1 REQUIRE_ALL=1 $(BIN)/python -m pytest -s tests/surfaces/console

# The site is self-contained. A dead link or a page that is missing from the menu is an error.
docs: $(VENV)/ready
	$(BIN)/python docs/build.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The site is in site/. View it with: $(BIN)/python -m http.server --directory site 8080"

clean:
	rm -rf $(VENV) $(PARTS) $(DEMO) .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist site
