# The front door: each target is one call, and sets up what it needs first.
# Settings are passed on as they are: make smoke NUM_ROLLOUT=2 DETERMINISTIC=1
# What is no setting goes through ARGS: make status ARGS=--follow. Of the command line alone: an ARGS=--yes that some
# shell has exported must not delete anything.
ifneq ($(origin ARGS),command line)
override ARGS :=
endif

BASE := python3 tools/bootstrap.py
LOCAL := $(BASE) --extra local
DEV := $(LOCAL) --group dev --

# recipe/settings.py tells by it what was written on this command line, and refuses what is no setting.
export MAKE_VARIABLES = $(MAKEOVERRIDES)

GKE_TARGETS := $(addprefix gke-,create credentials scale down clear-sandboxes apply-network-policies status delete tools-image)
WITH_WORDS := $(GKE_TARGETS) doctor plan status alarms report compare sandboxes dataset export pins-check pins-bump audit rehearse bench

.DEFAULT_GOAL := help
.PHONY: help smoke learn train-camel train-terminus2 doctor plan harbor contract prepare dataset export settings pins-check pins-bump audit flake-check status alarms report compare sandboxes $(GKE_TARGETS) test lint format types bench rehearse

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-27s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

smoke:  ## run the whole job at its smallest: three rollouts of a tiny Inkling, about two minutes
	@$(if $(filter miles,$(ENGINE)),$(BASE),$(LOCAL)) -- recipe smoke

learn:  ## run ten rollouts, in which the mean reward rises; three to six minutes
	@$(LOCAL) -- recipe learn

train-camel:  ## train Inkling-Small with the CAMEL agent, on the cluster whose head node this is
	@$(BASE) -- recipe train-camel

train-terminus2:  ## the same with the Terminus-2 agent
	@$(BASE) -- recipe train-terminus2

doctor:  ## check all that a launch would, on every node, and change nothing; ARGS=--no-cluster on a laptop
	@$(BASE) -- recipe doctor $(ARGS)

plan:  ## work out memory, disk, time and sandbox-hours of a run, each with its formula and source
	@$(BASE) -- recipe plan $(if $(RUN),--run "$$RUN") $(ARGS)

harbor:  ## install the Harbor that the recipe of AGENT=camel or terminus-2 pins
	@$(BASE) -- recipe harbor

contract:  ## check by reading that the sources here take every flag, variable and plugin of the job of AGENT
	@$(BASE) -- recipe contract

prepare:  ## download the pinned model and convert it on this machine's 8 GPUs; goes on where it stopped
	@$(BASE) -- recipe prepare

export:  ## write a checkpoint in Hugging Face format: RUN=runs/NAME OUT=FOLDER, and ITER=number for another than the latest
	@$(LOCAL) -- recipe export "$$RUN" "$$OUT" $(if $(ITER),--iteration "$$ITER")

dataset:  ## build, filter, check or fetch tasks and prompts: ARGS='build TASKS_DIR --output FILE', ARGS=--help for the rest
	@$(BASE) -- recipe dataset $(ARGS)

status:  ## show where a run is: RUN=runs/NAME, or the newest; ARGS=--follow
	@$(BASE) -- recipe status $(if $(RUN),"$$RUN") $(ARGS)

alarms:  ## judge a run once more by the limits of docs/alarms.md
	@$(BASE) -- recipe alarms $(if $(RUN),"$$RUN") $(ARGS)

report:  ## write a run's report anew: a page, its curves, its metrics
	@$(BASE) -- recipe report $(if $(RUN),"$$RUN") $(ARGS)

compare:  ## show what differs between two runs: RUN=runs/A OTHER=runs/B; ARGS='--html FILE'
	@$(BASE) -- recipe compare "$$RUN" "$$OTHER" $(ARGS)

sandboxes:  ## list what sandboxes a run left, RUN=NAME or the newest, or ARGS='clean --delete'; ARGS=--help
	@$(BASE) -- recipe sandboxes $(or $(ARGS),list) $(if $(RUN),--run "$$RUN")

gke-create:  ## create what is missing of the cluster for sandboxes on Google Kubernetes Engine; GKE_PROJECT_ID=...
	@$(BASE) -- recipe gke create $(ARGS)

gke-credentials:  ## write the cluster's own kubeconfig
	@$(BASE) -- recipe gke credentials $(ARGS)

gke-scale:  ## set the nodes of the sandboxes' pools: ARGS=6, or ARGS=sandboxes=6; fewer than there are only with --yes
	@$(BASE) -- recipe gke scale $(ARGS)

gke-down:  ## end all sandboxes and take all nodes from their pools; only with ARGS=--yes
	@$(BASE) -- recipe gke down $(ARGS)

gke-clear-sandboxes:  ## delete the pods of all sandboxes; only with ARGS=--yes
	@$(BASE) -- recipe gke clear-sandboxes $(ARGS)

gke-apply-network-policies:  ## let sandboxes reach a name server and the public web alone; ARGS=--no-web-egress
	@$(BASE) -- recipe gke apply-network-policies $(ARGS)

gke-status:  ## show the cluster, its nodes, sandboxes and network policies
	@$(BASE) -- recipe gke status $(ARGS)

gke-delete:  ## delete the cluster; only with ARGS=--yes
	@$(BASE) -- recipe gke delete $(ARGS)

gke-tools-image:  ## build the image of the sandboxes' tools, and print its setting
	@$(BASE) -- recipe gke tools-image $(ARGS)

settings:  ## list every setting with its type, default and meaning
	@$(LOCAL) -- recipe settings

pins-check:  ## compare the pins with this repository, checkouts and the network; ONLINE=off, auto or require
	@$(BASE) -- recipe pins-check $(if $(ONLINE),--online "$$ONLINE")

pins-bump:  ## pin another commit: RECIPE=camel SOURCE=miles REV=<40 hex digits>
	@$(BASE) -- recipe pins-bump --recipe "$$RECIPE" --source "$$SOURCE" --rev "$$REV" --nar-hash "$$NAR_HASH"

# Words of these targets that are no settings.
# A space inside of a value is written with a backslash, at which filter-out would take the value apart.
SPACE := $() $()
$(WITH_WORDS): export MAKE_VARIABLES = $(subst |SPACE|,\$(SPACE),$(filter-out $(addsuffix =%,ARGS RUN OTHER OUT ITER ONLINE RECIPE SOURCE REV NAR_HASH),$(subst \$(SPACE),|SPACE|,$(MAKEOVERRIDES))))

audit:  ## check what uv.lock installs, and ask for advisories against it; ARGS=--require fails where nobody answers
	@$(BASE) --group audit -- python tools/audit.py $(ARGS)

flake-check:  ## check the Nix flake without a network (needs nix: apt-get install nix-bin)
	@nix/check.sh

test:  ## run the test suite
	@$(DEV) pytest -n 2 --dist loadfile --no-loadscope-reorder

lint:  ## check style, shell scripts and workflows
	@$(DEV) sh -c 'ruff check && ruff format --check && shellcheck -x .ci/run nix/*.sh container/checkout.sh && actionlint && zizmor --offline --quiet .github'

format:  ## format the code and mend what can be mended
	@$(DEV) sh -c 'ruff check --fix; ruff format'

types:  ## check types
	@$(DEV) mypy

rehearse:  ## break the local job in every way that is known, one at a time; forty minutes; ARGS='--only NAME'
	@$(DEV) python -m rehearsal $(ARGS)

bench:  ## compare the local engine's speed with transformers and TRL; what 160 trials at once cost; ARGS='--only NAME'
	@$(LOCAL) --group bench -- python -m benchmarks $(ARGS)
