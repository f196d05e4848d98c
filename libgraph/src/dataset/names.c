#include "names.h"

#include <string.h>

#include "library.h"
#include "megagraph/graph.h"

static uint64_t hash(const char *word) { return mg_graph_hash_bytes(1, word, (int64_t)strlen(word)); }

const char *mg_names_word(const mg_names *names, int64_t number) { return names->text + names->offsets[number]; }

/* The word's slot, or the free one where it would go. */
static int64_t find_slot(const mg_names *names, const char *word)
{
    int64_t slot = (int64_t)(hash(word) & (uint64_t)(names->slot_count - 1));
    while (names->slots[slot] >= 0 && strcmp(mg_names_word(names, names->slots[slot]), word))
        slot = (slot + 1) & (names->slot_count - 1);
    return slot;
}

int64_t mg_names_find(const mg_names *names, const char *word)
{
    return names->count ? names->slots[find_slot(names, word)] : -1;
}

static int grow_slots(mg_names *names)
{
    int64_t wanted = names->slot_count ? 2 * names->slot_count : 1024;
    int64_t *slots = allocate(wanted, sizeof *slots);
    if (!slots)
        return -ENOMEM;
    memset(slots, -1, (size_t)wanted * sizeof *slots);
    release(names->slots);
    names->slots = slots;
    names->slot_count = wanted;
    for (int64_t n = 0; n < names->count; n++)
        slots[find_slot(names, mg_names_word(names, n))] = n;
    return 0;
}

static int grow_words(mg_names *names, int64_t bytes)
{
    if (names->count == names->capacity) {
        int64_t capacity = 2 * names->capacity + 512;
        int64_t *offsets = reallocate(names->offsets, capacity, sizeof *offsets);
        if (!offsets)
            return -ENOMEM;
        names->offsets = offsets;
        names->capacity = capacity;
    }
    if (names->bytes + bytes > names->text_capacity) {
        int64_t capacity = 2 * names->text_capacity + bytes + 4096;
        char *text = reallocate(names->text, capacity, 1);
        if (!text)
            return -ENOMEM;
        names->text = text;
        names->text_capacity = capacity;
    }
    return 0;
}

int64_t mg_names_add(mg_names *names, const char *word)
{
    int64_t bytes = (int64_t)strlen(word) + 1;
    if (2 * (names->count + 1) > names->slot_count && grow_slots(names))
        return -ENOMEM;
    int64_t slot = find_slot(names, word);
    if (names->slots[slot] >= 0)
        return names->slots[slot];
    if (grow_words(names, bytes))
        return -ENOMEM;
    memcpy(names->text + names->bytes, word, (size_t)bytes);
    names->offsets[names->count] = names->bytes;
    names->bytes += bytes;
    names->slots[slot] = names->count;
    return names->count++;
}

void mg_names_release(mg_names *names)
{
    release(names->offsets);
    release(names->text);
    release(names->slots);
    *names = (mg_names){0};
}
