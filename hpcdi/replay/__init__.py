"""The replay buffer: which data are learnt from, and how often.

Owns: the index of the items (`index`), how they are drawn (`samplers`, `tree`), when drawing waits
(`limits`), what is reported (`monitor`); and the buffer as rank 0 sees it (`manager`, `ratio`; one
learner's part of it, `partition`, with the rows that its blocks have, `placer`). No item is here:
an index draws numbers. May import: `transport`, `store`, `comm`, `config`, `utils`, `types`,
`errors`. Why so: the same index draws rows of shards in a run, and items in the buffers of
`hpcdi.worker.replay_buffer`.
"""
