/* Ranks as processes. Run by mpirun, see CMakeLists.txt:
 *     comm_mpi_test cases CHUNK CHECK SIZE ...     all cases on groups of so many of the ranks
 *     comm_mpi_test FAILURE                        rank 1 fails while the others wait; comm_mpi_failures.sh looks at
 * what comes out */
#include "comm_cases.h"

#include <signal.h>
#include <unistd.h>

static void warn(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "warning: %s\n", line);
}

static int complain(const char *what)
{
    fprintf(stderr, "comm_mpi_test: %s: %s\n", what, mg_dp_last_error());
    return 1;
}

static int run_cases(mg_comm *comm, int64_t chunk, char **sizes)
{
    for (; *sizes; sizes++) {
        int size = atoi(*sizes);
        mg_comm *group;
        /* The last ranks, backwards: ranks of the group are not those of the job. */
        if (mg_comm_split(&group, comm, mg_comm_rank(comm) >= mg_comm_size(comm) - size ? 0 : -1, -mg_comm_rank(comm)))
            return complain("split");
        for (int c = 0; group && c < comm_case_count; c++)
            if (comm_cases[c].work(group, &chunk))
                return complain(comm_cases[c].name);
        if (group && mg_comm_rank(group) == 0)
            printf("%d cases on %d ranks\n", comm_case_count, mg_comm_size(group));
        mg_comm_close(group);
        if (mg_comm_barrier(comm))
            return complain("barrier");
    }
    return 0;
}

static int wait_for_one(mg_comm *comm)
{
    mg_comm_request *request;
    char byte;
    if (mg_comm_receive(comm, &request, 1, 0, &byte, 1) || mg_comm_wait(comm, &request)) {
        mg_comm_abort(comm, -EIO, mg_dp_last_error());
        return complain("after abort");
    }
    return complain("a message that was never sent");
}

static int fail_as(mg_comm *comm, const char *how)
{
    double one = 1;
    if (!strcmp(how, "late")) {
        if (mg_comm_rank(comm) == 1)
            sleep(2);
        return mg_comm_all_reduce(comm, &one, 1, MG_COMM_FP64, MG_COMM_SUM) != 0;
    }
    if (mg_comm_rank(comm) != 1)
        return strcmp(how, "kill-in-sum") ? wait_for_one(comm)
                                          : mg_comm_all_reduce(comm, &one, 1, MG_COMM_FP64, MG_COMM_SUM);
    if (!strncmp(how, "kill", 4))
        raise(SIGKILL);
    if (!strcmp(how, "abort"))
        mg_comm_abort(comm, -ENOENT, "no such file: x.npz");
    if (!strcmp(how, "close"))
        mg_comm_close(comm);
    exit(!strcmp(how, "exit-3") ? 3 : 0);
}

int main(int argc, char **argv)
{
    mg_comm *comm;
    if (argc < 2)
        return fprintf(stderr, "comm_mpi_test cases CHUNK CHECK SIZE ..., or a failure\n"), 2;
    int cases = !strcmp(argv[1], "cases") && argc > 4;
    mg_comm_options options = {.warn = warn, .late_seconds = 0.5};
    if (cases)
        options = (mg_comm_options){.chunk_bytes = atoll(argv[2]), .check = atoi(argv[3])};
    if (mg_comm_open_mpi(&comm, cases ? 1 : 1000, &options))
        return complain("open");
    if (strcmp(mg_comm_backend(comm), "mpi") || mg_comm_under_mpi() != (mg_comm_size(comm) > 1))
        return complain("not under MPI");
    int status = cases ? run_cases(comm, options.chunk_bytes ? options.chunk_bytes : 256 << 20, argv + 4)
                       : fail_as(comm, argv[1]);
    mg_comm_close(comm);
    return status;
}
