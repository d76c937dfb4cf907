"""From a command to a running role: which ranks there are, their roles, and where they write.

Owns: what a command asks for (`request`, `start`); the variables of launcher and batch system
(`environment`, `hostlist`), its queue (`slurm_queue`) and when it ends the job (`job_end`), shares
of its allocation (`shares`); the number of ranks and their roles (`placement`, of environments that
are MPI programs `solver_ranks`); the experiment (`experiment`), settings that nobody has said
(`beginnings`), classes of the user's (`own_code`), data that it is given (`given`); the run folder
(`run_folder`), what `latest` beside it shows (`latest`), its lock (`run_lock`) and how it is
resumed (`resume`); starting mpirun (`local`), so that nobody else can reach it (`loopback`),
folders for temporary files (`private_folder`), memory between ranks (`shared_memory`); one rank's
program (`rank`), the guard of its start (`start_guard`), what rank 0 does first (`prepare`) and
tells all (`run_start`), its program (`coordinate`) and that of the others (`work`), parts that may
be hpcdi's or others (`parts`), what asks a run to end or to scale (`signals`); the same in one
process (`serial`), and of a guest (`guest`); what the parts of a run take and cost (`sizes`,
`measure`, `kept_costs`, `forecast`). May import: everything below `commands`. Why so: it is the one
place that knows all roles.
"""
