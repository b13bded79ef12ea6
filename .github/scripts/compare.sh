#!/usr/bin/env bash
# Compares a pull request with its base and leaves the report where the workflow
# picks it up. The exit code is that of the comparison, kept for the last step, so
# that summary and artifact are there whatever the verdict.
#
# Environment: BENCHRUN (the command, "go run ./cmd/benchrun"), BASE_REF, HEAD_REF,
# BUDGET ("8m"), EXTRA (more arguments, split at spaces), OUT (a directory),
# PULL_REQUEST (its number, or empty), and GITHUB_OUTPUT, GITHUB_STEP_SUMMARY.
set -euo pipefail

: "${BENCHRUN:?}" "${BASE_REF:?}" "${HEAD_REF:?}" "${OUT:?}" "${GITHUB_OUTPUT:?}" "${GITHUB_STEP_SUMMARY:?}"
read -ra benchrun <<<"$BENCHRUN"
read -ra extra <<<"${EXTRA:-}"

# The number of the pull request goes with the report: the workflow that comments
# runs later, and for a fork nothing else tells it which one is meant.
mkdir -p "$OUT"
if [[ -n "${PULL_REQUEST:-}" ]]; then
	[[ "$PULL_REQUEST" =~ ^[1-9][0-9]{0,9}$ ]] || { echo "PULL_REQUEST '$PULL_REQUEST': give a number" >&2; exit 2; }
	echo "$PULL_REQUEST" >"$OUT/pull-request"
fi

# What the base branch got since is not this pull request's doing.
base=$(git merge-base "$BASE_REF" "$HEAD_REF") || base=$BASE_REF

code=0
"${benchrun[@]}" compare --base "$base" --head "$HEAD_REF" --budget "${BUDGET:-8m}" --out "$OUT" ${extra[@]+"${extra[@]}"} || code=$?
echo "code=$code" >>"$GITHUB_OUTPUT"

# Above 1 MiB a summary is dropped as a whole; benchrun keeps below 900 KiB.
if [[ -s "$OUT/summary.md" ]]; then
	cat "$OUT/summary.md" >>"$GITHUB_STEP_SUMMARY"
else
	echo "benchrun ended with code $code and wrote no report; see the log of this step." >>"$GITHUB_STEP_SUMMARY"
fi
