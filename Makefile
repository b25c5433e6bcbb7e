# Waymark's tasks. Needs a Go toolchain, git and a POSIX shell, for the race detector a C compiler; fetches the rest itself.
# "make" alone lists the targets. CI runs "make check", then "make check-full".

include tools/versions.mk

BIN := $(CURDIR)/.bin
LINT := $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION)
VULNCHECK := $(BIN)/govulncheck-$(GOVULNCHECK_VERSION)
CYCLONEDX := $(BIN)/cyclonedx-gomod-$(CYCLONEDX_GOMOD_VERSION)
GOTESTSUM := $(BIN)/gotestsum-$(GOTESTSUM_VERSION)

# Tiers of checks: docs/decisions/0041. Steps that fail quickly come first; a failed step does not keep the others from running.
CHECK := generate-check lint vet short race
CHECK_FULL := dist-short deploycheck agents agentcheck frameworkcheck mcpcheck uicheck bench-short cross fuzz chaos-check long
NIGHTLY := vulncheck deploycheck agents agentcheck frameworkcheck mcpcheck uicheck cross fuzz chaos-check race-all bench-race day chaos-inprocess chaos chaos-power soak distcheck

# Packages whose tests "make check" runs under the race detector: the SDK, the stores, the daemon but its service. It makes tests
# three times slower: "make nightly" has it for the others. The longest package begins first.
RACED := ./publisher ./publisher/internal/... ./publisher/wire/... ./consumer ./consumer/internal/... \
	$(addprefix ./consumer/,activity fold liveness purge reader retention verify) ./kvstore/... \
	$(addprefix ./internal/nats/,access blob eventlog fleetclient jsapi natsconn) ./internal/base/keyring
REST = ./internal/cli ./consumer/service ./publisher/waymarktest $$(go list ./... | grep -v '/internal/lint$$' | grep -vxF "$$(go list $(RACED))")

# FULL=1 runs the whole of what "make check-full" samples. RECORDS is where a step leaves what became of each test.
FULL ?=
PKG ?= ./...
TIMEOUT ?= 15m
RECORDS ?= $(BIN)/records/alone
# Without debug information a test's program is linked in half the time.
QUICK := -vet=off -ldflags=-w
SHORT := -short $(QUICK) -parallel 4
IN_MEMORY = export GOTMPDIR= $$(sh tools/ram.sh);
TIER := MAKE="$(MAKE)" GOTESTSUM="$(GOTESTSUM)" sh tools/tier.sh
TEST = mkdir -p $(RECORDS) && $(GOTESTSUM) --format pkgname --format-hide-empty-pkg --hide-summary skipped --jsonfile $(RECORDS)/$@.json -- -timeout $(TIMEOUT)
# A process with the race detector sleeps a second at its end, and its shadow memory is in small pages, unless told otherwise.
export GORACE := atexit_sleep_ms=0 no_huge_pages_for_shadow=0 $(GORACE)
# What a step cannot do on this machine is said at once, and at the end of the tier.
NOT_TESTED = { mkdir -p $(RECORDS); echo "NOT TESTED: $@: $(1)" | tee -a $(RECORDS)/not-tested >&2; exit 0; }
# Lint and tests of a module of its own, with flags of its tests: its dependencies are large.
MODULE = go -C $(1) mod download || $(call NOT_TESTED,the modules of $(1) cannot be fetched); \
	cd $(1) && $(LINT) run --config $(CURDIR)/.golangci.yml ./... && $(TEST) -count=1 $(2) ./...
# The path of Claude Code, from npm; empty where npm cannot fetch it.
CLAUDE = $$(sh tools/npm.sh $(BIN)/claude-$(CLAUDE_CODE_VERSION) claude @anthropic-ai/claude-code@$(CLAUDE_CODE_VERSION))
# The folders of files that have a line like this.
WITH = $$(git grep -l --untracked -E '$(1)' -- '*.go' ':!tools' | sed 's,/[^/]*$$,,;s,^,./,' | sort -u)

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
build: ## build the waymark binary into .bin
	go build -trimpath -o $(BIN)/ ./cmd/...
demo: build ## run the demonstration
	$(BIN)/waymark demo
clean: ## remove built and fetched files
	rm -rf $(BIN)

test: $(GOTESTSUM) ## run all tests but the long ones, without linter and race detector (PKG=./schema for one package)
	@LATER="lint and the race detector (make check), the long tests (make check-full)" $(TIER) test tests
check: $(GOTESTSUM) ## before each push: generated files, lint, vet, all tests but the long ones, those of the core under the race detector
	@LATER="$(CHECK_FULL) (make check-full, or one of them)" $(TIER) check $(CHECK)
check-full: $(GOTESTSUM) ## what CI runs after "make check": long tests, other modules, fuzzing, seeded bugs; of the longest a sample
	@LATER="$(NIGHTLY) (make nightly, or one of them)" $(TIER) check-full $(CHECK_FULL)
nightly: $(GOTESTSUM) ## the whole of what the other tiers sample, and what takes hours: docs/reliability.md has the last counts
	@FULL=1 LATER="make skew OLDER=COMMIT, make bench" $(TIER) nightly $(NIGHTLY)

# Steps of the tiers.
tests: $(GOTESTSUM)
	$(IN_MEMORY) $(TEST) $(SHORT) $(PKG)
short: $(GOTESTSUM) ## run the tests but the long ones, of the packages that "make race" leaves out
	$(IN_MEMORY) $(TEST) $(SHORT) $(REST)
race: $(GOTESTSUM) ## run the tests but the long ones under the race detector: of the SDK, the stores, the daemon but its service
	$(IN_MEMORY) $(TEST) -race $(SHORT) $(RACED)
long: $(GOTESTSUM) ## run the long tests, samples of the longest
	go build -ldflags=-w -o $(BIN)/test/ ./cmd/waymark
	set -f; WAYMARK_TEST_BIN=$(BIN)/test $(TEST) $(QUICK) $$(sh tools/long.sh)
race-all: $(GOTESTSUM) ## run all tests under the race detector, the long ones included (FULL=1: the whole of each, hours)
	WAYMARK_E2E_FULL=$(FULL) $(TEST) -race -timeout $(if $(FULL),0,$(TIMEOUT)) $(PKG)
lint: $(LINT) $(GOTESTSUM) ## run golangci-lint, layers and formatting included, and this project's own rules
	$(LINT) run $(PKG)
	cd tools/bench && $(LINT) run --config $(CURDIR)/.golangci.yml ./...
	$(TEST) ./internal/lint
fmt: $(LINT) ## format the code as lint requires
	$(LINT) fmt
vet: ## run go vet with failpoints compiled in, where that is other code; lint has govet for the code without them
	go vet -tags waymark_failpoints $(call WITH,^//go:build .*waymark_failpoints)
generate: ## write the generated files again
	go generate ./...
generate-check: ## fail when a generated file is out of date
	@sh tools/generate-check.sh
golden: ## write a golden store of this version's stored formats, after a new one (30 seconds)
	WAYMARK_GOLDEN=write go test ./internal/harness/nemesis -run TestGoldenStores -count=1
dist-short: $(LINT) $(GOTESTSUM) ## run the tests of tools/dist without builds and installations
	$(call MODULE,tools/dist)
deploycheck: $(LINT) $(GOTESTSUM) ## pass the files in deploy to their real readers: kustomize, compose, buildkit, Prometheus
	$(call MODULE,tools/deploycheck,-parallel 6)
agents: $(LINT) $(GOTESTSUM) ## kill the example agents of docs/examples/agents, which use local fakes of the providers' APIs
	$(call MODULE,docs/examples/agents)
uicheck: $(LINT) $(GOTESTSUM) ## check the inspector in headless Chromium, with axe-core and Claude Code from npm
	export WAYMARK_AXE="$$(sh tools/npm.sh $(BIN)/axe-$(AXE_CORE_VERSION) axe-core/axe.min.js axe-core@$(AXE_CORE_VERSION))" WAYMARK_CLAUDE="$(CLAUDE)" WAYMARK_UI_FULL=$(FULL); $(call MODULE,tools/uicheck)
agentcheck: $(GOTESTSUM) ## kill Claude Code and Codex, from npm, under waymark agent, with scripted models (FULL=1: 100 and 30 kills)
	export WAYMARK_CLAUDE="$(CLAUDE)" \
		WAYMARK_CODEX="$$(sh tools/npm.sh $(BIN)/codex-$(CODEX_VERSION) codex @openai/codex@$(CODEX_VERSION))" $(if $(FULL),WAYMARK_E2E_FULL=1); \
	[ -n "$$WAYMARK_CLAUDE$$WAYMARK_CODEX" ] || $(call NOT_TESTED,npm cannot fetch Claude Code and Codex); \
	$(TEST) -count=1 ./internal/cli/agent
frameworkcheck: $(GOTESTSUM) ## kill programs of LangGraph, OpenAI Agents and the AI SDK, from npm, under waymark worker
	export WAYMARK_FRAMEWORKS="$$(sh tools/npm.sh $(BIN)/frameworks-$(LANGGRAPH_VERSION)-$(OPENAI_AGENTS_VERSION)-$(AI_SDK_VERSION) "" @langchain/langgraph@$(LANGGRAPH_VERSION) \
		@langchain/core@$(LANGCHAIN_CORE_VERSION) @openai/agents-core@$(OPENAI_AGENTS_VERSION) ai@$(AI_SDK_VERSION))"; \
	[ -n "$$WAYMARK_FRAMEWORKS" ] || $(call NOT_TESTED,npm cannot fetch LangGraph OpenAI Agents and the AI SDK); \
	$(TEST) -count=1 -run Frameworks ./internal/adapter/worker
mcpcheck: $(GOTESTSUM) ## check waymark mcp with the conformance suite and server-everything, from npm (FULL=1: 50 kills of each process)
	export WAYMARK_MCP_NPM="$$(sh tools/npm.sh $(BIN)/mcp-$(MCP_CONFORMANCE_VERSION)-$(MCP_EVERYTHING_VERSION) "" \
		@modelcontextprotocol/conformance@$(MCP_CONFORMANCE_VERSION) @modelcontextprotocol/server-everything@$(MCP_EVERYTHING_VERSION))" $(if $(FULL),WAYMARK_E2E_FULL=1); \
	[ -n "$$WAYMARK_MCP_NPM" ] || $(call NOT_TESTED,npm cannot fetch the conformance suite of MCP); \
	$(TEST) -count=1 $(if $(FULL),,-run 'ServerEverything|ConformanceSuite') ./internal/cli/mcp
bench-short: $(GOTESTSUM) ## run the tests of tools/bench but the long ones
	cd tools/bench && $(TEST) $(SHORT) ./...
bench-race: $(GOTESTSUM) ## run all tests of tools/bench under the race detector
	cd tools/bench && $(TEST) -race ./...
cross: ## build the program and vet all code for Windows (FULL=1: for macOS and another processor of Linux, too)
	@# go vet compiles what other packages import, and checks the types of all. go build ./... would link each program.
	@set -e; for platform in windows/amd64 $(if $(FULL),darwin/arm64 linux/arm64); do \
		echo "go build, go vet: $$platform"; \
		export CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/}; \
		go build -o /dev/null ./cmd/waymark; go vet ./...; go vet -C tools/bench ./...; \
	done
fuzz: ## run the fuzz targets of the stored formats for some seconds (FULL=1: each target, a minute; FUZZTIME=1h)
	@FUZZTIME=$(or $(FUZZTIME),$(if $(FULL),1m,5s)) FUZZDIRS="$(if $(FULL),,schema kvstore)" sh tools/fuzz.sh
chaos-check: $(GOTESTSUM) ## run some random schedules in process, and check that every mutant is found
	go run ./internal/harness/mutant/gen $(BIN)/mutants
	$(TEST) -tags waymark_failpoints -overlay $(BIN)/mutants/overlay.json ./internal/base/failpoint ./internal/harness/mutant ./internal/harness/chaos
vulncheck: $(VULNCHECK) ## look for known vulnerabilities (asks vuln.go.dev)
	@sh tools/vulncheck.sh $(VULNCHECK) || { [ $$? = 75 ] && $(call NOT_TESTED,the database of vulnerabilities cannot be reached); }

# SEED is the first seed (empty: 1, of "make chaos" another one each time), SERVERS is 1 or 3 (empty: both).
CHAOSFLAGS ?= -run RandomFaults
CHAOS = WAYMARK_CHAOS_SEED=$(SEED) WAYMARK_CHAOS_SERVERS=$(SERVERS)
chaos-inprocess: ## run very many random schedules in process (SEED=1 SCHEDULES=10000); a failing one prints its seed
	WAYMARK_SEED=$(SEED) WAYMARK_SCHEDULES=$(or $(SCHEDULES),10000) WAYMARK_WORKERS=8 \
		go test -tags waymark_failpoints -timeout 12h -run TestSchedules_Random_LoseNothingAcknowledged -v ./internal/harness/chaos
chaos: ## break real processes on purpose, round after round (SEED=1 ROUNDS=10 SERVERS=3; about a minute a round)
	$(CHAOS) WAYMARK_E2E_FULL=1 WAYMARK_CHAOS_ROUNDS=$(or $(ROUNDS),10) go test -count=1 -timeout 0 -v $(CHAOSFLAGS) ./internal/harness/nemesis
chaos-power: ## cut the power of all servers, under load and at aimed moments (CUTS=50 SERVERS=1; as root, on Linux)
	@[ "$$(id -u)" = 0 ] || $(call NOT_TESTED,it mounts disks: run it as root); \
	$(CHAOS) WAYMARK_E2E_FULL=1 WAYMARK_CHAOS_CUTS=$(or $(CUTS),1) go test -count=1 -timeout 0 -v -run PowerCut ./internal/harness/nemesis
day: ## live through a day in ten minutes: provider limits, a deploy, pauses, kills; report in .bin/day
	mkdir -p $(BIN)/day
	WAYMARK_DAY=1 WAYMARK_DAY_REPORT=$(BIN)/day/report.md go test -count=1 -timeout 1h -v ./internal/harness/day
soak: ## do the same work for hours: memory, files, goroutines and the store stay as they are (DURATION=8h SERVERS=3 FAULTS=none)
	$(CHAOS) WAYMARK_SOAK=$(or $(DURATION),1h) WAYMARK_SOAK_FAULTS=$(or $(FAULTS),mild) go test -count=1 -timeout 0 -v -run TestSoak_ ./internal/harness/nemesis
skew: ## run daemons and executors of two versions on one fleet, and kill them (OLDER=COMMIT; 2 minutes)
	@sh tools/skew.sh "$(OLDER)"

# Measurements. tools/bench/peers/turn.sh has the variables of "make bench-turn".
TEMPORAL := $(BIN)/temporal-$(TEMPORAL_CLI_VERSION)
export PEERS_GO := $(BIN)/peers-go
export PEERS_TEMPORAL := $(TEMPORAL)
bench-build:
	go build -C tools/bench -trimpath -o $(BIN)/ .
bench: bench-build ## compare Waymark with raw JetStream (BENCH="boundary turn" BENCHFLAGS="--server cluster"; see .bin/bench run --help)
	$(BIN)/bench run $(BENCH) $(BENCHFLAGS)
peers: $(if $(findstring temporal,$(PEERS)),$(TEMPORAL))
	mkdir -p $(BIN)/peers && cp tools/bench/peers/*.mjs tools/bench/peers/package*.json $(BIN)/peers/
	npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(BIN)/peers
	go build -C tools/bench/peers/go -trimpath -o $(PEERS_GO) .
bench-peers: peers ## measure Restate, DBOS and LangGraph with the same workload (needs node, npm and PostgreSQL; 4 minutes; PEERS="temporal")
	node $(BIN)/peers/main.mjs $(PEERS) >bench-peers.jsonl
bench-turn: bench-build peers ## measure whole turns of Waymark and Restate in turns, then report (idle machine; 3 to 5 minutes)
	@sh tools/bench/peers/turn.sh $(BIN)
bench-page: bench-build peers $(TEMPORAL) ## measure all figures of docs/performance.md and write its tables (idle machine; needs node, npm and PostgreSQL; 20 minutes; PAGE_QUICK=1 only tries)
	@sh tools/bench/peers/page.sh $(BIN)

# A release, in .bin/dist. VERSION: that of the commit's tag, else a -dev of the next one.
DIST = $(BIN)/dist-program -cyclonedx "$(CYCLONEDX)"
dist-build: $(CYCLONEDX)
	go build -C tools/dist -o $(BIN)/dist-program .
dist: dist-build ## make a release into .bin/dist: archives of six platforms, .deb, .rpm, image, licences, lists of parts, checksums
	$(DIST) -next $(NEXT_VERSION) -version "$(VERSION)" -out $(BIN)/dist
distcheck: dist-build $(GOTESTSUM) ## install, start, upgrade and remove packages and image in separate machines (Linux on amd64, as root)
	@[ "$$(id -u)" = 0 ] && command -v debootstrap systemd-nspawn >/dev/null || \
		$(call NOT_TESTED,it needs root and a Debian with debootstrap and systemd-container); \
	sh tools/distcheck.sh $(BIN)/distcheck $(DIST) && export WAYMARK_DISTCHECK=$(BIN)/distcheck && cd tools/dist && $(TEST) -count=1 -v ./...
man: ## write the manual page to .bin/waymark.1
	mkdir -p $(BIN) && go run ./tools/manpages docs/cli.md $(BIN)/waymark.1
sbom: $(CYCLONEDX) ## write the binary's list of parts, CycloneDX with licences, to .bin/waymark.cdx.json
	$(CYCLONEDX) app -json -licenses -main cmd/waymark -output $(BIN)/waymark.cdx.json .

# Tools. The version is part of the name, so that a new one is fetched when versions.mk changes. A module pins two with all of their dependencies.
$(LINT):
	GOBIN=$(BIN) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION) && mv $(BIN)/golangci-lint $@
$(TEMPORAL):
	GOBIN=$(BIN) go install -trimpath github.com/temporalio/cli/cmd/temporal@$(TEMPORAL_CLI_VERSION) && mv $(BIN)/temporal $@
$(VULNCHECK):
	GOBIN=$(BIN) go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) && mv $(BIN)/govulncheck $@
$(CYCLONEDX) $(GOTESTSUM): tools/pinned/go.mod
	go build -C tools/pinned -o $@ $(if $(filter $@,$(GOTESTSUM)),gotest.tools/gotestsum,github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod)
