"""hpcdi: distributed reinforcement learning as one MPI program.

Importing this package imports neither mpi4py nor torch nor gymnasium: it works on a login node, in
a container without MPI, and in well under 0.3 s. The parts, from the top down:

    cli       what the command line says         launch   who plays which role, on which rank
    worker    coordinator, collectors, learners  policy   what is learnt       env   what is stepped
    transport how blocks reach the learners
    store     files: blocks, shards, policies    comm     messages: MPI, torch.distributed
    config    one YAML, checked                  utils    small tools           errors, types
"""

__version__ = "0.1.0"
