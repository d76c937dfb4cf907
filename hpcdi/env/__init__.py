"""Environments behind one contract. The only package that imports gymnasium, EnvPool, PettingZoo.

Owns::

    create        builds a manager from a configuration (`create_env_manager`)
    base          the contract: timesteps, settings, and what a manager asks of its back-end
    contract      values as rows of columns and back, checked where they are copied
    manager       the manager: episode quotas, seeds, failures and retries, the seeds' API
    in_process    back-end: single environments; those of this process
    child_process the same in child processes: time-outs, restarts
    numbering     numbers of environments, for ports, folders and licences
    process_state what environments share with their process: signals, torch's modes, generators
    vector        back-end: one vector environment (gymnasium's own kinds, EnvPool)
    mpi           environments that are MPI programs: groups of ranks (guide: `MPI.md`)
    team          several players as one row
    gymnasium, envpool, pettingzoo: environments by their id · seeds · toy: environments for tests

May import: `comm` (in `mpi` alone), `config`, `utils`, `types`, `errors`. Why so: autoreset modes,
the two kinds of episode end and the ways of seeding are known in here and nowhere else.
`README.md`: bring your own.
"""
