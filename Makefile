# Everything a person or a machine runs here. `make` alone lists it.

SEEDS ?= 500
POINTS ?= 2000
FROM ?= 0
KERNEL ?= 7.2
EVENTS ?= 40
SEED ?= 1
# A soak runs until it fails or is stopped, in batches; the next one goes on at the seed where this one ended.
SOAK_BATCH ?= 1000
# Before that, moments of power loss below real nodes, and the seconds that the guest may take for them.
SOAK_POINTS ?= 200
SOAK_LIMIT ?= 14400
# Seconds for one guest; the suites' own budgets are shorter.
VM_LIMIT ?= 1800

export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO := cargo
RUNNER := $(CARGO) run --quiet --locked --package runner --bin

.DEFAULT_GOAL := help
.PHONY: help demo check test sim model crash bench-store cluster chaos vm-test soak lint unit loom build clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a filesystem on /dev/ublkb0 with three copies, under a real kernel (in a guest where this one has no ublk)
	@tools/setup.sh
	$(CARGO) build --quiet --locked --release --package trine
	@if [ -e /dev/ublk-control ]; then exec tests/demo; \
	else exec $(RUNNER) guest -- run --kernel 7.2 --timeout $(VM_LIMIT) -- tests/demo; fi

check: lint unit ## the inner loop: lint, unit tests, 50 seeds; no guest (4 minutes warm)
	@$(MAKE) --no-print-directory sim SEEDS=50

test: ## everything, each suite under its budget (60 minutes on 2 cores from a bare machine)
	@tools/setup.sh
	@$(RUNNER) suites -- run

sim: ## the simulated cluster: SEEDS=500 seeds FROM=0
	$(CARGO) run --quiet --locked --package simulator -- --seeds $(SEEDS) --from $(FROM)

model: ## the replication protocol in every interleaving of small clusters, and each rule broken on purpose
	$(CARGO) run --quiet --locked --package replication-model

crash: ## the store on disks that lose power: stopped at POINTS=2000 places, damaged, compared with a flat model
	$(CARGO) run --quiet --locked --package crash -- --points $(POINTS)

bench-store: ## the store beside raw fio on the same file: bytes, rates, restart (BENCH="--quick" for a look; 23 GiB of disk)
	@tools/setup.sh test
	$(CARGO) run --quiet --locked --release --package bench -- $(BENCH)

cluster: ## real processes on loopback: killed, frozen, filled up, attacked
	@tools/setup.sh build
	$(CARGO) build --quiet --locked --package trine
	$(CARGO) test --quiet --locked --package cluster -- --nocapture --test-threads 2

chaos: ## EVENTS=40 faults drawn from SEED=1, in a cluster under fio and our own checker (ONLY=Kill,Cut: of these kinds)
	@tools/setup.sh build test
	$(CARGO) build --quiet --locked --package trine
	EVENTS=$(EVENTS) SEED=$(SEED) $(CARGO) test --quiet --locked --package cluster --test chaos -- --ignored --nocapture

vm-test: ## the suites that need a real kernel, in a guest: KERNEL=7.2 or 6.12
	@tools/setup.sh
	$(CARGO) build --quiet --locked --release --package trine
	$(CARGO) build --quiet --locked --package ublk-device --example ublk-ram
	$(CARGO) build --quiet --locked --package replay
	@$(RUNNER) guest -- run --kernel $(KERNEL) --timeout $(VM_LIMIT) --disk 512 --nvdimm 128 -- tests/guest/inside/run

soak: ## the larger models, power loss at SOAK_POINTS=200 moments in a guest, then the simulator without end, in batches; goes on where it ended
	@tools/setup.sh
	$(CARGO) build --quiet --locked --release --package trine
	$(CARGO) build --quiet --locked --package replay
	@$(RUNNER) guest -- run --kernel $(KERNEL) --timeout $(SOAK_LIMIT) --mem 8192 -- \
		'cd $$(mktemp -d) && POWER_POINTS=$(SOAK_POINTS) $(CURDIR)/tests/guest/inside/all/power-loss'
	$(CARGO) run --quiet --locked --package replication-model -- --larger
	@mkdir -p target/soak; next=$$(cat target/soak/next 2>/dev/null || echo 100000); \
	while $(MAKE) --no-print-directory sim FROM=$$next SEEDS=$(SOAK_BATCH); do \
		next=$$((next + $(SOAK_BATCH))); echo $$next >target/soak/next; \
	done; echo "soak: ended in the batch from seed $$next" >&2; exit 1

lint: ## format, clippy, dependency rules, shell syntax
	@tools/setup.sh build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --locked --workspace --all-targets -- -D warnings
	@$(RUNNER) dependencies
	@git ls-files | xargs -r -d '\n' grep -lIE '^#!.*\b(bash|sh)$$' | xargs -r -d '\n' -n 1 bash -n

loom: ## holds that cross threads, in every interleaving
	RUSTFLAGS='--cfg loom' $(CARGO) test --quiet --locked --release --package refcount --test loom --target-dir target/loom

unit: ## unit and property tests of every package; no process, no guest
	@tools/setup.sh build
	$(CARGO) test --quiet --locked --workspace --exclude cluster

build: ## the release build
	@tools/setup.sh build
	$(CARGO) build --quiet --locked --release --package trine

clean: ## removes everything built and every kernel downloaded
	$(CARGO) clean
