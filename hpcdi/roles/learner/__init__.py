"""Learners: batches in, gradient steps, policies out.

Owns: a learner rank (`role`), one update and what is called around it (`training`, `callbacks`),
checkpoints (`checkpointing`), the source of batches and their way to the device (`feed`), the group
of several learners (`group`), policies for collectors (`publisher`). May import: `transport`,
`policy`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: a learner knows rows and
weights; who sampled them, and who collected them, it does not know.

Life of a learner rank::

    start ──WorkerReady──► waiting ──LearnTask──► on_start ──► ┌ on_batch             ┐
                              │                                │ policy.forward(batch)│ iterations
                              │                                └ on_update            ┘
                    Stop ─────┴──► Goodbye ──► Leave       on_end ◄── Stop, or all done
"""
