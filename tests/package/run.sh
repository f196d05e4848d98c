#!/usr/bin/env bash
# The install tree as a stranger meets it. Every library is built and installed alone, static and shared; the tree is then
# moved, and a project that knows nothing else is built on it by find_package and by pkg-config, and run. The shared
# libraries export what their headers declare and nothing else, all names of the static ones begin with mg_; each header
# compiles by itself as C11 and as C++17.
#     tests/package/run.sh [--keep]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/megagraph-package-XXXXXX")
[ "${1:-}" = --keep ] && echo "kept: $work" || trap 'rm -rf "$work"' EXIT
cc=${CC:-cc} cxx=${CXX:-c++}

say() { printf '[%02d:%02d] package: %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
stop() { printf 'package: %s\n' "$*" >&2; exit 1; }
# quiet <command>: shows its output only when it fails.
quiet() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; stop "failed: $*"; }; }

libraries=$(cd "$source" && for list in lib*/CMakeLists.txt; do basename "$(dirname "$list")" | cut -c4-; done)

# install_alone <static|shared> <CMake options>: every library from its own folder into one prefix.
install_alone() {
    local kind=$1 library
    shift
    for library in $libraries; do
        say "$kind lib$library"
        quiet cmake -G Ninja -S "$source/lib$library" -B "$work/build-$kind/$library" -DCMAKE_INSTALL_LIBDIR=lib \
            -DCMAKE_INSTALL_PREFIX="$work/first-$kind" -DCMAKE_PREFIX_PATH="$work/first-$kind" "$@"
        quiet cmake --build "$work/build-$kind/$library"
        quiet cmake --install "$work/build-$kind/$library"
    done
    mv "$work/first-$kind" "$work/$kind"
}

# meet <static|shared> <pkg-config's option>: builds and runs the stranger's project both ways.
meet() {
    local kind=$1 tree=$work/$1 flags
    say "$kind: find_package"
    quiet cmake -G Ninja -S "$here/stranger" -B "$work/cmake-$kind" -DCMAKE_PREFIX_PATH="$tree"
    quiet cmake --build "$work/cmake-$kind"
    "$work/cmake-$kind/stranger"
    say "$kind: pkg-config"
    flags=$(PKG_CONFIG_PATH=$tree/lib/pkgconfig pkg-config --define-prefix $2 --cflags --libs \
        megagraph-graph megagraph-attn megagraph-dp)
    quiet "$cc" -std=c11 -D_GNU_SOURCE -o "$work/pkg-$kind" "$here/stranger/stranger.c" $flags -lm -Wl,-rpath,"$tree/lib"
    "$work/pkg-$kind"
}

# A component that is not there is named.
miss() {
    if cmake -G Ninja -S "$here/stranger" -B "$work/missing" -DCMAKE_PREFIX_PATH="$1" -DCOMPONENTS="graph;nosuch" >"$work/log" 2>&1; then
        stop "find_package found the component nosuch"
    fi
    grep -q "libnosuch is not installed" "$work/log" || { cat "$work/log" >&2; stop "find_package does not name what it lacks"; }
}

declared() { sed -nE 's/^MG_[A-Z]+_API [a-z].*[ *](mg_[a-z0-9_]+)\(.*/\1/p' "$@" | sort -u; }
exported() { nm -D --defined-only "$1" | awk '{print $3}' | sort -u; }

# Exported symbols of all shared libraries, against the declarations of all headers.
compare_symbols() {
    local tree=$1 object
    declared "$tree"/include/megagraph/*.h >"$work/declared"
    for object in "$tree"/lib/libmegagraph-*.so; do exported "$object"; done | sort -u >"$work/exported"
    diff "$work/declared" "$work/exported" >"$work/log" ||
        { cat "$work/log" >&2; stop "headers (<) and shared libraries (>) differ"; }
    say "$(wc -l <"$work/exported") symbols exported, all declared"
}

# Names that a static library puts into a stranger's program.
check_archives() {
    local names
    names=$(nm -g --defined-only "$1"/lib/libmegagraph-*.a 2>/dev/null | awk 'NF == 3 && $3 !~ /^mg_/ {print $3}' | sort -u)
    [ -z "$names" ] || stop "static libraries define names without mg_: $names"
}

compile_headers() {
    local header
    for header in "$1"/include/megagraph/*.h; do
        quiet "$cc" -std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only -I"$1/include" -x c "$header"
        quiet "$cxx" -std=c++17 -pedantic -Wall -Wextra -Werror -fsyntax-only -I"$1/include" -x c++ "$header"
    done
    say "headers compile as C11 and C++17: $(cd "$1/include" && echo megagraph/*.h)"
}

install_alone static -DCMAKE_BUILD_TYPE=Debug -DBUILD_SHARED_LIBS=OFF
install_alone shared -DCMAKE_BUILD_TYPE=Debug -DBUILD_SHARED_LIBS=ON
meet static --static
meet shared ""
miss "$work/static"
compare_symbols "$work/shared"
check_archives "$work/static"
compile_headers "$work/static"
say "passed"
