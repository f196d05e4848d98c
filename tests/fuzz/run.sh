#!/usr/bin/env bash
# Runs every fuzz target that a build made, for some seconds each, from the committed corpus. Ends with the first that fails;
# the input that ended it lies in the build folder and is named.
#     tests/fuzz/run.sh <build folder> [seconds, 10] [name ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1
seconds=${2:-10}
shift $(($# < 2 ? $# : 2))
corpus=$PWD/tests/fuzz/corpus
cd "$build/tests/fuzz"
targets=${*:-$(for target in fuzz_*; do [ -x "$target" ] && [ -f "$target" ] && echo "${target#fuzz_}"; done)}
[ -n "$targets" ] || { echo "no fuzz target in $build/tests/fuzz: build the target 'fuzzers'" >&2; exit 1; }
for name in $targets; do
    mkdir -p "found/$name" "crashes/$name"
    echo "fuzz $name: $seconds s"
    "./fuzz_$name" "found/$name" "$corpus/$name" -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="crashes/$name/" >"crashes/$name.log" 2>&1 ||
        { tail -n 40 "crashes/$name.log"; echo "fuzz $name failed: $build/tests/fuzz/crashes/$name" >&2; exit 1; }
    grep -E 'number_of_executed_units' "crashes/$name.log" | sed 's/.*: */  runs: /'
done
