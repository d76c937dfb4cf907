"""Shows that a compiled network learns the same: ``python -m fakes.compiled_policy cpu`` (or cuda).

A program of its own, since torch's compiler leaves threads, processes and settings behind. It ends
by an error, or says "agreed"; with the name of a compiler it says before what is said where the one
that CXX names is missing.
"""

from __future__ import annotations

import importlib
import os
import sys

import torch
import torch._inductor.config

from fakes.policies import data_of, distance, gradient, policy_of
from hpcdi.errors import PolicyError


def say_what_is_missing() -> None:
    """Says the error of a policy whose compiler, named by CXX, is missing.

    In a child process, since torch keeps which compiler it has found. What it imports is loaded
    before.
    """
    for name in ("torch._dynamo", "torch._inductor.compile_fx"):
        importlib.import_module(name)
    child = os.fork()
    if child:
        assert os.waitpid(child, 0) == (child, 0), "it has found a compiler"
        return
    try:
        policy_of("dqn", compile=True)._forward_learn(data_of("dqn"))
    except PolicyError as error:
        sys.stdout.write(f"PolicyError: {error}\n")
        sys.stdout.flush()
        os._exit(0)
    os._exit(1)


def main(device: str, compiler: str = "") -> None:
    """Three updates with a compiled network, and without."""
    torch._inductor.config.compile_threads = 1
    # to find out which of the processor's vector instructions work takes a compiler's run for each
    torch._inductor.config.cpp.vec_isa_ok = False
    torch.set_num_threads(1)
    if compiler:
        say_what_is_missing()
        torch._inductor.config.cpp.cxx = (None, compiler)
    is_cuda = device == "cuda"
    plain, fast = (
        policy_of("dqn", cuda=is_cuda, double=is_cuda, compile=is_compiled)
        for is_compiled in (False, True)
    )
    # an empty minibatch, which only lets other learners not wait, does not wait for a compiler
    assert fast._forward(torch.zeros(0, 4, device=device), {})[0].shape == (0, 3)
    for seed in range(3):
        told = [learner._forward_learn(data_of("dqn", seed)) for learner in (plain, fast)]
        assert distance(gradient(fast._model), gradient(plain._model)) < 1e-4, seed
        assert abs(told[0]["total_loss"] - told[1]["total_loss"]) < 1e-4, seed
    for forward in (fast._forward, fast.target_forward):
        assert hasattr(forward._compute, "_torchdynamo_orig_callable"), "it was not compiled"
    # the network is what it was: so it acts, is sent and is saved as ever
    assert type(fast._model) is type(plain._model)
    assert fast._model._compiled_call_impl is None
    assert list(fast._model.state_dict()) == list(plain._model.state_dict())
    sys.stdout.write("agreed\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
