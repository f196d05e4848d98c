#!/usr/bin/env bash
# Rank 1 of 4 fails in one way after another while the others wait for it. Each time the job ends in under 10 s, with a
# status other than 0 and a line that says who. Then a rank is only late: a warning names it, and the job succeeds.
#     comm_mpi_failures.sh <mpirun> <comm_mpi_test>
set -uo pipefail
mpirun=$1 program=$2
out=$(mktemp)
trap 'rm -f "$out"' EXIT
stop() { echo "comm_mpi_failures: $*:"; cat "$out"; exit 1; }

# run <how> <expected: 0, or not> <pattern ...>: one job; each pattern is on a line of its output.
run() {
    local how=$1 expected=$2 begin=$SECONDS status pattern
    shift 2
    timeout 30 "$mpirun" --oversubscribe --allow-run-as-root -n 4 "$program" "$how" >"$out" 2>&1 </dev/null
    status=$?
    [ $((SECONDS - begin)) -lt 10 ] || stop "$how: the job took $((SECONDS - begin)) s"
    if [ "$expected" = 0 ]; then [ $status = 0 ] || stop "$how: status $status"
    else [ $status != 0 ] || stop "$how: status 0"
    fi
    for pattern in "$@"; do grep -qE "$pattern" "$out" || stop "$how: no line has \"$pattern\""; done
    echo "$how: status $status, at most $((SECONDS - begin + 1)) s"
}

run kill not "rank 1 .*signal 9" "may use [0-9]+ cores? for 1000 threads"
run kill-in-sum not "rank 1 .*signal 9"
run abort not "^rank 1: no such file: x.npz"
run close not "rank [023] waits for rank 1 .*which has ended"
run exit-0 not "process rank 1 .*" "exiting improperly"
run exit-3 not "Exit code: +3"
run late 0 "rank 0 has waited [0-9.]+ s for rank 1 \(all_reduce\)$" "rank [23] has waited [0-9.]+ s for rank 0 \(all_reduce\), which waits for rank 1"
