# Waymark's tasks. Needs a Go toolchain with a C compiler (for the race detector), git and a POSIX shell; fetches
# the rest itself. "make" alone lists the targets. CI runs "make check", then "make check-full".

include tools/versions.mk

SHELL := /bin/sh
BIN := .bin
LINT := $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION)
VULNCHECK := $(BIN)/govulncheck-$(GOVULNCHECK_VERSION)
CYCLONEDX := $(BIN)/cyclonedx-gomod-$(CYCLONEDX_GOMOD_VERSION)
ASYNCAPI := $(BIN)/asyncapi-$(ASYNCAPI_PARSER_VERSION)
AXE := $(BIN)/axe-$(AXE_CORE_VERSION)

PKG ?= ./...
# Separate modules: the readers of the files in deploy, the benchmark program, the agents with clients of providers, and the
# browser driver.
DEPLOYCHECK := tools/deploycheck
BENCHMARKS := tools/bench
AGENTS := docs/examples/agents
DIST := tools/dist
UICHECK := tools/uicheck
TEST_TIMEOUT ?= 15m
FUZZTIME ?= 3s
# Cases of "make bench", all of them by default, and its flags.
BENCH ?=
BENCHFLAGS ?=
# How long each Go benchmark runs; "make check-full" only checks that each works.
BENCHTIME ?= 1s
# No file of the project is for one processor alone: a system is built for one of its processors (FULL=1: for another one of Linux, too).
PLATFORMS ?= $(if $(FULL),linux/arm64) darwin/arm64 windows/amd64

# Tiers of checks: docs/decisions/0041. In this order: steps that fail quickly come first. A failed step does not keep the others
# from running.
CHECK := generate-check lint vet short short-race
CHECK_FULL := deploycheck dist-short agents uicheck asyncapi cross fuzz gobench chaos-check short-race-rest bench-race long

# Packages whose tests "make check" runs under the race detector: the SDK, the stores, the daemon but its service. It makes tests three times
# slower: "make check-full" has it for the others, of which the service, the kill tests of publisher/waymarktest, the commands and the embedded
# server take longest. The longest package begins first.
RACED := ./publisher ./publisher/internal/... ./publisher/wire/... ./consumer ./consumer/internal/... \
	$(addprefix ./consumer/,activity assign fold liveness purge reader retention verify) ./kvstore/... \
	$(addprefix ./internal/,blob eventlog fleetclient jsapi keyring natsconn permissions spans)

# FULL=1 runs the whole of what "make check-full" samples.
FULL ?=
TIERS := go run ./tools/tiers
# Where the steps of a tier write the result of each test.
RECORDS ?=
RECORD = $(if $(RECORDS),-record $(RECORDS)/$@.json)
# More at a time on two cores waste them on polling: 245 s with 8, 216 s with 4.
PARALLEL ?= 4

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: check
check: ## before each push: generated files, lint, vet, and the tests but the long ones, a part of them under the race detector
	@LEFT_OUT="$(CHECK_FULL)" MAKE="$(MAKE)" sh tools/tier.sh check $(CHECK)

.PHONY: check-full
check-full: ## the remaining checks, which CI runs, too: long tests, fuzzing, cross-builds, seeded bugs (FULL=1: the whole of its samples, hours)
	@LEFT_OUT="chaos chaos-power soak bench vulncheck distcheck skew" MAKE="$(MAKE)" sh tools/tier.sh check-full $(CHECK_FULL)

.PHONY: build
build: ## build the waymark binary into .bin
	@mkdir -p $(BIN)
	go build -trimpath -o $(BIN)/ ./cmd/...

.PHONY: test
test: ## run the tests but the long ones, without the race detector (PKG=./schema for one package)
	$(TIERS) test -ram $(RECORD) -- -short -parallel $(PARALLEL) -timeout $(TEST_TIMEOUT) $(PKG)

# "vet" and "lint" have already checked everything: go test would vet again, and the tests of internal/lint only read sources. The longest
# packages begin first.
SHORT := -short -vet=off -parallel $(PARALLEL) -timeout $(TEST_TIMEOUT)
REST = ./internal/cli ./consumer/service ./publisher/waymarktest $$(go list ./... | grep -v '/internal/lint$$' | grep -vxF "$$(go list $(RACED))")

.PHONY: short
short: ## run the tests but the long ones, of the packages that "make short-race" leaves out
	$(TIERS) test -ram $(RECORD) -- $(SHORT) $(REST)

.PHONY: short-race
short-race: ## run the tests but the long ones under the race detector, of the SDK, the stores, and the daemon but its service
	$(TIERS) test -ram $(RECORD) -- -race $(SHORT) $(RACED)

.PHONY: short-race-rest
short-race-rest: ## run the tests of "make short" under the race detector, but those of which "make long" runs the whole under it
	$(TIERS) test -ram -skip-long $(RECORD) -- -race $(SHORT) $(REST)

.PHONY: bench-short
bench-short: ## run the tests of tools/bench but the long ones
	$(TIERS) test -ram $(RECORD) -- -C $(BENCHMARKS) $(SHORT) ./...

.PHONY: bench-race
bench-race: ## run all tests of tools/bench under the race detector
	$(TIERS) test $(RECORD) -- -C $(BENCHMARKS) -race -timeout $(TEST_TIMEOUT) ./...

.PHONY: long
long: ## run the long tests under the race detector, samples of the longest (FULL=1: all)
	@mkdir -p $(BIN)/test
	go build $(if $(FULL),-race) -o $(BIN)/test/ ./cmd/waymark ./internal/harness/nemesis/helper
	WAYMARK_TEST_BIN=$(CURDIR)/$(BIN)/test WAYMARK_E2E_FULL=$(FULL) \
		$(TIERS) test -long $(RECORD) -- -race -timeout $(if $(FULL),0,$(TEST_TIMEOUT))

.PHONY: race
race: ## run all tests under the race detector
	$(TIERS) test $(RECORD) -- -race -timeout $(TEST_TIMEOUT) $(PKG)

# The first seed (empty: 1), the number of schedules of "make chaos-inprocess", and how many run side by side.
SEED ?=
SCHEDULES ?= 10000
WORKERS ?= 8

.PHONY: chaos-check
chaos-check: ## run some random schedules in process, and check that every mutant is found
	@# Without the race detector, which "race" has: schedules by the hundred are what finds mistakes here.
	go run ./internal/harness/mutant/gen $(BIN)/mutants
	$(TIERS) test $(RECORD) -- -tags waymark_failpoints -overlay $(BIN)/mutants/overlay.json -timeout $(TEST_TIMEOUT) \
		./internal/failpoint ./internal/harness/mutant ./internal/harness/chaos

.PHONY: chaos-inprocess
chaos-inprocess: ## run very many random schedules in process (SEED=1 SCHEDULES=10000); a failing one prints its seed
	WAYMARK_SEED=$(SEED) WAYMARK_SCHEDULES=$(SCHEDULES) WAYMARK_WORKERS=$(WORKERS) \
		go test -tags waymark_failpoints -timeout 12h -run TestSchedules_Random_LoseNothingAcknowledged -v ./internal/harness/chaos

.PHONY: fuzz
fuzz: ## run each fuzz target for a few seconds (FUZZTIME=1m for longer)
	@FUZZTIME=$(FUZZTIME) sh tools/fuzz.sh

.PHONY: bench-build
bench-build: ## build the benchmark program into .bin/bench
	@mkdir -p $(BIN)
	go build -C $(BENCHMARKS) -trimpath -o "$(CURDIR)/$(BIN)/" .

.PHONY: bench
bench: bench-build ## compare Waymark with raw JetStream (BENCH="boundary lag" BENCHFLAGS="--server cluster"; see .bin/bench run --help)
	$(BIN)/bench run $(BENCH) $(BENCHFLAGS)

# Where "make bench-all" and "make bench-peers" write their lines, and for which systems.
BENCH_OUT ?= bench-results.jsonl
PEERS_OUT ?= bench-peers.jsonl
PEERS ?=

.PHONY: bench-all
bench-all: bench-build ## measure every case on one server and on a cluster of three, then report (idle machine; 15 to 25 minutes)
	rm -f $(BENCH_OUT)
	@failed=0; \
	$(BIN)/bench run --out $(BENCH_OUT) $(BENCHFLAGS) || failed=$$?; \
	$(BIN)/bench run boundary boundaries turn lag fold growth kept recovery --server cluster --rounds 3 --out $(BENCH_OUT) $(BENCHFLAGS) || failed=$$?; \
	$(BIN)/bench report $(BENCH_OUT) $(wildcard $(PEERS_OUT)) --report bench-report && exit $$failed

.PHONY: peers
peers:
	@mkdir -p $(BIN)/peers
	cp $(BENCHMARKS)/peers/*.mjs $(BENCHMARKS)/peers/package*.json $(BIN)/peers/
	npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(BIN)/peers

.PHONY: bench-peers
bench-peers: peers ## measure Restate, DBOS and LangGraph with the same workload (needs node, npm and PostgreSQL; 4 minutes)
	node $(BIN)/peers/main.mjs $(PEERS) >$(PEERS_OUT)

# Rounds of "make bench-turn", in each of which Waymark and then the other systems are measured; runs of one process, and runs that have
# an executor process each. PEERS chooses other systems than Restate, PEERS_STORE the disk of all.
TURN_OUT ?= bench-turn.jsonl
TURN_ROUNDS ?= 5
TURN_RUNS ?= 1 16 64
TURN_EXECUTORS ?= 64
TURN_BENCH = $(BIN)/bench run turn --quiet --rounds 1 --out $(TURN_OUT) $(if $(PEERS_STORE),--store $(PEERS_STORE)) $(if $(PEERS_QUICK),--quick) $(BENCHFLAGS)

.PHONY: bench-turn
bench-turn: bench-build peers ## measure whole turns of Waymark and Restate in turns, then report (idle machine; 3 to 5 minutes)
	rm -f $(TURN_OUT)
	@set -e; for round in $$(seq $(TURN_ROUNDS)); do \
		echo "round $$round of $(TURN_ROUNDS)"; \
		for runs in $(TURN_RUNS); do $(TURN_BENCH) --runs $$runs; done; \
		for runs in $(TURN_EXECUTORS); do $(TURN_BENCH) --runs $$runs --executors $$runs; done; \
		PEERS_RUNS="$(TURN_RUNS)" node $(BIN)/peers/main.mjs --turn $(or $(PEERS),restate) >>$(TURN_OUT); \
	done
	$(BIN)/bench report $(TURN_OUT)

# The packages that have Go benchmarks.
BENCHED = $$(git grep -l --untracked '^func Benchmark' -- '*_test.go' | sed 's,/[^/]*$$,,;s,^,./,' | sort -u)

.PHONY: gobench
gobench: ## run the packages' Go benchmarks, for work on one of them (BENCHTIME=5s PKG=./publisher)
	@# A tier links the packages that have one alone: the others are most of the time.
	$(if $(RECORDS),$(TIERS) test $(RECORD) --,go test) -run '^$$' -bench . -benchtime $(if $(RECORDS),1x,$(BENCHTIME)) -timeout $(TEST_TIMEOUT) $(if $(RECORDS),$(BENCHED),$(PKG))

# Rounds of "make chaos", each with its own seed from SEED on (empty: another one each time); SERVERS is 1 or 3, empty is
# both. CHAOSFLAGS="-run TestDamage" runs others.
ROUNDS ?= 10
SERVERS ?=
CUTS ?= 1
CHAOSFLAGS ?= -run RandomFaults

.PHONY: chaos
chaos: ## break real processes on purpose, round after round (SEED=1 ROUNDS=10 SERVERS=3; about a minute a round)
	WAYMARK_E2E_FULL=1 WAYMARK_CHAOS_SEED=$(SEED) WAYMARK_CHAOS_ROUNDS=$(ROUNDS) WAYMARK_CHAOS_SERVERS=$(SERVERS) WAYMARK_CHAOS_CUTS=$(CUTS) \
		go test -count=1 -timeout 0 -v $(CHAOSFLAGS) ./internal/harness/nemesis

.PHONY: chaos-power
chaos-power: ## cut the power of all servers, under load and at aimed moments (CUTS=50 SERVERS=1; as root, on Linux)
	@$(MAKE) --no-print-directory chaos CHAOSFLAGS="-run PowerCut"

# How long "make soak" takes, and what it breaks meanwhile: mild or none.
DURATION ?= 1h
FAULTS ?= mild

.PHONY: soak
soak: ## do the same work for hours: memory, files, goroutines and the store stay as they are (DURATION=8h SERVERS=3 FAULTS=none)
	WAYMARK_SOAK=$(DURATION) WAYMARK_SOAK_FAULTS=$(FAULTS) WAYMARK_CHAOS_SEED=$(SEED) WAYMARK_CHAOS_SERVERS=$(SERVERS) \
		go test -count=1 -timeout 0 -v -run TestSoak_ ./internal/harness/nemesis

.PHONY: lint
lint: $(LINT) ## run golangci-lint, layers and formatting included, and this project's own rules
	@# The modules whose dependencies are large are linted by their own steps: deploycheck, dist-short, agents, uicheck.
	$(LINT) run $(PKG)
	cd $(BENCHMARKS) && $(CURDIR)/$(LINT) run --config $(CURDIR)/.golangci.yml ./...
	$(TIERS) test $(RECORD) -- ./internal/lint

# Flags of "make structure": "-files consumer/...", "-against v1.2.0", "-binary".
STRUCTUREFLAGS ?=

.PHONY: structure
structure: ## measure the code: lines, imports, exported names, methods (STRUCTUREFLAGS="-files consumer -against main~10"; -h lists them)
	go run ./tools/structure $(STRUCTUREFLAGS)

.PHONY: fmt
fmt: $(LINT) ## format the code as lint requires
	$(LINT) fmt

.PHONY: vet
vet: ## run go vet with failpoints compiled in, where that is other code; lint has govet for the code without them
	go vet -tags waymark_failpoints $$(git grep -l --untracked -E '^//go:build .*waymark_failpoints' -- '*.go' | sed 's,/[^/]*$$,,;s,^,./,' | sort -u)

.PHONY: deploycheck
deploycheck: $(LINT) ## pass the files in deploy to their real readers: kustomize, compose, buildkit, Prometheus (a separate module)
	cd $(DEPLOYCHECK) && $(CURDIR)/$(LINT) run --config $(CURDIR)/.golangci.yml ./...
	$(TIERS) test $(RECORD) -- -C $(DEPLOYCHECK) -count=1 -timeout $(TEST_TIMEOUT) ./...

.PHONY: agents
agents: $(LINT) ## kill the example agents of docs/examples/agents, which use local fakes of the providers' APIs (a separate module)
	@go -C $(AGENTS) mod download || { echo "agents: NOT TESTED: the modules of $(AGENTS) cannot be fetched" >&2; exit 1; }
	cd $(AGENTS) && $(CURDIR)/$(LINT) run --config $(CURDIR)/.golangci.yml ./...
	$(TIERS) test $(RECORD) -- -C $(AGENTS) -count=1 -timeout $(TEST_TIMEOUT) ./...

.PHONY: uicheck
uicheck: $(LINT) ## check the inspector in headless Chromium, with the rules of axe-core from npm (a separate module)
	@go -C $(UICHECK) mod download || { echo "uicheck: NOT TESTED: the modules of $(UICHECK) cannot be fetched" >&2; exit 1; }
	cd $(UICHECK) && $(CURDIR)/$(LINT) run --config $(CURDIR)/.golangci.yml ./...
	@command -v chromium chromium-browser google-chrome chrome $$WAYMARK_CHROMIUM >/dev/null || echo "uicheck: NOT TESTED in a browser: there is no Chromium (on Debian: apt-get install chromium)" >&2
	@AXE="$$(sh tools/uicheck.sh $(AXE) $(AXE_CORE_VERSION))"; [ -n "$$AXE" ] || echo "uicheck: NOT TESTED for accessibility: npm cannot fetch axe-core@$(AXE_CORE_VERSION)" >&2; \
	WAYMARK_AXE="$$AXE" WAYMARK_UI_FULL=$(FULL) $(TIERS) test $(RECORD) -- -C $(UICHECK) -count=1 -v -timeout $(TEST_TIMEOUT) ./...

.PHONY: cross
cross: ## build the program and vet all code for the other platforms
	@# go vet compiles what other packages import, and checks the types of all. go build ./... would link nine programs.
	@set -e; for platform in $(PLATFORMS); do \
		echo "go build, go vet: $$platform"; \
		export CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/}; \
		go build -o /dev/null ./cmd/waymark; \
		go vet ./...; \
		go vet -C $(BENCHMARKS) ./...; \
	done

.PHONY: golden
golden: ## write a golden store of this version's stored formats, after a new one (30 seconds)
	WAYMARK_GOLDEN=write go test ./internal/harness/e2e -run TestGoldenStores -count=1

.PHONY: generate
generate: ## write the generated files again
	go generate ./...

.PHONY: generate-check
generate-check: ## fail when a generated file is out of date
	@sh tools/generate-check.sh

.PHONY: asyncapi
asyncapi: ## validate the AsyncAPI document (needs npm)
	@sh tools/asyncapi.sh $(ASYNCAPI) $(ASYNCAPI_PARSER_VERSION)
	$(TIERS) test $(RECORD) -- -count=1 -run TestAsyncAPI_Document_Valid ./schema

# The manual page is generated from the reference, which is generated from the grammar.
MANPAGE ?= $(BIN)/waymark.1

.PHONY: man
man: ## write the manual page to .bin/waymark.1, or MANPAGE=FILE
	@mkdir -p $(dir $(MANPAGE))
	go run ./tools/manpages docs/cli.md $(MANPAGE)
	@echo "man: $(MANPAGE)"

# The list of parts of the binary, CycloneDX as JSON, licences included.
SBOM ?= $(BIN)/waymark.cdx.json

.PHONY: sbom
sbom: $(CYCLONEDX) ## write the binary's list of parts (CycloneDX) to .bin/waymark.cdx.json, or SBOM=FILE
	$(CYCLONEDX) app -json -licenses -main cmd/waymark -output $(SBOM) .
	@echo "sbom: $(SBOM)"

# The files of a release, in DIST_OUT: archives, packages, image, lists of parts, checksums. VERSION: that of the commit's tag, else a -dev
# of the next one.
DIST_OUT ?= $(BIN)/dist
VERSION ?=
DIST_PROGRAM := $(BIN)/dist-program

.PHONY: dist
dist: dist-build ## make a release into .bin/dist: archives of six platforms, .deb, .rpm, image, licences, lists of parts, checksums
	$(DIST_PROGRAM) -next $(NEXT_VERSION) -version "$(VERSION)" -cyclonedx "$(CURDIR)/$(CYCLONEDX)" -out $(DIST_OUT)

.PHONY: dist-build
dist-build: $(CYCLONEDX)
	go build -C $(DIST) -o "$(CURDIR)/$(DIST_PROGRAM)" .

.PHONY: dist-short
dist-short: $(LINT) ## run the tests of tools/dist without builds and installations
	cd $(DIST) && $(CURDIR)/$(LINT) run --config $(CURDIR)/.golangci.yml ./...
	$(TIERS) test $(RECORD) -- -C $(DIST) -count=1 -timeout $(TEST_TIMEOUT) ./...

# The Debian system in which packages are installed, created once.
DISTCHECK := $(BIN)/distcheck
SUITE ?= bookworm
DISTCHECK_DIST = $(DIST_PROGRAM) -cyclonedx "$(CURDIR)/$(CYCLONEDX)"

.PHONY: distcheck
distcheck: dist-build ## install, start, upgrade and remove packages and image in separate machines (Linux on amd64, as root)
	@[ "$$(id -u)" = 0 ] || { echo "distcheck: NOT TESTED: it installs packages, and needs root" >&2; exit 1; }
	@for tool in debootstrap systemd-nspawn; do command -v $$tool >/dev/null || \
		{ echo "distcheck: NOT TESTED: $$tool is not there (Debian: apt-get install debootstrap systemd-container)" >&2; exit 1; }; done
	@mkdir -p $(DISTCHECK)
	[ -e $(DISTCHECK)/root/made ] || { rm -rf $(DISTCHECK)/root; debootstrap --variant=minbase \
		--include=rpm,cpio,procps,systemd,systemd-sysv,dbus $(SUITE) $(DISTCHECK)/root >$(DISTCHECK)/debootstrap.log && touch $(DISTCHECK)/root/made; }
	$(DISTCHECK_DIST) -version 0.1.0 -platforms linux/amd64,linux/arm64 -out $(DISTCHECK)/0.1.0
	$(DISTCHECK_DIST) -version 0.1.1 -platforms linux/amd64 -out $(DISTCHECK)/0.1.1
	$(DISTCHECK_DIST) -version 0.1.1 -platforms linux/amd64 -out $(DISTCHECK)/again
	WAYMARK_DISTCHECK="$(CURDIR)/$(DISTCHECK)" go test -C $(DIST) -count=1 -timeout $(TEST_TIMEOUT) -v ./...

# The older version of "make skew": any commit.
OLDER ?=

.PHONY: skew
skew: ## run daemons and executors of two versions on one fleet, and kill them (OLDER=COMMIT; 2 minutes)
	@[ -n "$(OLDER)" ] || { echo "skew: say which version: make skew OLDER=COMMIT" >&2; exit 2; }
	@older=$$(git rev-parse --verify "$(OLDER)^{commit}") && rm -rf $(BIN)/skew && mkdir -p $(BIN)/skew/source $(BIN)/skew/$$older && \
	git archive $$older | tar -x -C $(BIN)/skew/source && \
	go build -C $(BIN)/skew/source -o "$(CURDIR)/$(BIN)/skew/$$older/" ./cmd/waymark ./internal/harness/nemesis/helper && \
	WAYMARK_SKEW_OLDER="$(CURDIR)/$(BIN)/skew/$$older" go test -count=1 -timeout $(TEST_TIMEOUT) -v -run TestVersions ./internal/harness/nemesis

.PHONY: vulncheck
vulncheck: $(VULNCHECK) ## look for known vulnerabilities (asks vuln.go.dev; exit 75 if it is unreachable)
	@sh tools/vulncheck.sh $(VULNCHECK)

.PHONY: demo
demo: build ## run the demonstration
	$(BIN)/waymark demo

.PHONY: clean
clean: ## remove built and fetched files
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

# A separate module pins it, with all of its dependencies.
$(CYCLONEDX): tools/sbom/go.mod
	@mkdir -p $(BIN)
	cd tools/sbom && go build -o "$(CURDIR)/$@" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
