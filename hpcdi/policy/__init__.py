"""Policies, as collectors, learners, evaluators and the commander call them.

Owns: the contract (`base`), building by configuration (`create`); what algorithms share
(`torch_policy`, and for it `networks`, `memories`, `sequences`, `gtrxl`, `named`, `distributions`,
`normalization`, `exploration_bonus`, `extra`, `gradient_step`, `graphs`, `optimizers`,
`minibatches`, `returns`, `exploration`, `spaces`; `actor_critic` for a policy with a value, `boxes`
for continuous actions within bounds); one file an algorithm (`dqn`, `c51`, `qrdqn`, `sac`, `tqc`,
`discrete_sac`, `td3`, `ppo`, `impala`, `r2d2`, `bc`, `cql`, `iql`, `mixing`: VDN and QMIX), whose
acting half stands in `acting`; the policies of a team (`team`, `players`); and policies as programs
(`programs`) and source code (`source_code`). May import: `store`, `comm` (gradient
synchronisation), `config`, `utils`, `types`, `errors`. Why so: workers know modes, never an
algorithm's name.

Importing this package does not import torch: rank 0 needs a policy's command mode and its settings,
not its networks. Algorithms import torch at its first use.
"""
