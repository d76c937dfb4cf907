"""Leagues: who plays whom, results, ratings, frozen copies.

Owns: players, results and matchmaking (`league`), how people see them (`view`), and what acts for
players (`battle_agent`). May import: `policy`, `env`, `store`, `config`, `utils`, `types`,
`errors`. Why so: a league decides by names and results; who steps the games, and who learns from
them, it does not know.
"""
