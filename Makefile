# make run    the demo: RabbitMQ, the service and an example shop, in this terminal
# make test   everything, on RabbitMQ 3.10 and 4.3 (or BROKERS="amqp://… amqp://…")
# make bench  side by side with the alternatives; BENCHFLAGS="-steady 1000" or
#             "-waiting 1000000" for lateness and size, BENCHFLAGS=--help for all
# make build  bin/redrive

GO ?= go
export REDRIVE_BROKERS_DIR ?= $(CURDIR)/.brokers
export BROKERS MANAGEMENT

.PHONY: build run test unit bench lint install-rabbitmq install-rabbitmq-4

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/redrive ./cmd/redrive

run: build
	@[ -n "$(BROKERS)" ] || scripts/install-rabbitmq
	@REDRIVE_DEMO_BROKER_URL="$(BROKERS)" bin/redrive demo

# What runs without a broker, in seconds.
unit:
	$(GO) test ./policy/... ./internal/config/... ./internal/store/... ./internal/flow/... \
		./internal/wait ./internal/wait/stored ./internal/wait/ttlqueue ./internal/wait/binary

lint:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./...

test: build lint
	@[ -n "$(BROKERS)" ] || { scripts/install-rabbitmq && scripts/install-rabbitmq-4; }
	@scripts/install-chromium
	$(GO) run ./test/brokers $(GO) test -count=1 -timeout 20m $(TESTFLAGS) ./...

# Without BENCHFLAGS the Go benchmarks of the hot parts come first.
bench: build
	@[ -n "$(BROKERS)" ] || { scripts/install-rabbitmq && scripts/install-rabbitmq-4; }
	$(if $(BENCHFLAGS),,$(GO) test -run '^$$' -bench . -benchmem ./policy ./internal/store/... ./internal/flow/...)
	$(GO) run ./test/brokers $(GO) run ./bench $(BENCHFLAGS)

install-rabbitmq:
	scripts/install-rabbitmq

install-rabbitmq-4:
	scripts/install-rabbitmq-4
