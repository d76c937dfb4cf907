"""Talking between ranks: the only package that speaks MPI or torch.distributed.

Owns: the messages (`messages`) and their bytes (`codec`, of frequent ones `records`); links that
carry them (`link`, over MPI `mpi_link`), and what wakes who sleeps at one (`doorbell`); what drives
a link while a role computes (`pump`); the MPI world, its start and its collective calls (`world`,
`pmix`); errors that cross ranks (`failure`); the learners' process group (`group`) and their
gradients (`gradients`); environments that are MPI programs, as their collector has them
(`solver_group`, `coupled`), as their ranks are (`solver_rank`), and what both say
(`solver_protocol`); what MPI and torch.distributed can do here (`probe`).
May import: `config`, `utils`, `types`, `errors`. Why so: one thread a rank carries all messages
between roles, and nobody else can call MPI by accident.

Life of a message::

    dataclass ──codec.encode──► head (JSON) + frames (array bytes) ──Isend──► ... ──► dataclass
"""
