# Everything a person or a machine runs here. `make` alone lists it.

SEEDS ?= 500
POINTS ?= 2000
FROM ?= 0
KERNEL ?= 7.2
EVENTS ?= 40
PREFIX ?= /usr/local
SEED ?= 1
# Seconds for one guest; the suites' own budgets are shorter. MiB of its memory.
VM_LIMIT ?= 1800
VM_MEMORY ?= 4096

export PATH := $(PATH):$(HOME)/.cargo/bin
# Programs are named, packages are not: what cargo's dependencies are built with follows from the packages that it is asked for, so that each choice of
# some would build most of them, and of us, once more.
CARGO := cargo
RUNNER := $(CARGO) run --quiet --locked --bin

.DEFAULT_GOAL := help
.PHONY: help demo check test sim model crash bench bench-vm bench-store golden hot-path cluster chaos vm-test power-loss soak fuzz lint unit loom build dist install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a filesystem on /dev/ublkb0 with three copies, under a real kernel (in a guest where this one has no ublk)
	@tools/setup.sh
	$(CARGO) build --quiet --locked --release --bin trine
	@if [ -e /dev/ublk-control ]; then exec tests/demo; \
	else exec $(RUNNER) guest -- run --kernel 7.2 --timeout $(VM_LIMIT) -- tests/demo; fi

check: lint unit ## the inner loop: lint, unit tests, 50 seeds; no guest (4 minutes warm)
	@$(MAKE) --no-print-directory sim SEEDS=50

test: ## everything, each suite under its budget (60 minutes on 2 cores from a bare machine)
	@tools/setup.sh
	@$(RUNNER) suites -- run

sim: ## the simulated cluster: SEEDS=500 seeds FROM=0, or the one seed SEED=n again with its trace
	$(CARGO) run --quiet --locked --bin simulator -- \
		$(if $(filter command line,$(origin SEED)),--seed $(SEED) --trace,--seeds $(SEEDS) --from $(FROM))

model: ## the replication protocol in every interleaving of small clusters, and each rule broken on purpose
	$(CARGO) run --quiet --locked --bin replication-model

crash: ## the store on disks that lose power: stopped at POINTS=2000 places, damaged, compared with a flat model
	$(CARGO) run --quiet --locked --bin crash -- --points $(POINTS)

bench: ## three copies beside QEMU quorum, single servers and a bare floor, in turns, against the budget (BENCH="--quick" for a look)
	@tools/setup.sh build dist test bench
	@tools/dist --bin trine --bin bench-cluster
	TRINE=$(or $(CARGO_TARGET_DIR),target)/dist/trine $(or $(CARGO_TARGET_DIR),target)/dist/bench-cluster $(BENCH)

bench-vm: ## in a guest: /dev/ublkbN over TCP and RDMA beside RAID 1 over NVMe and over NBD, DRBD and a bare floor, as ratios (ROUNDS=3)
	@tools/setup.sh build dist guest bench-vm
	@tools/dist --bin trine --bin bench-cluster
	@rm -rf target/bench-vm
	@$(RUNNER) guest -- run --kernel 7.2 --timeout $(VM_LIMIT) --mem 8192 --numa 1 --results target/bench-vm -- \
		TRINE=target/dist/trine BENCH=target/dist/bench-cluster tests/bench-vm/measure $(if $(filter command line,$(origin ROUNDS)),$(ROUNDS),3) 5
	target/dist/bench-cluster vm target/bench-vm/rates

bench-store: ## the store beside raw fio on the same file: bytes, rates, restart (BENCH="--quick" for a look; 23 GiB of disk)
	@tools/setup.sh test
	$(CARGO) run --quiet --locked --release --bin bench -- $(BENCH)

golden: ## writes the store's golden image anew: after a new format version, and to be looked at before it is committed
	$(CARGO) test --quiet --locked -p node-store --test golden -- --ignored

hot-path: ## instructions that nodes and client spend on one request, by callgrind, beside the recorded ones (HOT="--profile" or "--write")
	@tools/setup.sh build test
	$(CARGO) build --quiet --locked --release --bin hot-path
	$(or $(CARGO_TARGET_DIR),target)/release/hot-path $(HOT)

cluster: ## real processes on loopback: killed, frozen, filled up, attacked
	@tools/setup.sh build test
	$(CARGO) build --quiet --locked --bin trine --test chaos
	@$(RUNNER) unit cluster

chaos: ## EVENTS=40 faults drawn from SEED=1, in a cluster under fio and our own checker (ONLY=Kill,Cut: of these kinds)
	@tools/setup.sh build test
	$(CARGO) build --quiet --locked --bin trine --test chaos
	EVENTS=$(EVENTS) SEED=$(SEED) $(CARGO) test --quiet --locked --test chaos -- --ignored --nocapture

vm-test: ## the suites that need a real kernel, in a guest: KERNEL=7.2 or 6.12 (TESTS="all 7.2/numa": these of tests/guest/inside)
	@tools/setup.sh
	$(CARGO) build --quiet --locked --release --bin trine
	$(CARGO) build --quiet --locked --example ublk-ram --example rdma-pair --bin lifetimes --bin log-writes --bin witness
	@$(RUNNER) guest -- run --kernel $(KERNEL) --timeout $(VM_LIMIT) --disk 512 --nvdimm 128 -- \
		tests/guest/inside/run $(TESTS)

power-loss: ## power loss below real nodes at POINTS=15 moments of a load: recorded under a real kernel in a guest, verified here
	@tools/setup.sh
	$(CARGO) build --quiet --locked --release --bin trine
	$(CARGO) build --quiet --locked --bin log-writes --bin witness
	@rm -rf target/power-loss
	@$(RUNNER) guest -- run --kernel 7.2 --timeout $(VM_LIMIT) --mem $(VM_MEMORY) --numa 1 --results target/power-loss -- \
		tests/power-loss/record $(if $(filter command line,$(origin POINTS)),$(POINTS),15) $(if $(filter command line,$(origin SEED)),$(SEED))
	@tests/power-loss/verify target/power-loss

soak: ## the long runs: power loss at 200 moments, the guest's tests on 6.12 too, larger models, 20,000 crash points, 2,000 faults, seeds without end; goes on where it ended
	@tools/setup.sh build test guest soak
	@tests/soak

fuzz: ## every parser under bytes that nobody meant: SECONDS=60 each, the one TARGET=name; new inputs are kept, `make unit` replays them
	@tools/setup.sh build fuzz
	@tests/fuzz/run $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60) $(if $(filter command line,$(origin TARGET)),$(TARGET))

lint: ## format, clippy, dependency rules, what documents name, shell syntax
	@tools/setup.sh build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --locked --workspace --all-targets -- -D warnings
	@$(RUNNER) dependencies
	@$(RUNNER) references
	@git ls-files | xargs -r -d '\n' grep -lIE '^#!.*\b(bash|sh)$$' | xargs -r -d '\n' -n 1 bash -n

loom: ## holds that cross threads, in every interleaving
	RUSTFLAGS='--cfg loom' $(CARGO) test --quiet --locked --release --package refcount --test loom --target-dir target/loom

unit: ## unit and property tests of every package; no process of ours but an etcd for the conductor's, no guest
	@tools/setup.sh build test
	@$(RUNNER) unit

build: ## the release build, which the tests run
	@tools/setup.sh build
	$(CARGO) build --quiet --locked --release --bin trine

dist: ## the build to install: optimized as a whole, for what a cluster of it was seen to do most (20 minutes on 2 cores)
	@tools/setup.sh build dist
	@tools/dist --bin trine

install: ## what `make dist` built, and unit files for systemd, below PREFIX=/usr/local (as root; DESTDIR= for packages)
	install -D -m 755 $(or $(CARGO_TARGET_DIR),target)/dist/trine $(DESTDIR)$(PREFIX)/bin/trine
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	@for unit in docs/systemd/*.service; do \
		sed 's,/usr/local/bin/,$(PREFIX)/bin/,' "$$unit" > "$(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/}" || exit; \
		echo "$(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/}"; done

clean: ## removes everything built and every kernel downloaded
	$(CARGO) clean
