"""Shows that a compiled network learns the same: ``python -m fakes.compiled_policy cpu`` (or cuda).

A program of its own, since torch's compiler leaves threads, processes and settings behind. It ends
by an error, or says "agreed".
"""

from __future__ import annotations

import sys

import torch
import torch._inductor.config

from fakes.policies import data_of, distance, gradient, policy_of


def main(device: str) -> None:
    """Three updates with a compiled network, and without."""
    torch._inductor.config.compile_threads = 1
    torch.set_num_threads(1)
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
    main(sys.argv[1])
