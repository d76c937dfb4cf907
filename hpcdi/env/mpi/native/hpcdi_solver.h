/* hpcdi_solver.h: what hpcdi.c and preload.c share; no business of a solver's. */
#ifndef HPCDI_SOLVER_H
#define HPCDI_SOLVER_H

#include <mpi.h>

/* The MPI library's own function; dies where there is none. */
void *hpcdi_real(const char *name);

/* Say why on standard error, then end this process by SIGKILL. */
void hpcdi_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Join the collector, whatever program this is; -1: its sizes are not known. Returns whether the
 * process is a solver's rank in a job of hpcdi. */
int hpcdi_connect(int observations, int actions);

/* Tell the collector that the program ends, and wait until it may. */
void hpcdi_leave(void);

/* The communicators: of the solver's ranks; and of the collector, its rank 0, and them. */
MPI_Comm hpcdi_group(void);
MPI_Comm hpcdi_pair(void);

#endif
