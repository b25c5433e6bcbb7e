# Waymark's tasks. Needs a Go toolchain with a C compiler (for the race detector), git and a POSIX shell; fetches
# the rest itself. "make" alone lists the targets, "make check" is what CI runs.

include tools/versions.mk

SHELL := /bin/sh
BIN := .bin
LINT := $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION)
VULNCHECK := $(BIN)/govulncheck-$(GOVULNCHECK_VERSION)
CYCLONEDX := $(BIN)/cyclonedx-gomod-$(CYCLONEDX_GOMOD_VERSION)
ASYNCAPI := $(BIN)/asyncapi-$(ASYNCAPI_PARSER_VERSION)

PKG ?= ./...
# The readers of the files in deploy, a module of its own.
DEPLOYCHECK := tools/deploycheck
TEST_TIMEOUT ?= 15m
FUZZTIME ?= 3s
# Cases of "make bench", all of them by default, and its flags.
BENCH ?=
BENCHFLAGS ?=
# How long each Go benchmark runs; "make check" only sees that each works.
BENCHTIME ?= 1s
PLATFORMS ?= linux/arm64 darwin/arm64 windows/amd64

# In this order: what is quick to fail comes first, and the tests' own closing lines come last. A step that
# fails does not keep the others from running.
CHECK := generate-check lint vet deploycheck cross gobench fuzz race chaos-check

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: check
check: ## all that CI runs: generated files, lint, vet, deploy files, cross-builds, benchmarks, fuzzing, race tests
	@failed=; times=; \
	for step in $(CHECK); do \
		echo "== $$step"; \
		begin=$$(date +%s); \
		$(MAKE) --no-print-directory $$step BENCHTIME=1x || failed="$$failed $$step"; \
		times="$$times $$step $$(($$(date +%s) - begin))s,"; \
	done; \
	echo "== took:$${times%,}"; \
	if [ -n "$$failed" ]; then echo "== make check FAILED:$$failed" >&2; exit 1; fi; \
	echo "== make check passed"

.PHONY: build
build: ## build the waymark binary into .bin
	@mkdir -p $(BIN)
	go build -trimpath -o $(BIN)/ ./cmd/...

.PHONY: test
test: ## run the tests, quickly (PKG=./schema for one package)
	go test -timeout $(TEST_TIMEOUT) $(PKG)

.PHONY: race
race: ## run the tests under the race detector
	go test -race -timeout $(TEST_TIMEOUT) $(PKG)

# The first seed (empty: 1), the number of schedules of "make chaos-inprocess", and how many run side by side.
SEED ?=
SCHEDULES ?= 10000
WORKERS ?= 8

.PHONY: chaos-check
chaos-check: ## run some random schedules in process, and see that every seeded bug is found
	@# Without the race detector, which "race" has: schedules by the hundred are what finds mistakes here.
	go test -tags waymark_failpoints -timeout $(TEST_TIMEOUT) ./internal/failpoint ./internal/chaos

.PHONY: chaos-inprocess
chaos-inprocess: ## run very many random schedules in process (SEED=1 SCHEDULES=10000); a failing one prints its seed
	WAYMARK_SEED=$(SEED) WAYMARK_SCHEDULES=$(SCHEDULES) WAYMARK_WORKERS=$(WORKERS) \
		go test -tags waymark_failpoints -timeout 12h -run TestNothingAcknowledgedIsLostInRandomSchedules -v ./internal/chaos

.PHONY: fuzz
fuzz: ## run each fuzz target for a few seconds (FUZZTIME=1m for longer)
	@FUZZTIME=$(FUZZTIME) sh tools/fuzz.sh

.PHONY: bench
bench: build ## measure Waymark beside raw JetStream (BENCH="boundary lag" BENCHFLAGS="--server cluster"; see waymark bench --help)
	$(BIN)/waymark bench $(BENCH) $(BENCHFLAGS)

# Where "make bench-all" and "make bench-peers" leave their lines, and of which systems.
BENCH_OUT ?= bench-results.jsonl
PEERS_OUT ?= bench-peers.jsonl
PEERS ?=

.PHONY: bench-all
bench-all: build ## measure every case on one server and on a cluster of three, then report (idle machine; 15 to 25 minutes)
	rm -f $(BENCH_OUT)
	@failed=0; \
	$(BIN)/waymark bench --out $(BENCH_OUT) $(BENCHFLAGS) || failed=$$?; \
	$(BIN)/waymark bench boundary boundaries lag fold growth kept recovery --server cluster --rounds 3 --out $(BENCH_OUT) $(BENCHFLAGS) || failed=$$?; \
	$(BIN)/waymark bench report $(BENCH_OUT) $(wildcard $(PEERS_OUT)) --report bench-report && exit $$failed

.PHONY: bench-peers
bench-peers: ## measure LangGraph and DBOS with the same workload (needs node, npm and PostgreSQL; 3 minutes)
	@mkdir -p $(BIN)/peers
	cp internal/bench/peers/*.mjs internal/bench/peers/package*.json $(BIN)/peers/
	npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(BIN)/peers
	node $(BIN)/peers/main.mjs $(PEERS) >$(PEERS_OUT)

.PHONY: gobench
gobench: ## run the packages' Go benchmarks, for work on one of them (BENCHTIME=5s PKG=./publisher)
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout $(TEST_TIMEOUT) $(PKG)

# Rounds of "make chaos", each with a seed of its own from SEED on (empty: another one each time); SERVERS is 1 or 3, empty is
# both. CHAOSFLAGS="-run TestDamage" runs others.
ROUNDS ?= 10
SERVERS ?=
CUTS ?= 1
CHAOSFLAGS ?= -run WhateverBecomesOf

.PHONY: chaos
chaos: ## break real processes on purpose, round after round (SEED=1 ROUNDS=10 SERVERS=3; about a minute a round)
	WAYMARK_E2E_FULL=1 WAYMARK_CHAOS_SEED=$(SEED) WAYMARK_CHAOS_ROUNDS=$(ROUNDS) WAYMARK_CHAOS_SERVERS=$(SERVERS) WAYMARK_CHAOS_CUTS=$(CUTS) \
		go test -count=1 -timeout 0 -v $(CHAOSFLAGS) ./internal/nemesis

.PHONY: chaos-power
chaos-power: ## cut the power of all servers under load, again and again (CUTS=50 SERVERS=1; as root, on Linux)
	@$(MAKE) --no-print-directory chaos CHAOSFLAGS="-run PowerCut"

# How long "make soak" takes, and what it breaks meanwhile: mild or none.
DURATION ?= 1h
FAULTS ?= mild

.PHONY: soak
soak: ## do the same work for hours: memory, files, goroutines and the store stay as they are (DURATION=8h SERVERS=3 FAULTS=none)
	WAYMARK_SOAK=$(DURATION) WAYMARK_SOAK_FAULTS=$(FAULTS) WAYMARK_CHAOS_SEED=$(SEED) WAYMARK_CHAOS_SERVERS=$(SERVERS) \
		go test -count=1 -timeout 0 -v -run NothingGrowsUnder ./internal/nemesis

.PHONY: lint
lint: $(LINT) ## run golangci-lint, layers and formatting included
	$(LINT) run $(PKG)
	cd $(DEPLOYCHECK) && $(CURDIR)/$(LINT) run --config $(CURDIR)/.golangci.yml ./...

.PHONY: fmt
fmt: $(LINT) ## format the code as lint wants it
	$(LINT) fmt

.PHONY: vet
vet: ## run go vet
	go vet $(PKG)
	go vet -tags waymark_failpoints $(PKG)
	cd $(DEPLOYCHECK) && go vet ./...

.PHONY: deploycheck
deploycheck: ## hand the files in deploy to the real readers: kustomize, compose, buildkit, Prometheus (a module of its own)
	cd $(DEPLOYCHECK) && go test -count=1 -timeout $(TEST_TIMEOUT) ./...

.PHONY: cross
cross: ## build and vet for the other platforms
	@set -e; for platform in $(PLATFORMS); do \
		echo "go build, go vet: $$platform"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build ./...; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go vet ./...; \
	done

.PHONY: golden
golden: ## write a golden store of this version's stored formats, when one of them is new (30 seconds)
	WAYMARK_GOLDEN=write go test ./internal/e2e -run TestEveryGoldenStore -count=1

.PHONY: generate
generate: ## write the generated files anew
	go generate ./...

.PHONY: generate-check
generate-check: ## fail when a generated file is out of date
	@sh tools/generate-check.sh

.PHONY: asyncapi
asyncapi: ## validate the AsyncAPI document (needs npm)
	@sh tools/asyncapi.sh $(ASYNCAPI) $(ASYNCAPI_PARSER_VERSION)

# The list of parts of the binary, CycloneDX as JSON, licences included.
SBOM ?= $(BIN)/waymark.cdx.json

.PHONY: sbom
sbom: $(CYCLONEDX) ## write the binary's list of parts (CycloneDX) to .bin/waymark.cdx.json, or SBOM=FILE
	$(CYCLONEDX) app -json -licenses -main cmd/waymark -output $(SBOM) .
	@echo "sbom: $(SBOM)"

.PHONY: vulncheck
vulncheck: $(VULNCHECK) ## look for known vulnerabilities (asks vuln.go.dev; exit 75 when that cannot be reached)
	@sh tools/vulncheck.sh $(VULNCHECK)

.PHONY: demo
demo: build ## run the demonstration
	$(BIN)/waymark demo

.PHONY: clean
clean: ## remove what was built and fetched
	rm -rf $(BIN)

# The version is part of the name, so that a new one is fetched when versions.mk changes.
$(LINT):
	@mkdir -p $(BIN)
	GOBIN="$(CURDIR)/$(BIN)" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv $(BIN)/golangci-lint $@

$(VULNCHECK):
	@mkdir -p $(BIN)
	GOBIN="$(CURDIR)/$(BIN)" go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
	@mv $(BIN)/govulncheck $@

# A module of its own pins it, with all that it is made of.
$(CYCLONEDX): tools/sbom/go.mod
	@mkdir -p $(BIN)
	cd tools/sbom && go build -o "$(CURDIR)/$@" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
