"""Leagues: who plays whom, results, ratings, frozen copies.

Owns: players, results and matchmaking (`league`), and how people see them (`view`). May import:
`store`, `config`, `utils`, `types`, `errors`. Why so: a league decides by names and results; who
steps the games, and who learns from them, it does not know.
"""
