# Floodgate. `make help` lists the targets; CONTRIBUTING.md says more.

.DEFAULT_GOAL := help
.PHONY: help demo run up down test test-cluster check lint build soak bench pages rehearse dist manifests helm

MODULES := gateway backend shared lua embedded e2e tools deploy

# Everything but the race detector builds without a C compiler.
export CGO_ENABLED := 0
# One set of flags for the binaries, the tests and the lint: each package is compiled once for all of them.
export GOFLAGS := -trimpath $(GOFLAGS)

# Ends with a plain sentence where Go is missing or too old.
need_go = @command -v go >/dev/null || { echo "make: Go is not installed, or not in PATH: install Go 1.26 or newer, https://go.dev/dl/" >&2; exit 1; }; \
	v=$$(go version 2>&1 | sed -n 's/.*go version go\([0-9.]*\).*/\1/p'); \
	[ "$$(printf '%s\n' 1.26 "$${v:-0}" | sort -V | head -n 1)" = 1.26 ] || \
	{ echo "make: Go 1.26 or newer is needed, this is $${v:-unknown} ($$(command -v go)): https://go.dev/dl/" >&2; exit 1; }

# What --version says: -buildvcs fails in a checkout that another user owns.
linked = -X floodgate.internal/shared/version.linkedVersion=$(shell git describe --tags --dirty --abbrev=12 2>/dev/null) \
	-X floodgate.internal/shared/version.linkedCommit=$(shell git describe --always --exclude '*' --dirty --abbrev=12 2>/dev/null)
build_to = go build -buildvcs=false -ldflags '$(linked)' -o build/

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## a whole sale in one command, embedded, only Go needed; ends with an audit (build/demo.json)
	$(need_go)
	@$(build_to) ./embedded/cmd/floodgate-embedded
	@build/floodgate-embedded demo

run: ## the embedded system in the foreground on 8080/8081/9080/9081, with sample sales; Ctrl-C ends it
	$(need_go)
	@$(build_to) ./embedded/cmd/floodgate-embedded ./gateway/cmd/gateway ./backend/cmd/backend
	@exec build/floodgate-embedded run

up: ## the real system (Redis, RabbitMQ, MariaDB, backend, gateway) under .run/; installs servers that are missing, with apt
	$(need_go)
	@$(build_to) ./gateway/cmd/gateway ./backend/cmd/backend ./e2e/cmd/stack
	@build/stack up

down: ## stop what `make up` started; CLEAN=1 removes its data, too
	$(need_go)
	@$(build_to) ./e2e/cmd/stack
	@build/stack down $(if $(CLEAN),-clean)

build: ## the binaries, into build/, and the schemas of their configurations, for editors
	$(need_go)
	$(build_to) ./gateway/cmd/gateway ./backend/cmd/backend ./embedded/cmd/floodgate-embedded ./e2e/cmd/stack
	@for b in gateway backend; do build/$$b schema --comments configs/$$b.yaml > build/$$b.schema.json || exit 1; done

check: lint ## the fast part of the tests: format, vet, lint, unit tests; no servers
	go test -short work

lint:
	$(need_go)
	@bad=$$(gofmt -l $(MODULES)); [ -z "$$bad" ] || { echo "gofmt: not formatted (gofmt -w them):" $$bad >&2; exit 1; }
	go vet work
	go vet -tags servers work
	@GOWORK=off go -C tools build -o ../build/tools/ honnef.co/go/tools/cmd/staticcheck
	build/tools/staticcheck -tags servers work
	@for m in $(MODULES); do echo "GOWORK=off go -C $$m build ./..."; GOWORK=off go -C $$m build ./... || exit 1; done

# Which phases of the tests, and how often, stopping at the first failure: make test PHASES=e2e TIMES=20. e2e/cmd/phases says what they are.
PHASES ?=
TIMES ?= 1

test: build ## everything CI runs, on private real servers; installs them, and what else the tests need, with apt
	build/stack install servers race browser proxies docs shells deploy prometheus
	@$(build_to) ./e2e/cmd/phases
	@build/stack exec -memory -dir build/test-servers -- build/phases --times $(TIMES) $(PHASES)

test-cluster: build ## those of the tests that have several nodes: Redis Cluster and Sentinel, RabbitMQ, MySQL's replicas and Galera, gateways, backends
	build/stack install servers race
	@$(build_to) ./e2e/cmd/phases
	@build/stack exec -memory -dir build/test-servers -- build/phases --times $(TIMES) cluster nodes

MINUTES ?= 30

soak: build ## kill random parts of the real system under load for MINUTES=30, then every other fault; ends with the table build/soak.md
	build/stack install servers race
	FLOODGATE_SOAK=$(MINUTES)m go test -tags servers -count=1 -timeout $$(($(MINUTES) + 60))m -v ./e2e/faults

RUNS ?= 3

bench: build ## the speed table of RUNS=3 whole runs, side by side with the plainest programs that do the same and nginx, which it installs: build/bench.html, bench.json, speed.md
	$(build_to) ./e2e/cmd/bench
	@rm -rf build/bench-runs
	@for run in $$(seq $(RUNS)); do build/stack exec -dir build/bench-servers -- build/bench --out build/bench-runs/$$run || exit 1; done
	@build/bench merge build/bench-runs/*/bench.json

# Made by runs, to build/. docs/rows.md is made of what the tests say of themselves.
PAGES := faults planted powercut outages sizes speed soak

pages: build ## every generated page of docs/ anew, with SOAK=1 the soak's, too: tests of faults and planted bugs, outages, bench, rows
	build/stack install servers
	rm -f $(PAGES:%=build/%.md)
	$(MAKE) test PHASES='faults planted'
	build/stack exec -dir build/test-servers -- go test -tags servers -timeout 15m -count=1 -run '^$$' -bench Outages -benchtime 1x ./e2e
	build/stack exec -dir build/test-servers -- go test -tags servers -timeout 30m -count=1 -run '^$$' -bench Sizes -benchtime 1x ./e2e/sizes
	$(MAKE) bench
	$(if $(SOAK),$(MAKE) soak)
	go test -count=1 ./e2e -run 'TestEveryRowHasItsTests|TestReferencePages' -write-rows -write-reference
	@for page in $(PAGES); do [ ! -f build/$$page.md ] || cp build/$$page.md docs/; done
	go test -count=1 ./e2e/bench -run TestReadmeQuotesTheSpeedTable -write-readme

dist: ## a release for linux amd64 and arm64 into build/dist: archives, checksums, SBOMs; built twice, and refused if a byte differs
	$(need_go)
	@$(build_to) ./e2e/cmd/release
	@build/release --version "$$(git describe --tags --always --dirty --abbrev=12)" --epoch "$$(git log -1 --format=%ct)" --ldflags='$(linked)'

manifests: ## deploy/kubernetes anew, from deploy/chart, and the chart's copy of the alerts
	cp configs/alerts.yml deploy/chart/alerts.yml
	GOWORK=off go -C deploy test -count=1 -run TestManifestsAreTheCharts -write
	GOWORK=off go -C deploy test -count=1 .

helm: ## compare what Helm itself makes of deploy/chart with what the tests make of it; two minutes of processor
	GOWORK=off go -C deploy test -tags helm -count=1 -run TestHelm

SHOPPERS ?= 20000
STOCK ?= 500
FAULTS ?= 5

rehearse: MINUTES = 1
rehearse: ## a sale on the real system: SHOPPERS=20000 press for STOCK=500 in MINUTES=1 while FAULTS=5 are killed; report: build/rehearsal.html
	$(need_go)
	@$(build_to) ./gateway/cmd/gateway ./backend/cmd/backend ./e2e/cmd/stack ./e2e/cmd/rehearse
	@build/stack install servers
	@build/rehearse --shoppers $(SHOPPERS) --stock $(STOCK) --minutes $(MINUTES) --faults $(FAULTS)
