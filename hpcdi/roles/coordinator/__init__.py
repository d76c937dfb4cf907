"""Rank 0: decides who does what, and when the run is over.

Owns: tasks and goals (`commanders`; of battles `one_vs_one_parallel_commander`), all decisions
(`scheduler`: messages and time in, orders out; `lockstep`: the same, reproducibly), the record of
each rank (`workers`), snapshots, what people see (`view`), and the loop that carries the decisions
out, with DI-engine's callbacks around it (`coordinator`). May import: `league`, `replay`,
`transport`, `policy`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: a decision
that needs no clock, no MPI and no file can be tested with ``==``.

Life of a run::

    starting ──all workers ready──► running ──stop value, limit, signal, failure──► stopping
                                                                                       │
                        finished ◄──Leave to all── everybody has said goodbye ◄────────┘
"""
