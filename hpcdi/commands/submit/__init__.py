"""`hpcdi submit`: a run as a batch job.

Owns: the command (`command`), what is written for a job and handed to the queue (`job`), the text
of its script (`batch_script`), what runs inside of it (`submitted`), and whether the cluster has
what is asked for (`slurm_limits`). May import: the rest of `launch`. Why so: only here submitit is
known.
"""

from hpcdi.commands.submit.command import main

__all__ = ["main"]
