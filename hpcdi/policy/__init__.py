"""What is learnt: policies, as collectors, learners, evaluators and the commander see them.

Owns: the mode contract (`base`), building by configuration (`create`), networks, exploration,
returns, acting at random (`random`), the step that all learners make (`gradient_step`), the
algorithms (`dqn`, `ppo`), and their greedy actions as modules (`acting`) and as programs
(`programs`). May import: `store`, `comm` (gradient synchronisation), `config`, `utils`, `types`,
`errors`. Why so: workers know modes, never an algorithm's name.

Importing this package does not import torch: the rank that only talks needs a policy's command mode
and its settings, not its networks. A policy imports its torch part when a mode that computes is
enabled.
"""
