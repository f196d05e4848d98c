#include "comm_cases.h"

static const int sizes_of_groups[] = {1, 2, 3, 4, 7, 8};

static void run_cases(const mg_comm_options *options, int64_t chunk)
{
    for (int c = 0; c < comm_case_count; c++)
        for (size_t g = 0; g < sizeof sizes_of_groups / sizeof sizes_of_groups[0]; g++) {
            int status = mg_comm_run_threads(sizes_of_groups[g], options, comm_cases[c].work, &chunk);
            if (status)
                fail_msg("%s on %d ranks: %d, %s", comm_cases[c].name, sizes_of_groups[g], status, mg_dp_last_error());
        }
}

static void cases(void **state)
{
    (void)state;
    run_cases(NULL, 256 << 20);
}

static void cases_in_chunks_with_checks(void **state)
{
    (void)state;
    run_cases(&(mg_comm_options){.chunk_bytes = 1024, .check = 1}, 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases),
        cmocka_unit_test(cases_in_chunks_with_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
