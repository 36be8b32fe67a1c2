# Two commands: `make perf` trains and judges on this machine, `make test` checks the project itself.
# Both set up what they need first (ci/setup), and do nothing of it a second time.

.PHONY: perf test check campaign docs linkcheck clean

perf: ## Train InceptionV3, ResNet-50, AlexNet and MNIST on this machine, measure, compare. Options for pytest: make perf ARGS="--gpus=1"
	@ci/setup perf
	@.venv/bin/python -m pytest perf_tests $(ARGS)

test: ## Set everything up and pass the project's own tests
	@ci/setup test
	@ci/check

check: test

campaign: ## What `make test` tries a part of, all of it: every mode in every layout, 300 kills, 20,000 damaged files. Takes hours
	@ci/setup test
	@DTFPERF_CAMPAIGN=1 DTFPERF_KILLS=300 DTFPERF_FUZZ=20000 ci/check -n2 --dist=loadfile -m campaign
	@PYTHONPATH=.tools/oldest-pytest .venv/bin/python -m pytest -n2 --dist=loadfile tests/plugin

docs: ## The pages of docs/ as a site, in docs/_build
	@ci/setup test
	@.venv/bin/python -m sphinx -q -n -W --keep-going -b html docs docs/_build
	@echo docs/_build/index.html

linkcheck: ## Whether the pages of other sites that docs/ names are still there: needs a network, and is no part of `make test`
	@ci/setup test
	@.venv/bin/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

clean: ## Remove what setup and runs have made
	rm -rf .venv .tools docs/_build docs/reference perf_results .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
