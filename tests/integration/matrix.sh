#!/usr/bin/env bash
# Every model, method and local part on 1, 2, 3, 4, 7 and 8 ranks, as threads and as processes of mpirun, against one rank:
# what the test `ranks` covers in part. Minutes.
#     tests/integration/matrix.sh [build folder]      build/release unless given, with its tests built
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
test=$build/tests/integration/ranks
[ -x "$test" ] || { echo "$test: is not there: cmake --preset release && cmake --build --preset release" >&2; exit 1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$test" all
if command -v mpirun >/dev/null; then
    "$test" all "$(command -v mpirun)"
else
    echo "skipped: processes, since there is no mpirun"
fi
echo "the whole matrix passed"
