"""Reads and writes unquoted words in YAML by version 1.2 of the standard; PyYAML follows 1.1.

``NO``, ``off`` and ``yes`` are texts (1.1: booleans), so is ``12:30:00`` (1.1: 45,000), ``0123`` is
123 (1.1: 83), and ``0o17`` is 15 (1.1: a text). Numbers may have underscores, as in ``1_000_000``;
a duplicate key is an error. A text that is a word of either version is written in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

_WORDS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (
        r"[-+]?[0-9][0-9_]*|0o[0-7][0-7_]*|0x[0-9a-fA-F][0-9a-fA-F_]*"
        r"|0b[01][01_]*",
        "-+0123456789",
    ),
    "float": (
        r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "merge": (r"<<", "<"),
}


class Loader(yaml.SafeLoader):
    """Reads YAML by `_WORDS`."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (PyYAML's own way)


class Dumper(yaml.SafeDumper):
    """Writes texts in quotes that would be words of 1.1, or of `_WORDS`; and no aliases."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own way)
        first: [*words] for first, words in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        """Returns True: what stands in two places is written twice."""
        return True


def _integer(loader: Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


for _name, (_words, _first) in _WORDS.items():
    for _kind in (Loader, Dumper):
        _kind.add_implicit_resolver(
            f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_words})$"), list(_first)
        )
Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def _refuse_duplicates(node: yaml.Node, seen: set[int]) -> None:
    """Refuse keys that come twice in a mapping, before what is merged into it counts as its own."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    keys = set()
    for part in node.value:
        key, *values = part if isinstance(part, tuple) else (None, part)
        text = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
        if text in keys and text is not None and text[1] != "<<":
            raise yaml.constructor.ConstructorError(
                context="while constructing a mapping",
                context_mark=node.start_mark,
                problem=f"found duplicate key {key.value}",
                problem_mark=key.start_mark,
            )
        keys.add(text)
        for value in values:
            _refuse_duplicates(value, seen)


def read(text: str, check: Callable[[yaml.Node], None] = lambda _root: None) -> Any:
    """Returns what a YAML text says; `check` sees its nodes before anything is made of them.

    Raises:
        yaml.YAMLError: it is none.
    """
    loader = Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_duplicates(root, set())
        check(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def dump(value: object, *, is_resolved: bool = True) -> str:
    """Returns the YAML text of mappings, lists, texts, numbers, truths and None, keys in order.

    Args:
        value: what is written.
        is_resolved: a ``${`` in it is text, which is escaped: else reading settings resolves it.
    """
    text: str = yaml.dump(
        literal(value) if is_resolved else value,
        Dumper=Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False,
    )  # fmt: skip
    return text


def literal(value: Any) -> Any:
    """Returns settings, or a text, with each ``${`` escaped as OmegaConf reads it."""
    if isinstance(value, dict):
        return {key: literal(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [literal(one) for one in value]
    if isinstance(value, str) and "${" in value:
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value
