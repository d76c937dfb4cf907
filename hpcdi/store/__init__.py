"""Files: collected data, policies, snapshots. The only package that opens HDF5.

Owns: every path in a run folder (`layout`), files that appear whole (`atomic`), a block of rows as
one HDF5 image (`block`), shards on disk (`shards`), rows in columns, as buffers and learners hold
them (`rows`, with `frames` and `memory`), policies (`policies`), folders of files that appear whole
(`checkpoints`), saved state (`snapshots`), removal of what nobody needs (`retention`), looking into
files (`inspect`), looking at what a file system can do (`probe`). May import: `config`, `utils`,
`types`, `errors`. Why so: whoever opens a file decides about its format, its checksum and what
happens when it is torn.

Life of a block::

    rows in a collector ──encode──► HDF5 image ──publish──► shard file ──read, verify──► ring rows
         (numpy)                     (bytes)      (rename)                  (crc32)       (learner)
"""
