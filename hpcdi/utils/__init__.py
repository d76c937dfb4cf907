"""Small tools without knowledge of reinforcement learning.

Owns: registries, imports by name, unique ids, timers, life times, threads, waiting and a watch
over it, logs, TensorBoard events, metrics, segment trees. May import: `hpcdi.errors`,
`hpcdi.types`. Why so: everything above may use these.
"""
