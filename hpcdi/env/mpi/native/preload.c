/* preload.c: gives a program that knows nothing of hpcdi its own MPI_COMM_WORLD.
 *
 * Compiled with hpcdi.c and with wrappers that are generated from the mpi.h in use (wrappers.c, by
 * hpcdi/env/mpi/preload.py) into a library that is preloaded. Each wrapper puts the communicator
 * that stands for the world into the place of MPI_COMM_WORLD, then calls the MPI library. Here is
 * what is no such wrapper.
 *
 * All define both MPI_X and PMPI_X, because Fortran's bindings call the one or the other, and reach
 * the library by dlsym: which name the program calls makes no difference.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "hpcdi_solver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define ALIAS(name) __attribute__((alias(#name)))

static MPI_Comm virtual_world;
static int has_world, appnum;

/* The communicator that stands for another in the program's eyes. */
MPI_Comm hpcdi_world(MPI_Comm comm)
{
    return has_world && comm == MPI_COMM_WORLD ? virtual_world : comm;
}

__attribute__((constructor)) static void print_line_by_line(void)
{
    if (getenv("HPCDI_SOLVER_RANKS") != NULL) {
        setvbuf(stdout, NULL, _IOLBF, 0); /* what a killed process has printed is in its log */
    }
}

static void join(void)
{
    const char *world = getenv("HPCDI_SOLVER_WORLD");
    if (has_world || !hpcdi_connect(-1, -1)) {
        return;
    }
    /* a program that couples itself to a controller finds the collector as the world's rank 0 */
    int has_collector = world != NULL && strcmp(world, "pair") == 0;
    virtual_world = hpcdi_group();
    if (has_collector) { /* a copy: hpcdi's own messages have tags, too */
        ((__typeof__(PMPI_Comm_dup) *)hpcdi_real("PMPI_Comm_dup"))(hpcdi_pair(), &virtual_world);
    }
    appnum = has_collector;
    MPI_Comm_set_name(virtual_world, "MPI_COMM_WORLD");
    has_world = 1;
}

EXPORTED int MPI_Init(int *argc, char ***argv)
{
    static __typeof__(PMPI_Init) *real;
    real = (__typeof__(real))hpcdi_real("PMPI_Init");
    int code = real(argc, argv);
    if (code == MPI_SUCCESS) {
        join();
    }
    return code;
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    static __typeof__(PMPI_Init_thread) *real;
    real = (__typeof__(real))hpcdi_real("PMPI_Init_thread");
    int code = real(argc, argv, required, provided);
    if (code == MPI_SUCCESS) {
        join();
    }
    return code;
}

/* Attributes that MPI defines are the real world's only; of two the job's are not the program's. */
EXPORTED int MPI_Comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag)
{
    static __typeof__(PMPI_Comm_get_attr) *real;
    static int size;
    if (real == NULL) {
        real = (__typeof__(real))hpcdi_real("PMPI_Comm_get_attr");
    }
    if (!has_world || comm != MPI_COMM_WORLD) {
        return real(comm, keyval, value, flag);
    }
    if (keyval == MPI_APPNUM || keyval == MPI_UNIVERSE_SIZE) {
        MPI_Comm_size(virtual_world, &size);
        *(int **)value = keyval == MPI_APPNUM ? &appnum : &size;
        *flag = 1;
        return MPI_SUCCESS;
    }
    int is_defined_by_mpi = keyval == MPI_TAG_UB || keyval == MPI_IO || keyval == MPI_HOST ||
                            keyval == MPI_WTIME_IS_GLOBAL || keyval == MPI_LASTUSEDCODE;
    return real(is_defined_by_mpi ? comm : virtual_world, keyval, value, flag);
}

EXPORTED int MPI_Attr_get(MPI_Comm comm, int keyval, void *value, int *flag)
{
    return MPI_Comm_get_attr(comm, keyval, value, flag);
}

EXPORTED int PMPI_Init(int *argc, char ***argv) ALIAS(MPI_Init);
EXPORTED int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided)
    ALIAS(MPI_Init_thread);
EXPORTED int PMPI_Comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag)
    ALIAS(MPI_Comm_get_attr);
EXPORTED int PMPI_Attr_get(MPI_Comm comm, int keyval, void *value, int *flag) ALIAS(MPI_Attr_get);
