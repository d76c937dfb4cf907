"""`hpcdi serial`: a whole run in one process.

Owns: the loop (`pipeline`: read it first), the run that shows it and takes its snapshots, by the
same view and in the same format as over ranks (`run`), its parts (`parts`), what differs between
policies of columns and of dicts (`data_path`), the buffers and their shards (`replay`), the command
(`command`). May import: the rest of `launch`, `worker` and below. Why so: an experiment is tried,
or debugged, without MPI before it takes a cluster's hours.
"""
