"""Reading an experiment: YAML, overrides, all problems at once. Only this file uses OmegaConf."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcdi.config import words
from hpcdi.config.compiled import Compiled, compile_config
from hpcdi.config.modules import folders_of_modules, modules_beside
from hpcdi.errors import ConfigError, Problem

_LARGEST_BYTES = 4 << 20
_MOST_NODES = 1_000_000


def load(path: str | Path, overrides: Sequence[str] = ()) -> Compiled:
    """Read and check an experiment from a YAML file and ``key=value`` overrides.

    Modules that it names are found in `folders_of_modules`, too, which then stand in the
    experiment's `system.import_path`.

    Raises:
        ConfigError: the file is missing or not YAML, or a setting is wrong; holds all problems.
    """
    mapping = read_mapping(path, overrides)
    folders = modules_beside(mapping, folders_of_modules(Path(path)))
    system = mapping.get("system") or {}
    listed = system.get("import_path") or [] if isinstance(system, Mapping) else None
    if folders and isinstance(listed, list):  # what is none is refused by its name
        added = [str(folder) for folder in folders if str(folder) not in listed]
        mapping["system"] = {**system, "import_path": [*listed, *added]}
    return compile_config(mapping, source=str(path))


def read_mapping(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a YAML file, apply overrides and resolve ``${...}``, without checking settings.

    Raises:
        ConfigError: the file is missing, not text or not YAML; or overrides are malformed.
    """
    source = str(path)
    try:
        if why := _why_not_read(source):
            raise ConfigError([Problem("", why)], source)
        read = words.read(_text_of(Path(path)), _check_size)
        tree: Any = OmegaConf.create({} if read is None else read)
        if not OmegaConf.is_dict(tree):
            raise ConfigError([Problem("", "the file must hold a mapping of settings")], source)
        changes, emptied = _overrides(overrides)
        for key in emptied:
            if OmegaConf.is_dict(OmegaConf.select(tree, key)):
                OmegaConf.update(tree, key, {}, merge=False)
        tree = _changed(tree, changes, overrides)
        resolved: Any = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except UnicodeDecodeError as error:
        raise ConfigError([Problem("", f"the file is not text: {error}")], source) from error
    except (yaml.YAMLError, OmegaConfBaseException, OSError, TypeError, ValueError) as error:
        raise ConfigError([Problem("", _said(error))], source) from error
    except RecursionError as error:
        raise ConfigError([Problem("", "the file is nested too deeply")], source) from error
    return {str(key): value for key, value in resolved.items()}


def _why_not_read(source: str) -> str:
    """Returns why a path is none of an experiment's file; empty: it may be one."""
    path = Path(source)
    if not os.path.lexists(source) and (hint := misplaced(source)):
        return f"there is no file {source!r}{hint}"
    if path.suffix == ".py":
        return f"is Python; where only YAML is read, `hpcdi convert {source} -o FILE.yaml` first"
    if path.is_file():
        return ""
    if (own := path / "config.yaml").is_file():
        return (
            f"{source!r} is a run's folder: name {own} for a new run; to go on with that one, "
            f"`hpcdi train --resume {source}`"
        )
    if source and path.is_dir():
        return f"{source!r} is a folder, no file{_neighbours(path)}"
    if source and (path.exists() or path.is_symlink()):
        return f"{source!r} is no regular file, or a link to nowhere, and is not read"
    return f"there is no file {source!r}{_neighbours(path)}"


def misplaced(word: str) -> str:
    """Returns what to type where a setting stands in a file's place, or a file in a setting's.

    Args:
        word: of the command line, which is not what it should be.
    """
    key, sign, _ = word.partition("=")
    if sign and all(key.split(".")) and "/" not in key:
        return f": that is a setting, and settings follow what they are for: FILE {word}"
    with contextlib.suppress(OSError):  # longer than a name may be
        if word and Path(word).exists():
            return f": it names what the settings are for, and comes before them: {word} key=value"
    return ""


def _text_of(path: Path) -> str:
    """Returns what a file holds.

    Raises:
        OSError: it is too large for an experiment.
    """
    if path.stat().st_size > _LARGEST_BYTES:
        raise OSError(f"the file has more than {_LARGEST_BYTES >> 20} MB")
    return path.read_text(encoding="utf-8")


def _check_size(root: yaml.Node) -> None:
    """Check that a file may be an experiment, with its aliases (``*name``) expanded.

    Raises:
        OSError: it is too large. RecursionError: it is too deep.
    """
    sizes: dict[int, int] = {}

    def size_of(node: yaml.Node) -> int:
        if id(node) not in sizes:
            parts = node.value if isinstance(node, yaml.CollectionNode) else ()
            flat = (one for part in parts for one in (part if isinstance(part, tuple) else (part,)))
            sizes[id(node)] = 1 + sum(map(size_of, flat))
        return sizes[id(node)]

    if size_of(root) > _MOST_NODES:
        raise OSError(f"the file has more than {_MOST_NODES} settings")


def _overrides(overrides: Sequence[str]) -> tuple[Any, list[str]]:
    """Returns ``key=value`` texts as a tree of settings, and the keys whose value is ``{}``.

    A mapping changes the file's where it differs; ``{}`` leaves nothing of it.

    Raises:
        ConfigError: one of them is of another form, or its value is no YAML.
    """
    tree, emptied, problems = OmegaConf.create({}), [], []
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not all(key.split(".")):
            message = f"override {text!r} is not of the form key=value{misplaced(text)}"
            problems.append(Problem("", message))
            continue
        try:
            comment = _comment_in(value)
            if comment:
                escaped = value.replace("'", "''")
                quoted = f"{key}='{escaped}'"
                message = (
                    f"override {text!r} ends with a comment, {comment!r}: leave it out, or, where "
                    f"it is text, quote the value for YAML and the shell: {shlex.quote(quoted)}"
                )
                problems.append(Problem("", message))
                continue
            read = words.read(value)
            OmegaConf.update(tree, key, read)
            emptied += [key] if read == {} else []
        except yaml.YAMLError as error:
            message = f"the value of override {text!r} is not YAML: {_said(error)}"
            problems.append(Problem("", message))
    if problems:
        raise ConfigError(problems, "the command line")
    return tree, emptied


def _changed(tree: Any, changes: Any, overrides: Sequence[str]) -> Any:
    """Returns a tree of settings with the changes of overrides.

    Raises:
        ConfigError: an override's path leads into a list, or its mapping replaces one: names it.
    """
    try:
        return OmegaConf.merge(tree, changes)
    except (OmegaConfBaseException, TypeError, ValueError):
        for text in overrides:
            key = text.partition("=")[0]
            parents = [key[:at] for at, letter in enumerate(key) if letter in ".["]
            for path in [*parents, key]:
                old, new = (OmegaConf.select(each, path) for each in (tree, changes))
                if OmegaConf.is_list(old) and OmegaConf.is_dict(new):
                    message = f"override {text!r}: {path} is a list; give it whole: '{path}=[...]'"
                    raise ConfigError([Problem("", message)], "the command line") from None
        raise


def _comment_in(value: str) -> str:
    """Returns what YAML would pass over as a comment in an override's value; empty: nothing.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    end = 0
    for token in yaml.scan(value, Loader=words.Loader):
        between = value[end : token.start_mark.index]
        if "#" in between:
            return between[between.index("#") :].strip()
        end = max(end, token.end_mark.index)
    return ""


def _said(error: Exception) -> str:
    """Returns what an error says, on one line: of YAML that cannot be read where, and why."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def _neighbours(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    names = sorted(p.name for p in folder.glob("[!.]*.yaml")) if folder.is_dir() else []
    return f"; in {folder} there are {', '.join(names)}" if names else ""
