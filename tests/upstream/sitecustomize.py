"""Lets every process that has this folder on PYTHONPATH import DI-engine by stubs: ranks, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import stubs

sys.meta_path.append(stubs.Finder())
