"""Registries, and importing the modules that register."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hpcdi.errors import EXIT_USAGE, ConfigError, UnknownTypeError
from hpcdi.utils.registry import Registry, import_module


class One:
    pass


class Two:
    pass


@pytest.fixture
def registry() -> Registry:
    registry = Registry("policy")
    registry.register("dqn", "dqn_command")(One)
    return registry


def test_a_class_has_all_its_names(registry: Registry) -> None:
    assert registry.get("dqn") is One
    assert registry.get("dqn_command") is One
    assert list(registry) == ["dqn", "dqn_command"]
    assert "dqn" in registry
    assert "ppo" not in registry


def test_the_decorator_gives_the_class_back(registry: Registry) -> None:
    assert registry.register("two")(Two) is Two


def test_two_classes_cannot_have_one_name(registry: Registry) -> None:
    with pytest.raises(ValueError, match=r"policy type 'dqn' is already .*\.One"):
        registry.register("dqn")(Two)
    assert registry.get("dqn") is One


def test_the_same_class_imported_again_replaces_itself(registry: Registry) -> None:
    again = type("One", (), {"__module__": One.__module__, "__qualname__": One.__qualname__})
    registry.register("dqn")(again)
    assert registry.get("dqn") is again


def test_a_class_of_the_script_is_the_one_that_others_import(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "mine.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    first = registry.register("own")(type("Own", (), {"__module__": "__main__"}))
    again = registry.register("own")(type("Own", (), {"__module__": "mine"}))
    assert registry.get("own") is again is not first
    with pytest.raises(ValueError, match=r"already mine\.Own"):
        registry.register("own")(type("Own", (), {"__module__": "others"}))
    del script.__spec__  # by pdb
    assert registry.register("own")(again) is again
    assert registry.register("own")(first) is first


def test_an_unknown_type_says_what_is_like_it_and_what_to_do(registry: Registry) -> None:
    with pytest.raises(UnknownTypeError) as caught:
        registry.get("dqm")
    text = str(caught.value)
    assert text == (
        "no policy of type 'dqm' is registered; did you mean 'dqn'? (known: dqn; a "
        "type of your own needs its module in import_names)"
    )
    assert caught.value.exit_code == EXIT_USAGE
    assert isinstance(caught.value, KeyError)  # as the predecessor raised
    assert "did you mean 'dqn'?" in registry.explain("DQN")


@pytest.mark.parametrize("name", [None, 3, ["dqn"], {"a": 1}])
def test_a_type_that_is_no_text_is_unknown(registry: Registry, name: object) -> None:
    with pytest.raises(UnknownTypeError, match="is registered"):
        registry.get(name)  # type: ignore[arg-type]


def test_an_empty_registry_knows_none() -> None:
    with pytest.raises(UnknownTypeError, match="known: none"):
        Registry("env").get("x")


# ------------------------------------------------------------------------------------- importing


@pytest.fixture
def write_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], None]]:
    """Writes modules into a folder on the path, and forgets them afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_modules_are_imported(write_module: Callable[[str, str], None]) -> None:
    write_module("plugin_a", "LOADED = True")
    write_module("plugin_b", "LOADED = True")
    import_module(["plugin_a", "plugin_b"])
    assert sys.modules["plugin_a"].LOADED
    assert sys.modules["plugin_b"].LOADED


def test_a_module_that_fails_is_named_beside_one_that_is_missing(
    write_module: Callable[[str, str], None],
) -> None:
    write_module("without_its_library", "raise OSError('libGL.so.1: cannot open shared object')")
    with pytest.raises(ConfigError, match="libGL") as caught:
        import_module(["without_its_library", "no_such_module"])
    assert len(caught.value.problems) == 2


def test_what_gymnasium_says_of_a_package_that_is_missing_is_a_problem(
    write_module: Callable[[str, str], None],
) -> None:
    """Its error is no ImportError: it was a traceback."""
    missing = "raise gymnasium.error.DependencyNotInstalled('pip install mujoco')"
    write_module("without_its_package", f"import gymnasium\n{missing}")
    said = r"import_names: importing 'without_its_package' raises .*mujoco.* in .*package.py:2"
    with pytest.raises(ConfigError, match=said):
        import_module("without_its_package")


def test_nothing_to_import_is_fine() -> None:
    import_module([])


def test_all_missing_modules_are_told_at_once(write_module: Callable[[str, str], None]) -> None:
    write_module("plugin_d", "import module_that_is_not_there")
    with pytest.raises(ConfigError) as caught:
        import_module(["no_such_plugin", "plugin_d"])
    assert [problem.path for problem in caught.value.problems] == ["import_names"] * 2
    first, second = (problem.message for problem in caught.value.problems)
    assert first.startswith("there is no module 'no_such_plugin'; install it")
    assert second.startswith(
        "there is no module 'module_that_is_not_there' (needed by 'plugin_d'); install it"
    )
    assert "PYTHONPATH" in first


@pytest.mark.parametrize("name", ["", ".relative", "a..b", "a-b", "a b", 5, None])
def test_what_is_no_module_name_is_a_problem(name: object) -> None:
    with pytest.raises(ConfigError, match="is not the name of a module"):
        import_module([name])


def test_an_error_inside_a_module_keeps_its_traceback(
    write_module: Callable[[str, str], None],
) -> None:
    write_module("plugin_broken", "raise ValueError('planted')")
    with pytest.raises(ValueError, match="planted"):
        import_module(["plugin_broken"])
