"""`hpcdi serial`: a whole run in one process.

Owns: the loop and its data (`pipeline`: read it first), the run around it, which is shown and takes
snapshots as over ranks (`run`), its parts (`parts`), the buffers and their shards (`replay`). May
import: the rest of `launch`, `worker` and below. Why so: an experiment is tried, or debugged,
without MPI before it takes a cluster's hours.
"""
