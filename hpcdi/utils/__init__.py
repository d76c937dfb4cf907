"""Small tools without knowledge of reinforcement learning.

Owns: registries, timers, closing, threads, waiting, time limits of work that may hang, signals
that come before a command begins, environment variables, processes and commands of this host, full
disks, logs, TensorBoard's files, trackers, optional packages, progress lines, metrics, nested
dictionaries, arrays of truths, video files. May import: `hpcdi.errors`, `hpcdi.types`. Why so:
everything above may use these.
"""
