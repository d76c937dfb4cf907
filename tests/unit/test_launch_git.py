"""The commit of a checkout, read from its files: compared with what git itself says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdi.run.run_folder import git_commit

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """Runs git in a new checkout with one commit, untouched by anybody's settings."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    variables |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]

    def run(*arguments: str) -> str:
        line = ["git", *who, *arguments]
        return subprocess.run(
            line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
        ).stdout.strip()

    run("init")
    commit(run)
    return run


def commit(git: Callable[..., str]) -> None:
    git("commit", "--allow-empty", "--no-gpg-sign", "-m", "x")


def test_a_branch(tmp_path: Path, git: Callable[..., str]) -> None:
    first = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == first
    git("checkout", "-b", "topic/one")
    commit(git)
    assert git_commit(tmp_path) == git("rev-parse", "HEAD") != first


def test_a_branch_that_is_packed(tmp_path: Path, git: Callable[..., str]) -> None:
    git("branch", "not-main")  # its line ends like main's
    commit(git)
    git("pack-refs", "--all", "--prune")
    assert not (tmp_path / ".git" / "refs" / "heads" / "main").exists()
    assert git_commit(tmp_path) == git("rev-parse", "HEAD") != git("rev-parse", "not-main")


def test_a_newer_commit_than_the_packed_one(tmp_path: Path, git: Callable[..., str]) -> None:
    git("pack-refs", "--all", "--prune")
    commit(git)
    assert git_commit(tmp_path) == git("rev-parse", "HEAD")


def test_a_detached_head(tmp_path: Path, git: Callable[..., str]) -> None:
    commit(git)
    git("checkout", "--detach", "HEAD~1")
    assert git_commit(tmp_path) == git("rev-parse", "HEAD")


def test_a_second_working_tree(tmp_path: Path, git: Callable[..., str]) -> None:
    git("worktree", "add", "-b", "aside", "tree")
    commit(lambda *arguments: git("-C", "tree", *arguments))
    assert git_commit(tmp_path / "tree") == git("rev-parse", "aside") != git("rev-parse", "main")
    git("pack-refs", "--all", "--prune")
    assert git_commit(tmp_path / "tree") == git("rev-parse", "aside")
    git("-C", "tree", "checkout", "--detach", "main")
    assert git_commit(tmp_path / "tree") == git("rev-parse", "main")


def test_no_commit_yet_and_no_checkout(tmp_path: Path, git: Callable[..., str]) -> None:
    git("checkout", "--orphan", "fresh")
    assert git_commit(tmp_path) is None
    (tmp_path / "folder").mkdir()
    assert git_commit(tmp_path / "folder") is None
    assert git_commit(tmp_path / "nowhere") is None
