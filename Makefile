# Everything that is done with this repository by hand or by CI. `make` lists it.

GO ?= go
# Packages whose tests write generated files and golden files anew with -update.
GOLDEN = $(sort $(dir $(shell grep -rl --include=*_test.go 'flag.Bool."update"' .)))
# Seconds of fuzzing per target in `make fuzz`.
FUZZTIME ?= 20s

.DEFAULT_GOAL := help
.PHONY: help build test full race sim crash fuzz bench lint fmt golden demo up down ci generated

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build both commands into bin/
	$(GO) build -o bin/ ./cmd/executor ./cmd/reconciler

demo: build ## run a billing case with everything in one process
	./bin/executor demo

# vet is part of lint, and binaries that live for seconds need no debugger's tables. Tests that run beside others wait most
# of their time: for a lease, for a server, for a process.
TESTFLAGS = -vet=off -ldflags='-s -w' -parallel 8

test: ## run the tests; the longest are left out or shortened (-short), and named at the end
	$(GO) test -short $(TESTFLAGS) ./...
	@echo "left out or shortened here, whole in make full and make ci:" && \
	grep -rl --include=*_test.go 'testing\.Short()' . | sort | xargs awk '/^func / {name = $$2; sub(/\(.*/, "", name)} \
		/testing\.Short\(\)/ {file = FILENAME; sub("^./", "", file); sub("/[^/]*$$", "", file); print "  " file " " name}' | uniq

full: ## run all tests whole: what make test leaves out (worlds, sweeps, kills, upgrades) takes minutes
	$(GO) test $(TESTFLAGS) -timeout 20m ./...

race: ## run the tests with the race detector; the longest are left out or shortened (-short)
	$(GO) test -race -short $(TESTFLAGS) ./...

sim: ## play seeded worlds (SEED= repeats one, N= how many; 20000 take about 3 minutes on 2 cores)
	$(GO) test ./internal/sim -count=1 -timeout 0 -v -run 'TestWorld$$' -sim.seed=$(or $(SEED),1) -sim.n=$(or $(N),$(if $(SEED),1,20000))
	@if [ -z "$(SEED)" ]; then $(GO) test ./internal/sim -count=1 -timeout 0 -v -run 'TestSweep' -sim.pairs=0; fi

crash: ## kill N real processes (SEED= repeats a run) and compare the ledger
	$(GO) run ./internal/crash -n $(or $(N),2000) -seed $(or $(SEED),0) -report docs/crash-report.md

fuzz: ## fuzz every fuzz target for FUZZTIME each
	@set -e; for file in $$(grep -rl --include=*_test.go '^func Fuzz' . | sort); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
			echo "== $$target in $$(dirname $$file)"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$(dirname $$file); \
		done; \
	done

bench: ## measure speed beside its floor, and fleets of processes (ONLY=fleet,idle,… for a part); writes bench.json
	$(GO) run ./internal/bench $(if $(ONLY),-only $(ONLY))

lint: ## vet, staticcheck, gofumpt
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	@files=$$($(GO) tool gofumpt -l .); if [ -n "$$files" ]; then echo "not formatted (make fmt):" >&2; echo "$$files" >&2; exit 1; fi

fmt: ## format all Go files
	$(GO) tool gofumpt -w .

golden: ## write generated documents and golden files anew
	$(GO) run ./internal/schemadoc/gen
	$(GO) test $(GOLDEN) -update

generated: ## fail if make golden would change anything
	@before=$$(git status --porcelain; git diff); \
	$(MAKE) --no-print-directory golden >/dev/null; \
	after=$$(git status --porcelain; git diff); \
	if [ "$$before" != "$$after" ]; then echo "generated files are stale; make golden wrote these anew:" >&2; git status --porcelain >&2; exit 1; fi

# `docker-compose` where the plugin is not installed.
COMPOSE ?= docker compose

up: deploy/.env ## start NATS, two executors, two reconcilers, Prometheus and Grafana in containers
	$(COMPOSE) -p agentrun --env-file deploy/.env -f deploy/compose.yaml up -d --build

down: deploy/.env ## stop what make up started; the volumes stay
	$(COMPOSE) -p agentrun --env-file deploy/.env -f deploy/compose.yaml down

deploy/.env:
	umask 077; deploy/passwords.sh > $@

ci: lint generated full race ## everything that must hold before a change is merged
