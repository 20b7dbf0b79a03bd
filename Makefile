# The front door: each target is one call, and sets up what it needs first.
# Settings are passed on as they are: make smoke NUM_ROLLOUT=2 DETERMINISTIC=1

LOCAL := python3 tools/bootstrap.py --extra local
DEV := $(LOCAL) --group dev --

# recipe/settings.py tells by it what was written on this command line, and refuses what is no setting.
export MAKE_VARIABLES = $(MAKEOVERRIDES)

.DEFAULT_GOAL := help
.PHONY: help smoke learn settings test lint format types bench

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

smoke:  ## run the whole job at its smallest: three rollouts of a tiny Inkling, about two minutes
	@$(LOCAL) -- recipe smoke

learn:  ## run ten rollouts, in which the mean reward rises; about six minutes
	@$(LOCAL) -- recipe learn

settings:  ## list every setting with its type, default and meaning
	@$(LOCAL) -- recipe settings

test:  ## run the test suite
	@$(DEV) pytest

lint:  ## check style and shell scripts
	@$(DEV) sh -c 'ruff check && ruff format --check && shellcheck .ci/run'

format:  ## format the code and mend what can be mended
	@$(DEV) sh -c 'ruff check --fix; ruff format'

types:  ## check types
	@$(DEV) mypy

bench:  ## compare the local engine's speed with transformers and TRL
	@$(LOCAL) --group bench -- python -m benchmarks
