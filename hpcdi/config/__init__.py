"""One YAML per experiment: read, checked whole, frozen.

Owns: the schema's fixed part, reading YAML and overrides, turning mappings into frozen dataclasses,
the attribute-access mapping of the predecessor's API. May import: `utils`, `types`, `errors`. Why
so: every component owns its own part of the schema (a nested `Config` dataclass) and declares it
with `fields`; this package finds it through the registries and never imports a component.
"""
