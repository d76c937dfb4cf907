"""`hpcdi serial`: a whole run in one process.

Owns: the command (`command`), one run (`run`), its parts (`parts`), its loop (`pipeline`) and what
in that differs by what a policy takes (`data_path`). May import: the rest of `launch`, `worker` and
below. Why so: an experiment is tried, or debugged, without MPI before a cluster is burnt.
"""
