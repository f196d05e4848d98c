#!/bin/sh
# Arguments go to pkg-config: --static for the static library.
exec "${CC:-cc}" -std=c11 -O2 ${CFLAGS:-} -o "${OUT:-sparse}" sparse.c $(pkg-config --cflags --libs "$@" megagraph-attn) -lm ${LDFLAGS:-}
