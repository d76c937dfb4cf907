"""The commands of `hpcdi`, one module or folder each.

Owns: what people type and read: options, help texts, tables, messages (`options` has what several
share). Each module has ``main(arguments) -> exit code``. `status` and `logs` read a run folder from
outside, `saved_policy` reads the policy that a run has saved; `templates` is what `new` writes.
submitit is known in `submit` alone.
May import: everything below. Why so: `run` starts and runs ranks; commands prepare runs,
hand them to a scheduler, and look at them. None talks to a rank of a running job.
"""
