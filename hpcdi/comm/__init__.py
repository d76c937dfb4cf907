"""Talking between ranks: the only package that speaks MPI or torch.distributed.

Owns: the messages (`messages`, `fault_messages`) and their bytes (`wire`; any value's, `plain`),
links that carry them (`link`, `mpi_link`, `local_link`), the thread that drives a link beside a
computing one (`pump`), the start and end of an MPI world (`world`), who has died (`ulfm`), looks at
what MPI and torch.distributed can do here (`probe`, and its start, dist and facts in `probe_*`) by
ranks that wait for each other with a limit (`muster`), errors that cross ranks (`failure`), the
learners' process group (`dist`: joining it, at a `rendezvous`; `collectives`, `shares`: what its
members do) and their gradients (`gradients`, `buckets`). May import: `config`, `utils`, `types`,
`errors`. Why so: one thread a rank makes all MPI calls, and nobody else can make one by accident.

Life of a message::

    dataclass ──wire.encode──► head (JSON) + frames (array bytes) ──Isend──► ... ──► dataclass
"""
