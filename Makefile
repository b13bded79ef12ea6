# Every target wraps go commands; tools are pinned by the tool lines of go.mod.

# Packages with goroutines, locks or atomics of their own.
RACE ?= ./engine ./engine/quickjs ./pool/... ./demux ./bench/compare ./bench/loop ./bench/timing ./bench/command ./fuzz/virtual

.PHONY: help check test race bench peers stress faults faults-fast fuzz fuzz-smoke

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

check: ## formatting, vet, staticcheck, import arrows, workflows, go.mod
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	go test ./internal/arrows
	go tool actionlint
	go mod tidy -diff

test: ## all tests
	go test ./...

race: ## tests of the packages with concurrency, under the race detector
	go test -race $(RACE)
	go test -race -run Conformance ./demux/demuxtest

bench: ## the full suite; writes bench-out/
	go run ./cmd/benchrun

peers: ## other engines beside ours: builds them, writes bench-out/peers.md
	go run -buildvcs=true ./bench/peers/run

stress: ## a million evaluations with kills, 100,000 pool runs, 64 GiB through the demux
	STRESS=1 go test -p 1 -run Stress -v -timeout 3h ./engine/quickjs ./pool ./pool/internal/processtest ./demux/... ./cmd/benchrun

faults: ## plant every fault with five seeds; writes reports/faults.md
	go run ./cmd/benchrun faults --clean 1

faults-fast: ## plant every fault once
	go run ./cmd/benchrun faults --seeds 1 --out bench-out/faults.md

fuzz: ## every fuzz target for its nightly budget, or TARGET=FuzzPool N=1000000x
	fuzz/run.sh $(if $(TARGET),$(TARGET) $(N),nightly)

fuzz-smoke: ## every fuzz target briefly
	fuzz/run.sh smoke
