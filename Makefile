# make run    the demo: RabbitMQ, the service and an example shop, in this terminal
# make test   everything, on RabbitMQ 3.10 and 4.3 (or BROKERS="amqp://… amqp://…")
# make bench  side by side with the alternatives; BENCHFLAGS="-steady 1000" or
#             "-waiting 1000000" for lateness and size, BENCHFLAGS=--help for all
# make mutants  seeded faults, each of which a test must catch; MUTANTSFLAGS="-only auth"
# make mutation  all mutants of some packages, and the score of their tests
# make simulate  worlds by seed, in fake time; SEEDS=1000, FROM=500
# make soak   faults again and again on real brokers, and a table; SOAKFLAGS="-budget 2h"
# make build  bin/redrive
# make release  all files of a release, in dist/

GO ?= go
export REDRIVE_BROKERS_DIR ?= $(CURDIR)/.brokers
export BROKERS MANAGEMENT
# As it is shipped, and the same for all that is built: nothing is compiled twice.
export CGO_ENABLED = 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath

.PHONY: build release run test test-tls vulncheck unit bench mutants mutation simulate soak vet lint words install-rabbitmq install-rabbitmq-4 install-redis install-valkey install-clients install-prometheus install-podman

build:
	$(GO) build -o bin/redrive ./cmd/redrive

# Archives, deb, rpm, image, SBOMs and checksums; without a tag v1.2.3, a snapshot. Cross-compiling
# for six platforms takes some minutes; PLATFORMS="linux/amd64" for one.
release:
	GO="$(GO)" scripts/release $(PLATFORMS)

run: build
	@[ -n "$(BROKERS)" ] || scripts/install-rabbitmq
	@REDRIVE_DEMO_BROKER_URL="$(BROKERS)" bin/redrive demo

# The core's tests, which need neither RabbitMQ nor Redis.
unit:
	$(GO) test ./policy/... ./internal/config/... ./internal/store ./internal/store/diskstore \
		./internal/store/memstore ./internal/headers ./internal/retry/... ./internal/throttle ./internal/delay ./internal/delay/ttlqueue ./internal/delay/binary

vet:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) -C test/deploy vet ./...
	$(GO) -C test/amqp10 vet ./...

lint: vet words

# The words of pages and comments. vale takes minutes to build, once, so make test leaves it
# out: it checks error messages, help and the page for the same words (test/words).
words:
	@PAGES="README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md docs deploy/README.md" \
		COMMENTS="$(wildcard *.go) bench cmd examples internal policy redriveotel redriveprom redrivetest test testenv wire" scripts/words

# What takes longest begins first, or all else would be over long before it is.
LONGEST = ./test/faults ./internal/store/redisstore ./test/stories ./test/page ./internal/rabbitmq/move ./internal/rabbitmq/doctor
test: build vet
	@[ -n "$(BROKERS)" ] || { scripts/install-rabbitmq && scripts/install-rabbitmq-4; }
	@scripts/install-redis
	@scripts/install-valkey
	@scripts/install-chromium
	@scripts/install-clients
	@scripts/install-prometheus
	@scripts/install-podman
	$(GO) run ./test/brokers $(GO) test -vet=off -ldflags=-w -count=1 -timeout 45m $(TESTFLAGS) $(LONGEST) ./...
	$(GO) run ./test/brokers $(GO) -C test/amqp10 test -count=1 $(TESTFLAGS) ./...
	$(GO) -C test/deploy test -count=1 $(TESTFLAGS) ./...

# The suites that reach RabbitMQ by TLS on one of its versions, by TLS on both.
test-tls:
	REDRIVE_TEST_TLS=all $(GO) run ./test/brokers $(GO) test -count=1 -timeout 20m $(TESTFLAGS) ./test/faults ./test/stories ./internal/rabbitmq/doctor

# Known vulnerabilities in what we call; says so where their database cannot be had.
vulncheck:
	@scripts/vulncheck

# Without BENCHFLAGS the Go benchmarks of the hot parts come first.
bench: build
	@[ -n "$(BROKERS)" ] || { scripts/install-rabbitmq && scripts/install-rabbitmq-4; }
	@scripts/install-redis
	$(if $(BENCHFLAGS),,$(GO) test -run '^$$' -bench . -benchmem ./policy ./internal/store/... ./internal/retry/...)
	$(GO) run ./test/brokers $(GO) run ./bench $(BENCHFLAGS)

# Without brokers, some minutes: of each fault, the package that has it and its tests are compiled.
mutants:
	$(GO) run ./test/mutants $(MUTANTSFLAGS)

# The packages that decide. An hour on two cores, and what is found of each is printed at once;
# MUTATIONFLAGS="-budget 20m" for a sample, or "-only policy/match.go" for a file.
SCORED = policy internal/headers internal/query internal/throttle internal/retry
mutation:
	$(GO) run ./test/mutants -score "$(SCORED)" $(MUTATIONFLAGS)

# Worlds by seed, without brokers: the core on a model of RabbitMQ, with crashes and cuts. Run
# in its folder, go test shows what is printed at once.
FROM ?= 1
SEEDS ?= 1000
simulate:
	$(GO) -C test/world test -count=1 -timeout 0 -from $(FROM) -seeds $(SEEDS) -table -together

# Kills and cuts with an account of each message, for as long as -budget says, and a table of
# them; SOAKFLAGS="-budget 10m -only Redis" for some rows, "-budget 2h -json" for scripts,
# "-budget 30m -continue docs/explanation/proof.json" to add to the runs before.
SOAKFLAGS ?= -budget 30m
export SOAKFLAGS
soak:
	@[ -n "$(BROKERS)" ] || { scripts/install-rabbitmq && scripts/install-rabbitmq-4; }
	@scripts/install-redis
	@scripts/install-valkey
	$(GO) run ./test/brokers $(GO) test -vet=off ./test/faults -run '^TestSoak$$' -count=1 -timeout 0 -v -args $(SOAKFLAGS)

install-rabbitmq:
	scripts/install-rabbitmq

install-rabbitmq-4:
	scripts/install-rabbitmq-4

install-redis:
	scripts/install-redis

install-valkey:
	scripts/install-valkey

# RabbitMQ clients of other languages, for the tests of docs/how-to.
install-clients:
	scripts/install-clients

install-prometheus:
	scripts/install-prometheus

# Builds the image without Docker, for its test.
install-podman:
	scripts/install-podman
