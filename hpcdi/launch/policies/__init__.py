"""What becomes of a policy after its run.

Owns: finding one and acting by it (`kept_policy`), judging it (`evaluate`, with a `film`), giving
it away (`export`). May import: the rest of `launch`, `worker` and below. Why so: these commands
need a run folder, or a file, and no MPI.
"""
