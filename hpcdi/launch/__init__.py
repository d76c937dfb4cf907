"""From a command to a running role: which ranks there are, who plays what, where it writes.

Owns: what the launcher says (`environment`) and the batch system (`allocation`, `hostlist`,
`slurm_queue`), how many ranks there must be (`topology`) and who plays what where (`placement`),
the experiment (`experiment`), the run folder (`run_folder`), who has that
(`run_lock`) and whether it is gone on with (`resume`, `new_settings`), starting mpirun here
(`local`, `mpi_folders`), composing a rank's program (`entry`) and rank 0's (`coordinate`), when it
has to end (`signals`, `time_limit`) and how many collectors are to work (`scale_file`), what a run
says at its start and end (`words`), the same in one process (`serial`). May import: everything
below `commands`. Why so: it is the one place that knows all roles.
"""
