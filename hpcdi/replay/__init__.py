"""Replay buffers: which data are learnt from, and how often.

Owns: the contract and what all buffers share (`base_buffer`), the prioritized buffer
(`advanced_buffer`) and its parts: where items lie (`ring`, over `store.rows`), what is known of
them (`index`), how they are drawn (`samplers`, `priority_tree`), when drawing waits (`limits`),
what is reported (`monitor`); and the buffer as rank 0 sees it (`manager`, and one learner's part of
it, `partition`). May import: `transport`, `store`, `comm`, `config`, `utils`, `types`, `errors`.
Why so: the same buffer is the coordinator's index over shards (its items are row numbers), the
memory of serial training (its items are transitions) and a library of its own.
"""
