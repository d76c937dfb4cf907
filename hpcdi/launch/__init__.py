"""From a command to a running role: which ranks there are, their roles, and where they write.

Owns: the variables of launcher and batch system (`environment`, `hostlist`, `slurm_queue`), the
number of ranks and their roles (`placement`), the experiment (`experiment`), the run folder
(`run_folder`), its lock (`run_lock`) and how it is resumed (`resume`), starting mpirun (`local`),
which then listens on loopback alone (`loopback`), folders for temporary files (`private_folder`),
one rank's program (`entry`), the guard of its start (`start_guard`) and rank 0's program
(`coordinate`), what ends it (`signals`, `time_limit`) and scales it (`scale_file`), the lines that
a run prints at its start and end (`messages`), and the same in one process (`serial`). May import:
everything below `commands`. Why so: it is the one place that knows all roles.
"""
