#include "checkpoint.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "app.h"
#include "safetensors.h"

enum { VERSION = 1, LARGEST_MANIFEST = 64 << 20 };

/* The two files, with the prefixes under which a parameter is stored in each. */
static const char *const file_names[] = {"model.safetensors", "state.safetensors"};

/* --- tensors of a file --- */

typedef struct tensor_list {
    mg_tensor *tensors; /* names owned */
    float **data;       /* where each is, or is to be read to */
    int64_t count;
} tensor_list;

static void clear_list(tensor_list *list)
{
    for (int64_t t = 0; list->tensors && t < list->count; t++)
        free((char *)(uintptr_t)list->tensors[t].name);
    release(list->tensors);
    release(list->data);
}

static int add_tensor(tensor_list *list, const char *prefix, const char *name, int32_t rank, const int64_t *shape,
                      float *data)
{
    char *full;
    if (asprintf(&full, "%s%s", prefix, name) < 0)
        return fail(-ENOMEM, "no memory for the names of a checkpoint");
    mg_tensor *tensor = &list->tensors[list->count];
    *tensor = (mg_tensor){.name = full, .rank = rank, .data = data};
    for (int32_t d = 0; d < rank; d++)
        tensor->shape[d] = shape[d];
    list->data[list->count++] = data;
    return 0;
}

static int add_range(tensor_list *list, const char *prefix, const mg_model *model, float *range)
{
    int64_t count;
    const mg_model_parameter *parameters = mg_model_parameters(model, &count);
    int status = 0;
    for (int64_t p = 0; range && p < count && !status; p++)
        status = add_tensor(list, prefix, parameters[p].name, parameters[p].rank, parameters[p].shape,
                            range + parameters[p].begin);
    return status;
}

static int list_file(tensor_list *list, int file, const mg_checkpoint_arrays *arrays)
{
    int64_t count;
    mg_model_parameters(arrays->model, &count);
    *list = (tensor_list){.tensors = allocate_zeroed(4 * count + 2, sizeof(mg_tensor)),
                          .data = allocate_zeroed(4 * count + 2, sizeof(float *))};
    int status = list->tensors && list->data ? 0 : -ENOMEM;
    if (!status && file == 0) {
        status = add_range(list, "", arrays->model, arrays->best);
        if (!status && arrays->targets)
            status = add_tensor(list, "", "targets.mean", 1, &arrays->targets, arrays->target_mean);
        if (!status && arrays->targets)
            status = add_tensor(list, "", "targets.deviation", 1, &arrays->targets, arrays->target_deviation);
    } else if (!status) {
        status = add_range(list, "", arrays->model, arrays->current);
        if (!status)
            status = add_range(list, "optimizer.first.", arrays->model, arrays->first);
        if (!status)
            status = add_range(list, "optimizer.second.", arrays->model, arrays->second);
        if (!status && arrays->average)
            status = add_range(list, "average.", arrays->model, arrays->average);
    }
    return status;
}

/* --- the manifest --- */

static json_t *real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *hexadecimal(uint64_t value)
{
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    return json_string(text);
}

static json_t *names(char **words, int64_t count)
{
    json_t *list = json_array();
    for (int64_t c = 0; c < count; c++) {
        json_t *word = json_string(words[c]);
        json_array_append_new(list, word ? word : json_string("?")); /* not UTF-8 */
    }
    return list;
}

static char *manifest_text(const mg_checkpoint *state, const int64_t bytes[2], const uint64_t hashes[2])
{
    json_t *files = json_array();
    for (int f = 0; f < 2; f++)
        json_array_append_new(files, json_pack("{s:s, s:I, s:o}", "name", file_names[f], "bytes", (json_int_t)bytes[f],
                                               "hash", hexadecimal(hashes[f])));
    json_t *manifest =
        json_pack("{s:i, s:I, s:I, s:I, s:o, s:o, s:I, s:o, s:o, s:o, s:I, s:b, s:o, s:o, s:I, s:I, s:I, s:o, s:o}",
                  "version", VERSION, "step", (json_int_t)state->step, "epoch", (json_int_t)state->epoch, "position",
                  (json_int_t)state->position, "epoch_loss", real(state->epoch_loss), "epoch_weight",
                  real(state->epoch_weight), "best_epoch", (json_int_t)state->best_epoch, "best_value",
                  real(state->best_value), "best_loss", real(state->best_loss), "seconds", real(state->seconds),
                  "log_bytes", (json_int_t)state->log_bytes, "finished", state->finished, "config_hash",
                  hexadecimal(state->config_hash), "dataset_hash", hexadecimal(state->dataset_hash), "inputs",
                  (json_int_t)state->inputs, "edge_inputs", (json_int_t)state->edge_inputs, "outputs",
                  (json_int_t)state->outputs, "classes", names(state->class_names, state->classes), "files", files);
    char *text = json_dumps(manifest, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(manifest);
    return text;
}

static double real_of(json_t *value) { return json_is_number(value) ? json_number_value(value) : (double)NAN; }

static int take_names(mg_checkpoint *state, const char *name, json_t *list)
{
    state->class_names = allocate_zeroed((int64_t)json_array_size(list) + 1, sizeof(char *));
    if (!state->class_names)
        return -ENOMEM;
    for (size_t c = 0; c < json_array_size(list); c++, state->classes++) {
        const char *word = json_string_value(json_array_get(list, c));
        state->class_names[c] = word ? strdup(word) : NULL;
        if (!state->class_names[c])
            return fail(-EINVAL, "%s: the name of class %zu is no text", name, c);
    }
    return 0;
}

static int take_manifest(mg_checkpoint *state, json_t *files[2], const char *name, json_t *manifest)
{
    int version = 0;
    json_int_t step, epoch, position, best_epoch, log_bytes, inputs, edge_inputs, outputs;
    json_t *epoch_loss, *epoch_weight, *best_value, *best_loss, *seconds, *classes;
    const char *config_hash, *dataset_hash;
    json_error_t error;
    if (json_unpack_ex(manifest, &error, 0, "{s:i}", "version", &version) || version != VERSION)
        return fail(-EINVAL, "%s: version %d is expected, found %d", name, VERSION, version);
    if (json_unpack_ex(
            manifest, &error, 0,
            "{s:I, s:I, s:I, s:o, s:o, s:I, s:o, s:o, s:o, s:I, s:b, s:s, s:s, s:I, s:I, s:I, s:o, s:[o, o!]}", "step",
            &step, "epoch", &epoch, "position", &position, "epoch_loss", &epoch_loss, "epoch_weight", &epoch_weight,
            "best_epoch", &best_epoch, "best_value", &best_value, "best_loss", &best_loss, "seconds", &seconds,
            "log_bytes", &log_bytes, "finished", &state->finished, "config_hash", &config_hash, "dataset_hash",
            &dataset_hash, "inputs", &inputs, "edge_inputs", &edge_inputs, "outputs", &outputs, "classes", &classes,
            "files", &files[0], &files[1]))
        return fail(-EINVAL, "%s: is no manifest of a checkpoint: %s", name, error.text);
    if (step < 0 || epoch < 0 || position < 0 || log_bytes < 0 || inputs < 0 || edge_inputs < 0 || outputs < 0 ||
        best_epoch < -1)
        return fail(-EINVAL, "%s: a count in it is negative", name);
    state->step = step;
    state->epoch = epoch;
    state->position = position;
    state->best_epoch = best_epoch;
    state->log_bytes = log_bytes;
    state->inputs = inputs;
    state->edge_inputs = edge_inputs;
    state->outputs = outputs;
    state->epoch_loss = real_of(epoch_loss);
    state->epoch_weight = real_of(epoch_weight);
    state->best_value = real_of(best_value);
    state->best_loss = real_of(best_loss);
    state->seconds = real_of(seconds);
    state->config_hash = strtoull(config_hash, NULL, 16);
    state->dataset_hash = strtoull(dataset_hash, NULL, 16);
    return take_names(state, name, classes);
}

static json_t *load_json(const char *name, const char *text, int64_t bytes)
{
    json_error_t error;
    json_t *value = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    if (!value)
        fail(-EINVAL, "%s:%d: is no JSON: %s", name, error.line, error.text);
    return value;
}

int mg_checkpoint_parse(mg_checkpoint *state, const char *name, const char *text, int64_t bytes)
{
    json_t *files[2], *manifest = load_json(name, text, bytes);
    *state = (mg_checkpoint){0};
    int status = manifest ? take_manifest(state, files, name, manifest) : -EINVAL;
    json_decref(manifest);
    return status;
}

/* --- saving --- */

static int write_file(int64_t *bytes, uint64_t *hash, const char *folder, int file, const mg_checkpoint_arrays *arrays)
{
    tensor_list list;
    int status = list_file(&list, file, arrays);
    if (!status)
        status = mg_safetensors_write(bytes, hash, mg_files_path(folder, file_names[file]), list.tensors, list.count);
    clear_list(&list);
    return status;
}

static int write_all(const char *folder, const mg_checkpoint *state, const mg_checkpoint_arrays *arrays)
{
    int64_t bytes[2];
    uint64_t hashes[2];
    int status = mg_files_remove_folder(folder);
    if (!status)
        status = mg_files_make_folder(folder);
    for (int f = 0; f < 2 && !status; f++)
        status = write_file(&bytes[f], &hashes[f], folder, f, arrays);
    if (status)
        return status;
    char *text = manifest_text(state, bytes, hashes);
    status = text ? mg_files_write(mg_files_path(folder, "manifest.json"), text, strlen(text))
                  : fail(-ENOMEM, "no memory for the checkpoint's manifest");
    free(text);
    return status ? status : mg_files_sync_folder(folder);
}

static int move_folder(const char *from, const char *to)
{
    return rename(from, to) ? fail(-errno, "%s: cannot be renamed to %s: %s", from, to, strerror(errno)) : 0;
}

int mg_checkpoint_save(const char *run, const mg_checkpoint *state, const mg_checkpoint_arrays *arrays)
{
    char aside[4200], here[4200], old[4200];
    snprintf(aside, sizeof aside, "%.4096s/checkpoint.new", run);
    snprintf(here, sizeof here, "%.4096s/checkpoint", run);
    snprintf(old, sizeof old, "%.4096s/checkpoint.old", run);
    int status = write_all(aside, state, arrays);
    if (status) {
        char line[600];
        snprintf(line, sizeof line, "%s", mg_app_last_error());
        mg_files_remove_folder(aside);
        return fail(status, "%s", line);
    }
    if (mg_files_exists(here)) {
        status = mg_files_remove_folder(old);
        if (!status)
            status = move_folder(here, old);
    }
    if (!status)
        status = move_folder(aside, here);
    if (!status)
        status = mg_files_sync_folder(run);
    return status ? status : mg_files_remove_folder(old);
}

/* --- loading --- */

/* Not -ENOENT, which says that there is no checkpoint: a run would begin anew over what is left of this one. */
static int is_missing(const char *folder, const char *name)
{
    return fail(-EINVAL, "%s/%s: is not there, so the checkpoint is not whole; put it back, or remove %s to begin anew",
                folder, name, folder);
}

static int check_file(const char *folder, int f, json_t *entry)
{
    const char *name = "", *text = "";
    json_int_t expected = 0;
    int64_t bytes;
    uint64_t hash;
    if (json_unpack(entry, "{s:s, s:I, s:s}", "name", &name, "bytes", &expected, "hash", &text) ||
        strcmp(name, file_names[f]))
        return fail(-EINVAL, "%s/manifest.json: %s is expected in its list of files", folder, file_names[f]);
    int status = mg_safetensors_hash(&bytes, &hash, mg_files_path(folder, name));
    if (status == -ENOENT)
        return is_missing(folder, name);
    if (status)
        return status;
    if (bytes != expected)
        return fail(-EINVAL, "%s/%s: %lld bytes are expected, found %lld", folder, name, (long long)expected,
                    (long long)bytes);
    if (hash != strtoull(text, NULL, 16))
        return fail(-EINVAL, "%s/%s: its checksum is %016llx, %s is expected: the file was changed or damaged", folder,
                    name, (unsigned long long)hash, text);
    return 0;
}

static int read_text(char **text, int64_t *bytes, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail(-errno, "%s: %s", path, strerror(errno));
    int status = fseek(file, 0, SEEK_END) ? -errno : 0;
    *bytes = status ? 0 : ftell(file);
    rewind(file);
    *text = NULL;
    if (status || *bytes < 0 || *bytes > LARGEST_MANIFEST)
        status = fail(-EINVAL, "%s: is no manifest of a checkpoint", path);
    else if (!(*text = allocate(*bytes + 1, 1)))
        status = -ENOMEM;
    else if (fread(*text, 1, (size_t)*bytes, file) != (size_t)*bytes)
        status = fail(-EIO, "%s: cannot be read", path);
    fclose(file);
    return status;
}

int mg_checkpoint_open(mg_checkpoint *state, const char *run)
{
    char folder[sizeof state->folder], *text = NULL;
    int64_t bytes = 0;
    *state = (mg_checkpoint){0};
    snprintf(folder, sizeof folder, "%.4096s/checkpoint", run);
    if (!mg_files_exists(folder))
        snprintf(folder, sizeof folder, "%.4096s/checkpoint.old", run);
    if (!mg_files_exists(folder))
        return fail(-ENOENT, "%s: holds no checkpoint", run);
    const char *name = mg_files_path(folder, "manifest.json");
    int status = read_text(&text, &bytes, name);
    if (status == -ENOENT)
        status = is_missing(folder, "manifest.json");
    json_t *manifest = status ? NULL : load_json(name, text, bytes), *files[2];
    if (!status)
        status = manifest ? take_manifest(state, files, name, manifest) : -EINVAL;
    for (int f = 0; f < 2 && !status; f++)
        status = check_file(folder, f, files[f]);
    memcpy(state->folder, folder, sizeof folder);
    json_decref(manifest);
    release(text);
    if (status)
        mg_checkpoint_clear(state);
    return status;
}

void mg_checkpoint_clear(mg_checkpoint *state)
{
    for (int64_t c = 0; state->class_names && c < state->classes; c++)
        free(state->class_names[c]);
    release(state->class_names);
    state->class_names = NULL;
    state->classes = 0;
}

static int read_file(const char *folder, int f, const mg_checkpoint_arrays *arrays)
{
    tensor_list list;
    mg_safetensors *file = NULL;
    int status = list_file(&list, f, arrays);
    if (!status && list.count)
        status = mg_safetensors_open(&file, mg_files_path(folder, file_names[f]));
    for (int64_t t = 0; t < list.count && !status; t++)
        status = mg_safetensors_read(list.data[t], file, &list.tensors[t]);
    mg_safetensors_close(file);
    clear_list(&list);
    return status;
}

int mg_checkpoint_read(const mg_checkpoint *state, const mg_checkpoint_arrays *arrays)
{
    int status = read_file(state->folder, 0, arrays);
    return status ? status : read_file(state->folder, 1, arrays);
}
