/* The table of backends, and which one new plans use. */
#include "kernel.h"
#include "library.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE_KERNELS(isa)                                                                                           \
    void mg_attn_forward_tile_##isa(const forward_tile *);                                                             \
    void mg_attn_backward_tile_##isa(const backward_tile *);                                                           \
    void mg_attn_table_tile_##isa(const table_tile *);                                                                 \
    void mg_attn_dropout_tile_##isa(const dropout_tile *);                                                             \
    void mg_attn_expand_planes_##isa(uint8_t *, const uint64_t *, int);                                                \
    void mg_attn_near_forward_##isa(const near_list *);                                                                \
    void mg_attn_near_backward_##isa(const near_list *);                                                               \
    void mg_attn_near_delta_##isa(const near_delta *);                                                                 \
    void mg_attn_near_add_##isa(const near_sums *);                                                                    \
    void mg_attn_near_dropout_##isa(const dropout_list *);

#define KERNELS(isa)                                                                                                   \
    .forward = mg_attn_forward_tile_##isa, .backward = mg_attn_backward_tile_##isa, .table = mg_attn_table_tile_##isa, \
    .dropout = mg_attn_dropout_tile_##isa, .expand_planes = mg_attn_expand_planes_##isa,                               \
    .near_forward = mg_attn_near_forward_##isa, .near_backward = mg_attn_near_backward_##isa,                          \
    .near_delta = mg_attn_near_delta_##isa, .near_add = mg_attn_near_add_##isa,                                        \
    .near_dropout = mg_attn_near_dropout_##isa

static int always(void) { return 1; }

DECLARE_KERNELS(portable)
#ifdef MG_HAVE_X86_VARIANTS
#include <cpuid.h>
DECLARE_KERNELS(v3)
DECLARE_KERNELS(v4)
void mg_attn_turn_codes_v4(uint8_t *, const uint8_t *, int64_t);
static int has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
static int has_v4(void);
#ifdef MG_HAVE_AVX512_BF16
void mg_attn_forward_tile_bf16(const forward_tile *);
void mg_attn_backward_tile_bf16(const backward_tile *);
static int has_avx512_bf16(void) { return has_v4() && __builtin_cpu_supports("avx512bf16"); }
#endif
static int has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd");
}
#endif

#ifdef MG_HAVE_AMX
#include "amx.h"

static int has_amx(void)
{
    unsigned a, b, c, d;
    return has_v4() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 24 & 1 && d >> 22 & 1 &&
           __builtin_cpu_supports("avx512vbmi") && mg_attn_amx_supported();
}
#endif

int mg_attn_half_pipes(void)
{
#ifdef MG_HAVE_X86_VARIANTS
    enum { UNKNOWN, NO, YES };
    static atomic_int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == UNKNOWN) { /* AMD64 manual, volume 3, CPUID 8000_001A: bit 2 of eax is FP256, bit 3 FP512 */
        unsigned a = 0, b, c, d;
        const int is_there = __get_cpuid(0x8000001A, &a, &b, &c, &d);
        answer = is_there && (a & 0xC) == 4 ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
#else
    return 0;
#endif
}

/* Best last but for the reference, which is chosen only by name. */
static const attn_backend backends[] = {
    {.name = "reference",
     .supported = always,
     .expand_planes = mg_attn_expand_planes_portable,
     .whole_forward = mg_attn_reference_forward,
     .whole_backward = mg_attn_reference_backward},
    {.name = "portable", .supported = always, .lookup = 0, KERNELS(portable)},
#ifdef MG_HAVE_X86_VARIANTS
    {.name = "v3", .supported = has_v3, .lookup = 16, KERNELS(v3)},
    {.name = "v4",
     .supported = has_v4,
     .lookup = 32,
     .log2_scores = 1,
     KERNELS(v4),
     .turn_codes = mg_attn_turn_codes_v4},
#ifdef MG_HAVE_AVX512_BF16
    {.name = "avx512_bf16",
     .supported = has_avx512_bf16,
     .lookup = 32,
     .log2_scores = 1,
     KERNELS(v4),
     .turn_codes = mg_attn_turn_codes_v4,
     .paired_forward = mg_attn_forward_tile_bf16,
     .paired_backward = mg_attn_backward_tile_bf16},
#endif
#ifdef MG_HAVE_AMX
    {.name = "amx",
     .supported = has_amx,
     .lookup = 32,
     .log2_scores = 1,
     KERNELS(v4),
     .turn_codes = mg_attn_turn_codes_v4,
     .bf16 = mg_attn_amx_forward,
     .bf16_backward = mg_attn_amx_backward,
     .bf16_order_codes = mg_attn_amx_order_codes,
     .bf16_begin = mg_attn_amx_begin,
     .bf16_end = mg_attn_amx_end},
#endif
#endif
};
enum { BACKENDS = sizeof backends / sizeof *backends };

static _Atomic(const attn_backend *) chosen; /* by mg_attn_use_backend; NULL: not yet, or the best */

static int refuse(const char *name)
{
    char known[128] = "";
    for (int i = 0; i < BACKENDS; i++) {
        if (!backends[i].supported())
            continue;
        if (*known)
            strcat(known, ", ");
        strcat(known, backends[i].name);
    }
    return fail(-EINVAL, "'%s' is no attention backend that this processor runs; there are %s", name, known);
}

static const attn_backend *find(const char *name)
{
    for (int i = 0; i < BACKENDS; i++)
        if (!strcmp(backends[i].name, name) && backends[i].supported())
            return &backends[i];
    return NULL;
}

static const attn_backend *best(void)
{
    int i = BACKENDS - 1;
    while (!backends[i].supported())
        i--;
    return &backends[i];
}

int mg_attn_use_backend(const char *name)
{
    const attn_backend *backend = name ? find(name) : best();
    if (!backend)
        return refuse(name);
    atomic_store(&chosen, backend);
    return 0;
}

const attn_backend *mg_attn_backend_chosen(void)
{
    const attn_backend *backend = atomic_load(&chosen);
    if (backend)
        return backend;
    const char *name = getenv("MEGAGRAPH_ATTN_BACKEND");
    backend = name && *name ? find(name) : best();
    if (!backend) {
        refuse(name);
        return NULL;
    }
    atomic_store(&chosen, backend);
    return backend;
}
