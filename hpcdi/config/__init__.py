"""One YAML file per experiment: read, checked as a whole, frozen.

Owns: how settings are declared and parsed (`fields`), the experiment's model and rules (`schema`),
YAML and overrides (`load`), and the attribute-access mapping of the predecessor's API (`compat`).
May import: `utils`, `types`, `errors`. Why so: every component declares its own part of the model
with `fields`; this package finds it through the registries and never imports a component.
"""
