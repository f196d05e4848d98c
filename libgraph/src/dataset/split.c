/* Splits: those of the file, or stratified ones made by seed. */
#include <string.h>

#include "library.h"
#include "parts.h"

static int64_t class_of(const mg_dataset *data, int64_t item) { return data->labels ? data->labels[item] : 0; }

/* Labelled items, shuffled by seed, then sorted stably by class: ends[c] is where class c ends. */
static void order_by_class(int64_t *order, int64_t *shuffled, int64_t *ends, const mg_dataset *data, int64_t classes,
                           uint64_t seed, int64_t split)
{
    int64_t labelled = 0;
    for (int64_t i = 0; i < data->items; i++)
        if (mg_dataset_is_labelled(data, i))
            order[labelled++] = i;
    mg_dataset_shuffle(shuffled, order, labelled, seed, split);
    memset(ends, 0, (size_t)(classes + 1) * sizeof *ends);
    for (int64_t k = 0; k < labelled; k++)
        ends[class_of(data, shuffled[k]) + 1]++;
    for (int64_t c = 0; c < classes; c++)
        ends[c + 1] += ends[c];
    for (int64_t k = 0; k < labelled; k++)
        order[ends[class_of(data, shuffled[k])]++] = shuffled[k];
}

/* Of each class a fifth is tested, a fifth validated, rounded; classes of one or two items are all trained on. */
static void split_fifths(uint8_t *out, const int64_t *order, const int64_t *ends, int64_t classes)
{
    for (int64_t c = 0, begin = 0; c < classes; begin = ends[c++]) {
        int64_t fifth = (2 * (ends[c] - begin) + 5) / 10;
        for (int64_t k = begin; k < ends[c]; k++)
            out[order[k]] = k < begin + fifth       ? MG_DATASET_TEST
                            : k < begin + 2 * fifth ? MG_DATASET_VALIDATION
                                                    : MG_DATASET_TRAIN;
    }
}

/* Items are dealt to folds like cards, class by class; every tenth of those left is validated. */
static void split_folds(uint8_t *out, const int64_t *order, int64_t labelled, int64_t fold, int folds)
{
    int64_t left = 0;
    for (int64_t k = 0; k < labelled; k++)
        out[order[k]] = k % folds == fold  ? MG_DATASET_TEST
                        : left++ % 10 == 5 ? MG_DATASET_VALIDATION
                                           : MG_DATASET_TRAIN;
}

static int check_split(const mg_dataset *data, int64_t split, int folds, int64_t labelled)
{
    if (split < 0)
        return fail(-EINVAL, "%s: split %lld is negative", data->name, (long long)split);
    if (folds < 0 || folds == 1 || folds > labelled)
        return fail(-EINVAL, "%s: %d folds of %lld labelled items; folds are 2 to the number of items", data->name,
                    folds, (long long)labelled);
    if (folds && split >= folds)
        return fail(-EINVAL, "%s: fold %lld of %d; folds are 0 to %d", data->name, (long long)split, folds, folds - 1);
    if (!folds && data->splits && split >= data->splits)
        return fail(-EINVAL, "%s: split %lld, but the file has splits 0 to %lld", data->name, (long long)split,
                    (long long)data->splits - 1);
    if (!folds && !data->splits && !labelled)
        return fail(-EINVAL, "%s: none of %lld items has a label, so there is nothing to split", data->name,
                    (long long)data->items);
    return 0;
}

int mg_dataset_split(uint8_t *split_out, const mg_dataset *data, int64_t split, int folds, uint64_t seed)
{
    int64_t classes = data->labels ? data->classes : 1, labelled = mg_dataset_labelled(data);
    int status = check_split(data, split, folds, labelled);
    if (status)
        return status;
    if (!folds && data->splits) {
        memcpy(split_out, data->split + split * data->items, (size_t)data->items);
        return 0;
    }
    int64_t *order = allocate(data->items, sizeof *order);
    int64_t *shuffled = order ? allocate(data->items, sizeof *shuffled) : NULL;
    int64_t *ends = shuffled ? allocate(classes + 1, sizeof *ends) : NULL;
    if (ends) {
        /* All folds are of one shuffle; other splits are each of their own. */
        order_by_class(order, shuffled, ends, data, classes, seed, folds ? 0 : split);
        memset(split_out, MG_DATASET_UNUSED, (size_t)data->items);
        if (folds)
            split_folds(split_out, order, labelled, split, folds);
        else
            split_fifths(split_out, order, ends, classes);
    }
    release(order);
    release(shuffled);
    release(ends);
    return ends ? 0 : -ENOMEM;
}
