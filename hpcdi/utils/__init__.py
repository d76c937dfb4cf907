"""Small tools that know no algorithm, environment or role.

Owns: registries, timers, closing, threads, waiting, time limits of work that may hang, signals
that come before a command begins, environment variables, processes, commands and memory of this
host, full disks, logs, the terminal, curves and TensorBoard's files, trackers, optional packages,
progress lines, metrics, nested dictionaries, arrays of truths, video files. May import:
`hpcdi.errors`, `hpcdi.types`, `hpcdi.dataclass`. Why so: everything above may use these.
"""
