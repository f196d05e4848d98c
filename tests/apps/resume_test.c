/* Stopped and gone on: the same bytes as if it had never stopped. */
#include <signal.h>

#include "program.h"

static const char small[] = "--set model.hidden=16 model.layers=1 model.heads=2 train.schedule=constant";

static void same_checkpoints(const char *a, const char *b)
{
    static const char *const files[] = {"model", "state"};
    char first[256], second[256];
    for (int f = 0; f < 2; f++) {
        snprintf(first, sizeof first, "%s/checkpoint/%s.safetensors", a, files[f]);
        snprintf(second, sizeof second, "%s/checkpoint/%s.safetensors", b, files[f]);
        if (!program_same(first, second))
            fail_msg("%s and %s differ", first, second);
    }
}

static void ten_steps_are_five_and_five(void **state)
{
    (void)state;
    program_works("generate sbm --out sbm.npz --nodes 150 --blocks 3 --features 6");
    program_works("train --data sbm.npz --out ten %s train.epochs=10", small);
    program_works("train --data sbm.npz --out five %s train.epochs=5", small);
    program_works("train --resume five --set train.epochs=10");
    same_checkpoints("ten", "five");
    assert_int_equal(program_lines("five/log.jsonl"), program_lines("ten/log.jsonl"));
    assert_true(program_number("five/summary.json", "test") == program_number("ten/summary.json", "test"));
    assert_true(program_number("five/summary.json", "best_epoch") == program_number("ten/summary.json", "best_epoch"));
    assert_non_null(strstr(program_said, "going on from step"));
    program_works("train --resume ten");
    assert_non_null(strstr(program_said, "nothing is left to do after epoch 10 of 10"));
    same_checkpoints("ten", "five");
    program_works("train --data sbm.npz --out tired %s train.epochs=200 train.lr=0 train.patience=2", small);
    program_works("train --resume tired --set train.epochs=300");
    assert_non_null(strstr(program_said, "after epoch 3 of 300: --set train.patience=0 goes on"));
}

static void interrupted_goes_on(void **state)
{
    (void)state;
    const char *averaged = "train.epochs=60 train.average=0.9 train.consistency=1";
    program_works("train --data sbm.npz --out whole %s %s", small, averaged);
    int status = program_interrupted("cut/log.jsonl", 9, "train --data sbm.npz --out cut %s %s", small, averaged);
    assert_int_equal(status, 130);
    assert_non_null(strstr(program_said, "megagraph train --resume cut"));
    assert_true(program_lines("cut/log.jsonl") < program_lines("whole/log.jsonl"));
    program_works("train --resume cut");
    same_checkpoints("whole", "cut");
    assert_int_equal(program_lines("cut/log.jsonl"), program_lines("whole/log.jsonl"));
}

/* A tensor of a safetensors file: 8 bytes with the length of a JSON header, the header, data. */
static int64_t read_tensor(float *values, int64_t most, const char *path, const char *name)
{
    static char header[1 << 16];
    char quoted[128];
    uint64_t bytes;
    long long begin, end;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&bytes, sizeof bytes, 1, file), 1);
    assert_true(bytes < sizeof header && fread(header, 1, bytes, file) == bytes);
    header[bytes] = 0;
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(header, quoted);
    at = at ? strstr(at, "\"data_offsets\":[") : NULL;
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"data_offsets\":[%lld,%lld]", &begin, &end), 2);
    assert_true(end - begin <= most * 4);
    fseek(file, (long)(8 + (long long)bytes + begin), SEEK_SET);
    assert_int_equal(fread(values, 4, (size_t)(end - begin) / 4, file), (end - begin) / 4);
    fclose(file);
    return (end - begin) / 4;
}

/* What an average adds up to after two steps, by hand from the weights after none, one and two; and averaging does not
 * move the weights. */
static void averages_go_by_their_formula(void **state)
{
    (void)state;
    const char *states[] = {"zero/checkpoint/state.safetensors", "one/checkpoint/state.safetensors",
                            "two/checkpoint/state.safetensors", "plain/checkpoint/state.safetensors"};
    const char *flat = "train.warmup=0 train.average=0.15";
    static float weights[4][64], average[64];
    program_works("train --data sbm.npz --out zero %s %s train.epochs=0", small, flat);
    program_works("train --data sbm.npz --out one %s %s train.epochs=1", small, flat);
    program_works("train --data sbm.npz --out two %s %s train.epochs=2", small, flat);
    program_works("train --data sbm.npz --out plain %s train.warmup=0 train.epochs=2", small);
    for (int f = 0; f < 4; f++)
        assert_int_equal(read_tensor(weights[f], 64, states[f], "head.weight"), 48);
    assert_int_equal(read_tensor(average, 64, states[2], "average.head.weight"), 48);
    for (int i = 0; i < 48; i++) {
        double first = weights[1][i] + 0.15 * (weights[0][i] - weights[1][i]); /* 0.15 < (1 + 1) / (10 + 1) */
        assert_float_equal(average[i], weights[2][i] + 0.15 * (first - weights[2][i]), 1e-6);
        assert_true(weights[3][i] == weights[2][i]);
    }
}

/* Graph batches: stopped in the middle of an epoch. */
static void interrupted_inside_an_epoch(void **state)
{
    (void)state;
    const char *batches = "train.epochs=6 train.batch_graphs=2 train.accumulate=2";
    program_works("generate graphs --out graphs.npz --graphs 50 --nodes 8");
    program_works("train --data graphs.npz --out g-whole %s %s", small, batches);
    assert_int_equal(
        program_interrupted("g-cut/log.jsonl", 12, "train --data graphs.npz --out g-cut %s %s", small, batches), 130);
    program_works("train --resume g-cut");
    same_checkpoints("g-whole", "g-cut");
    assert_int_equal(program_lines("g-cut/log.jsonl"), program_lines("g-whole/log.jsonl"));
}

static void several_runs_go_on(void **state)
{
    (void)state;
    program_works("train --data sbm.npz --out s-whole --seeds 3 %s train.epochs=30", small);
    assert_int_equal(program_interrupted("s-cut/seed-1/log.jsonl", 5,
                                         "train --data sbm.npz --out s-cut --seeds 3 %s train.epochs=30", small),
                     130);
    program_works("train --resume s-cut");
    same_checkpoints("s-whole/seed-0", "s-cut/seed-0");
    same_checkpoints("s-whole/seed-1", "s-cut/seed-1");
    same_checkpoints("s-whole/seed-2", "s-cut/seed-2");
    assert_true(program_number("s-whole/summary.json", "test") == program_number("s-cut/summary.json", "test"));
}

/* Killed without warning: goes on from the last checkpoint, with the log cut to it. */
static void killed_goes_on(void **state)
{
    (void)state;
    assert_int_equal(system("(exec " MEGAGRAPH_PROGRAM
                            " train --data sbm.npz --out killed --set model.hidden=16 model.layers=1 "
                            "model.heads=2 train.schedule=constant train.epochs=60 train.average=0.9 "
                            "train.consistency=1 >stdout 2>stderr) & child=$!\n"
                            "for i in $(seq 600); do [ -s killed/checkpoint/manifest.json ] && "
                            "[ $(wc -l <killed/log.jsonl) -gt 8 ] && break; sleep 0.05; done; kill -9 $child; wait "
                            "$child 2>/dev/null; true"),
                     0);
    program_works("train --resume killed");
    same_checkpoints("whole", "killed");
    assert_int_equal(program_lines("killed/log.jsonl"), program_lines("whole/log.jsonl"));
}

static void another_dataset_is_refused(void **state)
{
    (void)state;
    program_works("generate sbm --out other.npz --nodes 150 --blocks 3 --features 6 --seed 9");
    assert_int_equal(system("cp -r ten other-model && cp -r ten other-data"), 0);
    program_refuses("model.hidden is 16 in the run that is resumed, not 32",
                    "train --resume other-model --set model.hidden=32 train.epochs=11");
    program_refuses("model.encodings.hops is 0", "train --resume other-model --set model.encodings.hops=2");
    program_refuses("hash", "train --resume other-data --data other.npz --set train.epochs=11");
    assert_int_equal(system("diff -r ten other-model && diff -r ten other-data"), 0);
    program_works("predict --run ten --data other.npz --out other.csv"); /* but it may be predicted */
}

static void damage_is_named(void **state)
{
    (void)state;
    assert_int_equal(system("cp -r ten bad && truncate -s -1 bad/checkpoint/state.safetensors"), 0);
    program_refuses("state.safetensors", "train --resume bad --set train.epochs=20");
    program_refuses("bytes are expected", "predict --run bad --out p.csv");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_are_five_and_five),
        cmocka_unit_test(interrupted_goes_on),
        cmocka_unit_test(averages_go_by_their_formula),
        cmocka_unit_test(interrupted_inside_an_epoch),
        cmocka_unit_test(several_runs_go_on),
        cmocka_unit_test(killed_goes_on),
        cmocka_unit_test(another_dataset_is_refused),
        cmocka_unit_test(damage_is_named),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
