#!/usr/bin/env bash
# Ends a job with the verdict of its comparison: CODE is benchrun's exit code, and
# MODE says what it may do: fail (the job fails), warn (an annotation), off.
set -euo pipefail

case "${CODE:?}" in
0) echo "benchrun: held"; exit 0 ;;
1) text="a regression was proved" ;;
2) text="the comparison could not be made: usage, or input that cannot be read" ;;
3) text="no verdict: the runner is unfit, a control failed or too much is inconclusive; run the job again" ;;
4) text="a benchmark failed or gave a wrong answer" ;;
*) text="benchrun ended with code $CODE" ;;
esac
case "${MODE:-fail}" in
fail) echo "::error title=benchrun::$text"; [[ "$CODE" =~ ^[1-9][0-9]*$ ]] && exit "$CODE"; exit 2 ;;
warn) echo "::warning title=benchrun::$text" ;;
off) echo "benchrun: $text" ;;
*) echo "MODE '$MODE': give fail, warn or off" >&2; exit 2 ;;
esac
