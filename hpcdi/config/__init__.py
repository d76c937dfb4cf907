"""One YAML file per experiment: read, checked as a whole, frozen; and every setting there is.

Owns: the model of an experiment: its root and the rules over several parts (`schema`), and a module
for each part: `env`, `policy` with `algorithms`, `replay`, `roles`, `league`; how settings are
declared and parsed (`fields`), a whole experiment is checked and handed over (`compiled`), YAML and
overrides (`load`), and the attribute-access mapping of the predecessor's API (`compat`). May
import: `utils`, `types`, `errors`, and no heavy library. Why so: a launcher, rank 0 and `hpcdi
plan` need settings only, and mypy follows each to its uses.
"""
