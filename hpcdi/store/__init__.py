"""Files: collected data, policies, snapshots. The only package that opens HDF5.

Owns: every path in a run folder (`layout`), files that appear whole (`atomic`), a block of
rows (`block`) and how one is filled (`segment`, `builder`, `frames`), the HDF5 file that holds many
(`shard_file`, on `structure`), writing and reading them (`shards`), rows in columns, as learners
and buffers hold them (`rows`, `memory`), policies (`policies`), folders of files that appear whole
(`checkpoints`), saved state (`state_file`), removal of what nobody needs (`retention`), looking
into files (`inspect`), looking at what a file system can do (`probe`). May import: `config`,
`utils`, `types`, `errors`. Why so: whoever opens a file decides about its format, its checksum and
what happens when it is torn.

Life of a block::

    rows in a collector ──append──► shard file ──announce──► ShardRef ──read, verify──► ring rows
         (numpy)         (its places, then its record)      (places, crc32)             (learner)
"""
