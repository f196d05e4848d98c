#include "support/test.h"

#include <stdatomic.h>

static _Atomic int64_t countdown, outstanding;
static _Atomic int reached;

static int failing_hook(int64_t bytes)
{
    if (bytes >= 0 && atomic_fetch_sub(&countdown, 1) == 1) {
        atomic_store(&reached, 1);
        return 1;
    }
    atomic_fetch_add(&outstanding, bytes);
    return 0;
}

int64_t test_every_allocation_fails(void (*set_memory_hook)(int (*hook)(int64_t bytes)), int (*work)(void *context),
                                    void *context)
{
    for (int64_t n = 1;; n++) {
        atomic_store(&countdown, n);
        atomic_store(&outstanding, 0);
        atomic_store(&reached, 0);
        set_memory_hook(failing_hook);
        int status = work(context);
        set_memory_hook(NULL);
        if (atomic_load(&outstanding) != 0)
            fail_msg("allocation %lld failed and %lld bytes were lost", (long long)n, (long long)atomic_load(&outstanding));
        if (!atomic_load(&reached)) {
            assert_int_equal(status, 0);
            return n - 1;
        }
        if (status != -ENOMEM)
            fail_msg("allocation %lld failed and the status was %d, not -ENOMEM", (long long)n, status);
    }
}
