"""Learners: batches in, gradient steps, policies out.

Owns: the training loop (`base_learner`), hooks (`learner_hook`), checkpoints (`checkpointing`), the
source of batches and their way to the device (`data_feed`), the group of several learners
(`group`), the message side (`mpi_fs_learner`, `policy_publisher`). May import: `transport`,
`policy`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: a learner knows rows and
weights; who sampled them, and who collected them, it does not know.

Life of a learner rank::

    start ──WorkerReady──► waiting ──LearnTask──► before_run ──► ┌ before_iter          ┐
                              │                                  │ policy.forward(batch)│ iterations
                              │                                  └ after_iter           ┘
                    Stop ─────┴──► Goodbye ──► Leave     after_run ◄── Stop, or all done
"""
