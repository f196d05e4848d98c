#!/usr/bin/env bash
# Installs, builds and runs every test on a fresh Debian 12 or Ubuntu 24.04 machine, asking nothing; names and counts what
# was skipped. Ends with "all tests passed" and 0, or with the first part that failed and 1.
#     tests/run.sh [part ...]      parts: release asan tsan fuzz package bench; none: all
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/packages.sh
parts=${*:-release asan tsan fuzz package bench}
jobs=$(nproc)
logs=build/logs
mkdir -p "$logs"

# part <name> <command ...>: runs it with its output in a log; shows the log's end when it fails.
part() {
    local name=$1
    shift
    say "$name: $*"
    if ! "$@" >"$logs/$name.log" 2>&1; then
        tail -n 60 "$logs/$name.log"
        stop "$name failed: the whole output is in $logs/$name.log"
    fi
}

# suite <preset> <configure options> -- <ctest options>: builds with warnings as errors and runs the preset's tests.
suite() {
    local preset=$1 configure=()
    shift
    while [ "$1" != -- ]; do configure+=("$1"); shift; done
    shift
    part "$preset-configure" cmake --preset "$preset" -DCMAKE_COMPILE_WARNING_AS_ERROR=ON -DMEGAGRAPH_TESTS=ON "${configure[@]}"
    part "$preset-build" cmake --build --preset "$preset"
    part "$preset-test" ctest --test-dir "build/$preset" --no-tests=error --output-on-failure "$@"
    grep -h -E '^\[ +SKIPPED +\] [a-z]' "build/$preset/Testing/Temporary/LastTest.log" | sed -E "s/^\[ +SKIPPED +\] /$preset: /" |
        sort -u >>"$logs/skipped" || true
    grep -h -E '^SKIPPED: ' "build/$preset/Testing/Temporary/LastTest.log" | sort -u >>"$logs/reasons" || true
    say "$preset: $(grep -E 'tests passed|tests failed' "$logs/$preset-test.log")"
}

install_packages $packages_build $packages_test
install_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" # the fuzzers' run time; its name holds the version
: >"$logs/skipped"
: >"$logs/reasons"

for name in $parts; do
    case $name in
    release) suite release -- -j1 -LE package ;;
    asan) suite asan -- -j"$jobs" -LE "slow|package" ;;
    tsan) suite tsan -- -j"$jobs" -L threads ;;
    fuzz)
        part fuzz-configure cmake --preset fuzz -DMEGAGRAPH_TESTS=ON
        part fuzz-build cmake --build --preset fuzz --target fuzzers
        part fuzz tests/fuzz/run.sh build/fuzz "${FUZZ_SECONDS:-10}"
        ;;
    package)
        part package tests/package/run.sh
        grep -E '^SKIPPED: ' "$logs/package.log" >>"$logs/skipped" || true
        ;;
    bench)
        part bench-configure cmake --preset release -DMEGAGRAPH_BENCH=ON -DMEGAGRAPH_TESTS=ON
        part bench-build cmake --build --preset release
        part bench ctest --test-dir build/release --no-tests=error --output-on-failure -L bench
        ;;
    *) stop "part '$name' is not one of release, asan, tsan, fuzz, package, bench" ;;
    esac
done

skipped=$(sort -u "$logs/skipped" | wc -l)
if [ "$skipped" -gt 0 ]; then
    say "skipped $skipped:"
    sort -u "$logs/skipped" "$logs/reasons" | sed 's/^/    /'
else
    say "skipped 0"
fi
say "all tests passed"
