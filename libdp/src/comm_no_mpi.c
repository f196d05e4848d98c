/* In place of comm_mpi.c where libdp is built without MPI. */
#include "endpoint.h"

int mg_comm_open_mpi(mg_comm **out, int threads, const mg_comm_options *options)
{
    (void)threads, (void)options;
    *out = NULL;
    return fail(-ENOSYS, "this libdp is built without MPI: install libopenmpi-dev and openmpi-bin, configure with "
                         "-DMEGAGRAPH_MPI=ON and build again; threads as ranks (--ranks N) work as they are");
}
