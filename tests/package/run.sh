#!/usr/bin/env bash
# The install tree as a stranger meets it. Every library is built and installed alone, static and shared; the tree is then
# moved, and a project that knows nothing else is built on it by find_package and by pkg-config, and run; so are the
# examples of libattn and the C code of its README, the latter also without OpenMP. Each shared library exports what its
# headers declare and nothing else, all names of the static ones begin with mg_; each header compiles by itself as C11 and
# as C++17.
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

# examples <static|shared> <pkg-config's option>: libattn/examples, copied out of the source tree.
examples() {
    local kind=$1 tree=$work/$1 copy=$work/examples-$1
    cp -r "$source/libattn/examples" "$copy"
    say "$kind: examples/cmake"
    quiet cmake -G Ninja -S "$copy/cmake" -B "$copy/cmake/build" -DCMAKE_PREFIX_PATH="$tree"
    quiet cmake --build "$copy/cmake/build"
    "$copy/cmake/build/dense"
    say "$kind: examples/pkg-config"
    (cd "$copy/pkg-config" && CC=$cc LDFLAGS="-Wl,-rpath,$tree/lib" PKG_CONFIG_PATH=$tree/lib/pkgconfig \
        quiet ./build.sh --define-prefix $2)
    "$copy/pkg-config/sparse"
}

# The first C code of libattn/README.md: by each compiler, as C11 and as C++17.
readme() {
    local code=$work/readme.c flags="-O2 -Wall -Wextra -pedantic -Werror" compiler
    awk '/^## In your project/ {here = 1} here && /^```c$/ {code = 1; next} code && /^```$/ {exit} code' \
        "$source/libattn/README.md" >"$code"
    [ "$(wc -l <"$code")" -gt 10 ] || stop "libattn/README.md has no C code under '## In your project'"
    for compiler in "gcc -std=c11" "clang -std=c11" "g++ -x c++ -std=c++17" "clang++ -x c++ -std=c++17"; do
        if ! command -v "${compiler%% *}" >/dev/null; then
            echo "SKIPPED: package: the README's example by ${compiler%% *}, which is not here"
            continue
        fi
        quiet $compiler $flags -I"$work/shared/include" "$code" -o "$work/readme" -x none \
            "$work/shared/lib/libmegagraph-attn.so" -Wl,-rpath,"$work/shared/lib"
        expect_ones "$compiler, shared"
        quiet $compiler $flags -I"$work/serial/include" "$code" -o "$work/readme" -x none \
            "$work/serial/lib/libmegagraph-attn.a" -lm
        expect_ones "$compiler, static, without OpenMP"
    done
}

# A project that has C++ only.
without_c() {
    mkdir -p "$work/cxx"
    cp "$work/readme.c" "$work/cxx/readme.cpp"
    sed -e 's/LANGUAGES C)/LANGUAGES CXX)/; s/dense\.c/readme.cpp/' "$source/libattn/examples/cmake/CMakeLists.txt" >"$work/cxx/CMakeLists.txt"
    quiet cmake -G Ninja -S "$work/cxx" -B "$work/cxx/$1" -DCMAKE_PREFIX_PATH="$work/$1"
    quiet cmake --build "$work/cxx/$1"
    cp "$work/cxx/$1/dense" "$work/readme"
    expect_ones "a CMake project without C, $1"
}

expect_ones() {
    local line
    line=$("$work/readme")
    [ "$line" = "out[0] = 1.000" ] || stop "the README's example ($1) says '$line'"
    say "README: $1"
}

# libattn alone with -DMEGAGRAPH_OPENMP=OFF: nothing in it asks for OpenMP.
install_serial() {
    say "serial libattn"
    quiet cmake -G Ninja -S "$source/libattn" -B "$work/build-serial" -DCMAKE_INSTALL_LIBDIR=lib -DMEGAGRAPH_OPENMP=OFF \
        -DCMAKE_BUILD_TYPE=Debug -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$work/serial"
    quiet cmake --build "$work/build-serial"
    quiet cmake --install "$work/build-serial"
    if nm -u "$work/serial/lib/libmegagraph-attn.a" 2>/dev/null | grep -E ' (omp|GOMP|__kmpc)_'; then
        stop "libattn without OpenMP needs it all the same"
    fi
}

# libattn/examples/torch: its structures against the header, and its check by the first Python that has PyTorch.
torch_example() {
    local folder=$work/examples-shared/torch python found=""
    for python in ${PYTHON:-} python3 /usr/bin/python3; do
        command -v "$python" >/dev/null || continue
        "$python" "$folder/megagraph_attn.py" --layout >"$work/layout.c"
        quiet "$cc" -std=c11 -fsyntax-only -I"$work/shared/include" "$work/layout.c"
        [ -n "$found" ] || say "torch: structures are the header's"
        found=yes
        if "$python" -c 'import torch' 2>/dev/null; then
            MEGAGRAPH_ATTN_LIBRARY=$work/shared/lib/libmegagraph-attn.so quiet "$python" "$folder/check.py"
            say "$(tail -n 1 "$work/log")"
            return
        fi
    done
    echo "SKIPPED: package: libattn/examples/torch: no python3 with torch (apt install python3-torch; or PYTHON=...)"
}

# A component that is not there is named.
miss() {
    if cmake -G Ninja -S "$here/stranger" -B "$work/missing" -DCMAKE_PREFIX_PATH="$1" -DCOMPONENTS="graph;nosuch" >"$work/log" 2>&1; then
        stop "find_package found the component nosuch"
    fi
    grep -q "libnosuch is not installed" "$work/log" || { cat "$work/log" >&2; stop "find_package does not name what it lacks"; }
}

declared() { sed -nE "s/^MG_$1_API [a-z].*[ *](mg_[a-z0-9_]+)\(.*/\1/p" "${@:2}" | sort -u; }
exported() { nm -D --defined-only "$1" | awk '{print $3}' | sort -u; }

# Exported symbols of each shared library, against what the headers declare with its MG_<LIBRARY>_API.
compare_symbols() {
    local tree=$1 library
    for library in $libraries; do
        [ -e "$tree/lib/libmegagraph-$library.so" ] || continue
        declared "${library^^}" "$tree"/include/megagraph/*.h >"$work/declared"
        exported "$tree/lib/libmegagraph-$library.so" >"$work/exported"
        diff "$work/declared" "$work/exported" >"$work/log" ||
            { cat "$work/log" >&2; stop "headers (<) and shared lib$library (>) differ"; }
        say "lib$library: $(wc -l <"$work/exported") symbols exported, all declared"
    done
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
install_serial
examples static --static
examples shared ""
readme
for kind in static shared serial; do without_c "$kind"; done
torch_example
miss "$work/static"
compare_symbols "$work/shared"
check_archives "$work/static"
compile_headers "$work/static"
say "passed"
