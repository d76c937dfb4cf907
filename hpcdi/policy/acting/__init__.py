"""Acting without torch: what collectors and evaluators need of an algorithm, in numpy.

A policy that learns is one of torch (`hpcdi.policy.torch_policy`). One that only acts, with weights
that a learner sends, computes a network of layers of numbers in numpy: a process without torch
starts a second sooner, holds a third of the memory, and acts faster where layers are small. An
algorithm's acting half stands here, and its learning half, derived from it, beside this package::

    base           modes, actors, columns of returns: of all algorithms
    network        the layers that `hpcdi.policy.networks` has as modules
    sampling       actions of a distribution
    dqn, boxes, discrete_sac, actor_critic, bc
                   the algorithms

Owns: acting without torch. May import: what `hpcdi.policy` may, but neither torch nor what imports
it (import-linter checks). Why so: most ranks of a job are collectors.
"""
