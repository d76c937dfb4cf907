"""From a command to a running role: which ranks there are, who plays what, where it writes.

Owns: what the launcher says (`environment`) and the batch system (`allocation`, `hostlist`), how
many ranks there must be (`topology`) and who plays what where (`placement`), the run folder
(`run_folder`), who has that (`run_lock`) and whether it is gone on with (`resume`), composing a
rank's program (`entry`), starting mpirun here (`local`), a run as a batch job (`submit`,
`submit_command`, `submitted`, its text `batch_script`, what a cluster has `slurm_limits`), many
runs (`sweep`, `sweep_*`), looks at a run from outside (`status`, `tail`, `watch_commands`, what the
queue says `slurm_queue`) and a word to it (`scale`), a whole run in one process (`serial`, its
parts and its loop `pipeline`), what either says at its start and end (`words`), signals
(`signals`), the look ahead (`plan`), the look at the machine (`doctor`, with its facts, checks,
rounds and judges in `doctor_*`); what becomes of a policy afterwards: finding it and acting by it
(`kept_policy`), judging it (`evaluate`, `film`), giving it away (`export`); what the commands teach
(`help_texts`). May import: everything below `cli`. Why so: it is the one place that knows all
roles.
"""
