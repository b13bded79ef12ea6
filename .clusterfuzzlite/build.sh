#!/bin/bash -eu
# Builds the targets of fuzz and fuzz/virtual for libFuzzer, in a copy of the tree.
#
# The usual tool replaces package testing and calls a target anew for each input;
# ours want a real testing.T (virtual time) and one start a process. So the tests of the
# package become ordinary files beside a bridge that keeps one test going.
# FuzzMeter, FuzzFrames and FuzzCheckCycles belong to tests of other packages and are run by fuzz/run.sh alone.
copy=$(mktemp -d)
cp -r . "$copy"
here=$PWD
cd "$copy"
for f in $(grep -l '^package \(fuzz\|virtual\)$' fuzz/*_test.go fuzz/virtual/*_test.go); do mv "$f" "${f%_test.go}_libfuzzer.go"; done
cp .clusterfuzzlite/bridge.go.in fuzz/bridge.go
mkdir libfuzzer

for target in FuzzPool FuzzScript FuzzResult FuzzInput; do
	package=fuzz
	[[ $target != FuzzPool ]] || package=fuzz/virtual
	sed "s|PACKAGE|github.com/sandbed/sandbed/$package|" .clusterfuzzlite/main.go.in >libfuzzer/main.go
	go build -buildmode c-archive -tags libfuzzer -gcflags all=-d=libfuzzer -gcflags runtime/cgo=-d=libfuzzer=0 -gcflags syscall=-d=libfuzzer=0 \
		-ldflags "-X main.target=$target" -o "$target.a" ./libfuzzer
	$CXX $CXXFLAGS $LIB_FUZZING_ENGINE "$target.a" -o "$OUT/$target"
	# The corpus, out of Go's format: libFuzzer gets the documents themselves.
	mkdir -p "corpus/$target"
	for f in "$here/$package/testdata/fuzz/$target"/*; do
		sed -n 's/^\[\]byte("\(.*\)")$/\1/p' "$f" | tr -d '\n' >"corpus/$target/$(basename "$f")"
	done
	(cd "corpus/$target" && zip -q "$OUT/${target}_seed_corpus.zip" ./*)
done
