/* What the program refuses: one clear line, an exit status that is not 0, and nothing lost. */
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"

static const char small[] = "--set model.hidden=16 model.layers=1 model.heads=2";

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

static void helps(void **state)
{
    (void)state;
    static const char *const commands[] = {"train", "predict", "info", "partition", "import", "generate"};
    assert_int_equal(program("--version"), 0);
    assert_int_equal(program("--help"), 0);
    assert_int_equal(program("%s", ""), 2);
    for (size_t c = 0; c < sizeof commands / sizeof *commands; c++) {
        program_works("%s --help", commands[c]);
        assert_non_null(strstr(program_said, commands[c]));
    }
    program_works("train --help");
    assert_non_null(strstr(program_said, "model.encodings.distance"));
    assert_int_equal(program("trian"), 2);
    assert_non_null(strstr(program_said, "nearest is train"));
}

static void wrong_words(void **state)
{
    (void)state;
    program_works("generate sbm --out sbm.npz --nodes 120 --blocks 3 --features 6");
    program_refuses("nearest is --data", "train --dat sbm.npz --out r");
    program_refuses("--set train.epochs=VALUE", "train --data sbm.npz --out r --epochs 3");
    program_refuses("needs a value", "train --data");
    program_refuses("given twice", "train --data a --data b --out r");
    program_refuses("--out is missing", "train --data sbm.npz");
    program_refuses("no dataset is named", "train --out r");
    program_refuses("one word too many", "train sbm.npz --out r");
    program_refuses("'model.hidden'", "train --data sbm.npz --out r --set model.hiden=3");
    program_refuses("key=value", "train --data sbm.npz --out r --set model.hidden");
    program_refuses("no plan", "train --data sbm.npz --out r --plan auto");
    program_refuses("parallel.context is 4, but there are 1 ranks",
                    "train --data sbm.npz --out r --set parallel.context=4 parallel.context_method=ring");
    program_refuses("parallel.context is 2, but there are 3 ranks",
                    "train --data sbm.npz --out r --ranks 3 --set parallel.context=2");
    program_refuses("4096", "train --data sbm.npz --out r --ranks 5000");
    program_refuses("whole number", "generate sbm --out x.npz --nodes many");
    program_refuses("no kind", "generate cube --out x.npz");
    program_refuses("no kind is named", "generate --out x.npz");
    program_refuses("must end in .npz", "generate sbm --out x.txt");
    program_refuses("folds take the place of splits", "train --data sbm.npz --out r --set data.folds=3 data.split=0-2");
    program_refuses("data.folds is 0", "train --data sbm.npz --out r --set data.fold=3");
    program_refuses("--parts is missing", "partition sbm.npz");
    program_refuses("no dataset is named", "info");
    program_refuses("must end in", "partition sbm.npz --parts 2 --out parts.txt");
    program_refuses("--parts", "partition sbm.npz --parts 0");
    assert_false(exists("r"));
}

static void missing_and_hostile_files(void **state)
{
    (void)state;
    program_refuses("nowhere.npz", "train --data nowhere.npz --out r");
    program_refuses("nowhere.yaml", "train --data sbm.npz --out r --config nowhere.yaml");
    program_refuses("nowhere", "predict --run nowhere --out p.csv");
    program_refuses("nowhere: is no run", "train --resume nowhere");
    write_text("bad.npz", "this is no zip");
    program_refuses("bad.npz", "train --data bad.npz --out r");
    assert_false(exists("r")); /* an empty folder is not left */
    program_refuses("bad.npz", "info bad.npz");
    write_text("bad.yaml", "seed: 1\nmodel:\n  layer: 3\n");
    program_refuses("bad.yaml:3", "train --data sbm.npz --out r --config bad.yaml");
    program_refuses("must end in", "predict --run r --out p.txt");
    program_refuses("there is no folder nodir", "predict --run r --out nodir/p.csv");
}

static void datasets_that_cannot_be_learnt(void **state)
{
    (void)state;
    program_works("generate grid --nodes 25 --out grid.npz");
    program_works("generate graphs --graphs 20 --nodes 6 --out graphs.npz");
    program_refuses("no labels", "train --data grid.npz --out r1");
    write_text("list.txt", "a b\nb c\nc d\nd e\ne a\n");
    write_text("labels.csv", "id,label\na,1\nb,1\nc,1\nd,1\ne,1\n");
    program_works("train --data list.txt --out one-class %s data.labels=labels.csv train.epochs=2", small);
    assert_non_null(strstr(program_said, "one class"));
    program_refuses("all nodes would look the same",
                    "train --data list.txt --out r2 %s data.labels=labels.csv model.encodings.degree=0", small);
    program_refuses("virtual_token", "train --data sbm.npz --out r3 --set model.virtual_token=on");
    program_refuses("edge features", "train --data sbm.npz --out r4 --set model.encodings.edge_path=3");
    program_refuses("no multiple", "train --data sbm.npz --out r5 --set model.hidden=10 model.heads=4");
    program_refuses("not possible", "train --data sbm.npz --out r6 --set metric=mae");
    program_refuses("not possible", "train --data sbm.npz --out r7 --set metric=roc_auc");
    program_refuses("numbered from 0", "train --data sbm.npz --out r8 --set data.split=5");
    program_refuses("clusters", "train --data sbm.npz --out r9 --set train.clusters=121");
    program_refuses("data.folds", "train --data sbm.npz --out r10 --set data.folds=1");
    program_refuses("train.average is 0", "train --data sbm.npz --out r12 --set train.consistency=1");
    program_refuses("classes of nodes",
                    "train --data graphs.npz --out r13 --set train.consistency=1 train.average=0.9");
    program_refuses("see nothing",
                    "train --data sbm.npz --out r11 --set attention.far=mask model.encodings.distance=0");
}

static void a_run_is_not_overwritten(void **state)
{
    (void)state;
    program_works("train --data sbm.npz --out kept %s train.epochs=2", small);
    assert_int_equal(system("cp -r kept copy"), 0);
    program_refuses("--resume kept", "train --data sbm.npz --out kept");
    assert_int_equal(system("diff -r kept copy"), 0);
    program_refuses("goes on in its folder", "train --resume kept --out elsewhere");
}

static void folders_that_cannot_be_written(void **state)
{
    (void)state;
    program_refuses("/proc/run", "train --data sbm.npz --out /proc/run");
    write_text("file", "x");
    program_refuses("file", "train --data sbm.npz --out file");
    program_refuses("file/run", "train --data sbm.npz --out file/run");
    program_refuses("/proc", "generate grid --out /proc/grid.npz");
    program_refuses("/proc", "predict --run kept --out /proc/p.csv");
    program_refuses("/proc", "predict --run kept --out /proc/p.npy");
}

/* A limit on the size of files: as a disk that is full, for whoever tests. */
static void a_full_disk_keeps_the_checkpoint(void **state)
{
    (void)state;
    assert_int_equal(system("cp -r kept full"), 0);
    int status = system("ulimit -f 8; " MEGAGRAPH_PROGRAM " train --resume full --set train.epochs=4 >stdout 2>stderr");
    char *text = program_text("stderr"), *line = strstr(text, "megagraph: ");
    assert_int_not_equal(status, 0);
    if (!line || !strstr(line, "cannot be written") || strchr(line, '\n') != line + strlen(line) - 1)
        fail_msg("one line is expected: %s", text);
    free(text);
    assert_int_equal(system("diff -r full/checkpoint copy/checkpoint"), 0);
    program_works("train --resume full --set train.epochs=4");
}

/* A real full disk, where this user may mount one. */
static void a_full_tmpfs(void **state)
{
    (void)state;
    if (system("mkdir -p disk && unshare -m sh -c 'mount -t tmpfs -o size=64k none disk' 2>/dev/null")) {
        print_message("SKIPPED: this user cannot mount a small tmpfs\n");
        skip();
    }
    int status = system("unshare -m sh -c 'mount -t tmpfs -o size=64k none disk && exec " MEGAGRAPH_PROGRAM
                        " train --data sbm.npz --out disk/run --set model.hidden=32 train.epochs=3' >stdout 2>stderr");
    char *text = program_text("stderr"), *line = strstr(text, "megagraph: ");
    assert_int_not_equal(status, 0);
    if (!line || !strstr(line, "No space left"))
        fail_msg("a full disk is expected to be named: %s", text);
    free(text);
}

static void a_diverging_run_stops(void **state)
{
    (void)state;
    program_refuses("lower train.lr",
                    "train --data sbm.npz --out nan %s train.lr=1e6 train.clip=0 train.warmup=4 train.epochs=400 "
                    "train.patience=0 train.weight_decay=1e6",
                    small);
    assert_non_null(strstr(program_said, "is kept"));
    program_works("predict --run nan --out nan.csv");
}

static void the_memory_limit_names_bytes(void **state)
{
    (void)state;
    program_refuses("the limit (--memory) is", "train --data sbm.npz --out small %s --memory 200K", small);
    program_refuses("--memory", "train --data sbm.npz --out small2 --memory lots");
}

static void remarks(void **state)
{
    (void)state;
    write_text("labels2.csv", "id,label\na,x\nb,x\nc,y\nd,y\ne,\n");
    program_works("train --data list.txt --out said %s data.labels=labels2.csv train.epochs=2 model.encodings.degree=1",
                  small);
    assert_non_null(strstr(program_said, "share one row of the degree encoding"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(helps),
        cmocka_unit_test(wrong_words),
        cmocka_unit_test(missing_and_hostile_files),
        cmocka_unit_test(datasets_that_cannot_be_learnt),
        cmocka_unit_test(a_run_is_not_overwritten),
        cmocka_unit_test(folders_that_cannot_be_written),
        cmocka_unit_test(a_full_disk_keeps_the_checkpoint),
        cmocka_unit_test(a_full_tmpfs),
        cmocka_unit_test(a_diverging_run_stops),
        cmocka_unit_test(the_memory_limit_names_bytes),
        cmocka_unit_test(remarks),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
