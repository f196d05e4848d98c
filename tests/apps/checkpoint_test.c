/* Checkpoints: the same comes back; truncated, hostile, of another model: one line; killed at any moment: the old or
 * the new one loads; the n-th allocation fails. */
#define _GNU_SOURCE
#include "checkpoint.h"

#include "app.h"
#undef fail
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"
#include "safetensors.h"
#include "support/test.h"

static char folder[] = "/tmp/megagraph-checkpoint-XXXXXX";

static mg_model *make_model(int32_t hidden)
{
    mg_model *model;
    mg_model_desc desc = {.kind = MG_MODEL_GPS,
                          .inputs = 3,
                          .outputs = 2,
                          .layers = 1,
                          .hidden = hidden,
                          .heads = 2,
                          .ffn = 4,
                          .local = MG_MODEL_LOCAL_GCN,
                          .readout = MG_MODEL_NODES,
                          .codes = 4};
    assert_int_equal(mg_model_create(&model, &desc), 0);
    return model;
}

typedef struct world {
    mg_model *model;
    int64_t floats;
    float *ranges, mean[2], deviation[2]; /* best, current, first, second */
    char *names[2];
    mg_checkpoint state;
    mg_checkpoint_arrays arrays;
} world;

static world make_world(uint64_t seed)
{
    world w = {.model = make_model(4), .names = {(char *)"b\xc3\xa4r", (char *)"x"}};
    w.floats = mg_model_parameter_count(w.model);
    w.ranges = malloc((size_t)w.floats * 4 * sizeof(float));
    test_fill(w.ranges, 4 * w.floats, seed, 3);
    test_fill(w.mean, 2, seed + 1, 1);
    test_fill(w.deviation, 2, seed + 2, 1);
    w.state = (mg_checkpoint){.step = 7 + (int64_t)seed,
                              .epoch = 3,
                              .position = 2,
                              .epoch_loss = 1.0 / 3,
                              .epoch_weight = 1e-300,
                              .best_epoch = -1,
                              .best_value = NAN,
                              .best_loss = 0.1,
                              .seconds = 12.5,
                              .log_bytes = 99,
                              .config_hash = 0xfedcba9876543210,
                              .dataset_hash = 5,
                              .inputs = 3,
                              .outputs = 2,
                              .classes = 2};
    return w;
}

/* The arrays and names point into the world. */
static void point(world *w)
{
    w->arrays = (mg_checkpoint_arrays){.model = w->model,
                                       .best = w->ranges,
                                       .current = w->ranges + w->floats,
                                       .first = w->ranges + 2 * w->floats,
                                       .second = w->ranges + 3 * w->floats,
                                       .target_mean = w->mean,
                                       .target_deviation = w->deviation,
                                       .targets = 2};
    w->state.class_names = w->names;
}

static void end_world(world *w)
{
    mg_model_destroy(w->model);
    free(w->ranges);
}

static int load(mg_checkpoint *state, world *into)
{
    int status = mg_checkpoint_open(state, folder);
    return status ? status : mg_checkpoint_read(state, &into->arrays);
}

static void what_is_saved_comes_back(void **unused)
{
    (void)unused;
    world w = make_world(0), back = make_world(1);
    mg_checkpoint state;
    point(&w);
    point(&back);
    assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
    assert_int_equal(load(&state, &back), 0);
    test_same_bytes("ranges", back.ranges, w.ranges, (size_t)w.floats * 16);
    test_same_bytes("mean", back.mean, w.mean, sizeof w.mean);
    test_same_bytes("deviation", back.deviation, w.deviation, sizeof w.deviation);
    assert_int_equal(state.step, 7);
    assert_int_equal(state.position, 2);
    assert_int_equal(state.log_bytes, 99);
    assert_true(state.epoch_loss == 1.0 / 3 && state.epoch_weight == 1e-300 && isnan(state.best_value));
    assert_true(state.config_hash == 0xfedcba9876543210 && state.best_epoch == -1);
    assert_string_equal(state.class_names[0], "b\xc3\xa4r");
    mg_checkpoint_clear(&state);
    end_world(&w);
    end_world(&back);
}

static void of_another_model_is_refused(void **unused)
{
    (void)unused;
    world w = make_world(0), other = make_world(0);
    mg_checkpoint state;
    point(&w);
    assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
    mg_model_destroy(other.model);
    other.model = make_model(8);
    free(other.ranges);
    other.floats = mg_model_parameter_count(other.model);
    other.ranges = malloc((size_t)other.floats * 16);
    point(&other);
    assert_int_equal(load(&state, &other), -EINVAL);
    assert_non_null(strstr(mg_app_last_error(), "[4, 3], the model expects [8, 3]"));
    mg_checkpoint_clear(&state);
    end_world(&w);
    end_world(&other);
}

static int64_t size_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_size;
}

/* Every file cut at every byte: refused, and by one line. */
static void truncated_anywhere_is_refused(void **unused)
{
    (void)unused;
    static const char *const names[] = {"model.safetensors", "state.safetensors", "manifest.json"};
    world w = make_world(0);
    mg_checkpoint state;
    mg_safetensors *file;
    char path[300];
    point(&w);
    for (int n = 0; n < 3; n++) {
        assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
        snprintf(path, sizeof path, "%s/checkpoint/%s", folder, names[n]);
        for (int64_t bytes = size_of(path) - 1; bytes >= 0; bytes--) {
            assert_int_equal(truncate(path, bytes), 0);
            if (n < 2 && bytes % 16 == 0) { /* the manifest's size would refuse it first */
                assert_int_equal(mg_safetensors_open(&file, path), -EINVAL);
                assert_non_null(strstr(mg_app_last_error(), names[n]));
            }
            if (n == 2 || bytes % 61 == 0) {
                assert_int_equal(mg_checkpoint_open(&state, folder), -EINVAL);
                assert_null(strchr(mg_app_last_error(), '\n'));
            }
        }
    }
    end_world(&w);
}

static void a_missing_file_is_refused(void **unused)
{
    (void)unused;
    static const char *const names[] = {"model.safetensors", "state.safetensors", "manifest.json"};
    world w = make_world(0);
    mg_checkpoint state;
    char path[300];
    point(&w);
    for (int n = 0; n < 3; n++) {
        assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
        snprintf(path, sizeof path, "%s/checkpoint/%s", folder, names[n]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mg_checkpoint_open(&state, folder), -EINVAL);
        assert_non_null(strstr(mg_app_last_error(), names[n]));
    }
    end_world(&w);
}

static void a_changed_byte_is_refused(void **unused)
{
    (void)unused;
    world w = make_world(0);
    mg_checkpoint state;
    char path[300], byte;
    point(&w);
    assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
    snprintf(path, sizeof path, "%s/checkpoint/state.safetensors", folder);
    int file = open(path, O_RDWR);
    assert_int_equal(pread(file, &byte, 1, size_of(path) - 5), 1);
    byte ^= 1;
    assert_int_equal(pwrite(file, &byte, 1, size_of(path) - 5), 1);
    close(file);
    assert_int_equal(mg_checkpoint_open(&state, folder), -EINVAL);
    assert_non_null(strstr(mg_app_last_error(), "checksum"));
    end_world(&w);
}

static int check(const char *header, int64_t data_bytes)
{
    return mg_safetensors_check("f", header, (int64_t)strlen(header), data_bytes);
}

static void hostile_headers_are_refused(void **unused)
{
    (void)unused;
    assert_int_equal(check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8), 0);
    assert_int_equal(check("{}", 0), 0);
    assert_int_equal(check("{\"__metadata__\":{\"format\":\"pt\"}}   ", 0), 0);
    const char *const wrong[] = {
        "",
        "[]",
        "{",
        "3",
        "{\"a\":3}",
        "{\"a\":{}}",
        "{\"a\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,-8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
        "offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
        "offsets\":[4,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
    };
    for (size_t h = 0; h < sizeof wrong / sizeof *wrong; h++) {
        if (check(wrong[h], 8) != -EINVAL)
            fail_msg("accepted: %s", wrong[h]);
        assert_null(strchr(mg_app_last_error(), '\n'));
    }
}

static void hostile_manifests_are_refused(void **unused)
{
    (void)unused;
    mg_checkpoint state;
    const char *const wrong[] = {
        "", "{}", "[]", "{\"version\":2}", "{\"version\":1}", "{\"version\":1,\"step\":\"x\"}"};
    for (size_t m = 0; m < sizeof wrong / sizeof *wrong; m++) {
        assert_int_equal(mg_checkpoint_parse(&state, "m", wrong[m], (int64_t)strlen(wrong[m])), -EINVAL);
        mg_checkpoint_clear(&state);
    }
}

static void what_is_no_checkpoint_is_refused(void **unused)
{
    (void)unused;
    mg_checkpoint state;
    mg_safetensors *file;
    assert_int_equal(mg_checkpoint_open(&state, "/nowhere"), -ENOENT);
    assert_int_equal(mg_safetensors_open(&file, "/nowhere"), -ENOENT);
    assert_int_equal(mg_safetensors_open(&file, "/dev/null"), -EINVAL);
    assert_int_equal(mg_safetensors_open(&file, "/tmp"), -EINVAL);
}

/* The moments between the renames, made by hand. */
static void between_the_renames_the_old_one_loads(void **unused)
{
    (void)unused;
    world w = make_world(0), back = make_world(1);
    mg_checkpoint state;
    char here[300], old[300], aside[300];
    point(&w);
    point(&back);
    snprintf(here, sizeof here, "%s/checkpoint", folder);
    snprintf(old, sizeof old, "%s/checkpoint.old", folder);
    snprintf(aside, sizeof aside, "%s/checkpoint.new", folder);
    assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
    assert_int_equal(rename(here, old), 0);
    assert_int_equal(mkdir(aside, 0777), 0); /* a half-written new one beside it */
    assert_int_equal(load(&state, &back), 0);
    assert_int_equal(state.step, 7);
    test_same_bytes("ranges", back.ranges, w.ranges, (size_t)w.floats * 16);
    mg_checkpoint_clear(&state);
    w.state.step = 8;
    assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
    assert_int_equal(mg_checkpoint_open(&state, folder), 0);
    assert_int_equal(state.step, 8);
    mg_checkpoint_clear(&state);
    assert_false(mg_files_exists(old) || mg_files_exists(aside));
    end_world(&w);
    end_world(&back);
}

/* A child saves over and over and is killed at some moment. */
static void killed_at_any_moment_one_loads(void **unused)
{
    (void)unused;
    enum { TIMES = 25 };
    world w = make_world(0), back = make_world(1);
    point(&w);
    point(&back);
    assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
    for (int time = 0; time < TIMES; time++) {
        pid_t child = fork();
        if (child == 0) {
            for (;; w.state.step++) {
                for (int64_t f = 0; f < 4 * w.floats; f++)
                    w.ranges[f] = (float)w.state.step;
                if (mg_checkpoint_save(folder, &w.state, &w.arrays))
                    _exit(1);
            }
        }
        usleep((useconds_t)(500 + test_random_bits(3, (uint64_t)time) % 9000));
        int ended;
        kill(child, SIGKILL);
        waitpid(child, &ended, 0);
        assert_true(WIFSIGNALED(ended));
        mg_checkpoint state;
        if (load(&state, &back))
            fail_msg("%s", mg_app_last_error());
        if (state.step > 7)
            assert_true(back.ranges[0] == (float)state.step && back.ranges[4 * w.floats - 1] == (float)state.step);
        mg_checkpoint_clear(&state);
    }
    end_world(&w);
    end_world(&back);
}

static void a_failed_save_keeps_the_old_one(void **unused)
{
    (void)unused;
    world w = make_world(0);
    mg_checkpoint state;
    char path[300];
    point(&w);
    assert_int_equal(mg_checkpoint_save(folder, &w.state, &w.arrays), 0);
    snprintf(path, sizeof path, "%s/checkpoint.new", folder);
    FILE *file = fopen(path, "w"); /* a file where the folder is to be */
    assert_non_null(file);
    fclose(file);
    w.state.step = 99;
    assert_true(mg_checkpoint_save(folder, &w.state, &w.arrays) < 0);
    assert_int_equal(mg_checkpoint_open(&state, folder), 0);
    assert_int_equal(state.step, 7);
    mg_checkpoint_clear(&state);
    unlink(path);
    end_world(&w);
}

static int save_and_load(void *context)
{
    world *w = context;
    mg_checkpoint state;
    int status = mg_checkpoint_save(folder, &w->state, &w->arrays);
    if (!status)
        status = load(&state, w);
    if (!status)
        mg_checkpoint_clear(&state);
    return status;
}

static int save_load_clear(void *context)
{
    /* load leaves the state open when its tensors fail: always clear */
    world *w = context;
    mg_checkpoint state = {0};
    int status = mg_checkpoint_save(folder, &w->state, &w->arrays);
    if (!status)
        status = load(&state, w);
    mg_checkpoint_clear(&state);
    return status;
}

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    world w = make_world(0);
    point(&w);
    assert_int_equal(save_and_load(&w), 0);
    assert_true(test_every_allocation_fails(mg_app_set_memory_hook, save_load_clear, &w) > 5);
    end_world(&w);
}

static int make_folder(void **unused)
{
    (void)unused;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    return mg_files_remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_comes_back),
        cmocka_unit_test(of_another_model_is_refused),
        cmocka_unit_test(truncated_anywhere_is_refused),
        cmocka_unit_test(a_missing_file_is_refused),
        cmocka_unit_test(a_changed_byte_is_refused),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(hostile_manifests_are_refused),
        cmocka_unit_test(what_is_no_checkpoint_is_refused),
        cmocka_unit_test(between_the_renames_the_old_one_loads),
        cmocka_unit_test(killed_at_any_moment_one_loads),
        cmocka_unit_test(a_failed_save_keeps_the_old_one),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
