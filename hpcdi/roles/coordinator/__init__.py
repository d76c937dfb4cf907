"""Rank 0: decides who does what, and when the run is over.

Owns: all decisions (`scheduler`: messages and time in, orders out), whose turn it is (`plans`),
tasks and goals (`commander`, `curriculum`), one record for each rank (`workers`) and for each group
of learners (`groups`), snapshots, what people see (`view`, `bottleneck`, `loggers`, `run_curves`),
and the turns that carry the decisions out (`coordinator`). May import: `league`, `replay`,
`transport`, `policy`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: a decision
that needs no clock, no MPI and no file can be tested with ``==``.

Life of a run::

    starting ──all workers ready──► running ──stop value, limit, signal, failure──► stopping
                                                                                       │
                        finished ◄──Leave to all── everybody has said goodbye ◄────────┘
"""
