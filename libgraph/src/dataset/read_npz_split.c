/* Splits of .npz files: masks [splits, items], [items] or [items, splits], or lists of indices. */
#include <string.h>

#include "library.h"
#include "npz.h"

static const char *const kinds[3][9] = {
    {"train_masks", "train_mask", "train_idx", "train_index", "train_indices", "idx_train", NULL},
    {"val_masks", "val_mask", "valid_mask", "val_idx", "valid_idx", "val_index", "val_indices", "idx_val", NULL},
    {"test_masks", "test_mask", "test_idx", "test_index", "test_indices", "idx_test", NULL}};
static const char *const words[] = {"unused", "train", "validation", "test"};

static int named_as_indices(const mg_npy *array)
{
    return strstr(array->member, "idx") || strstr(array->member, "ind");
}

/* Integers that are a mask: as long as the items, and all 0 or 1. */
static int is_mask(const mg_npy *array, const int64_t *values, int64_t items)
{
    if (array->kind == 'b')
        return 1;
    if (named_as_indices(array))
        return 0;
    for (int64_t i = 0; i < array->count; i++)
        if (values[i] != 0 && values[i] != 1)
            return 0;
    return array->shape[array->dims - 1] == items || array->shape[0] == items;
}

static int mark(mg_npz *npz, const mg_npy *array, int64_t split, int64_t item, uint8_t value)
{
    uint8_t *place = &npz->parts->split[split * npz->items + item];
    if (*place != MG_DATASET_UNUSED && *place != value)
        return mg_npy_fail(array, "split %lld: item %lld is in %s and in %s", (long long)split, (long long)item,
                           words[*place], words[value]);
    *place = value;
    return 0;
}

/* The number of splits must be the same in all members; the first decides and makes room. */
static int make_room(mg_npz *npz, const mg_npy *array, int64_t splits)
{
    mg_parts *parts = npz->parts;
    int64_t count;
    if (parts->split)
        return splits == parts->splits ? 0
                                       : mg_npy_fail(array, "has %lld splits, but the member before it %lld",
                                                     (long long)splits, (long long)parts->splits);
    if (__builtin_mul_overflow(splits, npz->items, &count) || count > ((int64_t)1 << 24) + 1024 * array->count)
        return mg_npy_fail(array, "%lld splits of %lld items are too many", (long long)splits, (long long)npz->items);
    parts->splits = splits;
    parts->split = allocate_zeroed(count, 1);
    return parts->split ? 0 : -ENOMEM;
}

static int take_masks(mg_npz *npz, const mg_npy *array, const int64_t *values, uint8_t value)
{
    int64_t items = npz->items, last = array->shape[array->dims - 1];
    int transposed = array->dims == 2 && last != items && array->shape[0] == items;
    if (last != items && !transposed)
        return mg_npy_fail(array, "has %lld items in a mask, but there are %lld", (long long)last, (long long)items);
    int64_t splits = array->dims == 1 ? 1 : transposed ? array->shape[1] : array->shape[0];
    int status = make_room(npz, array, splits);
    for (int64_t s = 0; s < splits && !status; s++)
        for (int64_t i = 0; i < items && !status; i++)
            if (values[transposed ? i * splits + s : s * items + i])
                status = mark(npz, array, s, i, value);
    return status;
}

static int take_indices(mg_npz *npz, const mg_npy *array, const int64_t *values, uint8_t value)
{
    int64_t splits = array->dims == 1 ? 1 : array->shape[0], length = array->shape[array->dims - 1];
    int status = make_room(npz, array, splits);
    for (int64_t s = 0; s < splits && !status; s++)
        for (int64_t k = 0; k < length && !status; k++) {
            int64_t item = values[s * length + k];
            status = item >= 0 && item < npz->items ? mark(npz, array, s, item, value)
                                                    : mg_npy_fail(array, "names item %lld, but items are 0 to %lld",
                                                                  (long long)item, (long long)npz->items - 1);
        }
    return status;
}

static int read_kind(mg_npz *npz, int kind)
{
    mg_npy array;
    int found = mg_npz_open(&array, npz, kinds[kind]);
    if (found <= 0)
        return found;
    int status = array.dims == 1 || array.dims == 2
                     ? 0
                     : mg_npy_fail(&array, "has %d dimensions; 1 or 2 are needed", array.dims);
    int64_t *values = status ? NULL : allocate(array.count, sizeof *values);
    if (!status)
        status = values ? mg_npy_read_integers(values, &array) : -ENOMEM;
    if (!status)
        status = is_mask(&array, values, npz->items) ? take_masks(npz, &array, values, (uint8_t)(kind + 1))
                                                     : take_indices(npz, &array, values, (uint8_t)(kind + 1));
    release(values);
    mg_npy_close(&array);
    return status ? status : 1;
}

int mg_npz_read_split(mg_npz *npz)
{
    int found[3] = {0};
    for (int kind = 0; kind < 3; kind++) {
        found[kind] = read_kind(npz, kind);
        if (found[kind] < 0)
            return found[kind];
    }
    for (int kind = 0; kind < 3; kind++)
        if (npz->parts->split && !found[kind])
            mg_story_add(&npz->parts->story, "split: no member %s: no item is in %s\n", kinds[kind][0],
                         words[kind + 1]);
    return 0;
}
