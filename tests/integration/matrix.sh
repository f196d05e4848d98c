#!/usr/bin/env bash
# Every model, method and local part on 1, 2, 3, 4, 7 and 8 ranks, as threads and as processes of mpirun, against one rank:
# what the test `ranks` covers in part. An hour on two cores; what has passed is remembered in BUILD/matrix.passed, so that a
# run that was ended goes on (remove the file to begin again, and after a change).
#     tests/integration/matrix.sh [BUILD] [MODEL ...]      build/release, with its tests built; all models
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
shift || true
test=$build/tests/integration/ranks passed=$build/matrix.passed
[ -x "$test" ] || { echo "$test: is not there: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
touch "$passed"
kinds=(threads)
if command -v mpirun >/dev/null; then kinds+=(processes); else echo "skipped: processes, since there is no mpirun"; fi
[ $# -gt 0 ] && models=("$@") || mapfile -t models < <("$test" list)
done=0 all=$((${#models[@]} * ${#kinds[@]}))
for kind in "${kinds[@]}"; do
    for model in "${models[@]}"; do
        done=$((done + 1))
        if grep -qx "$kind $model" "$passed"; then
            echo "$done of $all: $model as $kind passed before"
            continue
        fi
        begun=$SECONDS
        "$test" "only=$model" $([ "$kind" = processes ] && command -v mpirun || true)
        echo "$kind $model" >>"$passed"
        echo "$done of $all: $model as $kind passed in $((SECONDS - begun)) s"
    done
done
echo "the matrix passed: ${#models[@]} models, ${kinds[*]}"
