"""Collectors: environments stepped by a policy, to collect data or to evaluate it.

Owns: the stepping loop, which evaluates, too (`loop`), the recorder of its columns (`recorder`) and
what it adds to them (`hindsight`), the collector of a parallel run (`base_parallel_collector`) with
its message side (`mpi_fs_collector`, `channels`). May import: `league`, `transport`, `policy`,
`env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: nothing here knows a buffer or
a learner; what leaves a rank is a shard and a message about it.

One step of the environments, collecting or evaluating::

    observe ──► act ──► step ──► record                       (`Loop.once`)

Life of a collector rank::

    start ──WorkerReady──► waiting ──CollectTask──► stepping ──done or CloseTask──► waiting
                              │                                                        │
                        Stop ─┴──► open block published ──Goodbye──► Leave ◄── Stop ───┘
"""
