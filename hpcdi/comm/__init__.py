"""Talking between ranks: the only package that speaks MPI or torch.distributed.

Owns: the messages (`messages`) and their bytes (`codec`); links that carry them (`link`, over MPI
`mpi_link`); what drives a link while a role computes (`pump`); the MPI world, its start and its
collective calls (`world`); errors that cross ranks (`failure`); the learners' process group
(`group`) and their gradients (`gradients`); what MPI and torch.distributed can do here (`probe`).
May import: `config`, `utils`, `types`, `errors`. Why so: one thread a rank carries all messages
between roles, and nobody else can call MPI by accident.

Life of a message::

    dataclass ──codec.encode──► head (JSON) + frames (array bytes) ──Isend──► ... ──► dataclass
"""
