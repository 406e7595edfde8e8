# make run    the demo: RabbitMQ, the service and an example shop, in this terminal
# make unit   all that needs no server: what one runs at every change
# make test   what a change must pass, on RabbitMQ 3.10 and 4.3 (or BROKERS="amqp://… amqp://…")
# make test-long  that, with large numbers and both versions everywhere, and release, image and chart
# make lint   vet, staticcheck, dead code, words
# make bench  side by side with the alternatives; BENCHFLAGS="-steady 1000" or
#             "-waiting 1000000" for lateness and size, BENCHFLAGS=--help for all
# make mutants  seeded faults, each of which a test must catch; MUTANTSFLAGS="-only auth"
# make simulate  worlds by seed, in fake time; SEEDS=1000, FROM=500
# make soak   faults again and again on real brokers, and a table; SOAKFLAGS="-budget 2h"
# make build  bin/redrive
# make release  all files of a release, in dist/

GO ?= go
# RabbitMQ 4, Valkey and clients of other languages, for all clones.
export REDRIVE_BROKERS_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/redrive
export BROKERS MANAGEMENT
# As it is shipped, and the same for all that is built: nothing is compiled twice.
export CGO_ENABLED = 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath

.PHONY: build release run unit test test-long test-tls installed vulncheck bench mutants simulate soak vet lint words

build:
	$(GO) build -ldflags="-s -w" -o bin/redrive ./cmd/redrive

# Archives, deb, rpm, image, SBOMs and checksums; without a tag v1.2.3, a snapshot. Cross-compiling
# for six platforms takes some minutes; PLATFORMS="linux/amd64" for one.
release:
	GO="$(GO)" scripts/release $(PLATFORMS)

run: build
ifeq ($(BROKERS),)
	@scripts/install rabbitmq
	@$(GO) build -o bin/brokers ./test/brokers
	@bin/brokers -demo bin/redrive demo
else
	@REDRIVE_DEMO_BROKER_URL="$(BROKERS)" bin/redrive demo
endif

# Packages whose tests start no server. Go remembers their results until they change.
SERVERS = testenv/(brokertest|rabbitnode|redisnode)|internal/server/servertest
LISTED = $(GO) list -f '{{.ImportPath}}{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}' ./...
UNIT = $$($(LISTED) | grep -Ev '$(SERVERS)' | cut -d' ' -f1)
unit:
	$(GO) test -vet=off $(TESTFLAGS) $(UNIT)

vet:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./...

# Not part of make test: the linters take minutes to build, once.
LINTER = $(GO) tool -modfile=tools/lint/go.mod
lint: vet words
	$(LINTER) staticcheck ./...
	@dead=$$($(LINTER) deadcode -test ./...) && [ -z "$$dead" ] || { echo "$$dead"; exit 1; }

# The words of pages, comments and templates.
words:
	@PAGES="README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md docs deploy/README.md" \
		COMMENTS="$(wildcard *.go) bench cmd examples internal policy redriveotel redriveprom redrivetest test testenv wire" scripts/words

# Packages side by side, since most of them wait; what keeps the brokers from being too busy are the
# slots of testenv/brokertest. What takes longest begins first.
LONGEST = ./test/faults ./test/stories ./docs/how-to ./internal/delay/delaytest ./internal/rabbitmq/enroll ./test/page \
	./internal/store/redisstore ./internal/broker
ONLYLONG = test/image$$
WITHSERVERS = $(LONGEST) $$($(LISTED) | grep -E '$(SERVERS)' | cut -d' ' -f1 | grep -Ev '$(ONLYLONG)')
SIDEBYSIDE = -p 8 -parallel 16 -vet=off -ldflags=-w -count=1
test: NEEDS = $(if $(BROKERS),,rabbitmq) rabbitmq-4 redis valkey chromium prometheus python celery node
test:
	@$(MAKE) -j3 --no-print-directory vet build installed NEEDS="$(NEEDS)"
	@$(MAKE) --no-print-directory unit TESTFLAGS="-timeout 15m $(TESTFLAGS)"
	$(GO) run ./test/brokers $(GO) test $(SIDEBYSIDE) -timeout 40m $(TESTFLAGS) $(WITHSERVERS)

# By hand before a release, and every night.
test-long: export REDRIVE_TEST_LONG = 1
test-long: NEEDS = $(if $(BROKERS),,rabbitmq) rabbitmq-4 redis valkey chromium prometheus python celery node ruby java podman
test-long:
	@$(MAKE) -j3 --no-print-directory vet build installed NEEDS="$(NEEDS)"
	$(GO) -C test/deploy vet ./...
	@$(MAKE) --no-print-directory unit TESTFLAGS="-timeout 60m $(TESTFLAGS)"
	$(GO) run ./test/brokers $(GO) test $(SIDEBYSIDE) -timeout 90m $(TESTFLAGS) $(LONGEST) $$($(LISTED) | grep -E '$(SERVERS)' | cut -d' ' -f1)
	$(GO) -C test/deploy test -count=1 $(TESTFLAGS) ./...

# While Go compiles.
installed:
	@scripts/install $(NEEDS)

# The suites that reach RabbitMQ by TLS on one of its versions, by TLS on both.
test-tls:
	REDRIVE_TEST_TLS=all $(GO) run ./test/brokers $(GO) test -count=1 -timeout 20m $(TESTFLAGS) ./test/faults ./test/stories ./internal/doctor

# Known vulnerabilities in what we call; says so where their database cannot be had.
vulncheck:
	@scripts/vulncheck

# Without BENCHFLAGS the Go benchmarks of the hot parts come first.
bench: build
	@scripts/install $(if $(BROKERS),,rabbitmq rabbitmq-4) redis
	$(if $(BENCHFLAGS),,$(GO) test -run '^$$' -bench . -benchmem ./policy ./internal/store/... ./internal/retry/...)
	$(GO) run ./test/brokers $(GO) run ./bench $(BENCHFLAGS)

# Without RabbitMQ, some minutes (two faults need Redis): of each fault, the package that has it and its tests are compiled.
mutants:
	$(GO) run ./test/mutants $(MUTANTSFLAGS)

# Worlds by seed, without brokers: the core on a model of RabbitMQ, with crashes and cuts. Run
# in its folder, go test shows what is printed at once.
FROM ?= 1
SEEDS ?= 1000
simulate:
	$(GO) -C test/world test -count=1 -timeout 0 -from $(FROM) -seeds $(SEEDS) -table

# Kills and cuts with an account of each message, for as long as -budget says, and a table of
# them; SOAKFLAGS="-budget 10m -only Redis" for some rows.
SOAKFLAGS ?= -budget 30m
export SOAKFLAGS
soak:
	@scripts/install $(if $(BROKERS),,rabbitmq) rabbitmq-4 redis valkey
	$(GO) run ./test/brokers $(GO) test -vet=off ./test/faults -run '^TestSoak$$' -count=1 -timeout 0 -parallel 16 -v -args $(SOAKFLAGS)

# make install-redis, say; the words are those of scripts/install.
install-%:
	@scripts/install $*
