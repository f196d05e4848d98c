# Sourced by apps/quickstart.sh and tests/run.sh: installs Debian or Ubuntu packages, asking nothing.

packages_build="gcc libc6-dev cmake ninja-build pkg-config libmetis-dev libzip-dev zlib1g-dev libarpack2-dev libdnnl-dev libyaml-dev libjansson-dev libopenmpi-dev openmpi-bin"
packages_test="g++ clang libcmocka-dev libbenchmark-dev"

# say <text>: one line of progress, with the minutes and seconds since the script began.
say() { printf '[%02d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
stop() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# as_root <command>: runs it as root, by sudo where we are not root.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else stop "installing packages needs root: run as root, or install sudo"
    fi
}

# install_packages <names>: those that are missing.
install_packages() {
    local missing="" name
    command -v apt-get >/dev/null || stop "this script installs packages with apt-get (Debian 12, Ubuntu 24.04 or newer), which is not here: install by hand what README.md lists"
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing="$missing $name"
    done
    [ -n "$missing" ] || { say "all packages are there"; return 0; }
    say "installing packages:$missing"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || stop "apt-get update failed: is the network there?"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null ||
        stop "apt-get could not install:$missing"
}
