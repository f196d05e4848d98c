/* Labels as files write them, numbers or words, become classes 0..C-1 or targets. */
#include "parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

int mg_dataset_is_labelled(const mg_dataset *data, int64_t item)
{
    if (data->labels)
        return data->labels[item] >= 0;
    for (int64_t t = 0; t < data->target_count; t++)
        if (!isnan(data->targets[item * data->target_count + t]))
            return 1;
    return 0;
}

int64_t mg_dataset_labelled(const mg_dataset *data)
{
    int64_t labelled = 0;
    for (int64_t i = 0; i < data->items; i++)
        labelled += mg_dataset_is_labelled(data, i);
    return labelled;
}

static const char *place(const mg_parts *parts) { return parts->labels_from ? parts->labels_from : "labels"; }

/* --- what the values are --- */

typedef struct values_kind {
    int whole, binary; /* all are integers; all are 0 or 1 (NaN aside) */
    int64_t labelled;
    int64_t fraction_at, other_at; /* first value that is not whole, not binary; -1: none */
    int64_t minus_ones;
    int64_t distinct_others; /* distinct values beside -1, counted up to 2 */
} values_kind;

static values_kind look_at(const double *values, int64_t count)
{
    values_kind kind = {.whole = 1, .binary = 1, .fraction_at = -1, .other_at = -1};
    double first = NAN;
    for (int64_t i = 0; i < count; i++) {
        double value = values[i];
        if (isnan(value))
            continue;
        kind.labelled++;
        if (value == -1)
            kind.minus_ones++;
        else if (isnan(first) || (value != first && kind.distinct_others < 2))
            first = value, kind.distinct_others++;
        if (value != floor(value) || isinf(value)) {
            kind.whole = 0;
            kind.fraction_at = kind.fraction_at < 0 ? i : kind.fraction_at;
        }
        if (value != 0 && value != 1) {
            kind.binary = 0;
            kind.other_at = kind.other_at < 0 ? i : kind.other_at;
        }
    }
    return kind;
}

/* --- classes --- */

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int compare_strings(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int too_many_classes(const mg_parts *parts, int64_t classes)
{
    return fail(-EINVAL, "%s: %s: %lld distinct values are too many classes", parts->path, place(parts),
                (long long)classes);
}

static int name_numbers(mg_dataset *data, const double *distinct, int64_t count)
{
    char *text = allocate(count, 32), *at = text;
    if (!text)
        return -ENOMEM;
    for (int64_t c = 0; c < count; c++)
        at += sprintf(at, "%.17g", distinct[c]) + 1;
    data->class_names = mg_strings_pack(text, at - text, count);
    data->classes = count;
    release(text);
    return data->class_names ? 0 : -ENOMEM;
}

static int classes_of_numbers(mg_dataset *data, const mg_parts *parts)
{
    double *distinct = allocate(data->items, sizeof *distinct);
    int64_t count = 0, unique = 0;
    if (!distinct)
        return -ENOMEM;
    for (int64_t i = 0; i < data->items; i++)
        if (!isnan(parts->label_values[i]))
            distinct[count++] = parts->label_values[i] + 0.; /* -0 is 0 */
    qsort(distinct, (size_t)count, sizeof *distinct, compare_numbers);
    for (int64_t i = 0; i < count; i++)
        if (!unique || distinct[i] != distinct[unique - 1])
            distinct[unique++] = distinct[i];
    int status = unique > INT32_MAX ? too_many_classes(parts, unique) : name_numbers(data, distinct, unique);
    for (int64_t i = 0; i < data->items && !status; i++) {
        const double *found = isnan(parts->label_values[i]) ? NULL
                                                            : bsearch(&parts->label_values[i], distinct, (size_t)unique,
                                                                      sizeof *distinct, compare_numbers);
        data->labels[i] = found ? (int32_t)(found - distinct) : -1;
    }
    release(distinct);
    return status;
}

static int classes_of_strings(mg_dataset *data, const mg_parts *parts)
{
    char **distinct = allocate(data->items, sizeof *distinct);
    int64_t count = 0, unique = 0;
    if (!distinct)
        return -ENOMEM;
    for (int64_t i = 0; i < data->items; i++)
        if (parts->label_strings[i])
            distinct[count++] = parts->label_strings[i];
    qsort(distinct, (size_t)count, sizeof *distinct, compare_strings);
    for (int64_t i = 0; i < count; i++)
        if (!unique || strcmp(distinct[i], distinct[unique - 1]))
            distinct[unique++] = distinct[i];
    data->classes = unique;
    data->class_names = mg_strings_copy(distinct, unique);
    int status = !data->class_names ? -ENOMEM : unique > INT32_MAX ? too_many_classes(parts, unique) : 0;
    for (int64_t i = 0; i < data->items && !status; i++) {
        char **found = parts->label_strings[i] ? bsearch(&parts->label_strings[i], distinct, (size_t)unique,
                                                         sizeof *distinct, compare_strings)
                                               : NULL;
        data->labels[i] = found ? (int32_t)(found - distinct) : -1;
    }
    release(distinct);
    return status;
}

/* The file names its classes: labels are their numbers. */
static int classes_as_named(mg_dataset *data, mg_parts *parts)
{
    for (int64_t i = 0; i < data->items; i++) {
        double value = parts->label_values[i];
        if (!isnan(value) && !(value >= 0 && value < (double)parts->classes && value == floor(value)))
            return fail(-EINVAL, "%s: %s: item %lld has label %g, but class_names names classes 0 to %lld", parts->path,
                        place(parts), (long long)i, value, (long long)parts->classes - 1);
        data->labels[i] = isnan(value) ? -1 : (int32_t)value;
    }
    data->classes = parts->classes;
    data->class_names = parts->class_names;
    parts->class_names = NULL;
    return 0;
}

static void tell_classes(mg_story *story, const mg_dataset *data)
{
    int plain = 1;
    char number[32];
    for (int64_t c = 0; c < data->classes && plain; c++) {
        snprintf(number, sizeof number, "%lld", (long long)c);
        plain = !strcmp(number, data->class_names[c]);
    }
    mg_story_add(story, "labels: %lld of %lld items, %lld classes", (long long)mg_dataset_labelled(data),
                 (long long)data->items, (long long)data->classes);
    if (!plain) {
        mg_story_add(story, ", numbered from 0:");
        for (int64_t c = 0; c < data->classes && c < 8; c++)
            mg_story_add(story, "%s %.40s", c ? "," : "", data->class_names[c]);
        if (data->classes > 8)
            mg_story_add(story, ", ... %.40s", data->class_names[data->classes - 1]);
    }
    mg_story_add(story, "\n");
}

static int make_classes(mg_dataset *data, mg_parts *parts)
{
    data->task = MG_DATASET_CLASSIFICATION;
    data->labels = allocate(data->items, sizeof *data->labels);
    int status = !data->labels          ? -ENOMEM
                 : parts->label_strings ? classes_of_strings(data, parts)
                 : parts->class_names   ? classes_as_named(data, parts)
                                        : classes_of_numbers(data, parts);
    if (!status)
        tell_classes(&parts->story, data);
    return status;
}

/* --- targets --- */

static int make_targets(mg_dataset *data, mg_parts *parts, mg_dataset_task task)
{
    int64_t count = data->items * parts->label_columns;
    data->task = task;
    data->target_count = parts->label_columns;
    data->targets = allocate(count, sizeof *data->targets);
    if (!data->targets)
        return -ENOMEM;
    for (int64_t i = 0; i < count; i++)
        data->targets[i] = (float)parts->label_values[i];
    mg_story_add(&parts->story, "targets: %lld of %lld items, %lld columns, %s\n", (long long)mg_dataset_labelled(data),
                 (long long)data->items, (long long)data->target_count,
                 task == MG_DATASET_MULTILABEL ? "each 0 or 1 (multi-label)" : "regression");
    return 0;
}

static int wrong_value(const mg_parts *parts, int64_t at, const char *what)
{
    return fail(-EINVAL, "%s: %s: item %lld, column %lld is %g, which is %s", parts->path, place(parts),
                (long long)(at / parts->label_columns), (long long)(at % parts->label_columns), parts->label_values[at],
                what);
}

/* The task, told from the values where nobody named it; or a negative status. */
static int choose_task(const mg_parts *parts, const values_kind *kind)
{
    mg_dataset_task task = parts->desc->task ? parts->desc->task : parts->task;
    int columns = parts->label_columns > 1;
    switch (task) {
    case MG_DATASET_CLASSIFICATION:
        if (columns)
            return fail(-EINVAL, "%s: %s: %lld columns cannot be one class each: the task is multi-label or regression",
                        parts->path, place(parts), (long long)parts->label_columns);
        return kind->whole ? (int)task : wrong_value(parts, kind->fraction_at, "no class: use the task regression");
    case MG_DATASET_MULTILABEL:
        return kind->binary ? (int)task
                            : wrong_value(parts, kind->other_at, "not 0, 1 or NaN, as the multi-label task needs");
    case MG_DATASET_REGRESSION:
        return task;
    default:
        if (columns)
            return kind->binary ? MG_DATASET_MULTILABEL : MG_DATASET_REGRESSION;
        return kind->whole ? MG_DATASET_CLASSIFICATION : MG_DATASET_REGRESSION;
    }
}

/* -1 means unlabelled, unless -1 and one other value are all that there is, as in TU folders. */
static void take_minus_ones(mg_parts *parts, int64_t count, values_kind *kind)
{
    if (!kind->minus_ones || parts->minus_one_is_class || (kind->distinct_others == 1 && !parts->class_names))
        return;
    for (int64_t i = 0; i < count; i++)
        if (parts->label_values[i] == -1)
            parts->label_values[i] = NAN;
    kind->labelled -= kind->minus_ones;
    mg_story_add(&parts->story, "label -1: %lld items, read as unlabelled\n", (long long)kind->minus_ones);
}

static int assign_numbers(mg_dataset *data, mg_parts *parts)
{
    int64_t count = data->items * parts->label_columns;
    values_kind kind = look_at(parts->label_values, count);
    for (int64_t i = 0; i < count; i++)
        if (isinf(parts->label_values[i]) || fabs(parts->label_values[i]) > 3.4e38)
            return wrong_value(parts, i, "too large: labels are finite");
    if (!kind.labelled && !parts->task && !parts->desc->task) {
        mg_story_add(&parts->story, "labels: none of %lld items has one\n", (long long)data->items);
        return 0;
    }
    int task = choose_task(parts, &kind);
    if (task == MG_DATASET_CLASSIFICATION)
        take_minus_ones(parts, count, &kind);
    return task < 0                            ? task
           : task == MG_DATASET_CLASSIFICATION ? make_classes(data, parts)
                                               : make_targets(data, parts, (mg_dataset_task)task);
}

int mg_labels_assign(mg_dataset *data, mg_parts *parts)
{
    mg_dataset_task task = parts->desc->task;
    if (!parts->label_columns && task)
        return fail(-EINVAL, "%s: a task was asked for, but there are no labels", parts->path);
    if (!parts->label_columns) {
        mg_story_add(&parts->story, "labels: none\n");
        return 0;
    }
    if (parts->label_strings && task && task != MG_DATASET_CLASSIFICATION)
        return fail(-EINVAL, "%s: %s: labels are words, so the task is classification", parts->path, place(parts));
    return parts->label_strings ? make_classes(data, parts) : assign_numbers(data, parts);
}
