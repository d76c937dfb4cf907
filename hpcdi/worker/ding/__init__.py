"""DI-engine's policies, environments and configuration files, as parts of hpcdi's runs.

Owns::

    policy      `policy.type: ding`: any policy of DI-engine's form, its settings in `policy.ding`
    env         `env.type: ding`: any environment of DI-engine's form, its settings in `env.ding`
    convert     a configuration (``main_config``, ``create_config``) as an experiment of hpcdi
    reader      runs a configuration file, which is Python, in a process of its own
    library     finds DI-engine's classes

May import: `policy`, `env`, `config`, `utils`, `types`, `errors`. Why so: nothing else knows
DI-engine. It is imported when an experiment names it (``import_names:
[hpcdi.worker.ding.policy]``), and DI-engine itself when its classes are looked up; hpcdi does not
depend on it.
"""
