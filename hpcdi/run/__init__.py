"""From a command to a running role: which ranks there are, their roles, and where they write.

Owns: the variables of launcher and batch system (`environment`, `slurm_queue`), the number of
ranks and their roles (`placement`), the experiment (`experiment`), the run folder (`run_folder`),
what `latest` beside it shows (`latest`), its lock (`run_lock`) and how it is resumed (`resume`),
starting mpirun (`local`), folders for temporary files (`private_folder`), one rank's program
(`rank`), the guard of its start (`start_guard`), what rank 0 does first (`prepare`) and tells all
(`run_start`), its program (`coordinate`) and that of the others (`work`, of learners
`learner_rank`), their policies (`policies`), what asks a run to end or to scale (`signals`), and
the same in one process (`serial`). May import: everything below `commands`. Why so: it is the one
place that knows all roles.
"""
