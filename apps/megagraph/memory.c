#include "memory.h"

#include <megagraph/attn.h>
#include <megagraph/dp.h>
#include <megagraph/graph.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "model.h"
#include "ranks.h"

void mg_app_set_memory_hook(int (*hook)(int64_t bytes));

/* A thread that has no rank yet counts for none, and takes with it what it holds. */
enum { NO_RANK, FIRST_RANK, SLOTS = FIRST_RANK + MG_RANKS_MOST };
static struct {
    _Atomic int64_t held, peak;
} counts[SLOTS];
static _Thread_local int slot;
static _Thread_local int64_t early; /* held by this thread while it has no rank */
static _Atomic int64_t limit, refused_bytes, refused_held;

static int count(int64_t bytes)
{
    _Atomic int64_t *held = &counts[slot].held, *peak = &counts[slot].peak;
    int64_t now = atomic_fetch_add(held, bytes) + bytes, before = atomic_load(peak);
    int64_t most = slot == NO_RANK ? 0 : atomic_load(&limit);
    if (bytes > 0 && most && now > most) {
        atomic_fetch_sub(held, bytes);
        atomic_store(&refused_bytes, bytes);
        atomic_store(&refused_held, now - bytes);
        return 1;
    }
    while (now > before && !atomic_compare_exchange_weak(peak, &before, now))
        ;
    early += slot == NO_RANK ? bytes : 0;
    return 0;
}

void mg_memory_rank(int number)
{
    int64_t bytes = early;
    if (slot == FIRST_RANK + number)
        return;
    if (slot == NO_RANK)
        count(-bytes);
    slot = FIRST_RANK + number;
    if (bytes)
        atomic_fetch_add(&counts[slot].held, bytes);
    early = 0;
}

void mg_memory_watch(int64_t bytes)
{
    atomic_store(&limit, bytes);
    if (slot == NO_RANK)
        mg_memory_rank(0);
    mg_graph_set_memory_hook(count);
    mg_attn_set_memory_hook(count);
    mg_dp_set_memory_hook(count);
    mg_model_set_memory_hook(count);
    mg_app_set_memory_hook(count);
}

int64_t mg_memory_held(void) { return atomic_load(&counts[slot].held); }

int64_t mg_memory_peak(void) { return atomic_load(&counts[slot].peak); }

int64_t mg_memory_resident_peak(void)
{
    char line[256];
    long long kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lld kB", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

int64_t mg_memory_machine(void) { return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }

const char *mg_memory_refusal(void)
{
    static _Thread_local char text[200];
    int64_t bytes = atomic_load(&refused_bytes), beside = atomic_load(&refused_held), most = atomic_load(&limit);
    text[0] = 0;
    if (bytes)
        snprintf(text, sizeof text, "%s more were needed beside the %s held, %s in all; the limit (--memory) is %s",
                 mg_memory_text(bytes), mg_memory_text(beside), mg_memory_text(bytes + beside), mg_memory_text(most));
    return text;
}

const char *mg_memory_text(int64_t bytes)
{
    static _Thread_local char ring[4][32];
    static _Thread_local int turn;
    char *text = ring[turn++ % 4];
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1000 && unit < 6; unit++)
        value /= 1000;
    snprintf(text, sizeof ring[0], unit ? "%.3g %s" : "%.0f %s", value, units[unit]);
    return text;
}
