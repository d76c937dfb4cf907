"""A run seen from outside, from the login node, by its folder and the queue alone.

Owns: the commands `hpcdi status` and `hpcdi tail` (`commands`), how a run stands (`status`) and how
that is said (`status_text`), the ranks' logs (`log_lines`, `tail`), and a word to a run, how many
collectors shall work (`scale`). May import: the rest of `launch`. Why so: nothing here talks to a
rank, so it works when ranks hang, and needs no port.
"""
