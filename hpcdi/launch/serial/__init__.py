"""`hpcdi serial`: a whole run in one process.

Read `pipeline` first: the loop evaluates, collects, learns. `run` shows the run and takes its
snapshots, by the same view and in the same format as over ranks; `parts` makes what the loop uses,
`data_path` is what differs between policies of columns and of dicts, `replay` holds the buffers and
publishes what is collected; `command` is the command line's. May import the rest of `launch`,
`worker` and below. Its purpose: an experiment is tried, or debugged, without MPI.
"""
