# `make demo` and `make test` do all of their own set-up, in a virtual environment of their own (.venv).
PYTHON ?= python3
VENV ?= .venv
INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-versions check docs setup exits clean

demo: $(VENV)/.lab  ## run the main job on the embedded data; ends with a report to open
	$(VENV)/bin/thinwire run demo

test: check  ## lint, types, and the whole test suite; compiled modules are kept, since tests start many processes
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

exits: $(VENV)/.dev  ## 395 training jobs that end without a word, by Ctrl-C or by an error: none may die by a signal (some minutes)
	$(VENV)/bin/python tools/exits.py --idle 200 --plain 100 --interrupt-all 30 --interrupt-one 30 --error 30 --silent 5

test-versions:  ## the main suites on Python 3.10 and the newest here, torch 2.10 and the newest (see tools/test_versions.py)
	$(PYTHON) tools/test_versions.py $(if $(PYTHONS),--python $(PYTHONS)) $(if $(TORCHES),--torch $(TORCHES))

docs: $(VENV)/.dev  ## the documentation as a site, in site/; opens from disk
	$(VENV)/bin/mkdocs build --strict
	@echo "Site: site/index.html  (open it in a browser; $(VENV)/bin/mkdocs serve has a search box, too)"

setup: $(VENV)/.dev  ## what a developer needs

$(VENV)/.lab: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (torch is large: a minute or two) ..."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[lab]"
	@touch $@

$(VENV)/.dev: $(VENV)/.lab
	$(INSTALL) -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) .venvs runs site .mypy_cache .ruff_cache .pytest_cache .hypothesis
