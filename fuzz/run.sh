#!/usr/bin/env bash
# Runs fuzz targets one after the other: fuzz/run.sh [smoke | nightly | TARGET N]
#
# N is the number of inputs, as in 20000 or 20000x. Without TARGET every target of the module
# gets the budget that fuzz/budgets names for it. The budget is a count, since Go's
# own deadline may fail a run that found nothing (golang/go 75804); timeout(1) is
# the bound in time. Exit status: 0 nothing found, 1 a finding or a run that proves nothing, 2 wrong use.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() {
	echo "fuzz/run.sh: $1; usage: fuzz/run.sh [smoke | nightly | TARGET N]" >&2
	exit 2
}

column=2 only='' count=''
case "${1:-nightly}" in
smoke) column=2 ;;
nightly) column=3 ;;
Fuzz*)
	column=3 only=$1 count=${2:-}
	count=${count%x}
	[[ -z $count || $count =~ ^[1-9][0-9]*$ ]] || usage "N is '$2', give a number of inputs"
	;;
*) usage "what is '$1'?" ;;
esac

# Each worker is a process of its own; more of them than processors gain nothing.
workers=${FUZZ_WORKERS:-1}
# Hard bound of one target in seconds, builds included.
bound=${FUZZ_TIMEOUT:-$([[ $column == 2 && -z $only ]] && echo 120 || echo 7200)}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0 ran=0 table=''

complain() {
	echo "$1" >&2
	failed=1
}

# replay runs a written reproducer five times: a finding that does not come back is flaky.
replay() { # package target file
	local again=0
	for _ in 1 2 3 4 5; do
		timeout 120 go test -run "^$2\$/^$3\$" "$1" >/dev/null 2>&1 || again=$((again + 1))
	done
	echo "$2: $3 fails $again times of 5" >&2
}

run() { # package target
	local package=$1 target=$2 n=$count dir log seeds cached new rate
	dir=$(go list -f '{{.Dir}}' "$package")
	log=$out/$target.log
	if [[ -z $n ]]; then
		n=$(awk -v t="$target" -v c="$column" '$1 == t { print $c }' fuzz/budgets)
		[[ -n $n ]] || { complain "$target has no line in fuzz/budgets: add its budgets"; return; }
	fi
	# The budget counts what is known already: seeds, the committed corpus, the cache.
	seeds=$(timeout 300 go test -run "^$target\$" -v "$package" 2>&1 | tee "$log" | grep -c -- "--- PASS: $target/")
	if ! grep -q '^ok' "$log"; then
		tail -n 40 "$log" >&2
		complain "$target: its seeds fail"
		return
	fi
	cached=$(ls "$(go env GOCACHE)/fuzz/$package/$target" 2>/dev/null | wc -l)
	ls "$dir/testdata/fuzz/$target" 2>/dev/null | sort >"$out/before"
	mkdir -p "$out/flight"
	rm -f "$out/flight"/*
	# Interesting inputs are not minimised: that costs more than it gives.
	FUZZ_FLIGHT=$out/flight timeout --kill-after=20 "$bound" \
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$((seeds + cached + n))x" -fuzzminimizetime 0x -parallel "$workers" "$package" >"$log" 2>&1
	local status=$?
	ran=$((ran + 1))
	# The last line that counts, and the time it gives, over the whole run.
	rate=$(awk '/execs:/ { for (i = 1; i <= NF; i++) { if ($i == "elapsed:") t = $(i + 1); if ($i == "execs:") e = $(i + 1) } }
		END { sub(",", "", t); s = 0; while (match(t, /[0-9.]+[hms]/)) { v = substr(t, RSTART, RLENGTH - 1); u = substr(t, RSTART + RLENGTH - 1, 1);
			s += v * (u == "h" ? 3600 : u == "m" ? 60 : 1); t = substr(t, RSTART + RLENGTH) }
			printf "%d inputs, %d s, %d a second", e, s, s ? e / s : e }' "$log")
	table+="$target: $rate"$'\n'
	if ! grep -q 'now fuzzing' "$log"; then
		tail -n 40 "$log" >&2
		complain "$target: it never came to fuzz (status $status)"
		return
	fi
	if ((status == 0)); then return; fi
	tail -n 60 "$log" >&2
	complain "$target: stopped with status $status"
	new=$(ls "$dir/testdata/fuzz/$target" 2>/dev/null | sort | comm -13 "$out/before" -)
	for f in $new; do
		replay "$package" "$target" "$f"
	done
	# A process that was killed leaves what it was at, which Go does not keep.
	for f in "$out/flight"/*; do
		[[ -s $f ]] || continue
		mkdir -p fuzz-out
		cp "$f" "fuzz-out/"
		echo "$target: left in flight, see fuzz-out/$(basename "$f")" >&2
	done
}

# Only packages with a target are built.
while read -r dir; do
	package=$(go list "./$dir")
	targets=$(go test -list '^Fuzz' "$package" | grep '^Fuzz') || { complain "$package lists no target, though a file of it names one"; continue; }
	for target in $targets; do
		if [[ -z $only || $only == "$target" ]]; then run "$package" "$target"; fi
	done
done < <(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sed 's|^\./||' | sort -u)

if [[ -z $only ]]; then
	for target in $(awk '!/^#/ { print $1 }' fuzz/budgets); do
		grep -q "^$target:" <<<"$table" || complain "fuzz/budgets names $target, which was not run"
	done
fi
((ran > 0)) || complain "no target named '${only:-Fuzz…}' was run"
printf '%s' "$table"
exit "$failed"
