"""Environments that are MPI programs: each is a group of ranks of hpcdi's own job.

Owns: what a solver's ranks become, by exec or in Python (`launch`, `python_solver`); the library
that gives an unmodified program a world of its own (`preload`, `native/preload.c`), and compiling
(`build`); the C and Fortran side for programs that are changed (`native/hpcdi.h`, ``hpcdi.f90``);
environments as collectors step them, several at the same time (`solvers`); those of this rank
(`pool`), as an environment manager has them (`manager`, `environment`); values of spaces as vectors
(`vectors`). May import: what `env` may; `comm.solver_group` and `comm.solver_rank` start
MPI, and are imported where it has started. Why so: MPI is spoken in `comm` alone, and a rank that
becomes another program must not have started it.

Three ways in, one protocol (`hpcdi.comm.solver_protocol`)::

    a Python class                    reset(seed, comm), step(action, comm) on all ranks
    a compiled solver, five lines     hpcdi_init, hpcdi_recv_action, hpcdi_send_observation
    an unmodified program             LD_PRELOAD: its MPI_COMM_WORLD is its group, or that with the
                                      collector as rank 0, for programs that couple themselves
"""
