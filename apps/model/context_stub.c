/* Until libattn has context.c and halo.c: removed with them. */
#include <errno.h>
#include <megagraph/context.h>
#define WEAK __attribute__((weak))
WEAK int64_t mg_attn_context_workspace_bytes(const mg_attn_context *c, const mg_attn_call *call, int b) { (void)c, (void)call, (void)b; return -ENOSYS; }
WEAK int mg_attn_context_forward(const mg_attn_context *c, const mg_attn_call *call) { (void)c, (void)call; return -ENOSYS; }
WEAK int mg_attn_context_backward(const mg_attn_context *c, const mg_attn_call *call) { (void)c, (void)call; return -ENOSYS; }
WEAK int64_t mg_attn_halo_rows(const mg_attn_halo *h) { (void)h; return 0; }
WEAK int64_t mg_attn_halo_sent(const mg_attn_halo *h) { (void)h; return 0; }
#define CALL(name, type) WEAK int name(mg_attn_halo *h, type *r, int64_t s, int64_t w, float *b) { (void)h, (void)r, (void)s, (void)w, (void)b; return -ENOSYS; }
CALL(mg_attn_halo_fetch_begin, const float)
CALL(mg_attn_halo_fetch_end, float)
CALL(mg_attn_halo_return_begin, const float)
CALL(mg_attn_halo_return_end, float)
