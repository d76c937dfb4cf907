"""Environments behind one contract: gymnasium's, EnvPool's, PettingZoo's, and one's own.

Owns::

    create        builds a manager from a configuration (`create_env_manager`)
    base          the contract: types of environments, and what a manager asks of its back-end
    contract      values as rows of columns and back, checked where they are copied
    manager       the manager: steps, resets, failures and retries, the seeds' API
    counters      what it counts: episodes and their quotas, failures, renewals
    in_process    back-end: single environments; those of this process
    child_process the same in child processes: time-outs, restarts
    arguments     what environments are made with: numbers, folders, values of a schedule
    process_state what environments share with their process: signals, torch's modes, generators
    vector        back-end: one vector environment (gymnasium's own kinds, EnvPool)
    mpi           environments that are MPI programs: groups of ranks (guide: `MPI.md`)
    team          several players as one row
    gymnasium, envpool, pettingzoo: environments by their id · seeds · toy: environments for tests

May import: `comm` (in `mpi` alone), `config`, `utils`, `types`, `errors`. Why so: autoreset modes,
the two kinds of episode end and the ways of seeding are known in here and nowhere else.
`README.md`: bring your own.
"""
