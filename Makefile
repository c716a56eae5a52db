# `make demo` and `make test` bring all that they need: uv (if it is missing) and the locked environment. They only ask for python3 and a Python 3.12 somewhere.

UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)

.PHONY: demo test lint docs wheel bench

demo: $(UV)
	$(UV) sync --locked --inexact --extra train
	.venv/bin/vla-rl demo $(ARGS)

# Files of tests are shared out to three processes of one thread each, in the order of tests/conftest.py. Two cores are enough for them: tests of ROS, terminals and killed processes mostly wait. Two groups hold what only tests use and not every machine can install (ROS 2, a TensorRT without a GPU): those tests are then skipped.
test: $(UV)
	$(UV) sync --locked --quiet --all-extras --all-groups || $(UV) sync --locked --quiet --all-extras
	.venv/bin/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: $(UV)
	$(UV) sync --locked --quiet --all-extras --all-groups || $(UV) sync --locked --quiet --all-extras
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/codespell
	.venv/bin/python -m benchmarks.prose

# Strict: a broken link or an option without a meaning fails.
docs: $(UV)
	$(UV) sync --locked --inexact --quiet --extra train --group docs
	.venv/bin/mkdocs build --strict --quiet

# In an environment of the base install alone, and away from the sources: what is missing in the wheel or imported too early shows.
wheel: $(UV)
	rm -rf dist
	$(UV) build --quiet --wheel --out-dir dist
	$(UV) venv --quiet dist/base
	$(UV) export --quiet --locked --no-default-groups --no-emit-project --no-hashes --output-file dist/base.txt
	$(UV) pip install --quiet --python dist/base --constraint dist/base.txt dist/*.whl
	cd dist && base/bin/vla-rl --version && for verb in $$(base/bin/python -c "from vla_rl.cli.main import VERBS; print(*VERBS)"); do \
	  base/bin/vla-rl $$verb --help > /dev/null || exit 1; done

bench: $(UV)
	$(UV) sync --locked --inexact --quiet --all-extras
	.venv/bin/python -m benchmarks $(NAME) $(ARGS)

# Some systems have python3 without ensurepip (venv fails), some without pip; either one is enough.
.tools/bin/uv:
	python3 -m venv .tools && .tools/bin/python -m pip install --quiet --disable-pip-version-check uv \
	  || python3 -m pip install --quiet --disable-pip-version-check --target .tools uv \
	  || { echo "python3 has neither venv with pip nor pip: install one of them (Debian: apt install python3-venv) or uv"; exit 2; }
