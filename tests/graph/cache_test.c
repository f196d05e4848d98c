#define _GNU_SOURCE
#include "graph/graphs.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/megagraph-cache-XXXXXX";
static const char payload[] = "what took long to make";

static int make_folder(void **unused)
{
    (void)unused;
    return mkdtemp(folder) ? 0 : -1;
}

static int count_files(const char *path, int remove_them)
{
    char name[1024];
    int count = 0;
    DIR *entries = opendir(path);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (entry->d_name[0] != '.') {
            snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            count++;
            if (remove_them)
                unlink(name);
        }
    if (entries)
        closedir(entries);
    return count;
}

static int remove_folder(void **unused)
{
    (void)unused;
    count_files(folder, 1);
    return rmdir(folder);
}

static const char *file_of(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static mg_graph_cache *opened(void)
{
    mg_graph_cache *cache;
    must(mg_graph_cache_open(&cache, folder));
    return cache;
}

static void expect_payload(mg_graph_cache *cache, const char *name, uint64_t key)
{
    void *data;
    int64_t bytes;
    must(mg_graph_cache_get(&data, &bytes, cache, name, key));
    assert_int_equal(bytes, sizeof payload);
    test_same_bytes("payload", data, payload, sizeof payload);
    mg_graph_free(data);
}

static void expect_missing(mg_graph_cache *cache, const char *name, uint64_t key, const char *why)
{
    void *data;
    int64_t bytes;
    assert_int_equal(-ENOENT, mg_graph_cache_get(&data, &bytes, cache, name, key));
    if (!strstr(mg_graph_last_error(), why))
        fail_msg("\"%s\" does not say \"%s\"", mg_graph_last_error(), why);
    assert_true(data == NULL && bytes == 0);
}

static void put_comes_back(void **unused)
{
    (void)unused;
    mg_graph_cache *cache = opened();
    void *data;
    int64_t bytes;
    expect_missing(cache, "order", 1, "No such file");
    must(mg_graph_cache_put(cache, "order", 1, payload, sizeof payload));
    expect_payload(cache, "order", 1);
    expect_missing(cache, "order", 2, "No such file");
    expect_missing(cache, "other", 1, "No such file");
    must(mg_graph_cache_put(cache, "order", 1, "x", 1)); /* again: replaced */
    must(mg_graph_cache_get(&data, &bytes, cache, "order", 1));
    assert_true(bytes == 1 && *(char *)data == 'x');
    mg_graph_free(data);
    must(mg_graph_cache_put(cache, "nothing", 1, NULL, 0));
    must(mg_graph_cache_get(&data, &bytes, cache, "nothing", 1));
    assert_true(data && bytes == 0);
    mg_graph_free(data);
    mg_graph_cache_close(cache);
    assert_int_equal(count_files(folder, 1), 2);
}

/* Every byte of the file in turn is changed; and the file is cut at every length. */
static void damage_is_seen_and_removed(void **unused)
{
    (void)unused;
    mg_graph_cache *cache = opened();
    char whole[256];
    const char *path = file_of("codes-0000000000000007.mgc");
    must(mg_graph_cache_put(cache, "codes", 7, payload, sizeof payload));
    FILE *file = fopen(path, "rb");
    size_t length = fread(whole, 1, sizeof whole, file);
    fclose(file);
    assert_int_equal(length, 40 + sizeof payload);
    for (size_t n = 0; n < 2 * length; n++) {
        char broken[256];
        memcpy(broken, whole, length);
        broken[n % length] ^= (char)(1 << n % 8);
        file = fopen(path, "wb");
        assert_int_equal(fwrite(broken, 1, n < length ? length : n - length, file), n < length ? length : n - length);
        fclose(file);
        expect_missing(cache, "codes", 7, "was removed");
        assert_int_equal(access(path, F_OK), -1);
    }
    must(mg_graph_cache_put(cache, "codes", 7, payload, sizeof payload));
    expect_payload(cache, "codes", 7);
    file = fopen(path, "ab");
    fputc(0, file);
    fclose(file);
    expect_missing(cache, "codes", 7, "its length is wrong");
    mg_graph_cache_close(cache);
}

static void another_key_is_seen_and_removed(void **unused)
{
    (void)unused;
    mg_graph_cache *cache = opened();
    char from[1024];
    must(mg_graph_cache_put(cache, "order", 1, payload, sizeof payload));
    snprintf(from, sizeof from, "%s", file_of("order-0000000000000001.mgc"));
    assert_int_equal(0, rename(from, file_of("order-0000000000000002.mgc")));
    expect_missing(cache, "order", 2, "it is of another key");
    must(mg_graph_cache_put(cache, "order", 1, payload, sizeof payload));
    assert_int_equal(0, rename(from, file_of("codes-0000000000000001.mgc")));
    expect_missing(cache, "codes", 1, "it is of another key");
    mg_graph_cache_close(cache);
    assert_int_equal(count_files(folder, 1), 0);
}

static void names_are_checked(void **unused)
{
    (void)unused;
    mg_graph_cache *cache = opened();
    static const char *const bad[] = {
        "", "../x", "a b", "A", "a.b", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};
    for (int k = 0; k < 6; k++)
        assert_int_equal(-EINVAL, mg_graph_cache_put(cache, bad[k], 1, "", 0));
    assert_string_equal("cache: the name \"../x\"; it has 1 to 64 of a-z, 0-9, _ and -",
                        (mg_graph_cache_put(cache, "../x", 1, "", 0), mg_graph_last_error()));
    mg_graph_cache_close(cache);
}

static void full_disk_leaves_nothing_and_is_told(void **unused)
{
    (void)unused;
    mg_graph_cache *cache = opened();
    must(mg_graph_cache_put(cache, "order", 1, payload, sizeof payload));
    count_files(folder, 1);
    assert_int_equal(0, rmdir(folder)); /* nothing can be written any more */
    assert_int_equal(-ENOENT, mg_graph_cache_put(cache, "order", 1, payload, sizeof payload));
    assert_non_null(strstr(mg_graph_last_error(), folder));
    assert_int_equal(0, mkdir(folder, 0700));
    mkdir(file_of("order-0000000000000001.mgc"), 0700); /* the rename fails */
    assert_true(mg_graph_cache_put(cache, "order", 1, payload, sizeof payload) < 0);
    assert_non_null(strstr(mg_graph_last_error(), "order-0000000000000001.mgc cannot be written"));
    assert_int_equal(0, rmdir(file_of("order-0000000000000001.mgc")));
    assert_int_equal(count_files(folder, 0), 0);
    mg_graph_cache_close(cache);
}

static void folders_follow_xdg(void **unused)
{
    (void)unused;
    mg_graph_cache *cache;
    struct stat status;
    char home[1024], below[1100];
    snprintf(home, sizeof home, "%s", file_of("a"));
    setenv("HOME", home, 1);
    setenv("XDG_CACHE_HOME", "relative", 1); /* to be ignored */
    must(mg_graph_cache_open(&cache, NULL));
    mg_graph_cache_close(cache);
    snprintf(below, sizeof below, "%s/.cache/megagraph", home);
    assert_true(!stat(below, &status) && S_ISDIR(status.st_mode));
    rmdir(below);
    snprintf(below, sizeof below, "%s/.cache", home);
    rmdir(below);
    setenv("XDG_CACHE_HOME", home, 1);
    must(mg_graph_cache_open(&cache, NULL));
    mg_graph_cache_close(cache);
    snprintf(below, sizeof below, "%s/megagraph", home);
    assert_true(!stat(below, &status) && S_ISDIR(status.st_mode));
    rmdir(below);
    rmdir(home);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(-EINVAL, mg_graph_cache_open(&cache, NULL));
    assert_non_null(strstr(mg_graph_last_error(), "say which folder"));
    assert_int_equal(-ENOTDIR, mg_graph_cache_open(&cache, "/dev/null"));
    assert_non_null(strstr(mg_graph_last_error(), "/dev/null is not a folder"));
    assert_true(mg_graph_cache_open(&cache, "/dev/null/x") < 0);
    assert_null(cache);
}

static void hash_depends_on_every_byte(void **unused)
{
    (void)unused;
    unsigned char bytes[67];
    for (int64_t length = 0; length < 67; length++) {
        memset(bytes, 0, sizeof bytes);
        uint64_t plain = mg_graph_hash_bytes(1, bytes, length);
        assert_true(plain != mg_graph_hash_bytes(2, bytes, length) &&
                    plain != mg_graph_hash_bytes(1, bytes, length + 1));
        for (int64_t bit = 0; bit < 8 * length; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            int changed = __builtin_popcountll(plain ^ mg_graph_hash_bytes(1, bytes, length));
            assert_true(changed > 8 && changed < 56);
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
}

static int cache_work(void *unused)
{
    mg_graph_cache *cache = NULL;
    void *data = NULL;
    int64_t bytes;
    (void)unused;
    int status = mg_graph_cache_open(&cache, folder);
    if (!status)
        status = mg_graph_cache_put(cache, "fault", 1, payload, sizeof payload);
    if (!status)
        status = mg_graph_cache_get(&data, &bytes, cache, "fault", 1);
    mg_graph_free(data);
    mg_graph_cache_close(cache);
    return status;
}

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    assert_int_equal(test_every_allocation_fails(mg_graph_set_memory_hook, cache_work, NULL), 3);
    assert_int_equal(count_files(folder, 1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_comes_back),
        cmocka_unit_test(damage_is_seen_and_removed),
        cmocka_unit_test(another_key_is_seen_and_removed),
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(full_disk_leaves_nothing_and_is_told),
        cmocka_unit_test(hash_depends_on_every_byte),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(folders_follow_xdg),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
