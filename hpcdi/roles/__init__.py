"""The three roles of a run: coordinator, collector, learner.

Owns: a rank's place in a run (`context`), what every worker says to rank 0 (`message_side`), the
user's callbacks (`callbacks`), which evaluations are comparable (`evaluations`), planted faults
(`fault`), and a package for each role. May import: `league`, `replay`, `transport`, `policy`,
`env`, `store`, `comm`, `config`, `utils`, `types`, `errors`. Why so: roles meet by messages and
files only; coordinator, collector and learner never import each other.
"""
