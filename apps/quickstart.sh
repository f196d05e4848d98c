#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 machine to a trained graph transformer, in one command, asking nothing:
# installs packages, builds, makes a graph of the packages of this machine's archive and what they depend on, trains on it.
#     apps/quickstart.sh [folder for the dataset and the run, default runs]
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/packages.sh
runs=${1:-runs}

install_packages $packages_build
if [ -z "$(apt-cache dumpavail 2>/dev/null | head -c 1)" ]; then
    say "fetching the archive's package lists"
    as_root apt-get update -qq || stop "apt-get update failed: is the network there?"
fi

say "building"
cmake --preset release -DMEGAGRAPH_TESTS=OFF -DMEGAGRAPH_BENCH=OFF >/dev/null
cmake --build --preset release --target megagraph
program=build/release/apps/megagraph/megagraph

say "importing the dependency graph of the archive"
mkdir -p "$runs"
$program import debian --out "$runs/debian.npz"

run=$runs/debian-$(date +%Y%m%d-%H%M%S)
say "training"
$program train --data "$runs/debian.npz" --config apps/configs/quickstart.yaml --out "$run"
say "done: the run is in $run (summary.json, log.jsonl, checkpoint); next: $program predict --run $run --out predictions.csv"
