/* Configurations: what is read, what is refused and with which line, and that what is written reads back the same. */
#include "config.h"

#include "app.h"
#undef fail
#include "support/test.h"

static mg_config config;

static int parse(const char *text)
{
    mg_options_standard(&config);
    return mg_config_parse(&config, "c.yaml", text, strlen(text));
}

/* The text is refused with a line that holds `part`. */
static void refused(const char *text, const char *part)
{
    if (parse(text) != -EINVAL)
        fail_msg("accepted: %s", text);
    if (!strstr(mg_app_last_error(), part))
        fail_msg("'%s' is refused with '%s', which does not say '%s'", text, mg_app_last_error(), part);
    assert_null(strchr(mg_app_last_error(), '\n'));
}

static void reads_nested_and_dotted_keys(void **state)
{
    (void)state;
    assert_int_equal(
        parse("seed: 7\nmodel:\n  kind: gt\n  encodings:\n    distance: 3\n  dropout: 0.25\ntrain.lr: 1e-3\n"
              "data: {split: 0-2, directed: yes}\nmemory: 1.5G\n"),
        0);
    assert_int_equal(config.seed, 7);
    assert_string_equal(mg_options_word(&config, "model.kind"), "gt");
    assert_int_equal(config.model.encodings.distance, 3);
    assert_true(config.model.dropout == 0.25 && config.train.lr == 1e-3);
    assert_string_equal(config.data.split, "0-2");
    assert_int_equal(config.data.directed, MG_SWITCH_ON);
    assert_int_equal(config.memory, 3LL << 29);
    assert_int_equal(config.model.layers, MG_AUTO);
    assert_int_equal(parse(""), 0);
    assert_int_equal(parse("# only a comment\n"), 0);
    assert_int_equal(parse("model:\ntrain: {}\n"), 0);
}

static void refuses_with_line_and_nearest_key(void **state)
{
    (void)state;
    refused("seed: 1\nmodel:\n  layerz: 3\n", "c.yaml:3");
    refused("model:\n  layerz: 3\n", "'model.layers'");
    refused("model: {hiden: 3}\n", "'model.hidden'");
    refused("epochs: 3\n", "'train.epochs'");
    refused("trian:\n  epochs: 3\n", "trian");
    refused("training.lr: 3\n", "'train.lr'");
    refused("model:\n  encodings:\n    laplacien: 4\n", "'model.encodings.laplacian'");
    refused("model: 3\n", "section");
    refused("seed:\n  more: 3\n", "section");
}

static void refuses_wrong_values(void **state)
{
    (void)state;
    refused("seed: -1\n", "from 0");
    refused("seed: 1.5\n", "whole number");
    refused("seed: auto\n", "whole number");
    refused("seed: 99999999999999999999\n", "seed");
    refused("seed: 0x10\n", "seed");
    refused("seed: \n", "whole number");
    refused("train: {lr: nan}\n", "train.lr");
    refused("train: {lr: inf}\n", "train.lr");
    refused("train: {lr: fast}\n", "a number is expected, or auto");
    refused("train: {lr: -1}\n", "from 0");
    refused("model: {dropout: 1}\n", "0.99");
    refused("model: {layers: 0}\n", "from 1");
    refused("model: {kind: gcn}\n", "graphormer|gt|gps");
    refused("model: {kind: gp}\n", "graphormer|gt|gps");
    refused("precision: bf16\n", "fp32");
    refused("baseline: fast\n", "none|dense|dense_rows|flash|edge|edge_rows");
    refused("memory: 3 bananas\n", "memory");
    refused("model: {encodings: {distance: 254}}\n", "253");
    refused("seed: \"1\\0\"\n", "zero byte");
}

static void refuses_what_is_no_configuration(void **state)
{
    (void)state;
    refused("- a\n- b\n", "list");
    refused("seed: [1, 2]\n", "list");
    refused("seed: 1\nseed: 2\n", "twice");
    refused("model: {layers: 2}\nmodel.layers: 3\n", "twice");
    refused("just words\n", "keys and values");
    refused("seed: &a 1\nthreads: *a\n", "aliases");
    refused("? [1]\n: 2\n", "list");
    refused("? {a: 1}\n: 2\n", "key");
    refused("seed: 1\n---\nseed: 2\n", "second document");
    refused("seed: 'open\n", "YAML");
    refused("\tseed: 1\n", "YAML");
    refused("\xff\xfe\xff", "YAML");
}

static void parallel_keys(void **state)
{
    (void)state;
    assert_int_equal(parse("parallel: {ranks: 1, context: 1, sharding: 0, context_method: none}\n"), 0);
    assert_int_equal(parse("parallel: {ranks: 4, context: auto, context_method: all_to_all}\n"), 0);
    assert_int_equal(config.parallel.ranks, 4);
    assert_true(config.parallel.context == MG_AUTO);
    refused("parallel: {ranks: 0}\n", "1 to 4096");
    refused("parallel: {context_method: alltoall}\n", "all_to_all");
    refused("parallel: {sharding: 1}\n", "only 0 is possible");
    refused("parallel: {recompute: true}\n", "only false is possible");
    assert_int_equal(config.parallel.sharding, 0);
}

static void assignments(void **state)
{
    (void)state;
    mg_options_standard(&config);
    assert_int_equal(mg_config_assign(&config, "model.hidden=96"), 0);
    assert_int_equal(config.model.hidden, 96);
    assert_int_equal(mg_config_assign(&config, "data.path=a=b"), 0);
    assert_string_equal(config.data.path, "a=b");
    assert_int_equal(mg_config_assign(&config, "model.hidden"), -EINVAL);
    assert_int_equal(mg_config_assign(&config, "=3"), -EINVAL);
    assert_int_equal(mg_config_assign(&config, "hidden=3"), -EINVAL);
    assert_non_null(strstr(mg_app_last_error(), "model.hidden"));
}

static void written_text_reads_back(void **state)
{
    (void)state;
    mg_config again;
    char path[] = "a \"quoted\" \\ name:\n#\x01 end";
    assert_int_equal(parse("train: {lr: 0.1, weight_decay: 1.2345678901234567e-5, clip: auto}\nmodel: {layers: "
                           "5}\nseed: 9000000000000000\n"),
                     0);
    strcpy(config.data.path, path);
    for (int round = 0; round < 2; round++) {
        char *text = mg_config_text(&config);
        assert_non_null(text);
        mg_options_standard(&again);
        int status = mg_config_parse(&again, "again", text, strlen(text));
        if (status)
            fail_msg("%s in\n%s", mg_app_last_error(), text);
        char *second = mg_config_text(&again);
        assert_string_equal(text, second);
        assert_string_equal(again.data.path, path);
        assert_true(again.train.lr == config.train.lr && again.train.weight_decay == config.train.weight_decay);
        assert_int_equal(mg_config_hash(&again), mg_config_hash(&config));
        free(text);
        free(second);
        config.model.encodings.distance = 7;
        config.train.warmup = 3;
    }
}

static void every_default_is_valid_and_documented(void **state)
{
    (void)state;
    int count;
    const mg_option *options = mg_options(&count);
    mg_options_standard(&config);
    for (int i = 0; i < count; i++) {
        if (mg_options_set(&config, "test", options[i].key, options[i].standard))
            fail_msg("%s", mg_app_last_error());
        assert_true(strlen(options[i].help) > 3);
        assert_ptr_equal(mg_options_find(options[i].key), &options[i]);
        assert_string_equal(mg_options_nearest(options[i].key), options[i].key);
    }
}

static void hash_follows_what_decides_the_result(void **state)
{
    (void)state;
    mg_options_standard(&config);
    uint64_t before = mg_config_hash(&config);
    config.threads = 3;
    config.train.epochs = 9;
    assert_int_equal(mg_config_hash(&config), before);
    config.train.lr = 0.5;
    assert_int_not_equal(mg_config_hash(&config), before);
}

static void ranges(void **state)
{
    (void)state;
    int64_t first, last;
    assert_int_equal(mg_config_range(&first, &last, "data.split", "all", 10), 0);
    assert_true(first == 0 && last == 9);
    assert_int_equal(mg_config_range(&first, &last, "data.split", "1-3", 10), 0);
    assert_true(first == 1 && last == 3);
    assert_int_equal(mg_config_range(&first, &last, "data.split", "4", 10), 0);
    assert_true(first == 4 && last == 4);
    const char *const wrong[] = {"", "x", "10", "-1", "3-1", "1-", "1-10", "1-3x", "99999999999999999999"};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++)
        assert_int_equal(mg_config_range(&first, &last, "data.split", wrong[w], 10), -EINVAL);
}

static void bytes(void **state)
{
    (void)state;
    int64_t value;
    assert_int_equal(mg_options_bytes(&value, "4096"), 0);
    assert_int_equal(value, 4096);
    assert_int_equal(mg_options_bytes(&value, "2K"), 0);
    assert_int_equal(value, 2048);
    assert_int_equal(mg_options_bytes(&value, "1.5GiB"), 0);
    assert_int_equal(value, 3LL << 29);
    const char *const wrong[] = {"", "K", "1X", "-1", "1KK", "nan", "1e30"};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++)
        assert_int_not_equal(mg_options_bytes(&value, wrong[w]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_nested_and_dotted_keys),
        cmocka_unit_test(refuses_with_line_and_nearest_key),
        cmocka_unit_test(refuses_wrong_values),
        cmocka_unit_test(refuses_what_is_no_configuration),
        cmocka_unit_test(parallel_keys),
        cmocka_unit_test(assignments),
        cmocka_unit_test(written_text_reads_back),
        cmocka_unit_test(every_default_is_valid_and_documented),
        cmocka_unit_test(hash_follows_what_decides_the_result),
        cmocka_unit_test(ranges),
        cmocka_unit_test(bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
